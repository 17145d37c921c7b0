//! Test harness of the planner: an object store that applies its writes, simulated controllers, and
//! Serve dashboards. Time passes only when nothing is left to do.

mod objects;
mod ways;

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube_core::ResourceExt;
use objects::head_pod;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use ways::Worker;

use crate::incremental::routes::{Own, route_name, route_names};
use crate::incremental::ways::{Ways, gateway_place};
use crate::{ServeObservation, View, kept, plan};
use sluice_api::condition;
use sluice_api::gateway::{Gateway, HTTPRoute};
use sluice_api::ray::{RayCluster, RayService, names};
use sluice_plan::{Note, Plan, ServeCall, ServeRequest, Write, WriteOp};
use sluice_plan::{ServeAnswer, ServeError, ServeReply};

/// Kind and name of an object.
type Key = (String, String);

/// Simulated Serve dashboard of one cluster.
#[derive(Debug, Clone, Default)]
pub(crate) struct Dashboard {
    /// Applied configurations, newest last.
    pub(crate) applied: Vec<Value>,
    deployed_at: Option<Timestamp>,
    /// Running replicas of each deployment while others start.
    ran: u64,
    scaled_at: Option<Timestamp>,
    /// IP addresses of the workers that hold its replicas.
    places: Vec<String>,
}

/// Simulated cluster with one RayService.
#[derive(Debug, Clone)]
pub(crate) struct Stage {
    pub(crate) now: Timestamp,
    pub(crate) gated: bool,
    /// Operator default of the upgrade strategy: NewCluster if true.
    pub(crate) upgrades: bool,
    /// True if pods start.
    pub(crate) pods_start: bool,
    /// True if pods of deleted clusters do not terminate.
    pub(crate) pods_linger: bool,
    /// True if clusters have ready workers.
    pub(crate) workers: bool,
    /// Application that dashboards reject.
    pub(crate) refused_app: Option<&'static str>,
    /// Clusters whose applications fail to deploy.
    pub(crate) failing: BTreeSet<String>,
    /// Clusters without ready endpoints.
    pub(crate) unreachable: BTreeSet<String>,
    /// Clusters whose Serve proxies are unhealthy.
    pub(crate) ill: BTreeSet<String>,
    /// Only cluster whose dashboard responds; None if all do.
    pub(crate) answering: Option<String>,
    /// Time that applications take to deploy.
    pub(crate) deploy: SignedDuration,
    /// HTTP status with which dashboards reject configurations; None if they accept them.
    pub(crate) refusal: Option<u16>,
    /// Dashboards by UID of their RayCluster.
    pub(crate) dashboards: BTreeMap<String, Dashboard>,
    /// True if a Gateway controller is running.
    pub(crate) lets_in: bool,
    /// True if deleted worker pods do not terminate.
    pub(crate) workers_linger: bool,
    /// True if dashboards report replica locations.
    pub(crate) tells_places: bool,
    /// Worker pods by cluster name.
    worker_pods: BTreeMap<String, Vec<Worker>>,
    /// Number of worker pods created so far.
    workers_made: usize,
    /// Worker pods that were deleted while holding a replica.
    pub(crate) missed: Vec<String>,
    pub(crate) notes: Vec<Note>,
    /// Clusters that received requests, in order.
    pub(crate) served_by: Vec<String>,
    /// Time at which a cluster stopped receiving requests, by UID: a later cluster of the same name
    /// has not served.
    left_at: BTreeMap<String, Timestamp>,
    objects: BTreeMap<Key, Value>,
    observed: BTreeMap<String, ServeObservation>,
    versions: u64,
}

/// Selects by index the writes of a plan that succeed.
pub(crate) type Filter<'a> = &'a dyn Fn(usize) -> bool;

impl Stage {
    /// Returns a harness with one RayService.
    pub(crate) fn new(service: Value) -> Self {
        let mut stage = Self {
            now: "2026-01-01T00:00:00Z".parse().expect("a time"),
            gated: false,
            upgrades: true,
            pods_start: true,
            pods_linger: false,
            workers: true,
            refused_app: None,
            failing: BTreeSet::new(),
            unreachable: BTreeSet::new(),
            ill: BTreeSet::new(),
            answering: None,
            deploy: SignedDuration::from_secs(3),
            refusal: None,
            dashboards: BTreeMap::new(),
            lets_in: true,
            workers_linger: false,
            tells_places: true,
            worker_pods: BTreeMap::new(),
            workers_made: 0,
            missed: Vec::new(),
            notes: Vec::new(),
            served_by: Vec::new(),
            left_at: BTreeMap::new(),
            objects: BTreeMap::new(),
            observed: BTreeMap::new(),
            versions: 0,
        };
        stage.create("RayService", service);
        stage
    }

