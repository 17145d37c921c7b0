//! I4: a slice reserves quota before its predecessor releases it. The pair is always counted
//! exactly once.

use sluice_api::condition::is_true;
use sluice_api::kueue::Workload;

use super::{Breach, Invariant, clusters_of, counts, holds_quota, is_live, is_open, key, owner_uid, slices_of};
use crate::history::State;

/// Returns the violations caused by the change of a Workload from `was`.
pub(super) fn check(state: &State, was: Option<&Workload>, workload: &Workload, gone: bool) -> Vec<Breach> {
    let Some(job) = owner_uid(workload) else { return Vec::new() };
    let held = was.is_some_and(holds_quota);
    let holds = holds_quota(workload) && !gone;
    match (held, holds) {
        (false, true) => twice(state, &job),
        (true, false) => not_at_all(state, &job, was.unwrap_or(workload), workload),
        _ => Vec::new(),
    }
}

/// Checks that at most one admitted slice of a job counts on its own: all others are replaced by
/// it, directly or through finished slices.
fn twice(state: &State, job: &str) -> Vec<Breach> {
    let holders: Vec<&Workload> = slices_of(state, job).filter(|slice| holds_quota(slice)).collect();
    let on_their_own = holders.iter().filter(|slice| counts(state, slice)).count();
    if on_their_own < 2 {
        return Vec::new();
    }
    let keys: Vec<String> = holders.iter().map(|slice| key(*slice)).collect();
    let message =
        format!("job {job} is counted {on_their_own} times: {} hold quota at the same time", keys.join(" and "));
    vec![Breach::of(Invariant::Delta, message)]
}

/// Checks that quota released by a slice is held by another one while the job has unsuspended
/// clusters. Evicted slices are exempt.
fn not_at_all(state: &State, job: &str, was: &Workload, workload: &Workload) -> Vec<Breach> {
    let conditions = |workload: &Workload| workload.status.clone().unwrap_or_default().conditions;
    let evicted = is_true(&conditions(was), "Evicted") || is_true(&conditions(workload), "Evicted");
    let mut open = clusters_of(state, job).filter(|cluster| is_open(cluster) && is_live(cluster));
    if evicted {
        return Vec::new();
    }
    let Some(open) = open.next() else { return Vec::new() };
    if slices_of(state, job).any(holds_quota) {
        return Vec::new();
    }
    let message =
        format!("{} released its quota, no other slice holds any, and {} is not suspended", key(workload), key(open));
    vec![Breach::of(Invariant::Delta, message)]
}
