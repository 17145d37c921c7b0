//! I2: a gate opens only while one admitted slice has room for every open cluster of the job.

use std::collections::BTreeMap;

use kube::ResourceExt;
use sluice::api::kueue::Workload;
use sluice::api::ray::RayCluster;

use super::super::history::State;
use super::{Breach, Invariant, QUEUE_NAME, clusters_of, is_admitted, is_live, is_open, job_uid, key, slices_of};

/// What is wrong with the gate of `cluster`, which was just opened.
pub(super) fn check(state: &State, cluster: &RayCluster) -> Vec<Breach> {
    if is_tampered(cluster) || is_covered(state, cluster) {
        return Vec::new();
    }
    let needed = needed(state, &job_uid(cluster));
    let what = format!("the gate of {} was opened, and no admitted slice covers {needed:?}", key(cluster));
    vec![Breach::of(Invariant::Gate, what)]
}

/// Whether one admitted slice pays for this cluster and every other open one of its job. Who names no queue needs none.
fn is_covered(state: &State, cluster: &RayCluster) -> bool {
    let job = job_uid(cluster);
    let needed = needed(state, &job);
    let mut slices = slices_of(state, &job);
    !cluster.labels().contains_key(QUEUE_NAME) || slices.any(|slice| is_admitted(slice) && covers(slice, &needed))
}

/// How many pods the open clusters of a job need, by group. One that is being deleted needs what it still has, which is for I3
/// to say.
fn needed(state: &State, job: &str) -> BTreeMap<String, i32> {
    let mut needed: BTreeMap<String, i32> = BTreeMap::new();
    for cluster in clusters_of(state, job).filter(|cluster| is_open(cluster) && is_live(cluster)) {
        *needed.entry("head".to_owned()).or_default() += 1;
        for group in &cluster.spec.worker_group_specs {
            let hosts = group.num_of_hosts.unwrap_or(1);
            *needed.entry(group.group_name.to_lowercase()).or_default() += group.replicas.unwrap_or(0) * hosts;
        }
    }
    needed
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
