//! Quota that the heads of StrictFIFO ClusterQueues reserve.

use std::collections::BTreeMap;

use kube::ResourceExt;
use sluice_api::kueue::cluster_queue::{FlavorQuotas, QueueingStrategy, ReclaimPolicy};
use sluice_api::kueue::{ClusterQueue, Workload};
use sluice_api::quantity::Amount;

use crate::quiescence::{active_cluster_queue, amount_of, flavor_names, is_stopped, pod_set_requests};
use crate::world::SimulatedWorld;
use sluice_testkit::history::State;
use sluice_testkit::invariants::tree::Usage;
use sluice_testkit::invariants::{add_usage_with_replaced, object_key, replaced_slice_key};

/// Returns an upper bound of the quota that is reserved for pending workloads of other StrictFIFO
/// ClusterQueues: the requests of a workload beyond what its predecessor holds, if they fit into
/// the nominal quota of its ClusterQueue and that cannot reclaim from any priority (kueue v0.19.2
/// `pkg/scheduler/scheduler.go`, `quotaResourcesToReserve`). The bound by nominal quota holds for
/// cohorts without parents.
pub fn reserved_by_heads(world: &SimulatedWorld, waiting: &[&Workload], queue: &ClusterQueue) -> Usage {
    let mut kept = Usage::new();
    for other in waiting {
        let Some(keeper) = active_cluster_queue(world, other)
            .filter(|keeper| reserves_for_head(keeper) && object_key(*keeper) != object_key(queue))
        else {
            continue;
        };
        let [group] = keeper.spec.resource_groups.as_slice() else { continue };
        for flavor in flavor_names(group) {
            let more = additional_requests(world.observer.state(), other, &flavor);
            if group.flavors.len() == 1 && !is_within_nominal(&group.flavors[0], &more) {
                continue;
            }
            let sums = kept.entry(keeper.name_any()).or_default();
            for (resource, amount) in more {
                let most = sums.entry((flavor.clone(), resource)).or_default();
                *most = amount.max(*most);
            }
        }
    }
    kept
}

/// True if a ClusterQueue reserves quota for its head.
fn reserves_for_head(queue: &ClusterQueue) -> bool {
    let rules = queue.spec.preemption.clone().unwrap_or_default();
    queue.spec.queueing_strategy == Some(QueueingStrategy::StrictFIFO)
        && rules.reclaim_within_cohort != Some(ReclaimPolicy::Any)
        && !is_stopped(queue.spec.stop_policy)
}

/// Returns the requests of a workload minus what the slice it replaces holds in `flavor`, by
/// resource.
fn additional_requests(state: &State, workload: &Workload, flavor: &str) -> BTreeMap<String, Amount> {
    let mut held = Usage::new();
    let replaced = replaced_slice_key(workload).and_then(|name| state.workloads.get(name));
    replaced.into_iter().for_each(|slice| add_usage_with_replaced(&mut held, state, slice));
    let mut asked: BTreeMap<String, Amount> = BTreeMap::new();
    for (resource, amount) in workload.spec.pod_sets.iter().filter_map(pod_set_requests).flatten() {
        let sum = asked.entry(resource).or_default();
        *sum = sum.plus(amount);
    }
    for (resource, amount) in &mut asked {
        let pair = (flavor.to_owned(), resource.clone());
        let held: i64 = held.values().filter_map(|pairs| pairs.get(&pair)).map(|amount| amount.get()).sum();
        *amount = Amount::new((amount.get() - held).max(0));
    }
    asked
}

/// True if `more` is within the nominal quota.
fn is_within_nominal(flavor: &FlavorQuotas, more: &BTreeMap<String, Amount>) -> bool {
    flavor.resources.iter().all(|quota| {
        let asked = more.get(&quota.name).copied().unwrap_or_default();
        asked <= amount_of(&quota.name, Some(&quota.nominal_quota))
    })
}
