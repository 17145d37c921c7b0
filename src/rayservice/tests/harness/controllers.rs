//! Simulated controllers: the RayCluster operator, those of Kubernetes, and that of the Gateway.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube_core::ResourceExt;
use serde_json::{Value, json};

use super::Harness;
use super::dashboard::replicas_at_capacity;
use super::objects::head_pod;
use crate::incremental::http_route::route_name;
use sluice_api::condition;
use sluice_api::ray::{RayCluster, names};
use sluice_raycluster::groups::desired_replicas;

/// Worker group whose workers are simulated.
const WORKER_GROUP: &str = "small";

/// A worker pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FakeWorker {
    name: String,
    pub(super) ip: String,
    pub(super) is_terminating: bool,
}

impl Harness {
    /// Simulates the RayCluster operator and the Kubernetes controllers, and checks that requests
    /// go only to ready clusters.
    pub(super) fn run_controllers(&mut self) {
        self.run_gateway_controller();
        for cluster in self.decoded::<RayCluster>("RayCluster") {
            self.run_worker_controller(&cluster);
            let (name, now) = (cluster.name_any(), self.now);
            let pod = ("Pod".to_owned(), format!("{name}-head"));
            let wants_pods = cluster.metadata.deletion_timestamp.is_none() && cluster.spec.suspend != Some(true);
            if wants_pods && self.pods_start && !self.objects.contains_key(&pod) {
                self.create("Pod", head_pod(&cluster));
            }
            if !wants_pods && !self.pods_stay_terminating {
                self.objects.remove(&pod);
                self.dashboards.remove(&cluster.uid().unwrap_or_default());
            }
            let has_head = self.objects.contains_key(&pod);
            if cluster.metadata.deletion_timestamp.is_some() && !has_head {
                self.objects.remove(&("RayCluster".to_owned(), name));
                continue;
            }
            let conditions = cluster.conditions();
            if condition::is_true(conditions, names::HEAD_POD_READY) != has_head || conditions.is_empty() {
                let ready = json!({
                    "type": names::HEAD_POD_READY, "status": if has_head { "True" } else { "False" },
                    "reason": if has_head { "HeadPodRunningAndReady" } else { "HeadPodNotFound" },
                    "message": "", "lastTransitionTime": condition::whole_seconds(now),
                });
                let workers = i32::from(has_head && self.has_workers);
                let status = json!({"status": {"conditions": [ready], "readyWorkerReplicas": workers}});
                self.patch(&("RayCluster".into(), name), &status);
            }
        }
        if let Some(cluster) = self.selected_cluster().filter(|cluster| self.served_by.last() != Some(cluster)) {
            let uid = self.uid_of(&cluster).expect("an existing cluster");
            assert!(
                self.dashboards.get(&uid).is_some_and(|serve| serve.is_running(self)),
                "{cluster} is not ready for requests"
            );
            let has_endpoint = self
                .serve_endpoint_slices()
                .iter()
                .flat_map(|slice| slice.endpoints.iter().flatten())
                .any(|endpoint| endpoint.conditions.as_ref().and_then(|conditions| conditions.ready) == Some(true));
            assert!(has_endpoint, "{cluster} has no ready endpoint");
            if let Some(before) = self.served_by.last().and_then(|before| self.uid_of(before)) {
                self.stopped_serving_at.insert(before, self.now);
            }
            self.stopped_serving_at.remove(&uid);
            self.served_by.push(cluster);
        }
    }

