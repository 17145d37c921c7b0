//! Workers are removed only after Serve accepted the lower capacity.

use super::{recorded_shares, run_and_check, run_until, running_service, upgrade_until};
use crate::tests::ray_version_patch;

#[test]
fn no_worker_is_removed_before_serve_accepts_the_lower_capacity() {
    // Given an upgrade that is halfway, and a dashboard that rejects every configuration,
    let mut harness = running_service(50, 25, 5);
    let old = harness.live_clusters()[0].clone();
    upgrade_until(&mut harness, "50/100 50/50");
    harness.rejection_code = Some(500);

    // when the capacity of the old cluster is lowered, then no worker is removed, also not after a
    // restart,
    run_and_check(&mut harness, 30);
    harness.restart();
    run_and_check(&mut harness, 30);
    assert_eq!((recorded_shares(&harness).as_str(), harness.worker_count()), ("50/50 50/50", 6));

    // and once Serve accepts it, the workers without replicas are removed.
    let before = harness.worker_names(&old);
    harness.rejection_code = None;
    run_until(&mut harness, "50/50 50/100");
    assert_eq!(harness.worker_names(&old), before[2..], "the oldest replicas were stopped");
    run_and_check(&mut harness, 60);
    assert_eq!(recorded_shares(&harness), "100/100");
    let groups = harness.clusters().into_iter().flat_map(|cluster| cluster.spec.worker_group_specs);
    assert!(groups.into_iter().all(|group| group.scale_strategy.is_none()), "workersToDelete is cleared");
}

#[test]
fn no_worker_is_removed_while_the_dashboard_does_not_respond() {
    let mut harness = running_service(50, 25, 5);
    let old = harness.live_clusters()[0].clone();
    upgrade_until(&mut harness, "25/50 75/100");
    harness.only_responding_dashboard = Some(old);
    harness.patch_service(ray_version_patch("2.53.0"));
    harness.run_for(60);
    assert_eq!(harness.worker_count(), 6);
    assert!(harness.deleted_while_occupied.is_empty());

    harness.only_responding_dashboard = None;
    run_and_check(&mut harness, 60);
    assert_eq!(recorded_shares(&harness), "100/100");
}

#[test]
fn without_replica_locations_workers_are_removed_once_serve_accepts_the_capacity() {
    let mut harness = running_service(50, 25, 5);
    harness.reports_locations = false;
    upgrade_until(&mut harness, "50/100 50/50");
    harness.rejection_code = Some(500);
    run_and_check(&mut harness, 30);
    assert_eq!((recorded_shares(&harness).as_str(), harness.worker_count()), ("50/50 50/50", 6));

    harness.rejection_code = None;
    assert_eq!(run_and_check(&mut harness, 60).last().map(String::as_str), Some("100/100"));
}
