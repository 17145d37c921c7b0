//! Selects the next workload by dominant resource share: the winner among the children of each
//! Cohort, from the leaves up (kueue v0.19.2 `pkg/scheduler/fair_sharing_iterator.go`).
//!
//! Not every ClusterQueue is nominated in every turn. Each is entered with a lower bound that is
//! known without an attempt: it requests at least the smallest amount that any of its workloads
//! requests. This bounds its position among its siblings, so only ClusterQueues that could precede
//! the best nomination are nominated.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet};

use super::TurnResult;
use super::classical_iterator::Nomination;
use super::fair_share_entry::{
    EntryOrder, EntryOrderCache, FairShareEntry, UsageDelta, borrowed_from_parent, usage_delta,
};
use crate::ledger::FlavorResourceQuantities;
use crate::pending_queue::QueueOrder;
use crate::scheduler::{Scheduler, WorkloadId};
use crate::tree::{DominantShare, FlavorResourceId, LargestShare, NodeId, UsageView};

/// The tournament of one tree in one cycle.
#[derive(Default)]
pub(super) struct Tournament {
    cluster_queues: Vec<NodeId>,
    /// ClusterQueues that are not nominated again in this cycle.
    done: BTreeSet<NodeId>,
    /// The last nomination of each ClusterQueue.
    nominations: BTreeMap<NodeId, CachedNomination>,
    least_usage: BTreeMap<NodeId, UsageDelta>,
    /// The children of each Cohort with queued workloads, ordered by the lower bounds of their
    /// positions; with the smallest additional usage of the Cohort.
    brackets: BTreeMap<NodeId, BTreeMap<EntryOrder, UsageDelta>>,
    /// The position with which each node is entered.
    entries: BTreeMap<NodeId, EntryOrder>,
    /// ClusterQueues whose entry may be outdated.
    stale: BTreeMap<NodeId, Staleness>,
    /// By Cohort, the shares of its children at which a parked workload is retried.
    share_thresholds: BTreeMap<NodeId, BTreeSet<PendingThreshold>>,
    /// Number of finished turns.
    finished_turns: u32,
}

/// The part of the entry of a ClusterQueue that may be outdated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Staleness {
    /// Its first workload could not be admitted.
    HeadTried,
    /// Another workload may be admissible.
    Head,
    /// Its usage and its queued workloads may have changed as well.
    Everything,
}

/// A nomination and the turn that it was made in.
struct CachedNomination {
    /// Number of turns that were finished at the time.
    finished_turns: u32,
    nomination: Option<Nomination>,
}

/// A share at which a node may be preempted, and the ClusterQueue that waits for it.
#[derive(Debug, Clone, Copy)]
struct PendingThreshold {
    share: DominantShare,
    fr: FlavorResourceId,
    node: NodeId,
}

/// The winner among the ClusterQueues below a node.
struct Winner {
    cluster_queue: NodeId,
    has_reservation: Reverse<bool>,
    order: QueueOrder,
    /// Additional usage of the node.
    usage_delta: UsageDelta,
}

impl Scheduler {
    /// Runs turns with fair sharing.
    pub(super) fn schedule_fair_sharing(&mut self, root: NodeId, queues: Vec<NodeId>, admitted: &mut Vec<WorkloadId>) {
        let mut tournament = Tournament::new(queues);
        loop {
            self.refresh_entries(&mut tournament);
            let Some(winner) = self.tournament_winner(root, &mut tournament) else { break };
            let node = winner.cluster_queue;
            let Some(candidate) = self.winning_nomination(winner, &mut tournament) else { continue };
            if self.admission_blocked() {
                break;
            }
            let outcome = self.schedule_next(root, node, candidate, admitted);
            self.finish_fair_sharing_turn(node, outcome, &mut tournament);
        }
    }

    /// Returns the winner below a node; `None` if nothing can be nominated there.
    fn tournament_winner(&mut self, node: NodeId, tournament: &mut Tournament) -> Option<Winner> {
        if self.tree.is_cluster_queue(node) {
            return self.contender(node, tournament);
        }
        // The bracket is not modified while the children are evaluated, so it can be taken out.
        let bracket = tournament.brackets.remove(&node)?;
        let mut best: Option<(EntryOrder, Winner)> = None;
        for bound in bracket.keys() {
            if let Some((best, _)) = &best {
                if best.compare(bound) == Ordering::Less {
                    break;
                }
                if !self.may_beat(best, bound.node, bound.node, tournament) {
                    continue;
                }
            }
            let Some(mut winner) = self.tournament_winner(bound.node, tournament) else { continue };
            let side = FairShareEntry::new(
                &self.tree,
                bound.node,
                winner.has_reservation,
                winner.order.clone(),
                &winner.usage_delta,
            );
            if best.as_ref().is_none_or(|(best, _)| side.order < *best) {
                winner.usage_delta = side.borrowed_from_parent;
                best = Some((side.order, winner));
            }
        }
        tournament.brackets.insert(node, bracket);
        best.map(|(_, winner)| winner)
    }

