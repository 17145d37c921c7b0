//! Tracks the queue state of each workload and its contribution to counts, usage and queues.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::engine::{Engine, WorkloadId};
use super::entry::Stage;
use super::ledger::{Charge, Holder, HolderRank, less};
use super::line::{Rank, Shape};
use super::parts::Loss;
use super::pending::Waiting;
use super::report::Counts;
use super::slices::LONGEST_CHAIN;
use super::slot::{Booking, Slot, Standing};
use super::tree::{NodeId, View};
use sluice_api::kueue::{Admission, StopPolicy};
use sluice_api::selector;

impl Engine {
    /// Updates a workload and all slices of its job: the quota of one slice determines the usage of
    /// another.
    pub(super) fn settle_family(&mut self, id: WorkloadId) {
        let slot = self.workloads.get(id);
        if slot.is_some_and(|slot| slot.entry.replaces.is_none() && !self.claims.contains_key(&slot.entry.key)) {
            self.settle(id);
            return;
        }
        let family = self.family(id);
        // The first pass finds the slices that hold quota; the second updates those that depend on
        // them.
        for _ in 0..2 {
            for relative in &family {
                self.settle(*relative);
            }
        }
    }

    /// Updates each of these workloads.
    pub(super) fn settle_all(&mut self, ids: &[WorkloadId]) {
        for id in ids {
            self.settle(*id);
        }
    }

    /// Recomputes the queue state of one workload and accounts for its contribution.
    pub(super) fn settle(&mut self, id: WorkloadId) {
        let Some(slot) = self.workloads.get(id) else { return };
        let standing = self.standing(slot);
        let booking = self.booking(id, slot, &standing);
        self.touched.workloads.insert(id);
        let Some(slot) = self.workloads.get_mut(id) else { return };
        let waits_for_ready = matches!(standing, Standing::Holds(_)) && slot.entry.unready();
        if !matches!(standing, Standing::InLine(_)) {
            slot.preempts = None;
        }
        slot.standing = standing;
        if waits_for_ready {
            self.unready.insert(id);
        } else {
            self.unready.remove(&id);
        }
        if slot.booked != booking {
            let before = std::mem::replace(&mut slot.booked, booking.clone());
            let uid = slot.entry.uid.clone();
            self.unbook(id, &uid, &before);
            self.book(id, &uid, &booking);
        }
    }

    /// Returns all slices connected to a workload by replacement claims, including itself.
    pub(super) fn family(&self, id: WorkloadId) -> BTreeSet<WorkloadId> {
        let (mut family, mut fresh) = (BTreeSet::new(), vec![id]);
        while let Some(id) = fresh.pop() {
            let Some(slot) = self.workloads.get(id).filter(|_| family.insert(id)) else { continue };
            let claimed = slot.entry.replaces.as_ref().and_then(|key| self.workloads.id(key));
            let claimants = self.claims.get(&slot.entry.key).into_iter().flatten().copied();
            fresh.extend(claimants.chain(claimed));
        }
        family
    }

    /// Derives the queue state from the workload and its queues.
    fn standing(&self, slot: &Slot) -> Standing {
        if slot.entry.stage == Stage::Finished {
            return Standing::Out;
        }
        if let Some(by) = self.successor(slot, 0) {
            return Standing::Superseded(by);
        }
        if let Some(admission) = slot.admission() {
            return Standing::Holds(admission.clone());
        }
        if slot.entry.deleting || !slot.entry.active {
            return Standing::Out;
        }
        match self.gate(slot) {
            Ok(cluster_queue) => Standing::InLine(cluster_queue),
            Err((why, cluster_queue)) => Standing::Held(why, cluster_queue),
        }
    }

