//! One scheduling cycle.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::Effect;
use super::engine::{ClusterQueueState, Engine, WorkloadId};
use super::explain::Holders;
use super::tree::NodeId;
use sluice_api::kueue::Admission;

/// Number of workloads at the head of a ClusterQueue whose pending messages are refreshed as usage
/// changes. The others keep the numbers from when they were queued; otherwise each admission would
/// write to every pending workload.
const FRONT: usize = 32;

/// Delay before changed numbers are written to the heads. A changed reason is written immediately,
/// to all workloads.
const REFRESH_AFTER: SignedDuration = SignedDuration::from_secs(10);

impl Engine {
    /// Runs a scheduling cycle for everything that changed. Returns the decisions that the observed
    /// objects do not reflect yet: evictions and completions first, then admissions in the order of
    /// nomination, then the rest.
    pub fn cycle(&mut self, now: Timestamp) -> Vec<Effect> {
        self.now = self.now.max(now);
        self.end_waits();
        self.put_tree_together();
        let mut admitted = Vec::new();
        let roots: BTreeSet<NodeId> =
            std::mem::take(&mut self.dirty).into_iter().map(|node| self.tree.root(node)).collect();
        for root in roots {
            self.take_turns(root, &mut admitted);
            self.note_changes(root);
        }
        if self.admission_blocked() {
            self.dirty.extend(self.waiting_everywhere());
        } else {
            // Usage that changed during the cycle was already considered.
            self.dirty.clear();
        }
        self.refresh_numbers();
        let touched = std::mem::take(&mut self.touched);
        let turns: BTreeMap<WorkloadId, usize> =
            admitted.into_iter().enumerate().map(|(turn, id)| (id, turn)).collect();
        let mut effects: Vec<((u8, usize), Effect)> = Vec::new();
        let mut holders = Holders::default();
        for id in touched.workloads {
            let effect = self.workload_effect_anew(id, &mut holders);
            let turn = turns.get(&id).copied().unwrap_or(usize::MAX);
            effects.extend(effect.map(|effect| ((urgency(&effect), turn), effect)));
        }
        let queues = touched.cluster_queues.iter().filter_map(|node| self.cluster_queue_effect(*node));
        let cohorts = touched.cohorts.iter().filter_map(|node| self.cohort_effect(*node));
        let local_queues = touched.local_queues.iter().filter_map(|id| self.local_queue_effect(*id));
        let statuses = queues.chain(cohorts).chain(local_queues);
        effects.extend(statuses.map(|effect| ((urgency(&effect), usize::MAX), effect)));
        effects.sort_by_key(|(urgency, _)| *urgency);
        effects.into_iter().map(|(_, effect)| effect).collect()
    }

    /// Returns the decision for a workload, and records its reason if it is a pending condition of
    /// a queued workload.
    fn workload_effect_anew(&mut self, id: WorkloadId, holders: &mut Holders) -> Option<Effect> {
        let effect = self.workload_effect(id, self.workloads.get(id)?, holders);
        if let Some(slot) = self.workloads.get_mut(id) {
            slot.to_tell = match &effect {
                Some(Effect::Pending { why, .. }) if why.is_in_line() => Some(why.reason()),
                _ => None,
            };
        }
        effect
    }

    /// Returns the time at which a cycle is due without any input: the next requeue, deadline or
    /// message refresh. `None` if nothing is due.
    pub fn wake_at(&self) -> Option<Timestamp> {
        self.timers.iter().next().map(|(at, _)| *at).into_iter().chain(self.refreshes.first().map(|(at, _)| *at)).min()
    }

    fn end_waits(&mut self) {
        while let Some((at, id)) = self.timers.first().copied().filter(|(at, _)| *at <= self.now) {
            self.timers.remove(&(at, id));
            self.settle(id);
        }
    }

