//! Where each workload stands, and what it adds to counts, ledgers and lines.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::engine::{Booking, Engine, Slot, Standing};
use super::entry::{Entry, Stage};
use super::ledger::{Charge, Holder};
use super::line::Shape;
use super::pending::Waiting;
use super::report::Counts;
use super::tree::{NodeId, View};
use super::{Key, Subject, selector};
use crate::api::kueue::{Admission, StopPolicy};

/// How many slices of one job are followed from one to the next. Two are alive in the normal course of things.
const LONGEST_CHAIN: usize = 64;

impl Engine {
    /// Looks anew at a workload and at all slices of its job: what one holds decides what another is charged.
    pub(super) fn settle_family(&mut self, key: &Key) {
        let family = self.family(key);
        // Once for who holds quota, and, where there are several, again for those whose place depends on that.
        for _ in 0..family.len().min(2) {
            for relative in &family {
                self.settle(relative);
            }
        }
    }

    pub(super) fn settle_all(&mut self, keys: &[Key]) {
        for key in keys {
            self.settle(key);
        }
    }

    /// Looks anew at one workload, and books what it adds.
    pub(super) fn settle(&mut self, key: &Key) {
        let Some(slot) = self.workloads.get(key) else { return };
        let standing = self.standing(slot);
        let booking = self.booking(slot, &standing);
        self.touched.insert(Subject::Workload(key.clone()));
        let Some(slot) = self.workloads.get_mut(key) else { return };
        let waits_for_ready = matches!(standing, Standing::Holds(_)) && slot.entry.unready();
        slot.standing = standing;
        if waits_for_ready {
            self.unready.insert(key.clone());
        } else {
            self.unready.remove(key);
        }
        if slot.booked != booking {
            let before = std::mem::replace(&mut slot.booked, booking.clone());
            self.unbook(key, &before);
            self.book(key, &booking);
        }
    }

    /// The slices that a workload is connected to by claims, itself included.
    pub(super) fn family(&self, key: &Key) -> BTreeSet<Key> {
        let (mut family, mut fresh) = (BTreeSet::new(), vec![key.clone()]);
        while let Some(key) = fresh.pop() {
            let claimed = self.workloads.get(&key).and_then(|slot| slot.entry.replaces.clone());
            let relatives = self.claims.get(&key).into_iter().flatten().cloned().chain(claimed);
            let known: Vec<Key> = relatives.filter(|relative| self.workloads.contains_key(relative)).collect();
            if family.insert(key) {
                fresh.extend(known);
            }
        }
        family
    }