    /// Returns the ClusterQueue in which a workload may be queued.
    ///
    /// # Errors
    /// The reason why it is inadmissible, and the ClusterQueue if known.
    fn gate(&self, slot: &Slot) -> Result<NodeId, (Waiting, Option<NodeId>)> {
        let entry = &slot.entry;
        let Some(name) = entry.queue_name.as_ref() else { return Err((Waiting::NoQueueName, None)) };
        let rules = slot.local_queue.and_then(|id| self.local_queues.get(id)?.rules.as_ref());
        let Some(rules) = rules else { return Err((Waiting::LocalQueueMissing(name.clone()), None)) };
        let Some(cluster_queue) = rules.cluster_queue else {
            return Err((Waiting::NoClusterQueue(name.clone()), None));
        };
        let held = |why: Waiting| Err((why, Some(cluster_queue)));
        if let Some(by) = &entry.gated_by {
            return held(Waiting::Gated(by.clone()));
        }
        if let Err(problem) = &entry.demand {
            return held(Waiting::BadRequest(problem.clone()));
        }
        if let Some(problem) = self.breaches(slot, cluster_queue) {
            return held(Waiting::BadRequest(problem));
        }
        if slot.refused {
            return held(Waiting::Refused);
        }
        if rules.terminating {
            return held(Waiting::LocalQueueTerminating(name.clone()));
        }
        if rules.stop != StopPolicy::None {
            return held(Waiting::LocalQueueStopped(name.clone()));
        }
        if let Some(why) = self.closed(cluster_queue, &entry.key.namespace) {
            return held(why);
        }
        if let Some(at) = entry.requeue_at.filter(|at| *at > self.now) {
            return held(Waiting::Backoff(at));
        }
        match self.predecessor(slot, cluster_queue) {
            Some(predecessor) if predecessor.is_going() || predecessor.giving_back().is_some() => {
                held(Waiting::PredecessorEvicted(predecessor.entry.key.clone()))
            }
            _ => Ok(cluster_queue),
        }
    }

    /// Returns the reason why a ClusterQueue admits nothing from a namespace; `None` if it does
    /// admit.
    fn closed(&self, node: NodeId, namespace: &str) -> Option<Waiting> {
        let name = self.tree.name(node);
        let quota = self.cluster_queues.get(node).and_then(|state| state.quota.as_ref());
        let Some(quota) = quota else { return Some(Waiting::ClusterQueueMissing(name.to_owned())) };
        if quota.terminating {
            return Some(Waiting::ClusterQueueTerminating(name.to_owned()));
        }
        if quota.stop != StopPolicy::None {
            return Some(Waiting::ClusterQueueStopped(name.to_owned()));
        }
        if let Some((_, problem)) = self.cluster_queue_problem(node) {
            return Some(Waiting::ClusterQueueInactive { cluster_queue: name.to_owned(), problem });
        }
        let no_labels = BTreeMap::new();
        let labels = self.namespaces.get(namespace).unwrap_or(&no_labels);
        let selected = selector::matches(quota.selector.as_ref(), labels).unwrap_or(false);
        (!selected)
            .then(|| Waiting::NamespaceNotSelected { namespace: namespace.to_owned(), cluster_queue: name.to_owned() })
    }

    /// Returns the slice that holds quota in place of this one: a claimant of the same job with
    /// quota in the same ClusterQueue, or a successor of such a claimant. Among several, prefers
    /// the current successor.
    fn successor(&self, slot: &Slot, depth: usize) -> Option<WorkloadId> {
        let claimants = self.claims.get(&slot.entry.key).filter(|_| depth < LONGEST_CHAIN)?;
        let before = match &slot.standing {
            Standing::Superseded(by) => claimants.get(by),
            _ => None,
        };
        let same_queue = |claimant: &Slot| match (slot.admission(), claimant.admission()) {
            (Some(ours), Some(theirs)) => ours.cluster_queue == theirs.cluster_queue,
            _ => true,
        };
        // Sorted by name, so that the result does not depend on the order of observation.
        let mut named: Vec<WorkloadId> = claimants.iter().copied().collect();
        named.sort_by_key(|id| self.workloads.get(*id).map(|slot| &slot.entry.key));
        let valid = before.into_iter().copied().chain(named).filter_map(|id| Some((id, self.workloads.get(id)?)));
        let mut valid = valid.filter(|(_, claimant)| self.workloads.claim_holds(claimant, slot));
        valid.find_map(|(id, claimant)| {
            if claimant.admission().is_some() && same_queue(claimant) {
                return Some(id);
            }
            self.successor(claimant, depth + 1)
        })
    }

    /// Returns the slice whose quota a workload takes over when admitted to `cluster_queue`.
    pub(super) fn predecessor(&self, slot: &Slot, cluster_queue: NodeId) -> Option<&Slot> {
        self.workloads.predecessor(slot, cluster_queue)
    }

