//! Clusters and pods for tests.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::networking::v1::Ingress;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_core::ResourceExt;
use serde_json::{Value, json};

use super::auth::TokenSecret;
use super::autoscaler_rbac::AutoscalerRbac;
use super::revision::RevisionName;
use super::{ClusterContext, Grant, PodPolicy, PodSetInfo, plan};
use sluice_api::condition;
use sluice_api::pod;
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
pub(crate) fn cluster_with_patch(patch: Value) -> RayCluster {
    let mut object = serde_json::to_value(cluster()).expect("a RayCluster is JSON");
    merge_patch(&mut object["spec"], patch);
    serde_json::from_value(object).expect("the patched fixture is a RayCluster")
}

fn merge_patch(target: &mut Value, patch: Value) {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            for (name, value) in patch {
                if value.is_null() {
                    target.remove(&name);
                } else {
                    merge_patch(target.entry(name).or_insert(Value::Null), value);
                }
            }
        }
        (target, patch) => *target = patch,
    }
}

/// Simulated API server for one cluster: it applies the writes of a plan, and tests set the phases
/// of pods.
pub(crate) struct TestCluster {
    pub(crate) cluster: RayCluster,
    pub(crate) pods: BTreeMap<String, Pod>,
    /// Pods whose creation was requested and that the watch has not shown.
    pub(crate) expected_pods: Vec<Pod>,
    pub(crate) services: BTreeMap<String, Service>,
    pub(crate) ingress: Option<Ingress>,
    pub(crate) autoscaler_rbac: AutoscalerRbac,
    pub(crate) token_secret: TokenSecret,
    pub(crate) grant: Grant,
    pub(crate) pod_set_infos: BTreeMap<String, PodSetInfo>,
    pub(crate) covering_slice: Option<ObjectRef>,
    pub(crate) random_pod_delete: bool,
    pub(crate) now: Timestamp,
    /// ServiceAccounts and RBAC objects created for the autoscaler.
    pub(crate) created_rbac: Vec<Value>,
    created_pods: u32,
}

impl TestCluster {
    pub(crate) fn new(cluster: RayCluster) -> Self {
        let now = "2026-01-01T00:00:00Z".parse().expect("a time");
        Self {
            cluster,
            pods: BTreeMap::new(),
            expected_pods: Vec::new(),
            services: BTreeMap::new(),
            ingress: None,
            autoscaler_rbac: AutoscalerRbac::default(),
            token_secret: TokenSecret::Available,
            grant: Grant::Ungated,
            pod_set_infos: BTreeMap::new(),
            covering_slice: None,
            random_pod_delete: false,
            now,
            created_rbac: Vec::new(),
            created_pods: 0,
        }
    }

    /// Returns the operator's plan for the current state.
    pub(crate) fn plan(&self) -> Plan {
        plan(&ClusterContext {
            cluster: &self.cluster,
            groups: &super::validate::validated_groups(&self.cluster),
            rejected_spec_errors: &[],
            pods: self.pods.values().collect(),
            expected_pods: self.expected_pods.iter().collect(),
            services: self.services.values().collect(),
            ingress: self.ingress.as_ref(),
            autoscaler_rbac: self.autoscaler_rbac,
            token_secret: self.token_secret.clone(),
            redis_cleanup_job: None,
            shares_storage_with: None,
            pod_policy: PodPolicy::Reconcile,
            revision: RevisionName::Initial,
            grant: self.grant.clone(),
            pod_set_infos: self.pod_set_infos.clone(),
            covering_slice: self.covering_slice.clone(),
            replica_failure: None,
            random_pod_delete: self.random_pod_delete,
            now: self.now,
        })
    }

    /// Applies the current plan, and advances the clock by 1 s.
    pub(crate) fn reconcile_once(&mut self) -> Plan {
        let plan = self.plan();
        plan.writes.iter().for_each(|write| self.apply_write(write));
        self.now = self.now.checked_add(SignedDuration::from_secs(1)).expect("in range");
        plan
    }

    /// Applies plans until one has no writes.
    pub(crate) fn reconcile_until_stable(&mut self) {
        for _ in 0..20 {
            if self.reconcile_once().writes.is_empty() {
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
    pub(crate) fn make_all_ready(&mut self) {
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
    pub(crate) fn gated_pods(&self) -> usize {
        self.pods.values().filter(|pod| pod::is_gated(pod)).count()
    }

    /// Removes the terminating pods.
    pub(crate) fn remove_terminating_pods(&mut self) {
        self.pods.retain(|_, pod| pod.metadata.deletion_timestamp.is_none());
    }

    /// Returns the names of the pods of a group, sorted.
    pub(crate) fn pod_names(&self, group: &str) -> Vec<String> {
        let of_group =
            self.pods.values().filter(|pod| pod.labels().get(names::GROUP_LABEL).is_some_and(|g| g == group));
        of_group.map(ResourceExt::name_any).collect()
    }

    /// Returns status and reason of a condition; `None` if it is not set.
    pub(crate) fn condition(&self, type_: &str) -> Option<(&str, &str)> {
        let conditions = &self.cluster.status.as_ref()?.conditions;
        condition::get(conditions, type_).map(|condition| (condition.status.as_str(), condition.reason.as_str()))
    }

    fn record_rbac(&mut self, write: &Write, object: &Value) {
        let exists = match write.target.kind.as_str() {
            "ServiceAccount" => &mut self.autoscaler_rbac.service_account,
            "Role" => &mut self.autoscaler_rbac.role,
            _ => &mut self.autoscaler_rbac.role_binding,
        };
        assert!(!std::mem::replace(exists, true), "{} already exists", write.target);
        self.created_rbac.push(object.clone());
    }

    fn apply_write(&mut self, write: &Write) {
        let name = write.target.name.clone();
        match (&write.op, write.target.kind.as_str()) {
            (WriteOp::Create(value), "Pod") => {
                let mut pod: Pod = serde_json::from_value(value.clone()).expect("a pod");
                self.created_pods += 1;
                pod.metadata.uid = Some(format!("pod-{}", self.created_pods));
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
                merge_patch(&mut patched, patch.clone());
                *service = serde_json::from_value(patched).expect("a Service");
            }
            (WriteOp::Create(value), "ServiceAccount" | "Role" | "RoleBinding") => self.record_rbac(write, value),
            (WriteOp::Create(value), "Ingress") => {
                assert!(self.ingress.is_none(), "{name} already exists");
                self.ingress = serde_json::from_value(value.clone()).expect("an Ingress");
            }
            (WriteOp::Patch(patch), "Ingress") => {
                let mut ingress = serde_json::to_value(&self.ingress).expect("JSON");
                merge_patch(&mut ingress, patch.clone());
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
                merge_patch(&mut status, patch["status"].clone());
                self.cluster.status = serde_json::from_value(status).expect("a status");
            }
            (op, kind) => panic!("unexpected: {} {kind} {name}", op.operation()),
        }
    }
}
