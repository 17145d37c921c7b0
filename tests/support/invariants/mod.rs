//! The invariants of the design, checked after every single change of a history.

mod delta;
mod gate;
mod physical;
mod quota;
pub mod tree;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};
use sluice_api::condition::is_true;
use sluice_api::kueue::Workload;
use sluice_api::quantity::Amount;
use sluice_api::ray::RayCluster;

use super::history::{Change, Object, State};
pub use physical::may_run;
use tree::{Quotas, Usage};

/// The label of a job that waits for quota.
pub const QUEUE_NAME: &str = "kueue.x-k8s.io/queue-name";
const REPLACES: &str = "kueue.x-k8s.io/workload-slice-replacement-for";

/// So long after a quota was changed, an admission may still come in that was decided by what it was before: the decision was
/// on its way. (Quota and admissions are different objects; nobody writes both at once. On a busy machine a write takes this
/// long.)
const ON_THE_WAY: Duration = Duration::from_secs(3);

/// An invariant of the design (DESIGN.md numbers them).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    /// I1: no admission takes a ClusterQueue past what the cohort tree makes available to it.
    Quota,
    /// I2: a gate is opened only if one admitted slice covers every open child at once.
    Gate,
    /// I3: the pods of a queued job never request more than it has reserved.
    Physical,
    /// I4: a slice is paid for before its predecessor is let go; the pair is never counted twice, and never not at all.
    Delta,
    /// I5: capacity that would admit a pending workload does admit it.
    Liveness,
    /// I6: from the first ready replica on, an upgrade fails no request.
    Serving,
    /// I7: from any state that a crash can leave, a fresh process reaches the same end.
    Restart,
}

impl fmt::Display for Invariant {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = match self {
            Self::Quota => 1,
            Self::Gate => 2,
            Self::Physical => 3,
            Self::Delta => 4,
            Self::Liveness => 5,
            Self::Serving => 6,
            Self::Restart => 7,
        };
        write!(formatter, "I{number}")
    }
}

/// That an invariant does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Breach {
    /// Which.
    pub invariant: Invariant,
    /// In what way.
    pub what: String,
}

impl Breach {
    /// That `invariant` does not hold, in this way.
    pub fn of(invariant: Invariant, what: impl Into<String>) -> Self {
        Self { invariant, what: what.into() }
    }
}

impl fmt::Display for Breach {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.invariant, self.what)
    }
}

/// Replays a history and returns every breach, with the change that made it.
pub fn breaches(history: &[Change]) -> Vec<String> {
    let mut watchdog = Watchdog::new(ON_THE_WAY);
    let seen = history.iter().flat_map(|change| {
        let found = watchdog.see(change);
        found.into_iter().map(|breach| format!("at version {}: {breach}", change.version))
    });
    seen.collect()
}

/// Replays a history that has come to rest, and returns the jobs of which not exactly that is reserved which their pods request.
pub fn inexact(history: &[Change]) -> Vec<String> {
    let mut watchdog = Watchdog::new(ON_THE_WAY);
    history.iter().for_each(|change| drop(watchdog.see(change)));
    watchdog.inexact().iter().map(ToString::to_string).collect()
}

/// Sees one change after the other, and says what each of them broke.
pub struct Watchdog {
    state: State,
    quotas: Quotas,
    /// Quotas that were in force before, until when.
    former: VecDeque<(Timestamp, Quotas)>,
    on_the_way: Duration,
    pods: physical::Pods,
}

impl Watchdog {
    /// One that has seen nothing. A decision may be on its way for as long as `on_the_way`.
    pub fn new(on_the_way: Duration) -> Self {
        Self {
            state: State::default(),
            quotas: Quotas::default(),
            former: VecDeque::new(),
            on_the_way,
            pods: physical::Pods::default(),
        }
    }

    /// Everything as it is now.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The quota that there is now.
    pub fn quotas(&self) -> &Quotas {
        &self.quotas
    }

