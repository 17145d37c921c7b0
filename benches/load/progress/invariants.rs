//! Checks that usage never exceeds quota, and that no Workload is admitted twice.
//!
//! The changes of Workloads come in the order in which the API server stored them, so the sums
//! after each one are those that it had.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;
use sluice_api::quantity::Amount;

use crate::objects::CPU;
use crate::plan::LoadPlan;

/// A Workload as the invariants see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It holds no quota.
    Pending,
    /// It holds quota.
    Holding(Holding),
    /// It has finished.
    Finished,
}

/// Quota that a Workload holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    /// Name of the ClusterQueue.
    pub cluster_queue: String,
    /// Usage, in milli-CPU.
    pub usage: Amount,
    /// Time of the admission, in whole seconds. `None`: it is reserved, but not admitted.
    pub admitted_at: Option<Timestamp>,
}

/// A change that must never happen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The usage of a cohort exceeds its quota.
    #[error("cohort {cohort} uses {usage} CPU, more than its nominal quota of {nominal}, with Workload {workload}")]
    Cohort {
        /// Number of the cohort.
        cohort: usize,
        /// Usage, as a quantity.
        usage: String,
        /// Sum of the nominal quotas, as a quantity.
        nominal: String,
        /// Namespace and name of the Workload that was admitted last.
        workload: String,
    },
    /// The usage of a ClusterQueue exceeds what it may borrow.
    #[error(
        "ClusterQueue {queue} uses {usage} CPU, more than its nominal quota and borrowing limit of {limit}, with \
         Workload {workload}"
    )]
    ClusterQueue {
        /// Name of the ClusterQueue.
        queue: String,
        /// Usage, as a quantity.
        usage: String,
        /// Nominal quota and borrowing limit, as a quantity.
        limit: String,
        /// Namespace and name of the Workload that was admitted last.
        workload: String,
    },
    /// A Workload is in a ClusterQueue of another run.
    #[error("Workload {workload} is admitted by ClusterQueue {queue}, which the scenario does not have")]
    UnknownClusterQueue {
        /// Name of the ClusterQueue.
        queue: String,
        /// Namespace and name of the Workload.
        workload: String,
    },
    /// A Workload that holds quota was admitted again.
    #[error("Workload {workload} is admitted again without losing quota: {before} before, {after} after")]
    AdmittedTwice {
        /// Namespace and name of the Workload.
        workload: String,
        /// The quota that it held, for display.
        before: String,
        /// The quota that it holds, for display.
        after: String,
    },
}

/// Usage of ClusterQueues and cohorts, kept up to date with each change of a Workload.
#[derive(Debug)]
pub struct QuotaInvariants {
    /// ClusterQueues, in the order of the plan.
    queues: Vec<Account>,
    /// Cohorts, by number.
    cohorts: Vec<Account>,
    cohort_of: Vec<usize>,
    queue_named: HashMap<String, usize>,
    workloads: HashMap<String, Standing>,
    /// Slices whose quota is that of the slice that replaces them.
    replaced: HashSet<String>,
}

#[derive(Debug, Clone)]
struct Account {
    usage: Amount,
    /// `None`: not limited.
    limit: Option<Amount>,
}

impl QuotaInvariants {
    /// Creates the check of a run.
    pub fn new(plan: &LoadPlan) -> Self {
        let mut nominal = vec![Amount::ZERO; plan.cohorts()];
        for queue in &plan.queues {
            nominal[queue.cohort] = nominal[queue.cohort].plus(queue.nominal);
        }
        let account = |limit| Account { usage: Amount::ZERO, limit };
        let named = plan.queues.iter().enumerate().map(|(number, queue)| (queue.name.clone(), number));
        Self {
            queues: plan
                .queues
                .iter()
                .map(|queue| account(queue.borrowing_limit.map(|limit| queue.nominal.plus(limit))))
                .collect(),
            cohorts: nominal.into_iter().map(|nominal| account(Some(nominal))).collect(),
            cohort_of: plan.queues.iter().map(|queue| queue.cohort).collect(),
            queue_named: named.collect(),
            workloads: HashMap::new(),
            replaced: HashSet::new(),
        }
    }

    /// Removes all limits, for writes that no manager decides.
    pub fn without_limits(mut self) -> Self {
        for account in self.queues.iter_mut().chain(&mut self.cohorts) {
            account.limit = None;
        }
        self
    }

