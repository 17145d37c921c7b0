//! I4: a slice's reservation is taken before its predecessor's is let go; the pair is never counted twice, and never not at all.

use sluice_api::condition::is_true;
use sluice_api::kueue::Workload;

use super::{Breach, Invariant, clusters_of, counts, holds_quota, is_live, is_open, key, owner_uid, slices_of};
use crate::history::State;

/// What the change of a Workload from `was` broke.
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

/// Of the slices that hold quota, at most one takes the place of no other that does, directly or through slices that are over.
fn twice(state: &State, job: &str) -> Vec<Breach> {
    let holders: Vec<&Workload> = slices_of(state, job).filter(|slice| holds_quota(slice)).collect();
    let on_their_own = holders.iter().filter(|slice| counts(state, slice)).count();
    if on_their_own < 2 {
        return Vec::new();
    }
    let keys: Vec<String> = holders.iter().map(|slice| key(*slice)).collect();
    let what = format!("job {job} is counted {on_their_own} times: {} hold quota side by side", keys.join(" and "));
    vec![Breach::of(Invariant::Delta, what)]
}

/// While a job has open children, quota that one slice lets go is held by another, unless it was taken.
fn not_at_all(state: &State, job: &str, was: &Workload, workload: &Workload) -> Vec<Breach> {
    let conditions = |workload: &Workload| workload.status.clone().unwrap_or_default().conditions;
    let taken = is_true(&conditions(was), "Evicted") || is_true(&conditions(workload), "Evicted");
    let mut open = clusters_of(state, job).filter(|cluster| is_open(cluster) && is_live(cluster));
    let Some(open) = open.next().filter(|_| !taken) else { return Vec::new() };
    if slices_of(state, job).any(holds_quota) {
        return Vec::new();
    }
    let what = format!("{} let its quota go, no other slice holds any, and {} is open", key(workload), key(open));
    vec![Breach::of(Invariant::Delta, what)]
}
