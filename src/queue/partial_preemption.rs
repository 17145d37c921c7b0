//! Partial preemption: the parts of a slice that can be preempted without stopping its job.
//!
//! A slice declares the pods of its parts. A preemptor takes the parts one after the other, the
//! least valuable first, and the whole slice only if the parts do not suffice. (Kueue v0.19.2
//! `pkg/scheduler/preemption` always preempts a whole workload.)

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::partial_admission::read_slice_record;
use sluice_api::condition;
use sluice_api::kueue::{Workload, WorkloadStatus};

/// Condition of a slice that has to release some of its pods. Its reason is the last [`PreemptiblePart`] to
/// release; the parts before it are released too.
pub const PARTIALLY_PREEMPTED: &str = "sluice.dev/PartiallyPreempted";

/// A preemptible part of a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum PreemptiblePart {
    /// The surge of an upgrade: what it holds in addition to the active cluster.
    Surge,
    /// Replicas above the minimum of their worker group.
    Replicas,
}

impl PreemptiblePart {
    const ALL: [Self; 2] = [Self::Surge, Self::Replicas];

    /// Returns the reason of the condition [`PARTIALLY_PREEMPTED`].
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Surge => "Surge",
            Self::Replicas => "Replicas",
        }
    }
}

/// The extent of a preemption. The least valuable comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PreemptionScope {
    Part(PreemptiblePart),
    Whole,
}

/// The pods of a part of a slice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PartPods {
    /// The part.
    pub part: PreemptiblePart,
    /// Pod count by PodSet.
    pub pods: BTreeMap<String, u32>,
}

#[derive(Default, Deserialize)]
struct PartsRecord {
    #[serde(default)]
    parts: Vec<PartPods>,
}

/// Returns the parts of a Workload in preemption order; empty if the slice record is missing or
/// invalid.
pub(super) fn preemptible_parts(workload: &Workload) -> Vec<PartPods> {
    let mut parts = read_slice_record::<PartsRecord>(workload).parts;
    parts.sort_by_key(|part| part.part);
    parts
}

/// Returns the last part that a slice has to release; `None` if it has to release none.
pub fn part_to_release(status: &WorkloadStatus) -> Option<PreemptiblePart> {
    let condition = condition::get(&status.conditions, PARTIALLY_PREEMPTED)?;
    PreemptiblePart::ALL.into_iter().find(|part| condition.status == "True" && part.as_str() == condition.reason)
}
