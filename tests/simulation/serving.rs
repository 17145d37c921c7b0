//! I6: from the first ready replica until the service is deleted, an upgrade fails no request.
//!
//! Requests are answered by the pods that the serve Service selects. What nodes do to pods is nobody's fault here; what Sluice
//! does is: sending requests to a cluster that has nobody to answer them, and taking away the cluster that answers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::ResourceExt;
use sluice::api::condition::is_true;
use sluice::api::ray::{RayCluster, RayService};
use sluice::jobframework::record::Record;
use sluice::rayservice::status::SUSPENDING;

use crate::coverage::serving_cluster;
use crate::support::history::{Change, Object, State};
use crate::support::invariants::{
    Breach, Invariant, QUEUE_NAME, holds_quota, is_finished, is_open, key, owner_uid, slices_of,
};

/// Who answers requests.
pub struct Serving {
    /// For so long a decision may rest on what has changed meanwhile.
    patience: Duration,
    /// The pods that answer, by the cluster that they belong to.
    ready: BTreeMap<String, BTreeSet<String>>,
    /// When a cluster lost the last of them.
    left: BTreeMap<String, Timestamp>,
    /// The cluster that each serve Service sends requests to, by the Service's key.
    routed: BTreeMap<String, String>,
    /// Clusters that were closed to make place for others, and not opened again since.
    made_place: BTreeSet<String>,
}

impl Serving {
    /// Nobody answers yet. A decision may rest for so long on what has changed meanwhile.
    pub fn new(patience: Duration) -> Self {
        Self {
            patience,
            ready: BTreeMap::new(),
            left: BTreeMap::new(),
            routed: BTreeMap::new(),
            made_place: BTreeSet::new(),
        }
    }

    /// Takes in a change that `state` has in it.
    pub fn see(&mut self, state: &State, change: &Change) -> Vec<Breach> {
        match &change.object {
            Object::Pod(pod) => {
                self.pod(pod, change);
                Vec::new()
            }
            Object::Service(service) if service.name_any().ends_with("-serve-svc") => {
                self.service(state, service, change)
            }
            Object::RayCluster(cluster) => self.cluster(state, cluster, change.gone),
            _ => Vec::new(),
        }
    }

    fn pod(&mut self, pod: &Pod, change: &Change) {
        let Some(cluster) = pod.labels().get("ray.io/cluster") else { return };
        let cluster = format!("{}/{cluster}", pod.namespace().unwrap_or_default());
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        let ready =
            conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True");
        let serves = pod.labels().get("ray.io/serve").is_some_and(|serves| serves == "true");
        let pods = self.ready.entry(cluster.clone()).or_default();
        if ready && serves && !change.gone && pod.metadata.deletion_timestamp.is_none() {
            pods.insert(key(pod));
        } else if pods.remove(&key(pod)) && pods.is_empty() {
            self.left.insert(cluster, change.heard);
        }
    }

    fn answers(&self, cluster: &str) -> bool {
        self.ready.get(cluster).is_some_and(|pods| !pods.is_empty())
    }

    /// Whether it has answered so lately that who sends requests to it may not know better.
    fn answered(&self, cluster: &str, now: Timestamp) -> bool {
        self.left.get(cluster).is_some_and(|left| left.duration_until(now).unsigned_abs() <= self.patience)
    }

    /// Requests are never sent away from who answers to who doesn't.
    fn service(&mut self, state: &State, service: &Service, change: &Change) -> Vec<Breach> {
        let key = key(service);
        let cluster = service.spec.as_ref().and_then(|spec| spec.selector.as_ref()?.get("ray.io/cluster").cloned());
        let Some(cluster) = cluster.filter(|_| !change.gone) else {
            self.routed.remove(&key);
            return Vec::new();
        };
        let cluster = format!("{}/{cluster}", service.namespace().unwrap_or_default());
        let was = self.routed.insert(key.clone(), cluster.clone());
        let Some(was) = was.filter(|was| *was != cluster) else { return Vec::new() };
        let stays =
            state.ray_clusters.get(&was).is_some_and(|was| was.metadata.deletion_timestamp.is_none() && is_open(was));
        if !stays || !self.answers(&was) || self.answers(&cluster) || self.answered(&cluster, change.heard) {
            return Vec::new();
        }
        let what = format!("Service {key} sends requests to {cluster}, where nobody answers, and no longer to {was}");
        vec![Breach::of(Invariant::Serving, what)]
    }

    /// The cluster that answers is not taken away while its service is to serve and holds its quota. One that was closed for another,
    /// and is wanted back, is not taken away anew by what is said of it until it is open again.
    fn cluster(&mut self, state: &State, cluster: &RayCluster, gone: bool) -> Vec<Breach> {
        let cluster_key = key(cluster);
        let going = gone || cluster.metadata.deletion_timestamp.is_some();
        let taken = going || !is_open(cluster);
        if is_open(cluster) || gone {
            self.made_place.remove(&cluster_key);
        }
        if !taken || !self.answers(&cluster_key) {
            return Vec::new();
        }
        let owner = owner_uid(cluster).unwrap_or_default();
        let service = state.ray_services.values().find(|service| service.uid().as_ref() == Some(&owner));
        let Some(service) = service.filter(|service| is_to_serve(state, service)) else { return Vec::new() };
        if makes_place(state, &owner, cluster) {
            self.made_place.insert(cluster_key);
            return Vec::new();
        }
        if self.made_place.contains(&cluster_key) && !going {
            return Vec::new();
        }
        if serving_cluster(state, service).as_ref() != Some(&cluster.name_any()) {
            return Vec::new();
        }
        let what = format!("{cluster_key} answers requests of RayService {}, and is taken away", key(service));
        vec![Breach::of(Invariant::Serving, what)]
    }
}

/// Whether a cluster stops for one that has quota already, as the owner of the service has chosen.
fn makes_place(state: &State, job: &str, cluster: &RayCluster) -> bool {
    let uid = cluster.uid().unwrap_or_default();
    let mut records = slices_of(state, job).filter(|slice| holds_quota(slice)).filter_map(Record::of);
    records.any(|record| record.instead_of.iter().any(|displaced| displaced.uid == uid))
}

/// Whether nothing has been asked of the service, or taken from it, that ends its serving.
fn is_to_serve(state: &State, service: &RayService) -> bool {
    let job = service.uid().unwrap_or_default();
    let evicted = slices_of(state, &job).any(|slice| {
        let conditions = slice.status.clone().unwrap_or_default().conditions;
        is_true(&conditions, "Evicted") || slice.metadata.deletion_timestamp.is_some()
    });
    // One that was put into a queue while it ran (which the policies refuse, where they are) stops until there is quota.
    let queued = service.labels().contains_key(QUEUE_NAME);
    let joined = queued && slices_of(state, &job).all(|slice| !holds_quota(slice) && !is_finished(slice));
    // A suspension that has begun goes to its end, whatever is asked for meanwhile.
    let conditions = service.status.clone().unwrap_or_default().conditions;
    let suspended = service.spec.suspend == Some(true) || is_true(&conditions, SUSPENDING);
    service.metadata.deletion_timestamp.is_none() && !suspended && !evicted && !joined
}
