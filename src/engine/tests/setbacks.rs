//! Clusters whose pods the API server refuses, on the whole engine.

use serde_json::{Value, json};

use super::control_plane::ControlPlane;
use super::jobs::{cluster_spec, control_plane, meta, put_service};
use sluice_api::condition;
use sluice_queue::Settings;

fn cluster(workers: u32) -> Value {
    json!({"metadata": meta("chat", "low"), "spec": cluster_spec(workers, "2.53.0")})
}

/// Reason and message of the condition `ReplicaFailure`.
fn failure(plane: &ControlPlane) -> Option<(String, String)> {
    let conditions = plane.object("RayCluster", "chat")["status"]["conditions"].as_array().cloned()?;
    let found = conditions.into_iter().find(|condition| condition["type"] == "ReplicaFailure")?;
    assert_eq!(found["status"], "True");
    let text = |field: &str| found[field].as_str().map(str::to_owned);
    Some((text("reason")?, text("message")?))
}

#[test]
fn b36_a_cluster_says_why_the_api_server_refuses_its_pods() {
    // Given a namespace in which no pod can be made,
    let mut plane = control_plane(Settings::default(), "4");
    plane.refuses = Some("Pod");

    // when a cluster is admitted, then it says so, and is tried again and again, at a pace that the API server can bear;
    plane.apply("RayCluster", cluster(1));
    plane.play(120);
    let (reason, message) = failure(&plane).expect("a condition");
    assert_eq!(reason, "FailedCreateHeadPod");
    assert!(message.contains("create of Pod default/chat-head-") && message.ends_with("it is forbidden"), "{message}");
    let tries = plane.tries("Pod");
    assert!((10..30).contains(&tries), "{tries} tries in two minutes");
    assert_eq!(plane.told("RayCluster", "CreatedHeadPod"), 0, "what was not done is not told");

    // and when it is allowed to, it has its pods, and says nothing of that any more.
    plane.refuses = None;
    plane.play(60);
    assert_eq!((plane.pods("chat"), failure(&plane)), (2, None));
}

#[test]
fn what_is_not_wanted_any_more_is_no_failure() {
    let mut plane = control_plane(Settings::default(), "4");
    plane.apply("RayCluster", cluster(0));
    plane.play(60);
    plane.refuses = Some("Pod");
    plane.apply("RayCluster", cluster(1));
    plane.play(60);
    assert_eq!(failure(&plane).expect("a condition").0, "FailedCreateWorkerPod");

    // Nothing else waits until it is tried again.
    plane.apply("RayCluster", cluster(0));
    plane.play(1);

    assert_eq!((plane.pods("chat"), failure(&plane)), (1, None));
}

#[test]
fn a_service_says_why_the_api_server_refuses_the_pods_of_its_cluster() {
    let mut plane = control_plane(Settings::default(), "4");
    plane.refuses = Some("Pod");
    put_service(&mut plane, "chat", "low", "2.53.0");
    plane.play(60);

    let conditions = plane.service("chat").status.expect("a status").conditions;
    let ready = condition::get(&conditions, "Ready").expect("a condition");
    let is_told = ready.message.contains("FailedCreateHeadPod") && ready.message.contains("it is forbidden");
    assert!(is_told && ready.status == "False", "{ready:?}");
}
