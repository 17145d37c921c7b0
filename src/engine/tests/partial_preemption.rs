//! Partial preemption: jobs that lose part of their quota and keep running with the rest.

use serde_json::json;

use super::control_plane::ControlPlane;
use super::fixtures::{cluster_spec, control_plane, job_metadata, put_cluster, put_service, set_quota};
use sluice_queue::Settings;
use sluice_queue::partial_preemption::PARTIALLY_PREEMPTED;

/// Returns the active and the pending cluster of a service.
fn active_and_pending(plane: &ControlPlane, service: &str) -> (String, String) {
    let active = plane.service(service).status.and_then(|status| status.active_service_status);
    let active = active.and_then(|active| active.ray_cluster_name).expect("an active cluster");
    let mut pending = plane.clusters_of_service(service).into_iter().filter(|name| *name != active);
    (active.clone(), pending.next().expect("a pending cluster"))
}

#[test]
fn pending_cluster_is_preempted_before_the_active_one() {
    // Given a service whose upgrade is starting,
    let mut plane = control_plane(Settings::default(), "2");
    put_service(&mut plane, "fruit", "low", "2.53.0");
    plane.advance(60);
    put_service(&mut plane, "fruit", "low", "2.54.0");
    plane.advance(5);
    let (active, pending) = active_and_pending(&plane, "fruit");
    plane.unready_pods.insert(pending.clone());
    set_quota(&mut plane, "4");
    plane.advance(5);
    assert_eq!((plane.ungated_pod_count(&active), plane.ungated_pod_count(&pending)), (2, 2));

    // when a workload of higher priority arrives, the upgrade stops and holds its quota until its
    // pods are gone;
    plane.pods_linger = true;
    put_cluster(&mut plane, "proud", "high", 1);
    plane.advance(5);
    assert_eq!(plane.slice_condition("fruit", PARTIALLY_PREEMPTED), Some(("True".to_owned(), "Surge".to_owned())));
    assert_eq!(
        (plane.ungated_pod_count(&active), plane.ungated_pod_count(&pending), plane.ungated_pod_count("proud")),
        (2, 2, 0)
    );
    let why = plane.pending_message("RayService", "fruit");
    let expected = format!("{pending} is stopping ({active} keeps running). For workload default/");
    assert!(why.starts_with(&expected), "{why}");

    // then the preemptor has the quota, and the upgrade is pending while the service keeps serving;
    plane.pods_linger = false;
    plane.advance(10);
    assert_eq!(
        (plane.ungated_pod_count(&active), plane.ungated_pod_count(&pending), plane.ungated_pod_count("proud")),
        (2, 0, 2)
    );
    assert_eq!(plane.event_count("Workload", "EvictedDueToPreempted"), 0);
    assert_eq!(plane.event_count("Workload", "PreemptedWorkload"), 1);
    let why = plane.pending_message("RayService", "fruit");
    let expected = format!("upgrade to {pending} is pending in LocalQueue lq ({active} keeps serving): ");
    assert!(why.starts_with(&expected), "{why}");

    // and it proceeds as soon as there is quota.
    plane.unready_pods.clear();
    set_quota(&mut plane, "6");
    plane.advance(200);
    assert_eq!((plane.ungated_pod_count(&pending), plane.clusters_of_service("fruit")), (2, vec![pending]));
}

#[test]
fn replicas_above_the_autoscaler_minimum_are_preempted_before_the_job() {
    // Given a cluster that may shrink to one of its five workers,
    let mut plane = control_plane(Settings::default(), "7");
    let mut spec = cluster_spec(5, "2.53.0");
    spec["enableInTreeAutoscaling"] = json!(true);
    spec["workerGroupSpecs"][0]["minReplicas"] = json!(1);
    plane.apply("RayCluster", json!({"metadata": job_metadata("elastic", "low"), "spec": spec}));
    plane.advance(30);
    assert_eq!(plane.ungated_pod_count("elastic"), 6);

    // when a workload of higher priority arrives, it loses all replicas above its minimum, and
    // regains those that the preemptor does not need,
    put_cluster(&mut plane, "proud", "high", 1);
    plane.advance(30);
    assert_eq!(
        (plane.ungated_pod_count("elastic"), plane.gated_pod_count("elastic"), plane.ungated_pod_count("proud")),
        (4, 2, 2)
    );
    assert_eq!(plane.event_count("Workload", "PartiallyPreempted"), 1);
    assert_eq!(plane.event_count("Workload", "EvictedDueToPreempted"), 0);

    // and the rest when there is more quota.
    set_quota(&mut plane, "9");
    plane.advance(30);
    assert_eq!(
        (plane.ungated_pod_count("elastic"), plane.gated_pod_count("elastic"), plane.ungated_pod_count("proud")),
        (6, 0, 2)
    );
}