    /// Sets the status of Gateways and routes as a Gateway controller does.
    pub(super) fn run_gateway_controller(&mut self) {
        if !self.has_gateway_controller {
            return;
        }
        for (kind, names) in [("Gateway", ["Accepted", "Programmed"]), ("HTTPRoute", ["Accepted", "ResolvedRefs"])] {
            for name in self.object_names(kind) {
                let object = self.object(kind, &name).expect("it is there").clone();
                let generation = &object["metadata"]["generation"];
                let condition = |of: &str| {
                    json!({"type": of, "status": "True", "reason": of, "message": "", "observedGeneration": generation,
                           "lastTransitionTime": "2026-01-01T00:00:00Z"})
                };
                let conditions: Vec<Value> = names.iter().map(|of| condition(of)).collect();
                let status = match kind {
                    "Gateway" => json!({"conditions": conditions}),
                    _ => {
                        let parents = object["spec"]["parentRefs"].as_array().cloned().unwrap_or_default();
                        let statuses = parents.into_iter().map(
                            |parent| json!({"parentRef": parent, "controllerName": "a", "conditions": conditions}),
                        );
                        json!({"parents": statuses.collect::<Vec<_>>()})
                    }
                };
                if object["status"] != status {
                    self.patch(&(kind.to_owned(), name), &json!({"status": status}));
                }
            }
        }
        if self.object("GatewayClass", "traefik").is_none() {
            let class = json!({"metadata": {"name": "traefik"}, "spec": {"controllerName": "a"}});
            self.create("GatewayClass", class);
        }
    }

    /// Creates and deletes workers to match their group.
    pub(super) fn run_worker_controller(&mut self, cluster: &RayCluster) {
        let runs =
            cluster.metadata.deletion_timestamp.is_none() && cluster.spec.suspend != Some(true) && self.pods_start;
        let group = cluster.spec.worker_group_specs.iter().find(|group| group.group_name == WORKER_GROUP);
        let wanted = group.filter(|_| runs).map_or(0, |group| u32::try_from(desired_replicas(group)).unwrap_or(0));
        let named = group.and_then(|group| group.scale_strategy.as_ref()).map(|strategy| &strategy.workers_to_delete);
        let workers = self.worker_pods.entry(cluster.name_any()).or_default();
        for worker in workers.iter_mut() {
            worker.is_terminating |= !runs || named.is_some_and(|named| named.contains(&worker.name));
        }
        let staying = workers.iter().filter(|worker| !worker.is_terminating).count();
        let surplus = staying.saturating_sub(wanted as usize);
        workers
            .iter_mut()
            .rev()
            .filter(|worker| !worker.is_terminating)
            .take(surplus)
            .for_each(|worker| worker.is_terminating = true);
        if !self.workers_stay_terminating {
            let dashboard = cluster.uid().and_then(|uid| self.dashboards.get(&uid)).filter(|_| runs);
            let holds =
                |worker: &FakeWorker| dashboard.is_some_and(|dashboard| dashboard.locations.contains(&worker.ip));
            self.deleted_while_occupied
                .extend(workers.extract_if(.., |worker| worker.is_terminating).filter(holds).map(|worker| worker.name));
        }
        while workers.len() < wanted as usize {
            self.workers_created += 1;
            let (name, ip) = (
                format!("{}-small-{}", cluster.name_any(), self.workers_created),
                format!("10.1.0.{}", self.workers_created),
            );
            workers.push(FakeWorker { name, ip, is_terminating: false });
        }
    }

    /// Returns the worker pods by cluster name.
    pub(super) fn worker_pods_by_cluster(&self) -> BTreeMap<String, Vec<Pod>> {
        let pod = |worker: &FakeWorker| {
            let deletion_timestamp = worker.is_terminating.then_some(self.now);
            let pod = json!({
                "metadata": {"name": worker.name, "labels": {(names::GROUP_LABEL): WORKER_GROUP}, "deletionTimestamp": deletion_timestamp},
                "status": {"phase": "Running", "podIP": worker.ip, "conditions": [{"type": "Ready", "status": "True"}]},
            });
            serde_json::from_value(pod).expect("a pod")
        };
        self.worker_pods.iter().map(|(cluster, workers)| (cluster.clone(), workers.iter().map(pod).collect())).collect()
    }

    /// Returns the names of the worker pods of a cluster.
    pub(crate) fn worker_names(&self, cluster: &str) -> Vec<String> {
        self.worker_pods.get(cluster).into_iter().flatten().map(|worker| worker.name.clone()).collect()
    }

