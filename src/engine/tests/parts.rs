//! Partial preemption: jobs that lose part of their quota and keep running with the rest.

use serde_json::json;

use super::control_plane::ControlPlane;
use super::jobs::{cluster_spec, control_plane, meta, put_cluster, put_service, set_quota};
use sluice_queue::Settings;
use sluice_queue::parts::PARTLY_PREEMPTED;

/// Returns the active and the pending cluster of a service.
fn pair(plane: &ControlPlane, service: &str) -> (String, String) {
    let active = plane.service(service).status.and_then(|status| status.active_service_status);
    let active = active.and_then(|active| active.ray_cluster_name).expect("an active cluster");
    let mut pending = plane.children(service).into_iter().filter(|name| *name != active);
    (active.clone(), pending.next().expect("a pending cluster"))
}

#[test]
fn pending_cluster_is_preempted_before_the_active_one() {
    // Given a service whose upgrade is starting,
    let mut plane = control_plane(Settings::default(), "2");
    put_service(&mut plane, "fruit", "low", "2.53.0");
    plane.play(60);
    put_service(&mut plane, "fruit", "low", "2.54.0");
    plane.play(5);
    let (active, pending) = pair(&plane, "fruit");
    plane.ailing.insert(pending.clone());
    set_quota(&mut plane, "4");
    plane.play(5);
    assert_eq!((plane.pods(&active), plane.pods(&pending)), (2, 2));

    // when a workload of higher priority arrives, the upgrade stops and holds its quota until its
    // pods are gone;
    plane.linger = true;
    put_cluster(&mut plane, "proud", "high", 1);
    plane.play(5);
    assert_eq!(plane.says("fruit", PARTLY_PREEMPTED), Some(("True".to_owned(), "Surge".to_owned())));
    assert_eq!((plane.pods(&active), plane.pods(&pending), plane.pods("proud")), (2, 2, 0));
    let why = plane.waits_for("RayService", "fruit");
    let expected = format!("{pending} is stopping ({active} keeps running). For workload default/");
    assert!(why.starts_with(&expected), "{why}");

    // then the preemptor has the quota, and the upgrade is pending while the service keeps serving;
    plane.linger = false;
    plane.play(10);
    assert_eq!((plane.pods(&active), plane.pods(&pending), plane.pods("proud")), (2, 0, 2));
    assert_eq!(plane.told("Workload", "EvictedDueToPreempted"), 0);
    assert_eq!(plane.told("Workload", "PreemptedWorkload"), 1);
    let why = plane.waits_for("RayService", "fruit");
    let expected = format!("upgrade to {pending} is pending in LocalQueue lq ({active} keeps serving): ");
    assert!(why.starts_with(&expected), "{why}");

    // and it proceeds as soon as there is quota.
    plane.ailing.clear();
    set_quota(&mut plane, "6");
    plane.play(200);
    assert_eq!((plane.pods(&pending), plane.children("fruit")), (2, vec![pending]));
}

#[test]
fn replicas_above_the_autoscaler_minimum_are_preempted_before_the_job() {
    // Given a cluster that may shrink to one of its five workers,
    let mut plane = control_plane(Settings::default(), "7");
    let mut spec = cluster_spec(5, "2.53.0");
    spec["enableInTreeAutoscaling"] = json!(true);
    spec["workerGroupSpecs"][0]["minReplicas"] = json!(1);
    plane.apply("RayCluster", json!({"metadata": meta("elastic", "low"), "spec": spec}));
    plane.play(30);
    assert_eq!(plane.pods("elastic"), 6);

    // when a workload of higher priority arrives, it loses all replicas above its minimum, and
    // regains those that the preemptor does not need,
    put_cluster(&mut plane, "proud", "high", 1);
    plane.play(30);
    assert_eq!((plane.pods("elastic"), plane.gated("elastic"), plane.pods("proud")), (4, 2, 2));
    assert_eq!(plane.told("Workload", "PartiallyPreempted"), 1);
    assert_eq!(plane.told("Workload", "EvictedDueToPreempted"), 0);

    // and the rest when there is more quota.
    set_quota(&mut plane, "9");
    plane.play(30);
    assert_eq!((plane.pods("elastic"), plane.gated("elastic"), plane.pods("proud")), (6, 0, 2));
}
