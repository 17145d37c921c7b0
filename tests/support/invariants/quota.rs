//! I1: no admission takes more than the cohort tree makes available to its ClusterQueue.

use sluice_api::kueue::Workload;
use sluice_api::quantity::Amount;

use super::tree::{Quotas, Usage};
use super::{Invariant, Violation, add_usage, add_usage_with_replaced, counts_toward_usage, object_key};
use crate::history::State;

/// Checks a new admission of `workload` against the quotas in effect. Returns the violations under
/// the one that gives the fewest.
pub(super) fn check(state: &State, workload: &Workload, in_force: &[&Quotas]) -> Vec<Violation> {
    let breach = |message: String| Violation::new(Invariant::Quota, message);
    let key = object_key(workload);
    let Some(admission) = workload.status.as_ref().and_then(|status| status.admission.as_ref()) else {
        return vec![breach(format!("Workload {key} has QuotaReserved but no admission"))];
    };
    let queue = &admission.cluster_queue;
    if !state.cluster_queues.contains_key(&format!("/{queue}")) {
        return vec![breach(format!("Workload {key} was admitted to {queue}, which does not exist"))];
    }
    let (mut others, mut own) = (Usage::new(), Usage::new());
    let holders = state
        .workloads
        .values()
        .filter(|holder| self::object_key(*holder) != key && counts_toward_usage(state, holder));
    holders.for_each(|holder| add_usage_with_replaced(&mut others, state, holder));
    add_usage(&mut own, workload);
    let excess = |quotas: &&Quotas| {
        let taken = own.get(queue).into_iter().flatten();
        let over = taken.filter_map(|(pair, amount)| {
            let available = quotas.available(queue, pair, &others);
            let (flavor, resource) = pair;
            (*amount > Amount::ZERO && i128::from(amount.get()) > available).then(|| {
                breach(format!(
                    "{key} uses {} of {resource} in {flavor}; {available} is available to {queue}",
                    amount.get()
                ))
            })
        });
        over.collect::<Vec<_>>()
    };
    in_force.iter().map(excess).min_by_key(Vec::len).unwrap_or_default()
}
