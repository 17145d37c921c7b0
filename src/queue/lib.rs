//! Quota scheduling: decides which workloads are admitted, in which order, and why the others are
//! pending.
//!
//! [`Scheduler`] holds all state that decisions depend on. [`Scheduler::observe`] observes changes,
//! [`Scheduler::run_cycle`] decides and returns the status changes to write as [`Decision`]s, and `status`
//! turns a decision into the new status of the object. A decision stays in force until the object
//! is observed to reflect it: [`Scheduler::decision_for`] returns the decision for one object at any time,
//! so a write that was lost, rejected or overwritten is retried.

mod accounting;
mod adjust_resources;
mod assignment_mode;
mod cached_workload;
mod cluster_queue_config;
mod cluster_queues;
mod decisions;
mod eviction_reason;
mod explain;
mod feasibility;
mod flavor_assigner;
mod flavor_backtracking;
mod flavor_contradictions;
mod flavor_eligibility;
mod index_update;
mod interner;
mod ledger;
mod limit_ranges;
pub mod log;
mod message_refresh;
mod node_affinity;
pub mod partial_admission;
mod partial_assignment;
pub mod partial_preemption;
pub mod pending;
mod pending_queue;
mod pod_resources;
mod pods_readiness;
mod preemption;
mod queue_status;
mod registry;
pub mod requests;
mod reservations;
mod resource_transformations;
mod scheduler;
mod scheduling;
mod scheduling_cycle;
pub mod settings;
mod shortfall;
mod slices;
pub mod status;
#[cfg(test)]
mod tests;
mod tree;
mod workload_info;
mod workload_requests;

use k8s_openapi::api::core::v1::{LimitRange, Namespace};
use k8s_openapi::api::node::v1::RuntimeClass;

pub use eviction_reason::EvictionReason;
pub use feasibility::{Feasibility, FeasibilityChecker, QuotaDeficit};
pub use partial_preemption::PreemptiblePart;
pub use pending::{FlavorRejection, MissingQuota, PendingCause, PendingReason};
pub use pods_readiness::UnreadyCause;
pub use queue_status::{ClusterQueueReport, CohortReport, LocalQueueReport, WorkloadCounts};
pub use requests::{Requests, pod_requests, template_requests};
pub use scheduler::Scheduler;
pub use settings::Settings;
pub use shortfall::{BindingLimit, ReservedForOthers, Shortfall};

use jiff::Timestamp;

use sluice_api::kueue::{Admission, ClusterQueue, Cohort, LocalQueue, ResourceFlavor, Workload};
pub use sluice_plan::ObjectKey;

