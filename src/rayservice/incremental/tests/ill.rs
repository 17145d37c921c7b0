//! Pending clusters that do not become healthy.

use jiff::SignedDuration;
use kube_core::ResourceExt;
use rstest::rstest;
use serde_json::json;

use super::{begin, serving};
use crate::tests::stage::Stage;
use crate::tests::version;

/// Returns a RayService with an upgrade in progress and a deadline of ten minutes, and its active
/// cluster.
fn with_deadline(break_cluster: impl FnOnce(&mut Stage)) -> (Stage, String) {
    let mut stage = serving(50, 25, 5);
    stage.edit(json!({"metadata": {"annotations": {"sluice.dev/upgrade-deadline": "10m"}}}));
    let old = stage.living()[0].clone();
    break_cluster(&mut stage);
    stage.edit(version("2.54.0"));
    stage.play(5);
    (stage, old)
}

/// Makes applications take hours to deploy.
fn never_runs(stage: &mut Stage) {
    stage.deploy = SignedDuration::from_hours(9);
}

/// Returns the recorded start of the pending cluster's unhealthy period.
fn unhealthy_since(stage: &Stage) -> Option<String> {
    let pending = stage.named().1?;
    stage.cluster(&pending).annotations().get("sluice.dev/unhealthy-since").cloned()
}

#[rstest]
#[case::applications_do_not_run(never_runs, "application one is DEPLOYING")]
#[case::head_pod_does_not_start(|stage: &mut Stage| stage.pods_start = false, "its head pod is not ready")]
#[case::dashboard_does_not_respond(|stage: &mut Stage| stage.answering = stage.living().pop(), "no response")]
#[case::configuration_is_rejected(|stage: &mut Stage| stage.refusal = Some(400), "HTTP status 400")]
fn upgrade_not_healthy_within_the_deadline_is_rolled_back(
    #[case] break_cluster: fn(&mut Stage),
    #[case] expected: &str,
) {
    let (mut stage, old) = with_deadline(break_cluster);

    stage.play(580);
    stage.restart();
    stage.play(5);
    assert_eq!(stage.living().len(), 2);
    stage.play(30);

    assert_eq!(stage.living(), [old]);
    let why = stage.message("sluice.dev/UpgradeBlocked");
    assert!(why.contains("the cluster was not healthy within 10m") && why.contains(expected), "{why}");
}

#[test]
fn deadline_restarts_when_the_cluster_recovers_briefly() {
    // Given a paused upgrade, so that nothing moves when the cluster recovers,
    let (mut stage, old) = with_deadline(never_runs);
    stage.edit(json!({"metadata": {"annotations": {"sluice.dev/upgrade": "Paused"}}}));
    stage.play(9 * 60);
    let first = unhealthy_since(&stage).expect("it is unhealthy");

    // when it is healthy for a moment in the ninth minute,
    stage.deploy = SignedDuration::ZERO;
    stage.play(5);
    assert_eq!(unhealthy_since(&stage), None);
    never_runs(&mut stage);
    stage.play(60);

    // then it does not fail in the tenth, but ten minutes after it became unhealthy again.
    assert_eq!(stage.told("UpgradeFailed"), 0);
    assert!(unhealthy_since(&stage).is_some_and(|since| since > first));
    stage.play(9 * 60 - 10);
    assert_eq!(stage.told("UpgradeFailed"), 0);
    stage.play(30);
    assert_eq!(stage.told("UpgradeFailed"), 1);
    stage.play(60);
    assert_eq!(stage.living(), [old]);
}

#[test]
fn unobserved_cluster_after_a_restart_is_neither_healthy_nor_unhealthy() {
    let (mut stage, _) = with_deadline(never_runs);
    let since = unhealthy_since(&stage);
    assert!(since.is_some());

    // Long after the deadline, a restarted process that has not queried Serve yet fails nothing,
    stage.restart();
    stage.now += SignedDuration::from_hours(1);
    let end = stage.now;
    stage.beat(end, &|_| true);
    assert_eq!((stage.told("UpgradeFailed"), unhealthy_since(&stage)), (0, since));

    // and the first unhealthy response counts the recorded time.
    stage.play(5);
    assert_eq!(stage.told("UpgradeFailed"), 1);
}

#[test]
fn time_without_quota_does_not_count_as_unhealthy() {
    let (mut stage, _) = with_deadline(never_runs);
    let pending = stage.named().1.expect("a pending cluster");
    assert!(unhealthy_since(&stage).is_some());

    stage.set_gate(&pending, false);
    stage.play(1200);

    assert_eq!((stage.told("UpgradeFailed"), unhealthy_since(&stage)), (0, None));
    stage.set_gate(&pending, true);
    stage.play(580);
    assert_eq!(stage.told("UpgradeFailed"), 0);
    stage.play(40);
    assert_eq!(stage.told("UpgradeFailed"), 1);
}

#[test]
fn failed_cluster_that_does_not_respond_is_rolled_back() {
    let mut stage = serving(50, 25, 5);
    stage.edit(json!({"metadata": {"annotations": {"sluice.dev/upgrade-deadline": "10m"}}}));
    let old = stage.living()[0].clone();
    begin(&mut stage, "25/50 75/100");
    stage.answering = Some(old.clone());
    stage.play(720);
    assert_eq!(stage.named(), (Some(old), None));
}
