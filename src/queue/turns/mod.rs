//! Nominates and admits the workloads of a cohort tree, one turn at a time.
//!
//! Each turn goes to the first workload that can be nominated: by entitlement of its ClusterQueue
//! or by dominant resource share, then by priority and age. A turn ends with an admission, with
//! preemptions, or with a reservation for a workload that waits for evictions. Turns continue until
//! nothing can be nominated.

mod aside;
mod side;
mod table;
mod tournament;
mod tries;

use std::collections::BTreeSet;

pub(super) use aside::Watch;
use table::{Candidate, Gets, Holds, Table};

use super::Preemption;
use super::engine::{ClusterQueueState, Engine, Promise, WorkloadId};
use super::parts::Loss;
use super::tree::{Fr, NodeId, View};
use super::victims::Victim;

/// Effects of a turn on the other ClusterQueues.
struct Outcome {
    /// Usage of some flavor resource may have decreased.
    room_made: bool,
    /// The ClusterQueue is not nominated again in this cycle.
    done: bool,
    /// The ClusterQueues whose pending queue or usage may have changed.
    changed: BTreeSet<NodeId>,
}

impl Engine {
    /// Runs turns in a tree until nothing can be nominated.
    pub(super) fn take_turns(&mut self, root: NodeId, admitted: &mut Vec<WorkloadId>) {
        self.undo_promises(root);
        let queues = self.waiting_queues(root);
        if self.settings.fair_sharing.is_some() {
            self.take_turns_by_share(root, queues, admitted);
        } else {
            self.take_turns_by_entitlement(root, queues, admitted);
        }
        self.line_up_again(root);
        self.put_preemptors_first(root);
    }

    /// Runs turns without fair sharing: nominal quota before borrowed quota.
    fn take_turns_by_entitlement(&mut self, root: NodeId, queues: Vec<NodeId>, admitted: &mut Vec<WorkloadId>) {
        let mut table = Table::of(queues);
        for node in table.queues.clone() {
            self.look_again(node, &mut table);
        }
        while let Some((node, candidate)) = table.first() {
            // An earlier nomination only bounds the position; it is renewed before it is applied.
            if candidate.as_of != table.turns {
                self.look_again(node, &mut table);
                continue;
            }
            let candidate = candidate.clone();
            if self.admission_blocked() {
                break;
            }
            let outcome = self.take_turn(root, node, candidate, admitted);
            self.end_turn(node, &outcome, &mut table);
        }
    }

    /// Returns the ClusterQueues of a tree that have queued workloads.
    fn waiting_queues(&self, root: NodeId) -> Vec<NodeId> {
        let waits = |node: &NodeId| self.cluster_queue(*node).is_some_and(|state| !state.line.is_empty());
        self.tree.cluster_queues_below(root).into_iter().filter(waits).collect()
    }

    /// Applies a nomination.
    fn take_turn(
        &mut self,
        root: NodeId,
        node: NodeId,
        candidate: Candidate,
        admitted: &mut Vec<WorkloadId>,
    ) -> Outcome {
        let workload = candidate.rank.workload;
        let strict = self.cluster_queue(node).and_then(|state| state.quota.as_ref()).is_some_and(|quota| quota.strict);
        let mut outcome = Outcome { room_made: false, done: false, changed: BTreeSet::from([node]) };
        self.note_relatives(workload, &mut outcome);
        let mut promise =
            Promise { node, workload, place: None, room_made: false, room: candidate.room, usage: candidate.usage };
        match candidate.gets {
            Gets::Quota(admission) => {
                self.assume(workload, admission);
                outcome.room_made |= self.drop_unasked(workload, admitted);
                admitted.push(workload);
            }
            Gets::Room(victims) => {
                promise.room_made = !victims.is_empty();
                promise.place = self.workloads.get(workload).and_then(|slot| slot.booked.place.clone());
                outcome.room_made |= promise.room_made;
                outcome.done = strict;
                for victim in victims {
                    outcome.changed.insert(victim.cluster_queue);
                    self.note_relatives(victim.rank.workload, &mut outcome);
                    self.preempt(&victim, workload, node);
                }
                self.promise(root, promise);
            }
            Gets::KeptBack => {
                outcome.done = true;
                self.promise(root, promise);
            }
        }
        outcome
    }

    /// Marks the ClusterQueues of related slices: their queue positions and usage depend on this
    /// one.
    fn note_relatives(&self, id: WorkloadId, outcome: &mut Outcome) {
        let family = self.family(id);
        if family.len() > 1 {
            let queues = family.iter().filter_map(|id| self.workloads.get(*id)?.booked.cluster_queue);
            outcome.changed.extend(queues);
            outcome.room_made = true;
        }
    }

