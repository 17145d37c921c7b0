//! Members of a job, built from their objects and pods.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube_core::ResourceExt;

use super::census::{Census, Molds};
use super::ungate::GatedPod;
use super::{Groups, Leave, Member};
use sluice_api::kueue::{names, scheduling_gate};
use sluice_api::ray::names::{GROUP_LABEL, REPLICA_INDEX_LABEL, REPLICA_NAME_LABEL};
use sluice_plan::Write;

/// Pods of a member.
#[derive(Debug, Clone, Default)]
pub struct Pods<'a> {
    /// Pods in the cache.
    pub seen: Vec<&'a Pod>,
    /// Pods that were created or ungated by a write that the cache does not show yet. They may run.
    pub arriving: Vec<&'a Pod>,
}

impl<'a> Pods<'a> {
    /// Returns the pods that run or may be scheduled.
    fn live(&self) -> impl Iterator<Item = &'a Pod> {
        self.seen.iter().copied().filter(|pod| is_live(pod)).chain(self.arriving.iter().copied())
    }
}

/// Identity and state of a member, from its object.
#[derive(Debug)]
pub struct Who {
    /// Name, in the namespace of the job.
    pub name: String,
    /// Uid, or the uid of a revision of a RayCluster.
    pub uid: String,
    /// True if the gate is open: the member is not suspended.
    pub open: bool,
    /// True if the member is being deleted.
    pub going: bool,
}

/// Builds a member from its identity, its pods and its desired pod groups.
pub fn of(who: Who, pods: &Pods<'_>, groups: Arc<Groups>, molds: &Molds<'_>) -> Member {
    let mut census = Census::new(&groups, molds);
    let live_pods = census.count(pods.live());
    let gated = pods.seen.iter().filter(|pod| is_waiting(pod)).map(|pod| gated(pod, &mut census)).collect();
    let strangers = census.strangers;
    Member {
        name: who.name,
        uid: who.uid,
        groups,
        open: who.open,
        going: who.going,
        surge: false,
        preempted: false,
        live_pods,
        gated,
        ready_pods: count_by_group(pods.seen.iter().filter(|pod| is_ready(pod))),
        strangers,
    }
}

/// Builds a member whose object is deleted from its remaining pods. None of them is ungated or
/// counts as ready.
pub fn outlived(name: &str, uid: &str, pods: &Pods<'_>, molds: &Molds<'_>) -> Member {
    let identity = Who { name: name.to_owned(), uid: uid.to_owned(), open: false, going: true };
    let left = of(identity, pods, Arc::new(Ok(Vec::new())), molds);
    Member { gated: Vec::new(), ready_pods: BTreeMap::new(), ..left }
}

/// Removes the scheduling gate of a pod, places the pod on nodes of its assigned flavors and labels
/// it with its shape and PodSet. `None` if the pod is unknown.
pub fn released(pods: &Pods<'_>, pod: &str, leave: &Leave) -> Option<Write> {
    released_for(pods, pod, leave, None)
}

/// Like [`released`], and labels the pod with the uid of its `job`: it then counts for that job as
/// long as it exists, whatever controls it.
pub fn released_for(pods: &Pods<'_>, pod: &str, leave: &Leave, job: Option<&str>) -> Option<Write> {
    let gated = *pods.seen.iter().find(|known| known.metadata.name.as_deref() == Some(pod))?;
    let mut released = gated.clone();
    let labels = released.labels_mut();
    labels.insert(names::SHAPE_LABEL.to_owned(), leave.kind.shape.clone());
    labels.insert(names::POD_SET_LABEL.to_owned(), leave.pod_set.clone());
    labels.extend(job.map(|uid| (names::JOB_UID_LABEL.to_owned(), uid.to_owned())));
    let spec = released.spec.get_or_insert_default();
    scheduling_gate::set(spec, false);
    leave.placement.apply(spec);
    Write::patch(gated, &released)
}

/// Returns true if the pod runs or may be scheduled: it is not finished and does not have our
/// scheduling gate.
pub fn is_live(pod: &Pod) -> bool {
    !has_ended(pod) && !scheduling_gate::is_gated(pod)
}

/// Returns true if the pod can be ungated.
fn is_waiting(pod: &Pod) -> bool {
    scheduling_gate::is_gated(pod) && pod.metadata.deletion_timestamp.is_none()
}

fn gated(pod: &Pod, census: &mut Census<'_>) -> GatedPod {
    GatedPod {
        name: pod.name_any(),
        kind: census.kind(pod),
        replica: pod.labels().get(REPLICA_NAME_LABEL).cloned(),
        index: pod.labels().get(REPLICA_INDEX_LABEL).and_then(|index| index.parse().ok()),
        since: pod.metadata.creation_timestamp.as_ref().map(|time| time.0),
    }
}

fn count_by_group<'a>(pods: impl Iterator<Item = &'a &'a Pod>) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    for pod in pods {
        let group = pod.labels().get(GROUP_LABEL).cloned().unwrap_or_default();
        *counts.entry(group).or_default() += 1;
    }
    counts
}

/// Returns true if the pod is ready or has succeeded, and is not terminating.
fn is_ready(pod: &Pod) -> bool {
    if pod.metadata.deletion_timestamp.is_some() {
        return false;
    }
    let Some(status) = &pod.status else { return false };
    let mut conditions = status.conditions.iter().flatten();
    let ready = conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True");
    match status.phase.as_deref() {
        Some("Running") => ready,
        phase => phase == Some("Succeeded"),
    }
}

fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}
