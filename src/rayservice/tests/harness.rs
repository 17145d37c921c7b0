//! Test harness of the planner: an object store that applies its writes, simulated controllers, and
//! Serve dashboards. Time passes only when nothing is left to do.

mod controllers;
mod dashboard;
mod objects;
mod stored_object;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use controllers::FakeWorker;
use dashboard::FakeDashboard;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube_core::ResourceExt;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use stored_object::StoredObject;

use crate::incremental::gateway::{TrafficRouting, gateway_namespaced_name};
use crate::incremental::http_route::{ServiceBackends, route_name, route_names};
use crate::{DesiredService, ObservedService, ServeObservation, plan, serve_config_history};
use sluice_api::condition;
use sluice_api::gateway_api::{Gateway, HTTPRoute};
use sluice_api::ray::{RayCluster, RayService};
use sluice_plan::{EventRecord, Plan, Write, WriteOp};

/// Kind and name of an object.
type KindAndName = (String, String);

/// Simulated cluster with one RayService.
#[derive(Debug, Clone)]
pub(crate) struct Harness {
    pub(crate) now: Timestamp,
    pub(crate) is_queued: bool,
    /// Operator default of the upgrade strategy: NewCluster if true.
    pub(crate) default_zero_downtime: bool,
    /// True if pods start.
    pub(crate) pods_start: bool,
    /// True if pods of deleted clusters do not terminate.
    pub(crate) pods_stay_terminating: bool,
    /// True if clusters have ready workers.
    pub(crate) has_workers: bool,
    /// Application that dashboards reject.
    pub(crate) rejected_app: Option<&'static str>,
    /// Clusters whose applications fail to deploy.
    pub(crate) failing_clusters: BTreeSet<String>,
    /// Clusters without ready endpoints.
    pub(crate) clusters_without_endpoints: BTreeSet<String>,
    /// Clusters whose Serve proxies are unhealthy.
    pub(crate) clusters_with_unhealthy_proxy: BTreeSet<String>,
    /// Only cluster whose dashboard responds; None if all do.
    pub(crate) only_responding_dashboard: Option<String>,
    /// Time that applications take to deploy.
    pub(crate) deploy_time: SignedDuration,
    /// HTTP status with which dashboards reject configurations; None if they accept them.
    pub(crate) rejection_code: Option<u16>,
    /// Dashboards by UID of their RayCluster.
    pub(crate) dashboards: BTreeMap<String, FakeDashboard>,
    /// True if a Gateway controller is running.
    pub(crate) has_gateway_controller: bool,
    /// True if deleted worker pods do not terminate.
    pub(crate) workers_stay_terminating: bool,
    /// True if dashboards report replica locations.
    pub(crate) reports_locations: bool,
    /// Worker pods by cluster name.
    worker_pods: BTreeMap<String, Vec<FakeWorker>>,
    /// Number of worker pods created so far.
    workers_created: usize,
    /// Worker pods that were deleted while holding a replica.
    pub(crate) deleted_while_occupied: Vec<String>,
    pub(crate) notes: Vec<EventRecord>,
    /// Clusters that received requests, in order.
    pub(crate) served_by: Vec<String>,
    /// Time at which a cluster stopped receiving requests, by UID: a later cluster of the same name
    /// has not served.
    stopped_serving_at: BTreeMap<String, Timestamp>,
    objects: BTreeMap<KindAndName, StoredObject>,
    observations: BTreeMap<String, ServeObservation>,
    last_resource_version: u64,
}

/// Selects by index the writes of a plan that succeed.
pub(crate) type WriteFilter<'a> = &'a dyn Fn(usize) -> bool;

impl Harness {
    /// Returns a harness with one RayService.
    pub(crate) fn new(service: Value) -> Self {
        let mut harness = Self {
            now: "2026-01-01T00:00:00Z".parse().expect("a time"),
            is_queued: false,
            default_zero_downtime: true,
            pods_start: true,
            pods_stay_terminating: false,
            has_workers: true,
            rejected_app: None,
            failing_clusters: BTreeSet::new(),
            clusters_without_endpoints: BTreeSet::new(),
            clusters_with_unhealthy_proxy: BTreeSet::new(),
            only_responding_dashboard: None,
            deploy_time: SignedDuration::from_secs(3),
            rejection_code: None,
            dashboards: BTreeMap::new(),
            has_gateway_controller: true,
            workers_stay_terminating: false,
            reports_locations: true,
            worker_pods: BTreeMap::new(),
            workers_created: 0,
            deleted_while_occupied: Vec::new(),
            notes: Vec::new(),
            served_by: Vec::new(),
            stopped_serving_at: BTreeMap::new(),
            objects: BTreeMap::new(),
            observations: BTreeMap::new(),
            last_resource_version: 0,
        };
        harness.create("RayService", service);
        harness
    }

