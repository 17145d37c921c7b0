//! How long the engine takes.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};
use sluice_queue::{Effect, Engine, Event};

use super::Broken;

/// A part of the engine's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    /// `step`, told of a new workload.
    Arrival,
    /// `step`, told of what became of a workload that it knows.
    Progress,
    /// `step`, told of a queue's status.
    QueueStatus,
    /// `cycle`, in which something was decided.
    Deciding,
    /// `cycle`, in which nothing was; at least one follows each that decided something. Their times are not in the
    /// histogram, which they would only flatter.
    Resting,
}

impl Part {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Arrival => "step: arrivals",
            Self::Progress => "step: progress",
            Self::QueueStatus => "step: queues' statuses",
            Self::Deciding => "cycle: deciding",
            Self::Resting => "cycle: resting",
        }
    }
}

/// Time spent inside the engine.
#[derive(Debug)]
pub(super) struct Clock {
    /// How often, and for how long.
    pub(super) parts: BTreeMap<Part, (u64, Duration)>,
    /// Each cycle that decided something, in nanoseconds.
    pub(super) cycle: Histogram<u64>,
    /// Verdicts on workloads.
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

/// Time that this thread had a core. What else the machine does is none of the engine's, and would be all of the p99.
fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// A histogram of times in nanoseconds, exact to three digits.
pub(super) fn histogram() -> Result<Histogram<u64>, Broken> {
    Ok(Histogram::new(3)?)
}

pub(super) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
