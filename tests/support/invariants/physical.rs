//! I3: the pods of a queued job never request more than the job has reserved, in total and per
//! PodSet. If the upgrade strategy of a cluster is Recreate, the pods of a group never differ in
//! their template.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};
use kube::ResourceExt;
use sluice_api::kueue::Workload;
use sluice_api::quantity::Amount;
use sluice_api::ray::RayCluster;
use sluice_api::ray::options::RayClusterUpgradeType;
use sluice_queue::requests::pod_requests;

use super::batch_jobs::{has_gated_template, is_of_batch_job, job_uid_of_pod, names_queue, queued_batch_job};
use super::{
    Invariant, QUEUE_NAME_LABEL, Violation, add_maximum, counts_toward_usage, holds_quota, job_uid, job_uid_of_slice,
    mentions, object_key, owner_uid, replaced_slices, reserved_by, slices_of_job,
};
use crate::history::State;

/// Label with the PodSet that a pod is counted in.
const POD_SET: &str = "kueue.x-k8s.io/podset";

/// Pods by the uid of their cluster or batch/v1 Job. Those without pods have no entry.
pub(super) struct PodTracker {
    /// The pods that may run.
    by_cluster: BTreeMap<String, BTreeMap<String, RunnablePod>>,
    /// Template key of every existing pod, including gated and finished ones.
    template_keys: BTreeMap<String, BTreeMap<String, TemplateKey>>,
    /// Uid of the cluster that each pod belonged to when it had an owner, by the uid of the pod.
    cluster_of_pod: BTreeMap<String, String>,
    /// Times at which Jobs and clusters came into a queue, by uid.
    queued_at: BTreeMap<String, Timestamp>,
    /// Time within which the queue manager knows a change.
    decision_latency: Duration,
}

/// Group of a pod, and image and resources of its first container.
type TemplateKey = (String, Option<String>, Option<ResourceRequirements>);

/// A pod that may run.
struct RunnablePod {
    /// PodSet that the pod is counted in, from its label. Pods of other operators have none unless
    /// they were gated.
    pod_set: Option<String>,
    requests: Amounts,
    /// True if it may run without quota until the queue manager has stopped it: it was created without
    /// a scheduling gate, or ran before its Job or cluster came into a queue.
    is_exempt: bool,
}

/// Amounts by resource.
type Amounts = BTreeMap<String, Amount>;

impl PodTracker {
    /// Returns a tracker without pods. The queue manager knows a change after `decision_latency`.
    pub(super) fn new(decision_latency: Duration) -> Self {
        Self {
            by_cluster: BTreeMap::new(),
            template_keys: BTreeMap::new(),
            cluster_of_pod: BTreeMap::new(),
            queued_at: BTreeMap::new(),
            decision_latency,
        }
    }

    /// Observes a change of a Job from `was`.
    pub(super) fn observe_batch_job(&mut self, was: Option<&Job>, job: &Job, now: Timestamp) {
        if was.is_some_and(|was| !names_queue(was)) && names_queue(job) {
            self.queued_at.insert(job.uid().unwrap_or_default(), now);
        }
    }

    /// Observes a change of a cluster from `was`. The pods that run when it comes into a queue may do so
    /// without quota until the queue manager has stopped them.
    pub(super) fn observe_cluster(&mut self, was: &RayCluster, cluster: &RayCluster, now: Timestamp) {
        let is_queued = |cluster: &RayCluster| cluster.labels().contains_key(QUEUE_NAME_LABEL);
        if is_queued(was) || !is_queued(cluster) {
            return;
        }
        let uid = cluster.uid().unwrap_or_default();
        for pod in self.by_cluster.get_mut(&uid).into_iter().flat_map(BTreeMap::values_mut) {
            pod.is_exempt = true;
        }
        self.queued_at.insert(uid, now);
    }

