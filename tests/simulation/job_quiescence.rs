//! Invariants of batch/v1 Jobs in a quiescent system after the last fault.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use sluice_api::kueue::Workload;
use sluice_api::quantity::Amount;
use sluice_queue::requests::pod_requests;
use sluice_testkit::history::State;
use sluice_testkit::invariants::{
    Invariant, Violation, counts_toward_usage, holds_quota, is_admitted, is_finished, is_runnable, job_uid_of_pod,
    job_uid_of_slice, names_queue, object_key, slices_of_job,
};

/// Returns the violations in a quiescent system.
pub fn violations(state: &State) -> Vec<Violation> {
    let queued: Vec<&Job> = state.batch_jobs.values().filter(|job| names_queue(job) && !is_terminating(job)).collect();
    let mut found: Vec<Violation> = Vec::new();
    for job in queued.into_iter().filter(|job| !has_ended(job)) {
        found.extend(uncovered_gate(state, job));
        found.extend(uncovered_pods(state, job));
        found.extend(missing_workload(state, job));
        found.extend(unused_admission(state, job));
    }
    found.extend(quota_of_no_job(state));
    found
}

/// I2: a Job that is not suspended is covered by an admitted slice.
fn uncovered_gate(state: &State, job: &Job) -> Option<Violation> {
    let is_covered = slices(state, job).any(is_admitted);
    let message = || format!("Job {} is not suspended, and no admitted slice covers it", object_key(job));
    (!is_suspended(job) && !is_covered).then(|| Violation::new(Invariant::Gate, message()))
}

/// I3: the pods of a Job request no more than its slices have reserved, also those that were created
/// without a gate.
fn uncovered_pods(state: &State, job: &Job) -> Vec<Violation> {
    let mut requested: BTreeMap<String, Amount> = BTreeMap::new();
    for pod in pods(state, job).filter(|pod| is_runnable(pod)) {
        let requests = pod_requests(&pod.spec.clone().unwrap_or_default()).expect("requests of an accepted pod");
        add(&mut requested, requests.iter().map(|(resource, amount)| (resource.to_owned(), amount)));
    }
    let mut reserved: BTreeMap<String, Amount> = BTreeMap::new();
    for slice in slices(state, job).filter(|slice| counts_toward_usage(state, slice)) {
        let admission = slice.status.as_ref().and_then(|status| status.admission.as_ref());
        for assignment in admission.iter().flat_map(|admission| &admission.pod_set_assignments) {
            let amount = |resource: &str, quantity| Amount::from_quantity(resource, quantity).expect("a quantity");
            let used = assignment.resource_usage.iter();
            add(&mut reserved, used.map(|(resource, quantity)| (resource.clone(), amount(resource, quantity))));
        }
    }
    let over = requested.into_iter().filter_map(|(resource, sum)| {
        let most = reserved.get(&resource).copied().unwrap_or_default();
        let (requested, reserved) = (sum.display(&resource), most.display(&resource));
        let key = object_key(job);
        let message = format!("the pods of Job {key} request {requested} of {resource}; {reserved} is reserved");
        (sum > most).then(|| Violation::new(Invariant::Physical, message))
    });
    over.collect()
}

fn add(sums: &mut BTreeMap<String, Amount>, amounts: impl Iterator<Item = (String, Amount)>) {
    for (resource, amount) in amounts {
        let sum = sums.entry(resource).or_default();
        *sum = sum.plus(amount);
    }
}

/// I5: a Job that wants pods has a Workload, which is pending or holds quota.
fn missing_workload(state: &State, job: &Job) -> Option<Violation> {
    let is_paused = job.spec.as_ref().is_some_and(|spec| spec.parallelism == Some(0));
    let has_workload = slices(state, job).any(|slice| !is_finished(slice));
    let message = || format!("Job {} wants pods, and has no Workload", object_key(job));
    (!is_paused && !has_workload).then(|| Violation::new(Invariant::Liveness, message()))
}

/// I5: a Job with an admitted slice is resumed, has no gated pod that the slice covers, and holds no
/// quota for pods that it does not have.
fn unused_admission(state: &State, job: &Job) -> Option<Violation> {
    let covered: i32 = slices(state, job)
        .filter(|slice| is_admitted(slice) && counts_toward_usage(state, slice))
        .flat_map(|slice| slice.status.iter().flat_map(|status| &status.admission))
        .flat_map(|admission| &admission.pod_set_assignments)
        .filter_map(|assignment| assignment.count)
        .sum();
    let is_active = |pod: &&Pod| !has_ended_pod(pod) && pod.metadata.deletion_timestamp.is_none();
    let (running, gated): (Vec<&Pod>, Vec<&Pod>) = pods(state, job).filter(is_active).partition(|pod| is_runnable(pod));
    // Pods that the Job does not have are as idle as gated ones.
    let is_idle = is_suspended(job) || i64::try_from(running.len()).is_ok_and(|run| run < covered.into());
    let message = || {
        format!(
            "the slice of Job {} covers {covered} pods, of which {} run and {} are gated; suspended: {}",
            object_key(job),
            running.len(),
            gated.len(),
            is_suspended(job),
        )
    };
    (covered > 0 && is_idle).then(|| Violation::new(Invariant::Liveness, message()))
}

/// I5: quota is held only for Jobs that exist and are not finished, and for pods that such a Job has
/// left.
fn quota_of_no_job(state: &State) -> Vec<Violation> {
    let live = state.batch_jobs.values().filter(|job| !has_ended(job)).filter_map(ResourceExt::uid);
    let existing = state.pods.values().filter(|pod| !has_ended_pod(pod)).filter_map(job_uid_of_pod);
    let in_use: BTreeSet<String> = live.chain(existing).collect();
    // The name tells the kind of a job that has left its Workload without an owner.
    let of_jobs = state.workloads.values().filter(|slice| slice.name_any().starts_with("job-"));
    let idle =
        of_jobs.filter(|slice| holds_quota(slice) && job_uid_of_slice(slice).is_none_or(|job| !in_use.contains(&job)));
    idle.map(|slice| {
        let message = format!("Workload {} holds quota, and its Job is finished or does not exist", object_key(slice));
        Violation::new(Invariant::Liveness, message)
    })
    .collect()
}

fn slices<'a>(state: &'a State, job: &'a Job) -> impl Iterator<Item = &'a Workload> {
    slices_of_job(state, job.metadata.uid.as_deref().unwrap_or_default())
}

fn pods<'a>(state: &'a State, job: &'a Job) -> impl Iterator<Item = &'a Pod> {
    state.pods.values().filter(|pod| job_uid_of_pod(pod) == job.uid())
}

fn has_ended_pod(pod: &Pod) -> bool {
    matches!(pod.status.as_ref().and_then(|status| status.phase.as_deref()), Some("Succeeded" | "Failed"))
}

/// Reports whether a Job runs no more pods. One that has met its success criteria while it was suspended
/// stays so: it can't be complete without a start time.
fn has_ended(job: &Job) -> bool {
    let mut conditions = job.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let is_end = |kind: &str| matches!(kind, "Complete" | "Failed" | "SuccessCriteriaMet");
    conditions.any(|condition| is_end(condition.type_.as_str()) && condition.status == "True")
}

fn is_terminating(job: &Job) -> bool {
    job.metadata.deletion_timestamp.is_some()
}

fn is_suspended(job: &Job) -> bool {
    job.spec.as_ref().is_some_and(|spec| spec.suspend == Some(true))
}
