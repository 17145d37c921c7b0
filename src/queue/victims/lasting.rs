//! Evictions that last: nobody has to go for a borrower who could take the same quota back by right.
//!
//! Kueue v0.19.2 has no such rule. There a borrower can take a ClusterQueue below its nominal quota; who was evicted reclaims
//! that from the borrower, who evicts again once others have borrowed, and so on without end.

use std::collections::BTreeSet;

use super::{Search, Victim, Want};
use crate::api::kueue::cluster_queue::ReclaimPolicy;
use crate::queue::engine::WorkloadId;
use crate::queue::ledger::Charge;
use crate::queue::tree::{Fr, NodeId, View};

impl Search<'_> {
    /// Finds victims of whom none could come back for what is theirs: who could is spared, the last in the order of
    /// preemption first, and others are looked for.
    pub(super) fn lasting(
        &mut self,
        usage: &Charge,
        short: &[Fr],
        find: impl Fn(&mut Self, &Want<'_>) -> Vec<Victim>,
    ) -> Vec<Victim> {
        let mut spared = BTreeSet::new();
        loop {
            let want = Want { usage, short, spared: &spared };
            let victims = find(self, &want);
            match self.would_take_back(&victims, &want) {
                Some(victim) => spared.insert(victim),
                None => return victims,
            };
        }
    }

    fn would_take_back(&mut self, victims: &[Victim], want: &Want<'_>) -> Option<WorkloadId> {
        if victims.iter().all(|victim| victim.cluster_queue == self.node) {
            return None;
        }
        self.take(victims, true);
        self.add(self.node, want.usage, 1);
        let returning = victims.iter().filter(|victim| self.may_reclaim(victim, want.short)).map(|victim| &victim.rank);
        let last = returning.max().map(|rank| rank.workload);
        self.add(self.node, want.usage, -1);
        self.take(victims, false);
        last
    }

    /// Whether one that is gone would fit into what its own ClusterQueue has a right to, and the preemptor, which is there
    /// now, would have to give that back.
    fn may_reclaim(&self, victim: &Victim, short: &[Fr]) -> bool {
        let node = victim.cluster_queue;
        let rules = self.queues.get(node).and_then(|state| state.quota.as_ref()).map(|quota| quota.preemption);
        let may = match rules.map(|rules| rules.reclaim) {
            None | Some(ReclaimPolicy::Never) => false,
            Some(ReclaimPolicy::LowerPriority) => self.priority < victim.rank.priority,
            Some(ReclaimPolicy::Any) => true,
        };
        let amount = |fr: &Fr| Some((*fr, *victim.charge.get(fr)?));
        let taken: Vec<(Fr, i128)> = short.iter().filter_map(amount).collect();
        let entitled = || taken.iter().all(|(fr, amount)| !self.tree.would_borrow(node, *fr, *amount, View::Planned));
        may && node != self.node && entitled() && self.lent_to_us(node, &taken)
    }

    /// Whether the preemptor's ClusterQueue, and each Cohort up to the one that it has in common with another, exceeds its
    /// part of the quota.
    fn lent_to_us(&self, other: NodeId, taken: &[(Fr, i128)]) -> bool {
        let theirs: BTreeSet<NodeId> = self.tree.above(other).collect();
        let ours =
            std::iter::once(self.node).chain(self.tree.above(self.node).take_while(|node| !theirs.contains(node)));
        let frs: Vec<Fr> = taken.iter().map(|(fr, _)| *fr).collect();
        ours.into_iter().all(|node| !self.tree.within_quota(node, &frs, View::Planned))
    }
}
