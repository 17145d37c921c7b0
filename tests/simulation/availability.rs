//! I6: from the first ready replica until the deletion of the service, an upgrade fails no request.
//!
//! The pods that the serve Service selects answer the requests. Failures of nodes and pods do not
//! count. Two actions of Sluice do: routing requests to a cluster without ready replicas, and
//! removing the cluster that serves.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::ResourceExt;
use sluice_api::condition::is_true;
use sluice_api::gateway_api::HTTPRoute;
use sluice_api::ray::{RayCluster, RayService};
use sluice_jobframework::slice_record::SliceRecord;
use sluice_rayservice::incremental::http_route::backend_refs;
use sluice_rayservice::status::SUSPENDING;

use crate::coverage::serving_cluster;
use sluice_testkit::history::{Change, Object, State};
use sluice_testkit::invariants::{
    Invariant, QUEUE_NAME_LABEL, Violation, holds_quota, is_finished, is_unsuspended, object_key, owner_uid,
    slices_of_job,
};

/// Checks invariant I6.
pub struct AvailabilityChecker {
    /// Maximum age of the state that a decision may be based on.
    decision_latency: Duration,
    /// Ready serve pods, by cluster.
    ready_pods: BTreeMap<String, BTreeSet<String>>,
    /// Time at which a cluster lost its last ready serve pod.
    unready_since: BTreeMap<String, Timestamp>,
    /// Cluster that each serve Service selects, by key of the Service.
    service_backends: BTreeMap<String, String>,
    /// Number of ready workers of a cluster, and the time at which it last lost one.
    ready_workers: BTreeMap<String, (usize, Option<Timestamp>)>,
    /// Traffic weight of each cluster in an HTTPRoute, in percent.
    traffic_weights: BTreeMap<String, i32>,
    /// Clusters that each HTTPRoute last routed to, by key of the route.
    route_backends: BTreeMap<String, BTreeSet<String>>,
    /// Clusters that were suspended in favor of another cluster and not resumed since.
    displaced: BTreeSet<String>,
}

impl AvailabilityChecker {
    /// Returns a checker that has seen no pod. `patience` is the maximum age of the state behind a
    /// decision.
    pub fn new(patience: Duration) -> Self {
        Self {
            decision_latency: patience,
            ready_pods: BTreeMap::new(),
            unready_since: BTreeMap::new(),
            service_backends: BTreeMap::new(),
            ready_workers: BTreeMap::new(),
            traffic_weights: BTreeMap::new(),
            route_backends: BTreeMap::new(),
            displaced: BTreeSet::new(),
        }
    }

    /// Checks a change that `state` already contains.
    pub fn observe(&mut self, state: &State, change: &Change) -> Vec<Violation> {
        match &change.object {
            Object::Pod(pod) => {
                self.observe_pod(pod, change);
                Vec::new()
            }
            Object::Service(service) if is_serve_service(service) => self.check_service(state, service, change),
            Object::HTTPRoute(route) => self.check_route(state, route, change),
            Object::RayCluster(cluster) => self.check_cluster(state, cluster, change.deleted),
            _ => Vec::new(),
        }
    }

    fn observe_pod(&mut self, pod: &Pod, change: &Change) {
        let Some(cluster) = pod.labels().get("ray.io/cluster") else { return };
        let cluster = format!("{}/{cluster}", pod.namespace().unwrap_or_default());
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        let ready =
            conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True");
        let serves = pod.labels().get("ray.io/serve").is_some_and(|serves| serves == "true");
        let pods = self.ready_pods.entry(cluster.clone()).or_default();
        let before = pods.len();
        if ready && serves && !change.deleted && pod.metadata.deletion_timestamp.is_none() {
            pods.insert(object_key(pod));
        } else if pods.remove(&object_key(pod)) && pods.is_empty() {
            self.unready_since.insert(cluster.clone(), change.observed_at);
        }
        let (more, fewer) = (pods.len() > before, pods.len() < before);
        if pod.labels().get("ray.io/node-type").is_some_and(|kind| kind == "worker") {
            let (count, lost) = self.ready_workers.entry(cluster).or_default();
            *count = *count + usize::from(more) - usize::from(fewer);
            *lost = if fewer { Some(change.observed_at) } else { *lost };
        }
    }

