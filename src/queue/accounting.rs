//! Tracks the queue state of each workload and its contribution to counts, usage and queues.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::cached_workload::{Accounting, CachedWorkload, Hold, QueueState};
use super::index_update::IndexUpdate;
use super::ledger::{FlavorResourceQuantities, PreemptibleUsage, PreemptionOrder, minus};
use super::partial_preemption::PreemptionScope;
use super::pending::PendingCause;
use super::pending_queue::{EquivalenceKey, QueueOrder};
use super::queue_status::WorkloadCounts;
use super::scheduler::{Scheduler, WorkloadId};
use super::slices::MAX_CHAIN_LENGTH;
use super::tree::{NodeId, UsageView};
use super::workload_info::AdmissionStage;
use sluice_api::kueue::{Admission, StopPolicy};

impl Scheduler {
    /// Updates a workload and all slices of its job: the quota of one slice determines the usage of
    /// another.
    pub(super) fn update_slices(&mut self, id: WorkloadId) {
        let slot = self.workloads.get(id);
        if slot
            .is_some_and(|slot| slot.info.replaces.is_none() && !self.replacement_claims.contains_key(&slot.info.key))
        {
            self.update(id);
            return;
        }
        let family = self.related_slices(id);
        // The first pass finds the slices that hold quota; the second updates those that depend on
        // them.
        for _ in 0..2 {
            for relative in &family {
                self.update(*relative);
            }
        }
    }

    /// Updates each of these workloads.
    pub(super) fn update_all(&mut self, ids: &[WorkloadId]) {
        for id in ids {
            self.update(*id);
        }
    }

    /// Recomputes the queue state of one workload and accounts for its contribution.
    pub(super) fn update(&mut self, id: WorkloadId) {
        let Some(slot) = self.workloads.get(id) else { return };
        let standing = self.queue_state(slot);
        let booking = self.accounting(id, slot, &standing);
        self.dirty_objects.workloads.insert(id);
        let Some(slot) = self.workloads.get_mut(id) else { return };
        let waits_for_ready = matches!(standing, QueueState::Admitted(_)) && slot.info.is_unready();
        if !matches!(standing, QueueState::Queued(_)) {
            slot.reserved_assignment = None;
        }
        slot.queue_state = standing;
        if waits_for_ready {
            self.not_ready.insert(id);
        } else {
            self.not_ready.remove(&id);
        }
        if slot.accounting != booking {
            let before = std::mem::replace(&mut slot.accounting, booking.clone());
            let uid = slot.info.uid.clone();
            self.remove_usage(id, &uid, &before);
            self.add_usage(id, &uid, &booking);
        }
    }

    /// Returns all slices connected to a workload by replacement claims, including itself.
    pub(super) fn related_slices(&self, id: WorkloadId) -> BTreeSet<WorkloadId> {
        let (mut family, mut fresh) = (BTreeSet::new(), vec![id]);
        while let Some(id) = fresh.pop() {
            let Some(slot) = self.workloads.get(id).filter(|_| family.insert(id)) else { continue };
            let claimed = slot.info.replaces.as_ref().and_then(|key| self.workloads.id(key));
            let claimants = self.replacement_claims.get(&slot.info.key).into_iter().flatten().copied();
            fresh.extend(claimants.chain(claimed));
        }
        family
    }

    /// Derives the queue state from the workload and its queues.
    fn queue_state(&self, slot: &CachedWorkload) -> QueueState {
        if slot.info.stage == AdmissionStage::Finished {
            return QueueState::Inactive;
        }
        if let Some(by) = self.successor(slot, 0) {
            return QueueState::Superseded(by);
        }
        if let Some(admission) = slot.admission() {
            return QueueState::Admitted(admission.clone());
        }
        if slot.info.deleting || !slot.info.active {
            return QueueState::Inactive;
        }
        match self.admissible_cluster_queue(slot) {
            Ok(cluster_queue) => QueueState::Queued(cluster_queue),
            Err(hold) => QueueState::OnHold(hold),
        }
    }

