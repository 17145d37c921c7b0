//! Excludes preemptions that would be reclaimed: no workload is preempted for a borrower that would
//! have to release the same quota to it.
//!
//! Kueue v0.19.2 has no such rule. There, a borrower can take a ClusterQueue below its nominal
//! quota; the preempted workload, or one that is queued behind it, reclaims the quota from the
//! borrower, which preempts again once others have borrowed, without end.

use std::collections::{BTreeMap, BTreeSet};

use super::{PreemptionRequest, Target, TargetSearch};
use crate::cluster_queue_config::ClusterQueueConfig;
use crate::ledger::{FlavorResourceQuantities, to_i128};
use crate::partial_preemption::PreemptionScope;
use crate::pending_queue::EquivalenceClass;
use crate::scheduler::{CachedClusterQueue, WorkloadId};
use crate::tree::{FlavorResourceId, NodeId, UsageView};
use sluice_api::kueue::cluster_queue::ReclaimPolicy;

/// Workloads that could reclaim quota: the amounts that each requests, and their number.
struct ReclaimClaim {
    priority: i32,
    requests: Vec<(FlavorResourceId, i128)>,
    count: usize,
}

impl TargetSearch<'_> {
    /// Finds targets whose ClusterQueues would not reclaim the released quota. If one would, its
    /// last target in the order of preemption is exempt and the search repeats.
    pub(super) fn without_reclaim_back(
        &mut self,
        usage: &FlavorResourceQuantities,
        short: &[FlavorResourceId],
        find: impl Fn(&mut Self, &PreemptionRequest<'_>) -> Vec<Target>,
    ) -> Vec<Target> {
        let mut spared = BTreeMap::new();
        loop {
            let want = PreemptionRequest { usage, needs_preemption: short, exempt: &spared };
            let targets = find(self, &want);
            match self.would_be_reclaimed(&targets, &want) {
                Some((workload, loss)) => spared.insert(workload, loss),
                None => return targets,
            };
        }
    }

    /// Returns the last target whose ClusterQueue would reclaim the released quota; `None` if none
    /// would.
    fn would_be_reclaimed(
        &mut self,
        targets: &[Target],
        want: &PreemptionRequest<'_>,
    ) -> Option<(WorkloadId, PreemptionScope)> {
        if targets.iter().all(|target| target.cluster_queue == self.node) {
            return None;
        }
        self.evict_all(targets);
        self.add_usage(self.node, want.usage, 1);
        let queues: BTreeSet<NodeId> = targets.iter().map(|target| target.cluster_queue).collect();
        let claiming: Vec<NodeId> = queues
            .into_iter()
            .filter(|node| *node != self.node && self.may_reclaim_back(*node, targets, want.needs_preemption))
            .collect();
        let theirs = targets.iter().filter(|target| claiming.contains(&target.cluster_queue));
        let last = theirs.map(|target| &target.order).max().map(|rank| (rank.workload, rank.scope));
        self.add_usage(self.node, want.usage, -1);
        self.restore_all(targets);
        last
    }

    /// Reports whether a ClusterQueue could reclaim from the preemptor once that is admitted: the
    /// amount that it is entitled to and has requests for exceeds the available amount.
    fn may_reclaim_back(&self, node: NodeId, targets: &[Target], short: &[FlavorResourceId]) -> bool {
        let Some(state) = self.queues.get(node) else { return false };
        let Some(quota) = state.config.as_ref() else { return false };
        let lent: Vec<(FlavorResourceId, i128, i128)> =
            short.iter().filter_map(|fr| self.lent_beyond_free(node, *fr)).collect();
        if lent.is_empty() || quota.preemption.reclaim_within_cohort == ReclaimPolicy::Never {
            return false;
        }
        let claims = self.reclaim_claims(node, state, quota, targets, short);
        lent.into_iter().any(|(fr, right, free)| {
            let asked = claims.iter().map(|claim| {
                let ask = claim.requests.iter().find(|(asked, _)| *asked == fr).map_or(0, |(_, amount)| *amount);
                ask.saturating_mul(claim.count as i128)
            });
            asked.fold(0, i128::saturating_add).min(right) > free
        })
    }

    /// Returns the unused entitlement of a ClusterQueue and the available part of it. `None` if all
    /// of it is available, or if the preemptor would not have to release any.
    fn lent_beyond_free(&self, node: NodeId, fr: FlavorResourceId) -> Option<(FlavorResourceId, i128, i128)> {
        let right = self.tree.subtree_quota(node, fr) - self.tree.usage(node, fr, UsageView::Planned);
        let free = self.tree.available(node, fr, UsageView::Planned, 0).max(0);
        (right > free && self.borrows_from(node, fr)).then_some((fr, right, free))
    }

    /// Reports whether the preemptor's ClusterQueue, and each Cohort below the one that it shares
    /// with `other`, exceeds its quota.
    fn borrows_from(&self, other: NodeId, fr: FlavorResourceId) -> bool {
        let theirs: Vec<NodeId> = self.tree.ancestors(other).collect();
        let below_common = self.tree.ancestors(self.node).take_while(|node| !theirs.contains(node));
        std::iter::once(self.node)
            .chain(below_common)
            .all(|node| !self.tree.within_quota(node, &[fr], UsageView::Planned))
    }

    /// Returns the workloads that would fit into the entitlement of a ClusterQueue: its preempted
    /// workloads and its queued ones.
    fn reclaim_claims(
        &self,
        node: NodeId,
        state: &CachedClusterQueue,
        quota: &ClusterQueueConfig,
        targets: &[Target],
        short: &[FlavorResourceId],
    ) -> Vec<ReclaimClaim> {
        let of_targets = targets.iter().filter(|target| target.cluster_queue == node).map(|target| {
            let asks = short.iter().filter_map(|fr| Some((*fr, *target.usage.get(fr)?)));
            ReclaimClaim { priority: target.order.priority, requests: asks.collect(), count: 1 }
        });
        let waiting = state.pending_queue.classes().map(|class| self.pending_claim(node, quota, class, short));
        let may = |claim: &ReclaimClaim| match quota.preemption.reclaim_within_cohort {
            ReclaimPolicy::Never => false,
            ReclaimPolicy::LowerPriority => self.priority < claim.priority,
            ReclaimPolicy::Any => true,
        };
        let within = |claim: &ReclaimClaim| {
            let mut asks = claim.requests.iter().filter(|(_, amount)| *amount > 0);
            asks.all(|(fr, amount)| !self.tree.would_borrow(node, *fr, *amount, UsageView::Planned))
        };
        of_targets.chain(waiting).filter(|claim| may(claim) && within(claim)).collect()
    }

    /// Returns the smallest requests of a queued class, less the usage of its predecessor.
    fn pending_claim(
        &self,
        node: NodeId,
        quota: &ClusterQueueConfig,
        class: EquivalenceClass<'_>,
        short: &[FlavorResourceId],
    ) -> ReclaimClaim {
        let slot = self.workloads.get(class.head.workload);
        let before =
            slot.and_then(|slot| self.workloads.predecessor(slot, node)).map(|before| &before.accounting.usage);
        let asks = short.iter().filter(|fr| quota.provides(**fr)).map(|fr| {
            let resource = &self.tree.flavor_resource(*fr).resource;
            let of_set = |set| quota.requests(set, set.min_count).find(|(name, _)| name == resource);
            let least = class.key.requests.pod_sets.iter().filter_map(of_set).map(|(_, amount)| to_i128(amount));
            let held = before.and_then(|charge| charge.get(fr)).copied().unwrap_or(0);
            (*fr, (least.sum::<i128>() - held).max(0))
        });
        ReclaimClaim { priority: class.key.priority.0, requests: asks.collect(), count: class.count }
    }
}