    fn is_serving(&self, cluster: &str) -> bool {
        self.ready_pods.get(cluster).is_some_and(|pods| !pods.is_empty())
    }

    /// True if a cluster lost its last ready pod so recently that the decision to route to it may
    /// predate that.
    fn served_recently(&self, cluster: &str, now: Timestamp) -> bool {
        self.unready_since
            .get(cluster)
            .is_some_and(|left| left.duration_until(now).unsigned_abs() <= self.decision_latency)
    }

    /// Checks that a serve Service does not move from a cluster that serves to one that does not.
    fn check_service(&mut self, state: &State, service: &Service, change: &Change) -> Vec<Violation> {
        let key = object_key(service);
        let cluster = service.spec.as_ref().and_then(|spec| spec.selector.as_ref()?.get("ray.io/cluster").cloned());
        let Some(cluster) = cluster.filter(|_| !change.deleted) else {
            self.service_backends.remove(&key);
            return Vec::new();
        };
        let cluster = format!("{}/{cluster}", service.namespace().unwrap_or_default());
        let was = self.service_backends.insert(key.clone(), cluster.clone());
        let Some(was) = was.filter(|was| *was != cluster) else { return Vec::new() };
        let stays = state
            .ray_clusters
            .get(&was)
            .is_some_and(|was| was.metadata.deletion_timestamp.is_none() && is_unsuspended(was));
        if !stays
            || !self.is_serving(&was)
            || self.is_serving(&cluster)
            || self.served_recently(&cluster, change.observed_at)
        {
            return Vec::new();
        }
        let what = format!("Service {key} was moved from {was} to {cluster}, which has no ready replica");
        vec![Violation::new(Invariant::Serving, what)]
    }

    /// Checks that no cluster gets more traffic than its workers can serve, at one replica per
    /// worker.
    fn check_route(&mut self, state: &State, route: &HTTPRoute, change: &Change) -> Vec<Violation> {
        let namespace = route.namespace().unwrap_or_default();
        self.forget_removed_backends(state, route, change.deleted);
        let mut found = Vec::new();
        for backend in backend_refs(route).filter(|_| !change.deleted) {
            let Some(cluster) = backend.name.strip_suffix("-serve-svc") else { continue };
            let cluster = format!("{namespace}/{cluster}");
            let share = backend.weight.unwrap_or(1);
            let was = self.traffic_weights.insert(cluster.clone(), share).unwrap_or(0);
            let needed = required_replicas(state, &cluster, share);
            let (workers, lost) = self.ready_workers.get(&cluster).copied().unwrap_or_default();
            let lost_recently = lost
                .is_some_and(|lost| lost.duration_until(change.observed_at).unsigned_abs() <= self.decision_latency);
            // A cluster gets all traffic, whatever its capacity, when the other one cannot serve.
            if share > was && workers < needed && !lost_recently && share < 100 {
                let what = format!("{cluster} gets {share}% of the traffic with {workers} of {needed} workers ready");
                found.push(Violation::new(Invariant::Serving, what));
            }
        }
        found
    }

    /// Forgets the weights of clusters that a route no longer routes to. A route that its owner
    /// rewrote, so that it routes to none of the clusters, keeps them: Sluice will restore the
    /// backends.
    fn forget_removed_backends(&mut self, state: &State, route: &HTTPRoute, gone: bool) {
        let namespace = route.namespace().unwrap_or_default();
        let clusters = backend_refs(route).filter_map(|backend| backend.name.strip_suffix("-serve-svc"));
        let clusters = clusters.map(|cluster| format!("{namespace}/{cluster}"));
        let now: BTreeSet<String> = clusters.filter(|cluster| !state.ray_services.contains_key(cluster)).collect();
        if now.is_empty() && !gone {
            return;
        }
        let before = self.route_backends.insert(object_key(route), now.clone()).unwrap_or_default();
        for cluster in before.difference(&now) {
            self.traffic_weights.remove(cluster);
        }
    }

