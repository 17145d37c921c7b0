//! Selects the preemption candidates that the policy of the ClusterQueue permits.

use jiff::Timestamp;

use super::{Victim, Want};
use crate::PreemptionRight;
use crate::engine::WorkloadId;
use crate::ledger::HolderRank;
use crate::queues::Queues;
use crate::quota::PreemptionRules;
use crate::tree::NodeId;
use sluice_api::kueue::cluster_queue::{ReclaimPolicy, WithinClusterQueuePolicy};

/// The properties of a preemptor that decide which workloads it may preempt.
#[derive(Clone, Copy)]
pub(super) struct Preemptor<'a> {
    pub(super) queues: &'a Queues,
    pub(super) rules: PreemptionRules,
    pub(super) priority: i32,
    pub(super) since: Timestamp,
    /// The slice that it replaces, which is never a candidate.
    pub(super) predecessor: Option<WorkloadId>,
}

impl<'a> Preemptor<'a> {
    /// Returns the candidates within the ClusterQueue that `withinClusterQueue` permits, in the
    /// order of preemption.
    pub(super) fn own(self, node: NodeId, want: Want<'a>) -> impl Iterator<Item = Victim> + 'a {
        let may = move |rank: &HolderRank, since: Timestamp| match self.rules.within {
            WithinClusterQueuePolicy::Never => false,
            WithinClusterQueuePolicy::LowerPriority => rank.priority < self.priority,
            WithinClusterQueuePolicy::LowerOrNewerEqualPriority => {
                rank.priority < self.priority || (rank.priority == self.priority && self.since < since)
            }
        };
        self.candidates(node, want, PreemptionRight::InClusterQueue, may)
    }

    /// Returns the candidates of another ClusterQueue that `reclaimWithinCohort` permits, in the
    /// order of preemption.
    pub(super) fn reclaimable(
        self,
        node: NodeId,
        want: Want<'a>,
        right: PreemptionRight,
    ) -> impl Iterator<Item = Victim> + 'a {
        let may = move |rank: &HolderRank, _| match self.rules.reclaim {
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
        want: Want<'a>,
        right: PreemptionRight,
        may: impl Fn(&HolderRank, Timestamp) -> bool + 'a,
    ) -> impl Iterator<Item = Victim> + 'a {
        let holders = self.queues.get(node).into_iter().flat_map(|state| &state.ledger.stable);
        // Holders are ordered by priority. Those above the preemptor are candidates only if any
        // priority may be preempted.
        let lowest = holders
            .take_while(move |(rank, _)| self.rules.reclaim == ReclaimPolicy::Any || rank.priority <= self.priority);
        let useful = lowest.filter(move |(rank, holder)| {
            may(rank, holder.since)
                && want.short.iter().any(|fr| holder.all.contains_key(fr))
                && self.predecessor != Some(rank.workload)
                && want.spared.get(&rank.workload).is_none_or(|spared| rank.loss < *spared)
        });
        useful.map(move |(rank, holder)| Victim {
            cluster_queue: node,
            rank: rank.clone(),
            charge: holder.charge.clone(),
            right,
        })
    }
}
