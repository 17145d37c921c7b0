//! The queue: who gets which quota, in which order, and why not yet.
//!
//! [`Engine`] owns all that the decision rests on. It is told of changes by [`Engine::step`], decides in
//! [`Engine::cycle`], and names what it wants written as [`Effect`]s; `status` turns an effect into the object's new
//! status. An effect stays wanted until the object is observed to have it: [`Engine::effect`] says at any time what is
//! wanted of one object, so a write that was lost, refused or overtaken is simply asked for again.

mod additions;
mod assign;
mod cycle;
mod demand;
mod engine;
mod entry;
mod explain;
mod ledger;
mod limits;
mod line;
pub mod log;
mod means;
mod objection;
pub mod parts;
pub mod pending;
mod placement;
mod pod;
mod promises;
mod prospect;
mod queues;
mod quota;
mod registry;
mod report;
pub mod requests;
pub mod settings;
mod settle;
mod shaping;
mod shared;
mod shortfall;
mod slices;
mod slot;
pub mod status;
pub mod steps;
#[cfg(test)]
mod tests;
mod tree;
mod turns;
mod victims;
mod wanted;

use k8s_openapi::api::core::v1::{LimitRange, Namespace};
use k8s_openapi::api::node::v1::RuntimeClass;

pub use engine::Engine;
pub use parts::Part;
pub use pending::{Obstacle, PendingReason, Waiting};
pub use prospect::{Lack, Prospect, Prospects};
pub use report::{ClusterQueueReport, CohortReport, LocalQueueReport};
pub use requests::{Requests, pod_requests, template_requests};
pub use settings::Settings;
pub use shortfall::{Binding, Kept, Shortfall};

use jiff::Timestamp;

use sluice_api::kueue::{Admission, ClusterQueue, Cohort, LocalQueue, ResourceFlavor, Workload};
pub use sluice_plan::ObjectKey;

