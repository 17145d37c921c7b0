//! The kinds of `kueue.x-k8s.io/v1beta2`, with the fields, defaults and validation of Kueue 0.19
//! (kueue v0.19.2 `apis/kueue/v1beta2`), and the names that go with them.

pub mod cluster_queue;
pub mod cohort;
pub mod local_queue;
pub mod names;
pub mod resource_flavor;
pub mod scheduling_gate;
mod schema;
#[cfg(test)]
mod tests;
pub mod workload;
pub mod workload_priority_class;
pub mod workload_status;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use cluster_queue::{ClusterQueue, ClusterQueueSpec, ClusterQueueStatus};
pub use cohort::{Cohort, CohortSpec, CohortStatus};
pub use local_queue::{LocalQueue, LocalQueueSpec, LocalQueueStatus};
pub use resource_flavor::{ResourceFlavor, ResourceFlavorSpec};
pub use workload::{PodSet, PodTemplate, Workload, WorkloadSpec};
pub use workload_priority_class::WorkloadPriorityClass;
pub use workload_status::{Admission, PodSetAssignment, WorkloadStatus};

use crate::api::quantity::Quantity;

/// Amounts by resource name.
pub type ResourceList = std::collections::BTreeMap<String, Quantity>;

/// Whether a queue takes in new workloads, and what happens to those it has admitted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum StopPolicy {
    /// Workloads are admitted.
    #[default]
    None,
    /// Nothing new is admitted; what was admitted keeps running.
    Hold,
    /// Nothing new is admitted, and what was admitted is evicted.
    HoldAndDrain,
}

/// How much a queue or cohort counts when unused quota is shared.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FairSharing {
    /// Share of unused quota relative to its siblings. Zero means that it always comes last; 1 if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::weight", extend("default" = 1))]
    pub weight: Option<Quantity>,
}

/// The share that a queue or cohort takes at the moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FairSharingStatus {
    /// Largest ratio over all resources of what is used above nominal quota to what the cohort can lend, in thousandths,
    /// divided by the weight.
    pub weighted_share: i64,
}

/// Which rule of admission fair sharing a ClusterQueue follows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AdmissionScope {
    /// The rule.
    pub admission_mode: AdmissionMode,
}

/// Whether past usage decides whose workload is next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AdmissionMode {
    /// LocalQueues that used less in the past come first.
    UsageBasedAdmissionFairSharing,
    /// Past usage does not matter.
    NoAdmissionFairSharing,
}