    /// Returns the contribution of a workload in this queue state.
    fn booking(&self, id: WorkloadId, slot: &Slot, standing: &Standing) -> Booking {
        let entry = &slot.entry;
        let pending = Counts { pending: 1, ..Counts::default() };
        let base = Booking { local_queue: slot.local_queue, ..Booking::default() };
        match standing {
            Standing::Out | Standing::Superseded(_) => Booking::default(),
            Standing::Held(_, cluster_queue) => Booking { cluster_queue: *cluster_queue, counts: pending, ..base },
            Standing::InLine(cluster_queue) => Booking {
                cluster_queue: Some(*cluster_queue),
                counts: pending,
                place: self.place(id, slot, *cluster_queue),
                ..base
            },
            Standing::Holds(admission) => {
                let admitted = entry.admitted || slot.assumed.is_some();
                let charge = Arc::new(self.charge(slot, admission));
                let going = self.going(slot, admission, &charge);
                let can_go = !slot.is_going() && slot.assumed.is_none();
                let kept = if going.is_empty() { charge.clone() } else { Arc::new(less(&charge, &going)) };
                Booking {
                    going,
                    stable: if can_go { self.losses(id, slot, admission, kept) } else { Vec::new() },
                    cluster_queue: self.tree.known_cluster_queue(&admission.cluster_queue),
                    counts: Counts { pending: 0, reserving: 1, admitted: i32::from(admitted) },
                    charge,
                    ..base
                }
            }
        }
    }

    /// Returns the part of its usage that a workload has to release.
    fn going(&self, slot: &Slot, admission: &Admission, charge: &Arc<Charge>) -> Arc<Charge> {
        if slot.is_going() {
            return charge.clone();
        }
        let left = slot.giving_back().map(|part| slot.entry.charge_without(part, admission, &self.tree));
        Arc::new(left.map(|left| less(charge, &left)).unwrap_or_default())
    }

    /// Returns the preemptible amounts of a workload that retains `charge`, in preemption order:
    /// its parts, then the rest.
    fn losses(
        &self,
        id: WorkloadId,
        slot: &Slot,
        admission: &Admission,
        mut charge: Arc<Charge>,
    ) -> Vec<(HolderRank, Holder)> {
        let all = charge.clone();
        let holder = |charge: Arc<Charge>| Holder { since: slot.entry.since, charge, all: all.clone() };
        let mut losses = Vec::new();
        // A slice that still covers a replaced one is preempted only as a whole.
        for part in slot.entry.parts_after(slot.giving_back()).filter(|_| self.replaced(slot).is_empty()) {
            let left = slot.entry.charge_without(part, admission, &self.tree);
            let rank = slot.entry.holder_rank(id, Loss::Part(part));
            losses.push((rank, holder(Arc::new(less(&charge, &left)))));
            charge = Arc::new(left);
        }
        losses.push((slot.entry.holder_rank(id, Loss::Whole), holder(charge)));
        losses
    }

    /// Returns the usage of a workload: what it holds and, until the slices that it replaced are
    /// observed as finished, no less than they held. If the successor is evicted after all, the
    /// quota of its predecessors is still covered.
    fn charge(&self, slot: &Slot, admission: &Admission) -> Charge {
        let mut charge = slot.entry.charge(admission, &self.tree);
        for replaced in self.replaced(slot) {
            let before = replaced.admission().map(|admission| replaced.entry.charge(admission, &self.tree));
            for (at, amount) in before.into_iter().flatten() {
                let most = charge.entry(at).or_default();
                *most = amount.max(*most);
            }
        }
        charge
    }

    /// Returns the slices with quota that this one replaced, the latest first.
    pub(super) fn replaced(&self, slot: &Slot) -> Vec<&Slot> {
        let mut replaced = Vec::new();
        let Some(mut claimed) = slot.entry.replaces.as_ref() else { return replaced };
        let mut chain: Vec<WorkloadId> = self.workloads.id(&slot.entry.key).into_iter().collect();
        while let Some(id) = self.workloads.id(claimed).filter(|_| chain.len() < LONGEST_CHAIN) {
            let Some(before) = self.workloads.get(id) else { break };
            // A finished slice may sit between an unfinished one and its successor.
            if before.entry.stage != Stage::Finished {
                if !matches!(&before.standing, Standing::Superseded(by) if chain.contains(by)) {
                    break;
                }
                if before.admission().is_some() {
                    replaced.push(before);
                }
            }
            chain.push(id);
            let Some(next) = before.entry.replaces.as_ref() else { break };
            claimed = next;
        }
        replaced
    }

