//! Selects the next workload by dominant resource share: the winner among the children of each
//! Cohort, from the leaves up (kueue v0.19.2 `pkg/scheduler/fair_sharing_iterator.go`).
//!
//! Not every ClusterQueue is nominated in every turn. Each is entered with a lower bound that is
//! known without an attempt: it requests at least the smallest amount that any of its workloads
//! requests. This bounds its position among its siblings, so only ClusterQueues that could precede
//! the best nomination are nominated.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet};

use super::Outcome;
use super::side::{Asked, Key, Side, Sides, asked_for, passed_on};
use super::table::Candidate;
use crate::engine::{Engine, WorkloadId};
use crate::ledger::Charge;
use crate::line::Rank;
use crate::tree::{Fr, Largest, NodeId, Share, View};

/// The tournament of one tree in one cycle.
#[derive(Default)]
pub(super) struct Tournament {
    queues: Vec<NodeId>,
    /// ClusterQueues that are not nominated again in this cycle.
    done: BTreeSet<NodeId>,
    /// The last nomination of each ClusterQueue.
    found: BTreeMap<NodeId, Found>,
    least: BTreeMap<NodeId, Asked>,
    /// The children of each Cohort with queued workloads, ordered by the lower bounds of their
    /// positions; with the smallest additional usage of the Cohort.
    brackets: BTreeMap<NodeId, BTreeMap<Key, Asked>>,
    /// The position with which each node is entered.
    entered: BTreeMap<NodeId, Key>,
    /// ClusterQueues whose entry may be outdated.
    stale: BTreeMap<NodeId, Stale>,
    /// By Cohort, the shares of its children at which a parked workload is retried.
    alarms: BTreeMap<NodeId, BTreeSet<Due>>,
    /// Number of finished turns.
    turns: u32,
}

/// The part of the entry of a ClusterQueue that may be outdated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stale {
    /// Its first workload could not be admitted.
    Tried,
    /// Another workload may be admissible.
    First,
    /// Its usage and its queued workloads may have changed as well.
    All,
}

/// A nomination and the turn that it was made in.
struct Found {
    /// Number of turns that were finished at the time.
    as_of: u32,
    candidate: Option<Candidate>,
}

/// A share at which a node may be preempted, and the ClusterQueue that waits for it.
#[derive(Debug, Clone, Copy)]
struct Due {
    share: Share,
    fr: Fr,
    node: NodeId,
}

/// The winner among the ClusterQueues below a node.
struct Winner {
    queue: NodeId,
    waits: Reverse<bool>,
    rank: Rank,
    /// Additional usage of the node.
    asked: Asked,
}

impl Engine {
    /// Runs turns with fair sharing.
    pub(super) fn take_turns_by_share(&mut self, root: NodeId, queues: Vec<NodeId>, admitted: &mut Vec<WorkloadId>) {
        let mut tournament = Tournament::of(queues);
        loop {
            self.enter_again(&mut tournament);
            let Some(winner) = self.winner(root, &mut tournament) else { break };
            let node = winner.queue;
            let Some(candidate) = self.candidate_of(winner, &mut tournament) else { continue };
            if self.admission_blocked() {
                break;
            }
            let outcome = self.take_turn(root, node, candidate, admitted);
            self.end_turn_by_share(node, outcome, &mut tournament);
        }
    }

    /// Returns the winner below a node; `None` if nothing can be nominated there.
    fn winner(&mut self, node: NodeId, tournament: &mut Tournament) -> Option<Winner> {
        if self.tree.is_cluster_queue(node) {
            return self.contender(node, tournament);
        }
        // The bracket is not modified while the children are evaluated, so it can be taken out.
        let bracket = tournament.brackets.remove(&node)?;
        let mut best: Option<(Key, Winner)> = None;
        for bound in bracket.keys() {
            if let Some((best, _)) = &best {
                if best.compare(bound) == Ordering::Less {
                    break;
                }
                if !self.may_beat(best, bound.node, bound.node, tournament) {
                    continue;
                }
            }
            let Some(mut winner) = self.winner(bound.node, tournament) else { continue };
            let side = Side::of(&self.tree, bound.node, winner.waits, winner.rank.clone(), &winner.asked);
            if best.as_ref().is_none_or(|(best, _)| side.key < *best) {
                winner.asked = side.passes;
                best = Some((side.key, winner));
            }
        }
        tournament.brackets.insert(node, bracket);
        best.map(|(_, winner)| winner)
    }

