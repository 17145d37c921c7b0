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
use super::pod_builder::{self, PodIndex};
use super::pods;
use sluice_api::kueue::names::SCHEDULING_HASH_LABEL;
use sluice_api::pod;
use sluice_api::ray::{RayCluster, names};

/// Maximum number of pods that one plan creates. The next plan follows once the first of them
/// exist.
const MAX_CREATES_PER_PLAN: u32 = 200;
/// Time for creating all hosts of a replica, after which a missing one counts as lost.
const REPLICA_ASSEMBLY_TIMEOUT: SignedDuration = SignedDuration::from_secs(30);

/// State of one group, as input of [`decide`].
pub(super) struct GroupState<'a> {
    pub(super) cluster: &'a RayCluster,
    pub(super) group: &'a PodGroup,
    /// All existing pods of the group.
    pub(super) pods: Vec<&'a Pod>,
    /// Pods of the group whose creation was requested and that the watch has not confirmed yet.
    pub(super) expected_pods: Vec<&'a Pod>,
    /// Names of all existing pods of the cluster, in any group.
    pub(super) pod_names: &'a BTreeSet<String>,
    /// Names of the pods in `scaleStrategy.workersToDelete`.
    pub(super) workers_to_delete: &'a [String],
    /// Number of pods of the current template that may run. The others are gated, and existing
    /// gated pods are the next to be ungated.
    pub(super) granted: u32,
    /// True if running pods beyond `granted` are deleted (partial preemption).
    pub(super) reclaims_surplus: bool,
    /// Shape of pods of the current template; `None` for a cluster that is not queued.
    pub(super) shape: Option<&'a str>,
    /// True if the operator deletes surplus pods. Otherwise the Ray autoscaler names them.
    pub(super) deletes_surplus: bool,
    pub(super) now: Timestamp,
}

impl GroupState<'_> {
    /// Reports whether a pod was created from an earlier template with another shape.
    fn has_earlier_template(&self, pod: &Pod) -> bool {
        let shape = pod.labels().get(SCHEDULING_HASH_LABEL);
        self.shape.zip(shape).is_some_and(|(present, shape)| present != shape)
    }
}

/// Pods to delete and to create.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ScaleDecision<'a> {
    /// Pods to delete, each with the reason.
    pub(super) delete: Vec<(&'a Pod, String)>,
    /// Pods to create.
    pub(super) create: Vec<NewPod>,
    /// Time to decide again without a change of state.
    pub(super) wake_at: Option<Timestamp>,
}

/// Pod to create.
#[derive(Debug, PartialEq)]
pub(super) struct NewPod {
    pub(super) index: PodIndex,
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
    fn is_terminating(&self) -> bool {
        self.pods.iter().any(|pod| pod::is_terminating(pod))
    }

    fn is_ready(&self) -> bool {
        self.pods.iter().all(|pod| pods::is_ready(pod))
    }

    fn is_gated(&self) -> bool {
        self.pods.iter().any(|pod| pod::is_gated(pod))
    }

    fn has_all_hosts(&self, hosts: u32) -> bool {
        self.index.is_none() || u32::try_from(self.pods.len()).unwrap_or(u32::MAX) >= hosts
    }

    /// Returns the creation time of the oldest pod; `None` if no pod has one.
    fn first_created_at(&self) -> Option<Timestamp> {
        self.pods.iter().filter_map(|pod| pod.metadata.creation_timestamp.as_ref()).map(|time| time.0).min()
    }

    fn pod_on_host(&self, host: u32) -> Option<&'a Pod> {
        let has_index = |pod: &&&Pod| pods::index_label(pod, names::HOST_INDEX_LABEL).unwrap_or(0) == host;
        self.pods.iter().find(has_index).copied()
    }
}

