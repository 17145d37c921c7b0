//! Pending clusters that do not become healthy.

use jiff::SignedDuration;
use kube_core::ResourceExt;
use rstest::rstest;
use serde_json::json;

use super::{running_service, upgrade_until};
use crate::tests::harness::Harness;
use crate::tests::ray_version_patch;

/// Returns a RayService with an upgrade in progress and a deadline of ten minutes, and its active
/// cluster.
fn with_deadline(break_cluster: impl FnOnce(&mut Harness)) -> (Harness, String) {
    let mut harness = running_service(50, 25, 5);
    harness.patch_service(json!({"metadata": {"annotations": {"sluice.dev/upgrade-deadline": "10m"}}}));
    let old = harness.live_clusters()[0].clone();
    break_cluster(&mut harness);
    harness.patch_service(ray_version_patch("2.54.0"));
    harness.run_for(5);
    (harness, old)
}

/// Makes applications take hours to deploy.
fn never_runs(harness: &mut Harness) {
    harness.deploy_time = SignedDuration::from_hours(9);
}

/// Returns the recorded start of the pending cluster's unhealthy period.
fn unhealthy_since(harness: &Harness) -> Option<String> {
    let pending = harness.active_and_pending().1?;
    harness.cluster(&pending).annotations().get("sluice.dev/unhealthy-since").cloned()
}

#[rstest]
#[case::applications_do_not_run(never_runs, "application one is DEPLOYING")]
#[case::head_pod_does_not_start(|harness: &mut Harness| harness.pods_start = false, "its head pod is not ready")]
#[case::dashboard_does_not_respond(|harness: &mut Harness| harness.only_responding_dashboard = harness.live_clusters().pop(), "no response")]
#[case::configuration_is_rejected(|harness: &mut Harness| harness.rejection_code = Some(400), "HTTP status 400")]
fn upgrade_not_healthy_within_the_deadline_is_rolled_back(
    #[case] break_cluster: fn(&mut Harness),
    #[case] expected: &str,
) {
    let (mut harness, old) = with_deadline(break_cluster);

    harness.run_for(580);
    harness.restart();
    harness.run_for(5);
    assert_eq!(harness.live_clusters().len(), 2);
    harness.run_for(30);

    assert_eq!(harness.live_clusters(), [old]);
    let why = harness.message("sluice.dev/UpgradeBlocked");
    assert!(why.contains("the cluster was not healthy within 10m") && why.contains(expected), "{why}");
}

#[test]
fn deadline_restarts_when_the_cluster_recovers_briefly() {
    // Given a paused upgrade, so that nothing moves when the cluster recovers,
    let (mut harness, old) = with_deadline(never_runs);
    harness.patch_service(json!({"metadata": {"annotations": {"sluice.dev/upgrade": "Paused"}}}));
    harness.run_for(9 * 60);
    let first = unhealthy_since(&harness).expect("it is unhealthy");

    // when it is healthy for a moment in the ninth minute,
    harness.deploy_time = SignedDuration::ZERO;
    harness.run_for(5);
    assert_eq!(unhealthy_since(&harness), None);
    never_runs(&mut harness);
    harness.run_for(60);

    // then it does not fail in the tenth, but ten minutes after it became unhealthy again.
    assert_eq!(harness.event_count("UpgradeFailed"), 0);
    assert!(unhealthy_since(&harness).is_some_and(|since| since > first));
    harness.run_for(9 * 60 - 10);
    assert_eq!(harness.event_count("UpgradeFailed"), 0);
    harness.run_for(30);
    assert_eq!(harness.event_count("UpgradeFailed"), 1);
    harness.run_for(60);
    assert_eq!(harness.live_clusters(), [old]);
}

#[test]
fn unobserved_cluster_after_a_restart_is_neither_healthy_nor_unhealthy() {
    let (mut harness, _) = with_deadline(never_runs);
    let since = unhealthy_since(&harness);
    assert!(since.is_some());

    // Long after the deadline, a restarted process that has not queried Serve yet fails nothing,
    harness.restart();
    harness.now += SignedDuration::from_hours(1);
    let end = harness.now;
    harness.run_once(end, &|_| true);
    assert_eq!((harness.event_count("UpgradeFailed"), unhealthy_since(&harness)), (0, since));

    // and the first unhealthy response counts the recorded time.
    harness.run_for(5);
    assert_eq!(harness.event_count("UpgradeFailed"), 1);
}

#[test]
fn time_without_quota_does_not_count_as_unhealthy() {
    let (mut harness, _) = with_deadline(never_runs);
    let pending = harness.active_and_pending().1.expect("a pending cluster");
    assert!(unhealthy_since(&harness).is_some());

    harness.set_unsuspended(&pending, false);
    harness.run_for(1200);

    assert_eq!((harness.event_count("UpgradeFailed"), unhealthy_since(&harness)), (0, None));
    harness.set_unsuspended(&pending, true);
    harness.run_for(580);
    assert_eq!(harness.event_count("UpgradeFailed"), 0);
    harness.run_for(40);
    assert_eq!(harness.event_count("UpgradeFailed"), 1);
}

#[test]
fn failed_cluster_that_does_not_respond_is_rolled_back() {
    let mut harness = running_service(50, 25, 5);
    harness.patch_service(json!({"metadata": {"annotations": {"sluice.dev/upgrade-deadline": "10m"}}}));
    let old = harness.live_clusters()[0].clone();
    upgrade_until(&mut harness, "25/50 75/100");
    harness.only_responding_dashboard = Some(old.clone());
    harness.run_for(720);
    assert_eq!(harness.active_and_pending(), (Some(old), None));
}
