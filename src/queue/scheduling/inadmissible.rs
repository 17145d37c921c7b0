//! Parks inadmissible workloads and retries them when they may have become admissible.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::pending_queue::{EquivalenceClassId, Parked, QueueOrder, QuotaNeed};
use crate::scheduler::{CachedClusterQueue, Scheduler};
use crate::tree::{DominantShare, FlavorResourceId, NodeId, UsageView};
use sluice_api::kueue::cluster_queue::{ReclaimPolicy, WithinClusterQueuePolicy};

/// The change after which a workload without preemption targets is retried: enough available quota,
/// or a sibling with a share as large as its own would be.
#[derive(Debug)]
pub(crate) struct RetryCondition {
    /// The amounts that were not available.
    needs: Vec<QuotaNeed>,
    priority: i32,
}

/// A share at which a sibling below the Cohort may be preempted.
#[derive(Debug, Clone, Copy)]
pub(super) struct ShareThreshold {
    pub(super) cohort: NodeId,
    pub(super) fr: FlavorResourceId,
    pub(super) share: DominantShare,
}

impl Scheduler {
    /// Parks the class of a workload until its needs may be reachable; if they are already, until
    /// its retry condition is met.
    pub(super) fn park_inadmissible(&mut self, node: NodeId, rank: &QueueOrder, needs: Vec<QuotaNeed>) {
        let Some(place) = self.workloads.get(rank.workload).and_then(|slot| slot.accounting.queue_position.clone())
        else {
            return;
        };
        let Some(state) = self.cluster_queue(node) else { return };
        let alone = place.0.replacing_workload.is_some();
        let within = |need: &QuotaNeed| self.reachable_quota(state, node, need.fr, rank.priority.0) >= need.amount;
        let tried = if alone || needs.is_empty() {
            Parked::UntilChanged(None)
        } else if needs.iter().any(within) {
            Parked::UntilChanged(self.retry_condition(node, rank.priority.0, smallest_needs(needs)).map(Arc::new))
        } else {
            Parked::UntilReachable(smallest_needs(needs))
        };
        if let Some(state) = self.cluster_queue_mut(node) {
            state.pending_queue.park(&place.0, tried);
        }
    }

    /// Activates the parked classes of a ClusterQueue that a change may have made admissible.
    /// Returns whether there were any.
    pub(super) fn reactivate(&mut self, node: NodeId) -> bool {
        let Some(state) = self.cluster_queue(node) else { return false };
        let helped = |watch: Option<&RetryCondition>| watch.is_none_or(|watch| self.may_be_met(node, watch));
        let helped: Vec<EquivalenceClassId> = state
            .pending_queue
            .parked_until_changed()
            .filter(|(_, watch)| helped(*watch))
            .map(|(class, _)| class)
            .collect();
        if helped.is_empty() {
            return false;
        }
        if let Some(state) = self.cluster_queue_mut(node) {
            helped.iter().for_each(|class| state.pending_queue.activate(*class));
        }
        true
    }

    /// Returns the retry condition under fair sharing; `None` if any change may help.
    fn retry_condition(&self, node: NodeId, priority: i32, needs: Vec<QuotaNeed>) -> Option<RetryCondition> {
        self.settings.fair_sharing.as_ref()?;
        let watch = RetryCondition { needs, priority };
        (!self.may_be_met(node, &watch)).then_some(watch)
    }

    /// Reports whether the retry condition may be met. Other ClusterQueues are preempted only if a
    /// borrowing sibling, at some level of the tree, has a share at least as large as that of the
    /// workload, or if its ClusterQueue would not borrow. Each need is a lower bound of the
    /// request, so the actual share may be larger, never smaller.
    fn may_be_met(&self, node: NodeId, watch: &RetryCondition) -> bool {
        let Some(state) = self.cluster_queue(node) else { return true };
        let room = |need: &QuotaNeed| {
            preemptible_within_cluster_queue(state, need.fr, watch.priority) > 0
                || !self.tree.would_borrow(node, need.fr, need.amount, UsageView::Planned)
                || self.tree.available(node, need.fr, UsageView::Planned, 0) >= need.amount
        };
        let gives = |alarm: ShareThreshold| {
            self.tree.largest_share(alarm.cohort).is_some_and(|largest| largest.may_be_preempted(alarm.fr, alarm.share))
        };
        watch.needs.iter().any(room) || self.share_thresholds(node, watch).any(gives)
    }

    /// Returns the share thresholds at each level of the tree above. A share never decreases when
    /// usage increases.
    pub(super) fn share_thresholds(
        &self,
        node: NodeId,
        watch: &RetryCondition,
    ) -> impl Iterator<Item = ShareThreshold> {
        watch.needs.iter().flat_map(move |need| self.thresholds_by_level(node, *need))
    }

    /// Returns the Cohorts above, each with the share that its child would have with the need
    /// added.
    fn thresholds_by_level(&self, node: NodeId, need: QuotaNeed) -> impl Iterator<Item = ShareThreshold> {
        let mut at = (node, need.amount);
        std::iter::from_fn(move || {
            let (child, amount) = at;
            let cohort = self.tree.parent(child)?;
            at = (cohort, self.tree.borrowed_from_parent(child, need.fr, amount, UsageView::Planned));
            Some(ShareThreshold { cohort, fr: need.fr, share: self.tree.share_with(child, &[(need.fr, amount)]) })
        })
    }

    /// Returns an upper bound of the amount of a resource that a workload of this priority can get
    /// in any mode.
    pub(super) fn reachable_quota(
        &self,
        state: &CachedClusterQueue,
        node: NodeId,
        fr: FlavorResourceId,
        priority: i32,
    ) -> i128 {
        let tree = &self.tree;
        let free = tree.available(node, fr, UsageView::Planned, 0);
        let Some(rules) = state.config.as_ref().map(|quota| quota.preemption) else { return free };
        let own = preemptible_within_cluster_queue(state, fr, priority);
        if rules.reclaim_within_cohort == ReclaimPolicy::Never {
            return free + own;
        }
        let used = tree.usage(node, fr, UsageView::Planned);
        // Without borrowing preemption and nested Cohorts, reclaiming is limited to the nominal quota.
        let flat = tree.parent(node).is_none_or(|parent| tree.parent(parent).is_none());
        if flat && !rules.borrow_within_cohort && self.settings.fair_sharing.is_none() {
            return (free + own).max(tree.nominal_quota(node, fr) - used + own);
        }
        (free + own).max(tree.potential_available(node, fr) - used + own)
    }
}

/// Returns an upper bound of the usage that a workload of this priority can preempt within its
/// ClusterQueue.
fn preemptible_within_cluster_queue(state: &CachedClusterQueue, fr: FlavorResourceId, priority: i32) -> i128 {
    match state.config.as_ref().map(|quota| quota.preemption.within_cluster_queue).unwrap_or_default() {
        WithinClusterQueuePolicy::Never => 0,
        WithinClusterQueuePolicy::LowerPriority => state.ledger.preemptible_up_to(fr, priority.saturating_sub(1)),
        WithinClusterQueuePolicy::LowerOrNewerEqualPriority => state.ledger.preemptible_up_to(fr, priority),
    }
}

/// Keeps the smallest need of each flavor resource.
fn smallest_needs(needs: Vec<QuotaNeed>) -> Vec<QuotaNeed> {
    let mut least: BTreeMap<FlavorResourceId, i128> = BTreeMap::new();
    for need in needs {
        let amount = least.entry(need.fr).or_insert(need.amount);
        *amount = need.amount.min(*amount);
    }
    least.into_iter().map(|(fr, amount)| QuotaNeed { fr, amount }).collect()
}
