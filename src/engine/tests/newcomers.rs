//! Clusters that run already when they come into a queue.

use rstest::rstest;
use serde_json::json;

use super::control_plane::ControlPlane;
use super::jobs::{control_plane, put_cluster, set_quota};
use sluice_api::kueue::names;
use sluice_queue::Settings;

fn put_into_queue(plane: &mut ControlPlane, queue: Option<&str>) {
    plane.apply("RayCluster", json!({"metadata": {"name": "chat", "labels": {(names::QUEUE_NAME_LABEL): queue}}}));
}

/// A cluster of two pods that runs in no queue, beside so much quota.
fn running(cpu: &str) -> ControlPlane {
    let mut plane = control_plane(Settings::default(), cpu);
    put_cluster(&mut plane, "chat", "low", 1);
    put_into_queue(&mut plane, None);
    plane.play(10);
    assert_eq!(plane.pods("chat"), 2);
    plane
}

#[test]
fn with_quota_for_it_nothing_of_a_cluster_stops() {
    let mut plane = running("2");
    let before = plane.uids("chat");

    put_into_queue(&mut plane, Some("lq"));
    plane.play(60);

    assert_eq!(plane.uids("chat"), before);
    assert_eq!(plane.told("RayCluster", "GateClosed"), 0);
    assert_eq!(plane.says("chat", names::ADMITTED), Some(("True".into(), "Admitted".into())));
}

#[rstest]
#[case::too_little_quota("1", "lq")]
#[case::a_queue_that_is_not_there("2", "lost")]
fn without_it_a_cluster_stops_until_there_is_some(#[case] cpu: &str, #[case] queue: &str) {
    let mut plane = running(cpu);

    put_into_queue(&mut plane, Some(queue));
    plane.play(60);
    assert_eq!((plane.pods("chat"), plane.told("RayCluster", "GateClosed")), (0, 1));

    set_quota(&mut plane, "2");
    put_into_queue(&mut plane, Some("lq"));
    plane.play(60);
    assert_eq!(plane.pods("chat"), 2);
}

/// Somebody else's rules may forbid the Workload.
#[test]
fn a_queue_that_can_never_be_asked_is_not_waited_for() {
    let mut plane = running("2");
    plane.refuses = Some("Workload");

    put_into_queue(&mut plane, Some("lq"));
    plane.play(60);

    assert_eq!(plane.pods("chat"), 0);
}
