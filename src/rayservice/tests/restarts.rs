//! Restarts: lost writes and operator restarts at any point do not change the outcome.

use jiff::{SignedDuration, Timestamp};
use rstest::rstest;
use serde_json::{Value, json};

use super::stage::{Filter, Stage};
use super::{chat, config, version};

/// User actions, each with the seconds that pass after it.
type Story = &'static [(fn(&mut Stage), i64)];

const UPGRADE: Story = &[(|_| {}, 40), (|stage| stage.edit(version("2.54.0")), 40), (|_| {}, 80)];

const UPGRADE_WITH_CONFIGURATION: Story = &[
    (|_| {}, 40),
    (
        |stage| {
            stage.edit(json!({"spec": {"serveConfigV2": config("two"), "rayClusterConfig": {"rayVersion": "2.54.0"}}}));
        },
        120,
    ),
];

const THERE_AND_BACK: Story =
    &[(|_| {}, 40), (|stage| stage.edit(version("2.54.0")), 2), (|stage| stage.edit(version("2.53.0")), 100)];

const BACK_WHILE_WARM: Story =
    &[(|_| {}, 40), (|stage| stage.edit(version("2.54.0")), 30), (|stage| stage.edit(version("2.53.0")), 120)];

const CHANGED_TWICE: Story =
    &[(|_| {}, 40), (|stage| stage.edit(version("2.54.0")), 2), (|stage| stage.edit(version("2.55.0")), 120)];

const NEW_CONFIGURATION: Story =
    &[(|_| {}, 40), (|stage| stage.edit(json!({"spec": {"serveConfigV2": config("two")}})), 40)];

const SUSPENDED_AND_RESUMED: Story = &[
    (|_| {}, 40),
    (|stage| stage.edit(json!({"spec": {"suspend": true}})), 20),
    (|stage| stage.edit(json!({"spec": {"suspend": false}})), 60),
];

const DELETED_IN_AN_UPGRADE: Story =
    &[(|_| {}, 40), (|stage| stage.edit(version("2.54.0")), 3), (|stage| stage.delete("RayService", "chat"), 20)];

/// Execution of a scenario: the remaining actions, and when the next one is due.
#[derive(Clone)]
struct Play {
    stage: Stage,
    story: Story,
    due: Timestamp,
}

impl Play {
    fn begin(story: Story) -> Self {
        let stage = Stage::new(chat());
        Self { due: stage.now, stage, story }
    }

    /// Runs one beat and the actions that are due. Returns the number of planned writes; None at
    /// the end of the scenario.
    fn beat(&mut self, succeeds: Filter<'_>) -> Option<usize> {
        while self.stage.now >= self.due {
            let ((action, seconds), rest) = self.story.split_first()?;
            action(&mut self.stage);
            self.due = self.stage.now + SignedDuration::from_secs(*seconds);
            self.story = rest;
        }
        Some(self.stage.beat(self.due, succeeds))
    }

    /// Continues from here: only some writes of the next beat succeed, then the operator restarts.
    fn end_after_death(&self, succeeds: Filter<'_>) -> Stage {
        let mut play = self.clone();
        play.beat(succeeds);
        play.stage.restart();
        while play.beat(&|_| true).is_some() {}
        play.stage
    }
}

/// Returns the final state without names, versions and times.
fn outcome(stage: &Stage) -> Value {
    let (active, pending) = stage.named();
    let living = stage.living();
    let configs: Vec<Value> = living.iter().filter_map(|name| stage.applied(name).last().cloned()).collect();
    let version = |name: &String| stage.cluster(name).spec.ray_version;
    let conditions = ["Ready", "UpgradeInProgress", "Suspended", "Suspending"].map(|type_| stage.condition(type_));
    json!({
        "exists": stage.service().is_some(),
        "serve Service selects the active cluster": stage.leads_to() == active,
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
fn restart_at_any_beat_does_not_change_the_outcome(#[case] story: Story) {
    let mut fault_free = Play::begin(story);
    let mut restarts = Vec::new();
    for beat in 0.. {
        let before = fault_free.clone();
        let Some(writes) = fault_free.beat(&|_| true) else { break };
        // Without a write only memory is lost; a few of those beats are enough.
        if writes > 0 || beat % 8 == 0 {
            restarts.push((beat, before, writes));
        }
    }
    let (expected, served_by) = (outcome(&fault_free.stage), &fault_free.stage.served_by);
    for (beat, before, writes) in restarts {
        // With fewer writes these equal other cases.
        let one_lost =
            (0..writes).filter(|_| writes > 2).map(|lost| (format!("all but write {lost}"), Some(lost), true));
        let one_kept = (0..writes).filter(|_| writes > 1).map(|kept| (format!("only write {kept}"), Some(kept), false));
        let all_or_none = [("nothing".to_owned(), None, false), ("everything".to_owned(), None, true)];
        for (what, exception, rest_succeeds) in one_lost.chain(one_kept).chain(all_or_none) {
            let stage = before.end_after_death(&|index| (exception == Some(index)) != rest_succeeds);
            assert_eq!(outcome(&stage), expected, "{what} succeeded in beat {beat}");
            assert_eq!(
                stage.served_by.len(),
                served_by.len(),
                "{what} succeeded in beat {beat}: {:?}",
                stage.served_by
            );
        }
    }
}
