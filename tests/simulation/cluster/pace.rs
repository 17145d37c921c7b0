//! Latencies of cluster components.

use std::ops::RangeInclusive;
use std::time::Duration;

use jiff::Timestamp;

use crate::chance::Chance;

/// Latency ranges in milliseconds; each latency is a random value of its range.
#[derive(Debug, Clone)]
pub struct Pace {
    /// Source of randomness.
    pub chance: Chance,
    /// From creation of a pod, or removal of its last scheduling gate, to its binding.
    pub schedule: RangeInclusive<u64>,
    /// From binding of a pod until it is ready.
    pub start: RangeInclusive<u64>,
    /// From deletion of a pod until its containers have ended.
    pub end: RangeInclusive<u64>,
    /// From the end of a pod's containers, as its status reports, until its removal; `None` removes
    /// the pod without reporting the end.
    pub gone: Option<RangeInclusive<u64>>,
    /// From a change of a pod or a Service until its EndpointSlices are synced. Gateways use it,
    /// too.
    pub endpoints: RangeInclusive<u64>,
    /// From a relevant change until the garbage collector processes an object.
    pub collect: RangeInclusive<u64>,
    /// From a Serve configuration until its applications run.
    pub deploy: RangeInclusive<u64>,
}

impl Pace {
    /// Constant latencies of the test environment (testenv/internal/supervisor/stages.yaml,
    /// testenv/internal/dashboard/steering.go).
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

    /// Wide latency ranges, so that steps may happen in any order.
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

    /// Returns the latency of the object with an ordinal. `subject` separates the random sequences
    /// of different uses of a range.
    pub(super) fn draw(&self, range: &RangeInclusive<u64>, subject: &str, ordinal: u64) -> Duration {
        Duration::from_millis(self.chance.about(subject, ordinal).u64(range.clone()))
    }
}

/// Adds a duration to a time, saturating at the maximum.
pub(super) fn later(at: Timestamp, by: Duration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}
