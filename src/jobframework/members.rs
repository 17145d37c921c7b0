//! A member of a job, by its object and its pods.

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

/// The pods of a member.
#[derive(Debug, Clone, Default)]
pub struct Pods<'a> {
    /// Those that exist.
    pub seen: Vec<&'a Pod>,
    /// Those that were asked for or let go, and may run already.
    pub arriving: Vec<&'a Pod>,
}

impl<'a> Pods<'a> {
    /// Those that run or may be placed.
    fn live(&self) -> impl Iterator<Item = &'a Pod> {
        self.seen.iter().copied().filter(|pod| is_live(pod)).chain(self.arriving.iter().copied())
    }
}

/// What the object of a member says of it.
#[derive(Debug)]
pub struct Who {
    /// Its name, in the job's namespace.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Whether its gate is open.
    pub open: bool,
    /// Whether it is being deleted.
    pub going: bool,
}

/// A member, with what its spec wants, and its pods.
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

/// A member whose object is gone, by what is left of its pods. None of them is let go any more, and none counts as ready.
pub fn outlived(name: &str, uid: &str, pods: &Pods<'_>, molds: &Molds<'_>) -> Member {
    let who = Who { name: name.to_owned(), uid: uid.to_owned(), open: false, going: true };
    let left = of(who, pods, Arc::new(Ok(Vec::new())), molds);
    Member { gated: Vec::new(), ready_pods: BTreeMap::new(), ..left }
}

/// Takes the scheduling gate from a pod, sends it to where its quota is, and labels it with what it is.
pub fn released(pods: &Pods<'_>, pod: &str, leave: &Leave) -> Option<Write> {
    released_for(pods, pod, leave, None)
}

/// The same, and labels it with the uid of its job, for which it counts then as long as it is there, whatever has made it.
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
