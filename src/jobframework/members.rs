//! Members of a job, built from their objects and pods.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube_core::ResourceExt;

use super::pod_classifier::{KnownTemplates, PodClassifier};
use super::types::GatedPod;
use super::types::{Member, PodAssignment, PodCounts, PodGroupDemands};
use sluice_api::kueue::{names, scheduling_gate};
use sluice_api::pod;
use sluice_api::ray::names::{CLUSTER_UID_LABEL, GROUP_LABEL, REPLICA_INDEX_LABEL, REPLICA_NAME_LABEL};
use sluice_plan::Write;

/// Labels of a pod whose RayCluster or Job is queued.
const QUEUE_LABELS: [&str; 3] = [names::SCHEDULING_HASH_LABEL, names::POD_SET_LABEL, CLUSTER_UID_LABEL];

/// Pods of a member.
#[derive(Debug, Clone, Default)]
pub struct MemberPods<'a> {
    /// Pods in the cache.
    pub observed: Vec<&'a Pod>,
    /// Pods that were created or ungated by a write that the cache does not show yet. They may run.
    pub expected: Vec<&'a Pod>,
    /// Names of the expected pods whose ungating got no response, and may have to be repeated.
    pub unanswered_ungatings: BTreeSet<&'a str>,
}

impl<'a> MemberPods<'a> {
    /// Returns the pods that run or may be scheduled.
    fn live(&self) -> impl Iterator<Item = &'a Pod> {
        self.observed.iter().copied().filter(|pod| is_live(pod)).chain(self.expected.iter().copied())
    }
}

/// Identity and state of a member, from its object.
#[derive(Debug)]
pub struct MemberIdentity {
    /// Name, in the namespace of the job.
    pub name: String,
    /// Uid, or the uid of a revision of a RayCluster.
    pub uid: String,
    /// True if the gate is open: the member is not suspended.
    pub is_open: bool,
    /// True if the member is being deleted.
    pub is_terminating: bool,
}

/// Builds a member from its identity, its pods and its desired pod groups.
pub fn build_member(
    who: MemberIdentity,
    pods: &MemberPods<'_>,
    groups: Arc<PodGroupDemands>,
    templates: &KnownTemplates<'_>,
) -> Member {
    let mut classifier = PodClassifier::new(&groups, templates);
    let live_pods = classifier.count(pods.live());
    let gated = pods.observed.iter().filter(|pod| can_be_ungated(pod));
    let gated = gated.map(|pod| gated_pod(pod, pods, &mut classifier)).collect();
    let unknown_kinds = classifier.unknown_kinds;
    Member {
        name: who.name,
        uid: who.uid,
        groups,
        is_open: who.is_open,
        is_terminating: who.is_terminating,
        is_surge: false,
        is_preempted: false,
        live_pods,
        gated_pods: gated,
        ready_pods: count_by_group(pods.observed.iter().filter(|pod| is_ready(pod))),
        scheduled_pods: count_by_group(pods.observed.iter().filter(|pod| is_scheduled(pod))),
        unknown_kinds,
    }
}

/// Builds a member whose object is deleted from its remaining pods. None of them is ungated or
/// counts as ready.
pub fn orphaned_member(name: &str, uid: &str, pods: &MemberPods<'_>, templates: &KnownTemplates<'_>) -> Member {
    let identity = MemberIdentity { name: name.to_owned(), uid: uid.to_owned(), is_open: false, is_terminating: true };
    let left = build_member(identity, pods, Arc::new(Ok(Vec::new())), templates);
    Member { gated_pods: Vec::new(), ready_pods: BTreeMap::new(), scheduled_pods: BTreeMap::new(), ..left }
}

/// Removes the scheduling gate of a pod, places the pod on nodes of its assigned flavors and labels
/// it with its shape and PodSet. `None` if the pod is unknown.
pub fn ungated(pods: &MemberPods<'_>, pod: &str, leave: &PodAssignment) -> Option<Write> {
    ungated_with_uid(pods, pod, leave, None)
}

/// Like [`ungated`], and adds a label with the uid of the pod's job or cluster: the pod then counts for
/// that as long as it exists, whatever controls it.
pub fn ungated_with_uid(
    pods: &MemberPods<'_>,
    pod: &str,
    leave: &PodAssignment,
    label: Option<(&str, &str)>,
) -> Option<Write> {
    let gated = *pods.observed.iter().find(|known| known.metadata.name.as_deref() == Some(pod))?;
    let mut released = gated.clone();
    let labels = released.labels_mut();
    labels.insert(names::SCHEDULING_HASH_LABEL.to_owned(), leave.kind.shape.clone());
    labels.insert(names::POD_SET_LABEL.to_owned(), leave.pod_set.clone());
    labels.extend(label.map(|(name, uid)| (name.to_owned(), uid.to_owned())));
    let spec = released.spec.get_or_insert_default();
    scheduling_gate::remove(spec);
    leave.placement.apply_to(spec);
    Write::patch(gated, &released)
}

/// Removes the scheduling gates of all pods, and the labels by which they count as pods of a queue.
pub fn remove_scheduling_gates(pods: &MemberPods<'_>) -> Vec<Write> {
    let gated = pods.observed.iter().filter(|pod| can_be_ungated(pod));
    let released = gated.filter_map(|pod| {
        let mut released = Pod::clone(pod);
        scheduling_gate::remove(released.spec.get_or_insert_default());
        released.labels_mut().retain(|name, _| !QUEUE_LABELS.contains(&name.as_str()));
        Write::patch(*pod, &released)
    });
    released.collect()
}

/// Returns true if the pod runs or may be scheduled: it is not finished and does not have our
/// scheduling gate.
pub fn is_live(pod: &Pod) -> bool {
    !pod::is_finished(pod) && !pod::is_gated(pod)
}

/// Returns true if the pod can be ungated.
fn can_be_ungated(pod: &Pod) -> bool {
    pod::is_gated(pod) && !pod::is_terminating(pod)
}

fn gated_pod(pod: &Pod, pods: &MemberPods<'_>, classifier: &mut PodClassifier<'_>) -> GatedPod {
    GatedPod {
        is_counted: pods.unanswered_ungatings.contains(pod.name_any().as_str()),
        name: pod.name_any(),
        kind: classifier.classify(pod),
        replica: pod.labels().get(REPLICA_NAME_LABEL).cloned(),
        replica_index: pod.labels().get(REPLICA_INDEX_LABEL).and_then(|index| index.parse().ok()),
        created_at: pod.metadata.creation_timestamp.as_ref().map(|time| time.0),
    }
}

fn count_by_group<'a>(pods: impl Iterator<Item = &'a &'a Pod>) -> PodCounts {
    let mut counts = PodCounts::new();
    for pod in pods {
        let group = pod.labels().get(GROUP_LABEL).cloned().unwrap_or_default();
        *counts.entry(group).or_default() += 1;
    }
    counts
}

/// Returns true if the pod has a node or has succeeded, and is not terminating.
fn is_scheduled(pod: &Pod) -> bool {
    !pod::is_terminating(pod) && (pod::has_succeeded(pod) || (!pod::is_finished(pod) && pod::has_node(pod)))
}

/// Returns true if the pod is ready or has succeeded, and is not terminating.
fn is_ready(pod: &Pod) -> bool {
    !pod::is_terminating(pod) && (pod::has_succeeded(pod) || (pod::is_running(pod) && pod::is_ready(pod)))
}
