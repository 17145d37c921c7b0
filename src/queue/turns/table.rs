//! Nominations of all ClusterQueues of a tree, ordered by entitlement.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::ledger::Charge;
use crate::line::Rank;
use crate::slot::Room;
use crate::tree::NodeId;
use crate::victims::Victim;
use sluice_api::kueue::Admission;

/// A workload and the result of scheduling it next.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub(super) rank: Rank,
    pub(super) level: u32,
    pub(super) usage: Charge,
    /// Evictions were issued for it in an earlier cycle.
    pub(super) preempts: bool,
    /// Pod counts and flavors of the assignment.
    pub(super) room: Room,
    pub(super) gets: Gets,
    pub(super) holds: Holds,
    /// Its usage is the same in any mode.
    pub(super) steady: bool,
    /// Number of turns that were finished when it was nominated.
    pub(super) as_of: u32,
}

/// Time for which a nomination cannot move ahead in the order of turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holds {
    /// Until another workload of its ClusterQueue precedes it.
    Lastingly,
    /// Until capacity is released or its usage is no longer available: the next workload of its
    /// ClusterQueue may borrow less, and so be ahead.
    WhileFree,
    /// Until the next turn.
    Briefly,
}

/// The action that a nomination leads to.
#[derive(Debug, Clone)]
pub(super) enum Gets {
    /// Admits the workload.
    Quota(Admission),
    /// Reserves capacity and issues these preemptions; earlier ones may be in progress.
    Room(Vec<Victim>),
    /// Reserves capacity for the head of a StrictFIFO ClusterQueue.
    KeptBack,
}

/// Order of turns: reservations, then by borrowing level, then by the number of turns that a
/// ClusterQueue has had, so that none has two turns before another has one.
type Turn = (Reverse<bool>, u32, u32, Rank, NodeId);

/// The turns of one tree in one cycle.
#[derive(Default)]
pub(super) struct Table {
    pub(super) queues: Vec<NodeId>,
    pub(super) candidates: BTreeMap<NodeId, Candidate>,
    order: BTreeSet<Turn>,
    taken: BTreeMap<NodeId, u32>,
    /// StrictFIFO ClusterQueues whose head has had its turn and is still pending.
    pub(super) done: BTreeSet<NodeId>,
    /// ClusterQueues that are nominated again after every turn, because any turn may help them.
    pub(super) watchful: BTreeSet<NodeId>,
    /// ClusterQueues that are nominated again once the usage of their nomination is no longer
    /// available.
    pub(super) unsure: BTreeSet<NodeId>,
    /// Number of finished turns.
    pub(super) turns: u32,
}

impl Table {
    pub(super) fn of(queues: Vec<NodeId>) -> Self {
        Self { queues, ..Self::default() }
    }

    fn turn(&self, node: NodeId, candidate: &Candidate) -> Turn {
        let preempts = Reverse(candidate.preempts);
        // A StrictFIFO queue does not order by reservations, but the order of ClusterQueues does.
        let rank = Rank { preempts, ..candidate.rank.clone() };
        (preempts, candidate.level, self.taken.get(&node).copied().unwrap_or(0), rank, node)
    }

    /// Returns the ClusterQueue whose turn it is, and its nomination.
    pub(super) fn first(&self) -> Option<(NodeId, &Candidate)> {
        let (.., node) = self.order.first()?;
        Some((*node, self.candidates.get(node)?))
    }

    /// Records the nomination of a ClusterQueue.
    pub(super) fn set(&mut self, node: NodeId, candidate: Option<Candidate>, restless: bool) {
        let holds = candidate.as_ref().map_or(Holds::Lastingly, |candidate| candidate.holds);
        self.watchful.remove(&node);
        self.unsure.remove(&node);
        if restless || holds == Holds::Briefly {
            self.watchful.insert(node);
        } else if holds == Holds::WhileFree {
            self.unsure.insert(node);
        }
        if let Some(before) = self.candidates.remove(&node) {
            let turn = self.turn(node, &before);
            self.order.remove(&turn);
        }
        if let Some(mut candidate) = candidate {
            candidate.as_of = self.turns;
            self.order.insert(self.turn(node, &candidate));
            self.candidates.insert(node, candidate);
        }
    }

    /// Removes a ClusterQueue that has had its turn from the order, and counts the turn.
    pub(super) fn end_turn(&mut self, node: NodeId) {
        self.set(node, None, false);
        *self.taken.entry(node).or_default() += 1;
        self.turns += 1;
    }
}
