//! The decision log: every input and every decision of the scheduler, as lines that can be
//! replayed.
//!
//! Each line is one JSON object. A process starts a section with a line that contains the settings,
//! followed by one line for each input and each scheduling cycle, in order. [`replay()`] feeds a
//! section to a new scheduler, which must make the same decisions. The log contains only the kinds
//! that the scheduler watches, and only the fields of pod templates that quota depends on: no
//! environment, no commands, no volumes.

mod decision_record;
mod redact;
mod replay;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{LimitRange, Namespace};
use k8s_openapi::api::node::v1::RuntimeClass;
use serde::{Deserialize, Serialize};

use super::settings::Settings;
use super::{Decision, Input, ObjectKey, Scheduler};
use sluice_api::kueue::{ClusterQueue, Cohort, LocalQueue, ResourceFlavor, Workload};

pub use decision_record::{DecisionRecord, PodSetQuota};
pub use replay::{Difference, ReplayError, ReplaySummary, replay};

/// Format version of the lines. [`replay()`] rejects other versions.
const FORMAT: u32 = 1;

/// A line of the log.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(clippy::large_enum_variant, reason = "only one exists at a time")]
enum LogLine<'a> {
    /// Start of a process.
    Start { format: u32, settings: Cow<'a, Settings> },
    /// An input of the scheduler.
    #[serde(rename = "event")]
    Input {
        at: Timestamp,
        #[serde(rename = "told")]
        input: RecordedInput<'a>,
    },
    /// The decisions of one scheduling cycle.
    Cycle { at: Timestamp, decisions: Vec<DecisionRecord> },
}

/// Serializable form of an [`Input`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum RecordedInput<'a> {
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

impl<'a> RecordedInput<'a> {
    fn from_input(event: &Input<'a>) -> Self {
        match *event {
            Input::ResourceFlavor(flavor) => Self::ResourceFlavor(redact::object(flavor)),
            Input::ResourceFlavorDeleted(name) => Self::ResourceFlavorGone(name.into()),
            Input::ClusterQueue(queue) => Self::ClusterQueue(redact::object(queue)),
            Input::ClusterQueueDeleted(name) => Self::ClusterQueueGone(name.into()),
            Input::Cohort(cohort) => Self::Cohort(redact::object(cohort)),
            Input::CohortDeleted(name) => Self::CohortGone(name.into()),
            Input::LocalQueue(queue) => Self::LocalQueue(redact::object(queue)),
            Input::LocalQueueDeleted(key) => Self::LocalQueueGone(key.clone()),
            Input::Namespace(namespace) => Self::Namespace(redact::object(namespace)),
            Input::NamespaceDeleted(name) => Self::NamespaceGone(name.into()),
            Input::LimitRange(limit_range) => Self::LimitRange(redact::object(limit_range)),
            Input::LimitRangeDeleted(key) => Self::LimitRangeGone(key.clone()),
            Input::RuntimeClass(class) => Self::RuntimeClass(redact::object(class)),
            Input::RuntimeClassDeleted(name) => Self::RuntimeClassGone(name.into()),
            Input::Workload(workload) => Self::Workload(redact::workload(workload)),
            Input::WorkloadDeleted(key) => Self::WorkloadGone(key.clone()),
            Input::AdmissionRejected(key) => Self::AdmissionRefused(key.clone()),
        }
    }

    fn to_input(&self) -> Input<'_> {
        match self {
            Self::ResourceFlavor(flavor) => Input::ResourceFlavor(flavor),
            Self::ResourceFlavorGone(name) => Input::ResourceFlavorDeleted(name),
            Self::ClusterQueue(queue) => Input::ClusterQueue(queue),
            Self::ClusterQueueGone(name) => Input::ClusterQueueDeleted(name),
            Self::Cohort(cohort) => Input::Cohort(cohort),
            Self::CohortGone(name) => Input::CohortDeleted(name),
            Self::LocalQueue(queue) => Input::LocalQueue(queue),
            Self::LocalQueueGone(key) => Input::LocalQueueDeleted(key),
            Self::Namespace(namespace) => Input::Namespace(namespace),
            Self::NamespaceGone(name) => Input::NamespaceDeleted(name),
            Self::LimitRange(limit_range) => Input::LimitRange(limit_range),
            Self::LimitRangeGone(key) => Input::LimitRangeDeleted(key),
            Self::RuntimeClass(class) => Input::RuntimeClass(class),
            Self::RuntimeClassGone(name) => Input::RuntimeClassDeleted(name),
            Self::Workload(workload) => Input::Workload(workload),
            Self::WorkloadGone(key) => Input::WorkloadDeleted(key),
            Self::AdmissionRefused(key) => Input::AdmissionRejected(key),
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
    pub fn new(engine: &Scheduler) -> Self {
        let mut recorder = Self::default();
        recorder.write(&LogLine::Start { format: FORMAT, settings: Cow::Borrowed(&engine.settings) });
        recorder
    }

    /// Records an input, before the scheduler receives it.
    pub fn record_input(&mut self, now: Timestamp, event: &Input<'_>) {
        self.write(&LogLine::Input { at: now, input: RecordedInput::from_input(event) });
    }

    /// Records the decisions of a scheduling cycle.
    pub fn record_decisions(&mut self, now: Timestamp, effects: &[Decision]) {
        self.write(&LogLine::Cycle {
            at: now,
            decisions: effects.iter().filter_map(DecisionRecord::from_decision).collect(),
        });
    }

    /// Returns the lines recorded since the last call, each with its newline.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.lines)
    }

    fn write(&mut self, line: &LogLine<'_>) {
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
