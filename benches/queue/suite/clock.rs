//! Timing of the scheduler.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};
use sluice_queue::{Effect, Engine, Event};

use super::Broken;

/// An operation of the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
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
    Resting,
}

impl Part {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Arrival => "step: arrivals",
            Self::Progress => "step: progress",
            Self::QueueStatus => "step: queue status",
            Self::Deciding => "cycle: deciding",
            Self::Resting => "cycle: idle",
        }
    }
}

/// Time spent inside the scheduler.
#[derive(Debug)]
pub(super) struct Clock {
    /// Number of calls and total time by operation.
    pub(super) parts: BTreeMap<Part, (u64, Duration)>,
    /// Times of cycles with decisions, in nanoseconds.
    pub(super) cycle: Histogram<u64>,
    /// Number of scheduling attempts of workloads.
    pub(super) decisions: u64,
}

impl Clock {
    pub(super) fn new() -> Result<Self, Broken> {
        Ok(Self { parts: BTreeMap::new(), cycle: histogram()?, decisions: 0 })
    }

    pub(super) fn inside(&self) -> Duration {
        self.parts.values().map(|(_, time)| *time).sum()
    }

    pub(super) fn step(&mut self, part: Part, engine: &mut Engine, now: Timestamp, event: &Event<'_>) {
        let ((), time) = timed(|| engine.step(now, event));
        self.add(part, time);
    }

    pub(super) fn cycle(&mut self, engine: &mut Engine, now: Timestamp) -> Result<Vec<Effect>, Broken> {
        let before = engine.decisions();
        let (effects, time) = timed(|| engine.cycle(now));
        let decisions = engine.decisions() - before;
        self.decisions += decisions;
        if decisions > 0 {
            self.cycle.record(nanoseconds(time))?;
            self.add(Part::Deciding, time);
        } else {
            self.add(Part::Resting, time);
        }
        Ok(effects)
    }

    fn add(&mut self, part: Part, time: Duration) {
        let (count, sum) = self.parts.entry(part).or_default();
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
pub(super) fn histogram() -> Result<Histogram<u64>, Broken> {
    Ok(Histogram::new(3)?)
}

pub(super) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
