//! RayCluster as a job of its own, and as a member of a job.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube::ResourceExt;

use super::census::{Census, Molds};
use super::ungate::GatedPod;
use super::{Group, Groups, Job, Leave, Member, pod_sets, report};
use crate::api::kueue::{self, scheduling_gate};
use crate::api::ray::{RayCluster, names};
use crate::engine::plan::{ObjectRef, Write};
use crate::raycluster::{PodGroup, Problem};

/// The PodSet of the head pod, as Kueue names it (Kueue 0.19 `pkg/controller/jobs/raycluster`).
const HEAD_POD_SET: &str = "head";

/// A RayCluster that nothing else owns.
pub struct RayClusterJob<'a> {
    /// The cluster.
    pub cluster: &'a RayCluster,
    /// Its pods.
    pub pods: Vec<&'a Pod>,
    /// Pods of it that were asked for or let go, and may run already.
    pub arriving: Vec<&'a Pod>,
    /// What its spec wants; see [`groups`].
    pub groups: Arc<Groups>,
    /// What its pods may have been made from before.
    pub molds: &'a Molds<'a>,
}

impl Job for RayClusterJob<'_> {
    fn reference(&self) -> ObjectRef {
        ObjectRef::of(self.cluster)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.cluster.metadata
    }

    fn wants_to_run(&self) -> bool {
        self.cluster.metadata.deletion_timestamp.is_none()
    }

    fn members(&self) -> Vec<Member> {
        vec![member(self.cluster, &self.pods, &self.arriving, self.groups.clone(), self.molds)]
    }

    fn hold_template_gate(&self) -> Option<Write> {
        None
    }

    fn set_open(&self, _: &str, open: bool) -> Option<Write> {
        set_open(self.cluster, open)
    }

    fn next(&self) -> Option<&str> {
        None
    }

    fn routed_by(&self) -> Option<ObjectRef> {
        None
    }

    fn release(&self, _: &str, pod: &str, leave: &Leave) -> Option<Write> {
        let gated = *self.pods.iter().find(|known| known.metadata.name.as_deref() == Some(pod))?;
        let mut released = gated.clone();
        let labels = released.labels_mut();
        labels.insert(kueue::names::SHAPE_LABEL.to_owned(), leave.kind.shape.clone());
        labels.insert(kueue::names::POD_SET_LABEL.to_owned(), leave.pod_set.clone());
        let spec = released.spec.get_or_insert_default();
        scheduling_gate::set(spec, false);
        leave.placement.apply(spec);
        Write::patch(gated, &released)
    }

    fn join(&self, queue: &str) -> Option<Write> {
        let mut joined = self.cluster.clone();
        joined.labels_mut().insert(kueue::names::QUEUE_NAME_LABEL.to_owned(), queue.to_owned());
        Write::patch(self.cluster, &joined)
    }

    fn conditions(&self) -> &[Condition] {
        self.cluster.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default()
    }

    fn show(&self, conditions: Vec<Condition>, gone: &[&str]) -> Option<Write> {
        if report::shows(self.conditions(), &conditions, gone) {
            return None;
        }
        let mut shown = self.cluster.status.clone().unwrap_or_default();
        report::show_in(&mut shown.conditions, conditions, gone);
        Write::patch_status(self.cluster, &shown)
    }
}

/// Opens or closes the gate of a cluster.
pub fn set_open(cluster: &RayCluster, open: bool) -> Option<Write> {
    let mut gated = cluster.clone();
    gated.spec.suspend = Some(!open);
    Write::patch(cluster, &gated)
}