    /// Patches the RayService as its owner would.
    pub(crate) fn edit(&mut self, patch: Value) {
        self.patch(&("RayService".into(), "chat".into()), &patch);
    }

    /// Deletes an object as a user would, respecting finalizers.
    pub(crate) fn delete(&mut self, kind: &str, name: &str) {
        let now = self.now;
        let key = (kind.to_owned(), name.to_owned());
        if let Some(object) = self.objects.get_mut(&key) {
            object["metadata"]["deletionTimestamp"] = json!(now);
            if object.pointer("/metadata/finalizers").is_none_or(|finalizers| finalizers == &json!([])) {
                self.objects.remove(&key);
            }
        }
    }

    /// Restarts the operator.
    pub(crate) fn restart(&mut self) {
        self.observed.clear();
    }

    /// Replaces the head pod of a cluster, which loses its applications.
    pub(crate) fn lose_head(&mut self, cluster: &str) {
        // Record first where requests go: so far the head was healthy.
        self.settle();
        self.dashboards.remove(&self.uid_of(cluster).expect("an existing cluster"));
        self.objects.remove(&("Pod".to_owned(), format!("{cluster}-head")));
        let key = ("RayCluster".to_owned(), cluster.to_owned());
        self.patch(&key, &json!({"status": {"conditions": []}}));
    }

    /// Runs until `seconds` have passed.
    pub(crate) fn play(&mut self, seconds: i64) {
        let end = self.now + SignedDuration::from_secs(seconds);
        while self.now < end {
            self.beat(end, &|_| true);
        }
    }

