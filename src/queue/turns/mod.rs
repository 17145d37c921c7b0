//! Who of a tree gets what, one turn after the other.
//!
//! Each turn goes to the workload that comes first of those that can get something now: by what its ClusterQueue is
//! entitled to, or by share, then by priority and age. A turn ends in an admission, in evictions that make room, or in quota
//! that is kept for one whose room is being made. It goes on until nobody can get anything.

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

/// What came of a turn, beside what its candidate got.
struct Outcome {
    /// Less may be used of something than before.
    room_made: bool,
    /// The ClusterQueue gets nothing more in this cycle.
    done: bool,
    /// The ClusterQueues whose line or usage may be another.
    changed: BTreeSet<NodeId>,
}

impl Engine {
    /// Lets a tree take turns until nobody in it can get anything.
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

    fn take_turns_by_entitlement(&mut self, root: NodeId, queues: Vec<NodeId>, admitted: &mut Vec<WorkloadId>) {
        let mut table = Table::of(queues);
        for node in table.queues.clone() {
            self.look_again(node, &mut table);
        }
        while let Some((node, candidate)) = table.first() {
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

    fn waiting_queues(&self, root: NodeId) -> Vec<NodeId> {
        let waits = |node: &NodeId| self.cluster_queue(*node).is_some_and(|state| !state.line.is_empty());
        self.tree.cluster_queues_below(root).into_iter().filter(waits).collect()
    }

    /// Gives a candidate what it gets.
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

    /// What one slice of a job gets or loses may change the place of another, and what that holds.
    fn note_relatives(&self, id: WorkloadId, outcome: &mut Outcome) {
        let family = self.family(id);
        if family.len() > 1 {
            let queues = family.iter().filter_map(|id| self.workloads.get(*id)?.booked.cluster_queue);
            outcome.changed.extend(queues);
            outcome.room_made = true;
        }
    }

    /// Finds out anew what those would do with a turn for whom something may have changed.
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

    /// Whether what others got can have changed for the better what a ClusterQueue would do with a turn.
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

    /// A slice that was admitted in this cycle and is replaced already never gets its admission: its successor is not
    /// charged for it. Returns whether there was one.
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

    /// The ClusterQueues that may come earlier in the order of turns after what was just given out.
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

    /// Finds out anew what a ClusterQueue would do with a turn.
    fn look_again(&mut self, node: NodeId, table: &mut Table) {
        self.wake_restless(node);
        let candidate = if table.done.contains(&node) { None } else { self.candidate(node) };
        let restless = self.cluster_queue(node).is_some_and(|state| state.line.is_restless());
        table.set(node, candidate, restless);
    }

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

    pub(super) fn cluster_queue(&self, node: NodeId) -> Option<&ClusterQueueState> {
        self.cluster_queues.get(node)
    }

    pub(super) fn cluster_queue_mut(&mut self, node: NodeId) -> Option<&mut ClusterQueueState> {
        self.cluster_queues.get_mut(node)
    }
}
