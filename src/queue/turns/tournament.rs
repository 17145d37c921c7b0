//! Whose turn it is by share: the winner among each Cohort's children, from the leaves up (kueue v0.19.2
//! `pkg/scheduler/fair_sharing_iterator.go`).
//!
//! Whom a turn would help is not asked of every ClusterQueue at every turn. Each is entered with what is certain without
//! trying anyone: it asks for no less than the least that anyone of it asks for. That is a bound of its place among its
//! siblings, so only those are tried that could come before the best that was found.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet};

use super::Outcome;
use super::side::{Asked, Key, Side, Sides, asked_for, passed_on};
use super::table::Candidate;
use crate::engine::{Engine, WorkloadId};
use crate::ledger::Charge;
use crate::line::Rank;
use crate::tree::{Fr, Largest, NodeId, Share, View};

/// The turns of one tree in one cycle.
#[derive(Default)]
pub(super) struct Tournament {
    queues: Vec<NodeId>,
    /// ClusterQueues that get nothing more in this cycle.
    done: BTreeSet<NodeId>,
    /// What ClusterQueues were last found to do with a turn.
    found: BTreeMap<NodeId, Found>,
    least: BTreeMap<NodeId, Asked>,
    /// The children of each Cohort below which there is someone to try, by the bounds of their places; and the least that
    /// the Cohort would use more.
    brackets: BTreeMap<NodeId, BTreeMap<Key, Asked>>,
    /// Where each is entered.
    entered: BTreeMap<NodeId, Key>,
    /// ClusterQueues whose entry may be wrong.
    stale: BTreeMap<NodeId, Stale>,
    /// By Cohort, from which share of one of its children on a ClusterQueue is to be looked at again.
    alarms: BTreeMap<NodeId, BTreeSet<Due>>,
    /// How many turns are over.
    turns: u32,
}

/// What of the entry of a ClusterQueue may be wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stale {
    /// Its first was tried in vain.
    Tried,
    /// Someone else may be worth trying.
    First,
    /// So may what it uses and who waits.
    All,
}

/// What a ClusterQueue was found to do with a turn.
struct Found {
    /// How many turns were over.
    as_of: u32,
    candidate: Option<Candidate>,
}

/// A share that someone may have to have to give something, and the ClusterQueue that waits for that.
#[derive(Debug, Clone, Copy)]
struct Due {
    share: Share,
    fr: Fr,
    node: NodeId,
}

/// The one whose turn it would be among those below a node.
struct Winner {
    queue: NodeId,
    waits: Reverse<bool>,
    rank: Rank,
    /// What the node would use more.
    asked: Asked,
}

impl Engine {
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

    /// The one whose turn it is below a node.
    fn winner(&mut self, node: NodeId, tournament: &mut Tournament) -> Option<Winner> {
        if self.tree.is_cluster_queue(node) {
            return self.contender(node, tournament);
        }
        // It stays as it is while the children are asked.
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

    /// Whether a child comes before its best sibling if the one below `node` that would make it do so is the winner there. It
    /// is much cheaper to find out that nobody would than who is the winner: who gets nothing is not asked again so soon.
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

    /// The first workload of a ClusterQueue that can get something, and what it asks for. Nobody is tried if it is the one
    /// that was found before: what it asks for is free, and it would get the same by any means.
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

    /// What the winner gets; `None` if it was taken for the winner by mistake.
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

    /// Enters those whose entries may be wrong anew, from the leaves up.
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

    /// Returns whether anything is new to the Cohorts above.
    fn enter(&mut self, node: NodeId, stale: Stale, tournament: &mut Tournament) -> bool {
        let first = if tournament.done.contains(&node) { None } else { self.worth_trying(node, stale) };
        // Who is alone has no siblings to come before.
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
        // Nobody else of a strict one is tried.
        if strict && stale == Stale::Tried && !woken {
            return None;
        }
        self.next_to_try(node).cloned()
    }

    /// Those of a ClusterQueue that were tried in vain may get something once someone beside them has as large a share as
    /// they would have, though no room is made.
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
        // In the order of shares.
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