    /// Returns a tracker that knows only to which clusters pods belonged.
    pub(super) fn restarted(&self) -> Self {
        Self { cluster_of_pod: self.cluster_of_pod.clone(), ..Self::new(self.decision_latency) }
    }

    /// Lets the pods that request more than is reserved for their job run until the queue manager has
    /// stopped them.
    pub(super) fn exempt_uncovered(&mut self, state: &State) {
        let uncovered = |cluster: &&String| !self.check(state, job_uid_of_cluster(state, cluster).as_ref()).is_empty();
        let clusters: BTreeSet<String> = self.by_cluster.keys().filter(uncovered).cloned().collect();
        let uncovered = self.by_cluster.iter_mut().filter(|(cluster, _)| clusters.contains(*cluster));
        uncovered.flat_map(|(_, pods)| pods.values_mut()).for_each(|pod| pod.is_exempt = true);
    }

    /// Reports whether a pod that starts to run may do so without quota.
    fn is_exempt(&self, state: &State, uid: &str, pod: &Pod, now: Timestamp) -> bool {
        let was_queued_late = self.queued_at.get(uid).is_some_and(|at| *at + self.decision_latency >= now);
        if !is_of_batch_job(pod) {
            let is_queued = |cluster: &RayCluster| cluster.labels().contains_key(QUEUE_NAME_LABEL);
            return was_queued_late || state.cluster_with_uid(uid).is_some_and(|cluster| !is_queued(cluster));
        }
        let is_new = self.template_keys.get(uid).is_none_or(|pods| !pods.contains_key(&object_key(pod)));
        let job = state.batch_job_with_uid(uid);
        is_new && job.is_some_and(|job| !has_gated_template(job))
            || job.is_some_and(|job| !names_queue(job))
            || was_queued_late
    }

    /// Observes a pod. Returns the uid of the queued job that it belongs to, if any.
    pub(super) fn observe(&mut self, state: &State, pod: &Pod, gone: bool, now: Timestamp) -> Option<String> {
        let uid = pod.uid().unwrap_or_default();
        if let Some(cluster) = cluster_uid_of_pod(pod) {
            self.cluster_of_pod.insert(uid.clone(), cluster);
        }
        let cluster = self.cluster_of_pod.get(&uid).cloned().or_else(|| uid_of_named_cluster(state, pod))?;
        let is_exempt = self.is_exempt(state, &cluster, pod, now);
        let pods = self.by_cluster.entry(cluster.clone()).or_default();
        if gone || !is_runnable(pod) {
            pods.remove(&object_key(pod));
            if pods.is_empty() {
                self.by_cluster.remove(&cluster);
            }
        } else {
            let spec = pod.spec.clone().unwrap_or_default();
            let requests = pod_requests(&spec).expect("requests of a pod that the API server accepted");
            let requests = requests.iter().map(|(resource, amount)| (resource.to_owned(), amount)).collect();
            let pod_set = pod.labels().get(POD_SET).cloned();
            let was = pods.get(&object_key(pod)).map(|was| was.is_exempt);
            pods.insert(object_key(pod), RunnablePod { pod_set, requests, is_exempt: was.unwrap_or(is_exempt) });
        }
        let kinds = self.template_keys.entry(cluster.clone()).or_default();
        if gone {
            kinds.remove(&object_key(pod));
        } else {
            kinds.insert(object_key(pod), template_key(pod));
        }
        if kinds.is_empty() {
            self.template_keys.remove(&cluster);
        }
        job_uid_of_cluster(state, &cluster)
    }

