//! Nominations of all ClusterQueues of a tree, ordered by entitlement.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::cached_workload::ReservedAssignment;
use crate::ledger::FlavorResourceQuantities;
use crate::pending_queue::QueueOrder;
use crate::preemption::Target;
use crate::tree::NodeId;
use sluice_api::kueue::Admission;

/// A workload and the result of scheduling it next.
#[derive(Debug, Clone)]
pub(super) struct Nomination {
    pub(super) order: QueueOrder,
    pub(super) borrowing_level: u32,
    pub(super) usage: FlavorResourceQuantities,
    /// Evictions were issued for it in an earlier cycle.
    pub(super) has_reservation: bool,
    /// Pod counts and flavors of the assignment.
    pub(super) assignment: ReservedAssignment,
    pub(super) outcome: Outcome,
    pub(super) validity: Validity,
    /// Its usage is the same in any mode.
    pub(super) has_fixed_usage: bool,
    /// Number of turns that were finished when it was nominated.
    pub(super) finished_turns: u32,
}

/// Time for which a nomination cannot move ahead in the order of turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Validity {
    /// Until another workload of its ClusterQueue precedes it.
    UntilHeadChanges,
    /// Until capacity is released or its usage is no longer available: the next workload of its
    /// ClusterQueue may borrow less, and so be ahead.
    WhileFree,
    /// Until the next turn.
    ThisTurn,
}

/// The action that a nomination leads to.
#[derive(Debug, Clone)]
pub(super) enum Outcome {
    /// Admits the workload.
    Admit(Admission),
    /// Reserves capacity and issues these preemptions; earlier ones may be in progress.
    Preempt(Vec<Target>),
    /// Reserves capacity for the head of a StrictFIFO ClusterQueue.
    Reserve,
}

/// Order of turns: reservations, then by borrowing level, then by the number of turns that a
/// ClusterQueue has had, so that none has two turns before another has one.
type TurnOrder = (Reverse<bool>, u32, u32, QueueOrder, NodeId);

/// Time at which a nomination is checked again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Recheck {
    /// Once the validity of the nomination ends.
    AsItHolds,
    /// In every turn: a parked workload of the ClusterQueue may have become admissible.
    EveryTurn,
}

/// The turns of one tree in one cycle.
#[derive(Default)]
pub(super) struct EntryIterator {
    pub(super) cluster_queues: Vec<NodeId>,
    pub(super) nominations: BTreeMap<NodeId, Nomination>,
    turn_order: BTreeSet<TurnOrder>,
    turns_taken: BTreeMap<NodeId, u32>,
    /// StrictFIFO ClusterQueues whose head has had its turn and is still pending.
    pub(super) done: BTreeSet<NodeId>,
    /// ClusterQueues that are nominated again after every turn, because any turn may help them.
    pub(super) recheck_every_turn: BTreeSet<NodeId>,
    /// ClusterQueues that are nominated again once the usage of their nomination is no longer
    /// available.
    pub(super) recheck_when_taken: BTreeSet<NodeId>,
    /// Number of finished turns.
    pub(super) finished_turns: u32,
}

impl EntryIterator {
    pub(super) fn new(queues: Vec<NodeId>) -> Self {
        Self { cluster_queues: queues, ..Self::default() }
    }

    fn order_of(&self, node: NodeId, candidate: &Nomination) -> TurnOrder {
        let preempts = Reverse(candidate.has_reservation);
        // A StrictFIFO queue does not order by reservations, but the order of ClusterQueues does.
        let rank = QueueOrder { preempting: preempts, ..candidate.order.clone() };
        (preempts, candidate.borrowing_level, self.turns_taken.get(&node).copied().unwrap_or(0), rank, node)
    }

    /// Returns the ClusterQueue whose turn it is, and its nomination.
    pub(super) fn peek(&self) -> Option<(NodeId, &Nomination)> {
        let (.., node) = self.turn_order.first()?;
        Some((*node, self.nominations.get(node)?))
    }

    /// Records the nomination of a ClusterQueue.
    pub(super) fn set_nomination(&mut self, node: NodeId, candidate: Option<Nomination>, recheck: Recheck) {
        let holds = candidate.as_ref().map_or(Validity::UntilHeadChanges, |candidate| candidate.validity);
        self.recheck_every_turn.remove(&node);
        self.recheck_when_taken.remove(&node);
        if recheck == Recheck::EveryTurn || holds == Validity::ThisTurn {
            self.recheck_every_turn.insert(node);
        } else if holds == Validity::WhileFree {
            self.recheck_when_taken.insert(node);
        }
        if let Some(before) = self.nominations.remove(&node) {
            let turn = self.order_of(node, &before);
            self.turn_order.remove(&turn);
        }
        if let Some(mut candidate) = candidate {
            candidate.finished_turns = self.finished_turns;
            self.turn_order.insert(self.order_of(node, &candidate));
            self.nominations.insert(node, candidate);
        }
    }

    /// Removes a ClusterQueue that has had its turn from the order, and counts the turn.
    pub(super) fn finish_turn(&mut self, node: NodeId) {
        self.set_nomination(node, None, Recheck::AsItHolds);
        *self.turns_taken.entry(node).or_default() += 1;
        self.finished_turns += 1;
    }
}