    /// Returns the ClusterQueue in which a workload may be queued.
    ///
    /// # Errors
    /// The reason why it is inadmissible, and the ClusterQueue if known.
    fn admissible_cluster_queue(&self, slot: &CachedWorkload) -> Result<NodeId, Hold> {
        let entry = &slot.info;
        let unplaced = |cause| Err(Hold { cause, cluster_queue: None });
        let Some(name) = entry.queue_name.as_ref() else { return unplaced(PendingCause::NoQueueName) };
        let rules = slot.local_queue.and_then(|id| self.local_queues.get(id)?.config.as_ref());
        let Some(rules) = rules else { return unplaced(PendingCause::LocalQueueMissing(name.clone())) };
        let Some(cluster_queue) = rules.cluster_queue else {
            return unplaced(PendingCause::NoClusterQueue(name.clone()));
        };
        let held = |cause| Err(Hold { cause, cluster_queue: Some(cluster_queue) });
        if let Some(by) = &entry.gated_by {
            return held(PendingCause::AdmissionGated(by.clone()));
        }
        if let Err(problem) = &entry.requests {
            return held(PendingCause::InvalidRequests(problem.to_string()));
        }
        if let Some(problem) = self.limit_range_violations(slot, cluster_queue) {
            let constraints = "resources didn't satisfy LimitRange constraints";
            return held(PendingCause::InvalidRequests(format!("{constraints}: {problem}")));
        }
        if slot.admission_rejected {
            return held(PendingCause::AdmissionRejected);
        }
        if rules.terminating {
            return held(PendingCause::LocalQueueTerminating(name.clone()));
        }
        if rules.stop_policy != StopPolicy::None {
            return held(PendingCause::LocalQueueStopped(name.clone()));
        }
        if let Some(why) = self.closed_reason(cluster_queue, &entry.key.namespace) {
            return held(why);
        }
        if let Some(at) = entry.requeue_at.filter(|at| *at > self.now) {
            return held(PendingCause::Backoff(at));
        }
        match self.predecessor(slot, cluster_queue) {
            Some(predecessor) if predecessor.is_releasing() || predecessor.releasing_up_to().is_some() => {
                held(PendingCause::PredecessorEvicted(predecessor.info.key.clone()))
            }
            _ => Ok(cluster_queue),
        }
    }

    /// Returns the reason why a ClusterQueue admits nothing from a namespace; `None` if it does
    /// admit.
    fn closed_reason(&self, node: NodeId, namespace: &str) -> Option<PendingCause> {
        let name = self.tree.name(node);
        let quota = self.cluster_queues.get(node).and_then(|state| state.config.as_ref());
        let Some(quota) = quota else { return Some(PendingCause::ClusterQueueMissing(name.to_owned())) };
        if quota.terminating {
            return Some(PendingCause::ClusterQueueTerminating(name.to_owned()));
        }
        if quota.stop_policy != StopPolicy::None {
            return Some(PendingCause::ClusterQueueStopped(name.to_owned()));
        }
        if let Some(problem) = self.cluster_queue_problem(node) {
            let problem = problem.message;
            return Some(PendingCause::ClusterQueueInactive { cluster_queue: name.to_owned(), problem });
        }
        let no_labels = BTreeMap::new();
        let labels = self.namespaces.get(namespace).unwrap_or(&no_labels);
        let selected = quota.namespace_selector.as_ref().is_some_and(|selector| selector.matches(labels));
        (!selected).then(|| PendingCause::NamespaceNotSelected {
            namespace: namespace.to_owned(),
            cluster_queue: name.to_owned(),
        })
    }

