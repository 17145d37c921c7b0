//! Selects the preemption candidates that the policy of the ClusterQueue permits.

use jiff::Timestamp;

use super::{PreemptionRequest, Target};
use crate::PreemptionReason;
use crate::cluster_queue_config::PreemptionPolicy;
use crate::cluster_queues::ClusterQueues;
use crate::ledger::PreemptionOrder;
use crate::scheduler::WorkloadId;
use crate::tree::NodeId;
use sluice_api::kueue::cluster_queue::{ReclaimPolicy, WithinClusterQueuePolicy};

/// The properties of a preemptor that decide which workloads it may preempt.
#[derive(Clone, Copy)]
pub(super) struct CandidateFilter<'a> {
    pub(super) cluster_queues: &'a ClusterQueues,
    pub(super) policy: PreemptionPolicy,
    pub(super) priority: i32,
    pub(super) queue_order_timestamp: Timestamp,
    /// The slice that it replaces, which is never a candidate.
    pub(super) predecessor: Option<WorkloadId>,
}

impl<'a> CandidateFilter<'a> {
    /// Returns the candidates within the ClusterQueue that `withinClusterQueue` permits, in the
    /// order of preemption.
    pub(super) fn within_cluster_queue(
        self,
        node: NodeId,
        want: PreemptionRequest<'a>,
    ) -> impl Iterator<Item = Target> + 'a {
        let may = move |rank: &PreemptionOrder, since: Timestamp| match self.policy.within_cluster_queue {
            WithinClusterQueuePolicy::Never => false,
            WithinClusterQueuePolicy::LowerPriority => rank.priority < self.priority,
            WithinClusterQueuePolicy::LowerOrNewerEqualPriority => {
                rank.priority < self.priority || (rank.priority == self.priority && self.queue_order_timestamp < since)
            }
        };
        self.candidates(node, want, PreemptionReason::InClusterQueue, may)
    }

    /// Returns the candidates of another ClusterQueue that `reclaimWithinCohort` permits, in the
    /// order of preemption.
    pub(super) fn reclaimable(
        self,
        node: NodeId,
        want: PreemptionRequest<'a>,
        right: PreemptionReason,
    ) -> impl Iterator<Item = Target> + 'a {
        let may = move |rank: &PreemptionOrder, _| match self.policy.reclaim_within_cohort {
            ReclaimPolicy::Never => false,
            ReclaimPolicy::LowerPriority => rank.priority < self.priority,
            ReclaimPolicy::Any => true,
        };
        self.candidates(node, want, right, may)
    }

    /// Returns the candidates of a ClusterQueue that `may` permits and that use a needed resource.
    fn candidates(
        self,
        node: NodeId,
        want: PreemptionRequest<'a>,
        right: PreemptionReason,
        may: impl Fn(&PreemptionOrder, Timestamp) -> bool + 'a,
    ) -> impl Iterator<Item = Target> + 'a {
        let holders = self.cluster_queues.get(node).into_iter().flat_map(|state| &state.ledger.preemptible);
        // Holders are ordered by priority. Those above the preemptor are candidates only if any
        // priority may be preempted.
        let lowest = holders.take_while(move |(rank, _)| {
            self.policy.reclaim_within_cohort == ReclaimPolicy::Any || rank.priority <= self.priority
        });
        let useful = lowest.filter(move |(rank, holder)| {
            may(rank, holder.queue_order_timestamp)
                && want.needs_preemption.iter().any(|fr| holder.total.contains_key(fr))
                && self.predecessor != Some(rank.workload)
                && want.exempt.get(&rank.workload).is_none_or(|spared| rank.scope < *spared)
        });
        useful.map(move |(rank, holder)| Target {
            cluster_queue: node,
            order: rank.clone(),
            usage: holder.usage.clone(),
            reason: right,
        })
    }
}
