//! Input of a run: queues, and workloads with their submission times.

use sluice_api::kueue::{ClusterQueue, Cohort};
use sluice_queue::Settings;

/// Units of each resource.
pub(super) type Units = Vec<(&'static str, i64)>;

/// Input of a run.
#[derive(Debug, Clone, Default)]
pub(super) struct Scenario {
    pub(super) settings: Settings,
    pub(super) cohorts: Vec<Cohort>,
    pub(super) queues: Vec<Queue>,
    pub(super) jobs: Vec<Job>,
}

/// A ClusterQueue and the limits that the benchmark checks.
#[derive(Debug, Clone)]
pub(super) struct Queue {
    pub(super) object: ClusterQueue,
    /// Number of its cohort tree.
    pub(super) tree: usize,
    pub(super) nominal: Units,
    /// Its maximum usage; `None` if only the quota of the tree limits it.
    pub(super) max_usage: Option<Units>,
}

impl Queue {
    pub(super) fn name(&self) -> &str {
        self.object.metadata.name.as_deref().unwrap_or_default()
    }
}

/// A workload to submit.
#[derive(Debug, Clone)]
pub(super) struct Job {
    /// Index of its queue.
    pub(super) queue: usize,
    pub(super) name: String,
    pub(super) requests: Units,
    pub(super) priority: i32,
    /// Submission time, in milliseconds of virtual time.
    pub(super) submit_at: i64,
    /// Run time once admitted, in milliseconds.
    pub(super) run: i64,
}

impl Scenario {
    /// Returns a lower bound on the makespan, in milliseconds, if only quota limits it: for each
    /// tree and resource, the work submitted from some time on must run after that time. If
    /// `arrivals` is false, all workloads count as submitted at the start.
    pub(super) fn makespan_bound(&self, arrivals: bool) -> f64 {
        let trees = self.queues.iter().map(|queue| queue.tree + 1).max().unwrap_or(0);
        (0..trees).map(|tree| self.tree_bound(tree, arrivals)).fold(0.0, f64::max)
    }

    /// Returns the total units of quota.
    pub(super) fn total_quota(&self) -> i64 {
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
                let limit = quota.iter().find(|(name, _)| name == resource).map_or(0, |(_, units)| *units);
                bound = bound.max(float(from) + float(all) / float(limit));
            }
        }
        bound
    }
}

/// Adds units of a resource and returns the sum.
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

/// Converts a count to a floating-point number.
pub(super) fn float(count: i64) -> f64 {
    count as f64
}
