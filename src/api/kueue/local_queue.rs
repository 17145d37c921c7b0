//! LocalQueue: the namespaced queue that jobs are submitted to.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema::DNS_SUBDOMAIN;
use super::{FairSharing, ResourceList, StopPolicy};
use crate::quantity::Quantity;

/// Desired state of a LocalQueue.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "::kube_core"),
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
    doc = "LocalQueue is a queue of one namespace, through which its workloads request quota of a ClusterQueue.",
    printcolumn = r#"{"name": "ClusterQueue", "type": "string", "jsonPath": ".spec.clusterQueue", "description": "ClusterQueue that backs this queue"}"#,
    printcolumn = r#"{"name": "Pending Workloads", "type": "integer", "jsonPath": ".status.pendingWorkloads", "description": "Number of pending workloads"}"#,
    printcolumn = r#"{"name": "Admitted Workloads", "type": "integer", "jsonPath": ".status.admittedWorkloads", "description": "Number of admitted workloads that have not finished"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct LocalQueueSpec {
    /// Name of the ClusterQueue that backs this LocalQueue.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), regex(pattern = DNS_SUBDOMAIN), extend("x-kubernetes-validations" = [
        {"rule": "self == oldSelf", "message": "field is immutable"},
    ]))]
    pub cluster_queue: Option<String>,
    /// Stop policy: holds the admission of workloads, or also evicts admitted ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "None"))]
    pub stop_policy: Option<StopPolicy>,
    /// Weight of this LocalQueue among the LocalQueues of its ClusterQueue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fair_sharing: Option<FairSharing>,
}

/// Observed state of a LocalQueue.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LocalQueueStatus {
    /// Conditions of the LocalQueue. Active reports whether workloads can be admitted through it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Number of workloads that are pending admission.
    pub pending_workloads: i32,
    /// Number of workloads that hold a quota reservation and have not finished.
    pub reserving_workloads: i32,
    /// Number of workloads that are admitted and have not finished.
    pub admitted_workloads: i32,
    /// Quota reserved by the workloads of this queue, by flavor.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub flavors_reservation: Vec<LocalQueueFlavorUsage>,
    /// Quota used by the admitted workloads of this queue, by flavor.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub flavors_usage: Vec<LocalQueueFlavorUsage>,
    /// Current state of fair sharing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fair_sharing: Option<LocalQueueFairSharingStatus>,
}

/// Usage of one flavor.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LocalQueueFlavorUsage {
    /// Name of the flavor.
    pub name: String,
    /// Usage by resource.
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub resources: Vec<LocalQueueResourceUsage>,
}

/// Usage of one resource.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LocalQueueResourceUsage {
    /// Name of the resource.
    pub name: String,
    /// Total quantity used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<Quantity>,
}

/// Current state of fair sharing of a LocalQueue.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LocalQueueFairSharingStatus {
    /// Current weighted share, in thousandths.
    pub weighted_share: i64,
    /// Past usage, by which admission fair sharing orders LocalQueues.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admission_fair_sharing_status: Option<LocalQueueAdmissionFairSharingStatus>,
}

/// Past usage of a LocalQueue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LocalQueueAdmissionFairSharingStatus {
    /// Usage aggregated over time, in which older usage decays.
    pub consumed_resources: ResourceList,
    /// Time at which consumedResources was last computed.
    pub last_update: Time,
}
