//! What can be taken from a slice without stopping its whole job, in the order in which it is missed the least.
//!
//! A slice says of which pods its parts are made up. A preemptor takes them one after the other, and the whole slice only if
//! they are not enough. (Kueue v0.19.2 `pkg/scheduler/preemption` always takes a workload whole.)

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::steps::read;
use sluice_api::condition;
use sluice_api::kueue::{Workload, WorkloadStatus};

/// The condition on a slice that has to give some of its pods back. Its reason is the [`Part`]: that one and those before it.
pub const PARTLY_PREEMPTED: &str = "sluice.dev/PartiallyPreempted";

/// A part of what a slice holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Part {
    /// What an upgrade holds on top of what serves.
    Surge,
    /// Replicas above the fewest that their group may have.
    Replicas,
}

impl Part {
    const ALL: [Self; 2] = [Self::Surge, Self::Replicas];

    /// The reason of the condition [`PARTLY_PREEMPTED`].
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Surge => "Surge",
            Self::Replicas => "Replicas",
        }
    }
}

/// What a victim loses. What is missed the least comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Loss {
    Part(Part),
    Whole,
}

/// The pods that a part of a slice is made up of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PartPods {
    /// The part.
    pub part: Part,
    /// How many pods of each PodSet.
    pub pods: BTreeMap<String, u32>,
}

#[derive(Default, Deserialize)]
struct Parts {
    #[serde(default)]
    parts: Vec<PartPods>,
}

/// The parts of a Workload, what is taken first coming first; none if it has none that can be read.
pub(super) fn parts_of(workload: &Workload) -> Vec<PartPods> {
    let mut parts = read::<Parts>(workload).parts;
    parts.sort_by_key(|part| part.part);
    parts
}

/// Up to which part a slice has to give its pods back.
pub fn preempted_part(status: &WorkloadStatus) -> Option<Part> {
    let condition = condition::get(&status.conditions, PARTLY_PREEMPTED)?;
    Part::ALL.into_iter().find(|part| condition.status == "True" && part.as_str() == condition.reason)
}
