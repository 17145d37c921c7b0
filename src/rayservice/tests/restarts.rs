//! Whatever gets lost, and wherever the process dies, the end is the same.

use jiff::{SignedDuration, Timestamp};
use rstest::rstest;
use serde_json::{Value, json};

use super::stage::{Filter, Stage};
use super::{chat, config, version};

/// What people do, and how many seconds pass after each thing.
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

/// Where a story stands: the deed that was done last, and when the next is due.
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

    /// Plays a beat, and does what is due; returns how many writes were planned, or nothing at the end of the story.
    fn beat(&mut self, gets_through: Filter<'_>) -> Option<usize> {
        while self.stage.now >= self.due {
            let ((deed, seconds), rest) = self.story.split_first()?;
            deed(&mut self.stage);
            self.due = self.stage.now + SignedDuration::from_secs(*seconds);
            self.story = rest;
        }
        Some(self.stage.beat(self.due, gets_through))
    }

    /// Plays on from here: in the next beat only some writes get through, and then the process dies.
    fn end_after_death(&self, gets_through: Filter<'_>) -> Stage {
        let mut play = self.clone();
        play.beat(gets_through);
        play.stage.restart();
        while play.beat(&|_| true).is_some() {}
        play.stage
    }
}

/// What is left in the end, without names, versions and times.
fn outcome(stage: &Stage) -> Value {
    let (active, pending) = stage.named();
    let living = stage.living();
    let configs: Vec<Value> = living.iter().filter_map(|name| stage.applied(name).last().cloned()).collect();
    let version = |name: &String| stage.cluster(name).spec.ray_version;
    let conditions = ["Ready", "UpgradeInProgress", "Suspended", "Suspending"].map(|type_| stage.condition(type_));
    json!({
        "exists": stage.service().is_some(),
        "leads where the status says": stage.leads_to() == active,
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
fn a_process_that_dies_anywhere_changes_nothing_about_the_end(#[case] story: Story) {
    let mut calm = Play::begin(story);
    let mut deaths = Vec::new();
    for beat in 0.. {
        let before = calm.clone();
        let Some(writes) = calm.beat(&|_| true) else { break };
        // Nothing is lost but memory where nothing is written; a few of those are enough.
        if writes > 0 || beat % 8 == 0 {
            deaths.push((beat, before, writes));
        }
    }
    let (expected, served_by) = (outcome(&calm.stage), &calm.stage.served_by);
    for (beat, before, writes) in deaths {
        // With fewer writes these are the same as others.
        let lost_one =
            (0..writes).filter(|_| writes > 2).map(|lost| (format!("all but write {lost}"), Some(lost), true));
        let kept_one = (0..writes).filter(|_| writes > 1).map(|kept| (format!("only write {kept}"), Some(kept), false));
        let whole = [("nothing".to_owned(), None, false), ("everything".to_owned(), None, true)];
        for (what, odd, rest) in lost_one.chain(kept_one).chain(whole) {
            let stage = before.end_after_death(&|index| (odd == Some(index)) != rest);
            assert_eq!(outcome(&stage), expected, "{what} got through in beat {beat}");
            assert_eq!(
                stage.served_by.len(),
                served_by.len(),
                "{what} got through in beat {beat}: {:?}",
                stage.served_by
            );
        }
    }
}