/// A cluster as a member of a job, with what its spec wants, those of its pods that exist, and those that may by now.
pub fn member(
    cluster: &RayCluster,
    pods: &[&Pod],
    arriving: &[&Pod],
    groups: Arc<Groups>,
    molds: &Molds<'_>,
) -> Member {
    let mut census = Census::new(&groups, molds);
    let live = pods.iter().copied().filter(|pod| is_live(pod)).chain(arriving.iter().copied());
    let live_pods = census.count(live);
    let gated = pods.iter().filter(|pod| is_waiting(pod)).map(|pod| gated(pod, &mut census)).collect();
    let strangers = census.strangers;
    Member {
        name: cluster.name_any(),
        uid: cluster.uid().unwrap_or_default(),
        groups,
        open: cluster.spec.suspend != Some(true),
        going: cluster.metadata.deletion_timestamp.is_some(),
        surge: false,
        preempted: false,
        live_pods,
        gated,
        ready_pods: count_by_group(pods.iter().filter(|pod| is_ready(pod))),
        strangers,
    }
}

/// A cluster whose object is gone, by what is left of its pods.
pub fn outlived(name: &str, uid: &str, pods: &[&Pod], arriving: &[&Pod], molds: &Molds<'_>) -> Member {
    let groups = Arc::new(Ok(Vec::new()));
    let mut census = Census::new(&groups, molds);
    let live_pods = census.count(pods.iter().copied().filter(|pod| is_live(pod)).chain(arriving.iter().copied()));
    let strangers = census.strangers;
    Member {
        name: name.to_owned(),
        uid: uid.to_owned(),
        groups,
        open: false,
        going: true,
        surge: false,
        preempted: false,
        live_pods,
        gated: Vec::new(),
        ready_pods: BTreeMap::new(),
        strangers,
    }
}

/// The name of the PodSet of a group, if that is free.
pub fn pod_set(group: &str) -> String {
    if group == names::HEAD_GROUP { HEAD_POD_SET.to_owned() } else { group.to_lowercase() }
}

/// The groups of pods that a cluster wants, of those that it is made of or of what is wrong with its spec.
///
/// # Errors
/// What is wrong, in a sentence.
pub fn groups(cluster: &RayCluster, made_of: &Result<Vec<PodGroup>, Vec<Problem>>) -> Groups {
    let named = |error: String| format!("RayCluster {}: {error}", cluster.name_any());
    let told = |problems: &Vec<Problem>| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    let groups = made_of.as_ref().map_err(|problems| named(told(problems)))?.iter().map(|group| {
        let spec = group.template.spec.clone().unwrap_or_default();
        let shape = pod_sets::shape_of(&spec).map_err(|error| named(format!("group {}: {error}", group.name)))?;
        let (pod_set, name, template) = (pod_set(&group.name), group.name.clone(), Arc::new(group.template.clone()));
        Ok(Group { pod_set, shape, name, count: group.count, fewest: group.fewest, hosts: group.hosts, template })
    });
    groups.collect()
}

/// Whether the pod runs or may be placed: it hasn't ended, and waits behind no gate of ours.
pub fn is_live(pod: &Pod) -> bool {
    !has_ended(pod) && !scheduling_gate::is_gated(pod)
}

/// Whether the pod can be let go.
fn is_waiting(pod: &Pod) -> bool {
    scheduling_gate::is_gated(pod) && pod.metadata.deletion_timestamp.is_none()
}

fn gated(pod: &Pod, census: &mut Census<'_>) -> GatedPod {
    GatedPod {
        name: pod.name_any(),
        kind: census.kind(pod),
        replica: pod.labels().get(names::REPLICA_NAME_LABEL).cloned(),
        since: pod.metadata.creation_timestamp.as_ref().map(|time| time.0),
    }
}

fn count_by_group<'a>(pods: impl Iterator<Item = &'a &'a Pod>) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    for pod in pods {
        let group = pod.labels().get(names::GROUP_LABEL).cloned().unwrap_or_default();
        *counts.entry(group).or_default() += 1;
    }
    counts
}

/// Whether the pod does its work, or has done it; one that is on its way out does not.
fn is_ready(pod: &Pod) -> bool {
    let Some(status) = pod.status.as_ref().filter(|_| pod.metadata.deletion_timestamp.is_none()) else { return false };
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
