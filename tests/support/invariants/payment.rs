//! I8: pods are covered by exactly one Workload, and quota is held for nothing else.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use sluice_api::kueue::Workload;
use sluice_api::ray::names::CLUSTER_LABEL;
use sluice_jobframework::slice_record::{MemberShare, SliceRecord};
use sluice_plan::ObjectKey;
use sluice_raycluster::revision::parse_member_uid;

use super::physical::is_runnable;
use super::{Invariant, Violation, counts_toward_usage, holds_quota, job_uid_of_pod, object_key, owner_uid};
use crate::history::State;

/// Checks that no member of a slice that holds quota is covered by another one as well. A slice and
/// those that it replaces count as one. One that is being deleted is released a moment after another
/// covers its members.
pub(super) fn check(state: &State, slice: &Workload) -> Vec<Violation> {
    let is_deleted = |slice: &Workload| slice.metadata.deletion_timestamp.is_some();
    if is_deleted(slice) { Vec::new() } else { covered_twice(state, slice, |other| !is_deleted(other)) }
}

/// Returns the Workloads that hold quota for members that another one covers as well. Valid only after
/// convergence.
pub fn quota_held_twice(state: &State) -> Vec<Violation> {
    state.workloads.values().flat_map(|slice| covered_twice(state, slice, |_| true)).collect()
}

/// Returns a violation for each of those other Workloads that covers a member of the slice as well, if both
/// hold quota.
fn covered_twice(state: &State, slice: &Workload, is_considered: impl Fn(&Workload) -> bool) -> Vec<Violation> {
    if !counts_toward_usage(state, slice) {
        return Vec::new();
    }
    let members = member_uids(slice);
    let others = state.workloads.values().filter(|other| object_key(*other) != object_key(slice));
    let twice = others.filter(|other| is_considered(other) && counts_toward_usage(state, other)).filter_map(|other| {
        let shared = member_uids(other).into_iter().find(|uid| members.contains(uid))?;
        let (slice, other) = (object_key(slice), object_key(other));
        Some(Violation::new(Invariant::Payment, format!("Workloads {slice} and {other} both cover member {shared}")))
    });
    twice.collect()
}

/// Returns the Workloads of jobs that hold quota although no cluster, Job or runnable pod that they
/// cover exists. Valid only after convergence.
pub fn quota_for_nothing(state: &State) -> Vec<Violation> {
    let clusters = state.ray_clusters.values().filter_map(|cluster| cluster.metadata.uid.clone());
    let jobs = state.batch_jobs.values().filter_map(|job| job.metadata.uid.clone());
    let runnable = state.pods.values().filter(|pod| is_runnable(pod));
    let of_pods = runnable.filter_map(|pod| job_uid_of_pod(pod).or_else(|| owner_uid(pod)));
    let in_use: BTreeSet<String> = clusters.chain(jobs).chain(of_pods).collect();
    let orphaned = state.pods.values().filter(|pod| is_runnable(pod) && owner_uid(*pod).is_none());
    let with_orphaned_pods: BTreeSet<ObjectKey> = orphaned.filter_map(cluster_of_pod).collect();
    let holders = state.workloads.values().filter(|slice| holds_quota(slice));
    let idle = holders.filter(|slice| {
        let members = SliceRecord::from_workload(slice).unwrap_or_default().members;
        let namespace = slice.namespace().unwrap_or_default();
        let is_used = |member: &MemberShare| {
            let cluster = ObjectKey::new(&namespace, &member.name);
            in_use.contains(parse_member_uid(&member.uid).0) || with_orphaned_pods.contains(&cluster)
        };
        !members.is_empty() && !members.iter().any(is_used)
    });
    idle.map(|slice| {
        let message = format!("Workload {} holds quota, and nothing that it covers exists", object_key(slice));
        Violation::new(Invariant::Payment, message)
    })
    .collect()
}

/// Returns the uids of the clusters and Jobs that a slice covers, without their revisions.
fn member_uids(slice: &Workload) -> BTreeSet<String> {
    let members = SliceRecord::from_workload(slice).unwrap_or_default().members;
    members.iter().map(|member| parse_member_uid(&member.uid).0.to_owned()).collect()
}

/// Returns the namespace and name of the RayCluster that a pod is labeled with.
fn cluster_of_pod(pod: &Pod) -> Option<ObjectKey> {
    Some(ObjectKey::new(pod.namespace()?, pod.labels().get(CLUSTER_LABEL)?))
}