    /// Checks that the cluster that serves is not removed while its service must serve and holds
    /// quota. A cluster that was suspended in favor of another does not count again until it is
    /// resumed.
    fn check_cluster(&mut self, state: &State, cluster: &RayCluster, gone: bool) -> Vec<Violation> {
        let cluster_key = object_key(cluster);
        let terminating = gone || cluster.metadata.deletion_timestamp.is_some();
        let removed = terminating || !is_unsuspended(cluster);
        if is_unsuspended(cluster) || gone {
            self.displaced.remove(&cluster_key);
        }
        if !removed || !self.is_serving(&cluster_key) {
            return Vec::new();
        }
        let owner = owner_uid(cluster).unwrap_or_default();
        let service = state.ray_services.values().find(|service| service.uid().as_ref() == Some(&owner));
        let Some(service) = service.filter(|service| must_serve(state, service)) else { return Vec::new() };
        if is_displaced(state, &owner, cluster) {
            self.displaced.insert(cluster_key);
            return Vec::new();
        }
        if self.displaced.contains(&cluster_key) && !terminating {
            return Vec::new();
        }
        let has_share = self.traffic_weights.get(&cluster_key).is_some_and(|share| *share > 0);
        if serving_cluster(state, service).as_ref() != Some(&cluster.name_any()) && !has_share {
            return Vec::new();
        }
        let what = format!("{cluster_key} serves RayService {} and was removed", object_key(service));
        vec![Violation::new(Invariant::Serving, what)]
    }
}

/// Returns the number of replicas that a cluster needs for `share` percent of the traffic, at most
/// those of its capacity.
fn required_replicas(state: &State, cluster: &str, share: i32) -> usize {
    let Some(cluster) = state.ray_clusters.get(cluster) else { return 0 };
    let owner = owner_uid(cluster).unwrap_or_default();
    let Some(service) = state.ray_services.values().find(|service| service.uid().as_ref() == Some(&owner)) else {
        return 0;
    };
    let config = service.spec.serve_config_v2.as_deref().unwrap_or_default();
    let config: serde_json::Value = serde_json::from_str(config).unwrap_or_default();
    let replicas = config.pointer("/applications/0/deployments/0/num_replicas").and_then(serde_json::Value::as_f64);
    let status = service.status.clone().unwrap_or_default();
    let entries = [status.active_service_status, status.pending_service_status];
    let entry = entries.into_iter().flatten().find(|entry| entry.ray_cluster_name == Some(cluster.name_any()));
    let capacity = entry.and_then(|entry| entry.target_capacity).unwrap_or(100);
    let of = |percent: i32| replicas.unwrap_or(0.0) * f64::from(percent) / 100.0;
    (of(share).ceil() as usize).min((of(capacity).round() as usize).max(1))
}

/// True if a Service is the serve Service of a RayService, not that of one of its clusters.
pub fn is_serve_service(service: &Service) -> bool {
    let of_service = service.owner_references().iter().any(|owner| owner.kind == "RayService");
    service.name_any().ends_with("-serve-svc") && of_service
}

/// True if a cluster is replaced by one that holds quota, by the Recreate strategy of the service.
fn is_displaced(state: &State, job: &str, cluster: &RayCluster) -> bool {
    let uid = cluster.uid().unwrap_or_default();
    let mut records =
        slices_of_job(state, job).filter(|slice| holds_quota(slice)).filter_map(SliceRecord::from_workload);
    records.any(|record| record.displaces.iter().any(|displaced| displaced.uid == uid))
}

/// True unless the service is suspended, deleted or evicted.
fn must_serve(state: &State, service: &RayService) -> bool {
    let job = service.uid().unwrap_or_default();
    let evicted = slices_of_job(state, &job).any(|slice| {
        let conditions = slice.status.clone().unwrap_or_default().conditions;
        is_true(&conditions, "Evicted") || slice.metadata.deletion_timestamp.is_some()
    });
    // A running service that is moved into a queue (admission policies deny that) stops until quota
    // is reserved.
    let queued = service.labels().contains_key(QUEUE_NAME_LABEL);
    let joined = queued && slices_of_job(state, &job).all(|slice| !holds_quota(slice) && !is_finished(slice));
    // A suspension that has started completes, even if `spec.suspend` is reset.
    let conditions = service.status.clone().unwrap_or_default().conditions;
    let suspended = service.spec.suspend == Some(true) || is_true(&conditions, SUSPENDING);
    service.metadata.deletion_timestamp.is_none() && !suspended && !evicted && !joined
}
