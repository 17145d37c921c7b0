//! RayCluster as a job of its own, and as a member of a job.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube::ResourceExt;

use super::ungate::GatedPod;
use super::{Group, Groups, Job, Member, pod_sets, report};
use crate::api::kueue::scheduling_gate;
use crate::api::ray::{RayCluster, names};
use crate::engine::plan::{ObjectRef, Write};
use crate::raycluster::{Placement, PodGroup, Problem};

/// The PodSet of the head pod, as Kueue names it (Kueue 0.19 `pkg/controller/jobs/raycluster`).
const HEAD_POD_SET: &str = "head";

/// A RayCluster that nothing else owns.
pub struct RayClusterJob<'a> {
    /// The cluster.
    pub cluster: &'a RayCluster,
    /// Its pods.
    pub pods: Vec<&'a Pod>,
    /// How many pods of it run or may run, by group.
    pub live_pods: BTreeMap<String, u32>,
    /// What its spec wants; see [`groups`].
    pub groups: Arc<Groups>,
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
        vec![member(self.cluster, &self.pods, self.live_pods.clone(), self.groups.clone())]
    }

    fn hold_template_gate(&self) -> Option<Write> {
        None
    }

    fn set_open(&self, _: &str, open: bool) -> Option<Write> {
        set_open(self.cluster, open)
    }

    fn routed_by(&self) -> Option<ObjectRef> {
        None
    }

    fn release(&self, _: &str, pod: &str, placement: &Placement) -> Option<Write> {
        let gated = *self.pods.iter().find(|known| known.metadata.name.as_deref() == Some(pod))?;
        let mut released = gated.clone();
        let spec = released.spec.get_or_insert_default();
        scheduling_gate::set(spec, false);
        placement.apply(spec);
        Write::patch(gated, &released)
    }

    fn conditions(&self) -> &[Condition] {
        self.cluster.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default()
    }

    fn show(&self, conditions: Vec<Condition>) -> Option<Write> {
        if conditions.iter().all(|wanted| report::is_shown(self.conditions(), wanted)) {
            return None;
        }
        let mut shown = self.cluster.clone();
        let held = &mut shown.status.get_or_insert_default().conditions;
        conditions.into_iter().for_each(|wanted| report::replace(held, wanted));
        Write::patch_status(self.cluster, &shown)
    }
}

/// Opens or closes the gate of a cluster.
pub fn set_open(cluster: &RayCluster, open: bool) -> Option<Write> {
    let mut gated = cluster.clone();
    gated.spec.suspend = Some(!open);
    Write::patch(cluster, &gated)
}

/// A cluster as a member of a job, with what its spec wants, those of its pods that exist, and how many run or may run.
pub fn member(cluster: &RayCluster, pods: &[&Pod], live_pods: BTreeMap<String, u32>, groups: Arc<Groups>) -> Member {
    Member {
        name: cluster.name_any(),
        uid: cluster.uid().unwrap_or_default(),
        groups,
        open: cluster.spec.suspend != Some(true),
        going: cluster.metadata.deletion_timestamp.is_some(),
        surge: false,
        preempted: false,
        live_pods,
        gated: pods.iter().filter(|pod| is_waiting(pod)).map(|pod| gated(pod)).collect(),
        ready_pods: count_by_group(pods.iter().filter(|pod| is_ready(pod))),
    }
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
        let is_head = group.name == names::HEAD_GROUP;
        let pod_set = if is_head { HEAD_POD_SET.to_owned() } else { group.name.to_lowercase() };
        let (name, template) = (group.name.clone(), group.template.clone());
        Ok(Group { pod_set, shape, name, count: group.count, fewest: group.fewest, hosts: group.hosts, template })
    });
    groups.collect()
}

/// How many pods haven't ended, by group. Those behind a scheduling gate use nothing.
pub fn live_pods(pods: &[&Pod]) -> BTreeMap<String, u32> {
    count_by_group(pods.iter().filter(|pod| !has_ended(pod) && !scheduling_gate::is_gated(pod)))
}

/// Whether the pod can be let go.
fn is_waiting(pod: &Pod) -> bool {
    scheduling_gate::is_gated(pod) && pod.metadata.deletion_timestamp.is_none()
}

fn gated(pod: &Pod) -> GatedPod {
    GatedPod {
        name: pod.name_any(),
        group: pod.labels().get(names::GROUP_LABEL).cloned().unwrap_or_default(),
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
