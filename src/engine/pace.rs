//! When a planner runs next: at once, at a time it asked for, or after a pause because its last write failed.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

/// The pause after a first failed write; it doubles with each failure in a row.
const FIRST_PAUSE: SignedDuration = SignedDuration::from_millis(50);
/// The longest pause between two tries.
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_secs(30);

/// The planners that have to run, and when.
#[derive(Debug)]
pub struct Pace<P> {
    due: BTreeSet<P>,
    timers: BTreeMap<P, Timestamp>,
    pauses: BTreeMap<P, Pause>,
}

#[derive(Debug)]
struct Pause {
    failures: u32,
    until: Timestamp,
}

/// The pause after a failure that so many others came before.
pub fn pause_after(failures: u32) -> SignedDuration {
    FIRST_PAUSE.saturating_mul(1 << failures.min(16)).min(LONGEST_PAUSE)
}

impl<P> Default for Pace<P> {
    fn default() -> Self {
        Self { due: BTreeSet::new(), timers: BTreeMap::new(), pauses: BTreeMap::new() }
    }
}

impl<P: Ord + Clone> Pace<P> {
    /// `planner` has to run, as soon as no pause holds it back.
    pub fn mark(&mut self, planner: P) {
        self.due.insert(planner);
    }

    /// `planner` wants to run at `at`, instead of at any time that it asked for before.
    pub fn at(&mut self, planner: P, at: Option<Timestamp>) {
        match at {
            Some(at) => drop(self.timers.insert(planner, at)),
            None => drop(self.timers.remove(&planner)),
        }
    }

    /// How many writes of `planner` failed in a row.
    pub fn failures(&self, planner: &P) -> u32 {
        self.pauses.get(planner).map_or(0, |pause| pause.failures)
    }

    /// A write of `planner` failed: it runs again after a pause.
    pub fn failed(&mut self, planner: P, now: Timestamp) {
        let failures = self.failures(&planner);
        let until = now.saturating_add(pause_after(failures)).unwrap_or(Timestamp::MAX);
        self.pauses.insert(planner.clone(), Pause { failures: failures + 1, until });
        self.due.insert(planner);
    }

    /// A write of `planner` went through.
    pub fn succeeded(&mut self, planner: &P) {
        self.pauses.remove(planner);
    }

    /// Forgets everything about `planner`.
    pub fn forget(&mut self, planner: &P) {
        self.timers.remove(planner);
        self.pauses.remove(planner);
    }

    /// Takes the planners that have to run now.
    pub fn take_due(&mut self, now: Timestamp) -> BTreeSet<P> {
        let rung: Vec<P> =
            self.timers.iter().filter(|(_, at)| **at <= now).map(|(planner, _)| planner.clone()).collect();
        for planner in rung {
            self.timers.remove(&planner);
            self.due.insert(planner);
        }
        let held: BTreeSet<P> = self.due.iter().filter(|planner| self.is_paused(planner, now)).cloned().collect();
        let all = std::mem::replace(&mut self.due, held);
        all.into_iter().filter(|planner| !self.due.contains(planner)).collect()
    }

    /// The earliest time at which [`take_due`](Self::take_due) has something to give.
    pub fn next(&self) -> Option<Timestamp> {
        let marked =
            self.due.iter().map(|planner| self.pauses.get(planner).map_or(Timestamp::MIN, |pause| pause.until));
        marked.chain(self.timers.values().copied()).min()
    }

    fn is_paused(&self, planner: &P, now: Timestamp) -> bool {
        self.pauses.get(planner).is_some_and(|pause| now < pause.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(millis).expect("in range")
    }

    #[test]
    fn a_planner_that_fails_runs_again_after_pauses_that_double() {
        let mut pace = Pace::default();
        pace.failed("p", at(0));
        assert_eq!((pace.take_due(at(49)).len(), pace.next()), (0, Some(at(50))));
        assert_eq!(pace.take_due(at(50)), BTreeSet::from(["p"]));

        pace.failed("p", at(50));
        assert_eq!(pace.next(), Some(at(150)));

        pace.succeeded(&"p");
        assert_eq!(pace.take_due(at(60)), BTreeSet::from(["p"]), "what was marked is not forgotten");
    }

    #[test]
    fn a_timer_rings_once_and_the_last_wish_counts() {
        let mut pace = Pace::default();
        pace.at("p", Some(at(10)));
        pace.at("p", Some(at(20)));
        assert!(pace.take_due(at(15)).is_empty());
        assert_eq!(pace.take_due(at(20)), BTreeSet::from(["p"]));
        assert_eq!(pace.next(), None);
    }
}
