//! One scheduling cycle.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use super::Decision;
use super::explain::HoldersCache;
use super::message_refresh::MessageRefresh;
use super::scheduler::{Scheduler, WorkloadId};
use super::tree::NodeId;
use sluice_api::kueue::Admission;

impl Scheduler {
    /// Runs a scheduling cycle for everything that changed. Returns the decisions that the observed
    /// objects do not reflect yet: evictions and completions first, then admissions in the order of
    /// nomination, then the rest.
    pub fn run_cycle(&mut self, now: Timestamp) -> Vec<Decision> {
        self.now = self.now.max(now);
        self.fire_timers();
        self.rebuild_tree();
        if !std::mem::replace(&mut self.has_run, true) {
            self.drop_message_refreshes();
        }
        let mut admitted = Vec::new();
        let roots: BTreeSet<NodeId> =
            std::mem::take(&mut self.dirty_cluster_queues).into_iter().map(|node| self.tree.root(node)).collect();
        for root in roots {
            self.schedule_tree(root, &mut admitted);
            self.schedule_head_refreshes(root);
        }
        if self.admission_blocked() {
            self.dirty_cluster_queues.extend(self.cluster_queues_with_pending());
        } else {
            // Usage that changed during the cycle was already considered.
            self.dirty_cluster_queues.clear();
        }
        self.refresh_messages();
        let touched = std::mem::take(&mut self.dirty_objects);
        self.changed_counts.extend(&touched.cluster_queues);
        let turns: BTreeMap<WorkloadId, usize> =
            admitted.into_iter().enumerate().map(|(turn, id)| (id, turn)).collect();
        let mut effects: Vec<((u8, usize), Decision)> = Vec::new();
        let mut holders = HoldersCache::default();
        for id in touched.workloads {
            let effect = self.refresh_workload_decision(id, &mut holders);
            let turn = turns.get(&id).copied().unwrap_or(usize::MAX);
            effects.extend(effect.map(|effect| ((write_priority(&effect), turn), effect)));
        }
        let queues = touched.cluster_queues.iter().filter_map(|node| self.cluster_queue_decision(*node));
        let cohorts = touched.cohorts.iter().filter_map(|node| self.cohort_decision(*node));
        let local_queues = touched.local_queues.iter().filter_map(|id| self.local_queue_decision(*id));
        let statuses = queues.chain(cohorts).chain(local_queues);
        effects.extend(statuses.map(|effect| ((write_priority(&effect), usize::MAX), effect)));
        effects.sort_by_key(|(urgency, _)| *urgency);
        effects.into_iter().map(|(_, effect)| effect).collect()
    }

    /// Returns the decision for a workload, and records its reason if it is a pending condition of
    /// a queued workload. A message that is up to date needs no refresh anymore.
    fn refresh_workload_decision(&mut self, id: WorkloadId, holders: &mut HoldersCache) -> Option<Decision> {
        let effect = self.workload_decision(id, self.workloads.get(id)?, holders);
        if let Some(slot) = self.workloads.get_mut(id) {
            slot.refresh_message &= effect.is_some();
            slot.unobserved_reason = match &effect {
                Some(Decision::Pending { cause: why, .. }) if why.is_queued() => Some(why.reason()),
                _ => None,
            };
        }
        effect
    }

    /// Returns the time at which a cycle is due without any input: the next requeue, deadline or
    /// message refresh. `None` if nothing is due.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.requeue_timers
            .iter()
            .next()
            .map(|(at, _)| *at)
            .into_iter()
            .chain(self.message_refreshes.first().map(|(at, _)| *at))
            .min()
    }

    fn fire_timers(&mut self) {
        while let Some((at, id)) = self.requeue_timers.first().copied().filter(|(at, _)| *at <= self.now) {
            self.requeue_timers.remove(&(at, id));
            self.update(id);
        }
    }

    /// Rebuilds the cohort tree and requeues all workloads if quota or the tree structure changed.
    fn rebuild_tree(&mut self) {
        if !self.tree.is_stale() {
            return;
        }
        self.release_all_reservations();
        self.tree.rebuild();
        for node in self.cluster_queues.iter().map(|state| state.node).collect::<Vec<_>>() {
            let cycle = self.tree.cohort_cycle(node);
            let Some(state) = self.cluster_queues.get_mut(node) else { continue };
            state.pending_queue.activate_all();
            self.dirty_cluster_queues.insert(node);
            self.schedule_message_refresh(node, MessageRefresh::after_cohort_change(self.now));
            let Some(state) = self.cluster_queues.get_mut(node) else { continue };
            if state.cohort_cycle != cycle {
                state.cohort_cycle = cycle;
                self.cluster_queue_changed(node);
            }
            self.dirty_objects.cluster_queues.insert(node);
        }
        if self.settings.fair_sharing.is_some() {
            let cohorts = self.cohort_statuses.keys().filter_map(|name| self.tree.known_cohort(name));
            self.dirty_objects.cohorts.extend(cohorts);
        }
    }

    /// Adds an admission to the usage before it is observed. A replaced slice
    /// releases its quota in the same step, so the pair is counted once before and after.
    pub(super) fn assume(&mut self, id: WorkloadId, admission: Admission) {
        let Some(slot) = self.workloads.get_mut(id) else { return };
        slot.assumed_admission = Some(Arc::new(admission));
        self.update_slices(id);
    }

    /// Reports whether admissions are blocked until all admitted workloads are ready
    /// (`waitForPodsReady.blockAdmission`).
    pub(super) fn admission_blocked(&self) -> bool {
        self.settings.wait_for_pods_ready.as_ref().is_some_and(|rules| rules.block_admission)
            && !self.not_ready.is_empty()
    }

    fn cluster_queues_with_pending(&self) -> BTreeSet<NodeId> {
        self.cluster_queues.iter().filter(|state| !state.pending_queue.is_empty()).map(|state| state.node).collect()
    }
}

/// Returns the position of a decision in the write order; lower is earlier.
fn write_priority(effect: &Decision) -> u8 {
    match effect {
        Decision::Evict { .. }
        | Decision::PreemptPart { .. }
        | Decision::PartReleased { .. }
        | Decision::Deactivate { .. }
        | Decision::SetInactive { .. }
        | Decision::FinishReplaced { .. }
        | Decision::ReduceAdmission { .. } => 0,
        Decision::Admit { .. } => 1,
        Decision::Pending { .. } => 2,
        Decision::ClusterQueueStatus { .. } | Decision::CohortStatus { .. } | Decision::LocalQueueStatus { .. } => 3,
    }
}
