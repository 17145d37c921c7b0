//! The budget of writes that only report: while writes that decide are in flight, one report is
//! sent for every [`DECISIONS_PER_REPORT`] of those that the API server accepted. While none is, as
//! many reports are in flight as leave the API server fast: their number doubles with each fast
//! response, and halves with each slow one.
//!
//! A planner whose report has to wait plans again when its turn comes, so a report that has become
//! obsolete meanwhile is never sent, and several changes of one object are one write.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::{ApiServerLoad, WriteId};
use sluice_plan::{ObjectRef, Write, WriteOp, WriteRank};

/// Number of accepted decisions that pay for one report.
const DECISIONS_PER_REPORT: u32 = 10;
/// Maximum number of reports in flight while no decision is and the load of the API server is low.
const MAX_REPORTS_IN_FLIGHT: usize = 8;
/// Time after which the first waiting report is sent even if the API server accepts no decision.
const MAX_WAIT: SignedDuration = SignedDuration::from_secs(1);
/// Minimum time between two statuses of one queue.
const QUEUE_STATUS_INTERVAL: SignedDuration = SignedDuration::from_secs(1);
/// Time for which a report waits: what happens to the object meanwhile is in the same write, or
/// makes it unnecessary.
const REPORT_DELAY: SignedDuration = SignedDuration::from_secs(1);

/// The writes in flight by rank, and the planners whose reports wait.
#[derive(Debug, Clone)]
pub(super) struct WriteBudget<P> {
    in_flight: BTreeMap<WriteId, WriteRank>,
    /// Number of those that decide.
    decisions_in_flight: usize,
    /// The planners that wait, by rank and in the order of their arrival.
    waiting: BTreeMap<(WriteRank, u64), P>,
    /// Place of each planner that waits.
    places: BTreeMap<P, (WriteRank, u64)>,
    arrivals: u64,
    /// The planners whose turn has come, until they plan.
    granted: BTreeSet<P>,
    /// Number of accepted decisions that have not paid for a report.
    credit: u32,
    /// Number of reports that can be in flight while no decision is. At zero, one is sent after
    /// [`MAX_WAIT`], and its response shows the load of the API server.
    report_limit: usize,
    /// Time at which the first waiting planner is granted its report without credit.
    overdue_at: Timestamp,
    /// Time of the last status of each queue, if it blocks the next one.
    queue_statuses: BTreeMap<ObjectRef, Timestamp>,
    /// [`REPORT_DELAY`], or zero.
    report_delay: SignedDuration,
    /// Time since which each planner has had something to report.
    unreported: BTreeMap<P, Timestamp>,
}

/// Answer of the budget to a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// It can be sent.
    Admitted,
    /// The planner waits for its turn and is then released.
    Waiting,
    /// It can be planned again at this time.
    NotBefore(Timestamp),
}

impl<P> Default for WriteBudget<P> {
    fn default() -> Self {
        Self {
            in_flight: BTreeMap::new(),
            decisions_in_flight: 0,
            waiting: BTreeMap::new(),
            places: BTreeMap::new(),
            arrivals: 0,
            granted: BTreeSet::new(),
            credit: 0,
            report_limit: MAX_REPORTS_IN_FLIGHT,
            overdue_at: Timestamp::MIN,
            queue_statuses: BTreeMap::new(),
            report_delay: REPORT_DELAY,
            unreported: BTreeMap::new(),
        }
    }
}

impl<P: Ord + Clone> WriteBudget<P> {
    /// Lets no report wait for what happens next.
    pub(super) fn report_without_delay(&mut self) {
        self.report_delay = SignedDuration::ZERO;
    }

    /// Takes back the grant of a planner that plans these writes now, and its place among those that
    /// wait. Reports whether it had a grant.
    pub(super) fn take_grant(&mut self, planner: &P, writes: &[Write]) -> bool {
        if let Some(place) = self.places.remove(planner) {
            self.waiting.remove(&place);
        }
        if !writes.iter().any(is_delayed) {
            self.unreported.remove(planner);
        }
        self.granted.remove(planner)
    }