    /// Returns the slice that holds quota in place of this one: a claimant of the same job with
    /// quota in the same ClusterQueue, or a successor of such a claimant. Among several, prefers
    /// the current successor.
    fn successor(&self, slot: &CachedWorkload, depth: usize) -> Option<WorkloadId> {
        let claimants = self.replacement_claims.get(&slot.info.key).filter(|_| depth < MAX_CHAIN_LENGTH)?;
        let before = match &slot.queue_state {
            QueueState::Superseded(by) => claimants.get(by),
            _ => None,
        };
        let same_queue = |claimant: &CachedWorkload| match (slot.admission(), claimant.admission()) {
            (Some(ours), Some(theirs)) => ours.cluster_queue == theirs.cluster_queue,
            _ => true,
        };
        // Sorted by name, so that the result does not depend on the order of observation.
        let mut named: Vec<WorkloadId> = claimants.iter().copied().collect();
        named.sort_by_key(|id| self.workloads.get(*id).map(|slot| &slot.info.key));
        let valid = before.into_iter().copied().chain(named).filter_map(|id| Some((id, self.workloads.get(id)?)));
        let mut valid = valid.filter(|(_, claimant)| self.workloads.is_valid_claim(claimant, slot));
        valid.find_map(|(id, claimant)| {
            if claimant.admission().is_some() && same_queue(claimant) {
                return Some(id);
            }
            self.successor(claimant, depth + 1)
        })
    }

    /// Returns the slice whose quota a workload takes over when admitted to `cluster_queue`.
    pub(super) fn predecessor(&self, slot: &CachedWorkload, cluster_queue: NodeId) -> Option<&CachedWorkload> {
        self.workloads.predecessor(slot, cluster_queue)
    }

    /// Returns the contribution of a workload in this queue state.
    fn accounting(&self, id: WorkloadId, slot: &CachedWorkload, standing: &QueueState) -> Accounting {
        let entry = &slot.info;
        let pending = WorkloadCounts { pending: 1, ..WorkloadCounts::default() };
        let base = Accounting { local_queue: slot.local_queue, ..Accounting::default() };
        match standing {
            QueueState::Inactive | QueueState::Superseded(_) => Accounting::default(),
            QueueState::OnHold(Hold { cluster_queue, .. }) => {
                Accounting { cluster_queue: *cluster_queue, counts: pending, ..base }
            }
            QueueState::Queued(cluster_queue) => Accounting {
                cluster_queue: Some(*cluster_queue),
                counts: pending,
                queue_position: self.queue_position(id, slot, *cluster_queue),
                ..base
            },
            QueueState::Admitted(admission) => {
                let admitted = entry.admitted || slot.assumed_admission.is_some();
                let charge = Arc::new(self.workload_usage(slot, admission));
                let releasing = self.releasing_usage(slot, admission, &charge);
                let can_go = !slot.is_releasing() && slot.assumed_admission.is_none();
                let kept = if releasing.is_empty() { charge.clone() } else { Arc::new(minus(&charge, &releasing)) };
                Accounting {
                    releasing,
                    preemptible: if can_go { self.preemptible_amounts(id, slot, admission, kept) } else { Vec::new() },
                    cluster_queue: self.tree.known_cluster_queue(&admission.cluster_queue),
                    counts: WorkloadCounts { pending: 0, reserving: 1, admitted: i32::from(admitted) },
                    usage: charge,
                    ..base
                }
            }
        }
    }

    /// Returns the part of its usage that a workload has to release.
    fn releasing_usage(
        &self,
        slot: &CachedWorkload,
        admission: &Admission,
        charge: &Arc<FlavorResourceQuantities>,
    ) -> Arc<FlavorResourceQuantities> {
        if slot.is_releasing() {
            return charge.clone();
        }
        let left = slot.releasing_up_to().map(|part| slot.info.usage_without(part, admission, &self.tree));
        Arc::new(left.map(|left| minus(charge, &left)).unwrap_or_default())
    }

