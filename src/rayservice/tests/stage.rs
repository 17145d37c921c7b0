//! A small world for the planner: objects that its writes change, clusters that come up and go, dashboards that answer. Time
//! passes only when nothing else is to be done.

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

/// Kind and name.
type Key = (String, String);

/// What Serve is on one cluster.
#[derive(Debug, Clone, Default)]
pub(crate) struct Dashboard {
    /// The configurations that were applied, the newest last.
    pub(crate) applied: Vec<Value>,
    deployed_at: Option<Timestamp>,
    /// Replicas of each deployment that run, while others start.
    ran: u64,
    scaled_at: Option<Timestamp>,
    /// The workers that its replicas are on.
    places: Vec<String>,
}

/// The world.
#[derive(Debug, Clone)]
pub(crate) struct Stage {
    pub(crate) now: Timestamp,
    pub(crate) gated: bool,
    /// Whether another cluster is made where the service doesn't say.
    pub(crate) upgrades: bool,
    /// Whether pods come up.
    pub(crate) pods_start: bool,
    /// Whether pods of deleted clusters stay.
    pub(crate) pods_linger: bool,
    /// Whether clusters have workers.
    pub(crate) workers: bool,
    /// The application that dashboards refuse.
    pub(crate) refused_app: Option<&'static str>,
    /// Clusters whose applications can't be deployed.
    pub(crate) failing: BTreeSet<String>,
    /// Clusters whose pods take no requests.
    pub(crate) unreachable: BTreeSet<String>,
    /// Clusters whose Serve proxies don't answer.
    pub(crate) ill: BTreeSet<String>,
    /// The only cluster whose dashboard answers, unless all do.
    pub(crate) answering: Option<String>,
    /// How long applications take to run.
    pub(crate) deploy: SignedDuration,
    /// What dashboards refuse a configuration with.
    pub(crate) refusal: Option<u16>,
    /// Serve by the uid of its cluster.
    pub(crate) dashboards: BTreeMap<String, Dashboard>,
    /// Whether somebody takes care of Gateways.
    pub(crate) lets_in: bool,
    /// Whether worker pods that are not wanted any more stay.
    pub(crate) workers_linger: bool,
    /// Whether dashboards tell where replicas are.
    pub(crate) tells_places: bool,
    /// Worker pods by cluster.
    worker_pods: BTreeMap<String, Vec<Worker>>,
    /// How many worker pods were made.
    workers_made: usize,
    /// Worker pods that went while a replica was on them.
    pub(crate) missed: Vec<String>,
    pub(crate) notes: Vec<Note>,
    /// Clusters that requests were sent to, one after the other.
    pub(crate) served_by: Vec<String>,
    /// When requests were no longer sent to a cluster, by its uid: another may have its name later, and has served nobody.
    left_at: BTreeMap<String, Timestamp>,
    objects: BTreeMap<Key, Value>,
    observed: BTreeMap<String, ServeObservation>,
    versions: u64,
}

/// Which writes of a plan get through, by their place in it.
pub(crate) type Filter<'a> = &'a dyn Fn(usize) -> bool;

impl Stage {
    /// A world with one service.
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

    /// Changes the service as its owner would.
    pub(crate) fn edit(&mut self, patch: Value) {
        self.patch(&("RayService".into(), "chat".into()), &patch);
    }

    /// Deletes an object as a person would.
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

    /// A new process takes over.
    pub(crate) fn restart(&mut self) {
        self.observed.clear();
    }

    /// The head of a cluster dies, and comes up without its applications.
    pub(crate) fn lose_head(&mut self, cluster: &str) {
        // Requests that are sent to it by now were sent while it was well.
        self.settle();
        self.dashboards.remove(&self.uid_of(cluster).expect("the cluster is there"));
        self.objects.remove(&("Pod".to_owned(), format!("{cluster}-head")));
        let key = ("RayCluster".to_owned(), cluster.to_owned());
        self.patch(&key, &json!({"status": {"conditions": []}}));
    }

    /// Plays until `seconds` have passed.
    pub(crate) fn play(&mut self, seconds: i64) {
        let end = self.now + SignedDuration::from_secs(seconds);
        while self.now < end {
            self.beat(end, &|_| true);
        }
    }

