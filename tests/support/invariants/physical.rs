//! I3: the pods of a queued job never request more than the job has reserved, all together and PodSet by PodSet. And where the
//! pods of a cluster are made anew, those of one group are never of two kinds.

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

/// The label that says in which PodSet a pod is counted.
const POD_SET: &str = "kueue.x-k8s.io/podset";

/// The pods that may run, by the uid of the cluster that they belong to: of one that has none nothing is known.
#[derive(Default)]
pub(super) struct Pods {
    by_cluster: BTreeMap<String, BTreeMap<String, Running>>,
    /// What each pod is that is there, whether it may run, has ended or neither.
    made_as: BTreeMap<String, BTreeMap<String, MadeAs>>,
}

/// The group of a pod, and the image and the resources of its first container.
type MadeAs = (String, Option<String>, Option<ResourceRequirements>);

/// A pod that may run.
struct Running {
    /// The PodSet that it is counted in, if it says so. What other operators make doesn't, unless it had to wait.
    pod_set: Option<String>,
    requests: Amounts,
}

/// Amounts by resource.
type Amounts = BTreeMap<String, Amount>;

impl Pods {
    /// Takes in a pod; returns the queued job that it belongs to, if it belongs to one.
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
            let requests = pod_requests(&spec).expect("requests of a pod that the API server took");
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

    /// The groups of a pod's cluster that have pods of two kinds at once, though pods are made anew when the spec changes.
    pub(super) fn check_renewal(&self, state: &State, pod: &Pod) -> Vec<Breach> {
        let Some(cluster) = owner_uid(pod) else { return Vec::new() };
        let strategy =
            |cluster: &RayCluster| cluster.spec.upgrade_strategy.as_ref().and_then(|strategy| strategy.type_);
        let is_recreated = state.ray_clusters.values().any(|known| {
            known.uid().as_ref() == Some(&cluster) && strategy(known) == Some(RayClusterUpgradeType::Recreate)
        });
        let Some(kinds) = self.made_as.get(&cluster).filter(|_| is_recreated) else { return Vec::new() };
        let mut by_group: BTreeMap<&String, &MadeAs> = BTreeMap::new();
        let two = kinds.values().filter(|made| *by_group.entry(&made.0).or_insert(made) != *made);
        two.map(|made| {
            let what = format!("cluster {cluster} has pods of two kinds in group {}", made.0);
            Breach::of(Invariant::Physical, what)
        })
        .collect()
    }

    /// What the pods of `job` request beyond what it has reserved: all of them, and those of each PodSet.
    pub(super) fn check(&self, state: &State, job: Option<&String>) -> Vec<Breach> {
        let Some(job) = job else { return Vec::new() };
        let over = |whose: &str, requested: Amounts, reserved: &Amounts| -> Vec<Breach> {
            let over = requested.into_iter().filter_map(|(resource, sum)| {
                let most = reserved.get(&resource).copied().unwrap_or_default();
                let (said, reserved) = (sum.display(&resource), most.display(&resource));
                let what = format!("the pods of {whose} request {said} of {resource}; {reserved} is reserved");
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

    /// The jobs of which, now that all is quiet, not exactly that is reserved which their pods request.
    pub(super) fn inexact(&self, state: &State) -> Vec<Breach> {
        let jobs: BTreeSet<String> =
            state.workloads.values().filter(|slice| holds_quota(slice)).filter_map(owner_uid).collect();
        let differs = jobs.into_iter().filter_map(|job| {
            let (requested, reserved) = (requested(self.of(state, &job)), reserved_by(state, &job));
            let something = |amounts: &Amounts| -> Amounts {
                amounts
                    .iter()
                    .filter(|(_, amount)| **amount > Amount::ZERO)
                    .map(|(name, amount)| (name.clone(), *amount))
                    .collect()
            };
            let (requested, reserved) = (something(&requested), something(&reserved));
            let what = format!("at rest the pods of job {job} request {requested:?}, and {reserved:?} is reserved");
            (requested != reserved).then(|| Breach::of(Invariant::Physical, what))
        });
        differs.collect()
    }

    /// The pods of a job.
    fn of<'a>(&'a self, state: &'a State, job: &'a str) -> impl Iterator<Item = &'a Running> {
        let clusters =
            self.by_cluster.iter().filter(move |(cluster, _)| job_of(state, cluster).as_deref() == Some(job));
        clusters.flat_map(|(_, pods)| pods.values())
    }
}

/// What pods request together.
fn requested<'a>(pods: impl Iterator<Item = &'a Running>) -> Amounts {
    let mut requested = Amounts::new();
    for (resource, amount) in pods.flat_map(|pod| &pod.requests) {
        let sum = requested.entry(resource.clone()).or_default();
        *sum = sum.plus(*amount);
    }
    requested
}

/// What a job has reserved for each of its PodSets, by resource, over all flavors: the most that a slice which holds quota has for
/// it, or one whose place that has taken and which is not over yet.
fn reserved_by_pod_set(state: &State, job: &str) -> BTreeMap<String, Amounts> {
    let mut reserved: BTreeMap<String, Amounts> = BTreeMap::new();
    for slice in slices_of(state, job).filter(|slice| counts(state, slice)) {
        add_largest(&mut reserved, std::iter::once(slice).chain(replaced_by(state, slice)), by_pod_set);
    }
    reserved
}

/// What one slice holds for each of its PodSets, by resource.
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

/// A pod that runs, or that the scheduler may place.
pub fn may_run(pod: &Pod) -> bool {
    let gates = pod.spec.as_ref().and_then(|spec| spec.scheduling_gates.as_ref());
    !has_ended(pod) && gates.is_none_or(|gates| gates.is_empty())
}

/// The uid of the cluster that a pod belongs to: that of its owner, which need not be the cluster that has the name now. Or that of
/// the RayJob that it was let go for.
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

/// The uid of the queued job that a cluster belongs to; `None` for one that names no queue.
fn job_of(state: &State, cluster: &str) -> Option<String> {
    if let Some(cluster) = state.ray_clusters.values().find(|known| known.metadata.uid.as_deref() == Some(cluster)) {
        return cluster.labels().contains_key(QUEUE_NAME).then(|| job_uid(cluster));
    }
    // The cluster is gone and its pods may not be: whoever reserved quota for it still has to hold it.
    let quoted = format!("\"{cluster}");
    let pays =
        |slice: &&Workload| slice.annotations().get("sluice.dev/slice").is_some_and(|record| record.contains(&quoted));
    // A Job pays for itself, and there may be thousands of them.
    let paid = slices_of(state, cluster).find(pays).or_else(|| state.workloads.values().find(pays));
    paid.and_then(owner_uid)
}
