//! Clusters that are to take over and don't get well.

use jiff::SignedDuration;
use kube_core::ResourceExt;
use rstest::rstest;
use serde_json::json;

use super::{begin, serving};
use crate::tests::stage::Stage;
use crate::tests::version;

/// A service whose upgrade has ten minutes to get well, and has begun.
fn limited(ill: impl FnOnce(&mut Stage)) -> (Stage, String) {
    let mut stage = serving(50, 25, 5);
    stage.edit(json!({"metadata": {"annotations": {"sluice.dev/upgrade-deadline": "10m"}}}));
    let old = stage.living()[0].clone();
    ill(&mut stage);
    stage.edit(version("2.54.0"));
    stage.play(5);
    (stage, old)
}

/// Applications that take for ever.
fn never_runs(stage: &mut Stage) {
    stage.deploy = SignedDuration::from_hours(9);
}

/// Since when the pending cluster is noted as ill.
fn ill_since(stage: &Stage) -> Option<String> {
    let pending = stage.named().1?;
    stage.cluster(&pending).annotations().get("sluice.dev/unhealthy-since").cloned()
}

#[rstest]
#[case::applications_do_not_run(never_runs, "application one is DEPLOYING")]
#[case::its_head_does_not_come_up(|stage: &mut Stage| stage.pods_start = false, "its head is not ready")]
#[case::nobody_answers(|stage: &mut Stage| stage.answering = stage.living().pop(), "no answer")]
#[case::its_configuration_is_refused(|stage: &mut Stage| stage.refusal = Some(400), "HTTP status 400")]
fn an_upgrade_that_does_not_get_healthy_in_time_goes_back(#[case] ill: fn(&mut Stage), #[case] expected: &str) {
    let (mut stage, old) = limited(ill);

    stage.play(580);
    stage.restart();
    stage.play(5);
    assert_eq!(stage.living().len(), 2);
    stage.play(30);

    assert_eq!(stage.living(), [old]);
    let why = stage.message("sluice.dev/UpgradeBlocked");
    assert!(why.contains("it was not healthy within 10m") && why.contains(expected), "{why}");
}

#[test]
fn an_upgrade_that_is_healthy_for_a_moment_has_all_of_its_time_again() {
    // Given an upgrade that is paused, so that nothing moves when it gets well,
    let (mut stage, old) = limited(never_runs);
    stage.edit(json!({"metadata": {"annotations": {"sluice.dev/upgrade": "Paused"}}}));
    stage.play(9 * 60);
    let first = ill_since(&stage).expect("it is ill");

    // when it is well for a moment in its ninth minute,
    stage.deploy = SignedDuration::ZERO;
    stage.play(5);
    assert_eq!(ill_since(&stage), None);
    never_runs(&mut stage);
    stage.play(60);

    // then it is not failed in its tenth, but ten minutes after it got ill again.
    assert_eq!(stage.told("UpgradeFailed"), 0);
    assert!(ill_since(&stage).is_some_and(|since| since > first));
    stage.play(9 * 60 - 10);
    assert_eq!(stage.told("UpgradeFailed"), 0);
    stage.play(30);
    assert_eq!(stage.told("UpgradeFailed"), 1);
    stage.play(60);
    assert_eq!(stage.living(), [old]);
}

#[test]
fn what_a_new_process_does_not_know_yet_is_neither_ill_nor_well() {
    let (mut stage, _) = limited(never_runs);
    let since = ill_since(&stage);
    assert!(since.is_some());

    // Long after the deadline would be over, a process that has asked nobody yet fails nothing,
    stage.restart();
    stage.now += SignedDuration::from_hours(1);
    let end = stage.now;
    stage.beat(end, &|_| true);
    assert_eq!((stage.told("UpgradeFailed"), ill_since(&stage)), (0, since));

    // and with the first answer that it is ill, the time that was noted counts.
    stage.play(5);
    assert_eq!(stage.told("UpgradeFailed"), 1);
}

#[test]
fn time_without_quota_is_no_illness() {
    let (mut stage, _) = limited(never_runs);
    let pending = stage.named().1.expect("it is pending");
    assert!(ill_since(&stage).is_some());

    stage.set_gate(&pending, false);
    stage.play(1200);

    assert_eq!((stage.told("UpgradeFailed"), ill_since(&stage)), (0, None));
    stage.set_gate(&pending, true);
    stage.play(580);
    assert_eq!(stage.told("UpgradeFailed"), 0);
    stage.play(40);
    assert_eq!(stage.told("UpgradeFailed"), 1);
}

#[test]
fn what_has_failed_and_does_not_answer_is_taken_back_without_asking() {
    let mut stage = serving(50, 25, 5);
    stage.edit(json!({"metadata": {"annotations": {"sluice.dev/upgrade-deadline": "10m"}}}));
    let old = stage.living()[0].clone();
    begin(&mut stage, "25/50 75/100");
    stage.answering = Some(old.clone());
    stage.play(720);
    assert_eq!(stage.named(), (Some(old), None));
}
