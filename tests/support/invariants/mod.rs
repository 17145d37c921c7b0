//! Checks the invariants of the design after every change of a history.

mod batch_jobs;
pub mod charges;
mod delta;
mod gate;
mod payment;
mod physical;
mod quota;
pub mod tree;
mod truth;

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
pub use batch_jobs::{job_uid_of_pod, names_queue};
pub use payment::{quota_for_nothing, quota_held_twice};
pub use physical::is_runnable;
use tree::{Quotas, Usage};
pub use truth::unexplained_waits;

/// Label with the LocalQueue of a queued job.
pub const QUEUE_NAME_LABEL: &str = "kueue.x-k8s.io/queue-name";
/// Annotation of a job whose gate a test opens by hand.
pub const OPENED_BY_HAND_ANNOTATION: &str = "test.sluice.dev/opened-by-hand";
const JOB_UID_LABEL: &str = "kueue.x-k8s.io/job-uid";
const REPLACEMENT_FOR_ANNOTATION: &str = "kueue.x-k8s.io/workload-slice-replacement-for";

/// Time after a quota change during which an admission based on the previous quota may still
/// arrive. (Quota and admissions are different objects and not written atomically. On a busy
/// machine a write takes this long.)
const DECISION_LATENCY: Duration = Duration::from_secs(3);

/// An invariant of the design (DESIGN.md numbers them).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    /// I1: no admission takes a ClusterQueue past what the cohort tree makes available to it.
    Quota,
    /// I2: a gate is opened only if one admitted slice covers all unsuspended clusters of the job
    /// together.
    Gate,
    /// I3: the pods of a queued job never request more than the job has reserved.
    Physical,
    /// I4: a slice reserves quota before its predecessor releases it. The pair is always counted
    /// exactly once.
    Delta,
    /// I5: a pending workload is admitted whenever capacity allows it.
    Liveness,
    /// I6: after the first replica is ready, no request fails because of an upgrade.
    Serving,
    /// I7: from any state that a crash can leave, a new process converges to the same state.
    Restart,
    /// I8: pods are covered by exactly one Workload, and quota is held for nothing else.
    Payment,
    /// I9: writes end, in a state that depends on the last manifests alone.
    Rest,
    /// I10: what is going is not ready, and what waits says why.
    Truth,
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
            Self::Payment => 8,
            Self::Rest => 9,
            Self::Truth => 10,
        };
        write!(formatter, "I{number}")
    }
}

/// A violation of an invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The violated invariant.
    pub invariant: Invariant,
    /// Description with object names and amounts.
    pub message: String,
}

impl Violation {
    /// Returns a violation of `invariant` with this description.
    pub fn new(invariant: Invariant, what: impl Into<String>) -> Self {
        Self { invariant, message: what.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.invariant, self.message)
    }
}

/// Replays a history. Returns every violation with the resource version of the change that caused
/// it.
pub fn violations(history: &[Change]) -> Vec<String> {
    let mut watchdog = InvariantChecker::new(DECISION_LATENCY);
    let seen = history.iter().flat_map(|change| {
        let found = watchdog.observe(change);
        found.into_iter().map(|breach| format!("at version {}: {breach}", change.version))
    });
    seen.collect()
}

/// Replays a history that has converged. Returns the jobs whose reserved quota differs from the
/// requests of their pods.
pub fn reservation_mismatches(history: &[Change]) -> Vec<String> {
    let mut watchdog = InvariantChecker::new(DECISION_LATENCY);
    for change in history {
        watchdog.observe(change);
    }
    watchdog.reservation_mismatches().iter().map(ToString::to_string).collect()
}

/// Observes changes one by one, and returns the violations caused by each.
pub struct InvariantChecker {
    state: State,
    quotas: Quotas,
    /// Previous quotas, each with the time at which it was replaced.
    previous_quotas: VecDeque<(Timestamp, Quotas)>,
    decision_latency: Duration,
    pods: physical::PodTracker,
}

