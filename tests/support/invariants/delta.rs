//! I4: a slice reserves quota before its predecessor releases it. The pair is always counted
//! exactly once.

use kube::ResourceExt;
use sluice_api::condition::is_true;
use sluice_api::kueue::Workload;
use sluice_api::ray::RayCluster;

use super::{
    Invariant, QUEUE_NAME_LABEL, Violation, clusters_of_job, counts_toward_usage, holds_quota, is_live, is_unsuspended,
    object_key, owner_uid, slices_of_job,
};
use crate::history::State;

/// Returns the violations caused by the change of a Workload from `was`.
pub(super) fn check(state: &State, was: Option<&Workload>, workload: &Workload, gone: bool) -> Vec<Violation> {
    let Some(job) = owner_uid(workload) else { return Vec::new() };
    let held = was.is_some_and(holds_quota);
    let holds = holds_quota(workload) && !gone;
    match (held, holds) {
        (false, true) => counted_twice(state, &job),
        (true, false) => released_without_successor(state, &job, was.unwrap_or(workload), workload),
        _ => Vec::new(),
    }
}

/// Checks that at most one admitted slice of a job counts on its own: all others are replaced by
/// it, directly or through finished slices.
fn counted_twice(state: &State, job: &str) -> Vec<Violation> {
    let holders: Vec<&Workload> = slices_of_job(state, job).filter(|slice| holds_quota(slice)).collect();
    let on_their_own = holders.iter().filter(|slice| counts_toward_usage(state, slice)).count();
    if on_their_own < 2 {
        return Vec::new();
    }
    let keys: Vec<String> = holders.iter().map(|slice| object_key(*slice)).collect();
    let message =
        format!("job {job} is counted {on_their_own} times: {} hold quota at the same time", keys.join(" and "));
    vec![Violation::new(Invariant::Delta, message)]
}

/// Checks that quota released by a slice is held by another one while the job has unsuspended
/// clusters in a queue. Evicted slices are exempt.
fn released_without_successor(state: &State, job: &str, was: &Workload, workload: &Workload) -> Vec<Violation> {
    let conditions = |workload: &Workload| workload.status.clone().unwrap_or_default().conditions;
    let evicted = is_true(&conditions(was), "Evicted") || is_true(&conditions(workload), "Evicted");
    let is_queued = |cluster: &&RayCluster| cluster.labels().contains_key(QUEUE_NAME_LABEL);
    let mut open = clusters_of_job(state, job).filter(|cluster| is_unsuspended(cluster) && is_live(cluster));
    if evicted {
        return Vec::new();
    }
    let Some(open) = open.find(is_queued) else { return Vec::new() };
    if slices_of_job(state, job).any(holds_quota) {
        return Vec::new();
    }
    let message = format!(
        "{} released its quota, no other slice holds any, and {} is not suspended",
        object_key(workload),
        object_key(open)
    );
    vec![Violation::new(Invariant::Delta, message)]
}