    /// Reports whether a child would precede its best sibling with any of the workloads below
    /// `node`. This is much cheaper than finding the winner: parked workloads are not tried again.
    fn may_beat(&mut self, best: &EntryOrder, child: NodeId, node: NodeId, tournament: &mut Tournament) -> bool {
        let Some(bracket) = tournament.brackets.remove(&node) else { return true };
        let mut sides = EntryOrderCache::new(child, node);
        let beats = bracket.iter().any(|(bound, asked)| {
            if best.compare(&sides.order(&self.tree, bound.has_reservation, &bound.workload_order, asked))
                == Ordering::Less
            {
                return false;
            }
            if !self.tree.is_cluster_queue(bound.node) {
                return self.may_beat(best, child, bound.node, tournament);
            }
            self.contender(bound.node, tournament).is_some_and(|found| {
                let passes = borrowed_from_parent(&self.tree, bound.node, &found.usage_delta);
                best.compare(&sides.order(&self.tree, found.has_reservation, &found.order, &passes)) != Ordering::Less
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
        let found = tournament.nominations.get(&node);
        if let Some(found) = found.filter(|found| found.finished_turns == tournament.finished_turns) {
            return found.nomination.as_ref().map(|candidate| Winner::from_nomination(node, candidate));
        }
        let rank = self.next_to_try(node)?;
        let known = found.and_then(|found| found.nomination.as_ref());
        let certain = |known: &&Nomination| {
            known.has_fixed_usage && known.order == *rank && self.fits_planned(node, &known.usage)
        };
        if let Some(known) = known.filter(certain) {
            return Some(Winner::from_nomination(node, known));
        }
        self.update_nomination(node, tournament).map(|found| Winner::from_nomination(node, found))
    }

    /// Nominates a ClusterQueue again and records the result.
    fn update_nomination<'t>(&mut self, node: NodeId, tournament: &'t mut Tournament) -> Option<&'t Nomination> {
        let candidate = self.nominate(node);
        let entered = tournament.entries.get(&node).map(|key| &key.workload_order);
        if candidate.as_ref().map(|found| &found.order) != entered {
            tournament.mark_stale(node, Staleness::HeadTried);
        }
        let found = CachedNomination { finished_turns: tournament.finished_turns, nomination: candidate };
        tournament.nominations.entry(node).insert_entry(found).into_mut().nomination.as_ref()
    }

    fn fits_planned(&self, node: NodeId, usage: &FlavorResourceQuantities) -> bool {
        usage.iter().all(|(fr, amount)| *amount <= self.tree.available(node, *fr, UsageView::Planned, 0))
    }

    /// Returns the nomination of the winner; `None` if renewing it shows that it is not the winner.
    fn winning_nomination(&mut self, winner: Winner, tournament: &mut Tournament) -> Option<Nomination> {
        let node = winner.cluster_queue;
        let found = tournament.nominations.get(&node)?;
        if found.finished_turns == tournament.finished_turns {
            return found.nomination.clone();
        }
        let expected = found.nomination.clone()?;
        let candidate = self.update_nomination(node, tournament)?;
        (candidate.order == expected.order && candidate.usage == expected.usage).then(|| candidate.clone())
    }

    fn finish_fair_sharing_turn(&mut self, node: NodeId, outcome: TurnResult, tournament: &mut Tournament) {
        tournament.finished_turns += 1;
        tournament.nominations.remove(&node);
        tournament.done.extend(outcome.cluster_queue_done.then_some(node));
        // Released capacity may help every ClusterQueue; a larger share only those that wait for it.
        if outcome.capacity_released {
            tournament
                .cluster_queues
                .clone()
                .into_iter()
                .for_each(|queue| tournament.mark_stale(queue, Staleness::Head));
        }
        for changed in outcome.changed_cluster_queues {
            tournament.least_usage.remove(&changed);
            tournament.mark_stale(changed, Staleness::Everything);
        }
        for cohort in self.tree.ancestors(node) {
            if let Some(largest) = self.tree.largest_share(cohort) {
                tournament.fire_share_thresholds(cohort, largest);
            }
        }
    }

    /// Renews outdated entries, from the leaves up.
    fn refresh_entries(&mut self, tournament: &mut Tournament) {
        let mut above: BTreeSet<(u32, NodeId)> = BTreeSet::new();
        for (node, stale) in std::mem::take(&mut tournament.stale) {
            if self.refresh_entry(node, stale, tournament) {
                above.extend(self.tree.parent(node).map(|parent| (self.tree.height(parent), parent)));
            }
        }
        while let Some((_, cohort)) = above.pop_first() {
            let Some(parent) = self.tree.parent(cohort) else { continue };
            let children = tournament.brackets.get(&cohort);
            let side = children.and_then(|children| FairShareEntry::lower_bound(&self.tree, cohort, children));
            tournament.set_entry(parent, cohort, side);
            above.insert((self.tree.height(parent), parent));
        }
    }

    /// Renews the entry of a ClusterQueue. Returns whether the Cohorts above are affected.
    fn refresh_entry(&mut self, node: NodeId, stale: Staleness, tournament: &mut Tournament) -> bool {
        let first = if tournament.done.contains(&node) { None } else { self.next_head(node, stale) };
        // A ClusterQueue without a Cohort has no siblings.
        let Some(parent) = self.tree.parent(node) else { return false };
        self.set_share_thresholds(node, tournament);
        let entered = tournament.entries.get(&node).map(|key| &key.workload_order);
        if stale != Staleness::Everything && first.as_ref() == entered {
            return false;
        }
        let side = first.map(|rank| {
            let waits = self.workloads.get(rank.workload).is_some_and(|slot| slot.reserved_assignment.is_some());
            let least = tournament.least_usage.entry(node).or_insert_with(|| self.least_usage_delta(node));
            FairShareEntry::new(&self.tree, node, Reverse(waits), rank, least)
        });
        tournament.set_entry(parent, node, side);
        true
    }

    fn next_head(&mut self, node: NodeId, stale: Staleness) -> Option<QueueOrder> {
        let woken = self.reactivate(node);
        let strict = self.cluster_queue(node)?.config.as_ref()?.strict_fifo;
        // With StrictFIFO, only the head is tried.
        if strict && stale == Staleness::HeadTried && !woken {
            return None;
        }
        self.next_to_try(node).cloned()
    }

    /// Sets thresholds for parked workloads: they may preempt once a sibling has a share as large
    /// as theirs, even if no quota is released.
    fn set_share_thresholds(&self, node: NodeId, tournament: &mut Tournament) {
        let rechecked =
            self.cluster_queue(node).into_iter().flat_map(|state| state.pending_queue.parked_until_changed());
        for watch in rechecked.filter_map(|(_, watch)| watch) {
            for alarm in self.share_thresholds(node, watch) {
                let due = PendingThreshold { share: alarm.share, fr: alarm.fr, node };
                tournament.share_thresholds.entry(alarm.cohort).or_default().insert(due);
            }
        }
    }
}

impl Tournament {
    fn new(queues: Vec<NodeId>) -> Self {
        Self {
            stale: queues.iter().map(|node| (*node, Staleness::Everything)).collect(),
            cluster_queues: queues,
            ..Self::default()
        }
    }

    fn mark_stale(&mut self, node: NodeId, stale: Staleness) {
        let known = self.stale.entry(node).or_insert(stale);
        *known = stale.max(*known);
    }

    fn set_entry(&mut self, cohort: NodeId, child: NodeId, side: Option<FairShareEntry>) {
        let bracket = self.brackets.entry(cohort).or_default();
        if let Some(before) = self.entries.remove(&child) {
            bracket.remove(&before);
        }
        if let Some(FairShareEntry { order: key, borrowed_from_parent: passes }) = side {
            bracket.insert(key.clone(), passes);
            self.entries.insert(child, key);
        }
    }

    fn fire_share_thresholds(&mut self, cohort: NodeId, largest: LargestShare) {
        let Some(alarms) = self.share_thresholds.get_mut(&cohort) else { return };
        // Thresholds are ordered by share.
        let reached = alarms.iter().take_while(|due| !largest.is_less_than(due.share));
        let due: Vec<PendingThreshold> =
            reached.filter(|due| largest.may_be_preempted(due.fr, due.share)).copied().collect();
        for due in due {
            self.share_thresholds.entry(cohort).or_default().remove(&due);
            self.mark_stale(due.node, Staleness::Head);
        }
    }
}

impl Winner {
    fn from_nomination(queue: NodeId, found: &Nomination) -> Self {
        let waits = Reverse(found.has_reservation);
        Self {
            cluster_queue: queue,
            has_reservation: waits,
            order: found.order.clone(),
            usage_delta: usage_delta(&found.usage),
        }
    }
}

impl PartialEq for PendingThreshold {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for PendingThreshold {}

impl PartialOrd for PendingThreshold {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for PendingThreshold {
    fn cmp(&self, other: &Self) -> Ordering {
        self.share.compare(other.share).then(self.fr.cmp(&other.fr)).then(self.node.cmp(&other.node))
    }
}