impl InvariantChecker {
    /// Returns a checker without state. Decisions may be in flight for `on_the_way` after a quota
    /// change.
    pub fn new(on_the_way: Duration) -> Self {
        Self {
            state: State::default(),
            quotas: Quotas::default(),
            previous_quotas: VecDeque::new(),
            decision_latency: on_the_way,
            pods: physical::PodTracker::new(on_the_way),
        }
    }

    /// Returns the current state.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Returns the current quotas.
    pub fn quotas(&self) -> &Quotas {
        &self.quotas
    }

    /// Replaces the state by one of an earlier time. Pods that it does not cover came into a queue while
    /// they ran; those that have lost their owner still belong to the cluster that they belonged to. A
    /// decision that arrives after the restore may be based on quotas of before.
    pub fn restore(&mut self, now: Timestamp, objects: &[Object]) {
        let mut previous_quotas = std::mem::take(&mut self.previous_quotas);
        previous_quotas.push_back((now, std::mem::take(&mut self.quotas)));
        *self = Self { pods: self.pods.restarted(), previous_quotas, ..Self::new(self.decision_latency) };
        for object in objects {
            // The order of these changes violates what the state does not.
            let _ = self.observe(&Change { version: 0, observed_at: now, object: object.clone(), deleted: false });
        }
        self.pods.exempt_uncovered(&self.state);
    }

    /// Applies a change. Returns the violations that it causes.
    pub fn observe(&mut self, change: &Change) -> Vec<Violation> {
        self.expire_quotas(change.observed_at);
        match &change.object {
            Object::ClusterQueue(_) | Object::Cohort(_) => {
                self.state.apply(change);
                self.update_quotas(change.observed_at);
                Vec::new()
            }
            Object::Workload(workload) => {
                let was = self.state.workloads.get(&object_key(workload)).cloned();
                self.state.apply(change);
                let mut found = self.pods.check(&self.state, job_uid_of_slice(workload).as_ref());
                found.extend(delta::check(&self.state, was.as_ref(), workload, change.deleted));
                if change.deleted {
                    return found;
                }
                found.extend(payment::check(&self.state, workload));
                found.extend(charges::check(&self.state, workload));
                if !was.as_ref().is_some_and(holds_quota) && holds_quota(workload) {
                    found.extend(quota::check(&self.state, workload, &self.effective_quotas()));
                }
                found
            }
            Object::RayCluster(cluster) => {
                let was = self.state.ray_clusters.get(&object_key(cluster)).cloned();
                self.state.apply(change);
                let Some(was) = was.filter(|_| !change.deleted) else { return Vec::new() };
                self.pods.observe_cluster(&was, cluster, change.observed_at);
                let opened = !is_unsuspended(&was) && is_unsuspended(cluster);
                let mut found = if opened { gate::check(&self.state, cluster) } else { Vec::new() };
                found.extend(truth::check_cluster(&was, cluster));
                found
            }
            Object::RayService(service) => {
                let was = self.state.ray_services.get(&object_key(service)).cloned();
                self.state.apply(change);
                was.and_then(|was| truth::check_service(&was, service)).into_iter().collect()
            }
            Object::BatchJob(job) => {
                let was = self.state.batch_jobs.get(&object_key(job)).cloned();
                self.state.apply(change);
                self.pods.observe_batch_job(was.as_ref(), job, change.observed_at);
                let was = was.filter(|_| !change.deleted);
                was.map(|was| batch_jobs::check_gate(&self.state, &was, job)).unwrap_or_default()
            }
            Object::Pod(pod) => {
                self.state.apply(change);
                let job = self.pods.observe(&self.state, pod, change.deleted, change.observed_at);
                let mut found = self.pods.check(&self.state, job.as_ref());
                found.extend(self.pods.check_recreate(&self.state, pod));
                found
            }
            Object::Service(_) | Object::HTTPRoute(_) => {
                self.state.apply(change);
                Vec::new()
            }
        }
    }

    /// Returns the jobs whose reserved quota differs from the requests of their pods. Valid only
    /// after convergence.
    pub fn reservation_mismatches(&self) -> Vec<Violation> {
        self.pods.reservation_mismatches(&self.state)
    }