    /// Patches the RayService as its owner would.
    pub(crate) fn patch_service(&mut self, patch: Value) {
        self.patch(&("RayService".into(), "chat".into()), &patch);
    }

    /// Deletes an object as a user would, respecting finalizers.
    pub(crate) fn delete(&mut self, kind: &str, name: &str) {
        let now = self.now;
        let key = (kind.to_owned(), name.to_owned());
        if let Some(object) = self.objects.get_mut(&key).map(StoredObject::manifest_mut) {
            object["metadata"]["deletionTimestamp"] = json!(now);
            if object.pointer("/metadata/finalizers").is_none_or(|finalizers| finalizers == &json!([])) {
                self.objects.remove(&key);
            }
        }
    }

    /// Restarts the operator.
    pub(crate) fn restart(&mut self) {
        self.observations.clear();
    }

    /// Replaces the head pod of a cluster, which loses its applications.
    pub(crate) fn lose_head(&mut self, cluster: &str) {
        // Record first where requests go: so far the head was healthy.
        self.run_controllers();
        self.dashboards.remove(&self.uid_of(cluster).expect("an existing cluster"));
        self.objects.remove(&("Pod".to_owned(), format!("{cluster}-head")));
        let key = ("RayCluster".to_owned(), cluster.to_owned());
        self.patch(&key, &json!({"status": {"conditions": []}}));
    }

    /// Runs until `seconds` have passed.
    pub(crate) fn run_for(&mut self, seconds: i64) {
        let end = self.now + SignedDuration::from_secs(seconds);
        while self.now < end {
            self.run_once(end, &|_| true);
        }
    }

    /// Plans once, applies the writes that succeed, and lets time pass if there was nothing to do.
    /// Returns the number of planned writes.
    pub(crate) fn run_once(&mut self, end: Timestamp, succeeds: WriteFilter<'_>) -> usize {
        self.run_controllers();
        let plan = self.plan();
        let writes = plan.writes.len();
        let mut written = BTreeSet::new();
        for (_, write) in plan.writes.iter().enumerate().filter(|(index, _)| succeeds(*index)) {
            if written.insert(write.target.clone()) {
                self.apply_write(write);
            }
        }
        let new_notes: Vec<EventRecord> = plan.events.into_iter().filter(|note| !self.notes.contains(note)).collect();
        self.notes.extend(new_notes);
        for call in &plan.serve_calls {
            let reply = self.serve_reply(call);
            self.observations.entry(call.cluster.clone()).or_default().observe(reply);
        }
        if writes == 0 && plan.serve_calls.is_empty() {
            let next = self.now + SignedDuration::from_secs(5);
            self.now = plan.wake_at.unwrap_or(next).clamp(self.now, next).min(end);
        }
        self.now += SignedDuration::from_millis(10);
        writes
    }

    /// Returns the plan for the current state.
    pub(crate) fn plan(&self) -> Plan {
        let Some(stored) = self.stored("RayService").next() else { return Plan::default() };
        let service = stored.decoded::<RayService>();
        let desired = stored.derived(|| DesiredService::from_service(&service));
        let clusters = self.decoded::<RayCluster>("RayCluster");
        let clusters: Vec<&RayCluster> = clusters.iter().map(AsRef::as_ref).collect();
        let (pods, services) = (self.decoded::<Pod>("Pod"), self.decoded::<Service>("Service"));
        let services: Vec<&Service> = services.iter().map(AsRef::as_ref).collect();
        let slices = self.serve_endpoint_slices();
        let configs = self.stored("ControllerRevision").map(|stored| {
            let revision = stored.decoded::<ControllerRevision>();
            let config = stored.derived(|| serve_config_history::read_stored_config(&revision));
            (revision, config)
        });
        let configs: Vec<_> = configs.collect();
        let (gateways, classes) = (self.decoded::<Gateway>("Gateway"), self.decoded("GatewayClass"));
        let (current, all_names) = (route_name(&service), route_names(&service));
        let routes = self.decoded::<HTTPRoute>("HTTPRoute");
        let routes = || routes.iter().map(AsRef::as_ref).filter(|route| all_names.contains(&route.name_any()));
        let backend_slices = self.backend_endpoint_slices();
        let workers = self.worker_pods_by_cluster();
        plan(&ObservedService {
            service: &service,
            desired: &desired,
            head_pods: pods.iter().map(AsRef::as_ref).collect(),
            services: services.clone(),
            endpoint_slices: slices.iter().collect(),
            routing: TrafficRouting {
                gateway: gateways
                    .iter()
                    .map(AsRef::as_ref)
                    .find(|gateway| gateway.name_any() == gateway_namespaced_name(&service).1),
                gateway_class: classes.first().map(AsRef::as_ref),
                route: routes().find(|route| route.name_any() == current),
                previous_routes: routes().filter(|route| route.name_any() != current).collect(),
                backends: ServiceBackends::new(&service, &clusters, BTreeSet::new()),
                backend_services: services,
                backend_endpoint_slices: backend_slices.iter().collect(),
            },
            worker_pods: workers.iter().map(|(cluster, pods)| (cluster.clone(), pods.iter().collect())).collect(),
            serve_observations: self
                .observations
                .iter()
                .map(|(name, observation)| (name.clone(), observation))
                .collect(),
            stored_configs: configs
                .iter()
                .filter_map(|(revision, config)| {
                    Some(serve_config_history::StoredServeConfig { revision, config: config.as_ref().as_ref()? })
                })
                .collect(),
            clusters,
            is_queued: self.is_queued,
            default_zero_downtime: self.default_zero_downtime,
            now: self.now,
        })
    }

