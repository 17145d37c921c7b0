//! RayCluster: a head and groups of workers.

// Every printer column repeats the keys of the others.
#![allow(clippy::duplicated_attributes)]

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::PodTemplate;
use super::options::{
    AuthOptions, AutoscalerOptions, GcsFaultToleranceOptions, HistoryServerOptions, IngressOptions,
    NetworkPolicyConfig, RayClusterUpgradeStrategy, StringMap, TlsOptions,
};
use super::schema;

/// What a Ray cluster is made of.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "ray.io",
    version = "v1",
    kind = "RayCluster",
    plural = "rayclusters",
    category = "all",
    namespaced,
    status = "RayClusterStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "RayCluster is a Ray head and groups of Ray workers.",
    printcolumn(name = "desired workers", json_path = ".status.desiredWorkerReplicas", type_ = "integer"),
    printcolumn(name = "available workers", json_path = ".status.availableWorkerReplicas", type_ = "integer"),
    printcolumn(name = "cpus", json_path = ".status.desiredCPU", type_ = "string"),
    printcolumn(name = "memory", json_path = ".status.desiredMemory", type_ = "string"),
    printcolumn(name = "gpus", json_path = ".status.desiredGPU", type_ = "string"),
    printcolumn(name = "tpus", json_path = ".status.desiredTPU", type_ = "string", priority = 1),
    printcolumn(name = "status", json_path = ".status.state", type_ = "string"),
    printcolumn(
        name = "quota",
        json_path = ".status.conditions[?(@.type=='sluice.dev/Admitted')].reason",
        type_ = "string"
    ),
    printcolumn(name = "age", json_path = ".metadata.creationTimestamp", type_ = "date"),
    printcolumn(name = "head pod IP", json_path = ".status.head.podIP", type_ = "string", priority = 1),
    printcolumn(name = "head service IP", json_path = ".status.head.serviceIP", type_ = "string", priority = 1)
)]
#[serde(rename_all = "camelCase")]
pub struct RayClusterSpec {
    /// What happens to running pods when the spec changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upgrade_strategy: Option<RayClusterUpgradeStrategy>,
    /// Who may talk to Ray.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth_options: Option<AuthOptions>,
    /// Whether the cluster has no pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
    /// Who reconciles the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::managed_by")]
    pub managed_by: Option<String>,
    /// The autoscaler that runs beside the head.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoscaler_options: Option<AutoscalerOptions>,
    /// Annotations of the head Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_service_annotations: Option<StringMap>,
    /// Whether Ray's autoscaler sets the worker counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enable_in_tree_autoscaling: Option<bool>,
    /// How the cluster outlives its head.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gcs_fault_tolerance_options: Option<GcsFaultToleranceOptions>,
    /// What the history server needs of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history_server_options: Option<HistoryServerOptions>,
    /// Who may reach the cluster's pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_policy: Option<NetworkPolicyConfig>,
    /// Encryption between the cluster's pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_options: Option<TlsOptions>,
    /// The head.
    pub head_group_spec: HeadGroupSpec,
    /// Version of Ray in the images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ray_version: Option<String>,
    /// The workers, by group.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "worker_groups")]
    pub worker_group_specs: Vec<WorkerGroupSpec>,
}

/// The API server can see by itself that a name is given twice. A list map would see it too, but Ray's autoscaler patches
/// groups by their index.
fn worker_groups(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let groups = generator.subschema_for::<Vec<WorkerGroupSpec>>();
    let mut groups = groups.as_object().cloned().unwrap_or_default();
    groups.insert("maxItems".into(), 256.into());
    groups.insert("description".into(), "The workers, by group; the names of the groups differ.".into());
    groups.insert(
        "x-kubernetes-validations".into(),
        serde_json::json!([{
            "rule": "self.all(group, self.exists_one(other, other.groupName == group.groupName))",
            "message": "each groupName may be used once only",
        }]),
    );
    groups.into()
}