    /// Checks that no group of the pod's cluster mixes pods of different templates, if its upgrade
    /// strategy is Recreate.
    pub(super) fn check_recreate(&self, state: &State, pod: &Pod) -> Vec<Violation> {
        let Some(cluster) = owner_uid(pod) else { return Vec::new() };
        let strategy =
            |cluster: &RayCluster| cluster.spec.upgrade_strategy.as_ref().and_then(|strategy| strategy.type_);
        if state.cluster_with_uid(&cluster).and_then(strategy) != Some(RayClusterUpgradeType::Recreate) {
            return Vec::new();
        }
        let Some(kinds) = self.template_keys.get(&cluster) else { return Vec::new() };
        let mut by_group: BTreeMap<&String, &TemplateKey> = BTreeMap::new();
        let two = kinds.values().filter(|made| *by_group.entry(&made.0).or_insert(made) != *made);
        two.map(|made| {
            let message = format!("cluster {cluster} has pods of different templates in group {}", made.0);
            Violation::new(Invariant::Physical, message)
        })
        .collect()
    }

    /// Checks that the pods of `job` request no more than is reserved, in total and per PodSet.
    pub(super) fn check(&self, state: &State, job: Option<&String>) -> Vec<Violation> {
        let Some(job) = job else { return Vec::new() };
        let over = |owner: &str, requested: Amounts, reserved: &Amounts| -> Vec<Violation> {
            let over = requested.into_iter().filter_map(|(resource, sum)| {
                let most = reserved.get(&resource).copied().unwrap_or_default();
                let (requested, reserved) = (sum.display(&resource), most.display(&resource));
                let what = format!("the pods of {owner} request {requested} of {resource}; {reserved} is reserved");
                (sum > most).then(|| Violation::new(Invariant::Physical, what))
            });
            over.collect()
        };
        let pods: Vec<&RunnablePod> = self.pods_of_job(state, job).filter(|pod| !pod.is_exempt).collect();
        let mut breaches = over(&format!("job {job}"), total_requests(pods.iter().copied()), &reserved_by(state, job));
        let named: BTreeSet<&String> = pods.iter().filter_map(|pod| pod.pod_set.as_ref()).collect();
        let by_set = reserved_by_pod_set(state, job);
        for name in named {
            let requested = total_requests(pods.iter().copied().filter(|pod| pod.pod_set.as_ref() == Some(name)));
            let reserved = by_set.get(name).cloned().unwrap_or_default();
            breaches.extend(over(&format!("PodSet {name} of job {job}"), requested, &reserved));
        }
        breaches
    }

    /// Returns the jobs whose reserved quota differs from the requests of their pods. Valid only
    /// after convergence.
    pub(super) fn reservation_mismatches(&self, state: &State) -> Vec<Violation> {
        let jobs: BTreeSet<String> =
            state.workloads.values().filter(|slice| holds_quota(slice)).filter_map(job_uid_of_slice).collect();
        let differs = jobs.into_iter().filter_map(|job| {
            let (requested, reserved) = (total_requests(self.pods_of_job(state, &job)), reserved_by(state, &job));
            let non_zero = |amounts: &Amounts| -> Amounts {
                amounts
                    .iter()
                    .filter(|(_, amount)| **amount > Amount::ZERO)
                    .map(|(name, amount)| (name.clone(), *amount))
                    .collect()
            };
            let (requested, reserved) = (non_zero(&requested), non_zero(&reserved));
            let what =
                format!("after convergence the pods of job {job} request {requested:?}, and {reserved:?} is reserved");
            (requested != reserved).then(|| Violation::new(Invariant::Physical, what))
        });
        differs.collect()
    }

    /// Returns the pods of a job.
    fn pods_of_job<'a>(&'a self, state: &'a State, job: &'a str) -> impl Iterator<Item = &'a RunnablePod> {
        let clusters = self
            .by_cluster
            .iter()
            .filter(move |(cluster, _)| job_uid_of_cluster(state, cluster).as_deref() == Some(job));
        clusters.flat_map(|(_, pods)| pods.values())
    }
}

/// Returns the sum of the requests of pods.
fn total_requests<'a>(pods: impl Iterator<Item = &'a RunnablePod>) -> Amounts {
    let mut requested = Amounts::new();
    for (resource, amount) in pods.flat_map(|pod| &pod.requests) {
        let sum = requested.entry(resource.clone()).or_default();
        *sum = sum.plus(*amount);
    }
    requested
}

