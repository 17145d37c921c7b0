//! I8: a Workload is charged exactly for its pods, also if its resources are transformed.

use sluice_api::kueue::Workload;
use sluice_api::quantity::Amount;
use sluice_queue::requests::template_requests;

use super::{Invariant, Violation, holds_quota, object_key};
use crate::history::State;

/// Resource that is charged for the CPUs of every pod, in the ClusterQueues that cover it.
pub const CREDITS: &str = "example.com/credits";
/// Thousandths of a credit for each CPU.
pub const CREDITS_PER_CPU_MILLI: i64 = 300;
/// Resource whose amount multiplies the credits of a pod. One that requests none has the factor one.
pub const CREDITS_MULTIPLIER: &str = "nvidia.com/gpu";

/// Returns the violations of a Workload with quota in a ClusterQueue that covers credits: each pod costs
/// the credits of its CPUs, rounded up.
pub(super) fn check(state: &State, workload: &Workload) -> Vec<Violation> {
    let admission = workload.status.as_ref().and_then(|status| status.admission.as_ref());
    let Some(admission) = admission.filter(|_| holds_quota(workload)) else { return Vec::new() };
    if !covers_credits(state, &admission.cluster_queue) {
        return Vec::new();
    }
    let wrong = admission.pod_set_assignments.iter().filter_map(|assignment| {
        let pod_set = workload.spec.pod_sets.iter().find(|set| set.name == assignment.name)?;
        let requests = template_requests(&pod_set.template).expect("requests of an admitted Workload");
        let count = i64::from(assignment.count.unwrap_or_default());
        let expected = count * credits_of_pod(requests.get("cpu"), requests.get(CREDITS_MULTIPLIER));
        let charged = assignment.resource_usage.get(CREDITS).map_or(Amount::ZERO, |quantity| {
            Amount::from_quantity(CREDITS, quantity).expect("a quantity written by the manager")
        });
        let message = || {
            let (key, set) = (object_key(workload), &assignment.name);
            format!(
                "Workload {key} is charged {} credits for {count} pods of {set}; they cost {expected}",
                charged.get()
            )
        };
        (charged != Amount::new(expected)).then(|| Violation::new(Invariant::Payment, message()))
    });
    wrong.collect()
}

fn credits_of_pod(cpu: Amount, factor: Amount) -> i64 {
    let millionths = cpu.get() * CREDITS_PER_CPU_MILLI * factor.get().max(1);
    millionths.div_euclid(1_000_000) + i64::from(millionths % 1_000_000 > 0)
}

fn covers_credits(state: &State, queue: &str) -> bool {
    let queue = state.cluster_queues.get(&format!("/{queue}"));
    let mut covered =
        queue.into_iter().flat_map(|queue| &queue.spec.resource_groups).flat_map(|group| &group.covered_resources);
    covered.any(|resource| resource == CREDITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credits_of_a_pod_are_rounded_up() {
        let credits = |cpu, gpus| credits_of_pod(Amount::new(cpu), Amount::new(gpus));

        assert_eq!(credits(0, 0), 0);
        assert_eq!(credits(250, 0), 1);
        assert_eq!(credits(10_000, 1), 3);
        assert_eq!(credits(10_000, 2), 6);
        assert_eq!(credits(10_001, 2), 7);
    }
}
