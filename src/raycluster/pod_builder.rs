//! Builds one pod of a group.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube_core::{Resource, ResourceExt};
use serde_json::Value;

use super::groups::{self, PodGroup, RayNodeType};
use super::names as naming;
use sluice_api::ray::{PodTemplate, RayCluster, names};
use sluice_plan::{Write, WriteOp};

/// Position of a pod in its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodIndex {
    /// Index of the replica, from 0.
    pub replica: u32,
    /// Index of the host in its replica, from 0.
    pub host: u32,
}

impl PodIndex {
    /// Returns the ordinal in a group with `hosts` pods per replica.
    fn ordinal(self, hosts: u32) -> u32 {
        self.replica.saturating_mul(hosts).saturating_add(self.host)
    }
}

/// Returns the name of the pod at this index.
pub fn pod_name(cluster: &RayCluster, group: &PodGroup, slot: PodIndex, attempt: u32) -> String {
    naming::pod(cluster, &group.name, group.node_type(), slot.ordinal(group.hosts_per_replica), attempt)
}

/// Builds the pod at this index from the group's template, with a name, index labels and an owner
/// reference to the cluster. The reference blocks foreground deletion of the cluster until the pod
/// is gone.
pub fn build_pod(cluster: &RayCluster, group: &PodGroup, slot: PodIndex, attempt: u32) -> Pod {
    let template = group.template.metadata.clone().unwrap_or_default();
    let mut labels = template.labels.unwrap_or_default();
    if group.node_type() == RayNodeType::Worker {
        labels.insert(names::REPLICA_INDEX_LABEL.to_owned(), slot.replica.to_string());
    }
    if group.hosts_per_replica > 1 {
        let replica = naming::replica(cluster, &group.name, slot.replica, attempt);
        labels.insert(names::REPLICA_NAME_LABEL.to_owned(), replica);
        labels.insert(names::HOST_INDEX_LABEL.to_owned(), slot.host.to_string());
    }
    Pod {
        metadata: ObjectMeta {
            name: Some(pod_name(cluster, group, slot, attempt)),
            namespace: cluster.namespace(),
            labels: Some(labels),
            annotations: template.annotations,
            finalizers: template.finalizers,
            owner_references: Some(vec![owner_reference(cluster)]),
            ..ObjectMeta::default()
        },
        spec: group.template.spec.clone(),
        status: None,
    }
}

/// Returns the controller owner reference to the cluster for its dependents.
pub fn owner_reference(cluster: &RayCluster) -> OwnerReference {
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
pub(super) fn create_write(cluster: &RayCluster, group: &PodGroup, pod: &Pod) -> Write {
    let mut write = Write::create(pod);
    if let (WriteOp::Create(value), Some(authored)) = (&mut write.op, groups::user_template(cluster, &group.name)) {
        restore_unknown_fields(authored, value);
    }
    write
}

/// Copies the unknown fields of the user's template to the serialized pod.
fn restore_unknown_fields(authored: &PodTemplate, pod: &mut Value) {
    let known = authored.parse().ok().and_then(|known| serde_json::to_value(known).ok());
    if let (Some(known), Some(authored), Some(built)) = (known, authored.0.get("spec"), pod.get_mut("spec")) {
        copy_missing_fields(authored, known.get("spec").unwrap_or(&Value::Null), built);
    }
}

/// Copies to `built` the fields of `authored` that are missing in `known`, which is `authored`
/// after a round trip through the typed API. Lists in `built` start with the authored items, since
/// the operator only appends.
fn copy_missing_fields(authored: &Value, known: &Value, built: &mut Value) {
    match (authored, known, built) {
        (Value::Object(authored), Value::Object(known), Value::Object(built)) => {
            for (name, value) in authored {
                match (known.get(name), built.get_mut(name)) {
                    (Some(known), Some(built)) => copy_missing_fields(value, known, built),
                    (None, None) if !value.is_null() => {
                        built.insert(name.clone(), value.clone());
                    }
                    _ => {}
                }
            }
        }
        (Value::Array(authored), Value::Array(known), Value::Array(built)) => {
            for ((authored, known), built) in authored.iter().zip(known).zip(built) {
                copy_missing_fields(authored, known, built);
            }
        }
        _ => {}
    }
}
