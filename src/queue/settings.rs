//! Global settings of the scheduler, as read from the configuration file. The names are those of
//! Kueue's Configuration (kueue v0.19.2 `apis/config/v1beta2/configuration_types.go`). The decision
//! log stores them in this form.

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

use sluice_api::kueue::ResourceList;

/// Global settings of the scheduler.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Settings {
    /// Fair sharing of unused quota by weight; `None` to order by priority and age alone.
    pub fair_sharing: Option<FairSharing>,
    /// Timeouts for pods of admitted workloads to become ready; `None` to disable them.
    pub wait_for_pods_ready: Option<WaitForPodsReady>,
    /// Conversion of requests into quota usage.
    pub resources: ResourceRules,
}

/// Fair sharing of unused quota by weight.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FairSharing {
    /// Preemption strategies between ClusterQueues, in the order in which they are tried. Never
    /// empty.
    pub strategies: Vec<PreemptionStrategy>,
}

impl Default for FairSharing {
    fn default() -> Self {
        Self {
            strategies: vec![PreemptionStrategy::LessThanOrEqualToFinalShare, PreemptionStrategy::LessThanInitialShare],
        }
    }
}

/// Condition under which a workload may preempt one in another ClusterQueue with fair sharing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PreemptionStrategy {
    /// The preemptor's share with the workload is at most the target's share without its workload.
    LessThanOrEqualToFinalShare,
    /// The preemptor's share with the workload is less than the target's share with its workload.
    LessThanInitialShare,
}

/// Handling of admitted workloads whose pods do not become ready.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WaitForPodsReady {
    /// Time for an admitted workload to become ready.
    pub timeout: SignedDuration,
    /// Time for a workload that was ready to become ready again; `None` for no limit.
    pub recovery_timeout: Option<SignedDuration>,
    /// Time for the pods of an admitted workload to get nodes; `None` for no limit but `timeout`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unscheduled_timeout: Option<SignedDuration>,
    /// Blocks all admissions while an admitted workload is not ready.
    pub block_admission: bool,
    /// Requeuing of workloads after a timeout.
    pub requeuing: Requeuing,
}

/// Requeuing of workloads after a PodsReady timeout.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Requeuing {
    /// Timestamp that determines the queue position.
    pub timestamp: RequeuingTimestamp,
    /// Number of requeues before the workload is deactivated; `None` for no limit.
    pub backoff_limit_count: Option<u32>,
    /// Backoff before the first requeue, in seconds. It doubles each time.
    pub backoff_base_seconds: u32,
    /// Maximum backoff, in seconds.
    pub backoff_max_seconds: u32,
}

impl Default for Requeuing {
    fn default() -> Self {
        Self {
            timestamp: RequeuingTimestamp::Eviction,
            backoff_limit_count: None,
            backoff_base_seconds: 60,
            backoff_max_seconds: 3600,
        }
    }
}

/// Timestamp that determines the queue position after a PodsReady timeout.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RequeuingTimestamp {
    /// The time of the eviction: the workload moves behind those already pending.
    #[default]
    Eviction,
    /// The creation time: the workload keeps its position.
    Creation,
}

/// Conversion of requests into quota usage.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ResourceRules {
    /// Resource name prefixes excluded from quota.
    pub exclude_prefixes: Vec<String>,
    /// Resource transformations; at most one per input.
    pub transformations: Vec<Transformation>,
    /// Handling of resources for which the ClusterQueue has no quota.
    pub undeclared: UndeclaredResourcePolicy,
}

/// Transformation of one resource into others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Transformation {
    /// Name of the requested resource.
    pub input: String,
    /// Handling of the input resource itself.
    pub strategy: TransformationStrategy,
    /// Name of a resource whose requested amount also multiplies the outputs; `None` to multiply by
    /// the input alone.
    pub multiply_by: Option<String>,
    /// Amounts counted for each unit of the input.
    pub outputs: ResourceList,
}

/// Handling of the input resource of a transformation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TransformationStrategy {
    /// The input counts in addition to the outputs.
    #[default]
    Retain,
    /// The outputs replace the input.
    Replace,
}

/// Handling of resources for which the ClusterQueue has no quota.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum UndeclaredResourcePolicy {
    /// Workloads that request it are inadmissible.
    #[default]
    Block,
    /// The resource is ignored.
    Ignore,
}