    /// Plans once, carries out what gets through, and lets time pass if there was nothing to do. Returns the writes planned.
    pub(crate) fn beat(&mut self, end: Timestamp, gets_through: Filter<'_>) -> usize {
        self.settle();
        let plan = self.plan();
        let writes = plan.writes.len();
        let mut written = BTreeSet::new();
        for (_, write) in plan.writes.iter().enumerate().filter(|(index, _)| gets_through(*index)) {
            if written.insert(write.target.clone()) {
                self.carry_out(write);
            }
        }
        let told: Vec<Note> = plan.notes.into_iter().filter(|note| !self.notes.contains(note)).collect();
        self.notes.extend(told);
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

    /// What the planner asks for now.
    pub(crate) fn plan(&self) -> Plan {
        let Some(service) = self.service() else { return Plan::default() };
        let (clusters, pods, services) = (self.clusters(), self.all::<Pod>("Pod"), self.all::<Service>("Service"));
        let slices = self.endpoints();
        let revisions = self.all::<ControllerRevision>("ControllerRevision");
        let configs = revisions.iter().filter_map(|object| Some((object, kept::read(object)?)));
        let configs: Vec<_> = configs.collect();
        let (gateways, classes) = (self.all::<Gateway>("Gateway"), self.all("GatewayClass"));
        let (named, leading) = (route_name(&service), route_names(&service));
        let mut routes = self.all::<HTTPRoute>("HTTPRoute");
        routes.retain(|route| leading.contains(&route.name_any()));
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
                route: routes.iter().find(|route| route.name_any() == named),
                former: routes.iter().filter(|route| route.name_any() != named).collect(),
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
        self.clusters().into_iter().find(|cluster| cluster.name_any() == name).expect("the cluster is there")
    }

    /// The names of the clusters that aren't being deleted.
    pub(crate) fn living(&self) -> Vec<String> {
        let living = self.clusters().into_iter().filter(|cluster| cluster.metadata.deletion_timestamp.is_none());
        living.map(|cluster| cluster.name_any()).collect()
    }

    /// Opens or closes the gate of a cluster.
    pub(crate) fn set_gate(&mut self, cluster: &str, open: bool) {
        self.patch(&("RayCluster".into(), cluster.into()), &json!({"spec": {"suspend": !open}}));
    }

    /// The object with this name.
    pub(crate) fn object(&self, kind: &str, name: &str) -> Option<&Value> {
        self.objects.get(&(kind.to_owned(), name.to_owned()))
    }

    /// The names of the objects of a kind.
    pub(crate) fn names(&self, kind: &str) -> Vec<String> {
        self.objects.keys().filter(|(of, _)| of == kind).map(|(_, name)| name.clone()).collect()
    }

    /// The cluster that requests are sent to.
    pub(crate) fn leads_to(&self) -> Option<String> {
        let serve = format!("{}-serve-svc", self.service()?.name_any());
        let selector = self.object("Service", &serve)?.pointer("/spec/selector/ray.io~1cluster")?;
        selector.as_str().map(str::to_owned)
    }

    fn uid_of(&self, cluster: &str) -> Option<String> {
        self.object("RayCluster", cluster)?.pointer("/metadata/uid")?.as_str().map(str::to_owned)
    }

    /// Whether requests were sent to a cluster, and are no longer.
    pub(crate) fn is_left(&self, cluster: &str) -> bool {
        self.uid_of(cluster).is_some_and(|uid| self.left_at.contains_key(&uid))
    }

    /// Status and reason of a condition of the service.
    pub(crate) fn condition(&self, type_: &str) -> Option<(String, String)> {
        let status = self.service()?.status?;
        let condition = condition::get(&status.conditions, type_)?;
        Some((condition.status.clone(), condition.reason.clone()))
    }

    /// The message of a condition of the service.
    pub(crate) fn message(&self, type_: &str) -> String {
        let status = self.service().and_then(|service| service.status).unwrap_or_default();
        condition::get(&status.conditions, type_).map(|condition| condition.message.clone()).unwrap_or_default()
    }

    /// Names of the active and the pending cluster in the status.
    pub(crate) fn named(&self) -> (Option<String>, Option<String>) {
        let status = self.service().and_then(|service| service.status).unwrap_or_default();
        let name = |status: Option<sluice_api::ray::RayServiceStatus>| status?.ray_cluster_name;
        (name(status.active_service_status), name(status.pending_service_status))
    }

    /// The configurations that a cluster was given.
    pub(crate) fn applied(&self, cluster: &str) -> Vec<Value> {
        let uid = self.uid_of(cluster).expect("the cluster is there");
        self.dashboards.get(&uid).map(|dashboard| dashboard.applied.clone()).unwrap_or_default()
    }

    pub(crate) fn told(&self, reason: &str) -> usize {
        self.notes.iter().filter(|note| note.reason == reason).count()
    }

    fn all<K: DeserializeOwned>(&self, kind: &str) -> Vec<K> {
        let objects = self.objects.iter().filter(|((of, _), _)| of == kind);
        objects.map(|(_, object)| serde_json::from_value(object.clone()).expect("it is of its kind")).collect()
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
        let is_held = object.pointer("/metadata/finalizers").is_some_and(|finalizers| finalizers != &json!([]));
        if object.pointer("/metadata/deletionTimestamp").is_some() && !is_held {
            self.objects.remove(key);
        }
    }

    fn carry_out(&mut self, write: &Write) {
        let key = (write.target.kind.clone(), write.target.name.clone());
        match &write.op {
            WriteOp::Create(object) => self.create(&write.target.kind, object.clone()),
            WriteOp::Patch(patch) | WriteOp::PatchStatus(patch) => {
                let current = self.objects.get(&key).map(|object| &object["metadata"]["resourceVersion"]);
                assert_eq!(current, patch.pointer("/metadata/resourceVersion"), "{} is patched as it is", write.target);
                let mut patch = patch.clone();
                patch["metadata"].as_object_mut().expect("metadata").remove("resourceVersion");
                self.patch(&key, &patch);
            }
            WriteOp::Delete { uid, foreground } => {
                let object = self.objects.get_mut(&key).expect("what is deleted is there");
                assert_eq!(object["metadata"]["uid"], json!(uid));
                if write.target.kind == "ControllerRevision" {
                    self.objects.remove(&key);
                    return;
                }
                assert!(foreground, "a cluster holds its quota until its pods are gone");
                assert!(!self.wants_to_serve() || self.leads_to().as_ref() != Some(&key.1), "it serves");
                assert!(!self.wants_to_serve() || self.share(&key.1) == 0, "it takes traffic");
                if let Some(left_at) = self.left_at.get(uid).filter(|_| self.wants_to_serve()) {
                    let kept = self.now.duration_since(*left_at);
                    let delay = self.service().and_then(|service| service.spec.ray_cluster_deletion_delay_seconds);
                    // Times are kept in whole seconds.
                    let least = SignedDuration::from_secs(i64::from(delay.unwrap_or(60)) - 1);
                    assert!(kept >= least, "{} was kept for only {kept:?}", key.1);
                }
                let now = self.now;
                let object = self.objects.get_mut(&key).expect("it is still there");
                object["metadata"]["finalizers"] = json!(["foregroundDeletion"]);
                object["metadata"]["deletionTimestamp"] = json!(now);
            }
        }
    }

    /// Whether the service is to run, so that what serves must not be taken away.
    fn wants_to_serve(&self) -> bool {
        let runs = |service: RayService| service.metadata.deletion_timestamp.is_none();
        let suspending = self.condition("Suspending").is_some_and(|(status, _)| status == "True");
        self.service().is_some_and(runs) && !suspending
    }

    /// What the operator of the clusters and the controllers of Kubernetes do.
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
            let uid = self.uid_of(&cluster).expect("the cluster is there");
            assert!(
                self.dashboards.get(&uid).is_some_and(|serve| serve.runs(self)),
                "{cluster} is not ready for requests"
            );
            let takes_requests = self
                .endpoints()
                .iter()
                .flat_map(|slice| slice.endpoints.iter().flatten())
                .any(|endpoint| endpoint.conditions.as_ref().and_then(|conditions| conditions.ready) == Some(true));
            assert!(takes_requests, "none of the pods of {cluster} takes requests");
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
        let uid = self.uid_of(&call.cluster).expect("the cluster is there");
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
