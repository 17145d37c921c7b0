//! I3: the pods of a queued job never request more than the job has reserved.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use sluice::api::quantity::Amount;
use sluice::queue::requests::pod_requests;

use super::super::history::State;
use super::{Breach, Invariant, QUEUE_NAME, job_uid, key, owner_uid, reserved_by};

/// The pods that may run, by the uid of the cluster that they belong to: what each requests.
#[derive(Default)]
pub(super) struct Pods {
    by_cluster: BTreeMap<String, BTreeMap<String, BTreeMap<String, Amount>>>,
}

impl Pods {
    /// Takes in a pod; returns the queued job that it belongs to, if it belongs to one.
    pub(super) fn see(&mut self, state: &State, pod: &Pod, gone: bool) -> Option<String> {
        let cluster = cluster_of(state, pod)?;
        let pods = self.by_cluster.entry(cluster.clone()).or_default();
        if gone || !may_run(pod) {
            pods.remove(&key(pod));
        } else {
            let spec = pod.spec.clone().unwrap_or_default();
            let requests = pod_requests(&spec).expect("requests of a pod that the API server took");
            pods.insert(key(pod), requests.iter().map(|(resource, amount)| (resource.to_owned(), amount)).collect());
        }
        job_of(state, &cluster)
    }

    /// What the pods of `job` request beyond what it has reserved.
    pub(super) fn check(&self, state: &State, job: Option<&String>) -> Vec<Breach> {
        let Some(job) = job else { return Vec::new() };
        let mut requested: BTreeMap<&str, Amount> = BTreeMap::new();
        let clusters = self.by_cluster.iter().filter(|(cluster, _)| job_of(state, cluster).as_ref() == Some(job));
        for (resource, amount) in clusters.flat_map(|(_, pods)| pods.values()).flatten() {
            let sum = requested.entry(resource).or_default();
            *sum = sum.plus(*amount);
        }
        let reserved = reserved_by(state, job);
        let over = requested.into_iter().filter_map(|(resource, sum)| {
            let most = reserved.get(resource).copied().unwrap_or_default();
            let (said, reserved) = (sum.display(resource), most.display(resource));
            let what = format!("the pods of job {job} request {said} of {resource}; {reserved} is reserved");
            (sum > most).then(|| Breach::of(Invariant::Physical, what))
        });
        over.collect()
    }
}

/// A pod that runs, or that the scheduler may place.
fn may_run(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let gates = pod.spec.as_ref().and_then(|spec| spec.scheduling_gates.as_ref());
    !matches!(phase, Some("Succeeded" | "Failed")) && gates.is_none_or(|gates| gates.is_empty())
}

/// The uid of the cluster that a pod belongs to: that of its owner, which need not be the cluster that has the name now.
fn cluster_of(state: &State, pod: &Pod) -> Option<String> {
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
    let quoted = format!("\"{cluster}\"");
    let pays = |record: &String| record.contains(&quoted);
    let paid = state.workloads.values().find(|slice| slice.annotations().get("sluice.dev/slice").is_some_and(pays));
    paid.and_then(owner_uid)
}