    /// Decides whether a write can be sent. `is_granted` is the answer of
    /// [`take_grant`](Self::take_grant).
    pub(super) fn admit(&mut self, planner: &P, write: &Write, is_granted: bool, now: Timestamp) -> Admission {
        if write.rank.decides() {
            return Admission::Admitted;
        }
        if let Some(next) = self.next_queue_status(&write.target).filter(|next| *next > now) {
            return Admission::NotBefore(next);
        }
        if is_delayed(write) && !is_granted {
            let since = *self.unreported.entry(planner.clone()).or_insert(now);
            let due = later(since, self.report_delay);
            if due > now {
                return Admission::NotBefore(due);
            }
        }
        if is_granted || self.spare_reports() > 0 {
            return Admission::Admitted;
        }
        if self.waiting.is_empty() {
            self.overdue_at = later(now, MAX_WAIT);
        }
        self.arrivals += 1;
        let place = (write.rank, self.arrivals);
        if let Some(earlier) = self.places.insert(planner.clone(), place) {
            self.waiting.remove(&earlier);
        }
        self.waiting.insert(place, planner.clone());
        Admission::Waiting
    }

    /// Records that a write is sent.
    pub(super) fn begin(&mut self, planner: &P, id: WriteId, write: &Write, now: Timestamp) {
        self.in_flight.insert(id, write.rank);
        self.decisions_in_flight += usize::from(write.rank.decides());
        if write.rank == WriteRank::QueueStatus {
            self.queue_statuses.retain(|_, at| later(*at, QUEUE_STATUS_INTERVAL) > now);
            self.queue_statuses.insert(write.target.clone(), now);
        }
        if matches!(write.op, WriteOp::PatchStatus(_)) {
            self.unreported.remove(planner);
        }
    }

    /// Sets the load of the API server, as the last response shows it.
    pub(super) fn set_load(&mut self, load: ApiServerLoad) {
        self.report_limit = match load {
            ApiServerLoad::Low => (self.report_limit * 2).clamp(1, MAX_REPORTS_IN_FLIGHT),
            ApiServerLoad::High => self.report_limit / 2,
        };
    }

    /// Records the result of a write; returns the planners whose turn has come.
    pub(super) fn on_result(&mut self, id: WriteId, is_accepted: bool, now: Timestamp) -> Vec<P> {
        if self.in_flight.remove(&id).is_some_and(WriteRank::decides) {
            self.decisions_in_flight -= 1;
            self.credit += u32::from(is_accepted && !self.waiting.is_empty());
        }
        self.grant(now)
    }

    /// Returns the planners whose turn has come at `now`.
    pub(super) fn expire(&mut self, now: Timestamp) -> Vec<P> {
        if self.next_deadline().is_none_or(|deadline| deadline > now) {
            return Vec::new();
        }
        let mut planners = self.grant(now);
        if planners.is_empty() {
            planners.extend(self.grant_next(now));
        }
        planners
    }

    /// Returns the time at which [`expire`](Self::expire) returns the next planner; `None` if none
    /// waits.
    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        match (self.waiting.is_empty(), self.spare_reports()) {
            (true, _) => None,
            (false, 0) => Some(self.overdue_at),
            (false, _) => Some(Timestamp::MIN),
        }
    }

    fn grant(&mut self, now: Timestamp) -> Vec<P> {
        let paid = usize::try_from(self.credit / DECISIONS_PER_REPORT).unwrap_or(usize::MAX);
        self.credit %= DECISIONS_PER_REPORT;
        (0..paid.max(self.spare_reports())).map_while(|_| self.grant_next(now)).collect()
    }

    fn grant_next(&mut self, now: Timestamp) -> Option<P> {
        let (_, planner) = self.waiting.pop_first()?;
        self.places.remove(&planner);
        self.overdue_at = later(now, MAX_WAIT);
        self.granted.insert(planner.clone());
        Some(planner)
    }

    /// Returns the number of reports that can be sent because no decision is in flight and the API
    /// server is fast.
    fn spare_reports(&self) -> usize {
        if self.decisions_in_flight > 0 {
            return 0;
        }
        self.report_limit.saturating_sub(self.in_flight.len() + self.granted.len())
    }

    fn next_queue_status(&self, queue: &ObjectRef) -> Option<Timestamp> {
        self.queue_statuses.get(queue).map(|last| later(*last, QUEUE_STATUS_INTERVAL))
    }

    /// Returns the number of writes in flight and of planners that wait or were granted a report.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.in_flight.len() + self.waiting.len() + self.granted.len()
    }
}