    fn update_quotas(&mut self, at: Timestamp) {
        let changed = Quotas::new(self.state.cluster_queues.values(), self.state.cohorts.values());
        if changed != self.quotas {
            self.previous_quotas.push_back((at, std::mem::replace(&mut self.quotas, changed)));
        }
    }

    fn expire_quotas(&mut self, now: Timestamp) {
        while self.previous_quotas.front().is_some_and(|(until, _)| *until + self.decision_latency < now) {
            self.previous_quotas.pop_front();
        }
    }

    /// Returns the quotas on which a decision that arrives now may be based.
    fn effective_quotas(&self) -> Vec<&Quotas> {
        self.previous_quotas.iter().map(|(_, quotas)| quotas).chain([&self.quotas]).collect()
    }
}

/// Reports whether a Workload's reservation counts toward usage. A slice with an admitted successor
/// does not.
pub fn counts_toward_usage(state: &State, workload: &Workload) -> bool {
    holds_quota(workload) && !has_admitted_successor(state, workload)
}

/// Reports whether a slice holds quota in place of this one, directly or through finished
/// successors.
fn has_admitted_successor(state: &State, workload: &Workload) -> bool {
    let key = object_key(workload);
    let mut successors = state.replacements_of(&key);
    successors.any(|next| holds_quota(next) || is_finished(next) && has_admitted_successor(state, next))
}

/// Returns the key of the slice that this one replaces, if any.
pub fn replaced_slice_key(workload: &Workload) -> Option<&String> {
    workload.annotations().get(REPLACEMENT_FOR_ANNOTATION)
}

/// Adds the quota that a Workload has reserved.
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

/// Adds the maximum of what a Workload and the slices that it replaces have reserved: until those
/// are finished, pods may still run on their quota.
pub fn add_usage_with_replaced(usage: &mut Usage, state: &State, holder: &Workload) {
    add_maximum(usage, std::iter::once(holder).chain(replaced_slices(state, holder)), |slice| {
        let mut held = Usage::new();
        add_usage(&mut held, slice);
        held
    });
}

/// Adds, for each pair of keys, the largest amount of any of these slices.
fn add_maximum<'a, P: Ord + Clone, K: Ord>(
    sums: &mut BTreeMap<P, BTreeMap<K, Amount>>,
    slices: impl Iterator<Item = &'a Workload>,
    held: impl Fn(&'a Workload) -> BTreeMap<P, BTreeMap<K, Amount>>,
) {
    let mut largest: BTreeMap<(P, K), Amount> = BTreeMap::new();
    for (place, amounts) in slices.flat_map(held) {
        for (key, amount) in amounts {
            let most = largest.entry((place.clone(), key)).or_default();
            *most = amount.max(*most);
        }
    }
    for ((place, key), amount) in largest {
        let sum = sums.entry(place).or_default().entry(key).or_default();
        *sum = sum.plus(amount);
    }
}

/// Returns the slices replaced by this one that still hold quota, newest first. Finished slices in
/// between are skipped.
pub fn replaced_slices<'a>(state: &'a State, slice: &Workload) -> Vec<&'a Workload> {
    let mut replaced: Vec<&Workload> = Vec::new();
    let mut before = replaced_slice_key(slice).and_then(|key| state.workloads.get(key));
    while let Some(older) = before.filter(|older| holds_quota(older) || is_finished(older)) {
        if replaced.len() > state.workloads.len() {
            break;
        }
        replaced.push(older);
        before = replaced_slice_key(older).and_then(|key| state.workloads.get(key));
    }
    replaced.retain(|older| holds_quota(older));
    replaced
}

/// Returns the usage of all ClusterQueues.
pub fn usage(state: &State) -> Usage {
    let mut usage = Usage::new();
    let holders = state.workloads.values().filter(|holder| counts_toward_usage(state, holder));
    holders.for_each(|holder| add_usage_with_replaced(&mut usage, state, holder));
    usage
}

/// Reports whether a Workload has quota reserved and is not finished.
pub fn holds_quota(workload: &Workload) -> bool {
    let conditions = workload.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    is_true(conditions, "QuotaReserved") && !is_finished(workload)
}

