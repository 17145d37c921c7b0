//! Adoption of clusters that already run when they get a queue name.

use rstest::rstest;
use serde_json::json;

use super::control_plane::ControlPlane;
use super::fixtures::{control_plane, put_cluster, set_quota};
use sluice_api::kueue::names;
use sluice_queue::Settings;

fn put_into_queue(plane: &mut ControlPlane, queue: Option<&str>) {
    plane.apply("RayCluster", json!({"metadata": {"name": "chat", "labels": {(names::QUEUE_NAME_LABEL): queue}}}));
}

/// Returns a control plane with `cpu` quota and an unmanaged cluster that runs two pods.
fn running_unmanaged_cluster(cpu: &str) -> ControlPlane {
    let mut plane = control_plane(Settings::default(), cpu);
    put_cluster(&mut plane, "chat", "low", 1);
    put_into_queue(&mut plane, None);
    plane.advance(10);
    assert_eq!(plane.ungated_pod_count("chat"), 2);
    plane
}

#[test]
fn adopted_cluster_with_quota_keeps_its_pods() {
    let mut plane = running_unmanaged_cluster("2");
    let before = plane.pod_uids("chat");

    put_into_queue(&mut plane, Some("lq"));
    plane.advance(60);

    assert_eq!(plane.pod_uids("chat"), before);
    assert_eq!(plane.event_count("RayCluster", "GateClosed"), 0);
    assert_eq!(plane.slice_condition("chat", names::ADMITTED), Some(("True".into(), "Admitted".into())));
}

#[rstest]
#[case::insufficient_quota("1", "lq")]
#[case::missing_local_queue("2", "lost")]
fn adopted_cluster_without_quota_is_suspended_until_admitted(#[case] cpu: &str, #[case] queue: &str) {
    let mut plane = running_unmanaged_cluster(cpu);

    put_into_queue(&mut plane, Some(queue));
    plane.advance(60);
    assert_eq!((plane.ungated_pod_count("chat"), plane.event_count("RayCluster", "GateClosed")), (0, 1));

    set_quota(&mut plane, "2");
    put_into_queue(&mut plane, Some("lq"));
    plane.advance(60);
    assert_eq!(plane.ungated_pod_count("chat"), 2);
}

/// Another admission policy may forbid the Workload.
#[test]
fn adopted_cluster_whose_workload_cannot_be_created_is_suspended() {
    let mut plane = running_unmanaged_cluster("2");
    plane.forbidden_creation = Some("Workload");

    put_into_queue(&mut plane, Some("lq"));
    plane.advance(60);

    assert_eq!(plane.ungated_pod_count("chat"), 0);
}
