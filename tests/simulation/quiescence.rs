//! Invariants of a quiescent system after the last fault.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use serde::Deserialize;
use sluice_api::condition::{self, is_true};
use sluice_api::kueue::cluster_queue::{FlavorUsage, QueueingStrategy, ResourceGroup};
use sluice_api::kueue::{ClusterQueue, LocalQueue, PodSet, StopPolicy, Workload};
use sluice_api::quantity::Amount;
use sluice_api::ray::RayCluster;
use sluice_jobframework::slice_record::SliceRecord;
use sluice_queue::partial_admission::GrowthStep;
use sluice_queue::partial_preemption::PARTIALLY_PREEMPTED;
use sluice_queue::requests::template_requests;

use crate::job_quiescence;
use crate::strict_fifo_reservation::reserved_by_heads;
use crate::world::SimulatedWorld;
use sluice_testkit::history::State;
use sluice_testkit::invariants::tree::{FlavorResource, Quotas, Usage};
use sluice_testkit::invariants::{
    Invariant, QUEUE_NAME_LABEL, Violation, add_usage_with_replaced, counts_toward_usage, holds_quota, is_admitted,
    is_live, is_unsuspended, job_uid, object_key, quota_for_nothing, quota_held_twice, replaced_slice_key,
    slices_of_job, unexplained_waits, usage,
};

/// Returns the violations in a quiescent system.
pub fn violations(world: &SimulatedWorld) -> Vec<Violation> {
    let state = world.observer.state();
    let mut found = uncovered_clusters(state);
    found.extend(wrong_reservations(state));
    found.extend(needlessly_pending(world));
    found.extend(unreleased_parts(state));
    found.extend(job_quiescence::violations(state));
    found.extend(quota_for_nothing(state));
    found.extend(quota_held_twice(state));
    found.extend(unexplained_waits(state));
    found
}

/// I2: every unsuspended cluster is covered by an admitted slice. (A cluster that has outgrown its
/// slice keeps its pods.)
fn uncovered_clusters(state: &State) -> Vec<Violation> {
    let is_covered = |cluster: &RayCluster| {
        let (job, uid) = (job_uid(state, cluster), cluster.uid().unwrap_or_default());
        let mut slices = slices_of_job(state, &job).filter(|slice| is_admitted(slice));
        slices.any(|slice| SliceRecord::from_workload(slice).unwrap_or_default().member_of_cluster(&uid).is_some())
    };
    let needs_quota = |cluster: &RayCluster| {
        cluster.labels().contains_key(QUEUE_NAME_LABEL) && is_unsuspended(cluster) && is_live(cluster)
    };
    let open = state.ray_clusters.values().filter(|cluster| needs_quota(cluster) && !is_covered(cluster));
    open.map(|cluster| {
        Violation::new(
            Invariant::Gate,
            format!("{} is not suspended, and no admitted slice covers it", object_key(cluster)),
        )
    })
    .collect()
}

/// I4: the `flavorsReservation` of a ClusterQueue is the sum of what its workloads hold.
fn wrong_reservations(state: &State) -> Vec<Violation> {
    let held = usage(state);
    let mut found = Vec::new();
    for queue in state.cluster_queues.values() {
        let name = queue.name_any();
        let reported = reserved_amounts(queue.status.iter().flat_map(|status| &status.flavors_reservation));
        let mut held = held.get(&name).cloned().unwrap_or_default();
        held.retain(|_, amount| *amount != Amount::ZERO);
        if reported != held {
            let what = format!("ClusterQueue {name} reports {reported:?} as reserved, and its workloads hold {held:?}");
            found.push(Violation::new(Invariant::Delta, what));
        }
    }
    found
}

/// Returns the amounts of a `flavorsReservation` that are not zero.
pub(crate) fn reserved_amounts<'a>(
    reservation: impl Iterator<Item = &'a FlavorUsage>,
) -> BTreeMap<FlavorResource, Amount> {
    let amounts = reservation.flat_map(|flavor| {
        let pair = |resource: &str| (flavor.name.clone(), resource.to_owned());
        flavor.resources.iter().map(move |usage| (pair(&usage.name), amount_of(&usage.name, usage.total.as_ref())))
    });
    amounts.filter(|(_, amount)| *amount != Amount::ZERO).collect()
}

