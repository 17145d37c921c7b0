//! Limit of the writes in flight, found by measuring: it grows while the API server responds as
//! fast as it can, shrinks while responses take longer, and is halved if writes are refused (additive
//! increase and multiplicative decrease, as in TCP congestion control, RFC 5681).
//!
//! The latency of a write is compared with the lowest of its kind, because a pod that webhooks
//! admit takes longer than a status, however idle the API server is.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use sluice_engine::ApiServerLoad;
use sluice_plan::Write;

/// Limit before any response has arrived. Latency alone does not lower it further: the API server
/// divides its time among the requests of all clients, so a client with fewer in flight than the
/// others waits for them.
const INITIAL_LIMIT: f64 = 32.0;
/// Refusals do not lower the limit further.
const MIN_LIMIT: f64 = 8.0;
/// The limit never exceeds this number.
const MAX_LIMIT: f64 = 256.0;
/// Average slowdown from which the load of the API server is high: it queues three writes for each
/// that it processes.
const HIGH_SLOWDOWN: f64 = 4.0;
/// Largest slowdown that one response contributes to the average.
const MAX_SLOWDOWN: f64 = 20.0;
/// Share of a response in the average slowdown.
const WEIGHT: f64 = 1.0 / 16.0;
/// Time without a response after which the average starts again.
const AVERAGE_RETENTION: Duration = Duration::from_secs(1);
/// Part of the limit above [`INITIAL_LIMIT`] that is taken away while as many writes complete as are
/// in flight under high load.
const DECREASE: f64 = 0.1;
/// Minimum time between two refusals that halve the limit. Those in between were caused by the
/// limit before.
const HALVING_INTERVAL: Duration = Duration::from_secs(1);
/// Latencies below this are equal: they measure the network and the scheduler of the machine.
const LATENCY_RESOLUTION: Duration = Duration::from_millis(1);
/// Period of which a lowest latency is kept; the last two count. It is long, because the load of a
/// busy day must not become the measure.
const LOWEST_LATENCY_PERIOD: Duration = Duration::from_mins(5);

/// Response to a write, as far as it shows how loaded the API server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Response {
    /// The write was accepted.
    Accepted,
    /// The write was rejected. Its latency shows nothing: it may have been rejected before it was
    /// stored.
    Rejected,
    /// The API server refused to process the write now (HTTP 429, 503, 504), or did not respond.
    Overloaded,
}

