//! LocalQueue: where the workloads of a namespace line up.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema::DNS_SUBDOMAIN;
use super::{FairSharing, ResourceList, StopPolicy};
use crate::api::quantity::Quantity;

/// Which ClusterQueue stands behind a LocalQueue.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "kueue.x-k8s.io",
    version = "v1beta2",
    kind = "LocalQueue",
    plural = "localqueues",
    namespaced,
    shortname = "queue",
    shortname = "queues",
    shortname = "lq",
    status = "LocalQueueStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "LocalQueue is where the workloads of a namespace line up for the quota of one ClusterQueue.",
    printcolumn = r#"{"name": "ClusterQueue", "type": "string", "jsonPath": ".spec.clusterQueue", "description": "ClusterQueue behind this queue"}"#,
    printcolumn = r#"{"name": "Pending Workloads", "type": "integer", "jsonPath": ".status.pendingWorkloads", "description": "Workloads that wait"}"#,
    printcolumn = r#"{"name": "Admitted Workloads", "type": "integer", "jsonPath": ".status.admittedWorkloads", "description": "Workloads that were admitted and have not finished"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct LocalQueueSpec {
    /// The ClusterQueue whose quota the workloads here ask for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), regex(pattern = DNS_SUBDOMAIN), extend("x-kubernetes-validations" = [
        {"rule": "self == oldSelf", "message": "field is immutable"},
    ]))]
    pub cluster_queue: Option<String>,
    /// Whether workloads are taken in.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "None"))]
    pub stop_policy: Option<StopPolicy>,
    /// How much this queue counts beside the others of its ClusterQueue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fair_sharing: Option<FairSharing>,
}

/// What was observed of a LocalQueue.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LocalQueueStatus {
    /// Whether workloads can be admitted through this queue (Active), and why not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Workloads that wait.
    pub pending_workloads: i32,
    /// Workloads that hold quota and have not finished.
    pub reserving_workloads: i32,
    /// Workloads that were admitted and have not finished.
    pub admitted_workloads: i32,
    /// Quota reserved by the workloads of this queue.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub flavors_reservation: Vec<LocalQueueFlavorUsage>,
    /// Quota used by the admitted workloads of this queue.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub flavors_usage: Vec<LocalQueueFlavorUsage>,
    /// State of admission fair sharing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fair_sharing: Option<LocalQueueFairSharingStatus>,
}

/// What is used of one flavor.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LocalQueueFlavorUsage {
    /// Name of the flavor.
    pub name: String,
    /// What is used, by resource.
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub resources: Vec<LocalQueueResourceUsage>,
}

/// What is used of one resource.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LocalQueueResourceUsage {
    /// Name of the resource.
    pub name: String,
    /// What is used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<Quantity>,
}

/// State of fair sharing of a LocalQueue.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LocalQueueFairSharingStatus {
    /// The share that it takes at the moment, in thousandths.
    pub weighted_share: i64,
    /// Past usage that decides whose workload is next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admission_fair_sharing_status: Option<LocalQueueAdmissionFairSharingStatus>,
}

/// Past usage of a LocalQueue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LocalQueueAdmissionFairSharingStatus {
    /// Usage over time, where older usage counts less.
    pub consumed_resources: ResourceList,
    /// When that was computed.
    pub last_update: Time,
}