    /// Reports whether a child would precede its best sibling with any of the workloads below
    /// `node`. This is much cheaper than finding the winner: parked workloads are not tried again.
    fn may_beat(&mut self, best: &Key, child: NodeId, node: NodeId, tournament: &mut Tournament) -> bool {
        let Some(bracket) = tournament.brackets.remove(&node) else { return true };
        let mut sides = Sides::of(child, node);
        let beats = bracket.iter().any(|(bound, asked)| {
            if best.compare(&sides.key(&self.tree, bound.waits, &bound.rank, asked)) == Ordering::Less {
                return false;
            }
            if !self.tree.is_cluster_queue(bound.node) {
                return self.may_beat(best, child, bound.node, tournament);
            }
            self.contender(bound.node, tournament).is_some_and(|found| {
                let passes = passed_on(&self.tree, bound.node, &found.asked);
                best.compare(&sides.key(&self.tree, found.waits, &found.rank, &passes)) != Ordering::Less
            })
        });
        tournament.brackets.insert(node, bracket);
        beats
    }

    /// Returns the nomination of a ClusterQueue and its additional usage. A previous nomination is
    /// reused if its workload is still the first, has fixed usage, and that usage is available as
    /// planned.
    fn contender(&mut self, node: NodeId, tournament: &mut Tournament) -> Option<Winner> {
        if tournament.done.contains(&node) {
            return None;
        }
        let found = tournament.found.get(&node);
        if let Some(found) = found.filter(|found| found.as_of == tournament.turns) {
            return found.candidate.as_ref().map(|candidate| Winner::of(node, candidate));
        }
        let rank = self.next_to_try(node)?;
        let known = found.and_then(|found| found.candidate.as_ref());
        let certain =
            |known: &&Candidate| known.steady && known.rank == *rank && self.is_planned_free(node, &known.usage);
        if let Some(known) = known.filter(certain) {
            return Some(Winner::of(node, known));
        }
        self.try_again(node, tournament).map(|found| Winner::of(node, found))
    }

