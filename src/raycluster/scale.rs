//! Scaling decision for one group: the pods to delete and to create.
//!
//! A pod has an index: replica and host. The pods of a replica are created and deleted together,
//! since Ray uses them as one machine. There are never more pod objects than desired. An index is
//! therefore reused only when its pod is gone, and a pod whose creation was requested counts before
//! the watch shows it: meanwhile the lowest free index may have changed.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube_core::ResourceExt;

use super::groups::PodGroup;
use super::pod_builder::{self, Slot};
use super::pods;
use sluice_api::kueue::names::SHAPE_LABEL;
use sluice_api::ray::{RayCluster, names};

/// Maximum number of pods that one plan creates. The next plan follows once the first of them
/// exist.
const BURST: u32 = 200;
/// Time for creating all hosts of a replica, after which a missing one counts as lost.
const ASSEMBLY: SignedDuration = SignedDuration::from_secs(30);

/// State of one group, as input of [`decide`].
pub(super) struct Situation<'a> {
    pub(super) cluster: &'a RayCluster,
    pub(super) group: &'a PodGroup,
    /// All existing pods of the group.
    pub(super) pods: Vec<&'a Pod>,
    /// Pods of the group whose creation was requested and that the watch has not confirmed yet.
    pub(super) arriving: Vec<&'a Pod>,
    /// Names of all existing pods of the cluster, in any group.
    pub(super) names: &'a BTreeSet<String>,
    /// Names of the pods in `scaleStrategy.workersToDelete`.
    pub(super) to_delete: &'a [String],
    /// Number of pods of the current template that may run. The others are gated, and existing
    /// gated pods are the next to be ungated.
    pub(super) granted: u32,
    /// True if running pods beyond `granted` are deleted (partial preemption).
    pub(super) takes_back: bool,
    /// Shape of pods of the current template; `None` for a cluster that is not queued.
    pub(super) shape: Option<&'a str>,
    /// True if the operator deletes surplus pods. Otherwise the Ray autoscaler names them.
    pub(super) trims: bool,
    pub(super) now: Timestamp,
}

impl Situation<'_> {
    /// Reports whether a pod was created from an earlier template with another shape.
    fn is_earlier(&self, pod: &Pod) -> bool {
        let shape = pod.labels().get(SHAPE_LABEL);
        self.shape.zip(shape).is_some_and(|(present, shape)| present != shape)
    }
}

/// Pods to delete and to create.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Change<'a> {
    /// Pods to delete, each with the reason.
    pub(super) delete: Vec<(&'a Pod, String)>,
    /// Pods to create.
    pub(super) create: Vec<New>,
    /// Time to decide again without a change of state.
    pub(super) wake_at: Option<Timestamp>,
}

/// Pod to create.
#[derive(Debug, PartialEq)]
pub(super) struct New {
    pub(super) slot: Slot,
    /// Number of names of this index that are already in use.
    pub(super) attempt: u32,
    /// True if the pod is created with the scheduling gate, for lack of quota.
    pub(super) gated: bool,
}

/// Pods of one replica. A pod without a replica index label forms a replica by itself.
struct Replica<'a> {
    index: Option<u32>,
    pods: Vec<&'a Pod>,
}

impl<'a> Replica<'a> {
    fn is_going(&self) -> bool {
        self.pods.iter().any(|pod| pods::is_going(pod))
    }

    fn is_ready(&self) -> bool {
        self.pods.iter().all(|pod| pods::is_ready(pod))
    }

    fn is_gated(&self) -> bool {
        self.pods.iter().any(|pod| pods::is_gated(pod))
    }

    fn all_of_hosts(&self, hosts: u32) -> bool {
        self.index.is_none() || u32::try_from(self.pods.len()).unwrap_or(u32::MAX) >= hosts
    }

    /// Returns the creation time of the oldest pod; `None` if no pod has one.
    fn since(&self) -> Option<Timestamp> {
        self.pods.iter().filter_map(|pod| pod.metadata.creation_timestamp.as_ref()).map(|time| time.0).min()
    }

    fn host(&self, host: u32) -> Option<&'a Pod> {
        let has_index = |pod: &&&Pod| pods::index(pod, names::HOST_INDEX_LABEL).unwrap_or(0) == host;
        self.pods.iter().find(has_index).copied()
    }
}