    fn standing(&self, slot: &Slot) -> Standing {
        if slot.entry.stage == Stage::Finished {
            return Standing::Out;
        }
        if let Some(by) = self.successor(slot, 0) {
            return Standing::Superseded(by.clone());
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

    /// The ClusterQueue that a workload may line up for; or what keeps it from that, and the ClusterQueue if it is known.
    fn gate(&self, slot: &Slot) -> Result<String, (Waiting, Option<String>)> {
        let entry = &slot.entry;
        let Some(local_queue) = entry.local_queue() else { return Err((Waiting::NoQueueName, None)) };
        let name = local_queue.name.clone();
        let rules = self.local_queues.get(&local_queue).and_then(|state| state.rules.as_ref());
        let Some(rules) = rules else { return Err((Waiting::LocalQueueMissing(name), None)) };
        let Some(cluster_queue) = rules.cluster_queue.clone() else {
            return Err((Waiting::NoClusterQueue(name), None));
        };
        let held = |why: Waiting| Err((why, Some(cluster_queue.clone())));
        if let Some(by) = &entry.gated_by {
            return held(Waiting::Gated(by.clone()));
        }
        if let Err(problem) = &entry.demand {
            return held(Waiting::BadRequest(problem.clone()));
        }
        if slot.refused {
            return held(Waiting::Refused);
        }
        if rules.terminating {
            return held(Waiting::LocalQueueTerminating(name));
        }
        if rules.stop != StopPolicy::None {
            return held(Waiting::LocalQueueStopped(name));
        }
        if let Some(why) = self.closed(&cluster_queue, &entry.key.namespace) {
            return held(why);
        }
        if let Some(at) = entry.requeue_at.filter(|at| *at > self.now) {
            return held(Waiting::Backoff(at));
        }
        match self.predecessor(slot, &cluster_queue) {
            Some(predecessor) if predecessor.entry.evicted => {
                held(Waiting::PredecessorEvicted(predecessor.entry.key.clone()))
            }
            _ => Ok(cluster_queue),
        }
    }

    /// Why a ClusterQueue takes nothing from a namespace.
    fn closed(&self, name: &str, namespace: &str) -> Option<Waiting> {
        let quota = self.cluster_queues.named(name).and_then(|state| state.quota.as_ref());
        let Some(quota) = quota else { return Some(Waiting::ClusterQueueMissing(name.to_owned())) };
        if quota.terminating {
            return Some(Waiting::ClusterQueueTerminating(name.to_owned()));
        }
        if quota.stop != StopPolicy::None {
            return Some(Waiting::ClusterQueueStopped(name.to_owned()));
        }
        if let Some((_, problem)) = self.cluster_queue_problem(name) {
            return Some(Waiting::ClusterQueueInactive { cluster_queue: name.to_owned(), problem });
        }
        let unlabelled = BTreeMap::new();
        let labels = self.namespaces.get(namespace).unwrap_or(&unlabelled);
        let selected = selector::matches(quota.selector.as_ref(), labels).unwrap_or(false);
        (!selected)
            .then(|| Waiting::NamespaceNotSelected { namespace: namespace.to_owned(), cluster_queue: name.to_owned() })
    }

    /// The slice that holds quota in this one's place: a claimant of the same job that holds quota of the same
    /// ClusterQueue, or one that took such a claimant's place in turn. Of several, the one that it was before.
    fn successor(&self, slot: &Slot, depth: usize) -> Option<&Key> {
        let claimants = self.claims.get(&slot.entry.key).filter(|_| depth < LONGEST_CHAIN)?;
        let before = match &slot.standing {
            Standing::Superseded(by) => claimants.get(by),
            _ => None,
        };
        let same_queue = |claimant: &Slot| match (slot.admission(), claimant.admission()) {
            (Some(ours), Some(theirs)) => ours.cluster_queue == theirs.cluster_queue,
            _ => true,
        };
        let valid = before.into_iter().chain(claimants).filter_map(|key| self.workloads.get_key_value(key));
        let mut valid = valid.filter(|(_, claimant)| self.claim_holds(claimant, slot));
        valid.find_map(|(key, claimant)| {
            if claimant.admission().is_some() && same_queue(claimant) {
                return Some(key);
            }
            self.successor(claimant, depth + 1)
        })
    }

    /// The slice whose quota a workload takes over when it is admitted to `cluster_queue`: the nearest one before it that
    /// still holds any.
    pub(super) fn predecessor(&self, slot: &Slot, cluster_queue: &str) -> Option<&Slot> {
        let mut current = slot;
        for _ in 0..LONGEST_CHAIN {
            let before = self.workloads.get(current.entry.replaces.as_ref()?)?;
            if !self.claim_holds(current, before) {
                return None;
            }
            match &before.standing {
                Standing::Holds(admission) => return (admission.cluster_queue == cluster_queue).then_some(before),
                Standing::InLine(_) | Standing::Held(..) => current = before,
                Standing::Superseded(_) | Standing::Out => return None,
            }
        }
        None
    }

    /// Whether a workload may take the place of the one that it says it replaces: both are of one job, and nobody
    /// replaces itself by way of others.
    fn claim_holds(&self, claimant: &Slot, claimed: &Slot) -> bool {
        if !claimant.entry.same_owner(&claimed.entry) {
            return false;
        }
        let mut current = &claimed.entry;
        for _ in 0..LONGEST_CHAIN {
            let Some(before) = &current.replaces else { return true };
            if *before == claimant.entry.key {
                return false;
            }
            match self.workloads.get(before) {
                Some(slot) => current = &slot.entry,
                None => return true,
            }
        }
        false
    }

    fn booking(&self, slot: &Slot, standing: &Standing) -> Booking {
        let entry = &slot.entry;
        let pending = Counts { pending: 1, ..Counts::default() };
        let base = Booking { local_queue: entry.local_queue(), ..Booking::default() };
        match standing {
            Standing::Out | Standing::Superseded(_) => Booking::default(),
            Standing::Held(_, cluster_queue) => {
                Booking { cluster_queue: cluster_queue.clone(), counts: pending, ..base }
            }
            Standing::InLine(cluster_queue) => Booking {
                cluster_queue: Some(cluster_queue.clone()),
                counts: pending,
                place: self.place(slot, cluster_queue).map(|shape| (shape, entry.rank())),
                ..base
            },
            Standing::Holds(admission) => {
                let admitted = entry.admitted || slot.assumed.is_some();
                let charge = Arc::new(self.charge(slot, admission));
                let going = entry.evicted || slot.preempted.is_some();
                let stable = !going && slot.assumed.is_none();
                Booking {
                    going,
                    stable: stable
                        .then(|| (entry.holder_rank(), Holder { since: entry.since, charge: charge.clone() })),
                    cluster_queue: Some(admission.cluster_queue.clone()),
                    counts: Counts { pending: 0, reserving: 1, admitted: i32::from(admitted) },
                    charge,
                    ..base
                }
            }
        }
    }

    /// What a workload is charged: what it holds, and, until the slices that it replaced are seen to be over, no less than
    /// they held. Should the successor go after all, what its predecessors have is still there.
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

    /// The slices that hold quota and that this one has taken the place of, the last one first.
    pub(super) fn replaced(&self, slot: &Slot) -> Vec<&Slot> {
        let (mut chain, mut replaced) = (vec![&slot.entry.key], Vec::new());
        let mut claimed = slot.entry.replaces.as_ref();
        while let Some(before) = claimed.and_then(|key| self.workloads.get(key)).filter(|_| chain.len() < LONGEST_CHAIN)
        {
            if !matches!(&before.standing, Standing::Superseded(by) if chain.contains(&by)) {
                break;
            }
            if before.admission().is_some() {
                replaced.push(before);
            }
            chain.push(&before.entry.key);
            claimed = before.entry.replaces.as_ref();
        }
        replaced
    }

    fn place(&self, slot: &Slot, cluster_queue: &str) -> Option<Shape> {
        let demand = slot.entry.demand.as_ref().ok()?.clone();
        let alone = self.predecessor(slot, cluster_queue).map(|_| slot.entry.key.clone());
        Some(Shape { priority: std::cmp::Reverse(slot.entry.priority), demand, alone })
    }

    fn book(&mut self, key: &Key, booking: &Booking) {
        let admitted = booking.counts.admitted > 0;
        if let Some(name) = &booking.cluster_queue {
            let node = self.tree.cluster_queue(name);
            self.charge_tree(node, booking, 1);
            let state = self.cluster_queue_place(name);
            state.members.insert(key.clone());
            state.counts.add(booking.counts, 1);
            state.ledger.book(key, &booking.charge, admitted, true);
            if booking.going {
                state.ledger.going.insert(key.clone(), booking.charge.clone());
            }
            if let Some((rank, holder)) = &booking.stable {
                state.ledger.settle(rank.clone(), holder.clone());
            }
            if let Some((shape, rank)) = &booking.place {
                state.line.insert(shape, rank.clone());
            }
            self.dirty.insert(node);
            self.touched.insert(Subject::ClusterQueue(name.clone()));
        }
        if let Some(local_queue) = &booking.local_queue {
            let state = self.local_queues.entry(local_queue.clone()).or_default();
            state.counts.add(booking.counts, 1);
            state.sums.book(&booking.charge, admitted, true);
            self.touched.insert(Subject::LocalQueue(local_queue.clone()));
        }
    }

    pub(super) fn unbook(&mut self, key: &Key, booking: &Booking) {
        let admitted = booking.counts.admitted > 0;
        if let Some(name) = &booking.cluster_queue
            && let Some(state) = self.cluster_queues.named_mut(name)
        {
            state.members.remove(key);
            state.counts.add(booking.counts, -1);
            state.ledger.book(key, &booking.charge, admitted, false);
            state.ledger.going.remove(key);
            if let Some((rank, _)) = &booking.stable {
                state.ledger.unsettle(rank);
            }
            if let Some((shape, rank)) = &booking.place {
                state.line.remove(shape, rank);
            }
            let node = self.tree.cluster_queue(name);
            self.charge_tree(node, booking, -1);
            self.dirty.insert(node);
            self.touched.insert(Subject::ClusterQueue(name.clone()));
            self.tidy_cluster_queue(name);
        }
        if let Some(local_queue) = &booking.local_queue
            && let Some(state) = self.local_queues.get_mut(local_queue)
        {
            state.counts.add(booking.counts, -1);
            state.sums.book(&booking.charge, admitted, false);
            self.touched.insert(Subject::LocalQueue(local_queue.clone()));
            self.tidy_local_queue(local_queue);
        }
    }

    fn charge_tree(&mut self, node: NodeId, booking: &Booking, sign: i128) {
        if self.settings.fair_sharing.is_some() && !booking.charge.is_empty() {
            let above = self.tree.above(node).map(|above| Subject::Cohort(self.tree.name(above).to_owned()));
            self.touched.extend(above);
        }
        for (fr, amount) in booking.charge.iter() {
            self.tree.add(node, *fr, sign * amount, View::Actual);
            if !booking.going {
                self.tree.add(node, *fr, sign * amount, View::Planned);
            }
        }
    }

    /// The charge of every workload that holds quota of a ClusterQueue, computed from scratch.
    #[cfg(test)]
    pub(super) fn charges(&self, cluster_queue: &str) -> Vec<(Key, Charge)> {
        let holders = self.workloads.iter().filter_map(|(key, slot)| match self.standing(slot) {
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

impl Entry {
    /// The LocalQueue that it names.
    pub(super) fn local_queue(&self) -> Option<Key> {
        self.queue_name.as_ref().map(|name| Key::new(self.key.namespace.clone(), name.clone()))
    }
}
