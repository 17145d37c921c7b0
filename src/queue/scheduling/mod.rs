//! Nominates and admits the workloads of a cohort tree, one turn at a time.
//!
//! Each turn goes to the first workload that can be nominated: by entitlement of its ClusterQueue
//! or by dominant resource share, then by priority and age. A turn ends with an admission, with
//! preemptions, or with a reservation for a workload that waits for evictions. Turns continue until
//! nothing can be nominated.

mod classical_iterator;
mod fair_share_entry;
mod inadmissible;
mod nominate;
mod tournament;

use std::collections::BTreeSet;

use classical_iterator::{EntryIterator, Nomination, Outcome, Recheck, Validity};
pub(super) use inadmissible::RetryCondition;

use super::Preemption;
use super::partial_preemption::PreemptionScope;
use super::preemption::Target;
use super::scheduler::{CachedClusterQueue, CapacityReservation, Scheduler, WorkloadId};
use super::tree::{FlavorResourceId, NodeId, UsageView};

/// Effects of a turn on the other ClusterQueues.
struct TurnResult {
    /// Usage of some flavor resource may have decreased.
    capacity_released: bool,
    /// The ClusterQueue is not nominated again in this cycle.
    cluster_queue_done: bool,
    /// The ClusterQueues whose pending queue or usage may have changed.
    changed_cluster_queues: BTreeSet<NodeId>,
}

impl Scheduler {
    /// Runs turns in a tree until nothing can be nominated.
    pub(super) fn schedule_tree(&mut self, root: NodeId, admitted: &mut Vec<WorkloadId>) {
        self.release_reservations(root);
        let queues = self.pending_cluster_queues(root);
        if self.settings.fair_sharing.is_some() {
            self.schedule_fair_sharing(root, queues, admitted);
        } else {
            self.schedule_classical(root, queues, admitted);
        }
        self.requeue_reserved(root);
        self.prioritize_preemptors(root);
    }

    /// Runs turns without fair sharing: nominal quota before borrowed quota.
    fn schedule_classical(&mut self, root: NodeId, queues: Vec<NodeId>, admitted: &mut Vec<WorkloadId>) {
        let mut table = EntryIterator::new(queues);
        for node in table.cluster_queues.clone() {
            self.renominate(node, &mut table);
        }
        while let Some((node, candidate)) = table.peek() {
            // An earlier nomination only bounds the position; it is renewed before it is applied.
            if candidate.finished_turns != table.finished_turns {
                self.renominate(node, &mut table);
                continue;
            }
            let candidate = candidate.clone();
            if self.admission_blocked() {
                break;
            }
            let outcome = self.schedule_next(root, node, candidate, admitted);
            self.finish_turn(node, &outcome, &mut table);
        }
    }

    /// Returns the ClusterQueues of a tree that have queued workloads.
    fn pending_cluster_queues(&self, root: NodeId) -> Vec<NodeId> {
        let waits = |node: &NodeId| self.cluster_queue(*node).is_some_and(|state| !state.pending_queue.is_empty());
        self.tree.cluster_queues_below(root).into_iter().filter(waits).collect()
    }

    /// Applies a nomination.
    fn schedule_next(
        &mut self,
        root: NodeId,
        node: NodeId,
        candidate: Nomination,
        admitted: &mut Vec<WorkloadId>,
    ) -> TurnResult {
        let workload = candidate.order.workload;
        let strict =
            self.cluster_queue(node).and_then(|state| state.config.as_ref()).is_some_and(|quota| quota.strict_fifo);
        let mut outcome = TurnResult {
            capacity_released: false,
            cluster_queue_done: false,
            changed_cluster_queues: BTreeSet::from([node]),
        };
        self.mark_related_slices(workload, &mut outcome);
        let mut reservation = CapacityReservation {
            node,
            workload,
            queue_position: None,
            preemption_issued: false,
            assignment: candidate.assignment,
            usage: candidate.usage,
        };
        match candidate.outcome {
            Outcome::Admit(admission) => {
                self.assume(workload, admission);
                outcome.capacity_released |= self.drop_superseded_admissions(workload, admitted);
                admitted.push(workload);
            }
            Outcome::Preempt(targets) => {
                reservation.preemption_issued = !targets.is_empty();
                reservation.queue_position =
                    self.workloads.get(workload).and_then(|slot| slot.accounting.queue_position.clone());
                outcome.capacity_released |= reservation.preemption_issued;
                outcome.cluster_queue_done = strict;
                for target in targets {
                    outcome.changed_cluster_queues.insert(target.cluster_queue);
                    self.mark_related_slices(target.order.workload, &mut outcome);
                    self.issue_preemption(&target, workload, node);
                }
                self.reserve(root, reservation);
            }
            Outcome::Reserve => {
                outcome.cluster_queue_done = true;
                self.reserve(root, reservation);
            }
        }
        outcome
    }

