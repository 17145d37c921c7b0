//! What the engine keeps in memory.

use allocation_counter::measure;

use super::Broken;
use super::scenario::{Scenario, float};
use super::world::World;

/// Bytes that the engine keeps for each workload, beside the workload's object, when all of them come at once and nothing
/// finishes, so that nearly all wait and have been told why. Bytes asked for, without what the allocator adds.
pub(super) fn per_workload(scenario: &Scenario) -> Result<f64, Broken> {
    let without = World::of(scenario)?;
    let mut with = World::of(scenario)?;
    for job in &scenario.jobs {
        with.submit(job.clone())?;
    }
    with.settle()?;
    let queues = released_by(without.into_engine());
    let all = released_by(with.into_engine());
    Ok(float(all - queues) / float(i64::try_from(scenario.jobs.len().max(1)).unwrap_or(i64::MAX)))
}

/// What dropping this gives back, which is what it owned.
fn released_by<T>(owner: T) -> i64 {
    -measure(|| drop(owner)).bytes_current
}