    /// Renews the nominations that the turn may have changed.
    fn end_turn(&mut self, node: NodeId, outcome: &Outcome, table: &mut Table) {
        table.done.extend(outcome.done.then_some(node));
        table.end_turn(node);
        let again = if outcome.room_made { table.queues.clone() } else { self.outdated(table) };
        for other in again.into_iter().filter(|other| *other != node) {
            if self.may_do_better(other, table) {
                self.look_again(other, table);
            }
        }
        self.look_again(node, table);
    }

    /// Reports whether earlier turns may have improved what a ClusterQueue can nominate.
    fn may_do_better(&mut self, node: NodeId, table: &Table) -> bool {
        if self.wake_restless(node) {
            return true;
        }
        match table.candidates.get(&node) {
            Some(Candidate { rank, holds: Holds::Lastingly, .. }) => self.next_to_try(node) != Some(rank),
            Some(_) => true,
            None => self.next_to_try(node).is_some(),
        }
    }

    /// Drops the admissions of slices that were admitted in this cycle and are already replaced:
    /// they are not written, so the replacement must not count on their usage. Returns whether
    /// there were any.
    fn drop_unasked(&mut self, successor: WorkloadId, admitted: &[WorkloadId]) -> bool {
        let Some(slot) = self.workloads.get(successor).filter(|slot| slot.entry.replaces.is_some()) else {
            return false;
        };
        let replaced = self.replaced(slot).into_iter().filter_map(|before| self.workloads.id(&before.entry.key));
        let unasked: Vec<WorkloadId> = replaced.filter(|id| admitted.contains(id)).collect();
        for id in &unasked {
            if let Some(slot) = self.workloads.get_mut(*id) {
                slot.assumed = None;
            }
        }
        if !unasked.is_empty() {
            self.settle_family(successor);
        }
        !unasked.is_empty()
    }

    /// Returns the ClusterQueues that may move ahead in the order of turns after this turn.
    fn outdated(&self, table: &Table) -> Vec<NodeId> {
        let taken = |node: &&NodeId| {
            table.candidates.get(*node).is_some_and(|candidate| {
                let views: &[View] = if matches!(candidate.gets, Gets::Quota(_)) {
                    &[View::Planned, View::Actual]
                } else {
                    &[View::Planned]
                };
                let free = |fr: Fr| views.iter().map(move |view| self.tree.available(**node, fr, *view, 0)).min();
                candidate.usage.iter().any(|(fr, amount)| free(*fr).is_some_and(|free| free < *amount))
            })
        };
        table.watchful.iter().chain(table.unsure.iter().filter(taken)).copied().collect()
    }

    /// Nominates a ClusterQueue again.
    fn look_again(&mut self, node: NodeId, table: &mut Table) {
        self.wake_restless(node);
        let candidate = if table.done.contains(&node) { None } else { self.candidate(node) };
        let restless = self.cluster_queue(node).is_some_and(|state| state.line.is_restless());
        table.set(node, candidate, restless);
    }

    /// Evicts a target, or the preempted part of it.
    fn preempt(&mut self, victim: &Victim, by: WorkloadId, node: NodeId) {
        let Some(preemptor) = self.workloads.get(by) else { return };
        let preemption = Preemption {
            by: preemptor.entry.key.clone(),
            by_uid: preemptor.entry.uid.to_string(),
            by_job_uid: preemptor.entry.job_uid.clone(),
            right: victim.right,
            preemptor_path: self.tree.path(node),
            victim_path: self.tree.path(victim.cluster_queue),
        };
        self.decisions += 1;
        let id = victim.rank.workload;
        if let Some(slot) = self.workloads.get_mut(id) {
            match victim.rank.loss {
                Loss::Part(part) => slot.gives_back = Some((part, Box::new(preemption))),
                Loss::Whole => slot.preempted = Some(Box::new(preemption)),
            }
            self.settle_family(id);
        }
    }

    /// Returns a ClusterQueue; `None` if it is not cached.
    pub(super) fn cluster_queue(&self, node: NodeId) -> Option<&ClusterQueueState> {
        self.cluster_queues.get(node)
    }

    /// Returns a mutable ClusterQueue; `None` if it is not cached.
    pub(super) fn cluster_queue_mut(&mut self, node: NodeId) -> Option<&mut ClusterQueueState> {
        self.cluster_queues.get_mut(node)
    }
}