/// A change of the cluster state that the scheduler observes.
#[derive(Debug, Clone, Copy)]
pub enum Input<'a> {
    /// The current state of a ResourceFlavor.
    ResourceFlavor(&'a ResourceFlavor),
    /// The ResourceFlavor with this name was deleted.
    ResourceFlavorDeleted(&'a str),
    /// The current state of a ClusterQueue.
    ClusterQueue(&'a ClusterQueue),
    /// The ClusterQueue with this name was deleted.
    ClusterQueueDeleted(&'a str),
    /// The current state of a Cohort.
    Cohort(&'a Cohort),
    /// The Cohort with this name was deleted.
    CohortDeleted(&'a str),
    /// The current state of a LocalQueue.
    LocalQueue(&'a LocalQueue),
    /// The LocalQueue with this key was deleted.
    LocalQueueDeleted(&'a ObjectKey),
    /// The current state of a namespace. Only its labels are used.
    Namespace(&'a Namespace),
    /// The namespace with this name was deleted.
    NamespaceDeleted(&'a str),
    /// The current state of a LimitRange.
    LimitRange(&'a LimitRange),
    /// The LimitRange with this key was deleted.
    LimitRangeDeleted(&'a ObjectKey),
    /// The current state of a RuntimeClass. Only its pod overhead is used.
    RuntimeClass(&'a RuntimeClass),
    /// The RuntimeClass with this name was deleted.
    RuntimeClassDeleted(&'a str),
    /// The current state of a Workload.
    Workload(&'a Workload),
    /// The Workload with this key was deleted.
    WorkloadDeleted(&'a ObjectKey),
    /// The API server rejected the admission of this Workload. Conflicts and failed connections do
    /// not count: they are handled by asking for the decision again. The assumed quota is released,
    /// and the workload is not nominated again before it changes.
    AdmissionRejected(&'a ObjectKey),
}

/// An object that a decision writes to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum DecisionTarget {
    /// The Workload with this key.
    Workload(ObjectKey),
    /// The ClusterQueue with this name.
    ClusterQueue(String),
    /// The Cohort with this name.
    Cohort(String),
    /// The LocalQueue with this key.
    LocalQueue(ObjectKey),
}

/// A decision about one object. `status` turns it into the new status of the object.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// Reserves quota for the workload and admits it.
    Admit {
        /// The workload.
        workload: ObjectKey,
        /// The assigned flavors and counts, by pod set.
        admission: Admission,
        /// The slice that it replaces and whose quota it takes over, if any.
        replaces: Option<ObjectKey>,
    },
    /// The workload is pending.
    Pending {
        /// The workload.
        workload: ObjectKey,
        /// The reason that it is pending.
        cause: PendingCause,
    },
    /// Evicts the workload. It holds its quota until its pods have stopped.
    Evict {
        /// The workload.
        workload: ObjectKey,
        /// The reason for the eviction.
        reason: EvictionReason,
    },
    /// Preempts this part of the workload and all parts that rank before it. The workload holds
    /// their quota until their pods have stopped.
    PreemptPart {
        /// The workload.
        workload: ObjectKey,
        /// The last part to release.
        part: PreemptiblePart,
        /// The preemptor and the reason.
        preemption: Box<Preemption>,
    },
    /// The workload has released the preempted parts.
    PartReleased {
        /// The workload.
        workload: ObjectKey,
    },
    /// Deactivates the workload: this decision sets the condition DeactivationTarget,
    /// [`Decision::SetInactive`] then clears `spec.active`.
    Deactivate {
        /// The workload.
        workload: ObjectKey,
        /// The reason for the deactivation.
        cause: DeactivationCause,
    },
    /// Sets `spec.active` to false on a workload with the condition DeactivationTarget.
    SetInactive {
        /// The workload.
        workload: ObjectKey,
    },
    /// Finishes the workload: a newer slice of its job holds quota in its place.
    FinishReplaced {
        /// The workload.
        workload: ObjectKey,
        /// The newer slice.
        replacement: ReplacementSlice,
    },
    /// Reduces the admission to the pod counts in the spec, which were scaled down. The quota is
    /// released once the reduced admission is observed.
    ReduceAdmission {
        /// The workload.
        workload: ObjectKey,
        /// The reduced admission.
        admission: Admission,
    },
    /// Updates the status of a ClusterQueue.
    ClusterQueueStatus {
        /// Name of the ClusterQueue.
        cluster_queue: String,
        /// Its new status.
        report: ClusterQueueReport,
    },
    /// Updates the status of a Cohort.
    CohortStatus {
        /// Name of the Cohort.
        cohort: String,
        /// Its new status.
        report: CohortReport,
    },
    /// Updates the status of a LocalQueue.
    LocalQueueStatus {
        /// The LocalQueue.
        local_queue: ObjectKey,
        /// Its new status.
        report: LocalQueueReport,
    },
}

impl Decision {
    /// Returns the object that this decision writes to.
    pub fn target(&self) -> DecisionTarget {
        match self {
            Self::Admit { workload, .. }
            | Self::Pending { workload, .. }
            | Self::Evict { workload, .. }
            | Self::PreemptPart { workload, .. }
            | Self::PartReleased { workload }
            | Self::Deactivate { workload, .. }
            | Self::SetInactive { workload }
            | Self::FinishReplaced { workload, .. }
            | Self::ReduceAdmission { workload, .. } => DecisionTarget::Workload(workload.clone()),
            Self::ClusterQueueStatus { cluster_queue, .. } => DecisionTarget::ClusterQueue(cluster_queue.clone()),
            Self::CohortStatus { cohort, .. } => DecisionTarget::Cohort(cohort.clone()),
            Self::LocalQueueStatus { local_queue, .. } => DecisionTarget::LocalQueue(local_queue.clone()),
        }
    }
}

/// The preemptor of a workload, and the reason for the preemption.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preemption {
    /// The preemptor.
    pub preemptor: ObjectKey,
    /// UID of that workload.
    pub preemptor_uid: String,
    /// UID of the job of that workload; `None` if it has none.
    pub preemptor_job_uid: Option<String>,
    /// The reason for the preemption.
    pub reason: PreemptionReason,
    /// Path of the preemptor's ClusterQueue in the cohort tree: `/root/…/ClusterQueue`.
    pub preemptor_path: String,
    /// Path of the preempted workload's ClusterQueue in the cohort tree.
    pub preemptee_path: String,
}

/// The rule that permits a preemption (the reasons of the condition Preempted of kueue v0.19.2
/// `apis/kueue/v1beta2/workload_types.go`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PreemptionReason {
    /// Both workloads are in one ClusterQueue, and the preemptor is ahead in the queue.
    InClusterQueue,
    /// The target borrows nominal quota of the preemptor's ClusterQueue.
    InCohortReclamation,
    /// The target's ClusterQueue has a larger dominant resource share.
    InCohortFairSharing,
    /// Both borrow, and the target has the lower priority.
    InCohortReclaimWhileBorrowing,
}

/// Backoff of a workload that was evicted because its pods were not ready in time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodsReadyTimeout {
    /// Timeout that was exceeded, in seconds.
    pub after_seconds: i64,
    /// The reason that the pods were not ready.
    pub cause: UnreadyCause,
    /// Number of requeues, including this one.
    pub requeue_count: u32,
    /// Time at which it is requeued.
    pub requeue_at: Timestamp,
}

/// The reason that a workload is deactivated (kueue v0.19.2
/// `apis/kueue/v1beta2/workload_types.go`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeactivationCause {
    /// It exceeded the requeuing limit for pods that are not ready in time.
    RequeuingLimitExceeded,
    /// It exceeded its maximum execution time.
    MaximumExecutionTimeExceeded,
}

/// The slice that replaces a finished one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplacementSlice {
    /// Key of the slice.
    pub workload: ObjectKey,
    /// UID of that workload.
    pub uid: String,
    /// UID of the job of that workload; `None` if it has none.
    pub job_uid: Option<String>,
}
