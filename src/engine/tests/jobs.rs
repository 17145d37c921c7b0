//! A control plane with one queue, and the jobs in it.

use serde_json::{Value, json};

use super::control_plane::ControlPlane;
use sluice_api::kueue::names;
use sluice_queue::Settings;

/// A control plane with one ClusterQueue of so many CPUs, in which the more important takes the place of the less so.
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

/// Gives the ClusterQueue so many CPUs.
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

/// Gives the first worker group of a RayCluster that exists so many replicas.
pub(super) fn scale(plane: &mut ControlPlane, cluster: &str, replicas: u32) {
    let mut object = plane.object("RayCluster", cluster).clone();
    object["spec"]["workerGroupSpecs"][0]["replicas"] = json!(replicas);
    plane.apply("RayCluster", json!({"metadata": {"name": cluster}, "spec": object["spec"]}));
}

/// A head and so many workers of 1 CPU each.
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

/// Of a job in the queue, with a WorkloadPriorityClass.
pub(super) fn meta(name: &str, class: &str) -> Value {
    json!({"name": name, "labels": {(names::QUEUE_NAME_LABEL): "lq", (names::PRIORITY_CLASS_LABEL): class}})
}

/// Creates a RayCluster, or gives it other workers.
pub(super) fn put_cluster(plane: &mut ControlPlane, name: &str, class: &str, workers: u32) {
    plane.apply("RayCluster", json!({"metadata": meta(name, class), "spec": cluster_spec(workers, "2.53.0")}));
}

/// Creates a RayService with one worker, or upgrades it.
pub(super) fn put_service(plane: &mut ControlPlane, name: &str, class: &str, version: &str) {
    let serve = "applications:\n- name: chat\n  import_path: chat:app\n";
    let spec = json!({"serveConfigV2": serve, "rayClusterConfig": cluster_spec(1, version)});
    let mut spec = spec;
    // Its own gate is not ours to change.
    spec["rayClusterConfig"]["suspend"] = json!(true);
    plane.apply("RayService", json!({"metadata": meta(name, class), "spec": spec}));
}