    /// Plans once, applies the writes that succeed, and lets time pass if there was nothing to do.
    /// Returns the number of planned writes.
    pub(crate) fn beat(&mut self, end: Timestamp, succeeds: Filter<'_>) -> usize {
        self.settle();
        let plan = self.plan();
        let writes = plan.writes.len();
        let mut written = BTreeSet::new();
        for (_, write) in plan.writes.iter().enumerate().filter(|(index, _)| succeeds(*index)) {
            if written.insert(write.target.clone()) {
                self.carry_out(write);
            }
        }
        let new_notes: Vec<Note> = plan.notes.into_iter().filter(|note| !self.notes.contains(note)).collect();
        self.notes.extend(new_notes);
        for call in &plan.serve_calls {
            let reply = self.answer(call);
            self.observed.entry(call.cluster.clone()).or_default().observe(reply);
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
        let Some(service) = self.service() else { return Plan::default() };
        let (clusters, pods, services) = (self.clusters(), self.all::<Pod>("Pod"), self.all::<Service>("Service"));
        let slices = self.endpoints();
        let revisions = self.all::<ControllerRevision>("ControllerRevision");
        let configs = revisions.iter().filter_map(|object| Some((object, kept::read(object)?)));
        let configs: Vec<_> = configs.collect();
        let (gateways, classes) = (self.all::<Gateway>("Gateway"), self.all("GatewayClass"));
        let (current, all_names) = (route_name(&service), route_names(&service));
        let mut routes = self.all::<HTTPRoute>("HTTPRoute");
        routes.retain(|route| all_names.contains(&route.name_any()));
        let backend_slices = self.backend_slices();
        let workers = self.workers_by_cluster();
        plan(&View {
            service: &service,
            goal: &crate::Goal::of(&service),
            children: clusters.iter().collect(),
            head_pods: pods.iter().collect(),
            services: services.iter().collect(),
            endpoint_slices: slices.iter().collect(),
            ways: Ways {
                gateway: gateways.iter().find(|gateway| gateway.name_any() == gateway_place(&service).1),
                gateway_class: classes.first(),
                route: routes.iter().find(|route| route.name_any() == current),
                former: routes.iter().filter(|route| route.name_any() != current).collect(),
                own: Own::of(&service, &clusters.iter().collect::<Vec<_>>(), BTreeSet::new()),
                services: services.iter().collect(),
                endpoint_slices: backend_slices.iter().collect(),
            },
            worker_pods: workers.iter().map(|(cluster, pods)| (cluster.clone(), pods.iter().collect())).collect(),
            serve: self.observed.iter().map(|(name, observation)| (name.clone(), observation)).collect(),
            kept: configs.iter().map(|(object, config)| kept::Kept { object, config }).collect(),
            gated: self.gated,
            upgrades: self.upgrades,
            now: self.now,
        })
    }

    pub(crate) fn service(&self) -> Option<RayService> {
        self.all("RayService").pop()
    }

    pub(crate) fn clusters(&self) -> Vec<RayCluster> {
        self.all("RayCluster")
    }

    pub(crate) fn cluster(&self, name: &str) -> RayCluster {
        self.clusters().into_iter().find(|cluster| cluster.name_any() == name).expect("an existing cluster")
    }

    /// Returns the names of the clusters that are not terminating.
    pub(crate) fn living(&self) -> Vec<String> {
        let living = self.clusters().into_iter().filter(|cluster| cluster.metadata.deletion_timestamp.is_none());
        living.map(|cluster| cluster.name_any()).collect()
    }

    /// Unsuspends or suspends a cluster.
    pub(crate) fn set_gate(&mut self, cluster: &str, open: bool) {
        self.patch(&("RayCluster".into(), cluster.into()), &json!({"spec": {"suspend": !open}}));
    }

    /// Returns the object of this kind and name; None if it does not exist.
    pub(crate) fn object(&self, kind: &str, name: &str) -> Option<&Value> {
        self.objects.get(&(kind.to_owned(), name.to_owned()))
    }

    /// Returns the names of the objects of a kind.
    pub(crate) fn names(&self, kind: &str) -> Vec<String> {
        self.objects.keys().filter(|(of, _)| of == kind).map(|(_, name)| name.clone()).collect()
    }

    /// Returns the cluster that the serve Service selects; None if there is none.
    pub(crate) fn leads_to(&self) -> Option<String> {
        let serve = format!("{}-serve-svc", self.service()?.name_any());
        let selector = self.object("Service", &serve)?.pointer("/spec/selector/ray.io~1cluster")?;
        selector.as_str().map(str::to_owned)
    }

    fn uid_of(&self, cluster: &str) -> Option<String> {
        self.object("RayCluster", cluster)?.pointer("/metadata/uid")?.as_str().map(str::to_owned)
    }

    /// Returns true if a cluster received requests and no longer does.
    pub(crate) fn is_left(&self, cluster: &str) -> bool {
        self.uid_of(cluster).is_some_and(|uid| self.left_at.contains_key(&uid))
    }

    /// Returns status and reason of a condition of the RayService; None if it is not set.
    pub(crate) fn condition(&self, type_: &str) -> Option<(String, String)> {
        let status = self.service()?.status?;
        let condition = condition::get(&status.conditions, type_)?;
        Some((condition.status.clone(), condition.reason.clone()))
    }

    /// Returns the message of a condition of the RayService; empty if it is not set.
    pub(crate) fn message(&self, type_: &str) -> String {
        let status = self.service().and_then(|service| service.status).unwrap_or_default();
        condition::get(&status.conditions, type_).map(|condition| condition.message.clone()).unwrap_or_default()
    }

    /// Returns the names of the active and the pending cluster in the status.
    pub(crate) fn named(&self) -> (Option<String>, Option<String>) {
        let status = self.service().and_then(|service| service.status).unwrap_or_default();
        let name = |status: Option<sluice_api::ray::RayServiceStatus>| status?.ray_cluster_name;
        (name(status.active_service_status), name(status.pending_service_status))
    }

    /// Returns the configurations applied to a cluster, oldest first.
    pub(crate) fn applied(&self, cluster: &str) -> Vec<Value> {
        let uid = self.uid_of(cluster).expect("an existing cluster");
        self.dashboards.get(&uid).map(|dashboard| dashboard.applied.clone()).unwrap_or_default()
    }

    pub(crate) fn told(&self, reason: &str) -> usize {
        self.notes.iter().filter(|note| note.reason == reason).count()
    }

    fn all<K: DeserializeOwned>(&self, kind: &str) -> Vec<K> {
        let objects = self.objects.iter().filter(|((of, _), _)| of == kind);
        objects.map(|(_, object)| serde_json::from_value(object.clone()).expect("an object of its kind")).collect()
    }

    pub(crate) fn create(&mut self, kind: &str, mut object: Value) {
        self.versions += 1;
        let name = object["metadata"]["name"].as_str().expect("a name").to_owned();
        object["metadata"]["uid"] = json!(format!("uid-{}", self.versions));
        object["metadata"]["resourceVersion"] = json!(self.versions.to_string());
        object["metadata"]["creationTimestamp"] = json!(condition::whole_seconds(self.now));
        object["metadata"]["generation"] = json!(1);
        self.objects.entry((kind.to_owned(), name)).or_insert(object);
    }

    fn patch(&mut self, key: &Key, patch: &Value) {
        self.versions += 1;
        let Some(object) = self.objects.get_mut(key) else { return };
        let before = object.clone();
        json_patch::merge(object, patch);
        object["metadata"]["resourceVersion"] = json!(self.versions.to_string());
        if object["spec"] != before["spec"] {
            object["metadata"]["generation"] = json!(before["metadata"]["generation"].as_i64().unwrap_or(0) + 1);
        }
        let has_finalizers = object.pointer("/metadata/finalizers").is_some_and(|finalizers| finalizers != &json!([]));
        if object.pointer("/metadata/deletionTimestamp").is_some() && !has_finalizers {
            self.objects.remove(key);
        }
    }

    fn carry_out(&mut self, write: &Write) {
        let key = (write.target.kind.clone(), write.target.name.clone());
        match &write.op {
            WriteOp::Create(object) => self.create(&write.target.kind, object.clone()),
            WriteOp::Patch(patch) | WriteOp::PatchStatus(patch) => {
                let current = self.objects.get(&key).map(|object| &object["metadata"]["resourceVersion"]);
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
                let object = self.objects.get_mut(&key).expect("the deleted object");
                assert_eq!(object["metadata"]["uid"], json!(uid));
                if write.target.kind == "ControllerRevision" {
                    self.objects.remove(&key);
                    return;
                }
                assert!(foreground, "foreground deletion keeps the quota until the pods are gone");
                assert!(
                    !self.wants_to_serve() || self.leads_to().as_ref() != Some(&key.1),
                    "the serving cluster is deleted"
                );
                assert!(!self.wants_to_serve() || self.share(&key.1) == 0, "a cluster with traffic is deleted");
                if let Some(left_at) = self.left_at.get(uid).filter(|_| self.wants_to_serve()) {
                    let kept = self.now.duration_since(*left_at);
                    let delay = self.service().and_then(|service| service.spec.ray_cluster_deletion_delay_seconds);
                    // Times are recorded in whole seconds.
                    let min = SignedDuration::from_secs(i64::from(delay.unwrap_or(60)) - 1);
                    assert!(kept >= min, "{} was kept for only {kept:?}", key.1);
                }
                let now = self.now;
                let object = self.objects.get_mut(&key).expect("the deleted object");
                object["metadata"]["finalizers"] = json!(["foregroundDeletion"]);
                object["metadata"]["deletionTimestamp"] = json!(now);
            }
        }
    }

    /// Returns true if the RayService should keep serving: it is neither terminating nor being
    /// suspended.
    fn wants_to_serve(&self) -> bool {
        let runs = |service: RayService| service.metadata.deletion_timestamp.is_none();
        let suspending = self.condition("Suspending").is_some_and(|(status, _)| status == "True");
        self.service().is_some_and(runs) && !suspending
    }

    /// Simulates the RayCluster operator and the Kubernetes controllers, and checks that requests
    /// go only to ready clusters.
    fn settle(&mut self) {
        self.let_in();
        for cluster in self.clusters() {
            self.move_workers(&cluster);
            let (name, now) = (cluster.name_any(), self.now);
            let pod = ("Pod".to_owned(), format!("{name}-head"));
            let wants_pods = cluster.metadata.deletion_timestamp.is_none() && cluster.spec.suspend != Some(true);
            if wants_pods && self.pods_start && !self.objects.contains_key(&pod) {
                self.create("Pod", head_pod(&cluster));
            }
            if !wants_pods && !self.pods_linger {
                self.objects.remove(&pod);
                self.dashboards.remove(&cluster.uid().unwrap_or_default());
            }
            let has_head = self.objects.contains_key(&pod);
            if cluster.metadata.deletion_timestamp.is_some() && !has_head {
                self.objects.remove(&("RayCluster".to_owned(), name));
                continue;
            }
            let conditions = cluster.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
            if condition::is_true(conditions, names::HEAD_POD_READY) != has_head || conditions.is_empty() {
                let ready = json!({
                    "type": names::HEAD_POD_READY, "status": if has_head { "True" } else { "False" },
                    "reason": if has_head { "HeadPodRunningAndReady" } else { "HeadPodNotFound" },
                    "message": "", "lastTransitionTime": condition::whole_seconds(now),
                });
                let workers = i32::from(has_head && self.workers);
                let status = json!({"status": {"conditions": [ready], "readyWorkerReplicas": workers}});
                self.patch(&("RayCluster".into(), name), &status);
            }
        }
        if let Some(cluster) = self.leads_to().filter(|cluster| self.served_by.last() != Some(cluster)) {
            let uid = self.uid_of(&cluster).expect("an existing cluster");
            assert!(
                self.dashboards.get(&uid).is_some_and(|serve| serve.runs(self)),
                "{cluster} is not ready for requests"
            );
            let has_endpoint = self
                .endpoints()
                .iter()
                .flat_map(|slice| slice.endpoints.iter().flatten())
                .any(|endpoint| endpoint.conditions.as_ref().and_then(|conditions| conditions.ready) == Some(true));
            assert!(has_endpoint, "{cluster} has no ready endpoint");
            if let Some(before) = self.served_by.last().and_then(|before| self.uid_of(before)) {
                self.left_at.insert(before, self.now);
            }
            self.left_at.remove(&uid);
            self.served_by.push(cluster);
        }
    }

    fn answer(&mut self, call: &ServeCall) -> ServeReply {
        let reply = |answer| ServeReply {
            namespace: call.namespace.clone(),
            cluster: call.cluster.clone(),
            uid: call.uid.clone(),
            head: call.head.clone(),
            called_at: self.now,
            at: self.now,
            answer,
        };
        assert_eq!(call.head_service, format!("{}-head-svc", call.cluster));
        let uid = self.uid_of(&call.cluster).expect("an existing cluster");
        let workers = self.worker_pods.get(&call.cluster).cloned().unwrap_or_default();
        let dashboard = self.dashboards.entry(uid).or_default();
        let runs = dashboard.deployed_at.is_some_and(|at| at + self.deploy <= self.now);
        let refused = |code| ServeError::Refused { doing: "calling".into(), code, body: "no".into() };
        match &call.request {
            ServeRequest::Get if self.answering.as_ref().is_some_and(|answering| *answering != call.cluster) => {
                let silence = ServeError::Silent { doing: "asking".into(), seconds: 2 };
                reply(ServeAnswer::Status(Err(silence)))
            }
            ServeRequest::Get => {
                let mut state = json!({"status": if runs { "RUNNING" } else { "DEPLOYING" }});
                if self.failing.contains(&call.cluster) {
                    state = json!({"status": "DEPLOY_FAILED", "message": "no module named one"});
                }
                let capacity = dashboard.applied.last().and_then(|config| config.get("target_capacity")).cloned();
                dashboard.place(&workers);
                let deployments = dashboard.deployments(self.now, self.deploy, self.tells_places);
                if !deployments.is_empty() {
                    state["deployments"] = json!(deployments);
                }
                let names = dashboard.applied.last().map(|config| config["applications"].clone()).unwrap_or_default();
                let names = names.as_array().cloned().unwrap_or_default();
                let apps = names.iter().map(|app| (app["name"].as_str().unwrap_or_default().to_owned(), state.clone()));
                let apps: BTreeMap<_, _> = apps.collect();
                let status = json!({"applications": apps, "target_capacity": capacity});
                reply(ServeAnswer::Status(Ok(serde_json::from_value(status).expect("a status"))))
            }
            ServeRequest::Put(config) => {
                let is_refused = self.refused_app.is_some_and(|name| config.body()["applications"][0]["name"] == name);
                let refusal = self.refusal.or_else(|| is_refused.then_some(400));
                let result = refusal.map_or(Ok(()), |code| Err(refused(code)));
                if result.is_ok() {
                    dashboard.apply(config.body().clone(), self.now, self.deploy);
                }
                reply(ServeAnswer::Applied { config_hash: config.hash().to_owned(), result })
            }
            ServeRequest::Healthz { pod, .. } => {
                let result = if runs && !self.ill.contains(&call.cluster) { Ok(()) } else { Err(refused(503)) };
                reply(ServeAnswer::Health { pod: pod.clone(), result })
            }
        }
    }
}
