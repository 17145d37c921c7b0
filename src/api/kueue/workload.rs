//! Workload: the pods of a job, as one thing to admit.

use k8s_openapi::api::core::v1::{PodSpec, PodTemplateSpec};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema::{self, DNS_SUBDOMAIN};
use super::workload_status::WorkloadStatus;
use crate::api::shared::SharedJson;

/// Name of a pod set, in DNS form (RFC 1123).
pub(super) const DNS_LABEL: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";

/// What a job needs to run, and in which queue it waits for it.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
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
    doc = "Workload is the pods of a job, or of one slice of it, as one thing to admit.",
    selectable = ".status.admission.clusterQueue",
    printcolumn = r#"{"name": "Queue", "type": "string", "jsonPath": ".spec.queueName", "description": "Queue that this workload was submitted to"}"#,
    printcolumn = r#"{"name": "Reserved in", "type": "string", "jsonPath": ".status.admission.clusterQueue", "description": "ClusterQueue whose quota the workload holds"}"#,
    printcolumn = r#"{"name": "Admitted", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Admitted')].status", "description": "Whether it was admitted"}"#,
    printcolumn = r#"{"name": "Finished", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Finished')].status", "description": "Whether it finished"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp", "description": "Time since this workload was created"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "!has(self.priorityClassRef) || has(self.priority)", "message": "priority should not be nil when priorityClassRef is set"},
]))]
pub struct WorkloadSpec {
    /// Sets of pods of one shape.
    #[schemars(length(min = 1, max = 18), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub pod_sets: Vec<PodSet>,
    /// Name of the LocalQueue.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub queue_name: Option<String>,
    /// The class that the priority was taken from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class_ref: Option<PriorityClassRef>,
    /// Priority; higher goes first, 0 if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Whether the workload may be admitted; setting it to false evicts it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = true))]
    pub active: Option<bool>,
    /// How long it may be admitted in all, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub maximum_execution_time_seconds: Option<i32>,
    /// Gates that keep the workload from preempting others while closed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub preemption_gates: Vec<PreemptionGate>,
}

/// Names the class that a priority was taken from.
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
    /// A WorkloadPriorityClass.
    #[serde(rename = "kueue.x-k8s.io")]
    Kueue,
    /// A PriorityClass of pods.
    #[serde(rename = "scheduling.k8s.io")]
    Scheduling,
}

/// Kind of a priority class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PriorityClassKind {
    /// In the group `kueue.x-k8s.io`.
    WorkloadPriorityClass,
    /// In the group `scheduling.k8s.io`.
    PriorityClass,
}

/// A number of pods of one shape.
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
    /// The shape of each pod. The API server stores it as it is.
    pub template: PodTemplate,
    /// How many pods.
    #[serde(default = "one")]
    #[schemars(range(min = 0))]
    pub count: i32,
    /// The least number of pods that is worth admitting.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub min_count: Option<i32>,
    /// Where in the topology the pods are to be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology_request: Option<PodSetTopologyRequest>,
}

pub(super) fn main_pod_set() -> String {
    super::names::DEFAULT_POD_SET.to_owned()
}

fn one() -> i32 {
    1
}

/// A pod template that is kept as it was written and decoded only by who looks into it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct PodTemplate(#[schemars(schema_with = "schema::opaque_object")] pub SharedJson);

impl PodTemplate {
    /// Wraps a template.
    ///
    /// # Errors
    /// When the template does not serialise.
    pub fn new(template: &PodTemplateSpec) -> Result<Self, serde_json::Error> {
        serde_json::to_value(template).map(|template| Self(template.into()))
    }

    /// The pod spec; an empty one if the template has none.
    ///
    /// # Errors
    /// When it is not a pod spec.
    pub fn pod_spec(&self) -> Result<PodSpec, serde_json::Error> {
        self.0.get("spec").map_or_else(|| Ok(PodSpec::default()), PodSpec::deserialize)
    }
}

/// Where in the topology the pods of a pod set are to be.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSetTopologyRequest {
    /// All pods within one domain of this level.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub required: Option<String>,
    /// All pods within one domain of this level if possible.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub preferred: Option<String>,
    /// Anywhere in the topology.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unconstrained: Option<bool>,
    /// Label that numbers the pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 317))]
    pub pod_index_label: Option<String>,
    /// Label that numbers the groups of pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 317))]
    pub sub_group_index_label: Option<String>,
    /// Number of groups of pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub sub_group_count: Option<i32>,
    /// Pod sets of one such group get the same flavor.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub pod_set_group_name: Option<String>,
    /// Level within one domain of which each part of the pod set has to be.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub pod_set_slice_required_topology: Option<String>,
    /// Number of pods in each part.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub pod_set_slice_size: Option<i32>,
    /// Parts within parts, from the coarsest to the finest.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 3), extend("x-kubernetes-list-type" = "atomic"))]
    pub podset_slice_required_topology_constraints: Vec<PodsetSliceRequiredTopologyConstraint>,
}

/// One layer of parts of a pod set.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PodsetSliceRequiredTopologyConstraint {
    /// Level of the topology.
    #[schemars(length(min = 1, max = 63))]
    pub topology: String,
    /// Number of pods in each part.
    #[schemars(range(min = 1))]
    pub size: i32,
}

/// A gate that keeps the workload from preempting others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PreemptionGate {
    /// Name of the gate.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
}
