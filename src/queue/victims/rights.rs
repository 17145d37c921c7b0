//! Over whom a workload that looks for room has a right.

use jiff::Timestamp;

use super::{Victim, Want};
use crate::PreemptionRight;
use crate::engine::WorkloadId;
use crate::ledger::HolderRank;
use crate::queues::Queues;
use crate::quota::PreemptionRules;
use crate::tree::NodeId;
use sluice_api::kueue::cluster_queue::{ReclaimPolicy, WithinClusterQueuePolicy};

/// The workload that looks for room, as far as its rights depend on it.
#[derive(Clone, Copy)]
pub(super) struct Preemptor<'a> {
    pub(super) queues: &'a Queues,
    pub(super) rules: PreemptionRules,
    pub(super) priority: i32,
    pub(super) since: Timestamp,
    /// It is never a victim of its successor.
    pub(super) predecessor: Option<WorkloadId>,
}

impl<'a> Preemptor<'a> {
    /// Those of its own ClusterQueue over whom its priority or age gives it a right, in the order of preemption.
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

    /// Those of another ClusterQueue that the policy on reclaiming quota allows for, in the order of preemption.
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

    fn candidates(
        self,
        node: NodeId,
        want: Want<'a>,
        right: PreemptionRight,
        may: impl Fn(&HolderRank, Timestamp) -> bool + 'a,
    ) -> impl Iterator<Item = Victim> + 'a {
        let holders = self.queues.get(node).into_iter().flat_map(|state| &state.ledger.stable);
        // They are in order of priority, and who is above the preemptor's is only met where any priority may go.
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
