//! Exponential backoff of planners after failed writes (client-go
//! `workqueue.ItemExponentialFailureRateLimiter`). After a conflict, the planner needs the newer
//! version of the object rather than time, so its backoff ends when that is observed.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use sluice_plan::ObjectRef;

/// Backoff after the first failed write; it doubles with each consecutive failure.
const BASE_BACKOFF: SignedDuration = SignedDuration::from_millis(50);
/// Maximum backoff between two attempts.
const MAX_BACKOFF: SignedDuration = SignedDuration::from_secs(30);
/// Time after a backoff without another attempt, after which the failures are forgotten. A planner
/// whose writes still fail tries again long before.
pub(super) const FAILURE_RETENTION: SignedDuration = SignedDuration::from_mins(10);

/// Number of consecutive failures up to which a conflict is retried once the newer version is
/// observed. An object that changes all the time would be written all the time otherwise.
const EARLY_RETRIES: u32 = 3;

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
#[derive(Debug, Clone)]
pub(super) struct PlannerBackoffs<P> {
    by_planner: BTreeMap<P, Backoff>,
    /// The planner that waits for a newer version of each object.
    conflicts: BTreeMap<ObjectRef, P>,
}

#[derive(Debug, Clone)]
struct Backoff {
    /// Number of consecutive failures.
    failures: u32,
    end: Timestamp,
    /// Object of which a newer version ends the backoff.
    conflict: Option<ObjectRef>,
}

impl<P> Default for PlannerBackoffs<P> {
    fn default() -> Self {
        Self { by_planner: BTreeMap::new(), conflicts: BTreeMap::new() }
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
        self.reset(&planner);
        self.by_planner.insert(planner, Backoff { failures: failures.saturating_add(1), end, conflict: None });
    }

    /// Records that `target` was changed since a write to it was planned. The backoff ends early once
    /// the newer version is observed; `is_observed` is true if it already is.
    pub(super) fn record_conflict(&mut self, planner: P, target: &ObjectRef, is_observed: bool, now: Timestamp) {
        self.record_failure(planner.clone(), None, now);
        let Some(backoff) = self.by_planner.get_mut(&planner).filter(|it| it.failures <= EARLY_RETRIES) else { return };
        if is_observed {
            backoff.end = now;
        } else {
            backoff.conflict = Some(target.clone());
            self.conflicts.insert(target.clone(), planner);
        }
    }

    /// Ends the backoff of the planner that waits for a newer version of `target`.
    pub(super) fn on_observed(&mut self, target: &ObjectRef, now: Timestamp) {
        let planner = self.conflicts.remove(target);
        if let Some(backoff) = planner.and_then(|planner| self.by_planner.get_mut(&planner)) {
            backoff.conflict = None;
            backoff.end = backoff.end.min(now);
        }
    }

    /// Resets the backoff of a planner after a successful write.
    pub(super) fn reset(&mut self, planner: &P) {
        let conflict = self.by_planner.remove(planner).and_then(|backoff| backoff.conflict);
        if let Some(target) = conflict {
            self.conflicts.remove(&target);
        }
    }

    /// Forgets the failures of planners that stopped trying; returns those planners.
    pub(super) fn expire(&mut self, now: Timestamp) -> BTreeSet<P> {
        let forgotten = self.by_planner.iter().filter(|(_, backoff)| forgotten_at(backoff.end) <= now);
        let forgotten: BTreeSet<P> = forgotten.map(|(planner, _)| planner.clone()).collect();
        forgotten.iter().for_each(|planner| self.reset(planner));
        forgotten
    }

    /// Returns the time at which [`expire`](Self::expire) forgets the next failures.
    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        self.by_planner.values().map(|backoff| forgotten_at(backoff.end)).min()
    }

    /// Returns the number of planners with failures, and of those that wait for a newer version.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_planner.len() + self.conflicts.len()
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

    fn object(name: &str) -> ObjectRef {
        ObjectRef {
            api_version: "batch/v1".into(),
            kind: "Job".into(),
            plural: "jobs".into(),
            namespace: Some("ns".into()),
            name: name.into(),
        }
    }

    #[test]
    fn backoff_after_a_conflict_ends_when_the_newer_version_is_observed() {
        let mut backoffs = PlannerBackoffs::default();
        backoffs.record_conflict("p", &object("a"), false, at(0));
        backoffs.on_observed(&object("b"), at(5));
        assert_eq!(backoffs.end(&"p"), Some(at(50)));

        backoffs.on_observed(&object("a"), at(7));
        assert_eq!((backoffs.failures(&"p"), backoffs.end(&"p")), (1, Some(at(7))));
    }

    #[test]
    fn conflict_with_an_observed_version_is_retried_at_once() {
        let mut backoffs = PlannerBackoffs::default();
        backoffs.record_conflict("p", &object("a"), true, at(3));
        assert_eq!(backoffs.end(&"p"), Some(at(3)));
    }

    #[test]
    fn repeated_conflicts_back_off() {
        let mut backoffs = PlannerBackoffs::default();
        for _ in 0..4 {
            backoffs.record_conflict("p", &object("a"), true, at(0));
        }
        assert_eq!(backoffs.end(&"p"), Some(at(400)));
    }

    #[test]
    fn observed_object_ends_no_backoff_after_another_failure() {
        // Given a planner that waits for a newer version, and then fails for another reason,
        let mut backoffs = PlannerBackoffs::default();
        backoffs.record_conflict("p", &object("a"), false, at(0));
        backoffs.record_failure("p", Some(SignedDuration::from_secs(2)), at(50));

        // when the object is observed, then it still waits.
        backoffs.on_observed(&object("a"), at(60));
        assert_eq!(backoffs.end(&"p"), Some(at(2050)));
    }

    #[test]
    fn backoff_is_at_most_half_a_minute() {
        assert_eq!(backoff_end(u32::MAX, at(0)), at(30_000));
    }
}
