//! Clusters and pods for tests.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::networking::v1::Ingress;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_core::ResourceExt;
use serde_json::{Value, json};

use super::access::Access;
use super::auth::Token;
use super::{Grant, Mark, Task, View, plan};
use sluice_api::condition;
use sluice_api::ray::{RayCluster, RayClusterSpec, WorkerGroupSpec, names};
use sluice_plan::{ObjectRef, Plan, Write, WriteOp};

/// Returns RayCluster `default/demo` with a head of 1 CPU and 2Gi, and no workers.
pub(crate) fn cluster() -> RayCluster {
    serde_json::from_value(json!({
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": "demo", "namespace": "default", "uid": "uid-1", "generation": 1, "resourceVersion": "7"},
        "spec": {
            "rayVersion": "2.53.0",
            "headGroupSpec": {"template": {"spec": {"containers": [{
                "name": "ray-head",
                "image": "rayproject/ray:2.53.0",
                "resources": {"limits": {"cpu": 1, "memory": "2Gi"}},
            }]}}},
        },
    }))
    .expect("the fixture is a RayCluster")
}

/// Returns a worker group whose pods request 500m CPU and 1Gi.
pub(crate) fn worker(name: &str, replicas: i32) -> WorkerGroupSpec {
    serde_json::from_value(json!({
        "groupName": name,
        "replicas": replicas,
        "minReplicas": 0,
        "maxReplicas": 100,
        "numOfHosts": 1,
        "template": {"spec": {"containers": [{
            "name": "ray-worker",
            "image": "rayproject/ray:2.53.0",
            "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}},
        }]}},
    }))
    .expect("the fixture is a worker group")
}

/// Returns [`cluster`] with one worker group `small` of this size.
pub(crate) fn cluster_with_workers(replicas: i32) -> RayCluster {
    let mut cluster = cluster();
    cluster.spec.worker_group_specs = vec![worker("small", replicas)];
    cluster
}

/// Returns [`cluster`] with a merge patch applied to its spec.
pub(crate) fn changed(patch: Value) -> RayCluster {
    let mut object = serde_json::to_value(cluster()).expect("a RayCluster is JSON");
    merge(&mut object["spec"], patch);
    serde_json::from_value(object).expect("the patched fixture is a RayCluster")
}

fn merge(target: &mut Value, patch: Value) {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            for (name, value) in patch {
                if value.is_null() {
                    target.remove(&name);
                } else {
                    merge(target.entry(name).or_insert(Value::Null), value);
                }
            }
        }
        (target, patch) => *target = patch,
    }
}

/// Simulated API server for one cluster: it applies the writes of a plan, and tests set the phases
/// of pods.
pub(crate) struct Stage {
    pub(crate) cluster: RayCluster,
    pub(crate) pods: BTreeMap<String, Pod>,
    /// Pods whose creation was requested and that the watch has not shown.
    pub(crate) arriving: Vec<Pod>,
    pub(crate) services: BTreeMap<String, Service>,
    pub(crate) ingress: Option<Ingress>,
    pub(crate) access: Access,
    pub(crate) token: Token,
    pub(crate) grant: Grant,
    pub(crate) marks: BTreeMap<String, Mark>,
    pub(crate) payer: Option<ObjectRef>,
    pub(crate) trims_autoscaled: bool,
    pub(crate) now: Timestamp,
    /// ServiceAccounts and RBAC objects created for the autoscaler.
    pub(crate) made_access: Vec<Value>,
    made: u32,
}

impl Stage {
    pub(crate) fn new(cluster: RayCluster) -> Self {
        let now = "2026-01-01T00:00:00Z".parse().expect("a time");
        Self {
            cluster,
            pods: BTreeMap::new(),
            arriving: Vec::new(),
            services: BTreeMap::new(),
            ingress: None,
            access: Access::default(),
            token: Token::Kept,
            grant: Grant::Ungated,
            marks: BTreeMap::new(),
            payer: None,
            trims_autoscaled: false,
            now,
            made_access: Vec::new(),
            made: 0,
        }
    }

    /// Returns the operator's plan for the current state.
    pub(crate) fn plan(&self) -> Plan {
        plan(&View {
            cluster: &self.cluster,
            groups: &super::validate::groups(&self.cluster),
            rejected: &[],
            pods: self.pods.values().collect(),
            arriving: self.arriving.iter().collect(),
            services: self.services.values().collect(),
            ingress: self.ingress.as_ref(),
            access: self.access,
            token: self.token.clone(),
            cleanup: None,
            shares_storage_with: None,
            task: Task::Run,
            revision: None,
            grant: self.grant.clone(),
            marks: self.marks.clone(),
            payer: self.payer.clone(),
            setback: None,
            trims_autoscaled: self.trims_autoscaled,
            now: self.now,
        })
    }

    /// Applies the current plan, and advances the clock by 1 s.
    pub(crate) fn step(&mut self) -> Plan {
        let plan = self.plan();
        plan.writes.iter().for_each(|write| self.take(write));
        self.now = self.now.checked_add(SignedDuration::from_secs(1)).expect("in range");
        plan
    }