    /// Takes in a change; returns what it broke.
    pub fn see(&mut self, change: &Change) -> Vec<Breach> {
        self.forget_quotas(change.heard);
        match &change.object {
            Object::ClusterQueue(_) | Object::Cohort(_) => {
                self.state.apply(change);
                self.quotas_changed(change.heard);
                Vec::new()
            }
            Object::Workload(workload) => {
                let was = self.state.workloads.get(&key(workload)).cloned();
                self.state.apply(change);
                let mut found = self.pods.check(&self.state, owner_uid(workload).as_ref());
                found.extend(delta::check(&self.state, was.as_ref(), workload, change.gone));
                if !change.gone && !was.as_ref().is_some_and(holds_quota) && holds_quota(workload) {
                    found.extend(quota::check(&self.state, workload, &self.in_force()));
                }
                found
            }
            Object::RayCluster(cluster) => {
                let was = self.state.ray_clusters.get(&key(cluster)).cloned();
                self.state.apply(change);
                let opened = was.is_some_and(|was| !is_open(&was)) && is_open(cluster) && !change.gone;
                if opened { gate::check(&self.state, cluster) } else { Vec::new() }
            }
            Object::Pod(pod) => {
                self.state.apply(change);
                let job = self.pods.see(&self.state, pod, change.gone);
                let mut found = self.pods.check(&self.state, job.as_ref());
                found.extend(self.pods.check_renewal(&self.state, pod));
                found
            }
            Object::RayService(_) | Object::Service(_) | Object::HTTPRoute(_) => {
                self.state.apply(change);
                Vec::new()
            }
        }
    }

    /// Of which jobs, now that all is quiet, not exactly that is reserved which their pods request.
    pub fn inexact(&self) -> Vec<Breach> {
        self.pods.inexact(&self.state)
    }

    fn quotas_changed(&mut self, at: Timestamp) {
        let changed = Quotas::of(self.state.cluster_queues.values(), self.state.cohorts.values());
        if changed != self.quotas {
            self.former.push_back((at, std::mem::replace(&mut self.quotas, changed)));
        }
    }

    fn forget_quotas(&mut self, now: Timestamp) {
        while self.former.front().is_some_and(|(until, _)| *until + self.on_the_way < now) {
            self.former.pop_front();
        }
    }

    /// The quotas that a decision which arrives now may rest on.
    fn in_force(&self) -> Vec<&Quotas> {
        self.former.iter().map(|(_, quotas)| quotas).chain([&self.quotas]).collect()
    }
}

/// Whether a Workload's reservation counts: a slice that is being replaced doesn't count beside its admitted successor.
pub fn counts(state: &State, workload: &Workload) -> bool {
    holds_quota(workload) && !is_succeeded(state, workload)
}

/// Whether a slice holds quota in the place of this one, or of the slice that took its place and is over already.
fn is_succeeded(state: &State, workload: &Workload) -> bool {
    let key = key(workload);
    let mut successors = state.workloads.values().filter(|other| replaces(other) == Some(&key));
    successors.any(|next| holds_quota(next) || is_finished(next) && is_succeeded(state, next))
}

/// The key of the slice that this one is to succeed.
pub fn replaces(workload: &Workload) -> Option<&String> {
    workload.annotations().get(REPLACES)
}

/// Adds what a Workload holds.
pub fn add_usage(usage: &mut Usage, holder: &Workload) {
    let Some(admission) = holder.status.as_ref().and_then(|status| status.admission.as_ref()) else { return };
    let used = usage.entry(admission.cluster_queue.clone()).or_default();
    for assignment in &admission.pod_set_assignments {
        for (resource, quantity) in &assignment.resource_usage {
            let flavor = assignment.flavors.get(resource).cloned().unwrap_or_default();
            let sum = used.entry((flavor, resource.clone())).or_default();
            *sum = sum.plus(Amount::from_quantity(resource, quantity).expect("a quantity"));
        }
    }
}

/// Adds what a Workload holds, and of what the slices that it took the place of and that are not over yet hold what is more
/// than that: pods may run on it until they are over.
pub fn add_holding(usage: &mut Usage, state: &State, holder: &Workload) {
    add_largest(usage, std::iter::once(holder).chain(replaced_by(state, holder)), |slice| {
        let mut held = Usage::new();
        add_usage(&mut held, slice);
        held
    });
}

