//! Fixtures: a control plane with one queue, and jobs in it.

use serde_json::{Value, json};

use super::control_plane::ControlPlane;
use sluice_api::kueue::names;
use sluice_queue::Settings;

/// Creates a control plane with one ClusterQueue of `cpu` CPUs that preempts by priority.
pub(super) fn control_plane(settings: Settings, cpu: &str) -> ControlPlane {
    let mut plane = ControlPlane::new(settings);
    plane.apply("Namespace", json!({"metadata": {"name": "default"}}));
    plane.apply("ResourceFlavor", json!({"metadata": {"name": "default"}, "spec": {}}));
    set_quota(&mut plane, cpu);
    plane.apply("LocalQueue", json!({"metadata": {"name": "lq"}, "spec": {"clusterQueue": "cq"}}));
    for (name, value) in [("low", 1), ("high", 100)] {
        plane.apply("WorkloadPriorityClass", json!({"metadata": {"name": name}, "value": value}));
    }
    plane
}

/// Sets the CPU quota of the ClusterQueue.
pub(super) fn set_quota(plane: &mut ControlPlane, cpu: &str) {
    let flavors = json!([{"name": "default", "resources": [{"name": "cpu", "nominalQuota": cpu}, {"name": "memory", "nominalQuota": "99Gi"}]}]);
    plane.apply(
        "ClusterQueue",
        json!({"metadata": {"name": "cq"}, "spec": {
            "namespaceSelector": {},
            "preemption": {"withinClusterQueue": "LowerPriority"},
            "resourceGroups": [{"coveredResources": ["cpu", "memory"], "flavors": flavors}],
        }}),
    );
}

/// Sets the replicas of the first worker group of an existing RayCluster.
pub(super) fn scale_cluster(plane: &mut ControlPlane, cluster: &str, replicas: u32) {
    let mut object = plane.object("RayCluster", cluster).clone();
    object["spec"]["workerGroupSpecs"][0]["replicas"] = json!(replicas);
    plane.apply("RayCluster", json!({"metadata": {"name": cluster}, "spec": object["spec"]}));
}

/// Returns the spec of a cluster with a head and `workers` workers of 1 CPU each.
pub(super) fn cluster_spec(workers: u32, version: &str) -> Value {
    let template = |name: &str| {
        let container =
            json!({"name": name, "image": "ray", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}});
        json!({"spec": {"containers": [container]}})
    };
    json!({
        "rayVersion": version,
        "headGroupSpec": {"rayStartParams": {}, "template": template("ray-head")},
        "workerGroupSpecs": [{
            "groupName": "small", "replicas": workers, "minReplicas": 0, "maxReplicas": 9, "rayStartParams": {},
            "template": template("ray-worker"),
        }],
    })
}

/// Returns the metadata of a job in the queue, with a WorkloadPriorityClass.
pub(super) fn job_metadata(name: &str, class: &str) -> Value {
    json!({"name": name, "labels": {(names::QUEUE_NAME_LABEL): "lq", (names::PRIORITY_CLASS_LABEL): class}})
}

/// Creates or scales a RayCluster.
pub(super) fn put_cluster(plane: &mut ControlPlane, name: &str, class: &str, workers: u32) {
    plane.apply("RayCluster", json!({"metadata": job_metadata(name, class), "spec": cluster_spec(workers, "2.53.0")}));
}

/// Creates or upgrades a RayService with one worker.
pub(super) fn put_service(plane: &mut ControlPlane, name: &str, class: &str, version: &str) {
    let serve = "applications:\n- name: chat\n  import_path: chat:app\n";
    let mut spec = json!({"serveConfigV2": serve, "rayClusterConfig": cluster_spec(1, version)});
    // Applying the manifest keeps the template suspended.
    spec["rayClusterConfig"]["suspend"] = json!(true);
    plane.apply("RayService", json!({"metadata": job_metadata(name, class), "spec": spec}));
}