/// Resource and operation of a write.
type WriteKind = (String, &'static str);

/// Number of writes that can be in flight.
#[derive(Debug)]
pub(super) struct InFlightLimit {
    limit: f64,
    lowest: BTreeMap<WriteKind, LowestLatency>,
    /// Average of latency divided by the lowest latency of the kind.
    slowdown: f64,
    last_response: Option<Instant>,
    last_halving: Option<Instant>,
}

impl InFlightLimit {
    /// Returns the limit before any response.
    pub(super) fn new() -> Self {
        Self { limit: INITIAL_LIMIT, lowest: BTreeMap::new(), slowdown: 1.0, last_response: None, last_halving: None }
    }

    /// Returns the number of writes that can be in flight.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is between 8 and 256")]
    pub(super) fn limit(&self) -> usize {
        self.limit as usize
    }

    /// Records the response to a write, which arrived at `now` after `latency`, while `in_flight`
    /// writes were, itself included. Returns the load of the API server.
    pub(super) fn record(
        &mut self,
        write: &Write,
        response: Response,
        latency: Duration,
        in_flight: usize,
        now: Instant,
    ) -> ApiServerLoad {
        if response == Response::Overloaded {
            self.halve(now);
            return ApiServerLoad::High;
        }
        if response == Response::Rejected {
            return self.load();
        }
        self.average(write, latency, now);
        if self.load() == ApiServerLoad::High {
            self.limit = (self.limit - DECREASE).max(self.limit.min(INITIAL_LIMIT));
            return ApiServerLoad::High;
        }
        // A limit that is not used is not tested either.
        if in_flight * 2 >= self.limit() {
            self.limit = (self.limit + 1.0 / self.limit).min(MAX_LIMIT);
        }
        ApiServerLoad::Low
    }

    fn load(&self) -> ApiServerLoad {
        if self.slowdown >= HIGH_SLOWDOWN { ApiServerLoad::High } else { ApiServerLoad::Low }
    }

    fn average(&mut self, write: &Write, latency: Duration, now: Instant) {
        let kind = (write.target.plural.clone(), write.op.operation());
        let lowest = self.lowest.entry(kind).or_insert_with(|| LowestLatency::new(latency, now)).record(latency, now);
        let slowdown = latency.as_secs_f64() / lowest.max(LATENCY_RESOLUTION).as_secs_f64();
        let slowdown = slowdown.min(MAX_SLOWDOWN);
        let is_recent = self.last_response.is_some_and(|last| now.duration_since(last) < AVERAGE_RETENTION);
        self.last_response = Some(now);
        self.slowdown = if is_recent { self.slowdown + (slowdown - self.slowdown) * WEIGHT } else { slowdown };
    }

    fn halve(&mut self, now: Instant) {
        if self.last_halving.is_none_or(|last| now.duration_since(last) >= HALVING_INTERVAL) {
            self.limit = (self.limit / 2.0).max(MIN_LIMIT);
            self.last_halving = Some(now);
        }
    }
}

/// Lowest latency of the current period and of the one before.
#[derive(Debug)]
struct LowestLatency {
    since: Instant,
    current: Duration,
    previous: Duration,
}

impl LowestLatency {
    fn new(latency: Duration, now: Instant) -> Self {
        Self { since: now, current: latency, previous: latency }
    }

    /// Records a latency; returns the lowest one.
    fn record(&mut self, latency: Duration, now: Instant) -> Duration {
        if now.duration_since(self.since) >= LOWEST_LATENCY_PERIOD {
            (self.since, self.previous, self.current) = (now, self.current, latency);
        }
        self.current = self.current.min(latency);
        self.current.min(self.previous)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use sluice_plan::{ObjectRef, WriteOp};

    fn write(plural: &str) -> Write {
        let target = ObjectRef {
            api_version: "v1".into(),
            kind: "Any".into(),
            plural: plural.into(),
            namespace: Some("ns".into()),
            name: "x".into(),
        };
        Write::new(target, WriteOp::Patch(json!({})))
    }

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Records the responses of an API server that processes one write at a time, each in `service`
    /// milliseconds, to a client that keeps as many in flight as the limit allows.
    fn saturate(limit: &mut InFlightLimit, service: u64, responses: usize, start: Instant) {
        let mut now = start;
        for _ in 0..responses {
            now += millis(service);
            let queued = u64::try_from(limit.limit()).expect("small");
            limit.record(&write("pods"), Response::Accepted, millis(service * queued), limit.limit(), now);
        }
    }

    #[test]
    fn limit_grows_while_latency_stays() {
        let (mut limit, now) = (InFlightLimit::new(), Instant::now());
        for _ in 0..100_000 {
            let load = limit.record(&write("pods"), Response::Accepted, millis(5), limit.limit(), now);
            assert_eq!(load, ApiServerLoad::Low);
        }
        assert_eq!(limit.limit(), 256);
    }

    #[test]
    fn limit_that_is_not_used_does_not_grow() {
        let (mut limit, now) = (InFlightLimit::new(), Instant::now());
        for _ in 0..1_000 {
            limit.record(&write("pods"), Response::Accepted, millis(5), 3, now);
        }
        assert_eq!(limit.limit(), 32);
    }

    #[test]
    fn limit_falls_to_the_initial_one_while_writes_queue_in_the_api_server() {
        // Given an API server that was far away, and idle,
        let (mut limit, start) = (InFlightLimit::new(), Instant::now());
        for _ in 0..10_000 {
            limit.record(&write("pods"), Response::Accepted, millis(5), limit.limit(), start);
        }
        assert!(limit.limit() > 100, "{}", limit.limit());

        // when it is saturated, then fewer writes wait in it, but as many as at first.
        saturate(&mut limit, 2, 5_000, start);
        assert_eq!(limit.limit(), 32);
    }

    #[test]
    fn limit_below_the_initial_one_is_kept_while_writes_queue_in_the_api_server() {
        let (mut limit, start) = (InFlightLimit::new(), Instant::now());
        limit.record(&write("pods"), Response::Accepted, millis(2), 1, start);
        limit.record(&write("pods"), Response::Overloaded, millis(1), 1, start);

        saturate(&mut limit, 2, 1_000, start);
        assert_eq!(limit.limit(), 16);
    }

    #[test]
    fn refusals_halve_the_limit_once_in_a_second() {
        let (mut limit, start) = (InFlightLimit::new(), Instant::now());
        let mut refuse = |after| {
            let now = start + millis(after);
            let load = limit.record(&write("pods"), Response::Overloaded, millis(1), 1, now);
            assert_eq!(load, ApiServerLoad::High);
            limit.limit()
        };

        assert_eq!([refuse(0), refuse(999), refuse(1000), refuse(2000)], [16, 16, 8, 8]);
    }

    #[test]
    fn slow_kind_of_write_is_compared_with_itself() {
        let (mut limit, now) = (InFlightLimit::new(), Instant::now());
        for _ in 0..100 {
            for (plural, latency) in [("workloads", 2), ("pods", 80)] {
                let load = limit.record(&write(plural), Response::Accepted, millis(latency), 1, now);
                assert_eq!(load, ApiServerLoad::Low, "{plural}");
            }
        }
    }

    #[test]
    fn rejected_write_is_no_measure_of_the_others() {
        let (mut limit, now) = (InFlightLimit::new(), Instant::now());
        for _ in 0..100 {
            limit.record(&write("jobs"), Response::Rejected, millis(1), 1, now);
            let load = limit.record(&write("jobs"), Response::Accepted, millis(8), 1, now);
            assert_eq!(load, ApiServerLoad::Low);
        }
    }

    #[rstest]
    #[case::busy_for_minutes(9, ApiServerLoad::High)]
    #[case::slower_from_now_on(21, ApiServerLoad::Low)]
    fn lowest_latency_is_forgotten_after_two_periods(#[case] minutes: u64, #[case] expected: ApiServerLoad) {
        let (mut limit, start) = (InFlightLimit::new(), Instant::now());
        limit.record(&write("pods"), Response::Accepted, millis(2), 1, start);

        let mut load = ApiServerLoad::Low;
        for second in 1..=minutes * 60 {
            let now = start + Duration::from_secs(second);
            load = limit.record(&write("pods"), Response::Accepted, millis(20), 1, now);
        }

        assert_eq!(load, expected);
    }

    #[test]
    fn average_starts_again_after_a_pause() {
        // Given an API server whose load was high,
        let (mut limit, start) = (InFlightLimit::new(), Instant::now());
        limit.record(&write("pods"), Response::Accepted, millis(2), 1, start);
        for _ in 0..100 {
            limit.record(&write("pods"), Response::Accepted, millis(40), 1, start);
        }

        // when the next write, after a pause, is fast, then the load is low.
        let load = limit.record(&write("pods"), Response::Accepted, millis(3), 1, start + millis(1500));
        assert_eq!(load, ApiServerLoad::Low);
    }
}
