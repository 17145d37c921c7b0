//! What holds for the queue as a whole, as the configuration file says it. Names are those of Kueue's Configuration
//! (kueue v0.19.2 `apis/config/v1beta2/configuration_types.go`). The decision log has them in this form.

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

use sluice_api::kueue::ResourceList;

/// What holds for the queue as a whole.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Settings {
    /// Unused quota is shared by weight; `None` when it goes by priority and age alone.
    pub fair_sharing: Option<FairSharing>,
    /// Admitted workloads have to become ready in time; `None` when nobody looks.
    pub wait_for_pods_ready: Option<WaitForPodsReady>,
    /// How requests are turned into what is charged.
    pub resources: ResourceRules,
}

/// Sharing of unused quota by weight.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FairSharing {
    /// When a workload may preempt one of another ClusterQueue, in the order in which the rules are tried. Never empty.
    pub strategies: Vec<PreemptionStrategy>,
}

impl Default for FairSharing {
    fn default() -> Self {
        Self {
            strategies: vec![PreemptionStrategy::LessThanOrEqualToFinalShare, PreemptionStrategy::LessThanInitialShare],
        }
    }
}

/// When a workload may preempt one of another ClusterQueue under fair sharing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PreemptionStrategy {
    /// When its share with the workload is no larger than the other's share without the victim.
    LessThanOrEqualToFinalShare,
    /// When its share with the workload is smaller than the other's share with the victim.
    LessThanInitialShare,
}

/// What happens to admitted workloads whose pods don't become ready.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WaitForPodsReady {
    /// How long an admitted workload may take to become ready.
    pub timeout: SignedDuration,
    /// How long a workload that was ready may take to become ready again; `None` when that has no limit.
    pub recovery_timeout: Option<SignedDuration>,
    /// Whether nothing is admitted while an admitted workload is not ready.
    pub block_admission: bool,
    /// How a workload that was not ready in time comes back.
    pub requeuing: Requeuing,
}

/// How a workload that was not ready in time comes back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Requeuing {
    /// Which time decides its place in the queue.
    pub timestamp: RequeuingTimestamp,
    /// How often it comes back before it is deactivated; `None` when there is no limit.
    pub backoff_limit_count: Option<u32>,
    /// How long it stays away the first time, in seconds. Each time is twice as long as the one before.
    pub backoff_base_seconds: u32,
    /// How long it stays away at most, in seconds.
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

/// Which time decides the place in the queue of a workload that was not ready in time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum RequeuingTimestamp {
    /// That of the eviction: it goes behind those that wait already.
    #[default]
    Eviction,
    /// That of its creation: it keeps its place.
    Creation,
}

/// How requests are turned into what is charged.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ResourceRules {
    /// Resources whose names begin so are not charged.
    pub exclude_prefixes: Vec<String>,
    /// Resources that are charged as others; at most one rule for each input.
    pub transformations: Vec<Transformation>,
    /// What becomes of a resource that the ClusterQueue has no quota for.
    pub undeclared: Undeclared,
}

/// One resource that is charged as others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Transformation {
    /// Name of the resource that is asked for.
    pub input: String,
    /// Whether it is charged itself, too.
    pub strategy: TransformationStrategy,
    /// Name of the resource whose amount the outputs are multiplied by, beside that of the input.
    pub multiply_by: Option<String>,
    /// What is charged for each unit of the input.
    pub outputs: ResourceList,
}

/// Whether a transformed resource is charged itself, too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TransformationStrategy {
    /// It is.
    #[default]
    Retain,
    /// It is not.
    Replace,
}

/// What becomes of a resource that the ClusterQueue has no quota for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Undeclared {
    /// A workload that asks for it can't be admitted.
    #[default]
    Block,
    /// It is not charged.
    Ignore,
}