    /// Records that a Workload that holds quota replaces another: both count once, although the
    /// status of the other one says later that it has finished.
    ///
    /// # Errors
    /// If the change breaks an invariant.
    pub fn replace(&mut self, replaced: &str) -> Result<(), Violation> {
        if matches!(self.workloads.get(replaced), Some(Standing::Holding(_))) {
            self.change(replaced, Some(Standing::Finished))?;
            self.replaced.insert(replaced.to_owned());
        }
        Ok(())
    }

    /// Records a change of a Workload; `after` is `None` if it is deleted. Returns what it was
    /// before.
    ///
    /// # Errors
    /// If the change breaks an invariant.
    pub fn change(&mut self, workload: &str, after: Option<Standing>) -> Result<Option<Standing>, Violation> {
        let after = if self.replaced.contains(workload) { after.map(|_| Standing::Finished) } else { after };
        let before = match &after {
            Some(standing) => self.workloads.insert(workload.to_owned(), standing.clone()),
            None => self.workloads.remove(workload),
        };
        if let Some(Standing::Holding(held)) = &before {
            self.add(workload, held, Amount::ZERO.minus(held.usage))?;
        }
        if let Some(Standing::Holding(holding)) = &after {
            self.add(workload, holding, holding.usage)?;
            if let Some(Standing::Holding(held)) = &before {
                check_once(workload, held, holding)?;
            }
        }
        Ok(before)
    }

    /// Returns the usage of a cohort, in milli-CPU.
    pub fn usage_of_cohort(&self, cohort: usize) -> Amount {
        self.cohorts[cohort].usage
    }

    /// Returns the number of Workloads that exist.
    pub fn workloads(&self) -> usize {
        self.workloads.len()
    }

    fn add(&mut self, workload: &str, holding: &Holding, usage: Amount) -> Result<(), Violation> {
        let Some(number) = self.queue_named.get(&holding.cluster_queue).copied() else {
            let queue = holding.cluster_queue.clone();
            return Err(Violation::UnknownClusterQueue { queue, workload: workload.to_owned() });
        };
        let text = |amount: Amount| amount.display(CPU).to_string();
        if let Some((usage, limit)) = self.queues[number].add(usage) {
            let queue = holding.cluster_queue.clone();
            let (usage, limit, workload) = (text(usage), text(limit), workload.to_owned());
            return Err(Violation::ClusterQueue { queue, usage, limit, workload });
        }
        let cohort = self.cohort_of[number];
        if let Some((usage, nominal)) = self.cohorts[cohort].add(usage) {
            let (usage, nominal, workload) = (text(usage), text(nominal), workload.to_owned());
            return Err(Violation::Cohort { cohort, usage, nominal, workload });
        }
        Ok(())
    }
}

impl Account {
    /// Adds usage; returns usage and limit if it is now above the limit.
    fn add(&mut self, usage: Amount) -> Option<(Amount, Amount)> {
        self.usage = self.usage.plus(usage);
        let limit = self.limit?;
        (self.usage > limit).then_some((self.usage, limit))
    }
}

