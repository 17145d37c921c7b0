//! A workload, and what was decided about it.

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

/// A workload, and what was decided about it.
#[derive(Debug, Clone)]
pub(super) struct Slot {
    pub(super) entry: Entry,
    /// The LocalQueue that it names.
    pub(super) local_queue: Option<LocalQueueId>,
    /// The admission that was decided on and has not been observed yet. It counts as held.
    pub(super) assumed: Option<Arc<Admission>>,
    /// The API server refused its admission, and it has not changed since.
    pub(super) refused: bool,
    /// It is to go for the sake of another, and that has not been observed yet.
    pub(super) preempted: Option<Box<Preemption>>,
    /// It is to give this part up for the sake of another, and that has not been observed yet.
    pub(super) gives_back: Option<(Part, Box<Preemption>)>,
    /// What others were evicted for, while it has not got their quota yet.
    pub(super) preempts: Option<Room>,
    /// It is to be told the numbers of this moment, though the reason for its waiting is the same.
    pub(super) refresh: bool,
    /// It is to be told that it waits for this reason, and that has not been observed yet.
    pub(super) to_tell: Option<PendingReason>,
    pub(super) standing: Standing,
    pub(super) booked: Booking,
}

/// What is kept for a workload.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Room {
    /// Pods of each of its pod sets.
    pub(super) counts: Vec<i32>,
    /// Places of pod set and resource group, and the flavor.
    pub(super) flavors: Vec<(usize, usize, String)>,
}

/// Where a workload stands.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Standing {
    /// It is over, or going, or not to be admitted: nothing is counted.
    Out,
    /// It holds this quota.
    Holds(Arc<Admission>),
    /// This slice holds quota in its place.
    Superseded(WorkloadId),
    /// It is in the line of this ClusterQueue.
    InLine(NodeId),
    /// Something else than quota keeps it from being admitted.
    Held(Waiting, Option<NodeId>),
}

/// What a workload adds to counts, ledgers and lines. Everything that is kept twice is changed by taking out the old
/// booking and putting in the new one, and in no other way.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Booking {
    pub(super) cluster_queue: Option<NodeId>,
    pub(super) local_queue: Option<LocalQueueId>,
    pub(super) counts: Counts,
    pub(super) charge: Arc<Charge>,
    /// What of the charge is on its way back: all of it, if it is evicted.
    pub(super) going: Arc<Charge>,
    /// What of it can be preempted.
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

    /// Takes in how the workload is now. What was decided and still holds is kept.
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

    /// Its pods ask for something else now, though its spec is the same. An admission that was decided on stands: its write
    /// is under way, and nothing stops it.
    pub(super) fn asks_now(&mut self, demand: Shared<Demand>) {
        self.entry.demand = Ok(demand);
        self.preempts = None;
        self.refused = false;
        self.refresh = true;
    }

    /// The quota that it holds, observed or decided on.
    pub(super) fn admission(&self) -> Option<&Arc<Admission>> {
        match &self.entry.stage {
            Stage::Reserved(admission) => Some(admission),
            Stage::Unreserved => self.assumed.as_ref(),
            Stage::Finished => None,
        }
    }

    /// Up to which part it has to give back, decided or observed.
    pub(super) fn giving_back(&self) -> Option<Part> {
        self.gives_back.as_ref().map(|(part, _)| *part).max(self.entry.gives_back)
    }

    /// Whether all that it holds is on its way back. One that was admitted again is not, though its status still says so.
    pub(super) fn is_going(&self) -> bool {
        self.preempted.is_some() || (self.entry.evicted && self.assumed.is_none())
    }
}
