//! RayService: Serve applications on a RayCluster that is upgraded without downtime.

#![allow(clippy::duplicated_attributes, reason = "every `printcolumn` repeats the same keys")]

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ray_cluster::{RayClusterSpec, RayClusterStatus};
use super::schema;

/// Desired state of a RayService: its Serve applications, and the cluster that they run on.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "ray.io",
    version = "v1",
    kind = "RayService",
    plural = "rayservices",
    category = "all",
    namespaced,
    status = "RayServiceStatuses",
    derive = "Default",
    derive = "PartialEq",
    doc = "RayService is a set of Serve applications and the RayCluster that they run on.",
    printcolumn(name = "service status", json_path = ".status.serviceStatus", type_ = "string"),
    printcolumn(name = "num serve endpoints", json_path = ".status.numServeEndpoints", type_ = "string"),
    printcolumn(
        name = "upgrading",
        json_path = ".status.conditions[?(@.type=='UpgradeInProgress')].status",
        type_ = "string"
    ),
    printcolumn(
        name = "quota",
        json_path = ".status.conditions[?(@.type=='sluice.dev/Admitted')].reason",
        type_ = "string"
    ),
    printcolumn(
        name = "traffic",
        json_path = ".status.pendingServiceStatus.trafficRoutedPercent",
        type_ = "integer",
        priority = 1
    ),
    printcolumn(
        name = "capacity",
        json_path = ".status.pendingServiceStatus.targetCapacity",
        type_ = "integer",
        priority = 1
    ),
    printcolumn(name = "age", json_path = ".metadata.creationTimestamp", type_ = "date")
)]
#[serde(rename_all = "camelCase")]
pub struct RayServiceSpec {
    /// Delay before a RayCluster that no longer serves is deleted, in seconds. Defaults to 60.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ray_cluster_deletion_delay_seconds: Option<i32>,
    /// Deprecated: has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_unhealthy_second_threshold: Option<i32>,
    /// Deprecated: has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployment_unhealthy_second_threshold: Option<i32>,
    /// Template of the Kubernetes Service that receives the Serve traffic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::service")]
    pub serve_service: Option<Value>,
    /// Strategy for applying a change of rayClusterConfig.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upgrade_strategy: Option<RayServiceUpgradeStrategy>,
    /// Controller that reconciles the RayService. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::managed_by")]
    pub managed_by: Option<String>,
    /// Serve config of the applications, in YAML.
    #[serde(rename = "serveConfigV2", default, skip_serializing_if = "Option::is_none")]
    pub serve_config_v2: Option<String>,
    /// Spec of the RayCluster that the applications run on.
    pub ray_cluster_config: RayClusterSpec,
    /// Excludes the head pod from the endpoints of the serve Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exclude_head_pod_from_serve_svc: Option<bool>,
    /// Suspends the RayService: all its RayClusters and their pods are deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
}

/// Strategy for applying a change of rayClusterConfig.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RayServiceUpgradeStrategy {
    /// Upgrade strategy. Defaults to NewCluster.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "upgrade_type_schema")]
    pub type_: Option<UpgradeType>,
    /// Options of an incremental upgrade. Required for NewClusterWithIncrementalUpgrade.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_upgrade_options: Option<ClusterUpgradeOptions>,
}

/// Strategy for applying a change of rayClusterConfig.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum UpgradeType {
    /// Creates a pending cluster at full size, and switches all traffic to it when it is ready.
    #[default]
    NewCluster,
    /// Creates a pending cluster, and moves capacity and traffic to it incrementally.
    NewClusterWithIncrementalUpgrade,
    /// Does not upgrade the cluster.
    None,
    /// Unknown value. KubeRay's CRD accepts any, so it must deserialize: one object that does not
    /// would make every list of RayServices fail.
    #[serde(untagged)]
    Unknown(String),
}

fn upgrade_type_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "string",
        "description": "Upgrade strategy. Defaults to NewCluster.",
        "enum": ["NewCluster", "NewClusterWithIncrementalUpgrade", "None"],
    })
}

/// Options of an incremental upgrade.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterUpgradeOptions {
    /// Maximum capacity of both clusters together above 100 percent, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = 100))]
    pub max_surge_percent: Option<i32>,
    /// Traffic that moves to the pending cluster in each step, in percent.
    #[schemars(required)]
    pub step_size_percent: Option<i32>,
    /// Interval between two steps, in seconds.
    #[schemars(required)]
    pub interval_seconds: Option<i32>,
    /// Name of the GatewayClass of the Gateway that splits the traffic.
    pub gateway_class_name: String,
}

/// Observed state of a RayService.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RayServiceStatuses {
    /// Conditions of the RayService.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Last time any other field of the status changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<Time>,
    /// `Running`, or unset. Deprecated: use conditions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_status: Option<String>,
    /// Status of the active cluster, which serves traffic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_service_status: Option<RayServiceStatus>,
    /// Status of the pending cluster, which an upgrade moves traffic to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_service_status: Option<RayServiceStatus>,
    /// Number of endpoints of the serve Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_serve_endpoints: Option<i32>,
    /// Generation of the spec that the status was computed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// Status of one cluster of a RayService.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RayServiceStatus {
    /// Status of the Serve applications, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub application_statuses: Option<BTreeMap<String, AppStatus>>,
    /// Target capacity of the cluster, in percent of its Serve replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_capacity: Option<i32>,
    /// Traffic that is routed to the cluster, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic_routed_percent: Option<i32>,
    /// Last time traffic moved to or from the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_traffic_migrated_time: Option<Time>,
    /// Name of the RayCluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ray_cluster_name: Option<String>,
    /// Status of the RayCluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ray_cluster_status: Option<RayClusterStatus>,
}

/// Status of a Serve application.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AppStatus {
    /// Status of the deployments of the application, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serve_deployment_statuses: Option<BTreeMap<String, ServeDeploymentStatus>>,
    /// Status reported by Serve, such as RUNNING or DEPLOYING.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// Message reported by Serve.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Status of a Serve deployment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ServeDeploymentStatus {
    /// Status reported by Serve, such as HEALTHY or UPDATING.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// Message reported by Serve.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl RayService {
    /// Returns the conditions in the status.
    pub fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map_or(&[], |status| &status.conditions)
    }
}
