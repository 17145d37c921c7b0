//! Rate-limited work queue of planners: each runs immediately, at a requested time, or after a
//! backoff because its last write failed.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

/// Backoff after the first failed write; it doubles with each consecutive failure.
const BASE_BACKOFF: SignedDuration = SignedDuration::from_millis(50);
/// Maximum backoff between two attempts.
const MAX_BACKOFF: SignedDuration = SignedDuration::from_secs(30);

/// The planners to run, with their timers and backoffs.
#[derive(Debug)]
pub struct RateLimitedQueue<P> {
    due: BTreeSet<P>,
    timers: BTreeMap<P, Timestamp>,
    backoffs: BTreeMap<P, Backoff>,
}

#[derive(Debug)]
struct Backoff {
    failures: u32,
    until: Timestamp,
}

/// Returns the backoff after a failure that follows `failures` consecutive ones.
pub fn backoff_after(failures: u32) -> SignedDuration {
    BASE_BACKOFF.saturating_mul(1 << failures.min(16)).min(MAX_BACKOFF)
}

impl<P> Default for RateLimitedQueue<P> {
    fn default() -> Self {
        Self { due: BTreeSet::new(), timers: BTreeMap::new(), backoffs: BTreeMap::new() }
    }
}

impl<P: Ord + Clone> RateLimitedQueue<P> {
    /// Enqueues `planner`; it runs as soon as it is not in backoff.
    pub fn enqueue(&mut self, planner: P) {
        self.due.insert(planner);
    }

    /// Sets the timer of `planner` to `at`, replacing an earlier one; `None` clears it.
    pub fn enqueue_at(&mut self, planner: P, at: Option<Timestamp>) {
        match at {
            Some(at) => {
                self.timers.insert(planner, at);
            }
            None => {
                self.timers.remove(&planner);
            }
        }
    }

    /// Returns the number of consecutive failed writes of `planner`.
    pub fn failures(&self, planner: &P) -> u32 {
        self.backoffs.get(planner).map_or(0, |pause| pause.failures)
    }

    /// Enqueues `planner` after a failed write; it runs again after a backoff.
    pub fn requeue_with_backoff(&mut self, planner: P, now: Timestamp) {
        let failures = self.failures(&planner);
        let until = now.saturating_add(backoff_after(failures)).unwrap_or(Timestamp::MAX);
        self.backoffs.insert(planner.clone(), Backoff { failures: failures + 1, until });
        self.due.insert(planner);
    }

    /// Resets the backoff of `planner` after a successful write.
    pub fn reset_backoff(&mut self, planner: &P) {
        self.backoffs.remove(planner);
    }

    /// Drops the timer and the backoff of `planner`.
    pub fn forget(&mut self, planner: &P) {
        self.timers.remove(planner);
        self.backoffs.remove(planner);
    }

    /// Removes and returns the planners that are due at `now`; those in backoff stay queued.
    pub fn drain_due(&mut self, now: Timestamp) -> BTreeSet<P> {
        let expired: Vec<P> =
            self.timers.iter().filter(|(_, at)| **at <= now).map(|(planner, _)| planner.clone()).collect();
        for planner in expired {
            self.timers.remove(&planner);
            self.due.insert(planner);
        }
        let held: BTreeSet<P> = self.due.iter().filter(|planner| self.is_backing_off(planner, now)).cloned().collect();
        let all = std::mem::replace(&mut self.due, held);
        all.into_iter().filter(|planner| !self.due.contains(planner)).collect()
    }

    /// Returns the earliest time at which [`take_due`](Self::drain_due) returns a planner; `None` if
    /// the queue is empty.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let queued =
            self.due.iter().map(|planner| self.backoffs.get(planner).map_or(Timestamp::MIN, |pause| pause.until));
        queued.chain(self.timers.values().copied()).min()
    }

    fn is_backing_off(&self, planner: &P, now: Timestamp) -> bool {
        self.backoffs.get(planner).is_some_and(|pause| now < pause.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(millis).expect("in range")
    }

    #[test]
    fn failing_planner_is_requeued_with_doubling_backoff() {
        let mut pace = RateLimitedQueue::default();
        pace.requeue_with_backoff("p", at(0));
        assert_eq!((pace.drain_due(at(49)).len(), pace.next_deadline()), (0, Some(at(50))));
        assert_eq!(pace.drain_due(at(50)), BTreeSet::from(["p"]));

        pace.requeue_with_backoff("p", at(50));
        assert_eq!(pace.next_deadline(), Some(at(150)));

        pace.reset_backoff(&"p");
        assert_eq!(pace.drain_due(at(60)), BTreeSet::from(["p"]), "success keeps the planner enqueued");
    }

    #[test]
    fn timer_fires_once_and_the_last_one_set_wins() {
        let mut pace = RateLimitedQueue::default();
        pace.enqueue_at("p", Some(at(10)));
        pace.enqueue_at("p", Some(at(20)));
        assert!(pace.drain_due(at(15)).is_empty());
        assert_eq!(pace.drain_due(at(20)), BTreeSet::from(["p"]));
        assert_eq!(pace.next_deadline(), None);
    }
}
