//! Queued RayJobs, which KubeRay runs.

use rstest::rstest;
use serde_json::json;

use super::fixtures::{cluster_spec, control_plane, job_metadata, put_cluster};
use super::ownership::{RAY_JOB, plane_with_ray_job, put_owned};
use sluice_api::kueue::names;
use sluice_queue::Settings;

#[test]
fn ray_job_that_kuberay_rejects_holds_no_quota() {
    // Given a RayJob that holds the whole quota, and a cluster that waits for it,
    let mut plane = plane_with_ray_job();
    plane.advance(10);
    assert_eq!(plane.slice_condition("train", names::ADMITTED), Some(("True".into(), "Admitted".into())));
    put_cluster(&mut plane, "next", "low", 1);
    plane.advance(10);
    assert_eq!(plane.slice_condition("next", names::QUOTA_RESERVED).map(|found| found.0).as_deref(), Some("False"));

    // when KubeRay rejects the RayJob, then the cluster gets the quota, also hours later.
    plane
        .apply("RayJob", json!({"metadata": {"name": "train"}, "status": {"jobDeploymentStatus": "ValidationFailed"}}));
    plane.advance(10);
    assert_eq!(plane.slice_condition("next", names::ADMITTED).map(|found| found.0).as_deref(), Some("True"));
    plane.advance(10_000);
    assert_eq!(plane.slice_condition("next", names::ADMITTED).map(|found| found.0).as_deref(), Some("True"));
    assert_eq!(plane.object("RayJob", "train")["spec"]["suspend"], true);
}

#[test]
fn submitter_of_a_ray_job_runs_on_nodes_of_its_flavor() {
    // Given a flavor with node labels and tolerations,
    let mut plane = plane_with_ray_job();
    let container = json!({"name": "main", "resources": {"requests": {"cpu": "1"}}});
    let submitter = json!({"spec": {"restartPolicy": "Never", "containers": [container]}});
    let spec = json!({"submissionMode": "K8sJobMode", "submitterPodTemplate": submitter});
    plane.apply("RayJob", json!({"metadata": {"name": "train"}, "spec": spec}));
    let toleration = json!({"key": "gpu", "operator": "Exists", "effect": "NoSchedule"});
    let spec = json!({"nodeLabels": {"pool": "a100"}, "tolerations": [toleration]});
    plane.apply("ResourceFlavor", json!({"metadata": {"name": "default"}, "spec": spec}));
    plane.advance(10);
    assert_eq!(plane.object("RayJob", "train")["spec"]["suspend"], false);

    // when KubeRay creates the submitter Job, then its pod runs on nodes of that flavor.
    put_owned(&mut plane, "Job", "train", Some(&RAY_JOB));
    let gate = json!([{"name": names::ELASTIC_JOB_GATE}]);
    let template = json!({"spec": {"schedulingGates": gate}});
    plane.apply(
        "Job",
        json!({"metadata": {"name": "train"}, "spec": {"parallelism": 1, "completions": 1, "template": template}}),
    );
    plane.advance(10);
    let pods: Vec<_> = plane.pods_of_job("train").collect();
    let [pod] = pods.as_slice() else { panic!("one pod: {pods:?}") };
    assert_eq!(pod["spec"]["schedulingGates"].as_array().map_or(0, Vec::len), 0);
    assert_eq!(pod["spec"]["nodeSelector"], json!({"pool": "a100"}));
    assert_eq!(pod["spec"]["tolerations"], json!([toleration]));
}

#[rstest]
#[case::cluster_of_kuberay("RayCluster", true, true)]
#[case::ray_job("RayJob", true, true)]
#[case::own_cluster("RayCluster", false, false)]
fn history_collector_that_kuberay_adds_is_charged(
    #[case] kind: &str,
    #[case] is_external: bool,
    #[case] is_charged: bool,
) {
    let plane = control_plane(Settings::default(), "0");
    let mut plane = if is_external { plane.with_external_ray_operator() } else { plane };
    let mut cluster = cluster_spec(1, "2.53.0");
    cluster["historyServerOptions"] = json!({"collectorOptions": {"image": "collector"}});
    let spec = if kind == "RayJob" { json!({"entrypoint": "true", "rayClusterSpec": cluster}) } else { cluster };

    plane.apply(kind, json!({"metadata": job_metadata("own", "low"), "spec": spec}));
    plane.advance(10);

    let workload = serde_json::to_value(plane.workload("own")).expect("JSON");
    for pod_set in workload["spec"]["podSets"].as_array().expect("pod sets") {
        let containers = pod_set["template"]["spec"]["containers"].as_array().expect("containers");
        let has_collector = containers.iter().any(|container| container["name"] == "ray-history-collector");
        let has_one = is_charged && pod_set["name"] != "submitter";
        assert_eq!(has_collector, has_one, "{}", pod_set["name"]);
    }
}