/// Decides which pods of a group to delete and to create. Pods are created only in a plan that
/// deletes none, so that the count never exceeds the desired one.
pub(super) fn decide<'a>(situation: &Situation<'a>) -> Change<'a> {
    let mut change = Change::default();
    let replicas = replicas(situation);
    let mut staying = Vec::new();
    for replica in &replicas {
        match reason_to_go(situation, replica, &mut change.wake_at) {
            Some(reason) => delete(&mut change, replica, &reason),
            None => staying.push(replica),
        }
    }
    let desired = situation.group.count / situation.group.hosts.max(1);
    let surplus = staying.len().saturating_sub(desired as usize);
    if surplus > 0 && situation.trims {
        staying.sort_by_key(missed);
        for replica in staying.drain(..surplus) {
            delete(&mut change, replica, "the group has more replicas than desired");
        }
    }
    if situation.takes_back {
        // Gated pods and pods of earlier templates do not use this grant.
        staying.retain(|replica| !replica.is_gated() && !replica.pods.iter().any(|pod| situation.is_earlier(pod)));
        staying.sort_by_key(missed);
        let admitted = (situation.granted / situation.group.hosts.max(1)) as usize;
        for replica in staying.iter().take(staying.len().saturating_sub(admitted)) {
            delete(&mut change, replica, "its quota was preempted");
        }
    }
    if change.delete.is_empty() {
        change.create = create(situation, &replicas);
    }
    change
}

/// Returns the sort key for deletion: gated replicas first, then unready ones, then by descending
/// index.
fn missed(replica: &&Replica<'_>) -> (bool, bool, std::cmp::Reverse<Option<u32>>) {
    (!replica.is_gated(), replica.is_ready(), std::cmp::Reverse(replica.index))
}

/// Groups the existing pods by replica.
fn replicas<'a>(situation: &Situation<'a>) -> Vec<Replica<'a>> {
    let mut indexed: BTreeMap<u32, Vec<&Pod>> = BTreeMap::new();
    let mut replicas = Vec::new();
    for pod in &situation.pods {
        match pods::index(pod, names::REPLICA_INDEX_LABEL) {
            Some(index) => indexed.entry(index).or_default().push(pod),
            None => replicas.push(Replica { index: None, pods: vec![pod] }),
        }
    }
    replicas.extend(indexed.into_iter().map(|(index, pods)| Replica { index: Some(index), pods }));
    replicas
}

/// Returns why the pods of a replica must be deleted; `None` if it stays. Lowers `wake_at` to the
/// assembly deadline of an incomplete replica.
fn reason_to_go(situation: &Situation<'_>, replica: &Replica<'_>, wake_at: &mut Option<Timestamp>) -> Option<String> {
    if let Some(failure) = replica.pods.iter().find_map(|pod| pods::ailment(pod)) {
        return Some(failure);
    }
    let named = |pod: &&&Pod| situation.to_delete.contains(&pod.name_any());
    if let Some(pod) = replica.pods.iter().find(named) {
        return Some(format!("workersToDelete names {}", pod.name_any()));
    }
    if replica.is_going() {
        return Some("a host of its replica is terminating".to_owned());
    }
    if replica.is_gated() && replica.pods.iter().any(|pod| situation.is_earlier(pod)) {
        return Some("its group's template changed while it was gated".to_owned());
    }
    if !replica.all_of_hosts(situation.group.hosts) {
        let assembled_by = replica.since()?.checked_add(ASSEMBLY).ok()?;
        if assembled_by <= situation.now {
            return Some("a host of its replica is missing".to_owned());
        }
        *wake_at = Some(wake_at.map_or(assembled_by, |earlier| earlier.min(assembled_by)));
    }
    None
}

fn delete<'a>(change: &mut Change<'a>, replica: &Replica<'a>, reason: &str) {
    let live = replica.pods.iter().filter(|pod| !pods::is_going(pod));
    change.delete.extend(live.map(|pod| (*pod, reason.to_owned())));
}

