//! Exponential backoff of planners after failed writes (client-go
//! `workqueue.ItemExponentialFailureRateLimiter`).

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

/// Backoff after the first failed write; it doubles with each consecutive failure.
const BASE_BACKOFF: SignedDuration = SignedDuration::from_millis(50);
/// Maximum backoff between two attempts.
const MAX_BACKOFF: SignedDuration = SignedDuration::from_secs(30);
/// Time after a backoff without another attempt, after which the failures are forgotten. A planner
/// whose writes still fail tries again long before.
pub(super) const FAILURE_RETENTION: SignedDuration = SignedDuration::from_mins(10);

/// Returns the end of the backoff after a failure that follows `failures` consecutive ones.
pub(super) fn backoff_end(failures: u32, now: Timestamp) -> Timestamp {
    let backoff = BASE_BACKOFF.saturating_mul(1 << failures.min(16)).min(MAX_BACKOFF);
    now.saturating_add(backoff).unwrap_or(Timestamp::MAX)
}

/// Returns the time at which failures with this end of their backoff are forgotten.
pub(super) fn forgotten_at(backoff_end: Timestamp) -> Timestamp {
    backoff_end.saturating_add(FAILURE_RETENTION).unwrap_or(Timestamp::MAX)
}

/// The planners whose last write failed.
#[derive(Debug)]
pub(super) struct PlannerBackoffs<P> {
    by_planner: BTreeMap<P, Backoff>,
}

#[derive(Debug)]
struct Backoff {
    /// Number of consecutive failures.
    failures: u32,
    end: Timestamp,
}

impl<P> Default for PlannerBackoffs<P> {
    fn default() -> Self {
        Self { by_planner: BTreeMap::new() }
    }
}

impl<P: Ord + Clone> PlannerBackoffs<P> {
    /// Returns the number of consecutive failed writes of a planner.
    pub(super) fn failures(&self, planner: &P) -> u32 {
        self.by_planner.get(planner).map_or(0, |backoff| backoff.failures)
    }

    /// Returns the end of the last backoff of a planner; `None` if its last write succeeded.
    pub(super) fn end(&self, planner: &P) -> Option<Timestamp> {
        self.by_planner.get(planner).map(|backoff| backoff.end)
    }

    /// Records a failed write; the backoff doubles with each consecutive one. It is no shorter than
    /// the API server asks for (`retry_after`), up to [`MAX_BACKOFF`].
    pub(super) fn record_failure(&mut self, planner: P, retry_after: Option<SignedDuration>, now: Timestamp) {
        let failures = self.failures(&planner);
        let asked = retry_after.unwrap_or_default().min(MAX_BACKOFF);
        let end = backoff_end(failures, now).max(now.saturating_add(asked).unwrap_or(Timestamp::MAX));
        self.by_planner.insert(planner, Backoff { failures: failures.saturating_add(1), end });
    }

    /// Resets the backoff of a planner after a successful write.
    pub(super) fn reset(&mut self, planner: &P) {
        self.by_planner.remove(planner);
    }

    /// Forgets the failures of planners that stopped trying; returns those planners.
    pub(super) fn expire(&mut self, now: Timestamp) -> BTreeSet<P> {
        self.by_planner
            .extract_if(.., |_, backoff| forgotten_at(backoff.end) <= now)
            .map(|(planner, _)| planner)
            .collect()
    }

    /// Returns the time at which [`expire`](Self::expire) forgets the next failures.
    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        self.by_planner.values().map(|backoff| forgotten_at(backoff.end)).min()
    }

    /// Returns the number of planners with failures.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_planner.len()
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(millis).expect("in range")
    }

    #[test]
    fn backoff_doubles_with_each_failure_until_a_success() {
        let mut backoffs = PlannerBackoffs::default();
        backoffs.record_failure("p", None, at(0));
        assert_eq!((backoffs.failures(&"p"), backoffs.end(&"p")), (1, Some(at(50))));
        backoffs.record_failure("p", None, at(50));
        assert_eq!((backoffs.failures(&"p"), backoffs.end(&"p")), (2, Some(at(150))));

        backoffs.reset(&"p");
        backoffs.record_failure("p", None, at(200));
        assert_eq!((backoffs.failures(&"p"), backoffs.end(&"p")), (1, Some(at(250))));
    }

    #[rstest]
    #[case::longer_than_the_backoff(2, 2_000)]
    #[case::shorter_than_the_backoff(0, 50)]
    #[case::longer_than_the_maximum(86_400, 30_000)]
    fn backoff_is_as_long_as_the_api_server_asks(#[case] seconds: i64, #[case] end: i64) {
        let mut backoffs = PlannerBackoffs::default();
        backoffs.record_failure("p", Some(SignedDuration::from_secs(seconds)), at(0));
        assert_eq!(backoffs.end(&"p"), Some(at(end)));
    }

    #[test]
    fn backoff_is_at_most_half_a_minute() {
        assert_eq!(backoff_end(u32::MAX, at(0)), at(30_000));
    }
}
