//! Which pods of a group go, and which come.
//!
//! Pods stand in slots: replica and host. The pods of one replica live and die together, since Ray runs them as one machine.
//! At no time are there more pod objects than the group wants, so a slot is filled again only when the pod in it is gone, and a pod
//! that was asked for has its place before it is seen: by then another slot may have come to be the one to fill.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube_core::ResourceExt;

use super::groups::PodGroup;
use super::pod_builder::{self, Slot};
use super::pods;
use sluice_api::kueue::names::SHAPE_LABEL;
use sluice_api::ray::{RayCluster, names};

/// How many pods one plan creates at most. The next plan follows once the first of them are there.
const BURST: u32 = 200;
/// How long the hosts of a replica may take to be created, one after another, before a missing one counts as lost.
const ASSEMBLY: SignedDuration = SignedDuration::from_secs(30);

/// What is to be decided about.
pub(super) struct Situation<'a> {
    pub(super) cluster: &'a RayCluster,
    pub(super) group: &'a PodGroup,
    /// Every pod of the group that there is.
    pub(super) pods: Vec<&'a Pod>,
    /// Pods of the group that were asked for and may be there by now.
    pub(super) arriving: Vec<&'a Pod>,
    /// Names of pods of the cluster that exist, in any group.
    pub(super) names: &'a BTreeSet<String>,
    /// Names of pods that are to go first.
    pub(super) to_delete: &'a [String],
    /// How many pods of the present template may run. Others wait behind scheduling gates; those that are gated already are the
    /// next to run.
    pub(super) granted: u32,
    /// Whether those of them that run beyond that have to go.
    pub(super) takes_back: bool,
    /// What pods of the present template are charged as, where they are charged.
    pub(super) shape: Option<&'a str>,
    /// Whether pods that are more than wanted are removed here. Otherwise Ray's autoscaler names those that go.
    pub(super) trims: bool,
    pub(super) now: Timestamp,
}

impl Situation<'_> {
    /// Whether a pod is charged as something else than what the template makes now.
    fn is_earlier(&self, pod: &Pod) -> bool {
        let shape = pod.labels().get(SHAPE_LABEL);
        self.shape.zip(shape).is_some_and(|(present, shape)| present != shape)
    }
}

/// What is decided.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Change<'a> {
    /// Pods that go, each with the reason.
    pub(super) delete: Vec<(&'a Pod, String)>,
    /// Slots that are filled.
    pub(super) create: Vec<New>,
    /// When to look again though nothing changed.
    pub(super) wake_at: Option<Timestamp>,
}

/// A pod to be made.
#[derive(Debug, PartialEq)]
pub(super) struct New {
    pub(super) slot: Slot,
    /// How many names of the slot are taken.
    pub(super) attempt: u32,
    /// Whether it has to wait for quota.
    pub(super) gated: bool,
}

/// The pods in the slots of one replica; a pod that says of no slot is a replica of its own.
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

    /// Since when all of its pods that there are could have had company.
    fn since(&self) -> Option<Timestamp> {
        self.pods.iter().filter_map(|pod| pod.metadata.creation_timestamp.as_ref()).map(|time| time.0).min()
    }

    fn host(&self, host: u32) -> Option<&'a Pod> {
        let is_it = |pod: &&&Pod| pods::index(pod, names::HOST_INDEX_LABEL).unwrap_or(0) == host;
        self.pods.iter().find(is_it).copied()
    }
}

/// Decides about one group.
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
    let wanted = situation.group.count / situation.group.hosts.max(1);
    let surplus = staying.len().saturating_sub(wanted as usize);
    if surplus > 0 && situation.trims {
        staying.sort_by_key(missed);
        for replica in staying.drain(..surplus) {
            delete(&mut change, replica, "the group wants fewer pods");
        }
    }
    if situation.takes_back {
        staying.retain(|replica| !replica.is_gated() && !replica.pods.iter().any(|pod| situation.is_earlier(pod)));
        staying.sort_by_key(missed);
        let kept = (situation.granted / situation.group.hosts.max(1)) as usize;
        for replica in staying.iter().take(staying.len().saturating_sub(kept)) {
            delete(&mut change, replica, "others get its quota");
        }
    }
    if change.delete.is_empty() {
        change.create = create(situation, &replicas);
    }
    change
}

/// Those that wait for quota go first, those that do not serve yet, and then those in the highest slots.
fn missed(replica: &&Replica<'_>) -> (bool, bool, std::cmp::Reverse<Option<u32>>) {
    (!replica.is_gated(), replica.is_ready(), std::cmp::Reverse(replica.index))
}

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

