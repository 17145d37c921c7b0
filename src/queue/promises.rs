//! Capacity reserved for workloads that wait for evictions.

use std::collections::BTreeMap;

#[cfg(test)]
use super::ObjectKey;
use super::engine::{Engine, Promise, WorkloadId};
use super::slot::{Room, Standing};
use super::tree::{NodeId, View};

impl Engine {
    /// Reserves capacity for a nominated workload, and removes it from its queue until the end of
    /// the cycle.
    pub(super) fn promise(&mut self, root: NodeId, promise: Promise) {
        self.tree.enter_new_state();
        for (fr, amount) in &promise.usage {
            self.tree.add(promise.node, *fr, *amount, View::Planned);
        }
        if let (Some((shape, rank)), Some(state)) = (&promise.place, self.cluster_queue_mut(promise.node)) {
            state.line.remove(shape, rank);
        }
        self.promises.entry(root).or_default().push(promise);
    }

    /// Releases the reservations of a tree.
    pub(super) fn undo_promises(&mut self, root: NodeId) {
        for promise in self.promises.remove(&root).unwrap_or_default() {
            self.tree.enter_new_state();
            for (fr, amount) in &promise.usage {
                self.tree.add(promise.node, *fr, -amount, View::Planned);
            }
            self.touched.workloads.insert(promise.workload);
        }
    }

    /// Releases all reservations, because the tree that they were made in is rebuilt.
    pub(super) fn undo_all_promises(&mut self) {
        for root in self.promises.keys().copied().collect::<Vec<_>>() {
            self.undo_promises(root);
        }
    }

    /// Returns the workloads with reservations to their queues at the end of a cycle.
    pub(super) fn line_up_again(&mut self, root: NodeId) {
        let promises = self.promises.get(&root).cloned().unwrap_or_default();
        for promise in promises {
            let Some((shape, rank)) = promise.place else { continue };
            self.touched.workloads.insert(rank.workload);
            // Its replacement may have been admitted later in the cycle; then it is no longer
            // queued.
            let slot = self.workloads.get(rank.workload);
            let in_line = slot.and_then(|slot| slot.booked.place.as_ref());
            if in_line.is_none_or(|(booked, at)| (booked, at) != (&shape, &rank)) {
                continue;
            }
            if let Some(state) = self.cluster_queue_mut(promise.node) {
                state.line.insert(&shape, rank);
            }
        }
    }

    /// Moves workloads with issued evictions to the head of their queues, until they no longer get
    /// a reservation. If other workloads took the released quota, they would evict again, without
    /// end (kueue v0.19.2 `pkg/cache/queue/cluster_queue.go`, `preemptorWorkload`).
    pub(super) fn put_preemptors_first(&mut self, root: NodeId) {
        let promises = self.promises.get(&root).into_iter().flatten().filter(|promise| promise.place.is_some());
        let kept: BTreeMap<WorkloadId, Option<Room>> =
            promises.map(|promise| (promise.workload, promise.room_made.then(|| promise.room.clone()))).collect();
        for (id, room_made) in &kept {
            if room_made.is_some() {
                self.preemptors.insert(*id);
                self.put_first(*id, room_made.clone());
            }
        }
        for id in self.preemptors.clone() {
            if !kept.contains_key(&id) && self.waits_below(id).is_none_or(|waits_below| waits_below == root) {
                self.preemptors.remove(&id);
                self.put_first(id, None);
            }
        }
    }

    fn put_first(&mut self, id: WorkloadId, room_made: Option<Room>) {
        if let Some(slot) = self.workloads.get_mut(id).filter(|slot| slot.preempts != room_made) {
            slot.preempts = room_made;
            self.settle(id);
        }
    }

    /// Returns the assignment that evictions were issued for, while the workload is pending.
    #[cfg(test)]
    pub(super) fn room_made_for(&self, key: &ObjectKey) -> Option<Room> {
        self.workloads.named(key)?.preempts.clone()
    }

    /// Returns the root of the tree in which a workload is queued; `None` if it is not queued.
    fn waits_below(&self, id: WorkloadId) -> Option<NodeId> {
        match self.workloads.get(id)?.standing {
            Standing::InLine(node) => Some(self.tree.root(node)),
            _ => None,
        }
    }
}