/// Reports whether a write waits for what happens next. The status of a queue has an interval
/// instead, and an object that has outlived its retention has waited already.
fn is_delayed(write: &Write) -> bool {
    !write.rank.decides() && !matches!(write.rank, WriteRank::QueueStatus | WriteRank::Cleanup)
}

fn later(at: Timestamp, by: SignedDuration) -> Timestamp {
    at.saturating_add(by).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(millis).expect("in range")
    }

    fn write(rank: WriteRank, name: &str) -> Write {
        let target = ObjectRef {
            api_version: "kueue.x-k8s.io/v1beta2".into(),
            kind: "Workload".into(),
            plural: "workloads".into(),
            namespace: Some("ns".into()),
            name: name.into(),
        };
        Write::new(target, WriteOp::PatchStatus(json!({}))).ranked(rank)
    }

    const DECISION: WriteRank = WriteRank::Decision;
    const QUEUE: WriteRank = WriteRank::QueueStatus;
    const PROGRESS: WriteRank = WriteRank::Progress;
    const PENDING: WriteRank = WriteRank::PendingCondition;

    /// Plans one write, and sends it if the budget admits it. A report has waited for its delay.
    fn plan(budget: &mut WriteBudget<&'static str>, planner: &'static str, rank: WriteRank, id: WriteId) -> Admission {
        let write = write(rank, planner);
        let is_granted = budget.take_grant(&planner, std::slice::from_ref(&write));
        if is_delayed(&write) {
            budget.unreported.insert(planner, at(-1000));
        }
        let admission = budget.admit(&planner, &write, is_granted, at(0));
        if admission == Admission::Admitted {
            budget.begin(&planner, id, &write, at(0));
        }
        admission
    }

    #[test]
    fn decision_is_never_delayed() {
        let mut budget = WriteBudget::default();
        for id in 0..100 {
            assert_eq!(plan(&mut budget, "job", DECISION, id), Admission::Admitted);
        }
    }

    #[test]
    fn reports_use_their_share_of_connections_while_no_decision_is_in_flight() {
        let mut budget = WriteBudget::default();
        for id in 0..8 {
            assert_eq!(plan(&mut budget, "first", PENDING, id), Admission::Admitted);
        }
        assert_eq!(plan(&mut budget, "next", PENDING, 8), Admission::Waiting);

        assert_eq!(budget.on_result(0, true, at(5)), ["next"]);

        assert_eq!(plan(&mut budget, "next", PENDING, 8), Admission::Admitted);
    }

    #[rstest]
    #[case::slow_once(&[ApiServerLoad::High], 4)]
    #[case::slow_again_and_again(&[ApiServerLoad::High; 4], 0)]
    #[case::fast_again(&[ApiServerLoad::High, ApiServerLoad::High, ApiServerLoad::High, ApiServerLoad::High, ApiServerLoad::Low], 1)]
    #[case::always_fast(&[ApiServerLoad::Low; 9], 8)]
    fn number_of_reports_in_flight_follows_the_responses(#[case] loads: &[ApiServerLoad], #[case] reports: usize) {
        let mut budget = WriteBudget::default();
        for load in loads {
            budget.set_load(*load);
        }

        let planners = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
        let admitted = planners
            .iter()
            .zip(0..)
            .filter(|(planner, id)| plan(&mut budget, planner, PENDING, *id) == Admission::Admitted);

        assert_eq!(admitted.count(), reports);
    }

    #[test]
    fn report_is_sent_after_its_time_while_the_load_is_high() {
        let mut budget = WriteBudget::default();
        for _ in 0..4 {
            budget.set_load(ApiServerLoad::High);
        }
        assert_eq!(plan(&mut budget, "a", PENDING, 1), Admission::Waiting);

        assert_eq!((budget.expire(at(999)), budget.expire(at(1000))), (vec![], vec!["a"]));
    }

    #[rstest]
    #[case::accepted(true, 1)]
    #[case::rejected(false, 0)]
    fn only_accepted_decisions_pay_for_a_report(#[case] is_accepted: bool, #[case] reports: usize) {
        let mut budget = WriteBudget::default();
        for id in 0..11 {
            plan(&mut budget, "job", DECISION, id);
        }
        for planner in ["a", "b"] {
            assert_eq!(plan(&mut budget, planner, PENDING, 20), Admission::Waiting);
        }

        let released: Vec<_> = (0..10).flat_map(|id| budget.on_result(id, is_accepted, at(5))).collect();

        assert_eq!(released, ["a", "b"][..reports]);
    }

    #[test]
    fn queue_status_precedes_the_conditions_of_pending_workloads() {
        let mut budget = WriteBudget::default();
        plan(&mut budget, "job", DECISION, 1);
        plan(&mut budget, "workload", PENDING, 2);
        plan(&mut budget, "queue", QUEUE, 3);

        assert_eq!(budget.on_result(1, false, at(5)), ["queue", "workload"]);
    }

    #[test]
    fn report_waits_no_longer_than_its_time_if_no_decision_is_answered() {
        let mut budget = WriteBudget::default();
        plan(&mut budget, "job", DECISION, 1);
        plan(&mut budget, "a", PENDING, 2);
        plan(&mut budget, "b", PENDING, 3);
        assert_eq!((budget.expire(at(999)), budget.next_deadline()), (vec![], Some(at(1000))));

        assert_eq!(budget.expire(at(1000)), ["a"]);

        assert_eq!((budget.expire(at(1999)), budget.next_deadline()), (vec![], Some(at(2000))));
    }

    #[test]
    fn planner_that_no_longer_reports_gives_its_turn_to_the_next() {
        let mut budget = WriteBudget::default();
        for id in 0..8 {
            plan(&mut budget, "first", PENDING, id);
        }
        for planner in ["a", "b"] {
            plan(&mut budget, planner, PENDING, 9);
        }
        assert_eq!(budget.on_result(0, true, at(5)), ["a"]);

        assert!(budget.take_grant(&"a", &[]), "it plans nothing");

        assert_eq!((budget.expire(at(5)), budget.len()), (vec!["b"], 8));
    }

    #[test]
    fn status_of_a_queue_is_written_at_most_once_in_an_interval() {
        let mut budget = WriteBudget::default();
        plan(&mut budget, "queue", QUEUE, 1);
        budget.on_result(1, true, at(5));
        let mut again = |now| budget.admit(&"queue", &write(QUEUE, "queue"), false, now);

        assert_eq!(again(at(999)), Admission::NotBefore(at(1000)));
        assert_eq!(again(at(1000)), Admission::Admitted);
    }

    #[rstest]
    fn reports_of_an_object_within_a_second_are_one(#[values(PROGRESS, PENDING)] rank: WriteRank) {
        let mut budget = WriteBudget::default();
        let mut again = |now| budget.admit(&"cluster", &write(rank, "cluster"), false, now);

        assert_eq!(again(at(0)), Admission::NotBefore(at(1000)));
        assert_eq!(again(at(400)), Admission::NotBefore(at(1000)));
        assert_eq!(again(at(1000)), Admission::Admitted);
    }

    #[test]
    fn decision_takes_the_place_of_the_report() {
        // Given a cluster with something to report,
        let mut budget = WriteBudget::default();
        budget.admit(&"cluster", &write(PROGRESS, "cluster"), false, at(0));

        // when a decision on its status is sent, then what it has to report later waits for a second of its own.
        plan(&mut budget, "cluster", DECISION, 1);
        let next = budget.admit(&"cluster", &write(PROGRESS, "cluster"), false, at(900));
        assert_eq!(next, Admission::NotBefore(at(1900)));
    }

    #[test]
    fn planner_that_no_longer_reports_starts_again_with_the_whole_delay() {
        // Given a planner that had something to report, and then no longer,
        let mut budget = WriteBudget::default();
        let report = [write(PROGRESS, "cluster")];
        budget.take_grant(&"cluster", &report);
        budget.admit(&"cluster", &report[0], false, at(0));
        budget.take_grant(&"cluster", &[]);

        // when it has something to report later, then that waits for a second of its own.
        budget.take_grant(&"cluster", &report);
        assert_eq!(budget.admit(&"cluster", &report[0], false, at(5000)), Admission::NotBefore(at(6000)));
    }
}
