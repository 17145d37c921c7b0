//! Workload: the pods of a job as the unit of admission.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PodSpec, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::schema::{self, DNS_SUBDOMAIN};
use super::workload_status::WorkloadStatus;

/// Pattern of a DNS label (RFC 1123), as which pod sets are named.
pub(super) const DNS_LABEL: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";

/// Desired state of a Workload: its pods, its queue and its priority.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "kueue.x-k8s.io",
    version = "v1beta2",
    kind = "Workload",
    plural = "workloads",
    namespaced,
    shortname = "kwl",
    shortname = "kueueworkload",
    shortname = "kueueworkloads",
    status = "WorkloadStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "Workload is the unit of admission: the pods of a job, or of one slice of an elastic job.",
    selectable = ".status.admission.clusterQueue",
    printcolumn = r#"{"name": "Queue", "type": "string", "jsonPath": ".spec.queueName", "description": "LocalQueue that the workload was submitted to"}"#,
    printcolumn = r#"{"name": "Reserved in", "type": "string", "jsonPath": ".status.admission.clusterQueue", "description": "ClusterQueue in which quota is reserved"}"#,
    printcolumn = r#"{"name": "Admitted", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Admitted')].status", "description": "Whether the workload is admitted"}"#,
    printcolumn = r#"{"name": "Finished", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Finished')].status", "description": "Whether the workload is finished"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp", "description": "Time since this workload was created"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "!has(self.priorityClassRef) || has(self.priority)", "message": "priority should not be nil when priorityClassRef is set"},
]))]
pub struct WorkloadSpec {
    /// Groups of homogeneous pods.
    #[schemars(length(min = 1, max = 18), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub pod_sets: Vec<PodSet>,
    /// Name of the LocalQueue that the workload is submitted to.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub queue_name: Option<String>,
    /// Priority class that priority is taken from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class_ref: Option<PriorityClassRef>,
    /// Priority of the workload. Higher values are admitted first. Unset means 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Allows the workload to be admitted. Setting it to false evicts an admitted workload.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = true))]
    pub active: Option<bool>,
    /// Maximum total time for which the workload may be admitted, in seconds. After that it is
    /// deactivated.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub maximum_execution_time_seconds: Option<i32>,
    /// Gates that prevent the workload from preempting others while they are closed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub preemption_gates: Vec<PreemptionGate>,
}

/// Reference to the priority class that a priority is taken from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "(self.group == 'scheduling.k8s.io') ? self.kind == 'PriorityClass' : true", "message": "only the PriorityClass kind is allowed for the scheduling.k8s.io group"},
    {"rule": "(self.group == 'kueue.x-k8s.io') ? self.kind == 'WorkloadPriorityClass' : true", "message": "only the WorkloadPriorityClass kind is allowed for the kueue.x-k8s.io group"},
]))]
pub struct PriorityClassRef {
    /// API group of the class.
    pub group: PriorityClassGroup,
    /// Kind of the class.
    pub kind: PriorityClassKind,
    /// Name of the class.
    #[schemars(length(min = 1, max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub name: String,
}

/// API group of a priority class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PriorityClassGroup {
    /// Group of WorkloadPriorityClass.
    #[serde(rename = "kueue.x-k8s.io")]
    Kueue,
    /// Group of PriorityClass, the priority class of pods.
    #[serde(rename = "scheduling.k8s.io")]
    Scheduling,
}

/// Kind of a priority class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PriorityClassKind {
    /// Kind in group `kueue.x-k8s.io`.
    WorkloadPriorityClass,
    /// Kind in group `scheduling.k8s.io`.
    PriorityClass,
}

/// A group of homogeneous pods.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "has(self.minCount) ? self.minCount <= self.count : true", "message": "minCount should be positive and less or equal to count"},
]))]
pub struct PodSet {
    /// Name of the pod set, unique within the workload.
    #[serde(default = "main_pod_set")]
    #[schemars(length(max = 63), regex(pattern = DNS_LABEL))]
    pub name: String,
    /// Template of the pods. The API server stores it without validating it.
    pub template: PodTemplate,
    /// Number of pods.
    #[serde(default = "one")]
    #[schemars(range(min = 0))]
    pub count: i32,
    /// Minimum number of pods for partial admission. Unset means that all pods must be admitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub min_count: Option<i32>,
    /// Topology constraints of the pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology_request: Option<PodSetTopologyRequest>,
}

