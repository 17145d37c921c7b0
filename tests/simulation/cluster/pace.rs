//! How long things take in a cluster.

use std::ops::RangeInclusive;
use std::time::Duration;

use jiff::Timestamp;

use crate::chance::Chance;

/// How long things take, in milliseconds from and to; where between is drawn for each of them.
#[derive(Debug, Clone)]
pub struct Pace {
    /// Where it is drawn from.
    pub chance: Chance,
    /// From a pod's creation, or the removal of its last scheduling gate, to its binding.
    pub schedule: RangeInclusive<u64>,
    /// From a pod's binding until it is ready.
    pub start: RangeInclusive<u64>,
    /// From a pod's deletion until its containers have ended.
    pub end: RangeInclusive<u64>,
    /// From the end of a pod's containers, which its status tells, until it is gone; `None` if that is never told.
    pub gone: Option<RangeInclusive<u64>>,
    /// From a change of a pod or a Service until EndpointSlices follow.
    pub endpoints: RangeInclusive<u64>,
    /// From the end of an owner until the garbage collector acts.
    pub collect: RangeInclusive<u64>,
    /// From a Serve configuration until its applications run.
    pub deploy: RangeInclusive<u64>,
}

impl Pace {
    /// The pace of the test environment (testenv/internal/supervisor/stages.yaml, testenv/internal/dashboard/steering.go).
    pub fn steady(chance: Chance) -> Self {
        Self {
            chance,
            schedule: 20..=20,
            start: 200..=200,
            end: 10..=10,
            gone: None,
            endpoints: 10..=10,
            collect: 20..=20,
            deploy: 300..=300,
        }
    }

    /// A pace at which anything may come before or after anything else.
    pub fn uneven(chance: Chance) -> Self {
        Self {
            chance,
            schedule: 5..=100,
            start: 50..=3_000,
            end: 5..=3_000,
            gone: Some(5..=1_000),
            endpoints: 5..=300,
            collect: 5..=500,
            deploy: 100..=3_000,
        }
    }

    /// How long this takes the one of this number: `subject` tells apart what has the same range.
    pub(super) fn draw(&self, range: &RangeInclusive<u64>, subject: &str, ordinal: u64) -> Duration {
        Duration::from_millis(self.chance.about(subject, ordinal).u64(range.clone()))
    }
}

/// So much later; what is beyond all time is at its end.
pub(super) fn later(at: Timestamp, by: Duration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}