    pub(crate) fn service(&self) -> Option<RayService> {
        self.observed_service().map(Rc::unwrap_or_clone)
    }

    fn observed_service(&self) -> Option<Rc<RayService>> {
        Some(self.stored("RayService").next()?.decoded())
    }

    pub(crate) fn clusters(&self) -> Vec<RayCluster> {
        self.decoded("RayCluster").into_iter().map(Rc::unwrap_or_clone).collect()
    }

    pub(crate) fn cluster(&self, name: &str) -> RayCluster {
        self.clusters().into_iter().find(|cluster| cluster.name_any() == name).expect("an existing cluster")
    }

    /// Returns the names of the clusters that are not terminating.
    pub(crate) fn live_clusters(&self) -> Vec<String> {
        let clusters = self.decoded::<RayCluster>("RayCluster").into_iter();
        let living = clusters.filter(|cluster| cluster.metadata.deletion_timestamp.is_none());
        living.map(|cluster| cluster.name_any()).collect()
    }

    /// Unsuspends or suspends a cluster.
    pub(crate) fn set_unsuspended(&mut self, cluster: &str, open: bool) {
        self.patch(&("RayCluster".into(), cluster.into()), &json!({"spec": {"suspend": !open}}));
    }

    /// Returns the object of this kind and name; None if it does not exist.
    pub(crate) fn object(&self, kind: &str, name: &str) -> Option<&Value> {
        self.objects.get(&(kind.to_owned(), name.to_owned())).map(StoredObject::manifest)
    }

    /// Returns the names of the objects of a kind.
    pub(crate) fn object_names(&self, kind: &str) -> Vec<String> {
        self.objects.keys().filter(|(of, _)| of == kind).map(|(_, name)| name.clone()).collect()
    }

    /// Returns the cluster that the serve Service selects; None if there is none.
    pub(crate) fn selected_cluster(&self) -> Option<String> {
        let serve = format!("{}-serve-svc", self.observed_service()?.name_any());
        let selector = self.object("Service", &serve)?.pointer("/spec/selector/ray.io~1cluster")?;
        selector.as_str().map(str::to_owned)
    }

    fn uid_of(&self, cluster: &str) -> Option<String> {
        self.object("RayCluster", cluster)?.pointer("/metadata/uid")?.as_str().map(str::to_owned)
    }

    /// Returns true if a cluster received requests and no longer does.
    pub(crate) fn has_stopped_serving(&self, cluster: &str) -> bool {
        self.uid_of(cluster).is_some_and(|uid| self.stopped_serving_at.contains_key(&uid))
    }

    /// Returns status and reason of a condition of the RayService; None if it is not set.
    pub(crate) fn condition(&self, type_: &str) -> Option<(String, String)> {
        let service = self.observed_service()?;
        let status = service.status.as_ref()?;
        let condition = condition::get(&status.conditions, type_)?;
        Some((condition.status.clone(), condition.reason.clone()))
    }

    /// Returns the message of a condition of the RayService; empty if it is not set.
    pub(crate) fn message(&self, type_: &str) -> String {
        let status = self.service().and_then(|service| service.status).unwrap_or_default();
        condition::get(&status.conditions, type_).map(|condition| condition.message.clone()).unwrap_or_default()
    }

    /// Returns the names of the active and the pending cluster in the status.
    pub(crate) fn active_and_pending(&self) -> (Option<String>, Option<String>) {
        let status = self.service().and_then(|service| service.status).unwrap_or_default();
        let name = |status: Option<sluice_api::ray::RayServiceStatus>| status?.ray_cluster_name;
        (name(status.active_service_status), name(status.pending_service_status))
    }

