//! Workers are removed only after Serve accepted the lower capacity.

use super::{recorded_shares, run_and_check, run_until, running_service, upgrade_until};
use crate::tests::ray_version_patch;

#[test]
fn no_worker_is_removed_before_serve_accepts_the_lower_capacity() {
    // Given an upgrade that is halfway, and a dashboard that rejects every configuration,
    let mut stage = running_service(50, 25, 5);
    let old = stage.live_clusters()[0].clone();
    upgrade_until(&mut stage, "50/100 50/50");
    stage.rejection_code = Some(500);

    // when the capacity of the old cluster is lowered, then no worker is removed, also not after a
    // restart,
    run_and_check(&mut stage, 30);
    stage.restart();
    run_and_check(&mut stage, 30);
    assert_eq!((recorded_shares(&stage).as_str(), stage.worker_count()), ("50/50 50/50", 6));

    // and once Serve accepts it, the workers without replicas are removed.
    let before = stage.worker_names(&old);
    stage.rejection_code = None;
    run_until(&mut stage, "50/50 50/100");
    assert_eq!(stage.worker_names(&old), before[2..], "the oldest replicas were stopped");
    run_and_check(&mut stage, 60);
    assert_eq!(recorded_shares(&stage), "100/100");
    let groups = stage.clusters().into_iter().flat_map(|cluster| cluster.spec.worker_group_specs);
    assert!(groups.into_iter().all(|group| group.scale_strategy.is_none()), "workersToDelete is cleared");
}

#[test]
fn no_worker_is_removed_while_the_dashboard_does_not_respond() {
    let mut stage = running_service(50, 25, 5);
    let old = stage.live_clusters()[0].clone();
    upgrade_until(&mut stage, "25/50 75/100");
    stage.only_responding_dashboard = Some(old);
    stage.patch_service(ray_version_patch("2.53.0"));
    stage.run_for(60);
    assert_eq!(stage.worker_count(), 6);
    assert!(stage.deleted_while_occupied.is_empty());

    stage.only_responding_dashboard = None;
    run_and_check(&mut stage, 60);
    assert_eq!(recorded_shares(&stage), "100/100");
}

#[test]
fn without_replica_locations_workers_are_removed_once_serve_accepts_the_capacity() {
    let mut stage = running_service(50, 25, 5);
    stage.reports_locations = false;
    upgrade_until(&mut stage, "50/100 50/50");
    stage.rejection_code = Some(500);
    run_and_check(&mut stage, 30);
    assert_eq!((recorded_shares(&stage).as_str(), stage.worker_count()), ("50/50 50/50", 6));

    stage.rejection_code = None;
    assert_eq!(run_and_check(&mut stage, 60).last().map(String::as_str), Some("100/100"));
}
