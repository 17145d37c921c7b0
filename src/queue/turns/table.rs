//! What every ClusterQueue of a tree would do with a turn, and whose turn it is.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet};

use crate::api::kueue::Admission;
use crate::queue::ledger::Charge;
use crate::queue::line::Rank;
use crate::queue::tree::{Fr, NodeId, Share, Tree, View};
use crate::queue::victims::Victim;

/// What a workload would get, if the turn were its.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub(super) rank: Rank,
    pub(super) level: u32,
    pub(super) usage: Charge,
    /// Others were evicted for it in an earlier cycle.
    pub(super) preempts: bool,
    /// Pods of each pod set.
    pub(super) counts: Vec<i32>,
    pub(super) gets: Gets,
    pub(super) holds: Holds,
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
    /// What is known of the children of Cohorts, while their usage and the candidates below them are as they were.
    sides: BTreeMap<NodeId, Option<Side>>,
    /// How many turns are over.
    pub(super) turns: u32,
}

/// What a child of a Cohort would use with the candidate that comes first below it.
#[derive(Debug, Clone, Copy)]
struct Side {
    candidate: NodeId,
    borrows: bool,
    share: Share,
}

impl Table {
    pub(super) fn of(queues: Vec<NodeId>) -> Self {
        Self { queues, ..Self::default() }
    }

    fn turn(&self, node: NodeId, candidate: &Candidate) -> Turn {
        (
            Reverse(candidate.preempts),
            candidate.level,
            self.taken.get(&node).copied().unwrap_or(0),
            candidate.rank.clone(),
            node,
        )
    }

    /// The ClusterQueue whose turn it is by entitlement.
    pub(super) fn first(&self) -> Option<NodeId> {
        self.order.first().map(|(.., node)| *node)
    }

    /// Notes what a ClusterQueue would do with a turn.
    pub(super) fn set(&mut self, tree: &Tree, node: NodeId, candidate: Option<Candidate>, restless: bool) {
        self.usage_changed(tree, node);
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
    pub(super) fn end_turn(&mut self, tree: &Tree, node: NodeId) {
        self.set(tree, node, None, false);
        *self.taken.entry(node).or_default() += 1;
        self.turns += 1;
    }

    /// A ClusterQueue uses more or less than before.
    pub(super) fn usage_changed(&mut self, tree: &Tree, node: NodeId) {
        for changed in std::iter::once(node).chain(tree.above(node)) {
            self.sides.remove(&changed);
        }
    }

    /// The ClusterQueue below a node whose turn it is by share: the winner among each Cohort's children, from the leaves up
    /// (kueue v0.19.2 `pkg/scheduler/fair_sharing_iterator.go`).
    pub(super) fn winner(&mut self, tree: &mut Tree, node: NodeId) -> Option<NodeId> {
        if tree.is_cluster_queue(node) {
            return self.candidates.contains_key(&node).then_some(node);
        }
        let mut best: Option<Side> = None;
        for child in tree.children(node).to_vec() {
            let Some(side) = self.side(tree, child) else { continue };
            if best.is_none_or(|best| self.compare(side, best) == Ordering::Less) {
                best = Some(side);
            }
        }
        best.map(|best| best.candidate)
    }

    fn side(&mut self, tree: &mut Tree, child: NodeId) -> Option<Side> {
        if let Some(known) = self.sides.get(&child) {
            return *known;
        }
        let side = self.winner(tree, child).map(|candidate| {
            let usage = self.candidates.get(&candidate).map(|candidate| &candidate.usage);
            let asked: Vec<(Fr, i128)> = usage.into_iter().flatten().map(|(fr, amount)| (*fr, *amount)).collect();
            asked.iter().for_each(|(fr, amount)| tree.add(candidate, *fr, *amount, View::Planned));
            let borrows = tree.borrows_any(child, &asked, View::Planned);
            let share = tree.share(child);
            asked.iter().for_each(|(fr, amount)| tree.add(candidate, *fr, -amount, View::Planned));
            Side { candidate, borrows, share }
        });
        self.sides.insert(child, side);
        side
    }

    fn compare(&self, a: Side, b: Side) -> Ordering {
        let candidate = |side: Side| self.candidates.get(&side.candidate);
        let waits = |side: Side| candidate(side).map(|candidate| Reverse(candidate.preempts));
        let rank = |side: Side| candidate(side).map(|candidate| &candidate.rank);
        let by_share = a.borrows.cmp(&b.borrows).then(a.share.compare(b.share));
        waits(a).cmp(&waits(b)).then(by_share).then_with(|| rank(a).cmp(&rank(b)))
    }
}
