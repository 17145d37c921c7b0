//! RayCluster: a head and groups of workers.

#![allow(clippy::duplicated_attributes, reason = "every `printcolumn` repeats the same keys")]

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::PodTemplate;
use super::options::{
    AuthOptions, AutoscalerOptions, GcsFaultToleranceOptions, HistoryServerOptions, IngressOptions,
    NetworkPolicyConfig, RayClusterUpgradeStrategy, StringMap, TlsOptions,
};
use super::schema;

/// Desired state of a RayCluster.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "ray.io",
    version = "v1",
    kind = "RayCluster",
    plural = "rayclusters",
    category = "all",
    namespaced,
    status = "RayClusterStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "RayCluster is a Ray cluster: a head pod and groups of worker pods.",
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
    /// Strategy for applying a change of the spec to running pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upgrade_strategy: Option<RayClusterUpgradeStrategy>,
    /// Authentication of Ray clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth_options: Option<AuthOptions>,
    /// Suspends the cluster: all its pods are deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
    /// Controller that reconciles the RayCluster. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::managed_by")]
    pub managed_by: Option<String>,
    /// Options of the Ray autoscaler container in the head pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoscaler_options: Option<AutoscalerOptions>,
    /// Annotations of the head Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_service_annotations: Option<StringMap>,
    /// Runs the Ray autoscaler, which sets the replicas of the worker groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enable_in_tree_autoscaling: Option<bool>,
    /// Fault tolerance of the GCS, by which the cluster survives a restart of the head.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gcs_fault_tolerance_options: Option<GcsFaultToleranceOptions>,
    /// Collection of logs and events for the Ray history server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history_server_options: Option<HistoryServerOptions>,
    /// NetworkPolicies of the cluster's pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_policy: Option<NetworkPolicyConfig>,
    /// TLS between the cluster's pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_options: Option<TlsOptions>,
    /// Spec of the head pod.
    pub head_group_spec: HeadGroupSpec,
    /// Version of Ray in the images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ray_version: Option<String>,
    /// Specs of the worker groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "worker_groups")]
    pub worker_group_specs: Vec<WorkerGroupSpec>,
}

/// Schema of the worker groups. A rule rejects duplicate names; a list map would too, but the Ray
/// autoscaler patches groups by index.
fn worker_groups(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let groups = generator.subschema_for::<Vec<WorkerGroupSpec>>();
    let mut groups = groups.as_object().cloned().unwrap_or_default();
    groups.insert("maxItems".into(), 256.into());
    groups.insert("description".into(), "Specs of the worker groups. Their names must be unique.".into());
    groups.insert(
        "x-kubernetes-validations".into(),
        serde_json::json!([{
            "rule": "self.all(group, self.exists_one(other, other.groupName == group.groupName))",
            "message": "groupName must be unique",
        }]),
    );
    groups.into()
}

/// Spec of the head pod.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HeadGroupSpec {
    /// Template of the head pod.
    pub template: PodTemplate,
    /// Template of the head Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::service")]
    pub head_service: Option<Value>,
    /// Creates an Ingress for the Ray dashboard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enable_ingress: Option<bool>,
    /// Options of that Ingress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress_options: Option<IngressOptions>,
    /// Resources that the head reports to Ray. They do not change the requests of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<StringMap>,
    /// Labels of the Ray node and of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<StringMap>,
    /// Parameters of `ray start`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ray_start_params: Option<StringMap>,
    /// Type of the head Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_type: Option<String>,
}

/// A group of homogeneous workers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "self.minReplicas <= self.maxReplicas", "message": "minReplicas must not be greater than maxReplicas"},
]))]
pub struct WorkerGroupSpec {
    /// Suspends the group: all its pods are deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
    /// Name of the group, unique within the cluster.
    #[schemars(length(min = 1, max = 63), extend("x-kubernetes-validations" = [
        {"rule": "self != 'headgroup'", "message": "groupName headgroup is reserved for the head"},
    ]))]
    pub group_name: String,
    /// Number of replicas, each of numOfHosts pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0), extend("default" = 0))]
    pub replicas: Option<i32>,
    /// Minimum number of replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0), extend("default" = 0))]
    pub min_replicas: Option<i32>,
    /// Maximum number of replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0), extend("default" = 2147483647))]
    pub max_replicas: Option<i32>,
    /// Time after which the Ray autoscaler deletes an idle worker of this group, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout_seconds: Option<i32>,
    /// Priority of the group. The Ray autoscaler scales up groups of higher priority first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = 0))]
    pub priority: Option<i32>,
    /// Resources that each worker reports to Ray. They do not change the requests of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<StringMap>,
    /// Labels of the Ray nodes and of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<StringMap>,
    /// Parameters of `ray start`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ray_start_params: Option<StringMap>,
    /// Template of the worker pods.
    pub template: PodTemplate,
    /// Pods to delete first when the group is scaled down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_strategy: Option<ScaleStrategy>,
    /// Number of pods in each replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1), extend("default" = 1))]
    pub num_of_hosts: Option<i32>,
}

/// Pods to delete first when a group is scaled down.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScaleStrategy {
    /// Names of the pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workers_to_delete: Vec<String>,
}

/// Observed state of a RayCluster.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RayClusterStatus {
    /// `ready`, `suspended`, or unset. Deprecated: use conditions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Total CPU requests of the desired pods.
    #[serde(rename = "desiredCPU", default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub desired_cpu: Option<Quantity>,
    /// Total memory requests of the desired pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub desired_memory: Option<Quantity>,
    /// Total GPU requests of the desired pods.
    #[serde(rename = "desiredGPU", default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub desired_gpu: Option<Quantity>,
    /// Total TPU requests of the desired pods.
    #[serde(rename = "desiredTPU", default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub desired_tpu: Option<Quantity>,
    /// Last time any other field of the status changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<Time>,
    /// Last time of the transition to each state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_transition_times: Option<BTreeMap<String, Time>>,
    /// Ports of the head Service, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoints: Option<StringMap>,
    /// Addresses of the head.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<HeadInfo>,
    /// Reason for the current state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Conditions of the RayCluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Number of ready worker pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_worker_replicas: Option<i32>,
    /// Number of running worker pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_worker_replicas: Option<i32>,
    /// Number of desired worker pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired_worker_replicas: Option<i32>,
    /// Minimum number of worker pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_worker_replicas: Option<i32>,
    /// Maximum number of worker pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_worker_replicas: Option<i32>,
    /// Generation of the spec that the status was computed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// Addresses of the head.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HeadInfo {
    /// IP of the head pod.
    #[serde(rename = "podIP", default, skip_serializing_if = "Option::is_none")]
    pub pod_ip: Option<String>,
    /// Name of the head pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_name: Option<String>,
    /// IP of the head Service, or of the head pod if the Service is headless.
    #[serde(rename = "serviceIP", default, skip_serializing_if = "Option::is_none")]
    pub service_ip: Option<String>,
    /// Name of the head Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_name: Option<String>,
}

impl RayCluster {
    /// Returns the conditions in the status.
    pub fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map_or(&[], |status| &status.conditions)
    }
}
