//! The invariants of the design, checked after every single change of a history.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kube::{Resource, ResourceExt};
use sluice::api::condition::is_true;
use sluice::api::kueue::Workload;
use sluice::api::quantity::Amount;
use sluice::api::ray::RayCluster;
use sluice::queue::requests::pod_requests;

use super::history::{Change, Object, State};
use super::tree::{Quotas, Usage};

const QUEUE_NAME: &str = "kueue.x-k8s.io/queue-name";
const REPLACES: &str = "kueue.x-k8s.io/workload-slice-replacement-for";

/// So long after a quota was changed, an admission may still come in that was decided by what it was before: the decision was
/// on its way. (Quota and admissions are different objects; nobody writes both at once. On a busy machine a write takes this
/// long.)
const ON_THE_WAY: Duration = Duration::from_secs(3);

/// Replays a history and returns every breach, with the change that made it.
pub fn breaches(history: &[Change]) -> Vec<String> {
    let mut state = State::default();
    let mut breaches = Vec::new();
    let mut quotas = Quotas::default();
    let mut former: VecDeque<(Instant, Quotas)> = VecDeque::new();
    for change in history {
        let before = state.clone();
        state.apply(change);
        if matches!(change.object, Object::ClusterQueue(_) | Object::Cohort(_)) {
            let changed = Quotas::of(state.cluster_queues.values(), state.cohorts.values());
            if changed != quotas {
                former.push_back((change.heard, std::mem::replace(&mut quotas, changed)));
            }
        }
        while former.front().is_some_and(|(until, _)| *until + ON_THE_WAY < change.heard) {
            former.pop_front();
        }
        let in_force: Vec<&Quotas> = former.iter().map(|(_, quotas)| quotas).chain([&quotas]).collect();
        let found = check(&before, &state, change, &in_force);
        breaches.extend(found.into_iter().map(|breach| format!("at version {}: {breach}", change.version)));
    }
    breaches
}

/// What a change broke, if any of these quotas were in force when it was decided.
fn check(before: &State, state: &State, change: &Change, in_force: &[&Quotas]) -> Vec<String> {
    let mut breaches = Vec::new();
    match &change.object {
        Object::Workload(workload) if !change.gone => {
            breaches.extend(quota(before, state, workload, in_force));
            breaches.extend(physical(state));
        }
        Object::RayCluster(cluster) if !change.gone => breaches.extend(gate(before, state, cluster)),
        Object::Pod(_) | Object::Workload(_) => breaches.extend(physical(state)),
        _ => {}
    }
    breaches
}

/// I1: no admission takes more than the cohort tree makes available to its ClusterQueue.
fn quota(before: &State, state: &State, workload: &Workload, in_force: &[&Quotas]) -> Vec<String> {
    let key = key(workload);
    let was_reserved = before.workloads.get(&key).is_some_and(holds_quota);
    if was_reserved || !holds_quota(workload) {
        return Vec::new();
    }
    let Some(queue) = workload.status.as_ref().and_then(|status| status.admission.as_ref()) else {
        return vec![format!("I1: Workload {key} has QuotaReserved and no admission")];
    };
    if !state.cluster_queues.contains_key(&format!("/{}", queue.cluster_queue)) {
        return vec![format!("I1: Workload {key} was admitted to {}, which doesn't exist", queue.cluster_queue)];
    }
    let mut others = Usage::new();
    for holder in state.workloads.values().filter(|holder| counts(state, holder) && self::key(*holder) != key) {
        add_usage(&mut others, holder);
    }
    let mut own = Usage::new();
    add_usage(&mut own, workload);
    let excess = |quotas: &&Quotas| {
        let taken = own.get(&queue.cluster_queue).into_iter().flatten();
        let over = taken.filter_map(|(pair, amount)| {
            let available = quotas.available(&queue.cluster_queue, pair, &others);
            (*amount > Amount::ZERO && i128::from(amount.get()) > available).then(|| {
                let (flavor, resource) = pair;
                format!(
                    "I1: {key} takes {} of {resource} in {flavor}; {available} is available to {}",
                    amount.get(),
                    queue.cluster_queue
                )
            })
        });
        over.collect::<Vec<_>>()
    };
    in_force.iter().map(excess).min_by_key(Vec::len).unwrap_or_default()
}

/// Adds what a Workload holds.
fn add_usage(usage: &mut Usage, holder: &Workload) {
    let Some(admission) = holder.status.as_ref().and_then(|status| status.admission.as_ref()) else { return };
    let used = usage.entry(admission.cluster_queue.clone()).or_default();
    for assignment in &admission.pod_set_assignments {
        for (resource, quantity) in &assignment.resource_usage {
            let flavor = assignment.flavors.get(resource).cloned().unwrap_or_default();
            let sum = used.entry((flavor, resource.clone())).or_default();
            *sum = sum.plus(Amount::of(resource, quantity).expect("a quantity"));
        }
    }
}