    /// Returns the preemptible amounts of a workload that retains `charge`, in preemption order:
    /// its parts, then the rest.
    fn preemptible_amounts(
        &self,
        id: WorkloadId,
        slot: &CachedWorkload,
        admission: &Admission,
        mut charge: Arc<FlavorResourceQuantities>,
    ) -> Vec<(PreemptionOrder, PreemptibleUsage)> {
        let all = charge.clone();
        let holder = |charge: Arc<FlavorResourceQuantities>| PreemptibleUsage {
            queue_order_timestamp: slot.info.queue_order_timestamp,
            usage: charge,
            total: all.clone(),
        };
        let mut losses = Vec::new();
        // A slice that still covers a replaced one is preempted only as a whole.
        for part in slot.info.parts_after(slot.releasing_up_to()).filter(|_| self.replaced_slices(slot).is_empty()) {
            let left = slot.info.usage_without(part, admission, &self.tree);
            let rank = slot.info.preemption_order(id, PreemptionScope::Part(part));
            losses.push((rank, holder(Arc::new(minus(&charge, &left)))));
            charge = Arc::new(left);
        }
        losses.push((slot.info.preemption_order(id, PreemptionScope::Whole), holder(charge)));
        losses
    }

    /// Returns the usage of a workload: what it holds and, until the slices that it replaced are
    /// observed as finished, no less than they held. If the successor is evicted after all, the
    /// quota of its predecessors is still covered.
    fn workload_usage(&self, slot: &CachedWorkload, admission: &Admission) -> FlavorResourceQuantities {
        let mut charge = slot.info.usage(admission, &self.tree);
        for replaced in self.replaced_slices(slot) {
            let before = replaced.admission().map(|admission| replaced.info.usage(admission, &self.tree));
            for (at, amount) in before.into_iter().flatten() {
                let most = charge.entry(at).or_default();
                *most = amount.max(*most);
            }
        }
        charge
    }

    /// Returns the slices with quota that this one replaced, the latest first.
    pub(super) fn replaced_slices(&self, slot: &CachedWorkload) -> Vec<&CachedWorkload> {
        let mut replaced = Vec::new();
        let Some(mut claimed) = slot.info.replaces.as_ref() else { return replaced };
        let mut chain: Vec<WorkloadId> = self.workloads.id(&slot.info.key).into_iter().collect();
        while let Some(id) = self.workloads.id(claimed).filter(|_| chain.len() < MAX_CHAIN_LENGTH) {
            let Some(before) = self.workloads.get(id) else { break };
            // A finished slice may sit between an unfinished one and its successor.
            if before.info.stage != AdmissionStage::Finished {
                if !matches!(&before.queue_state, QueueState::Superseded(by) if chain.contains(by)) {
                    break;
                }
                if before.admission().is_some() {
                    replaced.push(before);
                }
            }
            chain.push(id);
            let Some(next) = before.info.replaces.as_ref() else { break };
            claimed = next;
        }
        replaced
    }

    /// Returns the position of a queued workload; `None` if its requests are invalid.
    fn queue_position(
        &self,
        id: WorkloadId,
        slot: &CachedWorkload,
        cluster_queue: NodeId,
    ) -> Option<(EquivalenceKey, QueueOrder)> {
        let demand = slot.info.requests.as_ref().ok()?.clone();
        let quota = self.cluster_queues.get(cluster_queue)?.config.as_ref();
        let strict = quota.is_some_and(|quota| quota.strict_fifo);
        // A workload that takes over a slice's quota, or preempts for one of several possible
        // assignments, is equivalent to no other workload.
        let has_choice = || {
            let flavors = quota.is_some_and(|quota| quota.groups.iter().any(|group| group.flavors.len() > 1));
            flavors || demand.pod_sets.iter().any(|set| set.reducible(set.count) > 0)
        };
        let chosen = slot.reserved_assignment.is_some() && has_choice();
        let alone = (chosen || self.predecessor(slot, cluster_queue).is_some()).then_some(id);
        let shape = EquivalenceKey {
            priority: std::cmp::Reverse(slot.info.priority),
            requests: demand,
            replacing_workload: alone,
        };
        Some((shape, slot.info.queue_order(id, slot.reserved_assignment.is_some() && !strict)))
    }

