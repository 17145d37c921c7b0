//! I2: a gate opens only while one admitted slice has room for every open cluster of the job.

use std::collections::BTreeMap;

use kube::ResourceExt;
use sluice_api::kueue::Workload;
use sluice_api::ray::RayCluster;
use sluice_jobframework::slice_record::SliceRecord;

use super::{Breach, Invariant, QUEUE_NAME, clusters_of, is_admitted, is_live, is_open, job_uid, key, slices_of};
use crate::history::State;

/// What is wrong with the gate of `cluster`, which was just opened.
pub(super) fn check(state: &State, cluster: &RayCluster) -> Vec<Breach> {
    let job = job_uid(cluster);
    let mut slices = slices_of(state, &job);
    let covered = slices.any(|slice| is_admitted(slice) && covers(slice, &needed(state, &job, cluster, slice)));
    if is_tampered(cluster) || !cluster.labels().contains_key(QUEUE_NAME) || covered {
        return Vec::new();
    }
    let what = format!("the gate of {} was opened, and no admitted slice covers it and every other", key(cluster));
    vec![Breach::of(Invariant::Gate, what)]
}

/// How many pods the open clusters of a job need, by group. The one that was opened needs all that it asks for. Another may have
/// been asked for more meanwhile, and gets no more than the slice pays for, nor, before that is in its record, what the slice can do
/// without; and one that is being deleted needs what it still has, which is for I3 to say.
fn needed(state: &State, job: &str, opened: &RayCluster, slice: &Workload) -> BTreeMap<String, i32> {
    let record = SliceRecord::from_workload(slice).unwrap_or_default();
    let mut needed: BTreeMap<String, i32> = BTreeMap::new();
    for cluster in clusters_of(state, job).filter(|cluster| is_open(cluster) && is_live(cluster)) {
        let paid = record.member_of_cluster(&cluster.uid().unwrap_or_default()).filter(|_| key(cluster) != key(opened));
        for (group, pod_set, asked) in groups(cluster) {
            let shares =
                paid.map(|paid| paid.pods.iter().filter(|share| share.group == group).map(|share| share.count).sum());
            let spare = paid.map_or(0, |paid| spare(&record, &paid.uid, &group));
            let most = shares.map_or(i32::MAX, |shares: u32| i32::try_from(shares - spare).unwrap_or(i32::MAX));
            *needed.entry(pod_set).or_default() += asked.min(most);
        }
    }
    needed
}

/// How many pods of a group a slice asked for, and can do without.
fn spare(record: &SliceRecord, member: &str, group: &str) -> u32 {
    let steps = record.steps.iter().flat_map(|step| step.pods.iter().map(|pods| (step.times, pods)));
    let of_group = steps.filter(|(_, pods)| pods.member == member && pods.group == group);
    of_group.map(|(times, pods)| times * pods.count).sum()
}

/// The groups of a cluster: each with the name of its pod set, and how many pods it asks for.
fn groups(cluster: &RayCluster) -> impl Iterator<Item = (String, String, i32)> {
    let workers = cluster.spec.worker_group_specs.iter().map(|group| {
        let name = group.group_name.clone();
        (name.clone(), name.to_lowercase(), group.replicas.unwrap_or(0) * group.num_of_hosts.unwrap_or(1))
    });
    std::iter::once(("headgroup".to_owned(), "head".to_owned(), 1)).chain(workers)
}

/// A PodSet is named after its group; one of another shape has a suffix.
fn covers(slice: &Workload, needed: &BTreeMap<String, i32>) -> bool {
    let admission = slice.status.as_ref().and_then(|status| status.admission.as_ref());
    let assignments = admission.map(|admission| admission.pod_set_assignments.as_slice()).unwrap_or_default();
    needed.iter().all(|(group, count)| {
        let prefix = format!("{group}-");
        let same = assignments.iter().filter(|given| given.name == *group || given.name.starts_with(&prefix));
        same.map(|given| given.count.unwrap_or(0)).sum::<i32>() >= *count
    })
}

/// A test that opens a gate by hand says so on the object.
fn is_tampered(cluster: &RayCluster) -> bool {
    cluster.annotations().contains_key("test.sluice.dev/opened-by-hand")
}
