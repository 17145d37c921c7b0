//! The decision log: every input and every decision of the scheduler, as lines that can be
//! replayed.
//!
//! Each line is one JSON object. A process starts a section with a line that contains the settings,
//! followed by one line for each input and each scheduling cycle, in order. [`replay()`] feeds a
//! section to a new scheduler, which must make the same decisions. The log contains only the kinds
//! that the scheduler watches, and only the fields of pod templates that quota depends on: no
//! environment, no commands, no volumes.

mod decision;
mod replay;
#[cfg(test)]
mod tests;
mod trim;

use std::borrow::Cow;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{LimitRange, Namespace};
use k8s_openapi::api::node::v1::RuntimeClass;
use serde::{Deserialize, Serialize};

use super::settings::Settings;
use super::{Effect, Engine, Event, ObjectKey};
use sluice_api::kueue::{ClusterQueue, Cohort, LocalQueue, ResourceFlavor, Workload};

pub use decision::{Decision, PodSetQuota};
pub use replay::{Difference, Replay, ReplayError, replay};

/// Format version of the lines. [`replay()`] rejects other versions.
const FORMAT: u32 = 1;

/// A line of the log.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(clippy::large_enum_variant, reason = "only one exists at a time")]
enum Line<'a> {
    /// Start of a process.
    Start { format: u32, settings: Cow<'a, Settings> },
    /// An input of the scheduler.
    #[serde(rename = "event")]
    Event {
        at: Timestamp,
        #[serde(rename = "told")]
        told: Told<'a>,
    },
    /// The decisions of one scheduling cycle.
    Cycle { at: Timestamp, decisions: Vec<Decision> },
}

/// Serializable form of an [`Event`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Told<'a> {
    ResourceFlavor(Cow<'a, ResourceFlavor>),
    ResourceFlavorGone(Cow<'a, str>),
    ClusterQueue(Cow<'a, ClusterQueue>),
    ClusterQueueGone(Cow<'a, str>),
    Cohort(Cow<'a, Cohort>),
    CohortGone(Cow<'a, str>),
    LocalQueue(Cow<'a, LocalQueue>),
    LocalQueueGone(#[serde(with = "key_text")] ObjectKey),
    Namespace(Cow<'a, Namespace>),
    NamespaceGone(Cow<'a, str>),
    LimitRange(Cow<'a, LimitRange>),
    LimitRangeGone(#[serde(with = "key_text")] ObjectKey),
    RuntimeClass(Cow<'a, RuntimeClass>),
    RuntimeClassGone(Cow<'a, str>),
    Workload(Cow<'a, Workload>),
    WorkloadGone(#[serde(with = "key_text")] ObjectKey),
    AdmissionRefused(#[serde(with = "key_text")] ObjectKey),
}

impl<'a> Told<'a> {
    fn of(event: &Event<'a>) -> Self {
        match *event {
            Event::ResourceFlavor(flavor) => Self::ResourceFlavor(trim::object(flavor)),
            Event::ResourceFlavorGone(name) => Self::ResourceFlavorGone(name.into()),
            Event::ClusterQueue(queue) => Self::ClusterQueue(trim::object(queue)),
            Event::ClusterQueueGone(name) => Self::ClusterQueueGone(name.into()),
            Event::Cohort(cohort) => Self::Cohort(trim::object(cohort)),
            Event::CohortGone(name) => Self::CohortGone(name.into()),
            Event::LocalQueue(queue) => Self::LocalQueue(trim::object(queue)),
            Event::LocalQueueGone(key) => Self::LocalQueueGone(key.clone()),
            Event::Namespace(namespace) => Self::Namespace(trim::object(namespace)),
            Event::NamespaceGone(name) => Self::NamespaceGone(name.into()),
            Event::LimitRange(limit_range) => Self::LimitRange(trim::object(limit_range)),
            Event::LimitRangeGone(key) => Self::LimitRangeGone(key.clone()),
            Event::RuntimeClass(class) => Self::RuntimeClass(trim::object(class)),
            Event::RuntimeClassGone(name) => Self::RuntimeClassGone(name.into()),
            Event::Workload(workload) => Self::Workload(trim::workload(workload)),
            Event::WorkloadGone(key) => Self::WorkloadGone(key.clone()),
            Event::AdmissionRefused(key) => Self::AdmissionRefused(key.clone()),
        }
    }

    fn event(&self) -> Event<'_> {
        match self {
            Self::ResourceFlavor(flavor) => Event::ResourceFlavor(flavor),
            Self::ResourceFlavorGone(name) => Event::ResourceFlavorGone(name),
            Self::ClusterQueue(queue) => Event::ClusterQueue(queue),
            Self::ClusterQueueGone(name) => Event::ClusterQueueGone(name),
            Self::Cohort(cohort) => Event::Cohort(cohort),
            Self::CohortGone(name) => Event::CohortGone(name),
            Self::LocalQueue(queue) => Event::LocalQueue(queue),
            Self::LocalQueueGone(key) => Event::LocalQueueGone(key),
            Self::Namespace(namespace) => Event::Namespace(namespace),
            Self::NamespaceGone(name) => Event::NamespaceGone(name),
            Self::LimitRange(limit_range) => Event::LimitRange(limit_range),
            Self::LimitRangeGone(key) => Event::LimitRangeGone(key),
            Self::RuntimeClass(class) => Event::RuntimeClass(class),
            Self::RuntimeClassGone(name) => Event::RuntimeClassGone(name),
            Self::Workload(workload) => Event::Workload(workload),
            Self::WorkloadGone(key) => Event::WorkloadGone(key),
            Self::AdmissionRefused(key) => Event::AdmissionRefused(key),
        }
    }
}

/// Records the inputs and decisions of a scheduler. It must record from the scheduler's first input
/// on.
#[derive(Debug, Clone, Default)]
pub struct Recorder {
    lines: Vec<u8>,
}

impl Recorder {
    /// Starts a section for a scheduler that has received no input yet.
    pub fn new(engine: &Engine) -> Self {
        let mut recorder = Self::default();
        recorder.write(&Line::Start { format: FORMAT, settings: Cow::Borrowed(&engine.settings) });
        recorder
    }

    /// Records an input, before the scheduler receives it.
    pub fn told(&mut self, now: Timestamp, event: &Event<'_>) {
        self.write(&Line::Event { at: now, told: Told::of(event) });
    }

    /// Records the decisions of a scheduling cycle.
    pub fn decided(&mut self, now: Timestamp, effects: &[Effect]) {
        self.write(&Line::Cycle { at: now, decisions: effects.iter().filter_map(Decision::of).collect() });
    }

    /// Returns the lines recorded since the last call, each with its newline.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.lines)
    }

    fn write(&mut self, line: &Line<'_>) {
        // These types always serialize. If one did not, the empty line would show the gap in a
        // replay.
        self.lines.extend(serde_json::to_vec(line).unwrap_or_default());
        self.lines.push(b'\n');
    }
}

/// Serializes a key as `namespace/name`.
mod key_text {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    use sluice_plan::ObjectKey;

    pub(super) fn serialize<S: Serializer>(key: &ObjectKey, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(key)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<ObjectKey, D::Error> {
        let text = String::deserialize(from)?;
        let (namespace, name) =
            text.split_once('/').ok_or_else(|| D::Error::custom(format!("{text:?} is not NAMESPACE/NAME")))?;
        Ok(ObjectKey::new(namespace, name))
    }
}