/// Returns the pods to create: missing hosts of existing replicas first, then replicas at the
/// lowest free indices. A pod whose creation was already requested counts against the limits and is
/// requested again until the watch shows it; the same name makes that idempotent.
fn create(situation: &Situation<'_>, replicas: &[Replica<'_>]) -> Vec<New> {
    let group = situation.group;
    let count = |pods: usize| u32::try_from(pods).unwrap_or(u32::MAX);
    let (requested, unrepeated) = arriving(situation, replicas);
    let present = situation.pods.len() + requested.len() + unrepeated.len();
    // Pods of an earlier template use quota that is accounted under their own shape. Gated pods use
    // this grant too, since they are ungated before a new pod may run.
    let uses_grant = |pod: &&&Pod| !pods::has_ended(pod) && !situation.is_earlier(pod);
    let will_use_grant = |pod: &&&Pod| !pods::is_gated(pod) && !situation.is_earlier(pod);
    let using = situation.pods.iter().filter(uses_grant).count() + unrepeated.iter().filter(will_use_grant).count();
    let mut free_quota = situation.granted.saturating_sub(count(using));
    let mut room = group.count.saturating_sub(count(present)).min(BURST.max(group.hosts));
    let existing: BTreeMap<u32, &Replica<'_>> = replicas.iter().filter_map(|it| Some((it.index?, it))).collect();
    let live = existing.iter().filter(|(_, replica)| !replica.is_going()).map(|(index, _)| *index);
    let begun: BTreeSet<u32> = live.chain(requested.iter().map(|slot| slot.replica)).collect();
    let mut slots = Vec::new();
    for slot in begun.iter().flat_map(|index| missing(group.hosts, *index, existing.get(index).copied())) {
        if requested.contains(&slot) {
            slots.push(slot);
        } else if room > 0 {
            slots.push(slot);
            room -= 1;
        }
    }
    let mut free = (0..).filter(|index| !existing.contains_key(index) && !begun.contains(index));
    while room >= group.hosts.max(1) {
        let Some(replica) = free.next() else { break };
        slots.extend(missing(group.hosts, replica, None));
        room -= group.hosts.max(1);
    }
    // A replica is gated as a whole: quota for some of its hosts does not let it run.
    let new = slots.chunk_by(|a, b| a.replica == b.replica).flat_map(|replica| {
        let gated = count(replica.len()) > free_quota;
        free_quota -= if gated { 0 } else { count(replica.len()) };
        replica.iter().map(move |slot| New { slot: *slot, attempt: attempt(situation, *slot), gated })
    });
    new.collect()
}

/// Returns the indices of a replica that have no pod. A single-host replica with any pod is
/// complete, whatever host index the pod has.
fn missing(hosts: u32, index: u32, existing: Option<&Replica<'_>>) -> impl Iterator<Item = Slot> {
    let is_absent = move |host: &u32| existing.is_none_or(|replica| hosts > 1 && replica.host(*host).is_none());
    (0..hosts).filter(is_absent).map(move |host| Slot { replica: index, host })
}

/// Returns the indices of requested pods that the watch has not shown, and those of these pods that
/// are not requested again: their replica is terminating, or their name is no longer the next one.
/// (A head has no index label, and there is only one.)
fn arriving<'a>(situation: &Situation<'a>, replicas: &[Replica<'_>]) -> (BTreeSet<Slot>, Vec<&'a Pod>) {
    let terminating: BTreeSet<u32> = replicas.iter().filter(|it| it.is_going()).filter_map(|it| it.index).collect();
    let (mut requested, mut unrepeated) = (BTreeSet::new(), Vec::new());
    for pod in situation.arriving.iter().filter(|pod| !situation.names.contains(&pod.name_any())) {
        let Some(replica) = pods::index(pod, names::REPLICA_INDEX_LABEL) else { continue };
        let slot = Slot { replica, host: pods::index(pod, names::HOST_INDEX_LABEL).unwrap_or(0) };
        let name = pod_builder::name(situation.cluster, situation.group, slot, attempt(situation, slot));
        if terminating.contains(&replica) || slot.host >= situation.group.hosts || name != pod.name_any() {
            unrepeated.push(*pod);
        } else {
            requested.insert(slot);
        }
    }
    (requested, unrepeated)
}

/// Returns the first name attempt that is neither in use nor in `workersToDelete`.
fn attempt(situation: &Situation<'_>, slot: Slot) -> u32 {
    let is_free = |attempt: &u32| {
        let name = pod_builder::name(situation.cluster, situation.group, slot, *attempt);
        !situation.names.contains(&name) && !situation.to_delete.contains(&name)
    };
    (0..u32::MAX).find(is_free).unwrap_or(u32::MAX)
}
