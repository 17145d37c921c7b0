//! I3: the pods of a queued job never request more than the job has reserved, in total and per
//! PodSet. If the upgrade strategy of a cluster is Recreate, the pods of a group never differ in
//! their template.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};
use kube::ResourceExt;
use sluice_api::kueue::Workload;
use sluice_api::quantity::Amount;
use sluice_api::ray::RayCluster;
use sluice_api::ray::options::RayClusterUpgradeType;
use sluice_queue::requests::pod_requests;

use super::{
    Breach, Invariant, QUEUE_NAME, add_largest, counts, holds_quota, job_uid, key, owner_uid, replaced_by, reserved_by,
    slices_of,
};
use crate::history::State;

/// Label with the PodSet that a pod is counted in.
const POD_SET: &str = "kueue.x-k8s.io/podset";

/// Pods by the uid of their cluster. Clusters without pods have no entry.
#[derive(Default)]
pub(super) struct Pods {
    /// The pods that may run.
    by_cluster: BTreeMap<String, BTreeMap<String, Running>>,
    /// Template key of every existing pod, including gated and finished ones.
    made_as: BTreeMap<String, BTreeMap<String, MadeAs>>,
}

/// Group of a pod, and image and resources of its first container.
type MadeAs = (String, Option<String>, Option<ResourceRequirements>);

/// A pod that may run.
struct Running {
    /// PodSet that the pod is counted in, from its label. Pods of other operators have none unless
    /// they were gated.
    pod_set: Option<String>,
    requests: Amounts,
}

/// Amounts by resource.
type Amounts = BTreeMap<String, Amount>;

impl Pods {
    /// Observes a pod. Returns the uid of the queued job that it belongs to, if any.
    pub(super) fn see(&mut self, state: &State, pod: &Pod, gone: bool) -> Option<String> {
        let cluster = cluster_of(state, pod)?;
        let pods = self.by_cluster.entry(cluster.clone()).or_default();
        if gone || !may_run(pod) {
            pods.remove(&key(pod));
            if pods.is_empty() {
                self.by_cluster.remove(&cluster);
            }
        } else {
            let spec = pod.spec.clone().unwrap_or_default();
            let requests = pod_requests(&spec).expect("requests of a pod that the API server accepted");
            let requests = requests.iter().map(|(resource, amount)| (resource.to_owned(), amount)).collect();
            pods.insert(key(pod), Running { pod_set: pod.labels().get(POD_SET).cloned(), requests });
        }
        let kinds = self.made_as.entry(cluster.clone()).or_default();
        if gone {
            kinds.remove(&key(pod));
        } else {
            kinds.insert(key(pod), made_as(pod));
        }
        if kinds.is_empty() {
            self.made_as.remove(&cluster);
        }
        job_of(state, &cluster)
    }

    /// Checks that no group of the pod's cluster mixes pods of different templates, if its upgrade
    /// strategy is Recreate.
    pub(super) fn check_renewal(&self, state: &State, pod: &Pod) -> Vec<Breach> {
        let Some(cluster) = owner_uid(pod) else { return Vec::new() };
        let strategy =
            |cluster: &RayCluster| cluster.spec.upgrade_strategy.as_ref().and_then(|strategy| strategy.type_);
        let is_recreated = state.ray_clusters.values().any(|known| {
            known.uid().as_ref() == Some(&cluster) && strategy(known) == Some(RayClusterUpgradeType::Recreate)
        });
        if !is_recreated {
            return Vec::new();
        }
        let Some(kinds) = self.made_as.get(&cluster) else { return Vec::new() };
        let mut by_group: BTreeMap<&String, &MadeAs> = BTreeMap::new();
        let two = kinds.values().filter(|made| *by_group.entry(&made.0).or_insert(made) != *made);
        two.map(|made| {
            let message = format!("cluster {cluster} has pods of different templates in group {}", made.0);
            Breach::of(Invariant::Physical, message)
        })
        .collect()
    }

