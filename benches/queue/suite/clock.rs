//! How long the engine takes, and how much it allocates on the way.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::Broken;
use super::memory;

/// Time spent inside the engine.
#[derive(Debug)]
pub(super) struct Clock {
    /// In `step`.
    pub(super) steps: Duration,
    pub(super) step_count: u64,
    /// In `cycle`.
    pub(super) cycles: Duration,
    /// Each cycle that decided something, in nanoseconds. One that found nothing to do is not counted among them: there is
    /// at least one after each that did something, and their times would only flatter the median.
    pub(super) cycle: Histogram<u64>,
    /// Allocations inside the engine.
    pub(super) allocations: usize,
}

impl Clock {
    pub(super) fn new() -> Result<Self, Broken> {
        Ok(Self { steps: Duration::ZERO, step_count: 0, cycles: Duration::ZERO, cycle: histogram()?, allocations: 0 })
    }

    pub(super) fn inside(&self) -> Duration {
        self.steps + self.cycles
    }

    pub(super) fn step(&mut self, step: impl FnOnce()) {
        let allocations = memory::allocations();
        let start = Instant::now();
        step();
        self.steps += start.elapsed();
        self.step_count += 1;
        self.allocations += memory::allocations() - allocations;
    }

    /// `cycle` also tells whether anything was decided.
    pub(super) fn cycle<T>(
        &mut self,
        cycle: impl FnOnce() -> T,
        decided: impl FnOnce(&T) -> bool,
    ) -> Result<T, Broken> {
        let allocations = memory::allocations();
        let start = Instant::now();
        let outcome = cycle();
        let time = start.elapsed();
        self.allocations += memory::allocations() - allocations;
        self.cycles += time;
        if decided(&outcome) {
            self.cycle.record(nanoseconds(time))?;
        }
        Ok(outcome)
    }
}

/// A histogram of times in nanoseconds, exact to three digits.
pub(super) fn histogram() -> Result<Histogram<u64>, Broken> {
    Ok(Histogram::new(3)?)
}

pub(super) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
