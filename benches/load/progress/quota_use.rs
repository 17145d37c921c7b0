//! Use of quota while Workloads are pending.

use std::time::Duration;

use sluice_api::quantity::Amount;

use crate::plan::LoadPlan;

/// Integrals over time of the usage and the quota of each cohort whose objects don't all fit, for as
/// long as a Workload of the cohort is pending.
#[derive(Debug)]
pub struct QuotaUse {
    cohorts: Vec<CohortUse>,
}

#[derive(Debug, Clone, Default)]
struct CohortUse {
    /// Nominal quota, in milli-CPU.
    nominal: f64,
    /// Sum of the requests of all its objects, in milli-CPU.
    demand: f64,
    usage: f64,
    pending: usize,
    since: Duration,
    /// Milli-CPU seconds while Workloads are pending.
    used: f64,
    /// Milli-CPU seconds that could be used in that time.
    usable: f64,
}

impl QuotaUse {
    /// Creates the measurement of a run that starts at time zero.
    pub fn new(plan: &LoadPlan) -> Self {
        let mut cohorts = vec![CohortUse::default(); plan.cohorts()];
        for queue in &plan.queues {
            cohorts[queue.cohort].nominal += float(queue.nominal);
        }
        for item in &plan.items {
            let class = plan.class_of(item);
            cohorts[plan.queues[item.queue].cohort].demand += float(class.cpu.times(class.kind.pods()));
        }
        Self { cohorts }
    }

    /// Records the number of pending Workloads and the usage of a cohort from this time on.
    pub fn change(&mut self, now: Duration, cohort: usize, pending: usize, usage: Amount) {
        let cohort = &mut self.cohorts[cohort];
        cohort.advance(now);
        cohort.pending = pending;
        cohort.usage = float(usage);
    }

    /// Returns the number of pending Workloads of a cohort.
    pub fn pending_in(&self, cohort: usize) -> usize {
        self.cohorts[cohort].pending
    }

    /// Returns the number of pending Workloads.
    pub fn pending(&self) -> usize {
        self.cohorts.iter().map(|cohort| cohort.pending).sum()
    }

    /// Returns the fraction of the whole quota that is used at present.
    pub fn present(&self) -> f64 {
        let sum = |of: fn(&CohortUse) -> f64| self.cohorts.iter().map(of).sum::<f64>();
        sum(|cohort| cohort.usage) / sum(|cohort| cohort.nominal)
    }

    /// Returns the mean fraction of the quota that was used until `now` while Workloads were
    /// pending. `None` if none ever was, or all fit.
    pub fn mean(&mut self, now: Duration) -> Option<f64> {
        let (mut used, mut usable) = (0.0, 0.0);
        for cohort in &mut self.cohorts {
            cohort.advance(now);
            used += cohort.used;
            usable += cohort.usable;
        }
        (usable > 0.0).then(|| used / usable)
    }
}

impl CohortUse {
    fn advance(&mut self, now: Duration) {
        let seconds = now.saturating_sub(self.since).as_secs_f64();
        self.since = self.since.max(now);
        // If all its objects fit, they are not pending for lack of quota.
        if self.pending > 0 && self.demand > self.nominal {
            self.used += self.usage * seconds;
            self.usable += self.nominal * seconds;
        }
    }
}

fn float(amount: Amount) -> f64 {
    amount.get() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the use of 10 CPU, for two Workloads that request `cpu` each.
    fn one_cohort(cpu: u32) -> QuotaUse {
        let text = "
shortScale: 1
cohorts: {count: 1, clusterQueues: {count: 1, nominalCpu: 10}}
classes: [{name: a, count: 2, cpu: CPUS}]
";
        let scenario = serde_saphyr::from_str(&text.replace("CPUS", &cpu.to_string())).expect("a scenario");
        QuotaUse::new(&LoadPlan::new("t", &scenario))
    }

    fn second(number: u64) -> Duration {
        Duration::from_secs(number)
    }

    #[test]
    fn only_time_with_pending_workloads_counts() {
        let mut quota = one_cohort(6);
        quota.change(second(1), 0, 2, Amount::new(10_000));
        quota.change(second(4), 0, 1, Amount::new(5_000));
        quota.change(second(5), 0, 0, Amount::new(1_000));

        assert_eq!(quota.mean(second(9)), Some(35.0 / 40.0));
        assert_eq!((quota.present(), quota.pending()), (0.1, 0));
    }

    #[test]
    fn run_without_pending_workloads_has_no_mean() {
        let mut quota = one_cohort(6);
        quota.change(second(1), 0, 0, Amount::new(10_000));

        assert_eq!(quota.mean(second(9)), None);
    }

    #[test]
    fn cohort_in_which_everything_fits_does_not_count() {
        let mut quota = one_cohort(5);
        quota.change(second(1), 0, 2, Amount::new(5_000));

        assert_eq!(quota.mean(second(9)), None);
    }

    #[test]
    fn late_event_does_not_turn_time_back() {
        let mut quota = one_cohort(6);
        quota.change(second(5), 0, 1, Amount::new(10_000));
        quota.change(second(4), 0, 1, Amount::new(10_000));

        assert_eq!(quota.mean(second(6)), Some(1.0));
    }
}