    /// Marks the ClusterQueues of related slices: their queue positions and usage depend on this
    /// one.
    fn mark_related_slices(&self, id: WorkloadId, outcome: &mut TurnResult) {
        let family = self.related_slices(id);
        if family.len() > 1 {
            let queues = family.iter().filter_map(|id| self.workloads.get(*id)?.accounting.cluster_queue);
            outcome.changed_cluster_queues.extend(queues);
            outcome.capacity_released = true;
        }
    }

    /// Renews the nominations that the turn may have changed.
    fn finish_turn(&mut self, node: NodeId, outcome: &TurnResult, table: &mut EntryIterator) {
        table.done.extend(outcome.cluster_queue_done.then_some(node));
        table.finish_turn(node);
        let again =
            if outcome.capacity_released { table.cluster_queues.clone() } else { self.outdated_nominations(table) };
        for other in again.into_iter().filter(|other| *other != node) {
            if self.may_improve(other, table) {
                self.renominate(other, table);
            }
        }
        self.renominate(node, table);
    }

    /// Reports whether earlier turns may have improved what a ClusterQueue can nominate.
    fn may_improve(&mut self, node: NodeId, table: &EntryIterator) -> bool {
        if self.reactivate(node) {
            return true;
        }
        match table.nominations.get(&node) {
            Some(Nomination { order: rank, validity: Validity::UntilHeadChanges, .. }) => {
                self.next_to_try(node) != Some(rank)
            }
            Some(_) => true,
            None => self.next_to_try(node).is_some(),
        }
    }

    /// Drops the admissions of slices that were admitted in this cycle and are already replaced:
    /// they are not written, so the replacement must not count on their usage. Returns whether
    /// there were any.
    fn drop_superseded_admissions(&mut self, successor: WorkloadId, admitted: &[WorkloadId]) -> bool {
        let Some(slot) = self.workloads.get(successor).filter(|slot| slot.info.replaces.is_some()) else {
            return false;
        };
        let replaced = self.replaced_slices(slot).into_iter().filter_map(|before| self.workloads.id(&before.info.key));
        let unasked: Vec<WorkloadId> = replaced.filter(|id| admitted.contains(id)).collect();
        for id in &unasked {
            if let Some(slot) = self.workloads.get_mut(*id) {
                slot.assumed_admission = None;
            }
        }
        if !unasked.is_empty() {
            self.update_slices(successor);
        }
        !unasked.is_empty()
    }

    /// Returns the ClusterQueues that may move ahead in the order of turns after this turn.
    fn outdated_nominations(&self, table: &EntryIterator) -> Vec<NodeId> {
        let taken = |node: &&NodeId| {
            table.nominations.get(*node).is_some_and(|candidate| {
                let views: &[UsageView] = if matches!(candidate.outcome, Outcome::Admit(_)) {
                    &[UsageView::Planned, UsageView::Actual]
                } else {
                    &[UsageView::Planned]
                };
                let free = |fr: FlavorResourceId| {
                    views.iter().map(move |view| self.tree.available(**node, fr, *view, 0)).min()
                };
                candidate.usage.iter().any(|(fr, amount)| free(*fr).is_some_and(|free| free < *amount))
            })
        };
        table.recheck_every_turn.iter().chain(table.recheck_when_taken.iter().filter(taken)).copied().collect()
    }

    /// Nominates a ClusterQueue again.
    fn renominate(&mut self, node: NodeId, table: &mut EntryIterator) {
        self.reactivate(node);
        let candidate = if table.done.contains(&node) { None } else { self.nominate(node) };
        let parked = self.cluster_queue(node).is_some_and(|state| state.pending_queue.has_parked_until_changed());
        table.set_nomination(node, candidate, if parked { Recheck::EveryTurn } else { Recheck::AsItHolds });
    }

    /// Evicts a target, or the preempted part of it.
    fn issue_preemption(&mut self, target: &Target, by: WorkloadId, node: NodeId) {
        let Some(preemptor) = self.workloads.get(by) else { return };
        let preemption = Preemption {
            preemptor: preemptor.info.key.clone(),
            preemptor_uid: preemptor.info.uid.to_string(),
            preemptor_job_uid: preemptor.info.job_uid.clone(),
            reason: target.reason,
            preemptor_path: self.tree.path(node),
            preemptee_path: self.tree.path(target.cluster_queue),
        };
        self.decision_count += 1;
        let id = target.order.workload;
        if let Some(slot) = self.workloads.get_mut(id) {
            match target.order.scope {
                PreemptionScope::Part(part) => slot.pending_partial_preemption = Some((part, Box::new(preemption))),
                PreemptionScope::Whole => slot.pending_preemption = Some(Box::new(preemption)),
            }
            self.update_slices(id);
        }
    }

    /// Returns a ClusterQueue; `None` if it is not cached.
    pub(super) fn cluster_queue(&self, node: NodeId) -> Option<&CachedClusterQueue> {
        self.cluster_queues.get(node)
    }

    /// Returns a mutable ClusterQueue; `None` if it is not cached.
    pub(super) fn cluster_queue_mut(&mut self, node: NodeId) -> Option<&mut CachedClusterQueue> {
        self.cluster_queues.get_mut(node)
    }
}