pub(crate) fn amount_of(resource: &str, quantity: Option<&sluice_api::quantity::Quantity>) -> Amount {
    quantity.map_or(Amount::ZERO, |quantity| {
        Amount::from_quantity(resource, quantity).expect("a quantity written by Sluice")
    })
}

/// I5: no workload is pending for quota that is available.
fn needlessly_pending(world: &SimulatedWorld) -> Vec<Violation> {
    let state = world.observer.state();
    let waiting: Vec<&Workload> = state.workloads.values().filter(|workload| is_pending(workload)).collect();
    let mut found = Vec::new();
    for workload in &waiting {
        let Some(queue) = active_cluster_queue(world, workload) else { continue };
        let strict = queue.spec.queueing_strategy == Some(QueueingStrategy::StrictFIFO);
        let rivals = waiting
            .iter()
            .filter(|other| active_cluster_queue(world, other).map(object_key) == Some(object_key(queue)))
            .count();
        if is_stopped(queue.spec.stop_policy) || strict && rivals > 1 {
            continue;
        }
        let fits_next_to = |kept: Usage| find_fit(state, world.observer.checker().quotas(), queue, workload, kept);
        let Some(flavors) = fits_next_to(Usage::new()) else { continue };
        let is_kept = || fits_next_to(reserved_by_heads(world, &waiting, queue)).is_none();
        if !(reports_reserved_quota(workload) && is_kept()) {
            let what = format!(
                "Workload {} is pending, and would fit into ClusterQueue {} in {flavors:?}",
                object_key(*workload),
                queue.name_any()
            );
            found.push(Violation::new(Invariant::Liveness, what));
        }
    }
    found
}

/// I5: preempted parts are released.
fn unreleased_parts(state: &State) -> impl Iterator<Item = Violation> {
    let is_partially_preempted = |slice: &&Workload| {
        let conditions = slice.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        holds_quota(slice) && is_true(conditions, PARTIALLY_PREEMPTED)
    };
    let preempted = state.workloads.values().filter(is_partially_preempted);
    preempted.map(|slice| {
        Violation::new(
            Invariant::Liveness,
            format!("Workload {} is partially preempted and has not released the part", object_key(slice)),
        )
    })
}

/// True if the condition of a workload reports quota reserved for others.
fn reports_reserved_quota(workload: &Workload) -> bool {
    let conditions = workload.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    condition::get(conditions, "QuotaReserved").is_some_and(|condition| condition.message.contains(" is reserved for "))
}

pub(crate) fn is_stopped(policy: Option<StopPolicy>) -> bool {
    policy.unwrap_or_default() != StopPolicy::None
}

fn is_pending(workload: &Workload) -> bool {
    let conditions = workload.status.clone().unwrap_or_default().conditions;
    !holds_quota(workload)
        && !is_true(&conditions, "Finished")
        && workload.spec.active != Some(false)
        && workload.metadata.deletion_timestamp.is_none()
}

pub(crate) fn active_cluster_queue<'a>(world: &'a SimulatedWorld, workload: &Workload) -> Option<&'a ClusterQueue> {
    let local = world.api.get("LocalQueue", &workload.namespace()?, workload.spec.queue_name.as_ref()?)?;
    let local = LocalQueue::deserialize(&**local).ok()?;
    if is_stopped(local.spec.stop_policy) {
        return None;
    }
    world.observer.state().cluster_queues.get(&format!("/{}", local.spec.cluster_queue.as_ref()?))
}

/// Returns flavors in which all pod sets of a workload fit, or those of one of its growth steps, on
/// top of the reserved quota `kept`. None if there are none. Tries every combination.
fn find_fit(
    state: &State,
    quotas: &Quotas,
    queue: &ClusterQueue,
    workload: &Workload,
    kept: Usage,
) -> Option<Vec<String>> {
    let replaced = replaced_slice_key(workload);
    let (mut used, mut running) = (kept, BTreeMap::new());
    for holder in state.workloads.values().filter(|holder| counts_toward_usage(state, holder)) {
        // Quota held in another ClusterQueue is not taken over.
        let admission = holder.status.as_ref().and_then(|status| status.admission.as_ref());
        let is_here = admission.is_some_and(|admission| admission.cluster_queue == queue.name_any());
        match is_here && Some(&object_key(holder)) == replaced {
            true => running = assigned_flavors(holder),
            false => add_usage_with_replaced(&mut used, state, holder),
        }
    }
    admissible_counts(workload).into_iter().find_map(|pods| {
        let set = |set: &PodSet| {
            let requests = pod_set_requests(&PodSet { count: pods[&set.name], ..set.clone() })?;
            Some(PodSetNeed { requests, pinned_flavor: running.get(&set.name).cloned() })
        };
        let sets: Vec<PodSetNeed> = workload.spec.pod_sets.iter().map(set).collect::<Option<_>>()?;
        let mut chosen = Vec::new();
        assign_flavors(quotas, queue, &sets, &mut used.clone(), &mut chosen).then_some(chosen)
    })
}