    /// Adds the contribution of a workload to its ClusterQueue, LocalQueue and cohort tree.
    fn add_usage(&mut self, id: WorkloadId, uid: &Arc<str>, booking: &Accounting) {
        let admitted = booking.counts.admitted > 0;
        if let Some(node) = booking.cluster_queue {
            self.add_tree_usage(node, booking, 1);
            let state = self.cluster_queues.get_or_insert(self.tree.name(node), node);
            state.workloads.insert(id);
            state.counts.add_signed(booking.counts, 1);
            state.ledger.apply((uid, id), &booking.usage, admitted, IndexUpdate::Insert);
            if !booking.releasing.is_empty() {
                state.ledger.releasing.insert(id, booking.releasing.clone());
            }
            for (rank, holder) in &booking.preemptible {
                state.ledger.add_preemptible(rank.clone(), holder.clone());
            }
            if let Some((shape, rank)) = &booking.queue_position {
                state.pending_queue.insert(shape, rank.clone());
            }
            self.dirty_cluster_queues.insert(node);
            self.dirty_objects.cluster_queues.insert(node);
        }
        if let Some(local_queue) = booking.local_queue {
            if let Some(state) = self.local_queues.get_mut(local_queue) {
                state.counts.add_signed(booking.counts, 1);
                state.totals.apply(&booking.usage, admitted, IndexUpdate::Insert);
            }
            self.dirty_objects.local_queues.insert(local_queue);
        }
    }

    /// Removes the contribution of a workload; the inverse of [`Self::add_usage`].
    pub(super) fn remove_usage(&mut self, id: WorkloadId, uid: &Arc<str>, booking: &Accounting) {
        let admitted = booking.counts.admitted > 0;
        if let Some(node) = booking.cluster_queue
            && let Some(state) = self.cluster_queues.get_mut(node)
        {
            state.workloads.remove(&id);
            state.counts.add_signed(booking.counts, -1);
            state.ledger.apply((uid, id), &booking.usage, admitted, IndexUpdate::Remove);
            state.ledger.releasing.remove(&id);
            for (rank, _) in &booking.preemptible {
                state.ledger.remove_preemptible(rank);
            }
            if let Some((shape, rank)) = &booking.queue_position {
                state.pending_queue.remove(shape, rank);
            }
            self.add_tree_usage(node, booking, -1);
            self.dirty_cluster_queues.insert(node);
            self.dirty_objects.cluster_queues.insert(node);
            self.remove_unused_cluster_queue(node);
        }
        if let Some(local_queue) = booking.local_queue
            && let Some(state) = self.local_queues.get_mut(local_queue)
        {
            state.counts.add_signed(booking.counts, -1);
            state.totals.apply(&booking.usage, admitted, IndexUpdate::Remove);
            self.dirty_objects.local_queues.insert(local_queue);
            self.remove_unused_local_queue(local_queue);
        }
    }

    /// Adds the usage to the cohort tree, or removes it with `sign` -1.
    fn add_tree_usage(&mut self, node: NodeId, booking: &Accounting, sign: i128) {
        if self.settings.fair_sharing.is_some() && !booking.usage.is_empty() {
            self.dirty_objects.cohorts.extend(self.tree.ancestors(node));
        }
        if !booking.usage.is_empty() {
            self.tree.advance_state();
        }
        for (fr, amount) in booking.usage.iter() {
            self.tree.add_usage(node, *fr, sign * amount, UsageView::Actual);
            let kept = amount - booking.releasing.get(fr).copied().unwrap_or(0);
            self.tree.add_usage(node, *fr, sign * kept, UsageView::Planned);
        }
    }

    /// Returns the usage of every workload that holds quota in a ClusterQueue, computed from
    /// scratch.
    #[cfg(test)]
    pub(super) fn recomputed_usage(&self, cluster_queue: &str) -> Vec<(super::ObjectKey, FlavorResourceQuantities)> {
        let holders = self.workloads.iter().filter_map(|(key, _, slot)| match self.queue_state(slot) {
            QueueState::Admitted(admission) if admission.cluster_queue == cluster_queue => {
                Some((key.clone(), self.workload_usage(slot, &admission)))
            }
            _ => None,
        });
        holders.collect()
    }
}

impl WorkloadCounts {
    fn add_signed(&mut self, other: Self, sign: i32) {
        self.pending += sign * other.pending;
        self.reserving += sign * other.reserving;
        self.admitted += sign * other.admitted;
    }
}