/// Decides which pods of a group to delete and to create. Pods are created only in a plan that
/// deletes none, so that the count never exceeds the desired one.
pub(super) fn decide<'a>(situation: &GroupState<'a>) -> ScaleDecision<'a> {
    let mut change = ScaleDecision::default();
    let replicas = replicas(situation);
    let mut staying = Vec::new();
    for replica in &replicas {
        match deletion_reason(situation, replica, &mut change.wake_at) {
            Some(reason) => delete_replica(&mut change, replica, &reason),
            None => staying.push(replica),
        }
    }
    let desired = situation.group.count / situation.group.hosts_per_replica.max(1);
    let surplus = staying.len().saturating_sub(desired as usize);
    if surplus > 0 && situation.deletes_surplus {
        staying.sort_by_key(deletion_order);
        for replica in staying.drain(..surplus) {
            delete_replica(&mut change, replica, "the group has more replicas than desired");
        }
    }
    if situation.reclaims_surplus {
        // Gated pods and pods of earlier templates do not use this grant.
        staying.retain(|replica| {
            !replica.is_gated() && !replica.pods.iter().any(|pod| situation.has_earlier_template(pod))
        });
        staying.sort_by_key(deletion_order);
        let admitted = (situation.granted / situation.group.hosts_per_replica.max(1)) as usize;
        for replica in staying.iter().take(staying.len().saturating_sub(admitted)) {
            delete_replica(&mut change, replica, "its quota was preempted");
        }
    }
    if change.delete.is_empty() {
        change.create = pods_to_create(situation, &replicas);
    }
    change
}

/// Returns the sort key for deletion: gated replicas first, then unready ones, then by descending
/// index.
fn deletion_order(replica: &&Replica<'_>) -> (bool, bool, std::cmp::Reverse<Option<u32>>) {
    (!replica.is_gated(), replica.is_ready(), std::cmp::Reverse(replica.index))
}

/// Groups the existing pods by replica.
fn replicas<'a>(situation: &GroupState<'a>) -> Vec<Replica<'a>> {
    let mut indexed: BTreeMap<u32, Vec<&Pod>> = BTreeMap::new();
    let mut replicas = Vec::new();
    for pod in &situation.pods {
        match pods::index_label(pod, names::REPLICA_INDEX_LABEL) {
            Some(index) => indexed.entry(index).or_default().push(pod),
            None => replicas.push(Replica { index: None, pods: vec![pod] }),
        }
    }
    replicas.extend(indexed.into_iter().map(|(index, pods)| Replica { index: Some(index), pods }));
    replicas
}

/// Returns why the pods of a replica must be deleted; `None` if it stays. Lowers `wake_at` to the
/// assembly deadline of an incomplete replica.
fn deletion_reason(
    situation: &GroupState<'_>,
    replica: &Replica<'_>,
    wake_at: &mut Option<Timestamp>,
) -> Option<String> {
    if let Some(failure) = replica.pods.iter().find_map(|pod| pods::failure_reason(pod)) {
        return Some(failure);
    }
    let named = |pod: &&&Pod| situation.workers_to_delete.contains(&pod.name_any());
    if let Some(pod) = replica.pods.iter().find(named) {
        return Some(format!("workersToDelete names {}", pod.name_any()));
    }
    if replica.is_terminating() {
        return Some("a host of its replica is terminating".to_owned());
    }
    if replica.is_gated() && replica.pods.iter().any(|pod| situation.has_earlier_template(pod)) {
        return Some("its group's template changed while it was gated".to_owned());
    }
    if !replica.has_all_hosts(situation.group.hosts_per_replica) {
        let assembled_by = replica.first_created_at()?.checked_add(REPLICA_ASSEMBLY_TIMEOUT).ok()?;
        if assembled_by <= situation.now {
            return Some("a host of its replica is missing".to_owned());
        }
        *wake_at = Some(wake_at.map_or(assembled_by, |earlier| earlier.min(assembled_by)));
    }
    None
}

fn delete_replica<'a>(change: &mut ScaleDecision<'a>, replica: &Replica<'a>, reason: &str) {
    let live = replica.pods.iter().filter(|pod| !pod::is_terminating(pod));
    change.delete.extend(live.map(|pod| (*pod, reason.to_owned())));
}

