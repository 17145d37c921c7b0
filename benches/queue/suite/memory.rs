//! What the engine keeps in memory.

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

use super::Broken;
use super::scenario::{Scenario, float};
use super::world::World;

/// The system's allocator, counting. That costs a few nanoseconds an allocation, which are part of every time here.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// How many allocations there were so far.
pub(super) fn allocations() -> usize {
    ALLOCATOR.stats().allocations
}

/// Bytes that are allocated now.
fn live() -> usize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated - stats.bytes_deallocated
}

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
    let more = i64::try_from(all.saturating_sub(queues)).unwrap_or(i64::MAX);
    Ok(float(more) / float(i64::try_from(scenario.jobs.len().max(1)).unwrap_or(i64::MAX)))
}

/// What dropping this gives back, which is what it owned.
fn released_by<T>(owner: T) -> usize {
    let before = live();
    drop(owner);
    before.saturating_sub(live())
}
