//! In-memory control plane: applies the engine's writes as the API server does, runs pods, and
//! answers Serve calls. Time advances only when there is no other work.

mod controllers;
mod deletion;
mod gateway_and_serve;
mod job_pods;

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use kube_core::TypeMeta;
use serde_json::{Value, json};

use crate::cluster_state::Object;
use crate::tokens::TokenKey;
use crate::{ApiServerLoad, Command, Components, Engine, EngineInput, Scope, WriteError, WriteId, WriteOutcome};
use sluice_api::condition;
use sluice_api::kueue::Workload;
use sluice_api::ray::{RayCluster, RayService, names};
use sluice_jobframework::managed::ManagedJobsPolicy;
use sluice_jobframework::retention::RetentionPolicy;
use sluice_plan::{EventRecord, ServeCall, ServeRequest, Write, WriteOp, WriteRank};
use sluice_plan::{ServeAnswer, ServeReply};
use sluice_queue::{Settings, WorkloadCounts};

/// Iteration limit at one point in time, for detecting non-convergence.
const MAX_ROUNDS: usize = 500;
const NAMESPACE: &str = "default";

/// Kind and name of an object.
type Name = (String, String);

/// A control plane, and the engine that watches it.
pub(super) struct ControlPlane {
    engine: Engine,
    pub(super) now: Timestamp,
    objects: BTreeMap<Name, Value>,
    versions: u64,
    engine_inputs: Vec<EngineInput>,
    pub(super) emitted_events: Vec<EventRecord>,
    /// Name fragments of pods that never become ready.
    pub(super) unready_pods: BTreeSet<String>,
    /// Name fragments of pods that get no node.
    pub(super) unscheduled_pods: BTreeSet<String>,
    /// Deleted pods stay terminating.
    pub(super) pods_linger: bool,
    /// The garbage collector runs.
    pub(super) collects_garbage: bool,
    /// Kind whose deletion events are lost.
    pub(super) lost_deletions: Option<&'static str>,
    /// Kind whose writes are delayed until [`arrive`](Self::arrive).
    pub(super) delayed_kind: Option<&'static str>,
    delayed_writes: Vec<(WriteId, Write)>,
    /// Kind whose responses and watch events are withheld until [`deliver_withheld`](Self::deliver_withheld).
    pub(super) silenced_kind: Option<&'static str>,
    withheld_inputs: Vec<EngineInput>,
    /// Kinds whose next write is lost on its way to the API server.
    pub(super) drop_next_write: BTreeSet<&'static str>,
    /// Load of the API server.
    pub(super) load: ApiServerLoad,
    /// Kinds whose next write fails, as on an overloaded server.
    pub(super) fail_next_write: BTreeSet<&'static str>,
    /// Kind whose creation is forbidden.
    pub(super) forbidden_creation: Option<&'static str>,
    /// Answer to dry runs of pods; `None` if they are accepted.
    pub(super) pod_rejection: Option<WriteError>,
    /// Number of forbidden creations, by kind.
    forbidden_creations: BTreeMap<String, usize>,
    /// Maximum number of pods that could run simultaneously.
    pub(super) most_running: usize,
    /// Last Serve configuration, by cluster.
    serve_configs: BTreeMap<String, Value>,
}

