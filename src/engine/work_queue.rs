//! Work queue of planners: each runs immediately or at a requested time, but not before its backoff
//! ends.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

/// The planners to run, with their timers.
#[derive(Debug, Clone)]
pub(super) struct WorkQueue<P> {
    due: BTreeSet<P>,
    timers: BTreeMap<P, Timestamp>,
}

impl<P> Default for WorkQueue<P> {
    fn default() -> Self {
        Self { due: BTreeSet::new(), timers: BTreeMap::new() }
    }
}

impl<P: Ord + Clone> WorkQueue<P> {
    /// Enqueues `planner`; it runs as soon as it is not in backoff.
    pub(super) fn enqueue(&mut self, planner: P) {
        self.due.insert(planner);
    }

    /// Reports whether `planner` is enqueued. After [`drain_due`](Self::drain_due), it then is in backoff.
    pub(super) fn is_enqueued(&self, planner: &P) -> bool {
        self.due.contains(planner)
    }

    /// Sets the timer of `planner` to `at`, replacing an earlier one; `None` clears it.
    pub(super) fn enqueue_at(&mut self, planner: P, at: Option<Timestamp>) {
        match at {
            Some(at) => {
                self.timers.insert(planner, at);
            }
            None => {
                self.timers.remove(&planner);
            }
        }
    }

    /// Removes and returns the planners that are due at `now`. Those whose `backoff_end` is later
    /// stay queued.
    pub(super) fn drain_due(&mut self, now: Timestamp, backoff_end: impl Fn(&P) -> Option<Timestamp>) -> BTreeSet<P> {
        let expired = self.timers.extract_if(.., |_, at| *at <= now).map(|(planner, _)| planner);
        self.due.extend(expired);
        self.due.extract_if(.., |planner| backoff_end(planner).is_none_or(|end| end <= now)).collect()
    }

    /// Returns the earliest time at which [`drain_due`](Self::drain_due) returns a planner; `None` if
    /// the queue is empty.
    pub(super) fn next_deadline(&self, backoff_end: impl Fn(&P) -> Option<Timestamp>) -> Option<Timestamp> {
        let queued = self.due.iter().map(|planner| backoff_end(planner).unwrap_or(Timestamp::MIN));
        queued.chain(self.timers.values().copied()).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(millis).expect("in range")
    }

    #[test]
    fn planner_in_backoff_stays_queued() {
        let mut queue = WorkQueue::default();
        queue.enqueue("p");
        let backoff_end = |_: &&str| Some(at(50));
        assert_eq!((queue.drain_due(at(49), backoff_end).len(), queue.next_deadline(backoff_end)), (0, Some(at(50))));
        assert_eq!(queue.drain_due(at(50), backoff_end), BTreeSet::from(["p"]));
        assert_eq!(queue.next_deadline(backoff_end), None);
    }

    #[test]
    fn planner_stays_enqueued_when_its_backoff_is_reset() {
        let mut queue = WorkQueue::default();
        queue.enqueue("p");
        assert!(queue.drain_due(at(10), |_| Some(at(50))).is_empty());
        assert_eq!(queue.drain_due(at(10), |_| None), BTreeSet::from(["p"]));
    }

    #[test]
    fn timer_fires_once_and_the_last_one_set_wins() {
        let mut queue = WorkQueue::default();
        queue.enqueue_at("p", Some(at(10)));
        queue.enqueue_at("p", Some(at(20)));
        assert!(queue.drain_due(at(15), |_| None).is_empty());
        assert_eq!(queue.drain_due(at(20), |_| None), BTreeSet::from(["p"]));
        assert_eq!(queue.next_deadline(|_| None), None);
    }
}
