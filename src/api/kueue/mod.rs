//! Kinds of `kueue.x-k8s.io/v1beta2` with the fields, defaults and validation of Kueue 0.19 (kueue
//! v0.19.2 `apis/kueue/v1beta2`), and their labels, annotations, conditions and reasons.

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
pub use workload_status::{Admission, PodSetAssignment, PodSetRequest, WorkloadStatus};

use crate::quantity::Quantity;

/// Quantities by resource name.
pub type ResourceList = std::collections::BTreeMap<String, Quantity>;

/// Stop policy of a queue: holds the admission of workloads, or also evicts admitted ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum StopPolicy {
    /// Workloads are admitted.
    #[default]
    None,
    /// No workload is admitted. Admitted workloads keep running.
    Hold,
    /// No workload is admitted. Admitted workloads are evicted.
    HoldAndDrain,
}

/// Weight of a queue or cohort when unused quota is shared.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FairSharing {
    /// Relative weight among the siblings. Zero means that the node comes last whatever its usage.
    /// Unset means 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity", extend("default" = 1))]
    pub weight: Option<Quantity>,
}

/// Current share of a queue or cohort.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FairSharingStatus {
    /// Maximum over all resources of the ratio of usage above nominal quota to the quantity that
    /// the cohort can lend, in thousandths, divided by the weight.
    pub weighted_share: i64,
}

/// Ordering mode of admission fair sharing in a ClusterQueue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AdmissionScope {
    /// Ordering mode.
    pub admission_mode: AdmissionMode,
}

/// Ordering of the LocalQueues of a ClusterQueue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AdmissionMode {
    /// LocalQueues with less past usage come first.
    UsageBasedAdmissionFairSharing,
    /// Past usage is ignored.
    NoAdmissionFairSharing,
}
