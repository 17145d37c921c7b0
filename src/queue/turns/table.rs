//! What every ClusterQueue of a tree would do with a turn, and whose turn it is by entitlement.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::ledger::Charge;
use crate::line::Rank;
use crate::slot::Room;
use crate::tree::NodeId;
use crate::victims::Victim;
use sluice_api::kueue::Admission;

/// What a workload would get, if the turn were its.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub(super) rank: Rank,
    pub(super) level: u32,
    pub(super) usage: Charge,
    /// Others were evicted for it in an earlier cycle.
    pub(super) preempts: bool,
    /// How many pods it is for, in which flavors.
    pub(super) room: Room,
    pub(super) gets: Gets,
    pub(super) holds: Holds,
    /// It would use the same whenever it gets anything.
    pub(super) steady: bool,
    /// How many turns were over when this was decided.
    pub(super) as_of: u32,
}

/// How long a candidate comes no earlier in the order of turns than was found, while others take theirs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holds {
    /// Until another of its ClusterQueue comes before it in line.
    Lastingly,
    /// Until room is made for somebody, and no longer than what it asks for is free: who comes next in its ClusterQueue may
    /// borrow less, and come earlier.
    WhileFree,
    /// Until the next turn.
    Briefly,
}

#[derive(Debug, Clone)]
pub(super) enum Gets {
    /// It is admitted.
    Quota(Admission),
    /// Room is made for it already, by these evictions and those that go on.
    Room(Vec<Victim>),
    /// Nothing, but what its ClusterQueue is entitled to is kept back: it is the first of a strict one.
    KeptBack,
}

/// The order of turns: those for whom room was made, then what a ClusterQueue is entitled to before what it borrows; then
/// ClusterQueues by turns, so that none is served twice before another once.
type Turn = (Reverse<bool>, u32, u32, Rank, NodeId);

/// The turns of one tree in one cycle.
#[derive(Default)]
pub(super) struct Table {
    pub(super) queues: Vec<NodeId>,
    pub(super) candidates: BTreeMap<NodeId, Candidate>,
    order: BTreeSet<Turn>,
    taken: BTreeMap<NodeId, u32>,
    /// Strict ClusterQueues whose first has had its turn and still waits.
    pub(super) done: BTreeSet<NodeId>,
    /// ClusterQueues that are looked at again after every turn: what others get may help them.
    pub(super) watchful: BTreeSet<NodeId>,
    /// ClusterQueues that are looked at again once what their candidate asks for is not free any more.
    pub(super) unsure: BTreeSet<NodeId>,
    /// How many turns are over.
    pub(super) turns: u32,
}

impl Table {
    pub(super) fn of(queues: Vec<NodeId>) -> Self {
        Self { queues, ..Self::default() }
    }

    fn turn(&self, node: NodeId, candidate: &Candidate) -> Turn {
        let preempts = Reverse(candidate.preempts);
        // In a strict line it has no place before others, and among ClusterQueues it has.
        let rank = Rank { preempts, ..candidate.rank.clone() };
        (preempts, candidate.level, self.taken.get(&node).copied().unwrap_or(0), rank, node)
    }

    /// The ClusterQueue whose turn it is by entitlement.
    pub(super) fn first(&self) -> Option<(NodeId, &Candidate)> {
        let (.., node) = self.order.first()?;
        Some((*node, self.candidates.get(node)?))
    }

    /// Notes what a ClusterQueue would do with a turn.
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

    /// A ClusterQueue had its turn.
    pub(super) fn end_turn(&mut self, node: NodeId) {
        self.set(node, None, false);
        *self.taken.entry(node).or_default() += 1;
        self.turns += 1;
    }
}