/// Adds to amounts, by some place and what they are of, the largest that any of these slices has.
fn add_largest<'a, P: Ord + Clone, K: Ord>(
    sums: &mut BTreeMap<P, BTreeMap<K, Amount>>,
    slices: impl Iterator<Item = &'a Workload>,
    held: impl Fn(&'a Workload) -> BTreeMap<P, BTreeMap<K, Amount>>,
) {
    let mut largest: BTreeMap<(P, K), Amount> = BTreeMap::new();
    for (place, amounts) in slices.flat_map(held) {
        for (of, amount) in amounts {
            let most = largest.entry((place.clone(), of)).or_default();
            *most = amount.max(*most);
        }
    }
    for ((place, of), amount) in largest {
        let sum = sums.entry(place).or_default().entry(of).or_default();
        *sum = sum.plus(amount);
    }
}

/// The slices that hold quota and whose place this one has taken, the last one first. One that is over may stand in between.
pub fn replaced_by<'a>(state: &'a State, slice: &Workload) -> Vec<&'a Workload> {
    let mut replaced: Vec<&Workload> = Vec::new();
    let mut before = replaces(slice).and_then(|key| state.workloads.get(key));
    while let Some(older) = before.filter(|older| holds_quota(older) || is_finished(older)) {
        if replaced.len() > state.workloads.len() {
            break;
        }
        replaced.push(older);
        before = replaces(older).and_then(|key| state.workloads.get(key));
    }
    replaced.retain(|older| holds_quota(older));
    replaced
}

/// What all holders hold.
pub fn usage(state: &State) -> Usage {
    let mut usage = Usage::new();
    let holders = state.workloads.values().filter(|holder| counts(state, holder));
    holders.for_each(|holder| add_holding(&mut usage, state, holder));
    usage
}

/// Whether it holds quota.
pub fn holds_quota(workload: &Workload) -> bool {
    let conditions = workload.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    is_true(conditions, "QuotaReserved") && !is_finished(workload)
}

/// Whether it is over.
pub fn is_finished(workload: &Workload) -> bool {
    let conditions = workload.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    is_true(conditions, "Finished")
}

/// Whether what it pays for may run.
pub fn is_admitted(workload: &Workload) -> bool {
    let conditions = workload.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    holds_quota(workload) && is_true(conditions, "Admitted") && !is_true(conditions, "Evicted")
}

/// Whether pods may be made for it.
pub fn is_open(cluster: &RayCluster) -> bool {
    cluster.spec.suspend != Some(true)
}

/// Whether it isn't being deleted.
pub fn is_live(cluster: &RayCluster) -> bool {
    cluster.metadata.deletion_timestamp.is_none()
}

/// The job that a cluster belongs to: its owner, or itself.
pub fn job_uid(cluster: &RayCluster) -> String {
    owner_uid(cluster).unwrap_or_else(|| cluster.uid().unwrap_or_default())
}

/// The uid of the controller that owns an object.
pub fn owner_uid<K: Resource>(object: &K) -> Option<String> {
    controller(object).map(|owner| owner.uid.clone())
}

fn controller<K: Resource>(object: &K) -> Option<&OwnerReference> {
    object.meta().owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

/// How objects are named in a [`State`].
pub fn key<K: Resource>(object: &K) -> String {
    format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any())
}

/// Clusters by the job that they belong to.
pub fn clusters_of<'a>(state: &'a State, job: &'a str) -> impl Iterator<Item = &'a RayCluster> {
    state.ray_clusters.values().filter(move |cluster| job_uid(cluster) == job)
}

/// Slices by the job that they belong to.
pub fn slices_of<'a>(state: &'a State, job: &'a str) -> impl Iterator<Item = &'a Workload> {
    state.workloads.values().filter(move |slice| controller(*slice).is_some_and(|owner| owner.uid == job))
}

/// What a job has reserved, by resource, over all flavors.
fn reserved_by(state: &State, job: &str) -> BTreeMap<String, Amount> {
    let mut usage = Usage::new();
    let holders = slices_of(state, job).filter(|slice| counts(state, slice));
    holders.for_each(|slice| add_holding(&mut usage, state, slice));
    let mut reserved: BTreeMap<String, Amount> = BTreeMap::new();
    for ((_, resource), amount) in usage.into_values().flatten() {
        let sum = reserved.entry(resource).or_default();
        *sum = sum.plus(amount);
    }
    reserved
}