/// Returns the pods to create: missing hosts of existing replicas first, then replicas at the
/// lowest free indices. A pod whose creation was already requested counts against the limits and is
/// requested again until the watch shows it; the same name makes that idempotent.
fn pods_to_create(situation: &GroupState<'_>, replicas: &[Replica<'_>]) -> Vec<NewPod> {
    let group = situation.group;
    let count = |pods: usize| u32::try_from(pods).unwrap_or(u32::MAX);
    let (requested, unrepeated) = expected(situation, replicas);
    let present = situation.pods.len() + requested.len() + unrepeated.len();
    // Pods of an earlier template use quota that is accounted under their own shape. Gated pods use
    // this grant too, since they are ungated before a new pod may run.
    let uses_grant = |pod: &&&Pod| !pod::is_finished(pod) && !situation.has_earlier_template(pod);
    let will_use_grant = |pod: &&&Pod| !pod::is_gated(pod) && !situation.has_earlier_template(pod);
    let using = situation.pods.iter().filter(uses_grant).count() + unrepeated.iter().filter(will_use_grant).count();
    let mut free_quota = situation.granted.saturating_sub(count(using));
    let mut room = group.count.saturating_sub(count(present)).min(MAX_CREATES_PER_PLAN.max(group.hosts_per_replica));
    let existing: BTreeMap<u32, &Replica<'_>> = replicas.iter().filter_map(|it| Some((it.index?, it))).collect();
    let live = existing.iter().filter(|(_, replica)| !replica.is_terminating()).map(|(index, _)| *index);
    let begun: BTreeSet<u32> = live.chain(requested.iter().map(|slot| slot.replica)).collect();
    let mut slots = Vec::new();
    for slot in
        begun.iter().flat_map(|index| missing_indices(group.hosts_per_replica, *index, existing.get(index).copied()))
    {
        if requested.contains(&slot) {
            slots.push(slot);
        } else if room > 0 {
            slots.push(slot);
            room -= 1;
        }
    }
    let mut free = (0..).filter(|index| !existing.contains_key(index) && !begun.contains(index));
    while room >= group.hosts_per_replica.max(1) {
        let Some(replica) = free.next() else { break };
        slots.extend(missing_indices(group.hosts_per_replica, replica, None));
        room -= group.hosts_per_replica.max(1);
    }
    // A replica is gated as a whole: quota for some of its hosts does not let it run.
    let new = slots.chunk_by(|a, b| a.replica == b.replica).flat_map(|replica| {
        let gated = count(replica.len()) > free_quota;
        free_quota -= if gated { 0 } else { count(replica.len()) };
        replica.iter().map(move |slot| NewPod { index: *slot, attempt: next_attempt(situation, *slot), gated })
    });
    new.collect()
}

/// Returns the indices of a replica that have no pod. A single-host replica with any pod is
/// complete, whatever host index the pod has.
fn missing_indices(hosts: u32, index: u32, existing: Option<&Replica<'_>>) -> impl Iterator<Item = PodIndex> {
    let is_absent = move |host: &u32| existing.is_none_or(|replica| hosts > 1 && replica.pod_on_host(*host).is_none());
    (0..hosts).filter(is_absent).map(move |host| PodIndex { replica: index, host })
}

/// Returns the indices of requested pods that the watch has not shown, and those of these pods that
/// are not requested again: their replica is terminating, or their name is no longer the next one.
/// (A head has no index label, and there is only one.)
fn expected<'a>(situation: &GroupState<'a>, replicas: &[Replica<'_>]) -> (BTreeSet<PodIndex>, Vec<&'a Pod>) {
    let terminating: BTreeSet<u32> =
        replicas.iter().filter(|it| it.is_terminating()).filter_map(|it| it.index).collect();
    let (mut requested, mut unrepeated) = (BTreeSet::new(), Vec::new());
    for pod in situation.expected_pods.iter().filter(|pod| !situation.pod_names.contains(&pod.name_any())) {
        let Some(replica) = pods::index_label(pod, names::REPLICA_INDEX_LABEL) else { continue };
        let slot = PodIndex { replica, host: pods::index_label(pod, names::HOST_INDEX_LABEL).unwrap_or(0) };
        let name = pod_builder::pod_name(situation.cluster, situation.group, slot, next_attempt(situation, slot));
        if terminating.contains(&replica) || slot.host >= situation.group.hosts_per_replica || name != pod.name_any() {
            unrepeated.push(*pod);
        } else {
            requested.insert(slot);
        }
    }
    (requested, unrepeated)
}

/// Returns the first name attempt that is neither in use nor in `workersToDelete`.
fn next_attempt(situation: &GroupState<'_>, slot: PodIndex) -> u32 {
    let is_free = |attempt: &u32| {
        let name = pod_builder::pod_name(situation.cluster, situation.group, slot, *attempt);
        !situation.pod_names.contains(&name) && !situation.workers_to_delete.contains(&name)
    };
    (0..u32::MAX).find(is_free).unwrap_or(u32::MAX)
}
