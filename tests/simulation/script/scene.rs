//! What is there before anything is asked for: flavors, cohorts, queues and priorities.

use serde::{Deserialize, Serialize};

/// Resources, of a pod or of a queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Size {
    /// Milli-CPU.
    pub(crate) cpu: u32,
    /// MiB.
    pub(crate) memory: u32,
    /// GPUs.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) gpu: u32,
}

impl Size {
    /// So much of everything, for each of so many.
    pub(crate) fn times(self, count: u32) -> Self {
        Self { cpu: self.cpu * count, memory: self.memory * count, gpu: self.gpu * count }
    }

    /// The lesser of the two, resource by resource.
    pub(crate) fn least(self, other: Self) -> Self {
        Self { cpu: self.cpu.min(other.cpu), memory: self.memory.min(other.memory), gpu: self.gpu.min(other.gpu) }
    }

    /// The greater of the two, resource by resource.
    pub(crate) fn most(self, other: Self) -> Self {
        Self { cpu: self.cpu.max(other.cpu), memory: self.memory.max(other.memory), gpu: self.gpu.max(other.gpu) }
    }

    /// Both together.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self { cpu: self.cpu + other.cpu, memory: self.memory + other.memory, gpu: self.gpu + other.gpu }
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The quota of a few teams. Whoever performs it puts the names of the things that are in no namespace behind that of the
/// script's own, so that many scripts go on beside one another.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scene {
    /// Kinds of nodes.
    pub(crate) flavors: Vec<Flavor>,
    /// Cohorts that are objects; a queue may name one that isn't.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) cohorts: Vec<Cohort>,
    /// ClusterQueues, each with a LocalQueue of its name.
    pub(crate) queues: Vec<Queue>,
    /// Workload priorities.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) priorities: Vec<Priority>,
    /// Whether there is a class of Gateways.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) gateways: bool,
}

/// A ResourceFlavor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Flavor {
    /// Its name.
    pub(crate) name: String,
    /// Whether its nodes are told from others by a label, and its pods tolerate what keeps others away.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) picky: bool,
}

pub(super) fn is_false(flag: &bool) -> bool {
    !*flag
}

/// A Cohort.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cohort {
    /// Its name.
    pub(crate) name: String,
    /// Quota of its own, which its queues share.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) quotas: Vec<Quota>,
}

/// A ClusterQueue and its LocalQueue.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Queue {
    /// The name of both.
    pub(crate) name: String,
    /// The cohort that it lends to and borrows from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cohort: Option<String>,
    /// Quota by flavor, in the order in which they are tried.
    pub(crate) quotas: Vec<Quota>,
    /// Whom it may preempt in its own queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) within: Option<Within>,
    /// From whom it takes back what the cohort borrowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reclaim: Option<Reclaim>,
    /// Whether the first that waits blocks those behind it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) strict: bool,
}

/// Quota of a flavor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Quota {
    /// The flavor.
    pub(crate) flavor: String,
    /// Nominal quota.
    pub(crate) nominal: Size,
    /// How much may be borrowed beyond that; everything if it is not said. Only in a cohort.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) borrowing: Option<Size>,
    /// How much may be lent; everything if it is not said. Only in a cohort.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lending: Option<Size>,
}

impl Quota {
    /// So much of the flavor of [`Scene::of_one_queue`].
    pub(crate) fn of(nominal: Size) -> Self {
        Self { flavor: ONLY_FLAVOR.to_owned(), nominal, borrowing: None, lending: None }
    }
}

impl Scene {
    /// One queue with so much of one flavor.
    pub(crate) fn of_one_queue(name: &str, nominal: Size) -> Self {
        Self {
            flavors: vec![Flavor { name: ONLY_FLAVOR.to_owned(), picky: false }],
            queues: vec![Queue { name: name.to_owned(), quotas: vec![Quota::of(nominal)], ..Queue::default() }],
            ..Self::default()
        }
    }
}

/// The flavor where there is no other.
const ONLY_FLAVOR: &str = "on-demand";

/// `spec.preemption.withinClusterQueue` that is not Never.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Within {
    /// Those of lower priority.
    LowerPriority,
    /// Those of lower priority, and newer ones of the same.
    LowerOrNewerEqualPriority,
}

/// `spec.preemption.reclaimWithinCohort` that is not Never.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Reclaim {
    /// From those of lower priority.
    LowerPriority,
    /// From anyone.
    Any,
}

/// A WorkloadPriorityClass.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Priority {
    /// Its name.
    pub(crate) name: String,
    /// Higher goes first.
    pub(crate) value: i32,
}