    /// Nominates a ClusterQueue again and records the result.
    fn try_again<'t>(&mut self, node: NodeId, tournament: &'t mut Tournament) -> Option<&'t Candidate> {
        let candidate = self.candidate(node);
        let entered = tournament.entered.get(&node).map(|key| &key.rank);
        if candidate.as_ref().map(|found| &found.rank) != entered {
            tournament.note(node, Stale::Tried);
        }
        let found = Found { as_of: tournament.turns, candidate };
        tournament.found.entry(node).insert_entry(found).into_mut().candidate.as_ref()
    }

    fn is_planned_free(&self, node: NodeId, usage: &Charge) -> bool {
        usage.iter().all(|(fr, amount)| *amount <= self.tree.available(node, *fr, View::Planned, 0))
    }

    /// Returns the nomination of the winner; `None` if renewing it shows that it is not the winner.
    fn candidate_of(&mut self, winner: Winner, tournament: &mut Tournament) -> Option<Candidate> {
        let node = winner.queue;
        let found = tournament.found.get(&node)?;
        if found.as_of == tournament.turns {
            return found.candidate.clone();
        }
        let expected = found.candidate.clone()?;
        let candidate = self.try_again(node, tournament)?;
        (candidate.rank == expected.rank && candidate.usage == expected.usage).then(|| candidate.clone())
    }

    fn end_turn_by_share(&mut self, node: NodeId, outcome: Outcome, tournament: &mut Tournament) {
        tournament.turns += 1;
        tournament.found.remove(&node);
        tournament.done.extend(outcome.done.then_some(node));
        // Released capacity may help every ClusterQueue; a larger share only those that wait for it.
        if outcome.room_made {
            tournament.queues.clone().into_iter().for_each(|queue| tournament.note(queue, Stale::First));
        }
        for changed in outcome.changed {
            tournament.least.remove(&changed);
            tournament.note(changed, Stale::All);
        }
        for cohort in self.tree.above(node) {
            if let Some(largest) = self.tree.largest_share(cohort) {
                tournament.sound_alarms(cohort, largest);
            }
        }
    }

    /// Renews outdated entries, from the leaves up.
    fn enter_again(&mut self, tournament: &mut Tournament) {
        let mut above: BTreeSet<(u32, NodeId)> = BTreeSet::new();
        for (node, stale) in std::mem::take(&mut tournament.stale) {
            if self.enter(node, stale, tournament) {
                above.extend(self.tree.parent(node).map(|parent| (self.tree.height(parent), parent)));
            }
        }
        while let Some((_, cohort)) = above.pop_first() {
            let Some(parent) = self.tree.parent(cohort) else { continue };
            let children = tournament.brackets.get(&cohort);
            let side = children.and_then(|children| Side::least(&self.tree, cohort, children));
            tournament.place(parent, cohort, side);
            above.insert((self.tree.height(parent), parent));
        }
    }

    /// Renews the entry of a ClusterQueue. Returns whether the Cohorts above are affected.
    fn enter(&mut self, node: NodeId, stale: Stale, tournament: &mut Tournament) -> bool {
        let first = if tournament.done.contains(&node) { None } else { self.worth_trying(node, stale) };
        // A ClusterQueue without a Cohort has no siblings.
        let Some(parent) = self.tree.parent(node) else { return false };
        self.set_alarms(node, tournament);
        let entered = tournament.entered.get(&node).map(|key| &key.rank);
        if stale != Stale::All && first.as_ref() == entered {
            return false;
        }
        let side = first.map(|rank| {
            let waits = self.workloads.get(rank.workload).is_some_and(|slot| slot.preempts.is_some());
            let least = tournament.least.entry(node).or_insert_with(|| self.least_asked(node));
            Side::of(&self.tree, node, Reverse(waits), rank, least)
        });
        tournament.place(parent, node, side);
        true
    }

    fn worth_trying(&mut self, node: NodeId, stale: Stale) -> Option<Rank> {
        let woken = self.wake_restless(node);
        let strict = self.cluster_queue(node)?.quota.as_ref()?.strict;
        // With StrictFIFO, only the head is tried.
        if strict && stale == Stale::Tried && !woken {
            return None;
        }
        self.next_to_try(node).cloned()
    }

    /// Sets thresholds for parked workloads: they may preempt once a sibling has a share as large
    /// as theirs, even if no quota is released.
    fn set_alarms(&self, node: NodeId, tournament: &mut Tournament) {
        let restless = self.cluster_queue(node).into_iter().flat_map(|state| state.line.restless());
        for watch in restless.filter_map(|(_, watch)| watch) {
            for alarm in self.alarms(node, watch) {
                let due = Due { share: alarm.share, fr: alarm.fr, node };
                tournament.alarms.entry(alarm.cohort).or_default().insert(due);
            }
        }
    }
}

impl Tournament {
    fn of(queues: Vec<NodeId>) -> Self {
        Self { stale: queues.iter().map(|node| (*node, Stale::All)).collect(), queues, ..Self::default() }
    }

    fn note(&mut self, node: NodeId, stale: Stale) {
        let known = self.stale.entry(node).or_insert(stale);
        *known = stale.max(*known);
    }

    fn place(&mut self, cohort: NodeId, child: NodeId, side: Option<Side>) {
        let bracket = self.brackets.entry(cohort).or_default();
        if let Some(before) = self.entered.remove(&child) {
            bracket.remove(&before);
        }
        if let Some(Side { key, passes }) = side {
            bracket.insert(key.clone(), passes);
            self.entered.insert(child, key);
        }
    }

    fn sound_alarms(&mut self, cohort: NodeId, largest: Largest) {
        let Some(alarms) = self.alarms.get_mut(&cohort) else { return };
        // Thresholds are ordered by share.
        let reached = alarms.iter().take_while(|due| !largest.is_less_than(due.share));
        let due: Vec<Due> = reached.filter(|due| largest.may_give(due.fr, due.share)).copied().collect();
        for due in due {
            self.alarms.entry(cohort).or_default().remove(&due);
            self.note(due.node, Stale::First);
        }
    }
}

impl Winner {
    fn of(queue: NodeId, found: &Candidate) -> Self {
        let waits = Reverse(found.preempts);
        Self { queue, waits, rank: found.rank.clone(), asked: asked_for(&found.usage) }
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> Ordering {
        self.share.compare(other.share).then(self.fr.cmp(&other.fr)).then(self.node.cmp(&other.node))
    }
}
