//! Queries on a snapshot for the property tests.

use super::quota_tree::{FlavorResource, Node, QuotaTree, Usage};
use super::snapshot::{OracleWorkload, Snapshot};
use crate::partial_preemption::PreemptionScope;
use sluice_plan::ObjectKey;

impl Snapshot {
    /// Returns the usage in the tree; the planned view omits usage that is being released.
    fn quota_tree(&self, planned: bool) -> QuotaTree<'_> {
        QuotaTree {
            tree: &self.tree,
            usages: self.admitted.iter().flat_map(|holder| holder.workload_usages(planned)).collect(),
        }
    }

    /// Returns negative available amounts that decreased compared with `before`: ClusterQueue,
    /// flavor and resource, amount.
    pub(crate) fn newly_overcommitted(&self, before: &Self) -> Vec<(String, FlavorResource, i128)> {
        let (now, then) = (self.quota_tree(false), before.quota_tree(false));
        let mut overdrawn = Vec::new();
        for queue in &self.queues {
            for fr in now.flavor_resources() {
                let left = now.available(&queue.node(), &fr);
                if left < 0 && left < then.available(&queue.node(), &fr) {
                    overdrawn.push((queue.name.clone(), fr, left));
                }
            }
        }
        overdrawn
    }

    /// Returns a target that could lose less while the preemptor, in the only flavor, still fits
    /// and borrows no more; `None` if all targets are necessary.
    pub(crate) fn unnecessary_target(
        &self,
        preemptor: &ObjectKey,
        targets: &[(ObjectKey, PreemptionScope)],
    ) -> Option<ObjectKey> {
        let job = self.pending.iter().find(|job| job.key == *preemptor)?;
        if job.pod_sets.iter().any(|set| set.min_count < set.count) {
            return None;
        }
        let (usage, node) = (self.usage_in_only_flavor(job), Node::Queue(job.queue.clone()));
        let chain: Vec<(ObjectKey, PreemptionScope)> =
            self.replaced_slices(job).into_iter().map(|before| (before, PreemptionScope::Whole)).collect();
        let fit_sparing = |spared: Option<&ObjectKey>| {
            let losses = targets.iter().filter_map(|(key, loss)| {
                Some((key.clone(), if Some(key) == spared { self.smaller_scope(key, *loss)? } else { *loss }))
            });
            let tree = self.quota_tree(true).without(&losses.chain(chain.iter().cloned()).collect::<Vec<_>>());
            let borrows = usage.iter().any(|(fr, amount)| tree.would_borrow(&node, fr, *amount));
            (tree.fits(&node, &usage), borrows)
        };
        let (_, borrows) = fit_sparing(None);
        targets.iter().map(|(key, _)| key).find(|spared| fit_sparing(Some(spared)) == (true, borrows)).cloned()
    }

    /// Returns the next smaller scope; `None` if there is none.
    fn smaller_scope(&self, key: &ObjectKey, loss: PreemptionScope) -> Option<PreemptionScope> {
        let holder = self.admitted.iter().find(|holder| holder.job.key == *key)?;
        holder.preemptible_usage().map(|(other, _)| *other).filter(|other| *other < loss).last()
    }

    fn usage_in_only_flavor(&self, job: &OracleWorkload) -> Usage {
        let mut usage = Usage::new();
        for set in &job.pod_sets {
            for (resource, per_pod) in &set.per_pod {
                let groups = &self.queue(&job.queue).groups;
                let group = groups.iter().find(|(covered, _)| covered.contains(resource));
                if let Some(flavor) = group.and_then(|(_, flavors)| flavors.first()) {
                    *usage.entry((flavor.clone(), resource.clone())).or_default() += per_pod * i128::from(set.count);
                }
            }
        }
        usage
    }
}