/// Reports whether a Workload is finished.
pub fn is_finished(workload: &Workload) -> bool {
    let conditions = workload.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    is_true(conditions, "Finished")
}

/// Reports whether the pods of a Workload may run: admitted and not evicted.
pub fn is_admitted(workload: &Workload) -> bool {
    let conditions = workload.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    holds_quota(workload) && is_true(conditions, "Admitted") && !is_true(conditions, "Evicted")
}

/// Reports whether a cluster is not suspended, so that its pods may be created.
pub fn is_unsuspended(cluster: &RayCluster) -> bool {
    cluster.spec.suspend != Some(true)
}

/// Reports whether a cluster is not terminating.
pub fn is_live(cluster: &RayCluster) -> bool {
    cluster.metadata.deletion_timestamp.is_none()
}

/// Returns the uid of the job that a cluster belongs to: that of its controller if it is a queued
/// RayService, a RayJob, or a job whose slices cover the cluster, although it is deleted or has left its
/// queue; else its own.
pub fn job_uid(state: &State, cluster: &RayCluster) -> String {
    let own = cluster.uid().unwrap_or_default();
    let Some(owner) = controller(cluster).filter(|owner| owner.api_version.starts_with("ray.io/")) else { return own };
    let key = format!("{}/{}", cluster.namespace().unwrap_or_default(), owner.name);
    let service = state.ray_services.get(&key).filter(|service| service.metadata.uid.as_ref() == Some(&owner.uid));
    let is_queued = service.is_some_and(|service| service.labels().contains_key(QUEUE_NAME_LABEL));
    let covers = match owner.kind.as_str() {
        "RayJob" => true,
        "RayService" if is_queued => true,
        "RayService" => slices_of_job(state, &owner.uid).any(|slice| holds_quota(slice) && mentions(slice, &own)),
        _ => false,
    };
    if covers { owner.uid.clone() } else { own }
}

/// Reports whether the record of a slice contains this uid.
fn mentions(slice: &Workload, uid: &str) -> bool {
    let quoted = format!("\"{uid}");
    slice.annotations().get("sluice.dev/slice").is_some_and(|record| record.contains(&quoted))
}

/// Returns the uid of the job of a slice: that of its controller, or, once it is orphaned, that in
/// its label.
pub fn job_uid_of_slice(slice: &Workload) -> Option<String> {
    owner_uid(slice).or_else(|| slice.labels().get(JOB_UID_LABEL).cloned())
}

/// Returns the uid of the controller of an object, if any.
pub fn owner_uid<K: Resource>(object: &K) -> Option<String> {
    controller(object).map(|owner| owner.uid.clone())
}

fn controller<K: Resource>(object: &K) -> Option<&OwnerReference> {
    object.meta().owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

/// Returns the key of an object in a [`State`]: `NAMESPACE/NAME`.
pub fn object_key<K: Resource>(object: &K) -> String {
    format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any())
}

/// Returns the clusters of a job.
pub fn clusters_of_job<'a>(state: &'a State, job: &'a str) -> impl Iterator<Item = &'a RayCluster> {
    state.ray_clusters.values().filter(move |cluster| job_uid(state, cluster) == job)
}

/// Returns the slices of a job.
pub fn slices_of_job<'a>(state: &'a State, job: &'a str) -> impl Iterator<Item = &'a Workload> {
    state.workloads.values().filter(move |slice| match controller(*slice) {
        Some(owner) => owner.uid == job,
        None => slice.labels().get(JOB_UID_LABEL).is_some_and(|uid| uid == job),
    })
}

/// Returns the quota that a job has reserved, by resource, summed over all flavors.
fn reserved_by(state: &State, job: &str) -> BTreeMap<String, Amount> {
    let mut usage = Usage::new();
    let holders = slices_of_job(state, job).filter(|slice| counts_toward_usage(state, slice));
    holders.for_each(|slice| add_usage_with_replaced(&mut usage, state, slice));
    let mut reserved: BTreeMap<String, Amount> = BTreeMap::new();
    for ((_, resource), amount) in usage.into_values().flatten() {
        let sum = reserved.entry(resource).or_default();
        *sum = sum.plus(amount);
    }
    reserved
}
