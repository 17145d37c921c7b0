//! Restarts: lost writes and operator restarts at any point do not change the outcome.

use jiff::{SignedDuration, Timestamp};
use rstest::rstest;
use serde_json::{Value, json};

use super::harness::{Harness, WriteFilter};
use super::{chat_service, ray_version_patch, serve_config};

/// User actions, each with the seconds that pass after it.
type Scenario = &'static [(fn(&mut Harness), i64)];

const UPGRADE: Scenario =
    &[(|_| {}, 40), (|harness| harness.patch_service(ray_version_patch("2.54.0")), 40), (|_| {}, 80)];

const UPGRADE_WITH_CONFIGURATION: Scenario = &[
    (|_| {}, 40),
    (
        |harness| {
            harness.patch_service(
                json!({"spec": {"serveConfigV2": serve_config("two"), "rayClusterConfig": {"rayVersion": "2.54.0"}}}),
            );
        },
        120,
    ),
];

const THERE_AND_BACK: Scenario = &[
    (|_| {}, 40),
    (|harness| harness.patch_service(ray_version_patch("2.54.0")), 2),
    (|harness| harness.patch_service(ray_version_patch("2.53.0")), 100),
];

const BACK_WHILE_WARM: Scenario = &[
    (|_| {}, 40),
    (|harness| harness.patch_service(ray_version_patch("2.54.0")), 30),
    (|harness| harness.patch_service(ray_version_patch("2.53.0")), 120),
];

const CHANGED_TWICE: Scenario = &[
    (|_| {}, 40),
    (|harness| harness.patch_service(ray_version_patch("2.54.0")), 2),
    (|harness| harness.patch_service(ray_version_patch("2.55.0")), 120),
];

const NEW_CONFIGURATION: Scenario =
    &[(|_| {}, 40), (|harness| harness.patch_service(json!({"spec": {"serveConfigV2": serve_config("two")}})), 40)];

const SUSPENDED_AND_RESUMED: Scenario = &[
    (|_| {}, 40),
    (|harness| harness.patch_service(json!({"spec": {"suspend": true}})), 20),
    (|harness| harness.patch_service(json!({"spec": {"suspend": false}})), 60),
];

const DELETED_IN_AN_UPGRADE: Scenario = &[
    (|_| {}, 40),
    (|harness| harness.patch_service(ray_version_patch("2.54.0")), 3),
    (|harness| harness.delete("RayService", "chat"), 20),
];

/// Execution of a scenario: the remaining actions, and when the next one is due.
#[derive(Clone)]
struct ScenarioRun {
    harness: Harness,
    remaining: Scenario,
    due: Timestamp,
}

impl ScenarioRun {
    fn start(story: Scenario) -> Self {
        let harness = Harness::new(chat_service());
        Self { due: harness.now, harness, remaining: story }
    }

    /// Runs one beat and the actions that are due. Returns the number of planned writes; None at
    /// the end of the scenario.
    fn beat(&mut self, succeeds: WriteFilter<'_>) -> Option<usize> {
        while self.harness.now >= self.due {
            let ((action, seconds), rest) = self.remaining.split_first()?;
            action(&mut self.harness);
            self.due = self.harness.now + SignedDuration::from_secs(*seconds);
            self.remaining = rest;
        }
        Some(self.harness.run_once(self.due, succeeds))
    }

    /// Continues from here: only some writes of the next beat succeed, then the operator restarts.
    fn finish_after_restart(&self, succeeds: WriteFilter<'_>) -> Harness {
        let mut replay = self.clone();
        replay.beat(succeeds);
        replay.harness.restart();
        while replay.beat(&|_| true).is_some() {}
        replay.harness
    }
}

/// Returns the final state without names, versions and times.
fn outcome(harness: &Harness) -> Value {
    let (active, pending) = harness.active_and_pending();
    let living = harness.live_clusters();
    let configs: Vec<Value> = living.iter().filter_map(|name| harness.applied_configs(name).last().cloned()).collect();
    let version = |name: &String| harness.cluster(name).spec.ray_version;
    let conditions = ["Ready", "UpgradeInProgress", "Suspended", "Suspending"].map(|type_| harness.condition(type_));
    json!({
        "exists": harness.service().is_some(),
        "serve Service selects the active cluster": harness.selected_cluster() == active,
        "pending": pending.is_some(),
        "versions": living.iter().map(version).collect::<Vec<_>>(),
        "configurations": configs,
        "conditions": conditions,
    })
}

#[rstest]
#[case::upgrade(UPGRADE)]
#[case::upgrade_with_configuration(UPGRADE_WITH_CONFIGURATION)]
#[case::there_and_back(THERE_AND_BACK)]
#[case::back_while_warm(BACK_WHILE_WARM)]
#[case::changed_twice(CHANGED_TWICE)]
#[case::new_configuration(NEW_CONFIGURATION)]
#[case::suspended_and_resumed(SUSPENDED_AND_RESUMED)]
#[case::deleted_in_an_upgrade(DELETED_IN_AN_UPGRADE)]
fn restart_at_any_beat_does_not_change_the_outcome(#[case] story: Scenario) {
    let mut fault_free = ScenarioRun::start(story);
    let mut restarts = Vec::new();
    for beat in 0.. {
        let before = fault_free.clone();
        let Some(writes) = fault_free.beat(&|_| true) else { break };
        // Without a write only memory is lost; a few of those beats are enough.
        if writes > 0 || beat % 8 == 0 {
            restarts.push((beat, before, writes));
        }
    }
    let (expected, served_by) = (outcome(&fault_free.harness), &fault_free.harness.served_by);
    for (beat, before, writes) in restarts {
        // With fewer writes these equal other cases.
        let one_lost =
            (0..writes).filter(|_| writes > 2).map(|lost| (format!("all but write {lost}"), Some(lost), true));
        let one_kept = (0..writes).filter(|_| writes > 1).map(|kept| (format!("only write {kept}"), Some(kept), false));
        let all_or_none = [("nothing".to_owned(), None, false), ("everything".to_owned(), None, true)];
        for (what, exception, rest_succeeds) in one_lost.chain(one_kept).chain(all_or_none) {
            let harness = before.finish_after_restart(&|index| (exception == Some(index)) != rest_succeeds);
            assert_eq!(outcome(&harness), expected, "{what} succeeded in beat {beat}");
            assert_eq!(
                harness.served_by.len(),
                served_by.len(),
                "{what} succeeded in beat {beat}: {:?}",
                harness.served_by
            );
        }
    }
}
