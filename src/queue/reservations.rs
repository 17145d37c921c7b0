//! Capacity reserved for workloads that wait for evictions.

use std::collections::BTreeMap;

#[cfg(test)]
use super::ObjectKey;
use super::cached_workload::{QueueState, ReservedAssignment};
use super::scheduler::{CapacityReservation, Scheduler, WorkloadId};
use super::tree::{NodeId, UsageView};

impl Scheduler {
    /// Reserves capacity for a nominated workload, and removes it from its queue until the end of
    /// the cycle.
    pub(super) fn reserve(&mut self, root: NodeId, reservation: CapacityReservation) {
        self.tree.advance_state();
        for (fr, amount) in &reservation.usage {
            self.tree.add_usage(reservation.node, *fr, *amount, UsageView::Planned);
        }
        if let (Some((shape, rank)), Some(state)) =
            (&reservation.queue_position, self.cluster_queue_mut(reservation.node))
        {
            state.pending_queue.remove(shape, rank);
        }
        self.reservations.entry(root).or_default().push(reservation);
    }

    /// Releases the reservations of a tree.
    pub(super) fn release_reservations(&mut self, root: NodeId) {
        for reservation in self.reservations.remove(&root).unwrap_or_default() {
            self.tree.advance_state();
            for (fr, amount) in &reservation.usage {
                self.tree.add_usage(reservation.node, *fr, -amount, UsageView::Planned);
            }
            self.dirty_objects.workloads.insert(reservation.workload);
        }
    }

    /// Releases all reservations, because the tree that they were made in is rebuilt.
    pub(super) fn release_all_reservations(&mut self) {
        for root in self.reservations.keys().copied().collect::<Vec<_>>() {
            self.release_reservations(root);
        }
    }

    /// Returns the workloads with reservations to their queues at the end of a cycle.
    pub(super) fn requeue_reserved(&mut self, root: NodeId) {
        let reservations = self.reservations.get(&root).cloned().unwrap_or_default();
        for reservation in reservations {
            let Some((shape, rank)) = reservation.queue_position else { continue };
            self.dirty_objects.workloads.insert(rank.workload);
            // Its replacement may have been admitted later in the cycle; then it is no longer
            // queued.
            let slot = self.workloads.get(rank.workload);
            let in_line = slot.and_then(|slot| slot.accounting.queue_position.as_ref());
            if in_line.is_none_or(|(booked, at)| (booked, at) != (&shape, &rank)) {
                continue;
            }
            if let Some(state) = self.cluster_queue_mut(reservation.node) {
                state.pending_queue.insert(&shape, rank);
            }
        }
    }

    /// Moves workloads with issued evictions to the head of their queues, until they no longer get
    /// a reservation. If other workloads took the released quota, they would evict again, without
    /// end (kueue v0.19.2 `pkg/cache/queue/cluster_queue.go`, `preemptorWorkload`).
    pub(super) fn prioritize_preemptors(&mut self, root: NodeId) {
        let reservations = self
            .reservations
            .get(&root)
            .into_iter()
            .flatten()
            .filter(|reservation| reservation.queue_position.is_some());
        let kept: BTreeMap<WorkloadId, Option<ReservedAssignment>> = reservations
            .map(|reservation| {
                (reservation.workload, reservation.preemption_issued.then(|| reservation.assignment.clone()))
            })
            .collect();
        for (id, room_made) in &kept {
            if room_made.is_some() {
                self.preemptors.insert(*id);
                self.set_prioritized(*id, room_made.clone());
            }
        }
        for id in self.preemptors.clone() {
            if !kept.contains_key(&id) && self.pending_root(id).is_none_or(|waits_below| waits_below == root) {
                self.preemptors.remove(&id);
                self.set_prioritized(id, None);
            }
        }
    }

    fn set_prioritized(&mut self, id: WorkloadId, room_made: Option<ReservedAssignment>) {
        if let Some(slot) = self.workloads.get_mut(id).filter(|slot| slot.reserved_assignment != room_made) {
            slot.reserved_assignment = room_made;
            self.update(id);
        }
    }

    /// Returns the assignment that evictions were issued for, while the workload is pending.
    #[cfg(test)]
    pub(super) fn reserved_assignment_of(&self, key: &ObjectKey) -> Option<ReservedAssignment> {
        self.workloads.get_by_name(key)?.reserved_assignment.clone()
    }

    /// Returns the root of the tree in which a workload is queued; `None` if it is not queued.
    fn pending_root(&self, id: WorkloadId) -> Option<NodeId> {
        match self.workloads.get(id)?.queue_state {
            QueueState::Queued(node) => Some(self.tree.root(node)),
            _ => None,
        }
    }
}
