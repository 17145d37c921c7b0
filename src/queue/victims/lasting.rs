//! Excludes preemptions that would be reclaimed: no workload is preempted for a borrower that would
//! have to release the same quota to it.
//!
//! Kueue v0.19.2 has no such rule. There, a borrower can take a ClusterQueue below its nominal
//! quota; the preempted workload, or one that is queued behind it, reclaims the quota from the
//! borrower, which preempts again once others have borrowed, without end.

use std::collections::{BTreeMap, BTreeSet};

use super::{Search, Victim, Want};
use crate::engine::{ClusterQueueState, WorkloadId};
use crate::ledger::{Charge, wide};
use crate::line::Class;
use crate::parts::Loss;
use crate::quota::Quota;
use crate::tree::{Fr, NodeId, View};
use sluice_api::kueue::cluster_queue::ReclaimPolicy;

/// Workloads that could reclaim quota: the amounts that each requests, and their number.
struct Claim {
    priority: i32,
    asks: Vec<(Fr, i128)>,
    times: usize,
}

impl Search<'_> {
    /// Finds targets whose ClusterQueues would not reclaim the released quota. If one would, its
    /// last target in the order of preemption is exempt and the search repeats.
    pub(super) fn lasting(
        &mut self,
        usage: &Charge,
        short: &[Fr],
        find: impl Fn(&mut Self, &Want<'_>) -> Vec<Victim>,
    ) -> Vec<Victim> {
        let mut spared = BTreeMap::new();
        loop {
            let want = Want { usage, short, spared: &spared };
            let victims = find(self, &want);
            match self.would_return(&victims, &want) {
                Some((workload, loss)) => spared.insert(workload, loss),
                None => return victims,
            };
        }
    }

    /// Returns the last target whose ClusterQueue would reclaim the released quota; `None` if none
    /// would.
    fn would_return(&mut self, victims: &[Victim], want: &Want<'_>) -> Option<(WorkloadId, Loss)> {
        if victims.iter().all(|victim| victim.cluster_queue == self.node) {
            return None;
        }
        self.take(victims, true);
        self.add(self.node, want.usage, 1);
        let queues: BTreeSet<NodeId> = victims.iter().map(|victim| victim.cluster_queue).collect();
        let claiming: Vec<NodeId> = queues
            .into_iter()
            .filter(|node| *node != self.node && self.has_claim(*node, victims, want.short))
            .collect();
        let theirs = victims.iter().filter(|victim| claiming.contains(&victim.cluster_queue));
        let last = theirs.map(|victim| &victim.rank).max().map(|rank| (rank.workload, rank.loss));
        self.add(self.node, want.usage, -1);
        self.take(victims, false);
        last
    }

    /// Reports whether a ClusterQueue could reclaim from the preemptor once that is admitted: the
    /// amount that it is entitled to and has requests for exceeds the available amount.
    fn has_claim(&self, node: NodeId, victims: &[Victim], short: &[Fr]) -> bool {
        let Some(state) = self.queues.get(node) else { return false };
        let Some(quota) = state.quota.as_ref() else { return false };
        let lent: Vec<(Fr, i128, i128)> =
            short.iter().filter_map(|fr| self.lent_beyond_what_is_free(node, *fr)).collect();
        if lent.is_empty() || quota.preemption.reclaim == ReclaimPolicy::Never {
            return false;
        }
        let claims = self.claims(node, state, quota, victims, short);
        lent.into_iter().any(|(fr, right, free)| {
            let asked = claims.iter().map(|claim| {
                let ask = claim.asks.iter().find(|(asked, _)| *asked == fr).map_or(0, |(_, amount)| *amount);
                ask.saturating_mul(claim.times as i128)
            });
            asked.fold(0, i128::saturating_add).min(right) > free
        })
    }

    /// Returns the unused entitlement of a ClusterQueue and the available part of it. `None` if all
    /// of it is available, or if the preemptor would not have to release any.
    fn lent_beyond_what_is_free(&self, node: NodeId, fr: Fr) -> Option<(Fr, i128, i128)> {
        let right = self.tree.subtree_quota(node, fr) - self.tree.used(node, fr, View::Planned);
        let free = self.tree.available(node, fr, View::Planned, 0).max(0);
        (right > free && self.borrows_from(node, fr)).then_some((fr, right, free))
    }

    /// Reports whether the preemptor's ClusterQueue, and each Cohort below the one that it shares
    /// with `other`, exceeds its quota.
    fn borrows_from(&self, other: NodeId, fr: Fr) -> bool {
        let theirs: Vec<NodeId> = self.tree.above(other).collect();
        let below_common = self.tree.above(self.node).take_while(|node| !theirs.contains(node));
        std::iter::once(self.node).chain(below_common).all(|node| !self.tree.within_quota(node, &[fr], View::Planned))
    }

    /// Returns the workloads that would fit into the entitlement of a ClusterQueue: its preempted
    /// workloads and its queued ones.
    fn claims(
        &self,
        node: NodeId,
        state: &ClusterQueueState,
        quota: &Quota,
        victims: &[Victim],
        short: &[Fr],
    ) -> Vec<Claim> {
        let of_victims = victims.iter().filter(|victim| victim.cluster_queue == node).map(|victim| {
            let asks = short.iter().filter_map(|fr| Some((*fr, *victim.charge.get(fr)?)));
            Claim { priority: victim.rank.priority, asks: asks.collect(), times: 1 }
        });
        let waiting = state.line.classes().map(|class| self.claim_of(node, quota, class, short));
        let may = |claim: &Claim| match quota.preemption.reclaim {
            ReclaimPolicy::Never => false,
            ReclaimPolicy::LowerPriority => self.priority < claim.priority,
            ReclaimPolicy::Any => true,
        };
        let within = |claim: &Claim| {
            let mut asks = claim.asks.iter().filter(|(_, amount)| *amount > 0);
            asks.all(|(fr, amount)| !self.tree.would_borrow(node, *fr, *amount, View::Planned))
        };
        of_victims.chain(waiting).filter(|claim| may(claim) && within(claim)).collect()
    }

    /// Returns the smallest requests of a queued class, less the usage of its predecessor.
    fn claim_of(&self, node: NodeId, quota: &Quota, class: Class<'_>, short: &[Fr]) -> Claim {
        let slot = self.workloads.get(class.first.workload);
        let before = slot.and_then(|slot| self.workloads.predecessor(slot, node)).map(|before| &before.booked.charge);
        let asks = short.iter().filter(|fr| quota.provides(**fr)).map(|fr| {
            let resource = &self.tree.flavor_resource(*fr).resource;
            let of_set = |set| quota.requests(set, set.min_count).find(|(name, _)| name == resource);
            let least = class.shape.demand.pod_sets.iter().filter_map(of_set).map(|(_, amount)| wide(amount));
            let held = before.and_then(|charge| charge.get(fr)).copied().unwrap_or(0);
            (*fr, (least.sum::<i128>() - held).max(0))
        });
        Claim { priority: class.shape.priority.0, asks: asks.collect(), times: class.count }
    }
}
