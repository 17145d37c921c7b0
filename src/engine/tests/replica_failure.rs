//! Clusters whose pods the API server rejects.

use serde_json::{Value, json};

use super::control_plane::ControlPlane;
use super::fixtures::{cluster_spec, control_plane, job_metadata, put_service};
use sluice_api::condition;
use sluice_queue::Settings;

fn cluster(workers: u32) -> Value {
    json!({"metadata": job_metadata("chat", "low"), "spec": cluster_spec(workers, "2.53.0")})
}

/// Returns reason and message of the condition `ReplicaFailure`.
fn replica_failure(plane: &ControlPlane) -> Option<(String, String)> {
    let conditions = plane.object("RayCluster", "chat")["status"]["conditions"].as_array().cloned()?;
    let found = conditions.into_iter().find(|condition| condition["type"] == "ReplicaFailure")?;
    assert_eq!(found["status"], "True");
    let text = |field: &str| found[field].as_str().map(str::to_owned);
    Some((text("reason")?, text("message")?))
}

#[test]
fn b36_cluster_reports_why_the_api_server_rejects_its_pods() {
    // Given a namespace in which no pod can be created,
    let mut plane = control_plane(Settings::default(), "4");
    plane.forbidden_creation = Some("Pod");

    // when a cluster is admitted, then it reports the failure, and retries with backoff;
    plane.apply("RayCluster", cluster(1));
    plane.advance(120);
    let (reason, message) = replica_failure(&plane).expect("a condition");
    assert_eq!(reason, "FailedCreateHeadPod");
    assert!(message.contains("create of Pod default/chat-head-") && message.ends_with("it is forbidden"), "{message}");
    let tries = plane.forbidden_creation_count("Pod");
    assert!((10..30).contains(&tries), "{tries} attempts in two minutes");
    assert_eq!(plane.event_count("RayCluster", "CreatedHeadPod"), 0, "a failed write emits no Event of success");

    // and once pods are allowed, they are created and the condition is removed.
    plane.forbidden_creation = None;
    plane.advance(60);
    assert_eq!((plane.ungated_pod_count("chat"), replica_failure(&plane)), (2, None));
}

#[test]
fn failure_is_dropped_when_the_pod_is_no_longer_desired() {
    let mut plane = control_plane(Settings::default(), "4");
    plane.apply("RayCluster", cluster(0));
    plane.advance(60);
    plane.forbidden_creation = Some("Pod");
    plane.apply("RayCluster", cluster(1));
    plane.advance(60);
    assert_eq!(replica_failure(&plane).expect("a condition").0, "FailedCreateWorkerPod");

    // The backoff of the pod does not delay the status.
    plane.apply("RayCluster", cluster(0));
    plane.advance(1);

    assert_eq!((plane.ungated_pod_count("chat"), replica_failure(&plane)), (1, None));
}

#[test]
fn service_reports_why_the_api_server_rejects_the_pods_of_its_cluster() {
    let mut plane = control_plane(Settings::default(), "4");
    plane.forbidden_creation = Some("Pod");
    put_service(&mut plane, "chat", "low", "2.53.0");
    plane.advance(60);

    let conditions = plane.service("chat").status.expect("a status").conditions;
    let ready = condition::get(&conditions, "Ready").expect("a condition");
    let is_reported = ready.message.contains("FailedCreateHeadPod") && ready.message.contains("it is forbidden");
    assert!(is_reported && ready.status == "False", "{ready:?}");
}