/// The head.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HeadGroupSpec {
    /// What the head pod looks like.
    pub template: PodTemplate,
    /// What the head Service looks like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::opaque_object")]
    pub head_service: Option<Value>,
    /// Whether the dashboard gets an Ingress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enable_ingress: Option<bool>,
    /// What that Ingress looks like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress_options: Option<IngressOptions>,
    /// What Ray is told that the head has; the pod's own requests stay as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<StringMap>,
    /// Labels of the Ray node and of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<StringMap>,
    /// Flags of `ray start`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ray_start_params: Option<StringMap>,
    /// Type of the head Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_type: Option<String>,
}

/// A group of workers that look the same.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "self.minReplicas <= self.maxReplicas", "message": "minReplicas must not be above maxReplicas"},
]))]
pub struct WorkerGroupSpec {
    /// Whether the group has no pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
    /// Name of the group.
    #[schemars(length(min = 1, max = 63), extend("x-kubernetes-validations" = [
        {"rule": "self != 'headgroup'", "message": "groupName headgroup is the head's own"},
    ]))]
    pub group_name: String,
    /// How many replicas, each of `numOfHosts` pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0), extend("default" = 0))]
    pub replicas: Option<i32>,
    /// The least number of replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0), extend("default" = 0))]
    pub min_replicas: Option<i32>,
    /// The greatest number of replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0), extend("default" = 2147483647))]
    pub max_replicas: Option<i32>,
    /// After how many idle seconds the autoscaler removes a worker of this group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout_seconds: Option<i32>,
    /// Groups of higher priority are scaled up first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = 0))]
    pub priority: Option<i32>,
    /// What Ray is told that each worker has; the pods' own requests stay as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<StringMap>,
    /// Labels of the Ray nodes and of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<StringMap>,
    /// Flags of `ray start`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ray_start_params: Option<StringMap>,
    /// What each pod looks like.
    pub template: PodTemplate,
    /// Which pods go first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_strategy: Option<ScaleStrategy>,
    /// Pods of a replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1), extend("default" = 1))]
    pub num_of_hosts: Option<i32>,
}

/// Which pods go first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScaleStrategy {
    /// Names of the pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workers_to_delete: Vec<String>,
}

/// What became of a Ray cluster.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RayClusterStatus {
    /// `ready`, `suspended`, or nothing; deprecated by the conditions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// CPUs that all wanted pods request.
    #[serde(rename = "desiredCPU", default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub desired_cpu: Option<Quantity>,
    /// Memory that all wanted pods request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub desired_memory: Option<Quantity>,
    /// GPUs that all wanted pods request.
    #[serde(rename = "desiredGPU", default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub desired_gpu: Option<Quantity>,
    /// TPUs that all wanted pods request.
    #[serde(rename = "desiredTPU", default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub desired_tpu: Option<Quantity>,
    /// When anything else here changed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<Time>,
    /// When each state was entered last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_transition_times: Option<BTreeMap<String, Time>>,
    /// Ports of the head Service, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoints: Option<StringMap>,
    /// Where the head is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<HeadInfo>,
    /// Why the cluster is in its state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What holds of the cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Worker pods that are ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_worker_replicas: Option<i32>,
    /// Worker pods that run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_worker_replicas: Option<i32>,
    /// Worker pods that are wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired_worker_replicas: Option<i32>,
    /// The least number of worker pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_worker_replicas: Option<i32>,
    /// The greatest number of worker pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_worker_replicas: Option<i32>,
    /// Generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// Where the head is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HeadInfo {
    /// IP of the head pod.
    #[serde(rename = "podIP", default, skip_serializing_if = "Option::is_none")]
    pub pod_ip: Option<String>,
    /// Name of the head pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_name: Option<String>,
    /// IP of the head Service; that of the pod when the Service is headless.
    #[serde(rename = "serviceIP", default, skip_serializing_if = "Option::is_none")]
    pub service_ip: Option<String>,
    /// Name of the head Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_name: Option<String>,
}