/// I2: a gate opens only while one admitted slice has room for every open cluster of the job.
fn gate(before: &State, state: &State, cluster: &RayCluster) -> Vec<String> {
    let key = key(cluster);
    let is_open = |cluster: &RayCluster| cluster.spec.suspend != Some(true);
    let was_closed = before.ray_clusters.get(&key).is_some_and(|was| !is_open(was));
    if !was_closed || !is_open(cluster) || !cluster.labels().contains_key(QUEUE_NAME) || is_tampered(cluster) {
        return Vec::new();
    }
    let owner = job_uid(cluster);
    let open = state.ray_clusters.values().filter(|other| job_uid(other) == owner && is_open(other));
    let mut needed: BTreeMap<String, i32> = BTreeMap::new();
    for cluster in open {
        *needed.entry("head".to_owned()).or_default() += 1;
        for group in &cluster.spec.worker_group_specs {
            let hosts = group.num_of_hosts.unwrap_or(1);
            *needed.entry(group.group_name.to_lowercase()).or_default() += group.replicas.unwrap_or(0) * hosts;
        }
    }
    let slices = state.workloads.values().filter(|workload| owner_uid(*workload).as_ref() == Some(&owner));
    let covers = |slice: &Workload| {
        let admission = slice.status.as_ref().and_then(|status| status.admission.as_ref());
        let assignments = admission.map(|admission| admission.pod_set_assignments.as_slice()).unwrap_or_default();
        needed.iter().all(|(group, count)| {
            let same = assignments
                .iter()
                .filter(|assignment| assignment.name == *group || assignment.name.starts_with(&format!("{group}-")));
            same.map(|assignment| assignment.count.unwrap_or(0)).sum::<i32>() >= *count
        })
    };
    if slices.into_iter().any(|slice| is_admitted(slice) && covers(slice)) {
        return Vec::new();
    }
    vec![format!("I2: the gate of {key} was opened, and no admitted slice covers {needed:?}")]
}

/// I3: the pods of a queued job never request more than the job has reserved.
fn physical(state: &State) -> Vec<String> {
    let mut requested: BTreeMap<String, BTreeMap<String, Amount>> = BTreeMap::new();
    for pod in state.pods.values().filter(|pod| may_run(pod)) {
        let Some(cluster) = pod.labels().get("ray.io/cluster") else { continue };
        let cluster_key = format!("{}/{cluster}", pod.namespace().unwrap_or_default());
        let Some(job) = job_of_pod(state, &cluster_key, pod) else { continue };
        let requests = pod_requests(pod.spec.as_ref().unwrap_or(&PodSpec::default())).expect("requests");
        let sums = requested.entry(job).or_default();
        for (resource, amount) in requests.iter() {
            let sum = sums.entry(resource.to_owned()).or_default();
            *sum = sum.plus(amount);
        }
    }
    let mut breaches = Vec::new();
    for (job, sums) in requested {
        let mut reserved: BTreeMap<String, Amount> = BTreeMap::new();
        for holder in
            state.workloads.values().filter(|holder| counts(state, holder) && owner_uid(*holder).as_ref() == Some(&job))
        {
            let admission = holder.status.as_ref().and_then(|status| status.admission.as_ref());
            for assignment in admission.iter().flat_map(|admission| &admission.pod_set_assignments) {
                for (resource, quantity) in &assignment.resource_usage {
                    let sum = reserved.entry(resource.clone()).or_default();
                    *sum = sum.plus(Amount::of(resource, quantity).expect("a quantity"));
                }
            }
        }
        for (resource, sum) in sums {
            let most = reserved.get(&resource).copied().unwrap_or_default();
            if sum > most {
                let (sum, most) = (sum.display(&resource).to_string(), most.display(&resource).to_string());
                breaches.push(format!("I3: the pods of job {job} request {sum} of {resource}; {most} is reserved"));
            }
        }
    }
    breaches
}

/// A pod that runs, or that the scheduler may place.
fn may_run(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let gated =
        pod.spec.as_ref().and_then(|spec| spec.scheduling_gates.as_ref()).is_some_and(|gates| !gates.is_empty());
    !matches!(phase, Some("Succeeded" | "Failed")) && !gated
}

/// The uid of the queued job that a pod belongs to; `None` for pods of jobs that are not queued.
fn job_of_pod(state: &State, cluster_key: &str, pod: &Pod) -> Option<String> {
    if let Some(cluster) = state.ray_clusters.get(cluster_key) {
        return cluster.labels().contains_key(QUEUE_NAME).then(|| job_uid(cluster));
    }
    // The cluster is gone and the pod is not: whoever reserved quota for it still has to hold it.
    let cluster = pod.labels().get("ray.io/cluster")?;
    let paid = state.workloads.values().find(|workload| {
        workload.annotations().get("sluice.dev/slice").is_some_and(|record| record.contains(&format!("\"{cluster}\"")))
    });
    paid.and_then(owner_uid)
}

/// Whether a Workload's reservation counts: a slice that is being replaced doesn't count beside its admitted successor.
fn counts(state: &State, workload: &Workload) -> bool {
    let key = key(workload);
    let replaced = state
        .workloads
        .values()
        .any(|other| holds_quota(other) && other.annotations().get(REPLACES).is_some_and(|replaced| *replaced == key));
    holds_quota(workload) && !replaced
}

fn holds_quota(workload: &Workload) -> bool {
    let conditions = workload.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    is_true(conditions, "QuotaReserved") && !is_true(conditions, "Finished")
}

fn is_admitted(workload: &Workload) -> bool {
    let conditions = workload.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    holds_quota(workload) && is_true(conditions, "Admitted") && !is_true(conditions, "Evicted")
}

/// A test that opens a gate by hand says so on the object.
fn is_tampered(cluster: &RayCluster) -> bool {
    cluster.annotations().contains_key("test.sluice.dev/opened-by-hand")
}

fn job_uid(cluster: &RayCluster) -> String {
    owner_uid(cluster).unwrap_or_else(|| cluster.uid().unwrap_or_default())
}

fn owner_uid<K: Resource>(object: &K) -> Option<String> {
    let owners = object.owner_references().iter();
    owners.into_iter().find(|owner| owner.controller == Some(true)).map(|owner| owner.uid.clone())
}

fn key<K: Resource>(object: &K) -> String {
    format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any())
}
