//! RayService: Serve applications on a Ray cluster that can be replaced without downtime.

// Every printer column repeats the keys of the others.
#![allow(clippy::duplicated_attributes)]

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ray_cluster::{RayClusterSpec, RayClusterStatus};
use super::schema;

/// Which applications run, and on what.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "ray.io",
    version = "v1",
    kind = "RayService",
    plural = "rayservices",
    category = "all",
    namespaced,
    status = "RayServiceStatuses",
    derive = "Default",
    derive = "PartialEq",
    doc = "RayService is a set of Serve applications, and the Ray cluster that they run on.",
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
    /// For how many seconds a cluster that no longer serves is kept; 60 when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ray_cluster_deletion_delay_seconds: Option<i32>,
    /// Deprecated, and without effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_unhealthy_second_threshold: Option<i32>,
    /// Deprecated, and without effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployment_unhealthy_second_threshold: Option<i32>,
    /// What the Service for requests looks like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::opaque_object")]
    pub serve_service: Option<Value>,
    /// How a change of the cluster is brought about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upgrade_strategy: Option<RayServiceUpgradeStrategy>,
    /// Who reconciles the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::managed_by")]
    pub managed_by: Option<String>,
    /// The configuration of Serve, as YAML.
    #[serde(rename = "serveConfigV2", default, skip_serializing_if = "Option::is_none")]
    pub serve_config_v2: Option<String>,
    /// The cluster that the applications run on.
    pub ray_cluster_config: RayClusterSpec,
    /// Whether requests are kept from the head.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exclude_head_pod_from_serve_svc: Option<bool>,
    /// Whether the service is stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
}

/// How a change of the cluster is brought about.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RayServiceUpgradeStrategy {
    /// The strategy; `NewCluster` when unset.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "upgrade_type")]
    pub type_: Option<UpgradeType>,
    /// How an incremental upgrade goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_upgrade_options: Option<ClusterUpgradeOptions>,
}

/// How a change of the cluster is brought about.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum UpgradeType {
    /// A second cluster is made whole, and then gets all traffic at once.
    #[default]
    NewCluster,
    /// A second cluster grows step by step, and gets traffic step by step.
    NewClusterWithIncrementalUpgrade,
    /// It isn't: the cluster stays as it is.
    None,
    /// Something else. Our CRD refuses it and KubeRay's does not, so it has to be read: one object that can't be read
    /// would keep all others from being listed.
    #[serde(untagged)]
    Other(String),
}

fn upgrade_type(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "string",
        "description": "The strategy; NewCluster when unset.",
        "enum": ["NewCluster", "NewClusterWithIncrementalUpgrade", "None"],
    })
}

/// How an incremental upgrade goes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterUpgradeOptions {
    /// How much capacity there may be above 100 percent, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = 100))]
    pub max_surge_percent: Option<i32>,
    /// How much traffic moves in a step, in percent.
    #[schemars(required)]
    pub step_size_percent: Option<i32>,
    /// Seconds between two steps.
    #[schemars(required)]
    pub interval_seconds: Option<i32>,
    /// The class of the Gateway.
    pub gateway_class_name: String,
}

/// What became of a service.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RayServiceStatuses {
    /// What holds of the service.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// When anything else here changed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<Time>,
    /// `Running` or nothing; deprecated by the conditions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_status: Option<String>,
    /// The cluster that serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_service_status: Option<RayServiceStatus>,
    /// The cluster that is to serve next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_service_status: Option<RayServiceStatus>,
    /// Endpoints that requests are sent to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_serve_endpoints: Option<i32>,
    /// Generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// One of a service's clusters.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RayServiceStatus {
    /// Its Serve applications, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub application_statuses: Option<BTreeMap<String, AppStatus>>,
    /// How much of its replicas it has, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_capacity: Option<i32>,
    /// How much of the traffic it gets, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic_routed_percent: Option<i32>,
    /// When traffic moved last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_traffic_migrated_time: Option<Time>,
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ray_cluster_name: Option<String>,
    /// Its own status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ray_cluster_status: Option<RayClusterStatus>,
}

/// A Serve application.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AppStatus {
    /// Its deployments, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serve_deployment_statuses: Option<BTreeMap<String, ServeDeploymentStatus>>,
    /// As Serve names it: RUNNING, DEPLOYING, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// What Serve says of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// A Serve deployment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ServeDeploymentStatus {
    /// As Serve names it: HEALTHY, UPDATING, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// What Serve says of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}