    /// Applies plans until one has no writes.
    pub(crate) fn settle(&mut self) {
        for _ in 0..20 {
            if self.step().writes.is_empty() {
                return;
            }
        }
        panic!("plans still have writes after 20 rounds: {:?}", self.plan().writes);
    }

    /// Changes the spec, as a user would.
    pub(crate) fn edit(&mut self, change: impl FnOnce(&mut RayClusterSpec)) {
        change(&mut self.cluster.spec);
        self.cluster.metadata.generation = self.cluster.metadata.generation.map(|generation| generation + 1);
    }

    /// Makes every pod running and ready.
    pub(crate) fn all_ready(&mut self) {
        let names: Vec<_> = self.pods.keys().cloned().collect();
        names.iter().for_each(|name| self.set_phase(name, "Running"));
    }

    /// Sets the phase of a pod; a running pod is ready.
    pub(crate) fn set_phase(&mut self, name: &str, phase: &str) {
        let ready = if phase == "Running" { "True" } else { "False" };
        let pod = self.pods.get_mut(name).expect("the pod is there");
        let status = json!({"phase": phase, "podIP": "198.18.0.1", "conditions": [{"type": "Ready", "status": ready}]});
        pod.status = serde_json::from_value(status).expect("a pod status");
    }

    /// Returns the number of gated pods.
    pub(crate) fn gated(&self) -> usize {
        self.pods.values().filter(|pod| super::pods::is_gated(pod)).count()
    }

    /// Removes the terminating pods.
    pub(crate) fn pods_gone(&mut self) {
        self.pods.retain(|_, pod| pod.metadata.deletion_timestamp.is_none());
    }

    /// Returns the names of the pods of a group, sorted.
    pub(crate) fn names(&self, group: &str) -> Vec<String> {
        let of_group =
            self.pods.values().filter(|pod| pod.labels().get(names::GROUP_LABEL).is_some_and(|g| g == group));
        of_group.map(ResourceExt::name_any).collect()
    }

    /// Returns status and reason of a condition; `None` if it is not set.
    pub(crate) fn condition(&self, type_: &str) -> Option<(&str, &str)> {
        let conditions = &self.cluster.status.as_ref()?.conditions;
        condition::get(conditions, type_).map(|condition| (condition.status.as_str(), condition.reason.as_str()))
    }

    fn grant_access(&mut self, write: &Write, object: &Value) {
        let exists = match write.target.kind.as_str() {
            "ServiceAccount" => &mut self.access.account,
            "Role" => &mut self.access.role,
            _ => &mut self.access.binding,
        };
        assert!(!std::mem::replace(exists, true), "{} already exists", write.target);
        self.made_access.push(object.clone());
    }

    fn take(&mut self, write: &Write) {
        let name = write.target.name.clone();
        match (&write.op, write.target.kind.as_str()) {
            (WriteOp::Create(value), "Pod") => {
                let mut pod: Pod = serde_json::from_value(value.clone()).expect("a pod");
                self.made += 1;
                pod.metadata.uid = Some(format!("pod-{}", self.made));
                pod.metadata.creation_timestamp = Some(Time(self.now));
                assert!(self.pods.insert(name.clone(), pod).is_none(), "{name} already exists");
            }
            (WriteOp::Create(value), "Service") => {
                let service = serde_json::from_value(value.clone()).expect("a Service");
                assert!(self.services.insert(name.clone(), service).is_none(), "{name} already exists");
            }
            (WriteOp::Patch(patch), "Service") => {
                let service = self.services.get_mut(&name).expect("a Service that is patched is there");
                let mut patched = serde_json::to_value(&*service).expect("JSON");
                merge(&mut patched, patch.clone());
                *service = serde_json::from_value(patched).expect("a Service");
            }
            (WriteOp::Create(value), "ServiceAccount" | "Role" | "RoleBinding") => self.grant_access(write, value),
            (WriteOp::Create(value), "Ingress") => {
                assert!(self.ingress.is_none(), "{name} already exists");
                self.ingress = serde_json::from_value(value.clone()).expect("an Ingress");
            }
            (WriteOp::Patch(patch), "Ingress") => {
                let mut ingress = serde_json::to_value(&self.ingress).expect("JSON");
                merge(&mut ingress, patch.clone());
                self.ingress = serde_json::from_value(ingress).expect("an Ingress");
            }
            (WriteOp::Delete { .. }, "Ingress") => self.ingress = None,
            (WriteOp::Delete { uid, .. }, "Pod") => {
                let pod = self.pods.get_mut(&name).expect("a pod that is deleted is there");
                assert_eq!(pod.metadata.uid.as_ref(), Some(uid));
                pod.metadata.deletion_timestamp = Some(Time(self.now));
            }
            (WriteOp::PatchStatus(patch), "RayCluster") => {
                let mut status = serde_json::to_value(self.cluster.status.clone().unwrap_or_default()).expect("JSON");
                merge(&mut status, patch["status"].clone());
                self.cluster.status = serde_json::from_value(status).expect("a status");
            }
            (op, kind) => panic!("unexpected: {} {kind} {name}", op.name()),
        }
    }
}