    /// Returns the number of all worker pods.
    pub(crate) fn worker_count(&self) -> usize {
        self.worker_pods.values().map(Vec::len).sum()
    }

    /// Returns the EndpointSlices of the serve Service.
    pub(super) fn serve_endpoint_slices(&self) -> Vec<EndpointSlice> {
        let Some(cluster) = self.selected_cluster() else { return Vec::new() };
        let Some(pod) = self.object("Pod", &format!("{cluster}-head")) else { return Vec::new() };
        let serves = self.has_workers || pod.pointer("/metadata/labels/ray.io~1serve") == Some(&json!("true"));
        let slice = json!({
            "metadata": {"name": "chat-serve-svc-1"}, "addressType": "IPv4",
            "endpoints": [{
                "addresses": ["10.0.0.1"], "conditions": {"ready": serves},
                "targetRef": {"kind": "Pod", "uid": pod["metadata"]["uid"]},
            }],
        });
        vec![serde_json::from_value(slice).expect("a slice")]
    }

    /// Returns the EndpointSlices of the backend Services.
    pub(super) fn backend_endpoint_slices(&self) -> Vec<EndpointSlice> {
        let slice = |cluster: String| {
            let pod = self.object("Pod", &format!("{cluster}-head"))?;
            let service = format!("{cluster}-serve-svc");
            self.object("Service", &service)?;
            let slice = json!({
                "metadata": {"name": format!("{service}-1"), "labels": {"kubernetes.io/service-name": service}},
                "addressType": "IPv4",
                "endpoints": [{
                    "addresses": ["10.0.0.1"], "conditions": {"ready": !self.clusters_without_endpoints.contains(&cluster)},
                    "targetRef": {"kind": "Pod", "uid": pod["metadata"]["uid"]},
                }],
            });
            Some(serde_json::from_value(slice).expect("a slice"))
        };
        self.live_clusters().into_iter().filter_map(slice).collect()
    }

    /// Returns the route of the RayService.
    fn route(&self) -> Option<&Value> {
        self.object("HTTPRoute", &route_name(&*self.observed_service()?))
    }

    /// Returns the cluster's share of the RayService's weight in the first rule of the route, in
    /// percent.
    pub(crate) fn traffic_share(&self, cluster: &str) -> u64 {
        let Some(route) = self.route() else { return 0 };
        let backends = route["spec"]["rules"][0]["backendRefs"].as_array().cloned().unwrap_or_default();
        let is_own = |backend: &&Value| backend["name"].as_str().is_some_and(|name| name.starts_with("chat-"));
        let weight = |backend: &Value| backend["weight"].as_u64().unwrap_or(1);
        let total: u64 = backends.iter().filter(is_own).map(weight).sum();
        let own = backends.iter().find(|backend| backend["name"] == format!("{cluster}-serve-svc"));
        own.map_or(0, weight) * 100 / total.max(1)
    }

    /// Checks the invariants of an incremental upgrade: the shares add up to 100 percent, and the
    /// running replicas cover them.
    pub(crate) fn check_rollout_invariants(&self) {
        if self.route().is_none() {
            return;
        }
        assert!(
            !self.reports_locations || self.deleted_while_occupied.is_empty(),
            "{:?} held replicas",
            self.deleted_while_occupied
        );
        let living = self.live_clusters();
        let total: u64 = living.iter().map(|cluster| self.traffic_share(cluster)).sum();
        assert_eq!(total, 100, "the shares of {living:?}");
        for cluster in living.iter().filter(|cluster| self.traffic_share(cluster) > 0) {
            let uid = self.cluster(cluster).uid().unwrap_or_default();
            let dashboard = self.dashboards.get(&uid).cloned().unwrap_or_default();
            let needed =
                replicas_at_capacity(dashboard.full_replicas().unwrap_or(0), &json!(self.traffic_share(cluster)));
            let running = dashboard.running_replicas(self.now, self.deploy_time);
            assert!(running >= needed, "{cluster} has {} % and {running} replicas", self.traffic_share(cluster));
        }
    }
}
