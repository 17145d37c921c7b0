//! Objects that exist before a script starts: flavors, cohorts, queues and priority classes.

use serde::{Deserialize, Serialize};

/// Amounts of resources of a pod or a queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResourceAmounts {
    /// CPU in milli-CPU.
    pub(crate) cpu: u32,
    /// Memory in MiB.
    pub(crate) memory: u32,
    /// Number of GPUs.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) gpu: u32,
}

impl ResourceAmounts {
    /// Multiplies all amounts by `count`.
    pub(crate) fn times(self, count: u32) -> Self {
        Self { cpu: self.cpu * count, memory: self.memory * count, gpu: self.gpu * count }
    }

    /// Returns the minimum per resource.
    pub(crate) fn component_min(self, other: Self) -> Self {
        Self { cpu: self.cpu.min(other.cpu), memory: self.memory.min(other.memory), gpu: self.gpu.min(other.gpu) }
    }

    /// Returns the maximum per resource.
    pub(crate) fn component_max(self, other: Self) -> Self {
        Self { cpu: self.cpu.max(other.cpu), memory: self.memory.max(other.memory), gpu: self.gpu.max(other.gpu) }
    }

    /// Returns the sum per resource.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self { cpu: self.cpu + other.cpu, memory: self.memory + other.memory, gpu: self.gpu + other.gpu }
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Quota of a few teams. The executor prefixes the names of cluster-scoped objects with the
/// namespace of the script, so that many scripts can run in parallel.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Setup {
    /// ResourceFlavors.
    pub(crate) flavors: Vec<Flavor>,
    /// Cohort objects. A queue may also name a cohort that has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) cohorts: Vec<Cohort>,
    /// ClusterQueues, each with a LocalQueue of the same name.
    pub(crate) queues: Vec<Queue>,
    /// WorkloadPriorityClasses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) priorities: Vec<Priority>,
    /// Creates a GatewayClass if set.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) gateways: bool,
    /// Charges credits for the CPUs of every pod, by a resource transformation.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) credits: bool,
}

/// A ResourceFlavor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Flavor {
    /// Name.
    pub(crate) name: String,
    /// Adds a node label and a toleration.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) dedicated: bool,
}

pub(super) fn is_false(flag: &bool) -> bool {
    !*flag
}

/// A Cohort.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cohort {
    /// Name.
    pub(crate) name: String,
    /// Quota of the cohort, which its queues share.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) quotas: Vec<Quota>,
}

/// A ClusterQueue and its LocalQueue.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Queue {
    /// Name of both.
    pub(crate) name: String,
    /// Cohort name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cohort: Option<String>,
    /// Quota by flavor, in the order of assignment.
    pub(crate) quotas: Vec<Quota>,
    /// `preemption.withinClusterQueue`. None is Never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) within_cluster_queue: Option<WithinClusterQueue>,
    /// `preemption.reclaimWithinCohort`. None is Never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reclaim: Option<ReclaimWithinCohort>,
    /// Uses StrictFIFO instead of BestEffortFIFO.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) strict_fifo: bool,
}

/// Quota of one flavor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Quota {
    /// Name of the flavor.
    pub(crate) flavor: String,
    /// Nominal quota.
    pub(crate) nominal: ResourceAmounts,
    /// Borrowing limit. None is unlimited. Only in a cohort.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) borrowing: Option<ResourceAmounts>,
    /// Lending limit. None is unlimited. Only in a cohort.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lending: Option<ResourceAmounts>,
}

impl Quota {
    /// Returns quota of the flavor of [`Setup::with_one_queue`].
    pub(crate) fn with_nominal(nominal: ResourceAmounts) -> Self {
        Self { flavor: ONLY_FLAVOR.to_owned(), nominal, borrowing: None, lending: None }
    }
}

impl Setup {
    /// Returns one queue with one flavor and this nominal quota.
    pub(crate) fn with_one_queue(name: &str, nominal: ResourceAmounts) -> Self {
        Self {
            flavors: vec![Flavor { name: ONLY_FLAVOR.to_owned(), dedicated: false }],
            queues: vec![Queue {
                name: name.to_owned(),
                quotas: vec![Quota::with_nominal(nominal)],
                ..Queue::default()
            }],
            ..Self::default()
        }
    }
}

/// Name of the flavor in a setup with one flavor.
const ONLY_FLAVOR: &str = "on-demand";

/// `spec.preemption.withinClusterQueue` other than Never.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WithinClusterQueue {
    /// Workloads of lower priority.
    LowerPriority,
    /// Workloads of lower priority, and newer ones of equal priority.
    LowerOrNewerEqualPriority,
}

/// `spec.preemption.reclaimWithinCohort` other than Never.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ReclaimWithinCohort {
    /// Borrowing workloads of lower priority.
    LowerPriority,
    /// All borrowing workloads.
    Any,
}

/// A WorkloadPriorityClass.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Priority {
    /// Name.
    pub(crate) name: String,
    /// Priority; higher values are admitted first.
    pub(crate) value: i32,
}
