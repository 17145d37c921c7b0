//! I2: a gate opens only while one admitted slice covers every unsuspended cluster of the job, or the
//! cluster has an admitted slice of its own. It keeps such a slice for a while if its service is queued later.

use std::collections::BTreeMap;

use kube::ResourceExt;
use sluice_api::kueue::Workload;
use sluice_api::ray::RayCluster;
use sluice_jobframework::slice_record::SliceRecord;

use super::{
    Invariant, OPENED_BY_HAND_ANNOTATION, QUEUE_NAME_LABEL, Violation, clusters_of_job, is_admitted, is_live,
    is_unsuspended, job_uid, object_key, slices_of_job,
};
use crate::history::State;

/// Checks the gate of `cluster`, which was just opened.
pub(super) fn check(state: &State, cluster: &RayCluster) -> Vec<Violation> {
    let (job, own) = (job_uid(state, cluster), cluster.uid().unwrap_or_default());
    let of_job: Vec<&RayCluster> = clusters_of_job(state, &job).collect();
    let is_covered = is_covered_by(state, &job, &of_job, cluster) || is_covered_by(state, &own, &[cluster], cluster);
    if is_tampered(cluster) || !cluster.labels().contains_key(QUEUE_NAME_LABEL) || is_covered {
        return Vec::new();
    }
    let message = format!(
        "the gate of {} was opened, but no admitted slice covers it and all other unsuspended clusters",
        object_key(cluster)
    );
    vec![Violation::new(Invariant::Gate, message)]
}

/// Reports whether an admitted slice of a job covers these clusters, of which `opened` was just opened.
fn is_covered_by(state: &State, job: &str, clusters: &[&RayCluster], opened: &RayCluster) -> bool {
    slices_of_job(state, job).any(|slice| is_admitted(slice) && covers(slice, &required_pods(clusters, opened, slice)))
}

/// Returns the number of pods that the unsuspended ones of these clusters need, by PodSet. The opened
/// cluster needs everything it requests. Another one may have been scaled up since: it gets at most
/// what the slice covers, minus, until the slice record says so, what the slice can do without.
/// Terminating clusters are left to I3.
fn required_pods(clusters: &[&RayCluster], opened: &RayCluster, slice: &Workload) -> BTreeMap<String, i32> {
    let record = SliceRecord::from_workload(slice).unwrap_or_default();
    let mut needed: BTreeMap<String, i32> = BTreeMap::new();
    for cluster in clusters.iter().copied().filter(|cluster| is_unsuspended(cluster) && is_live(cluster)) {
        let covered = record
            .member_of_cluster(&cluster.uid().unwrap_or_default())
            .filter(|_| object_key(cluster) != object_key(opened));
        for (group, pod_set, asked) in cluster_groups(cluster) {
            let shares = covered
                .map(|member| member.pods.iter().filter(|share| share.group == group).map(|share| share.count).sum());
            let spare = covered.map_or(0, |member| reducible_pods(&record, &member.uid, &group));
            let most = shares.map_or(i32::MAX, |shares: u32| i32::try_from(shares - spare).unwrap_or(i32::MAX));
            *needed.entry(pod_set).or_default() += asked.min(most);
        }
    }
    needed
}

/// Returns the number of pods of a group that a slice requested and can do without.
fn reducible_pods(record: &SliceRecord, member: &str, group: &str) -> u32 {
    let steps = record.steps.iter().flat_map(|step| step.pods.iter().map(|pods| (step.times, pods)));
    let of_group = steps.filter(|(_, pods)| pods.member == member && pods.group == group);
    of_group.map(|(times, pods)| times * pods.count).sum()
}

/// Returns the groups of a cluster: group name, PodSet name, and requested number of pods.
fn cluster_groups(cluster: &RayCluster) -> impl Iterator<Item = (String, String, i32)> {
    let workers = cluster.spec.worker_group_specs.iter().map(|group| {
        let name = group.group_name.clone();
        (name.clone(), name.to_lowercase(), group.replicas.unwrap_or(0) * group.num_of_hosts.unwrap_or(1))
    });
    std::iter::once(("headgroup".to_owned(), "head".to_owned(), 1)).chain(workers)
}

/// Reports whether a slice covers the needed pods. A PodSet is named after its group, with a suffix
/// if the group's pods have another shape.
fn covers(slice: &Workload, needed: &BTreeMap<String, i32>) -> bool {
    let admission = slice.status.as_ref().and_then(|status| status.admission.as_ref());
    let assignments = admission.map(|admission| admission.pod_set_assignments.as_slice()).unwrap_or_default();
    needed.iter().all(|(group, count)| {
        let prefix = format!("{group}-");
        let same = assignments.iter().filter(|given| given.name == *group || given.name.starts_with(&prefix));
        same.map(|given| given.count.unwrap_or(0)).sum::<i32>() >= *count
    })
}

/// Reports whether a test opened this gate by hand, which it marks with an annotation.
fn is_tampered(cluster: &RayCluster) -> bool {
    cluster.annotations().contains_key(OPENED_BY_HAND_ANNOTATION)
}