pub(super) fn main_pod_set() -> String {
    super::names::DEFAULT_POD_SET.to_owned()
}

fn one() -> i32 {
    1
}

/// Pod template that is stored as submitted, and decoded only where it is read. It is kept as JSON
/// text, of which clones share one copy: a tree of values takes ten times as much memory, and
/// templates make up most of a Workload.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema)]
pub struct PodTemplate(#[schemars(schema_with = "schema::opaque_object")] Arc<str>);

impl PodTemplate {
    /// Wraps a template.
    ///
    /// # Errors
    /// Returns an error if the template does not serialize.
    pub fn new(template: &PodTemplateSpec) -> Result<Self, serde_json::Error> {
        serde_json::to_value(template).map(Self::from)
    }

    /// Decodes the template.
    pub fn decode(&self) -> Value {
        // The text was written from a value.
        serde_json::from_str(&self.0).unwrap_or_default()
    }

    /// Decodes `spec` as `T`, which may have fewer fields than a pod spec. Returns the default if the
    /// template has no `spec`.
    ///
    /// # Errors
    /// Returns an error if `spec` has another schema than `T`.
    pub fn decode_spec<T: DeserializeOwned + Default>(&self) -> Result<T, serde_json::Error> {
        match self.decode().get_mut("spec") {
            Some(spec) => serde_json::from_value(spec.take()),
            None => Ok(T::default()),
        }
    }

    /// Decodes the pod spec. It is empty if the template has none.
    ///
    /// # Errors
    /// Returns an error if `spec` is not a pod spec.
    pub fn pod_spec(&self) -> Result<PodSpec, serde_json::Error> {
        self.decode_spec()
    }
}

impl Default for PodTemplate {
    fn default() -> Self {
        Self(Arc::from("null"))
    }
}

impl From<Value> for PodTemplate {
    fn from(template: Value) -> Self {
        Self(template.to_string().into())
    }
}

impl Serialize for PodTemplate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.decode().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for PodTemplate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer).map(Self::from)
    }
}

/// Topology constraints of the pods of a pod set.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSetTopologyRequest {
    /// Topology level at which all pods must be in one domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub required: Option<String>,
    /// Topology level at which all pods should be in one domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub preferred: Option<String>,
    /// Allows the pods to be anywhere in the topology.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unconstrained: Option<bool>,
    /// Label that holds the index of a pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 317))]
    pub pod_index_label: Option<String>,
    /// Label that holds the index of the replicated job of a pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 317))]
    pub sub_group_index_label: Option<String>,
    /// Number of replicated jobs in the pod set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub sub_group_count: Option<i32>,
    /// Name of the group of pod sets that are assigned the same flavor and topology domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub pod_set_group_name: Option<String>,
    /// Topology level at which each slice of the pod set must be in one domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub pod_set_slice_required_topology: Option<String>,
    /// Number of pods in each slice of the pod set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub pod_set_slice_size: Option<i32>,
    /// Nested slices of the pod set, from the coarsest to the finest level.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 3), extend("x-kubernetes-list-type" = "atomic"))]
    pub podset_slice_required_topology_constraints: Vec<PodsetSliceRequiredTopologyConstraint>,
}

/// One level of nested slices of a pod set.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PodsetSliceRequiredTopologyConstraint {
    /// Topology level at which each slice must be in one domain.
    #[schemars(length(min = 1, max = 63))]
    pub topology: String,
    /// Number of pods in each slice.
    #[schemars(range(min = 1))]
    pub size: i32,
}

/// A gate that prevents the workload from preempting others while it is closed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PreemptionGate {
    /// Name of the gate.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
}

impl Workload {
    /// Returns the conditions in the status.
    pub fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map_or(&[], |status| &status.conditions)
    }
}
