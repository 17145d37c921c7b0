//! Builds one pod of a group.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube_core::{Resource, ResourceExt};
use serde_json::Value;

use super::groups::{self, PodGroup, Role};
use super::names as naming;
use sluice_api::ray::{PodTemplate, RayCluster, names};
use sluice_plan::{Write, WriteOp};

/// Position of a pod in its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot {
    /// Index of the replica, from 0.
    pub replica: u32,
    /// Index of the host in its replica, from 0.
    pub host: u32,
}

impl Slot {
    /// Returns the ordinal in a group with `hosts` pods per replica.
    fn number(self, hosts: u32) -> u32 {
        self.replica.saturating_mul(hosts).saturating_add(self.host)
    }
}

/// Returns the name of the pod at this index.
pub fn name(cluster: &RayCluster, group: &PodGroup, slot: Slot, attempt: u32) -> String {
    naming::pod(cluster, &group.name, group.role(), slot.number(group.hosts), attempt)
}

/// Builds the pod at this index from the group's template, with a name, index labels and an owner
/// reference to the cluster. The reference blocks foreground deletion of the cluster until the pod
/// is gone.
pub fn build(cluster: &RayCluster, group: &PodGroup, slot: Slot, attempt: u32) -> Pod {
    let template = group.template.metadata.clone().unwrap_or_default();
    let mut labels = template.labels.unwrap_or_default();
    if group.role() == Role::Worker {
        labels.insert(names::REPLICA_INDEX_LABEL.to_owned(), slot.replica.to_string());
    }
    if group.hosts > 1 {
        let replica = naming::replica(cluster, &group.name, slot.replica, attempt);
        labels.insert(names::REPLICA_NAME_LABEL.to_owned(), replica);
        labels.insert(names::HOST_INDEX_LABEL.to_owned(), slot.host.to_string());
    }
    Pod {
        metadata: ObjectMeta {
            name: Some(name(cluster, group, slot, attempt)),
            namespace: cluster.namespace(),
            labels: Some(labels),
            annotations: template.annotations,
            finalizers: template.finalizers,
            owner_references: Some(vec![owner(cluster)]),
            ..ObjectMeta::default()
        },
        spec: group.template.spec.clone(),
        status: None,
    }
}

/// Returns the controller owner reference to the cluster for its dependents.
pub fn owner(cluster: &RayCluster) -> OwnerReference {
    OwnerReference {
        api_version: RayCluster::api_version(&()).into_owned(),
        kind: RayCluster::kind(&()).into_owned(),
        name: cluster.name_any(),
        uid: cluster.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// Creates a pod, including the fields of the user's template that k8s-openapi's types do not know.
pub(super) fn create(cluster: &RayCluster, group: &PodGroup, pod: &Pod) -> Write {
    let mut write = Write::create(pod);
    if let (WriteOp::Create(value), Some(authored)) = (&mut write.op, groups::authored(cluster, &group.name)) {
        carry_unknown(authored, value);
    }
    write
}

/// Copies the unknown fields of the user's template to the serialized pod.
fn carry_unknown(authored: &PodTemplate, pod: &mut Value) {
    let known = authored.parse().ok().and_then(|known| serde_json::to_value(known).ok());
    if let (Some(known), Some(authored), Some(built)) = (known, authored.0.get("spec"), pod.get_mut("spec")) {
        carry(authored, known.get("spec").unwrap_or(&Value::Null), built);
    }
}

/// Copies to `built` the fields of `authored` that are missing in `known`, which is `authored`
/// after a round trip through the typed API. Lists in `built` start with the authored items, since
/// the operator only appends.
fn carry(authored: &Value, known: &Value, built: &mut Value) {
    match (authored, known, built) {
        (Value::Object(authored), Value::Object(known), Value::Object(built)) => {
            for (name, value) in authored {
                match (known.get(name), built.get_mut(name)) {
                    (Some(known), Some(built)) => carry(value, known, built),
                    (None, None) if !value.is_null() => {
                        built.insert(name.clone(), value.clone());
                    }
                    _ => {}
                }
            }
        }
        (Value::Array(authored), Value::Array(known), Value::Array(built)) => {
            for ((authored, known), built) in authored.iter().zip(known).zip(built) {
                carry(authored, known, built);
            }
        }
        _ => {}
    }
}
