//! A workload in the scheduler's cache, with the decisions that are not yet observed.

use std::sync::Arc;

use super::Preemption;
use super::interner::Interned;
use super::ledger::{FlavorResourceQuantities, PreemptibleUsage, PreemptionOrder};
use super::partial_preemption::PreemptiblePart;
use super::pending::{PendingCause, PendingReason};
use super::pending_queue::{EquivalenceKey, QueueOrder};
use super::queue_status::WorkloadCounts;
use super::scheduler::{LocalQueueId, WorkloadId};
use super::tree::NodeId;
use super::workload_info::{AdmissionStage, WorkloadInfo};
use super::workload_requests::WorkloadRequests;
use sluice_api::kueue::Admission;

/// A workload in the scheduler's cache, with the decisions that are not yet observed.
#[derive(Debug, Clone)]
pub(super) struct CachedWorkload {
    pub(super) info: WorkloadInfo,
    /// The LocalQueue named by the workload.
    pub(super) local_queue: Option<LocalQueueId>,
    /// The decided admission that is not observed yet. It counts as usage.
    pub(super) assumed_admission: Option<Arc<Admission>>,
    /// The API server rejected its admission, and the workload has not changed since.
    pub(super) admission_rejected: bool,
    /// The decided preemption that is not observed yet.
    pub(super) pending_preemption: Option<Box<Preemption>>,
    /// The decided preemption of this part that is not observed yet.
    pub(super) pending_partial_preemption: Option<(PreemptiblePart, Box<Preemption>)>,
    /// The assignment for which it preempted other workloads, until it has their quota.
    pub(super) reserved_assignment: Option<ReservedAssignment>,
    /// Its pending message must be rewritten with current numbers, even if the reason is unchanged.
    pub(super) refresh_message: bool,
    /// The decided pending reason that is not observed yet.
    pub(super) unobserved_reason: Option<PendingReason>,
    pub(super) queue_state: QueueState,
    pub(super) accounting: Accounting,
}

/// The assignment that is reserved for a preemptor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ReservedAssignment {
    /// Pod count of each pod set.
    pub(super) counts: Vec<i32>,
    /// Flavor of each unit.
    pub(super) flavors: Vec<ReservedFlavor>,
}

/// Identifies an assignment unit: the requests of one pod set that one resource group covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UnitPosition {
    /// Index of the pod set in the requests.
    pub(super) pod_set: usize,
    /// Index of the resource group in the ClusterQueue.
    pub(super) group: usize,
}

/// Flavor that is reserved for one unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ReservedFlavor {
    pub(super) unit: UnitPosition,
    /// Name of the flavor.
    pub(super) flavor: String,
}

/// Reason why a workload is not queued.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Hold {
    pub(super) cause: PendingCause,
    /// ClusterQueue that it would be queued in; `None` if unknown.
    pub(super) cluster_queue: Option<NodeId>,
}

/// Queue state of a workload.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum QueueState {
    /// Finished, terminating or deactivated: not counted.
    Inactive,
    /// Holds quota under this admission.
    Admitted(Arc<Admission>),
    /// This slice holds quota in its place.
    Superseded(WorkloadId),
    /// Queued in this ClusterQueue.
    Queued(NodeId),
    /// Inadmissible for a reason other than quota; the ClusterQueue is `None` if unknown.
    OnHold(Hold),
}

/// Contribution of a workload to counts, usage and queues. These derived values change only by
/// removing the old contribution and adding the new one.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Accounting {
    pub(super) cluster_queue: Option<NodeId>,
    pub(super) local_queue: Option<LocalQueueId>,
    pub(super) counts: WorkloadCounts,
    pub(super) usage: Arc<FlavorResourceQuantities>,
    /// The part of the usage that is being released: all of it if the workload is evicted.
    pub(super) releasing: Arc<FlavorResourceQuantities>,
    /// The preemptible amounts, in preemption order.
    pub(super) preemptible: Vec<(PreemptionOrder, PreemptibleUsage)>,
    pub(super) queue_position: Option<(EquivalenceKey, QueueOrder)>,
}

impl CachedWorkload {
    pub(super) fn new(entry: WorkloadInfo) -> Self {
        Self {
            assumed_admission: None,
            admission_rejected: false,
            pending_preemption: None,
            pending_partial_preemption: None,
            reserved_assignment: None,
            refresh_message: false,
            unobserved_reason: None,
            local_queue: None,
            queue_state: QueueState::Inactive,
            accounting: Accounting::default(),
            info: entry,
        }
    }

    /// Updates the observed workload and keeps the decisions that are still valid.
    pub(super) fn update_info(&mut self, entry: WorkloadInfo) {
        let before = std::mem::replace(&mut self.info, entry);
        let now = &self.info;
        if now.stage != AdmissionStage::Unreserved || before.requests_changed(now) {
            self.assumed_admission = None;
        }
        if now.evicted || !matches!(now.stage, AdmissionStage::Reserved(_)) {
            self.pending_preemption = None;
            self.pending_partial_preemption = None;
        }
        self.pending_partial_preemption = self.pending_partial_preemption.take().filter(|(part, _)| {
            now.releasing_up_to.is_none_or(|observed| observed < *part) && now.parts_up_to(*part).next().is_some()
        });
        if before.requests != now.requests {
            self.reserved_assignment = None;
        }
        let edited = before.spec_changed(now);
        self.admission_rejected &= !edited;
        self.refresh_message = edited || (self.refresh_message && before.pending_condition == now.pending_condition);
    }

    /// Replaces the requests of an unchanged spec. A decided admission remains: its write is in
    /// flight and cannot be stopped.
    pub(super) fn set_requests(&mut self, demand: Interned<WorkloadRequests>) {
        self.info.requests = Ok(demand);
        self.reserved_assignment = None;
        self.admission_rejected = false;
        self.refresh_message = true;
    }

    /// Returns its admission, observed or decided; `None` if it holds no quota.
    pub(super) fn admission(&self) -> Option<&Arc<Admission>> {
        match &self.info.stage {
            AdmissionStage::Reserved(admission) => Some(admission),
            AdmissionStage::Unreserved => self.assumed_admission.as_ref(),
            AdmissionStage::Finished => None,
        }
    }

    /// Returns the last part that it has to release, observed or decided.
    pub(super) fn releasing_up_to(&self) -> Option<PreemptiblePart> {
        self.pending_partial_preemption.as_ref().map(|(part, _)| *part).max(self.info.releasing_up_to)
    }

    /// Returns true if all of its quota is being released. False if it was admitted again, although
    /// its status still has Evicted.
    pub(super) fn is_releasing(&self) -> bool {
        self.pending_preemption.is_some() || (self.info.evicted && self.assumed_admission.is_none())
    }
}
