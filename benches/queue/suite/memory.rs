//! Memory usage of the scheduler.

use allocation_counter::measure;

use super::BenchError;
use super::scenario::{Scenario, float};
use super::simulated_cluster::SimulatedCluster;

/// Returns the bytes that the scheduler keeps for each workload, excluding the Workload object. All
/// workloads are submitted simultaneously and none finishes, so nearly all are pending with a
/// reported reason. Counts requested bytes, without allocator overhead.
pub(super) fn bytes_per_workload(scenario: &Scenario) -> Result<f64, BenchError> {
    let without = SimulatedCluster::new(scenario)?;
    let mut with = SimulatedCluster::new(scenario)?;
    for job in &scenario.jobs {
        with.submit(job.clone())?;
    }
    with.run_to_fixpoint()?;
    let queues = released_by(without.into_scheduler());
    let all = released_by(with.into_scheduler());
    Ok(float(all - queues) / float(i64::try_from(scenario.jobs.len().max(1)).unwrap_or(i64::MAX)))
}

/// Returns the bytes that dropping `owner` releases.
fn released_by<T>(owner: T) -> i64 {
    -measure(|| drop(owner)).bytes_current
}