/// Returns the quota that a job has reserved for each of its PodSets, by resource, summed over all
/// flavors: the maximum over a slice and the unfinished slices that it replaces.
fn reserved_by_pod_set(state: &State, job: &str) -> BTreeMap<String, Amounts> {
    let mut reserved: BTreeMap<String, Amounts> = BTreeMap::new();
    for slice in slices_of_job(state, job).filter(|slice| counts_toward_usage(state, slice)) {
        add_maximum(&mut reserved, std::iter::once(slice).chain(replaced_slices(state, slice)), reservation_by_pod_set);
    }
    reserved
}

/// Returns the quota that one slice has reserved for each of its PodSets, by resource.
fn reservation_by_pod_set(slice: &Workload) -> BTreeMap<String, Amounts> {
    let admission = slice.status.as_ref().and_then(|status| status.admission.as_ref());
    let assignments = admission.map(|admission| admission.pod_set_assignments.as_slice()).unwrap_or_default();
    let each = assignments.iter().map(|assignment| {
        let used = assignment.resource_usage.iter().map(|(resource, quantity)| {
            (resource.clone(), Amount::from_quantity(resource, quantity).expect("a quantity"))
        });
        (assignment.name.clone(), used.collect())
    });
    each.collect()
}

fn template_key(pod: &Pod) -> TemplateKey {
    let first = pod.spec.as_ref().and_then(|spec| spec.containers.first());
    let (image, resources) = first.map(|first| (first.image.clone(), first.resources.clone())).unwrap_or_default();
    (pod.labels().get("ray.io/group").cloned().unwrap_or_default(), image, resources)
}

fn is_finished_pod(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Reports whether a pod is neither finished nor gated.
pub fn is_runnable(pod: &Pod) -> bool {
    let gates = pod.spec.as_ref().and_then(|spec| spec.scheduling_gates.as_ref());
    !is_finished_pod(pod) && gates.is_none_or(Vec::is_empty)
}

/// Returns the uid of the cluster that a pod belongs to: that of its owner, since the name may have
/// been reused by another cluster. For a submitter pod it is the uid of the RayJob that it was
/// ungated for.
fn cluster_uid_of_pod(pod: &Pod) -> Option<String> {
    if is_of_batch_job(pod) {
        return job_uid_of_pod(pod);
    }
    pod.labels().get("ray.io/cluster")?;
    owner_uid(pod)
}

/// Returns the uid of the cluster that a pod names in its label.
fn uid_of_named_cluster(state: &State, pod: &Pod) -> Option<String> {
    let name = pod.labels().get("ray.io/cluster")?;
    state.ray_clusters.get(&format!("{}/{name}", pod.namespace().unwrap_or_default()))?.uid()
}

/// Returns the uid of the queued job that a cluster belongs to, or `None` for one without a queue.
fn job_uid_of_cluster(state: &State, cluster: &str) -> Option<String> {
    if let Some(known) = state.cluster_with_uid(cluster) {
        // Until its own slice is released, that covers a cluster that was queued before its owner.
        let has_slice = slices_of_job(state, cluster).any(|slice| holds_quota(slice) && mentions(slice, cluster));
        let job = || if has_slice { cluster.to_owned() } else { job_uid(state, known) };
        return known.labels().contains_key(QUEUE_NAME_LABEL).then(job);
    }
    if let Some(queued) = queued_batch_job(state, cluster) {
        return queued;
    }
    // The cluster was deleted but its pods may still exist: the job that reserved their quota must
    // still hold it.
    let covers = |slice: &&Workload| mentions(slice, cluster);
    // Try the Workloads owned by the uid itself first: a batch/v1 Job owns its Workload, and there
    // may be thousands of them.
    let slice = slices_of_job(state, cluster).find(covers).or_else(|| state.workloads.values().find(covers));
    slice.and_then(job_uid_of_slice)
}
