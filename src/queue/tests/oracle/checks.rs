//! Queries on a world for the property tests.

use super::book::{Book, Fr, Node, Usage};
use super::world::{Job, World};
use crate::partial_preemption::PreemptionScope;
use sluice_plan::ObjectKey;

impl World {
    /// Returns the usage in the tree; the planned view omits usage that is being released.
    fn book(&self, planned: bool) -> Book<'_> {
        Book { tree: &self.tree, held: self.holders.iter().flat_map(|holder| holder.held(planned)).collect() }
    }

    /// Returns negative available amounts that decreased compared with `before`: ClusterQueue,
    /// flavor and resource, amount.
    pub(crate) fn overdrawn(&self, before: &Self) -> Vec<(String, Fr, i128)> {
        let (now, then) = (self.book(false), before.book(false));
        let mut overdrawn = Vec::new();
        for queue in &self.queues {
            for fr in now.frs() {
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
    pub(crate) fn could_stay(
        &self,
        preemptor: &ObjectKey,
        targets: &[(ObjectKey, PreemptionScope)],
    ) -> Option<ObjectKey> {
        let job = self.waiting.iter().find(|job| job.key == *preemptor)?;
        if job.pod_sets.iter().any(|set| set.min_count < set.count) {
            return None;
        }
        let (usage, node) = (self.usage_in_only_flavor(job), Node::Queue(job.queue.clone()));
        let chain: Vec<(ObjectKey, PreemptionScope)> =
            self.chain(job).into_iter().map(|before| (before, PreemptionScope::Whole)).collect();
        let fit_sparing = |spared: Option<&ObjectKey>| {
            let losses = targets.iter().filter_map(|(key, loss)| {
                Some((key.clone(), if Some(key) == spared { self.less_than(key, *loss)? } else { *loss }))
            });
            let book = self.book(true).without(&losses.chain(chain.iter().cloned()).collect::<Vec<_>>());
            let borrows = usage.iter().any(|(fr, amount)| book.would_borrow(&node, fr, *amount));
            (book.fits(&node, &usage), borrows)
        };
        let (_, borrows) = fit_sparing(None);
        targets.iter().map(|(key, _)| key).find(|spared| fit_sparing(Some(spared)) == (true, borrows)).cloned()
    }

    /// Returns the next smaller scope; `None` if there is none.
    fn less_than(&self, key: &ObjectKey, loss: PreemptionScope) -> Option<PreemptionScope> {
        let holder = self.holders.iter().find(|holder| holder.job.key == *key)?;
        holder.keeps().map(|(other, _)| *other).filter(|other| *other < loss).last()
    }

    fn usage_in_only_flavor(&self, job: &Job) -> Usage {
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