    /// Returns the position of a queued workload; `None` if its requests are invalid.
    fn place(&self, id: WorkloadId, slot: &Slot, cluster_queue: NodeId) -> Option<(Shape, Rank)> {
        let demand = slot.entry.demand.as_ref().ok()?.clone();
        let quota = self.cluster_queues.get(cluster_queue)?.quota.as_ref();
        let strict = quota.is_some_and(|quota| quota.strict);
        // A workload that takes over a slice's quota, or preempts for one of several possible
        // assignments, is equivalent to no other workload.
        let has_choice = || {
            let flavors = quota.is_some_and(|quota| quota.groups.iter().any(|group| group.flavors.len() > 1));
            flavors || demand.pod_sets.iter().any(|set| set.spare(set.count) > 0)
        };
        let chosen = slot.preempts.is_some() && has_choice();
        let alone = (chosen || self.predecessor(slot, cluster_queue).is_some()).then_some(id);
        let shape = Shape { priority: std::cmp::Reverse(slot.entry.priority), demand, alone };
        Some((shape, slot.entry.rank(id, slot.preempts.is_some() && !strict)))
    }

    /// Adds the contribution of a workload to its ClusterQueue, LocalQueue and cohort tree.
    fn book(&mut self, id: WorkloadId, uid: &Arc<str>, booking: &Booking) {
        let admitted = booking.counts.admitted > 0;
        if let Some(node) = booking.cluster_queue {
            self.charge_tree(node, booking, 1);
            let state = self.cluster_queues.place(self.tree.name(node), node);
            state.members.insert(id);
            state.counts.add(booking.counts, 1);
            state.ledger.book((uid, id), &booking.charge, admitted, true);
            if !booking.going.is_empty() {
                state.ledger.going.insert(id, booking.going.clone());
            }
            for (rank, holder) in &booking.stable {
                state.ledger.settle(rank.clone(), holder.clone());
            }
            if let Some((shape, rank)) = &booking.place {
                state.line.insert(shape, rank.clone());
            }
            self.dirty.insert(node);
            self.touched.cluster_queues.insert(node);
        }
        if let Some(local_queue) = booking.local_queue {
            if let Some(state) = self.local_queues.get_mut(local_queue) {
                state.counts.add(booking.counts, 1);
                state.sums.book(&booking.charge, admitted, true);
            }
            self.touched.local_queues.insert(local_queue);
        }
    }

    /// Removes the contribution of a workload; the inverse of [`Self::book`].
    pub(super) fn unbook(&mut self, id: WorkloadId, uid: &Arc<str>, booking: &Booking) {
        let admitted = booking.counts.admitted > 0;
        if let Some(node) = booking.cluster_queue
            && let Some(state) = self.cluster_queues.get_mut(node)
        {
            state.members.remove(&id);
            state.counts.add(booking.counts, -1);
            state.ledger.book((uid, id), &booking.charge, admitted, false);
            state.ledger.going.remove(&id);
            for (rank, _) in &booking.stable {
                state.ledger.unsettle(rank);
            }
            if let Some((shape, rank)) = &booking.place {
                state.line.remove(shape, rank);
            }
            self.charge_tree(node, booking, -1);
            self.dirty.insert(node);
            self.touched.cluster_queues.insert(node);
            self.tidy_cluster_queue(node);
        }
        if let Some(local_queue) = booking.local_queue
            && let Some(state) = self.local_queues.get_mut(local_queue)
        {
            state.counts.add(booking.counts, -1);
            state.sums.book(&booking.charge, admitted, false);
            self.touched.local_queues.insert(local_queue);
            self.tidy_local_queue(local_queue);
        }
    }

    /// Adds the usage to the cohort tree, or removes it with `sign` -1.
    fn charge_tree(&mut self, node: NodeId, booking: &Booking, sign: i128) {
        if self.settings.fair_sharing.is_some() && !booking.charge.is_empty() {
            self.touched.cohorts.extend(self.tree.above(node));
        }
        if !booking.charge.is_empty() {
            self.tree.enter_new_state();
        }
        for (fr, amount) in booking.charge.iter() {
            self.tree.add(node, *fr, sign * amount, View::Actual);
            let kept = amount - booking.going.get(fr).copied().unwrap_or(0);
            self.tree.add(node, *fr, sign * kept, View::Planned);
        }
    }

    /// Returns the usage of every workload that holds quota in a ClusterQueue, computed from
    /// scratch.
    #[cfg(test)]
    pub(super) fn charges(&self, cluster_queue: &str) -> Vec<(super::ObjectKey, Charge)> {
        let holders = self.workloads.iter().filter_map(|(key, _, slot)| match self.standing(slot) {
            Standing::Holds(admission) if admission.cluster_queue == cluster_queue => {
                Some((key.clone(), self.charge(slot, &admission)))
            }
            _ => None,
        });
        holders.collect()
    }
}

impl Counts {
    fn add(&mut self, other: Self, sign: i32) {
        self.pending += sign * other.pending;
        self.reserving += sign * other.reserving;
        self.admitted += sign * other.admitted;
    }
}
