//! Latencies of cluster components.

use std::ops::RangeInclusive;
use std::time::Duration;

use jiff::Timestamp;

use crate::rng::SeededRandom;

/// Latency ranges in milliseconds; each latency is a random value of its range.
#[derive(Debug, Clone)]
pub struct Latencies {
    /// Source of randomness.
    pub rng: SeededRandom,
    /// From creation of a pod, or removal of its last scheduling gate, to its binding.
    pub schedule: RangeInclusive<u64>,
    /// From binding of a pod until it is ready.
    pub startup: RangeInclusive<u64>,
    /// From deletion of a pod until its containers have ended.
    pub termination: RangeInclusive<u64>,
    /// From the end of a pod's containers, as its status reports, until its removal; `None` removes
    /// the pod without reporting the end.
    pub removal: Option<RangeInclusive<u64>>,
    /// From a change of a pod or a Service until its EndpointSlices are synced. Gateways use it,
    /// too.
    pub endpoints: RangeInclusive<u64>,
    /// From a relevant change until the garbage collector processes an object.
    pub garbage_collection: RangeInclusive<u64>,
    /// From a Serve configuration until its applications run.
    pub deploy: RangeInclusive<u64>,
    /// From a change until the Job controller reads a Job, and from then until it writes.
    pub job_sync: RangeInclusive<u64>,
    /// From the time at which the Job controller has recorded ended pods until it counts them; 0
    /// counts them at once.
    pub job_counting: RangeInclusive<u64>,
    /// From the deletion of an unbound pod with finalizers until it counts as failed.
    pub pod_gc: RangeInclusive<u64>,
}

impl Latencies {
    /// Constant latencies of the test environment (testenv/internal/supervisor/stages.yaml,
    /// testenv/internal/dashboard/steering.go).
    pub fn fixed(chance: SeededRandom) -> Self {
        Self {
            rng: chance,
            schedule: 20..=20,
            startup: 200..=200,
            termination: 10..=10,
            removal: None,
            endpoints: 10..=10,
            garbage_collection: 20..=20,
            deploy: 300..=300,
            job_sync: 10..=10,
            job_counting: 0..=0,
            pod_gc: 1_000..=1_000,
        }
    }

    /// Wide latency ranges, so that steps may happen in any order.
    pub fn varied(chance: SeededRandom) -> Self {
        Self {
            rng: chance,
            schedule: 5..=100,
            startup: 50..=3_000,
            termination: 5..=3_000,
            removal: Some(5..=1_000),
            endpoints: 5..=300,
            garbage_collection: 5..=500,
            deploy: 100..=3_000,
            job_sync: 5..=700,
            job_counting: 1..=700,
            pod_gc: 5..=20_000,
        }
    }

    /// Returns the latency of the object with an ordinal. `subject` separates the random sequences
    /// of different uses of a range.
    pub(super) fn sample(&self, range: &RangeInclusive<u64>, subject: &str, ordinal: u64) -> Duration {
        Duration::from_millis(self.rng.rng_for(subject, ordinal).u64(range.clone()))
    }
}

/// Adds a duration to a time, saturating at the maximum.
pub(super) fn saturating_add(at: Timestamp, by: Duration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}