/// Something that the queue is told.
#[derive(Debug, Clone, Copy)]
pub enum Event<'a> {
    /// A ResourceFlavor as it is now.
    ResourceFlavor(&'a ResourceFlavor),
    /// The ResourceFlavor with this name is gone.
    ResourceFlavorGone(&'a str),
    /// A ClusterQueue as it is now.
    ClusterQueue(&'a ClusterQueue),
    /// The ClusterQueue with this name is gone.
    ClusterQueueGone(&'a str),
    /// A Cohort as it is now.
    Cohort(&'a Cohort),
    /// The Cohort with this name is gone.
    CohortGone(&'a str),
    /// A LocalQueue as it is now.
    LocalQueue(&'a LocalQueue),
    /// This LocalQueue is gone.
    LocalQueueGone(&'a ObjectKey),
    /// A namespace as it is now; its labels count.
    Namespace(&'a Namespace),
    /// The namespace with this name is gone.
    NamespaceGone(&'a str),
    /// A LimitRange as it is now.
    LimitRange(&'a LimitRange),
    /// This LimitRange is gone.
    LimitRangeGone(&'a ObjectKey),
    /// A RuntimeClass as it is now; its overhead counts.
    RuntimeClass(&'a RuntimeClass),
    /// The RuntimeClass with this name is gone.
    RuntimeClassGone(&'a str),
    /// A Workload as it is now.
    Workload(&'a Workload),
    /// This Workload is gone.
    WorkloadGone(&'a ObjectKey),
    /// The API server will not take the admission of this Workload as it is (not a conflict or a failed connection, which
    /// are met by asking for the effect again). Its quota is free again, and it is not tried before it changes.
    AdmissionRefused(&'a ObjectKey),
}

/// An object that the queue wants something written to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// A Workload.
    Workload(ObjectKey),
    /// The ClusterQueue with this name.
    ClusterQueue(String),
    /// The Cohort with this name.
    Cohort(String),
    /// A LocalQueue.
    LocalQueue(ObjectKey),
}

/// What the queue wants of one object. `status` turns each into the object's new status.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// The workload gets this quota, and so is admitted.
    Admit {
        /// The workload.
        workload: ObjectKey,
        /// The quota, by pod set.
        admission: Admission,
        /// The slice whose quota it takes over.
        replaces: Option<ObjectKey>,
    },
    /// The workload waits.
    Pending {
        /// The workload.
        workload: ObjectKey,
        /// What for.
        why: Waiting,
    },
    /// The workload must stop and give its quota back; it holds the quota until that is done.
    Evict {
        /// The workload.
        workload: ObjectKey,
        /// Why.
        reason: EvictReason,
    },
    /// The workload must give up this part of what it holds, and those before it; it holds them until that is done.
    GiveBack {
        /// The workload.
        workload: ObjectKey,
        /// The part.
        part: Part,
        /// For whom.
        preemption: Box<Preemption>,
    },
    /// The workload has given back what it had to.
    GivenBack {
        /// The workload.
        workload: ObjectKey,
    },
    /// The workload is to be deactivated: first its status says why (condition DeactivationTarget), then [`Effect::SetInactive`].
    Deactivate {
        /// The workload.
        workload: ObjectKey,
        /// Why.
        cause: DeactivationCause,
    },
    /// The workload's status says that it is to be deactivated, and its `spec.active` is to follow.
    SetInactive {
        /// The workload.
        workload: ObjectKey,
    },
    /// The workload is over, because a newer slice of its job holds quota in its place.
    FinishReplaced {
        /// The workload.
        workload: ObjectKey,
        /// The newer slice.
        by: Successor,
    },
    /// The workload's pod sets got smaller in its spec, and its admission follows. Its quota is free once that is observed.
    ShrinkAdmission {
        /// The workload.
        workload: ObjectKey,
        /// The smaller admission.
        admission: Admission,
    },
    /// The status of a ClusterQueue.
    ClusterQueueStatus {
        /// Name of the ClusterQueue.
        cluster_queue: String,
        /// What it says.
        report: ClusterQueueReport,
    },
    /// The status of a Cohort.
    CohortStatus {
        /// Name of the Cohort.
        cohort: String,
        /// What it says.
        report: CohortReport,
    },
    /// The status of a LocalQueue.
    LocalQueueStatus {
        /// The LocalQueue.
        local_queue: ObjectKey,
        /// What it says.
        report: LocalQueueReport,
    },
}

impl Effect {
    /// The object that this is about.
    pub fn subject(&self) -> Subject {
        match self {
            Self::Admit { workload, .. }
            | Self::Pending { workload, .. }
            | Self::Evict { workload, .. }
            | Self::GiveBack { workload, .. }
            | Self::GivenBack { workload }
            | Self::Deactivate { workload, .. }
            | Self::SetInactive { workload }
            | Self::FinishReplaced { workload, .. }
            | Self::ShrinkAdmission { workload, .. } => Subject::Workload(workload.clone()),
            Self::ClusterQueueStatus { cluster_queue, .. } => Subject::ClusterQueue(cluster_queue.clone()),
            Self::CohortStatus { cohort, .. } => Subject::Cohort(cohort.clone()),
            Self::LocalQueueStatus { local_queue, .. } => Subject::LocalQueue(local_queue.clone()),
        }
    }
}

/// Why a workload must stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EvictReason {
    /// Its ClusterQueue is being drained.
    ClusterQueueStopped,
    /// Its LocalQueue is being drained.
    LocalQueueStopped,
    /// Its `spec.active` is false.
    Deactivated,
    /// Another workload gets its quota.
    Preempted(Box<Preemption>),
    /// Its pods were not ready in time.
    PodsReadyTimeout(Box<PodsReadyTimeout>),
}

/// Who takes a workload's quota, and by which right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preemption {
    /// The workload that needs the quota.
    pub by: ObjectKey,
    /// Its uid.
    pub by_uid: String,
    /// The uid of its job; empty if it has none.
    pub by_job_uid: String,
    /// By which right.
    pub right: PreemptionRight,
    /// The preemptor's place in the cohort tree: `/root/…/ClusterQueue`.
    pub preemptor_path: String,
    /// The victim's place in the cohort tree.
    pub victim_path: String,
}

/// By which right a workload takes another's quota (the reasons of the condition Preempted of kueue v0.19.2
/// `apis/kueue/v1beta2/workload_types.go`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PreemptionRight {
    /// Both are of one ClusterQueue, and the preemptor comes first.
    InClusterQueue,
    /// The victim borrows what the preemptor's ClusterQueue has a right to.
    InCohortReclamation,
    /// The victim's ClusterQueue has a larger share.
    InCohortFairSharing,
    /// Both borrow, and the victim's priority is lower.
    InCohortReclaimWhileBorrowing,
}

/// How a workload whose pods were not ready in time comes back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodsReadyTimeout {
    /// How long its pods were not ready, in seconds.
    pub after_seconds: i64,
    /// Whether they had been ready before.
    pub recovering: bool,
    /// How often it was sent back, this time included.
    pub count: u32,
    /// When it comes back.
    pub requeue_at: Timestamp,
}

/// Why a workload is deactivated (kueue v0.19.2 `apis/kueue/v1beta2/workload_types.go`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeactivationCause {
    /// Its pods were not ready in time too often.
    RequeuingLimitExceeded,
    /// It was admitted for as long as it may be.
    MaximumExecutionTimeExceeded,
}

/// The slice that replaced another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Successor {
    /// The slice.
    pub workload: ObjectKey,
    /// Its uid.
    pub uid: String,
    /// The uid of its job; empty if it has none.
    pub job_uid: String,
}
