//! Timing of the scheduler.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};
use sluice_queue::{Decision, Input, Scheduler};

use super::BenchError;

/// An operation of the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Operation {
    /// `step` with a new workload.
    Arrival,
    /// `step` with an update of a known workload.
    Progress,
    /// `step` with the status of a queue.
    QueueStatus,
    /// `cycle` with decisions.
    Deciding,
    /// `cycle` without decisions; at least one follows each cycle with decisions. They are excluded
    /// from the histogram, which they would skew towards short times.
    Idle,
}

impl Operation {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Arrival => "step: arrivals",
            Self::Progress => "step: progress",
            Self::QueueStatus => "step: queue status",
            Self::Deciding => "cycle: deciding",
            Self::Idle => "cycle: idle",
        }
    }
}

/// Time spent inside the scheduler.
#[derive(Debug)]
pub(super) struct SchedulerClock {
    /// Number of calls and total time by operation.
    pub(super) operations: BTreeMap<Operation, (u64, Duration)>,
    /// Times of cycles with decisions, in nanoseconds.
    pub(super) cycle: Histogram<u64>,
    /// Number of scheduling attempts of workloads.
    pub(super) decisions: u64,
}

impl SchedulerClock {
    pub(super) fn new() -> Result<Self, BenchError> {
        Ok(Self { operations: BTreeMap::new(), cycle: histogram()?, decisions: 0 })
    }

    pub(super) fn total(&self) -> Duration {
        self.operations.values().map(|(_, time)| *time).sum()
    }

    pub(super) fn step(&mut self, part: Operation, engine: &mut Scheduler, now: Timestamp, event: &Input<'_>) {
        let ((), time) = timed(|| engine.observe(now, event));
        self.add(part, time);
    }

    pub(super) fn cycle(&mut self, engine: &mut Scheduler, now: Timestamp) -> Result<Vec<Decision>, BenchError> {
        let before = engine.decision_count();
        let (effects, time) = timed(|| engine.run_cycle(now));
        let decisions = engine.decision_count() - before;
        self.decisions += decisions;
        if decisions > 0 {
            self.cycle.record(nanoseconds(time))?;
            self.add(Operation::Deciding, time);
        } else {
            self.add(Operation::Idle, time);
        }
        Ok(effects)
    }

    fn add(&mut self, part: Operation, time: Duration) {
        let (count, sum) = self.operations.entry(part).or_default();
        *count += 1;
        *sum += time;
    }
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = cpu_time();
    let outcome = work();
    (outcome, cpu_time().saturating_sub(start))
}

/// Returns the CPU time of this thread. Wall-clock time would include other load on the machine,
/// which would dominate the p99.
fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// Creates a histogram of times in nanoseconds with three significant digits.
pub(super) fn histogram() -> Result<Histogram<u64>, BenchError> {
    Ok(Histogram::new(3)?)
}

pub(super) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