/// Checks that an admitted Workload was not admitted again. It may release a part of its quota. A
/// condition may also return to an earlier time: Kueue's eviction writes all conditions as its cache
/// has them (kueue v0.19.2 `pkg/workload/patching/patching.go`), which may be older than the last
/// admission.
fn check_once(workload: &str, before: &Holding, after: &Holding) -> Result<(), Violation> {
    let is_again = after.cluster_queue != before.cluster_queue
        || after.usage > before.usage
        || (before.admitted_at.is_some() && after.admitted_at > before.admitted_at);
    if !is_again {
        return Ok(());
    }
    let text = |holding: &Holding| {
        let at = holding.admitted_at.map_or_else(|| "not admitted".to_owned(), |at| format!("admitted at {at}"));
        format!("{} CPU of ClusterQueue {}, {at}", holding.usage.display(CPU), holding.cluster_queue)
    };
    Err(Violation::AdmittedTwice { workload: workload.to_owned(), before: text(before), after: text(after) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    /// Two ClusterQueues with 4 CPU each in one cohort, which may borrow 2.
    fn invariants() -> QuotaInvariants {
        let text = "
shortScale: 1
cohorts: {count: 1, clusterQueues: {count: 2, nominalCpu: 4, borrowingLimitCpu: 2}}
classes: [{name: a, count: 1, cpu: 1}]
";
        QuotaInvariants::new(&LoadPlan::new("t", &serde_saphyr::from_str(text).expect("a scenario")))
    }

    fn holding(queue: &str, cpu: i64, second: i64) -> Option<Standing> {
        let admitted_at = Some(Timestamp::from_second(second).expect("in range"));
        let usage = Amount::new(cpu * 1000);
        Some(Standing::Holding(Holding { cluster_queue: queue.to_owned(), usage, admitted_at }))
    }

    #[test]
    fn usage_up_to_the_limits_is_allowed() {
        let mut invariants = invariants();

        assert_eq!(invariants.change("ns/a", holding("t-0-0", 6, 1)), Ok(None));
        assert_eq!(invariants.change("ns/b", holding("t-0-1", 2, 1)), Ok(None));

        assert_eq!(invariants.usage_of_cohort(0), Amount::new(8000));
    }

    #[test]
    fn cohort_above_its_nominal_quota_is_a_violation() {
        let mut invariants = invariants();
        invariants.change("ns/a", holding("t-0-0", 5, 1)).expect("within the quota");

        let violation = invariants.change("ns/b", holding("t-0-1", 4, 1)).expect_err("above the quota");

        assert_eq!(violation.to_string(), "cohort 0 uses 9 CPU, more than its nominal quota of 8, with Workload ns/b");
    }

    #[test]
    fn cluster_queue_above_its_borrowing_limit_is_a_violation() {
        let violation = invariants().change("ns/a", holding("t-0-0", 7, 1)).expect_err("above the limit");

        assert_eq!(
            violation.to_string(),
            "ClusterQueue t-0-0 uses 7 CPU, more than its nominal quota and borrowing limit of 6, with Workload ns/a"
        );
    }

    #[rstest]
    #[case::finished(Some(Standing::Finished))]
    #[case::evicted(Some(Standing::Pending))]
    #[case::deleted(None)]
    fn released_quota_can_be_used_again(#[case] released: Option<Standing>) {
        let mut invariants = invariants();
        invariants.change("ns/a", holding("t-0-0", 6, 1)).expect("within the quota");
        invariants.change("ns/a", released).expect("a release");

        assert!(invariants.change("ns/b", holding("t-0-0", 6, 2)).is_ok());
    }

    #[rstest]
    #[case::in_another_queue(holding("t-0-1", 1, 1))]
    #[case::with_more_usage(holding("t-0-0", 2, 1))]
    #[case::at_a_later_time(holding("t-0-0", 1, 2))]
    fn second_admission_without_loss_of_quota_is_a_violation(#[case] again: Option<Standing>) {
        let mut invariants = invariants();
        invariants.change("ns/a", holding("t-0-0", 1, 1)).expect("the first admission");

        let violation = invariants.change("ns/a", again).expect_err("the second admission");

        assert!(matches!(violation, Violation::AdmittedTwice { .. }), "{violation}");
    }

    #[rstest]
    #[case::a_part_of_the_quota(holding("t-0-0", 1, 5))]
    #[case::an_earlier_time(holding("t-0-0", 2, 4))]
    fn change_of_an_admission_is_no_second_one(#[case] changed: Option<Standing>) {
        let mut invariants = invariants();
        invariants.change("ns/a", holding("t-0-0", 2, 5)).expect("the admission");

        assert!(invariants.change("ns/a", changed).is_ok());
    }

    #[test]
    fn workload_that_lost_its_quota_can_be_admitted_again() {
        let mut invariants = invariants();
        invariants.change("ns/a", holding("t-0-0", 1, 1)).expect("the first admission");
        invariants.change("ns/a", Some(Standing::Pending)).expect("an eviction");

        assert!(invariants.change("ns/a", holding("t-0-1", 2, 9)).is_ok());
    }

    #[test]
    fn slice_and_the_one_that_it_replaces_count_once() {
        let mut invariants = invariants();
        invariants.change("ns/a", holding("t-0-0", 4, 1)).expect("the first slice");
        invariants.replace("ns/a").expect("its replacement");
        invariants.change("ns/b", holding("t-0-0", 6, 2)).expect("the second slice");

        // A write to the replaced slice may follow that doesn't end it.
        invariants.change("ns/a", holding("t-0-0", 4, 1)).expect("the first slice still says that it holds quota");
        invariants.change("ns/a", Some(Standing::Finished)).expect("the end of the first slice");
        assert_eq!(invariants.usage_of_cohort(0), Amount::new(6000));
        assert!(invariants.change("ns/c", holding("t-0-0", 1, 3)).is_err());
    }

    #[test]
    fn unknown_cluster_queue_is_a_violation() {
        let violation = invariants().change("ns/a", holding("other", 1, 1)).expect_err("it is unknown");

        assert!(matches!(violation, Violation::UnknownClusterQueue { .. }), "{violation}");
    }

    #[test]
    fn nothing_is_limited_without_a_manager() {
        assert!(invariants().without_limits().change("ns/a", holding("t-0-0", 70, 1)).is_ok());
    }
}
