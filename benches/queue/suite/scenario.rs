//! What a run starts from: queues, and workloads with the times at which they come.

use sluice_api::kueue::{ClusterQueue, Cohort};
use sluice_queue::Settings;

/// Units of each resource.
pub(super) type Units = Vec<(&'static str, i64)>;

/// What a run starts from.
#[derive(Debug, Clone, Default)]
pub(super) struct Scenario {
    pub(super) settings: Settings,
    pub(super) cohorts: Vec<Cohort>,
    pub(super) queues: Vec<Queue>,
    pub(super) jobs: Vec<Job>,
}

/// A ClusterQueue, and what the benchmark holds it to.
#[derive(Debug, Clone)]
pub(super) struct Queue {
    pub(super) object: ClusterQueue,
    /// Number of the tree that it is in.
    pub(super) tree: usize,
    pub(super) nominal: Units,
    /// What it may hold in all, if that is less than all of the tree's.
    pub(super) most: Option<Units>,
}

impl Queue {
    pub(super) fn name(&self) -> &str {
        self.object.metadata.name.as_deref().unwrap_or_default()
    }
}

/// A workload that is to come.
#[derive(Debug, Clone)]
pub(super) struct Job {
    /// Index of its queue.
    pub(super) queue: usize,
    pub(super) name: String,
    pub(super) requests: Units,
    pub(super) priority: i32,
    /// When it comes, in milliseconds of virtual time.
    pub(super) submit_at: i64,
    /// How long it runs once admitted, in milliseconds.
    pub(super) run: i64,
}

impl Scenario {
    /// The least time in which all the work can be done, in milliseconds, if quota is all that limits it; by tree and
    /// resource, the work that comes from some moment on has to be done from that moment on. With `arrivals` false every
    /// workload counts as if it were there from the beginning.
    pub(super) fn bound(&self, arrivals: bool) -> f64 {
        let trees = self.queues.iter().map(|queue| queue.tree + 1).max().unwrap_or(0);
        (0..trees).map(|tree| self.tree_bound(tree, arrivals)).fold(0.0, f64::max)
    }

    /// Units of quota in all.
    pub(super) fn quota(&self) -> i64 {
        self.queues.iter().flat_map(|queue| &queue.nominal).map(|(_, units)| units).sum()
    }

    fn tree_bound(&self, tree: usize, arrivals: bool) -> f64 {
        let queues = self.queues.iter().filter(|queue| queue.tree == tree);
        let mut quota = Units::new();
        for (resource, units) in queues.flat_map(|queue| &queue.nominal) {
            add(&mut quota, resource, *units);
        }
        let mut jobs: Vec<&Job> = self.jobs.iter().filter(|job| self.queues[job.queue].tree == tree).collect();
        jobs.sort_by_key(|job| std::cmp::Reverse(job.submit_at));
        let (mut work, mut bound) = (Units::new(), 0.0_f64);
        for job in jobs {
            let from = if arrivals { job.submit_at } else { 0 };
            for (resource, units) in &job.requests {
                let all = add(&mut work, resource, units * job.run);
                let there_is = quota.iter().find(|(name, _)| name == resource).map_or(0, |(_, units)| *units);
                bound = bound.max(float(from) + float(all) / float(there_is));
            }
        }
        bound
    }
}

/// Adds, and returns the sum.
pub(super) fn add(to: &mut Units, resource: &'static str, units: i64) -> i64 {
    match to.iter_mut().find(|(name, _)| *name == resource) {
        Some((_, sum)) => {
            *sum += units;
            *sum
        }
        None => {
            to.push((resource, units));
            units
        }
    }
}

/// A count as a number to divide.
#[allow(clippy::cast_precision_loss)]
pub(super) fn float(count: i64) -> f64 {
    count as f64
}
