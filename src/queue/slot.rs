//! A workload in the scheduler's cache, with the decisions that are not yet observed.

use std::sync::Arc;

use super::Preemption;
use super::demand::Demand;
use super::engine::{LocalQueueId, WorkloadId};
use super::entry::{Entry, Stage};
use super::ledger::{Charge, Holder, HolderRank};
use super::line::{Rank, Shape};
use super::parts::Part;
use super::pending::{PendingReason, Waiting};
use super::report::Counts;
use super::shared::Shared;
use super::tree::NodeId;
use sluice_api::kueue::Admission;

/// A workload in the scheduler's cache, with the decisions that are not yet observed.
#[derive(Debug, Clone)]
pub(super) struct Slot {
    pub(super) entry: Entry,
    /// The LocalQueue named by the workload.
    pub(super) local_queue: Option<LocalQueueId>,
    /// The decided admission that is not observed yet. It counts as usage.
    pub(super) assumed: Option<Arc<Admission>>,
    /// The API server rejected its admission, and the workload has not changed since.
    pub(super) refused: bool,
    /// The decided preemption that is not observed yet.
    pub(super) preempted: Option<Box<Preemption>>,
    /// The decided preemption of this part that is not observed yet.
    pub(super) gives_back: Option<(Part, Box<Preemption>)>,
    /// The assignment for which it preempted other workloads, until it has their quota.
    pub(super) preempts: Option<Room>,
    /// Its pending message must be rewritten with current numbers, even if the reason is unchanged.
    pub(super) refresh: bool,
    /// The decided pending reason that is not observed yet.
    pub(super) to_tell: Option<PendingReason>,
    pub(super) standing: Standing,
    pub(super) booked: Booking,
}

/// The assignment that is reserved for a preemptor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Room {
    /// Pod count of each pod set.
    pub(super) counts: Vec<i32>,
    /// Index of the pod set, index of the resource group, and the flavor.
    pub(super) flavors: Vec<(usize, usize, String)>,
}

/// Queue state of a workload.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Standing {
    /// Finished, terminating or deactivated: not counted.
    Out,
    /// Holds quota under this admission.
    Holds(Arc<Admission>),
    /// This slice holds quota in its place.
    Superseded(WorkloadId),
    /// Queued in this ClusterQueue.
    InLine(NodeId),
    /// Inadmissible for a reason other than quota; the ClusterQueue is `None` if unknown.
    Held(Waiting, Option<NodeId>),
}

/// Contribution of a workload to counts, usage and queues. These derived values change only by
/// removing the old contribution and adding the new one.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Booking {
    pub(super) cluster_queue: Option<NodeId>,
    pub(super) local_queue: Option<LocalQueueId>,
    pub(super) counts: Counts,
    pub(super) charge: Arc<Charge>,
    /// The part of the usage that is being released: all of it if the workload is evicted.
    pub(super) going: Arc<Charge>,
    /// The preemptible amounts, in preemption order.
    pub(super) stable: Vec<(HolderRank, Holder)>,
    pub(super) place: Option<(Shape, Rank)>,
}

impl Slot {
    pub(super) fn of(entry: Entry) -> Self {
        Self {
            assumed: None,
            refused: false,
            preempted: None,
            gives_back: None,
            preempts: None,
            refresh: false,
            to_tell: None,
            local_queue: None,
            standing: Standing::Out,
            booked: Booking::default(),
            entry,
        }
    }

    /// Updates the observed workload and keeps the decisions that are still valid.
    pub(super) fn observe(&mut self, entry: Entry) {
        let before = std::mem::replace(&mut self.entry, entry);
        let now = &self.entry;
        if now.stage != Stage::Unreserved || before.asks_otherwise(now) {
            self.assumed = None;
        }
        if now.evicted || !matches!(now.stage, Stage::Reserved(_)) {
            self.preempted = None;
            self.gives_back = None;
        }
        self.gives_back = self.gives_back.take().filter(|(part, _)| {
            now.gives_back.is_none_or(|observed| observed < *part) && now.parts_up_to(*part).next().is_some()
        });
        if before.demand != now.demand {
            self.preempts = None;
        }
        let edited = before.edited(now);
        self.refused &= !edited;
        self.refresh = edited || (self.refresh && before.said == now.said);
    }

    /// Replaces the requests of an unchanged spec. A decided admission remains: its write is in
    /// flight and cannot be stopped.
    pub(super) fn asks_now(&mut self, demand: Shared<Demand>) {
        self.entry.demand = Ok(demand);
        self.preempts = None;
        self.refused = false;
        self.refresh = true;
    }

    /// Returns its admission, observed or decided; `None` if it holds no quota.
    pub(super) fn admission(&self) -> Option<&Arc<Admission>> {
        match &self.entry.stage {
            Stage::Reserved(admission) => Some(admission),
            Stage::Unreserved => self.assumed.as_ref(),
            Stage::Finished => None,
        }
    }

    /// Returns the last part that it has to release, observed or decided.
    pub(super) fn giving_back(&self) -> Option<Part> {
        self.gives_back.as_ref().map(|(part, _)| *part).max(self.entry.gives_back)
    }

    /// Returns true if all of its quota is being released. False if it was admitted again, although
    /// its status still has Evicted.
    pub(super) fn is_going(&self) -> bool {
        self.preempted.is_some() || (self.entry.evicted && self.assumed.is_none())
    }
}