impl ControlPlane {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            engine: Engine::new(Components::ALL, settings, [], TokenKey::insecure()).with_pod_dry_runs(),
            now: "2026-01-01T00:00:00Z".parse().expect("a time"),
            objects: BTreeMap::new(),
            versions: 0,
            engine_inputs: Vec::new(),
            emitted_events: Vec::new(),
            unready_pods: BTreeSet::new(),
            unscheduled_pods: BTreeSet::new(),
            pods_linger: false,
            collects_garbage: true,
            lost_deletions: None,
            delayed_kind: None,
            delayed_writes: Vec::new(),
            silenced_kind: None,
            withheld_inputs: Vec::new(),
            drop_next_write: BTreeSet::new(),
            load: ApiServerLoad::Low,
            fail_next_write: BTreeSet::new(),
            forbidden_creation: None,
            pod_rejection: None,
            forbidden_creations: BTreeMap::new(),
            most_running: 0,
            serve_configs: BTreeMap::new(),
        }
    }

    /// Replaces the managed-jobs policy.
    pub(super) fn with_managed_jobs(self, rules: ManagedJobsPolicy) -> Self {
        Self { engine: self.engine.with_managed_jobs(rules), ..self }
    }

    /// Replaces the retention policy.
    pub(super) fn with_retention(self, retention: RetentionPolicy) -> Self {
        Self { engine: self.engine.with_retention(retention), ..self }
    }

    /// Runs the queue manager alone: another operator creates the pods of Ray objects.
    pub(super) fn with_external_ray_operator(self) -> Self {
        let components = Components { ray_operator: false, ..Components::ALL };
        let engine = Engine::new(components, Settings::default(), [], TokenKey::insecure());
        Self { engine: engine.with_pod_dry_runs(), ..self }
    }

    /// Creates or patches an object, as a user.
    pub(super) fn apply(&mut self, kind: &str, object: Value) {
        let name = (kind.to_owned(), object["metadata"]["name"].as_str().expect("a name").to_owned());
        if self.objects.contains_key(&name) {
            self.patch(&name, &object);
        } else {
            self.create(name, object);
        }
    }

    /// Breaks the watch of the Workloads, or lets it be verified that the API server is the same.
    pub(super) fn break_watch(&mut self, is_broken: bool) {
        let scope = Scope { kind: "Workload".to_owned(), namespace: None, label: None };
        let input = if is_broken { EngineInput::WatchBroken(scope) } else { EngineInput::HistoryVerified(scope) };
        self.engine_inputs.push(input);
    }

    /// Reports whether an object exists.
    pub(super) fn has(&self, kind: &str, name: &str) -> bool {
        self.objects.contains_key(&(kind.to_owned(), name.to_owned()))
    }

    /// Returns the names of all objects of a kind.
    pub(super) fn names(&self, kind: &str) -> Vec<String> {
        self.of_kind(kind).map(name_of).collect()
    }

    /// Returns an existing object.
    pub(super) fn object(&self, kind: &str, name: &str) -> &Value {
        &self.objects[&(kind.to_owned(), name.to_owned())]
    }

    /// Returns the message of the condition `sluice.dev/Admitted` if it is False, else an empty
    /// string.
    pub(super) fn pending_message(&self, kind: &str, name: &str) -> String {
        let conditions = self.object(kind, name)["status"]["conditions"].as_array().cloned();
        let mut conditions = conditions.unwrap_or_default().into_iter();
        let admitted = conditions.find(|found| found["type"] == "sluice.dev/Admitted" && found["status"] == "False");
        admitted.map(|found| found["message"].as_str().unwrap_or_default().to_owned()).unwrap_or_default()
    }

    /// Advances time, and runs the engine whenever it is due.
    pub(super) fn advance(&mut self, seconds: i64) {
        let end = self.now + SignedDuration::from_secs(seconds);
        self.run_until_idle();
        while let Some(wake) = self.engine.next_deadline().filter(|wake| *wake <= end) {
            self.now = wake.max(self.now);
            self.run_until_idle();
        }
        self.now = end;
        self.run_until_idle();
    }

    /// Returns the only slice of a job.
    pub(super) fn workload(&self, owner: &str) -> Workload {
        let mut slices = self.workloads(owner);
        assert_eq!(slices.len(), 1, "{owner} has one slice");
        slices.remove(0)
    }

    /// Returns the slices of a job, by name.
    pub(super) fn workloads(&self, owner: &str) -> Vec<Workload> {
        let of_owner =
            self.of_kind("Workload").filter(|slice| slice["metadata"]["ownerReferences"][0]["name"] == owner);
        of_owner.map(|slice| serde_json::from_value(slice.clone()).expect("a Workload")).collect()
    }

    /// Returns status and reason of a condition of a job's only slice.
    pub(super) fn slice_condition(&self, owner: &str, kind: &str) -> Option<(String, String)> {
        let conditions = self.workload(owner).status.unwrap_or_default().conditions;
        condition::get(&conditions, kind).map(|found| (found.status.clone(), found.reason.clone()))
    }

    pub(super) fn ray_clusters(&self) -> Vec<RayCluster> {
        self.of_kind("RayCluster").map(|it| serde_json::from_value(it.clone()).expect("a RayCluster")).collect()
    }

    /// Returns the names of the RayClusters of a service.
    pub(super) fn clusters_of_service(&self, service: &str) -> Vec<String> {
        let children = self.of_kind("RayCluster").filter(|it| it["metadata"]["ownerReferences"][0]["name"] == service);
        children.map(|child| child["metadata"]["name"].as_str().expect("a name").to_owned()).collect()
    }

    pub(super) fn service(&self, name: &str) -> RayService {
        let object = &self.objects[&("RayService".to_owned(), name.to_owned())];
        serde_json::from_value(object.clone()).expect("a RayService")
    }

    /// Counts the ungated pods of a cluster.
    pub(super) fn ungated_pod_count(&self, cluster: &str) -> usize {
        self.ungated_pods(cluster).count()
    }

    /// Counts the gated pods of a cluster.
    pub(super) fn gated_pod_count(&self, cluster: &str) -> usize {
        self.pods_of(cluster).filter(|pod| is_gated(pod)).count()
    }

    /// Iterates over the ungated pods of a cluster.
    pub(super) fn ungated_pods(&self, cluster: &str) -> impl Iterator<Item = &Value> {
        self.pods_of(cluster).filter(|pod| !is_gated(pod))
    }

    /// Returns the uids of all pods of a cluster.
    pub(super) fn pod_uids(&self, cluster: &str) -> BTreeSet<String> {
        self.pods_of(cluster).map(|pod| pod["metadata"]["uid"].to_string()).collect()
    }

    /// Returns the names of all pods that are neither gated nor finished, in order.
    pub(super) fn live_pod_names(&self) -> BTreeSet<String> {
        let is_live = |pod: &&Value| !is_gated(pod) && pod["status"]["phase"] != "Succeeded";
        let names = self.of_kind("Pod").filter(is_live).map(|pod| pod["metadata"]["name"].as_str());
        names.map(|name| name.unwrap_or_default().to_owned()).collect()
    }

    fn pods_of(&self, cluster: &str) -> impl Iterator<Item = &Value> {
        self.of_kind("Pod").filter(move |pod| pod["metadata"]["labels"][names::CLUSTER_LABEL] == cluster)
    }

    /// Counts the Events with this reason about objects of a kind.
    pub(super) fn event_count(&self, kind: &str, reason: &str) -> usize {
        self.emitted_events.iter().filter(|note| note.regarding.kind == kind && note.reason == reason).count()
    }

    /// Returns the ClusterQueues whose counts may have changed since the last call.
    pub(super) fn take_changed_counts(&mut self) -> Vec<(String, WorkloadCounts)> {
        self.engine.take_changed_counts()
    }

    /// Returns the number of forbidden creations of a kind.
    pub(super) fn forbidden_creation_count(&self, kind: &str) -> usize {
        self.forbidden_creations.get(kind).copied().unwrap_or(0)
    }

    fn of_kind(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.objects.iter().filter(move |((of, _), _)| of == kind).map(|(_, object)| object)
    }

    /// Runs controllers and engine until there is no work left at the current time.
    fn run_until_idle(&mut self) {
        for _ in 0..MAX_ROUNDS {
            self.run_controllers();
            let due = self.engine.next_deadline().is_some_and(|wake| wake <= self.now);
            if self.engine_inputs.is_empty() && !due {
                return;
            }
            let events = std::mem::take(&mut self.engine_inputs);
            for effect in self.engine.step(self.now, events) {
                match effect {
                    Command::Write(id, write) if self.delayed_kind == Some(write.target.kind.as_str()) => {
                        self.delayed_writes.push((id, write));
                    }
                    Command::Write(id, write) => self.process_write(id, write),
                    Command::EmitEvent(note) => self.emitted_events.push(note),
                    Command::DryRunPod(dry_run) => {
                        let result = self.pod_rejection.clone().map_or(Ok(()), Err);
                        self.engine_inputs.push(EngineInput::PodDryRunAnswered(dry_run.id, result));
                    }
                    Command::CallServe(call) => {
                        let reply = self.serve_reply(&call);
                        self.engine_inputs.push(EngineInput::ServeReplied(reply));
                    }
                }
            }
        }
        panic!("at {} the engine does not converge: {:#?}", self.now, self.emitted_events);
    }

    /// Returns the ranks and priorities of the delayed writes.
    pub(super) fn delayed_ranks(&self) -> Vec<(WriteRank, i32)> {
        self.delayed_writes.iter().map(|(_, write)| (write.rank, write.priority)).collect()
    }

    /// Processes the delayed writes.
    pub(super) fn deliver_delayed_writes(&mut self) {
        for (id, write) in std::mem::take(&mut self.delayed_writes) {
            self.process_write(id, write);
        }
    }

    /// Delivers the withheld responses and watch events.
    pub(super) fn deliver_withheld(&mut self) {
        self.silenced_kind = None;
        self.engine_inputs.append(&mut self.withheld_inputs);
    }

    fn process_write(&mut self, id: WriteId, write: Write) {
        let delivered = self.engine_inputs.len();
        let mut result = self.execute(&write);
        if self.silenced_kind == Some(write.target.kind.as_str()) {
            self.withheld_inputs.extend(self.engine_inputs.drain(delivered..));
            result = result.and_then(|_| Err(WriteError::unanswered("the connection is gone".to_owned())));
        }
        self.engine_inputs.push(EngineInput::Written { id, write: Box::new(write), result, load: self.load });
    }

    fn execute(&mut self, write: &Write) -> Result<WriteOutcome, WriteError> {
        let name = (write.target.kind.clone(), write.target.name.clone());
        let rejected = |code, message: &str| WriteError {
            code: Some(code),
            message: message.to_owned(),
            target_not_found: code == 404,
            retry_after: None,
        };
        if self.drop_next_write.remove(name.0.as_str()) {
            return Err(WriteError::unanswered("the connection is gone".to_owned()));
        }
        if self.fail_next_write.remove(name.0.as_str()) {
            return Err(rejected(500, "it is overloaded"));
        }
        let held = self.objects.get(&name);
        match (&write.op, held) {
            (WriteOp::Create(_), Some(_)) => return Err(rejected(409, "it exists")),
            (WriteOp::Create(_), None) if self.forbidden_creation == Some(name.0.as_str()) => {
                *self.forbidden_creations.entry(name.0).or_default() += 1;
                return Err(rejected(403, "it is forbidden"));
            }
            (WriteOp::Create(object), None) => self.create(name.clone(), object.clone()),
            (_, None) => return Err(rejected(404, "it is gone")),
            (WriteOp::Patch(body) | WriteOp::PatchStatus(body), Some(held)) => {
                let based_on = body.pointer("/metadata/resourceVersion");
                if based_on.is_some_and(|version| *version != held["metadata"]["resourceVersion"]) {
                    return Err(rejected(409, "it has changed"));
                }
                self.patch(&name, body);
            }
            (WriteOp::Delete { uid, foreground }, Some(held)) => {
                if held["metadata"]["uid"] != *uid {
                    return Err(rejected(409, "it is another"));
                }
                self.begin_deletion(&name, *foreground);
            }
        }
        Ok(self
            .objects
            .get(&name)
            .and_then(|object| decode_object(&name.0, object))
            .map_or(WriteOutcome::Deleted, WriteOutcome::Object))
    }

    fn create(&mut self, name: Name, mut object: Value) {
        self.versions += 1;
        let meta = &mut object["metadata"];
        meta["namespace"] = json!(NAMESPACE);
        meta["uid"] = json!(format!("uid-{}", self.versions));
        meta["creationTimestamp"] = json!(condition::whole_seconds(self.now));
        meta["generation"] = json!(1);
        self.objects.insert(name.clone(), object);
        self.record_version(&name);
    }

    fn patch(&mut self, name: &Name, patch: &Value) {
        let Some(object) = self.objects.get_mut(name) else { return };
        let before = object.clone();
        json_patch::merge(object, patch);
        object["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"].clone();
        if *object == before {
            return;
        }
        if object["spec"] != before["spec"] {
            object["metadata"]["generation"] = json!(before["metadata"]["generation"].as_i64().unwrap_or(0) + 1);
        }
        self.record_version(name);
        self.finish_deletion(name);
    }

    fn record_version(&mut self, name: &Name) {
        self.versions += 1;
        let object = self.objects.get_mut(name).expect("an existing object");
        object["metadata"]["resourceVersion"] = json!(self.versions.to_string());
        self.engine_inputs.extend(decode_object(&name.0, object).map(EngineInput::Applied));
    }

    fn serve_reply(&mut self, call: &ServeCall) -> ServeReply {
        let answer = match &call.request {
            ServeRequest::Get => {
                let applications =
                    self.serve_configs.get(&call.cluster).and_then(|config| config["applications"].as_array());
                let apps = applications
                    .into_iter()
                    .flatten()
                    .map(|app| (app["name"].as_str().unwrap_or_default().to_owned(), json!({"status": "RUNNING"})));
                let mut status = json!({"applications": apps.collect::<BTreeMap<_, _>>()});
                if let Some(config) = self.serve_configs.get(&call.cluster) {
                    status["target_capacity"] = config["target_capacity"].clone();
                    if let Some(app) = config.pointer("/applications/0/name").and_then(Value::as_str) {
                        status["applications"][app]["deployments"] =
                            json!(self.serve_deployments(&call.cluster, config));
                    }
                }
                ServeAnswer::Status(Ok(serde_json::from_value(status).expect("a status")))
            }
            ServeRequest::Put(config) => {
                self.serve_configs.insert(call.cluster.clone(), config.body().clone());
                ServeAnswer::Applied { config_hash: config.hash().to_owned(), result: Ok(()) }
            }
            ServeRequest::Healthz { pod, .. } => ServeAnswer::Health { pod: pod.clone(), result: Ok(()) },
        };
        ServeReply {
            namespace: call.namespace.clone(),
            cluster: call.cluster.clone(),
            uid: call.uid.clone(),
            head_uid: call.head_uid.clone(),
            called_at: self.now,
            answered_at: self.now,
            answer,
        }
    }
}

