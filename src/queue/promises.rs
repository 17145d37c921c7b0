//! Quota that is kept for those for whom room is being made.

use std::collections::BTreeMap;

#[cfg(test)]
use super::ObjectKey;
use super::engine::{Engine, Promise, WorkloadId};
use super::slot::{Room, Standing};
use super::tree::{NodeId, View};

impl Engine {
    /// Keeps quota for who takes a turn and has to wait; its place in line is given back at the end of the cycle.
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

    pub(super) fn undo_promises(&mut self, root: NodeId) {
        for promise in self.promises.remove(&root).unwrap_or_default() {
            self.tree.enter_new_state();
            for (fr, amount) in &promise.usage {
                self.tree.add(promise.node, *fr, -amount, View::Planned);
            }
            self.touched.workloads.insert(promise.workload);
        }
    }

    /// Takes back all promises: the tree that they were made in is no more.
    pub(super) fn undo_all_promises(&mut self) {
        for root in self.promises.keys().copied().collect::<Vec<_>>() {
            self.undo_promises(root);
        }
    }

    pub(super) fn line_up_again(&mut self, root: NodeId) {
        let promises = self.promises.get(&root).cloned().unwrap_or_default();
        for promise in promises {
            let Some((shape, rank)) = promise.place else { continue };
            self.touched.workloads.insert(rank.workload);
            // A later turn may have been its successor's: then it waits no more.
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

    /// Puts those first in line for whom room was made, until they get nothing any more. If others took what was evicted for
    /// one, it would have to evict again, and so on without end (kueue v0.19.2 `pkg/cache/queue/cluster_queue.go`,
    /// `preemptorWorkload`).
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

    /// What others were evicted for, for the sake of a workload that still waits.
    #[cfg(test)]
    pub(super) fn room_made_for(&self, key: &ObjectKey) -> Option<Room> {
        self.workloads.named(key)?.preempts.clone()
    }

    /// The root of the tree in which a workload is in line.
    fn waits_below(&self, id: WorkloadId) -> Option<NodeId> {
        match self.workloads.get(id)?.standing {
            Standing::InLine(node) => Some(self.tree.root(node)),
            _ => None,
        }
    }
}