/// Why the pods of a replica have to go, or go on going; `None` for one that stays.
fn reason_to_go(situation: &Situation<'_>, replica: &Replica<'_>, wake_at: &mut Option<Timestamp>) -> Option<String> {
    if let Some(ailment) = replica.pods.iter().find_map(|pod| pods::ailment(pod)) {
        return Some(ailment);
    }
    let named = |pod: &&&Pod| situation.to_delete.contains(&pod.name_any());
    if let Some(pod) = replica.pods.iter().find(named) {
        return Some(format!("workersToDelete names {}", pod.name_any()));
    }
    if replica.is_going() {
        return Some("a host of its replica is gone".to_owned());
    }
    if replica.is_gated() && replica.pods.iter().any(|pod| situation.is_earlier(pod)) {
        return Some("its group's template asks for something else now, and it has not run".to_owned());
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
    let there = replica.pods.iter().filter(|pod| !pods::is_going(pod));
    change.delete.extend(there.map(|pod| (*pod, reason.to_owned())));
}

/// The slots to fill: what is missing in replicas that have begun, then the lowest free ones. What was asked for already takes its
/// room, and is asked for again as long as nobody has seen it: that makes no second one.
fn create(situation: &Situation<'_>, replicas: &[Replica<'_>]) -> Vec<New> {
    let group = situation.group;
    let count = |pods: usize| u32::try_from(pods).unwrap_or(u32::MAX);
    let (asked, lost) = arriving(situation, replicas);
    let present = situation.pods.len() + asked.len() + lost.len();
    // What runs with an earlier template uses what is paid for that.
    let runs = |pod: &&&Pod| !pods::has_ended(pod) && !situation.is_earlier(pod);
    let arrives = |pod: &&&Pod| !pods::is_gated(pod) && !situation.is_earlier(pod);
    let using = situation.pods.iter().filter(runs).count() + lost.iter().filter(arrives).count();
    let mut free_quota = situation.granted.saturating_sub(count(using));
    let mut room = group.count.saturating_sub(count(present)).min(BURST.max(group.hosts));
    let there: BTreeMap<u32, &Replica<'_>> = replicas.iter().filter_map(|it| Some((it.index?, it))).collect();
    let living = there.iter().filter(|(_, replica)| !replica.is_going()).map(|(index, _)| *index);
    let begun: BTreeSet<u32> = living.chain(asked.iter().map(|slot| slot.replica)).collect();
    let mut slots = Vec::new();
    for slot in begun.iter().flat_map(|index| missing(group.hosts, *index, there.get(index).copied())) {
        if asked.contains(&slot) {
            slots.push(slot);
        } else if room > 0 {
            slots.push(slot);
            room -= 1;
        }
    }
    let mut free = (0..).filter(|index| !there.contains_key(index) && !begun.contains(index));
    while room >= group.hosts.max(1) {
        let Some(replica) = free.next() else { break };
        slots.extend(missing(group.hosts, replica, None));
        room -= group.hosts.max(1);
    }
    let new = slots.chunk_by(|a, b| a.replica == b.replica).flat_map(|replica| {
        let gated = count(replica.len()) > free_quota;
        free_quota -= if gated { 0 } else { count(replica.len()) };
        replica.iter().map(move |slot| New { slot: *slot, attempt: attempt(situation, *slot), gated })
    });
    new.collect()
}

/// The slots of a replica that no pod is in; of one host, it is there or not, whatever its pod says of hosts.
fn missing(hosts: u32, index: u32, there: Option<&Replica<'_>>) -> impl Iterator<Item = Slot> {
    let is_absent = move |host: &u32| there.is_none_or(|replica| hosts > 1 && replica.host(*host).is_none());
    (0..hosts).filter(is_absent).map(move |host| Slot { replica: index, host })
}

/// The slots of the pods that were asked for and not seen yet; and those of these pods that are not asked for again, since their
/// replica is going or their name has been passed over by now. (A head says of no slot: there is one.)
fn arriving<'a>(situation: &Situation<'a>, replicas: &[Replica<'_>]) -> (BTreeSet<Slot>, Vec<&'a Pod>) {
    let going: BTreeSet<u32> = replicas.iter().filter(|it| it.is_going()).filter_map(|it| it.index).collect();
    let (mut asked, mut lost) = (BTreeSet::new(), Vec::new());
    for pod in situation.arriving.iter().filter(|pod| !situation.names.contains(&pod.name_any())) {
        let Some(replica) = pods::index(pod, names::REPLICA_INDEX_LABEL) else { continue };
        let slot = Slot { replica, host: pods::index(pod, names::HOST_INDEX_LABEL).unwrap_or(0) };
        let name = pod_builder::name(situation.cluster, situation.group, slot, attempt(situation, slot));
        if going.contains(&replica) || slot.host >= situation.group.hosts || name != pod.name_any() {
            lost.push(*pod);
        } else {
            asked.insert(slot);
        }
    }
    (asked, lost)
}

/// A name that is to be deleted, or that another slot's pod has, is passed over.
fn attempt(situation: &Situation<'_>, slot: Slot) -> u32 {
    let is_free = |attempt: &u32| {
        let name = pod_builder::name(situation.cluster, situation.group, slot, *attempt);
        !situation.names.contains(&name) && !situation.to_delete.contains(&name)
    };
    (0..u32::MAX).find(is_free).unwrap_or(u32::MAX)
}