    /// Checks that the pods of `job` request no more than is reserved, in total and per PodSet.
    pub(super) fn check(&self, state: &State, job: Option<&String>) -> Vec<Breach> {
        let Some(job) = job else { return Vec::new() };
        let over = |owner: &str, requested: Amounts, reserved: &Amounts| -> Vec<Breach> {
            let over = requested.into_iter().filter_map(|(resource, sum)| {
                let most = reserved.get(&resource).copied().unwrap_or_default();
                let (requested, reserved) = (sum.display(&resource), most.display(&resource));
                let what = format!("the pods of {owner} request {requested} of {resource}; {reserved} is reserved");
                (sum > most).then(|| Breach::of(Invariant::Physical, what))
            });
            over.collect()
        };
        let pods: Vec<&Running> = self.of(state, job).collect();
        let mut breaches = over(&format!("job {job}"), requested(pods.iter().copied()), &reserved_by(state, job));
        let named: BTreeSet<&String> = pods.iter().filter_map(|pod| pod.pod_set.as_ref()).collect();
        let by_set = reserved_by_pod_set(state, job);
        for name in named {
            let requested = requested(pods.iter().copied().filter(|pod| pod.pod_set.as_ref() == Some(name)));
            let reserved = by_set.get(name).cloned().unwrap_or_default();
            breaches.extend(over(&format!("PodSet {name} of job {job}"), requested, &reserved));
        }
        breaches
    }

    /// Returns the jobs whose reserved quota differs from the requests of their pods. Valid only
    /// after convergence.
    pub(super) fn inexact(&self, state: &State) -> Vec<Breach> {
        let jobs: BTreeSet<String> =
            state.workloads.values().filter(|slice| holds_quota(slice)).filter_map(owner_uid).collect();
        let differs = jobs.into_iter().filter_map(|job| {
            let (requested, reserved) = (requested(self.of(state, &job)), reserved_by(state, &job));
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
            (requested != reserved).then(|| Breach::of(Invariant::Physical, what))
        });
        differs.collect()
    }

    /// Returns the pods of a job.
    fn of<'a>(&'a self, state: &'a State, job: &'a str) -> impl Iterator<Item = &'a Running> {
        let clusters =
            self.by_cluster.iter().filter(move |(cluster, _)| job_of(state, cluster).as_deref() == Some(job));
        clusters.flat_map(|(_, pods)| pods.values())
    }
}

/// Returns the sum of the requests of pods.
fn requested<'a>(pods: impl Iterator<Item = &'a Running>) -> Amounts {
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
    for slice in slices_of(state, job).filter(|slice| counts(state, slice)) {
        add_largest(&mut reserved, std::iter::once(slice).chain(replaced_by(state, slice)), by_pod_set);
    }
    reserved
}

/// Returns the quota that one slice has reserved for each of its PodSets, by resource.
fn by_pod_set(slice: &Workload) -> BTreeMap<String, Amounts> {
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

fn made_as(pod: &Pod) -> MadeAs {
    let first = pod.spec.as_ref().and_then(|spec| spec.containers.first());
    let (image, resources) = first.map(|first| (first.image.clone(), first.resources.clone())).unwrap_or_default();
    (pod.labels().get("ray.io/group").cloned().unwrap_or_default(), image, resources)
}

fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Reports whether a pod is neither finished nor gated.
pub fn may_run(pod: &Pod) -> bool {
    let gates = pod.spec.as_ref().and_then(|spec| spec.scheduling_gates.as_ref());
    !has_ended(pod) && gates.is_none_or(|gates| gates.is_empty())
}

/// Returns the uid of the cluster that a pod belongs to: that of its owner, since the name may have
/// been reused by another cluster. For a submitter pod it is the uid of the RayJob that it was
/// ungated for.
fn cluster_of(state: &State, pod: &Pod) -> Option<String> {
    if let Some(job) = pod.labels().get("kueue.x-k8s.io/job-uid") {
        return Some(job.clone());
    }
    if pod.labels().contains_key("batch.kubernetes.io/job-name") {
        return owner_uid(pod);
    }
    let name = pod.labels().get("ray.io/cluster")?;
    let named = format!("{}/{name}", pod.namespace().unwrap_or_default());
    owner_uid(pod).or_else(|| state.ray_clusters.get(&named)?.uid())
}

/// Returns the uid of the queued job that a cluster belongs to, or `None` for one without a queue.
fn job_of(state: &State, cluster: &str) -> Option<String> {
    if let Some(cluster) = state.ray_clusters.values().find(|known| known.metadata.uid.as_deref() == Some(cluster)) {
        return cluster.labels().contains_key(QUEUE_NAME).then(|| job_uid(cluster));
    }
    // The cluster was deleted but its pods may still exist: the job that reserved their quota must
    // still hold it.
    let quoted = format!("\"{cluster}");
    let covers =
        |slice: &&Workload| slice.annotations().get("sluice.dev/slice").is_some_and(|record| record.contains(&quoted));
    // Try the Workloads owned by the uid itself first: a batch/v1 Job owns its Workload, and there
    // may be thousands of them.
    let slice = slices_of(state, cluster).find(covers).or_else(|| state.workloads.values().find(covers));
    slice.and_then(owner_uid)
}