    /// Returns the configurations applied to a cluster, oldest first.
    pub(crate) fn applied_configs(&self, cluster: &str) -> Vec<Value> {
        let uid = self.uid_of(cluster).expect("an existing cluster");
        self.dashboards.get(&uid).map(|dashboard| dashboard.applied.clone()).unwrap_or_default()
    }

    pub(crate) fn event_count(&self, reason: &str) -> usize {
        self.notes.iter().filter(|note| note.reason == reason).count()
    }

    /// Iterates over the objects of a kind, by name.
    fn stored(&self, kind: &str) -> impl Iterator<Item = &StoredObject> {
        self.objects.iter().filter(move |((of, _), _)| of == kind).map(|(_, object)| object)
    }

    fn decoded<K: DeserializeOwned + 'static>(&self, kind: &str) -> Vec<Rc<K>> {
        self.stored(kind).map(StoredObject::decoded).collect()
    }

    pub(crate) fn create(&mut self, kind: &str, mut object: Value) {
        self.last_resource_version += 1;
        let name = object["metadata"]["name"].as_str().expect("a name").to_owned();
        object["metadata"]["uid"] = json!(format!("uid-{}", self.last_resource_version));
        object["metadata"]["resourceVersion"] = json!(self.last_resource_version.to_string());
        object["metadata"]["creationTimestamp"] = json!(condition::whole_seconds(self.now));
        object["metadata"]["generation"] = json!(1);
        self.objects.entry((kind.to_owned(), name)).or_insert_with(|| StoredObject::new(object));
    }

    fn patch(&mut self, key: &KindAndName, patch: &Value) {
        self.last_resource_version += 1;
        let Some(object) = self.objects.get_mut(key).map(StoredObject::manifest_mut) else { return };
        let before = object.clone();
        json_patch::merge(object, patch);
        object["metadata"]["resourceVersion"] = json!(self.last_resource_version.to_string());
        if object["spec"] != before["spec"] {
            object["metadata"]["generation"] = json!(before["metadata"]["generation"].as_i64().unwrap_or(0) + 1);
        }
        let has_finalizers = object.pointer("/metadata/finalizers").is_some_and(|finalizers| finalizers != &json!([]));
        if object.pointer("/metadata/deletionTimestamp").is_some() && !has_finalizers {
            self.objects.remove(key);
        }
    }

    fn apply_write(&mut self, write: &Write) {
        let key = (write.target.kind.clone(), write.target.name.clone());
        match &write.op {
            WriteOp::Create(object) => self.create(&write.target.kind, object.clone()),
            WriteOp::Patch(patch) | WriteOp::PatchStatus(patch) => {
                let current = self.object(&key.0, &key.1).map(|object| &object["metadata"]["resourceVersion"]);
                assert_eq!(
                    current,
                    patch.pointer("/metadata/resourceVersion"),
                    "{} is patched at its current resourceVersion",
                    write.target
                );
                let mut patch = patch.clone();
                patch["metadata"].as_object_mut().expect("metadata").remove("resourceVersion");
                self.patch(&key, &patch);
            }
            WriteOp::Delete { uid, foreground } => {
                let object = self.object(&key.0, &key.1).expect("the deleted object");
                assert_eq!(object["metadata"]["uid"], json!(uid));
                if write.target.kind == "ControllerRevision" {
                    self.objects.remove(&key);
                    return;
                }
                assert!(foreground, "foreground deletion keeps the quota until the pods are gone");
                assert!(
                    !self.should_serve() || self.selected_cluster().as_ref() != Some(&key.1),
                    "the serving cluster is deleted"
                );
                assert!(!self.should_serve() || self.traffic_share(&key.1) == 0, "a cluster with traffic is deleted");
                if let Some(left_at) = self.stopped_serving_at.get(uid).filter(|_| self.should_serve()) {
                    let kept = self.now.duration_since(*left_at);
                    let delay = self.service().and_then(|service| service.spec.ray_cluster_deletion_delay_seconds);
                    // Times are recorded in whole seconds.
                    let min = SignedDuration::from_secs(i64::from(delay.unwrap_or(60)) - 1);
                    assert!(kept >= min, "{} was kept for only {kept:?}", key.1);
                }
                let now = self.now;
                let object = self.objects.get_mut(&key).expect("the deleted object").manifest_mut();
                object["metadata"]["finalizers"] = json!(["foregroundDeletion"]);
                object["metadata"]["deletionTimestamp"] = json!(now);
            }
        }
    }

    /// Returns true if the RayService should keep serving: it is neither terminating nor being
    /// suspended.
    fn should_serve(&self) -> bool {
        let runs = |service: Rc<RayService>| service.metadata.deletion_timestamp.is_none();
        let suspending = self.condition("Suspending").is_some_and(|(status, _)| status == "True");
        self.observed_service().is_some_and(runs) && !suspending
    }
}