fn name_of(object: &Value) -> String {
    object["metadata"]["name"].as_str().expect("a name").to_owned()
}

fn owner_uid(object: &Value) -> Option<&Value> {
    object.pointer("/metadata/ownerReferences/0/uid")
}

fn is_deleted_in_foreground(object: &Value) -> bool {
    let finalizers = object["metadata"]["finalizers"].as_array();
    finalizers.is_some_and(|all| all.contains(&json!("foregroundDeletion")))
}

fn decode_object(kind: &str, object: &Value) -> Option<Object> {
    let group = match kind {
        "Pod" | "Service" | "ServiceAccount" | "Secret" | "Namespace" => "v1",
        "EndpointSlice" => "discovery.k8s.io/v1",
        "RayCluster" | "RayJob" | "RayService" => "ray.io/v1",
        "Job" => "batch/v1",
        "Role" | "RoleBinding" => "rbac.authorization.k8s.io/v1",
        "Ingress" => "networking.k8s.io/v1",
        "Gateway" | "GatewayClass" | "HTTPRoute" => "gateway.networking.k8s.io/v1",
        "ControllerRevision" => "apps/v1",
        _ => "kueue.x-k8s.io/v1beta2",
    };
    let of = TypeMeta { api_version: group.to_owned(), kind: kind.to_owned() };
    let mut object = object.clone();
    if matches!(
        kind,
        "ClusterQueue" | "Cohort" | "ResourceFlavor" | "WorkloadPriorityClass" | "Namespace" | "GatewayClass"
    ) {
        object["metadata"]["namespace"] = Value::Null;
    }
    Object::decode(&of, object).unwrap_or_else(|error| panic!("{kind}: {error}"))
}

fn is_gated(pod: &Value) -> bool {
    pod["spec"]["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty())
}