/// Returns the pod counts with which a workload may be admitted: all pods, or one of its growth
/// steps.
fn admissible_counts(workload: &Workload) -> Vec<BTreeMap<String, i32>> {
    let whole: BTreeMap<String, i32> = workload.spec.pod_sets.iter().map(|set| (set.name.clone(), set.count)).collect();
    let steps = SliceRecord::from_workload(workload).unwrap_or_default().steps;
    let adds = |counts: &mut BTreeMap<String, i32>, step: &GrowthStep, times: i64| {
        for pods in &step.pods {
            let added = i32::try_from(times * i64::from(pods.count)).expect("a small number");
            *counts.get_mut(&pods.pod_set).expect("a pod set") += added;
        }
    };
    let mut before = whole.clone();
    steps.iter().for_each(|step| adds(&mut before, step, -i64::from(step.times)));
    let with = steps.iter().map(|step| {
        let mut counts = before.clone();
        adds(&mut counts, step, 1);
        counts
    });
    std::iter::once(whole).chain(with).collect()
}

/// Requests of a pod set, and the flavor that it must keep because pods of it run there.
struct PodSetNeed {
    requests: BTreeMap<String, Amount>,
    pinned_flavor: Option<String>,
}

/// Returns the flavor of each pod set with running pods. (With one resource group, a pod set is in
/// one flavor.)
fn assigned_flavors(workload: &Workload) -> BTreeMap<String, String> {
    let admission = workload.status.clone().unwrap_or_default().admission.unwrap_or_default();
    let run = admission.pod_set_assignments.into_iter().filter(|assigned| assigned.count != Some(0));
    run.filter_map(|assigned| Some((assigned.name, assigned.flavors.into_values().next()?))).collect()
}

pub(crate) fn pod_set_requests(set: &PodSet) -> Option<BTreeMap<String, Amount>> {
    let all = template_requests(&set.template).ok()?.times(set.count.into());
    Some(all.iter().map(|(resource, amount)| (resource.to_owned(), amount)).collect())
}

/// Assigns the first pod set to each flavor in turn, then the rest by recursion. False if no
/// combination fits. (Scripts have one resource group.)
fn assign_flavors(
    quotas: &Quotas,
    queue: &ClusterQueue,
    sets: &[PodSetNeed],
    used: &mut Usage,
    chosen: &mut Vec<String>,
) -> bool {
    let Some((set, rest)) = sets.split_first() else { return true };
    let [group] = queue.spec.resource_groups.as_slice() else { return false };
    let covered: BTreeSet<&String> = group.covered_resources.iter().collect();
    if set.requests.keys().any(|resource| !covered.contains(resource)) {
        return false;
    }
    for flavor in flavor_names(group).filter(|flavor| set.pinned_flavor.as_ref().is_none_or(|pinned| pinned == flavor))
    {
        let before = used.clone();
        let fits = set.requests.iter().all(|(resource, amount)| {
            let pair = (flavor.clone(), resource.clone());
            let fits = i128::from(amount.get()) <= quotas.available(&queue.name_any(), &pair, used);
            let sum = used.entry(queue.name_any()).or_default().entry(pair).or_default();
            *sum = sum.plus(*amount);
            fits
        });
        chosen.push(flavor);
        if fits && assign_flavors(quotas, queue, rest, used, chosen) {
            return true;
        }
        chosen.pop();
        *used = before;
    }
    false
}

pub(crate) fn flavor_names(group: &ResourceGroup) -> impl Iterator<Item = String> {
    group.flavors.iter().map(|flavor| flavor.name.clone())
}
