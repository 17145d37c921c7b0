//! Jobs that are deleted, on the whole engine.

use rstest::rstest;
use serde_json::json;

use super::jobs::{cluster_spec, control_plane, meta, put_cluster, put_service};
use sluice_api::ray::names;
use sluice_queue::Settings;

/// In the foreground everything that a job owns is deleted at once, its slices with its clusters. The slices hold their quota
/// until the last pod is gone, and the job stays until the slices are.
#[rstest]
#[case::service("RayService")]
#[case::cluster("RayCluster")]
fn a_job_that_is_deleted_in_the_foreground_goes_when_its_pods_have(#[case] kind: &str) {
    let mut plane = control_plane(Settings::default(), "2");
    if kind == "RayService" {
        put_service(&mut plane, "chat", "low", "2.53.0");
    } else {
        put_cluster(&mut plane, "chat", "low", 1);
    }
    plane.play(60);
    plane.linger = true;
    assert!(plane.has(kind, "chat") && plane.workloads("chat").len() == 1);

    plane.delete_in_foreground(kind, "chat");
    plane.play(5);
    assert_eq!(plane.workloads("chat").len(), 1, "pods still run on its quota");

    plane.linger = false;
    plane.play(5);
    assert!(plane.workloads("chat").is_empty());
    assert!(!plane.has(kind, "chat"));
}

#[test]
fn a_slice_that_is_deleted_by_hand_gives_its_quota_back_before_another_gets_any() {
    let mut plane = control_plane(Settings::default(), "8");
    put_cluster(&mut plane, "chat", "low", 1);
    plane.play(10);
    plane.linger = true;
    let first = plane.workload("chat").metadata;

    // While its pods run on, their quota is held, and none is given for the same pods beside it.
    plane.delete("Workload", first.name.as_deref().unwrap_or_default());
    plane.play(10);
    assert_eq!(plane.workloads("chat").len(), 1);
    assert_eq!((plane.workload("chat").metadata.uid, plane.pods("chat")), (first.uid.clone(), 2));

    plane.linger = false;
    plane.play(10);
    assert_ne!(plane.workload("chat").metadata.uid, first.uid);
    assert_eq!(plane.pods("chat"), 2);
}

#[test]
fn that_an_object_is_gone_is_learned_from_an_answer_that_it_is_not_there() {
    let mut plane = control_plane(Settings::default(), "8");
    put_cluster(&mut plane, "chat", "low", 1);
    plane.play(10);

    // Given a watch that is behind, the pods' end is the first that is heard of the end of their cluster.
    plane.unheard = Some("RayCluster");
    plane.delete("RayCluster", "chat");
    plane.play(60);

    assert!(plane.workloads("chat").is_empty(), "nothing is asked for it any more");
    assert_eq!(plane.pods("chat"), 0);
}

#[test]
fn the_pods_of_a_cluster_that_is_gone_are_not_those_of_one_that_has_its_name() {
    let mut plane = control_plane(Settings::default(), "8");
    put_cluster(&mut plane, "chat", "low", 1);
    plane.play(10);
    let old = plane.workload("chat").metadata;
    plane.linger = true;

    plane.delete("RayCluster", "chat");
    put_cluster(&mut plane, "chat", "low", 1);
    plane.play(10);
    assert_eq!((plane.workloads("chat").len(), plane.pods("chat")), (2, 4), "each pays for its own pods");

    plane.linger = false;
    plane.play(10);
    assert_ne!(plane.workload("chat").metadata.uid, old.uid);
    assert_eq!((plane.workloads("chat").len(), plane.pods("chat")), (1, 2), "the quota of the old one is given back");
}

#[test]
fn the_quota_of_pods_that_are_on_their_way_is_held_though_their_cluster_is_gone() {
    let mut plane = control_plane(Settings::default(), "8");
    plane.late = Some("Pod");
    put_cluster(&mut plane, "chat", "low", 1);
    plane.play(10);

    plane.delete("RayCluster", "chat");
    plane.play(10);
    assert_eq!((plane.workloads("chat").len(), plane.pods("chat")), (1, 0), "none has come, and each still may");

    plane.linger = true;
    plane.arrive();
    plane.play(10);
    assert_eq!((plane.workloads("chat").len(), plane.pods("chat")), (1, 2), "they run until they are collected");

    plane.linger = false;
    plane.play(10);
    assert_eq!((plane.workloads("chat").len(), plane.pods("chat")), (0, 0));
}

#[test]
fn a_slice_that_is_deleted_holds_its_quota_while_the_gate_of_what_it_pays_for_may_be_opening() {
    // Given a cluster the gate of which is being opened on its slice,
    let mut plane = control_plane(Settings::default(), "8");
    let mut spec = cluster_spec(1, "2.53.0");
    spec["suspend"] = json!(true);
    plane.apply("RayCluster", json!({"metadata": meta("chat", "low"), "spec": spec}));
    plane.late = Some("RayCluster");
    plane.play(10);
    plane.late = None;
    let first = plane.workload("chat").metadata;

    // when the slice is deleted, then it stays until it is known what became of that.
    plane.delete("Workload", first.name.as_deref().unwrap_or_default());
    plane.play(10);
    assert_eq!(plane.workload("chat").metadata.uid, first.uid);
    plane.arrive();
    plane.play(60);
    assert_ne!(plane.workload("chat").metadata.uid, first.uid);
    assert_eq!(plane.pods("chat"), 2);
}

#[test]
fn a_service_that_takes_too_long_to_serve_gives_its_quota_to_others() {
    // Given a service that has its quota and never comes to serve, and a cluster that waits for that quota,
    let mut plane = control_plane(Settings::default(), "2");
    plane.ailing.insert("chat".into());
    put_service(&mut plane, "chat", "low", "2.53.0");
    let limit = json!({(names::INITIALIZING_TIMEOUT_ANNOTATION): "60"});
    plane.apply("RayService", json!({"metadata": {"name": "chat", "annotations": limit}}));
    plane.play(10);
    put_cluster(&mut plane, "other", "low", 1);
    plane.play(30);
    assert_eq!(plane.pods("other"), 0);

    // when its time is over, then its pods go, and only then the others come.
    plane.play(60);
    assert_eq!(plane.pods("other"), 2);
}
