//! Sums over a world, for the properties.

use super::book::{Book, Fr, Held, Node, Usage};
use super::world::{Job, World};
use crate::engine::store::Key;

impl World {
    /// What is held; in the planned view without those that are on their way out.
    fn book(&self, planned: bool) -> Book<'_> {
        let held = self.holders.iter().filter(|holder| !planned || !holder.evicted).map(|holder| Held {
            queue: holder.job.queue.clone(),
            who: holder.job.key.clone(),
            usage: holder.usage.clone(),
        });
        Book { tree: &self.tree, held: held.collect() }
    }

    /// Where less than nothing is left, and less than before: ClusterQueue, what of, and how much.
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

    /// One of these victims without whom the preemptor, in the only flavor that there is, gets the same by the same right.
    pub(crate) fn could_stay(&self, preemptor: &Key, victims: &[Key]) -> Option<Key> {
        let job = self.waiting.iter().find(|job| job.key == *preemptor)?;
        if job.pod_sets.iter().any(|set| set.min_count < set.count) {
            return None;
        }
        let (usage, node, chain) = (self.usage_in_only_flavor(job), Node::Queue(job.queue.clone()), self.chain(job));
        let with = |spared: Option<&Key>| {
            let gone: Vec<Key> = victims.iter().filter(|key| Some(*key) != spared).chain(&chain).cloned().collect();
            let book = self.book(true).without(&gone);
            let borrows = usage.iter().any(|(fr, amount)| book.would_borrow(&node, fr, *amount));
            (book.fits(&node, &usage), borrows)
        };
        let (_, borrows) = with(None);
        victims.iter().find(|spared| with(Some(spared)) == (true, borrows)).cloned()
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