    /// Rebuilds the cohort tree and requeues all workloads if quota or the tree structure changed.
    fn put_tree_together(&mut self) {
        if !self.tree.is_stale() {
            return;
        }
        self.undo_all_promises();
        self.tree.refresh();
        for node in self.cluster_queues.iter().map(|state| state.node).collect::<Vec<_>>() {
            let cycle = self.tree.cycle_above(node);
            let Some(state) = self.cluster_queues.get_mut(node) else { continue };
            state.line.retry_all();
            self.dirty.insert(node);
            if state.cohort_cycle != cycle {
                state.cohort_cycle = cycle;
                self.cluster_queue_changed(node);
            }
            self.touched.cluster_queues.insert(node);
        }
        if self.settings.fair_sharing.is_some() {
            let cohorts = self.cohorts.keys().filter_map(|name| self.tree.known_cohort(name));
            self.touched.cohorts.extend(cohorts);
        }
    }

    /// Adds an admission to the usage before it is observed. A replaced slice
    /// releases its quota in the same step, so the pair is counted once before and after.
    pub(super) fn assume(&mut self, id: WorkloadId, admission: Admission) {
        let Some(slot) = self.workloads.get_mut(id) else { return };
        slot.assumed = Some(Arc::new(admission));
        self.settle_family(id);
    }

    /// Reports whether admissions are blocked until all admitted workloads are ready
    /// (`waitForPodsReady.blockAdmission`).
    pub(super) fn admission_blocked(&self) -> bool {
        self.settings.wait_for_pods_ready.as_ref().is_some_and(|rules| rules.block_admission)
            && !self.unready.is_empty()
    }

    fn waiting_everywhere(&self) -> BTreeSet<NodeId> {
        self.cluster_queues.iter().filter(|state| !state.line.is_empty()).map(|state| state.node).collect()
    }

    /// Schedules a message refresh for the heads, and reports a new head of a StrictFIFO
    /// ClusterQueue to the workloads behind it immediately.
    fn note_changes(&mut self, root: NodeId) {
        let soon = self.now.saturating_add(REFRESH_AFTER).unwrap_or(self.now);
        for node in self.tree.cluster_queues_below(root) {
            let Some(state) = self.cluster_queues.get_mut(node) else { continue };
            let first = state.line.head().map(|rank| rank.workload);
            if first.is_some() && state.refresh_at.is_none() {
                state.refresh_at = Some(soon);
                self.refreshes.insert((soon, node));
            }
            if state.quota.as_ref().is_some_and(|quota| quota.strict) && first != state.first {
                state.first = first;
                self.touched.workloads.extend(front(state));
            }
        }
    }

    fn refresh_numbers(&mut self) {
        while let Some((at, node)) = self.refreshes.first().copied().filter(|(at, _)| *at <= self.now) {
            self.refreshes.remove(&(at, node));
            let Some(state) = self.cluster_queues.get_mut(node) else { continue };
            state.refresh_at = None;
            for id in front(state) {
                if let Some(slot) = self.workloads.get_mut(id) {
                    slot.refresh = true;
                }
                self.touched.workloads.insert(id);
            }
        }
    }
}

/// Returns the workloads whose pending messages are refreshed.
fn front(state: &ClusterQueueState) -> impl Iterator<Item = WorkloadId> {
    state.line.iter().take(FRONT).map(|rank| rank.workload)
}

/// Returns the position of a decision in the write order; lower is earlier.
fn urgency(effect: &Effect) -> u8 {
    match effect {
        Effect::Evict { .. }
        | Effect::GiveBack { .. }
        | Effect::GivenBack { .. }
        | Effect::Deactivate { .. }
        | Effect::SetInactive { .. }
        | Effect::FinishReplaced { .. }
        | Effect::ShrinkAdmission { .. } => 0,
        Effect::Admit { .. } => 1,
        Effect::Pending { .. } => 2,
        Effect::ClusterQueueStatus { .. } | Effect::CohortStatus { .. } | Effect::LocalQueueStatus { .. } => 3,
    }
}
