//! The watched objects, with only the fields that are read: most of the work of the tool is to
//! decode them.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use sluice_api::condition;
use sluice_api::kueue::names;
use sluice_api::quantity::Amount;

use super::objects::{CPU, JOBS, RAY_CLUSTERS, RAY_SERVICES, READY, Resource, UPGRADED_RAY_VERSION, WORKLOADS};
use super::progress::{Holding, Standing};

/// Condition of a RayService with an active and a pending RayCluster.
const UPGRADE_IN_PROGRESS: &str = "UpgradeInProgress";
/// Annotation of a Workload slice: namespace and name of the one that it replaces (kueue v0.19.2
/// `pkg/workloadslicing/workloadslicing.go`, `WorkloadSliceReplacementFor`).
const REPLACES: &str = "kueue.x-k8s.io/workload-slice-replacement-for";

/// A kind that is watched.
pub trait Watched: Clone + DeserializeOwned + Send + 'static {
    /// Path of its objects in the API.
    const RESOURCE: Resource;

    /// Returns identity and version.
    fn metadata(&self) -> &ObservedMeta;
}

/// Identity and version of an object.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObservedMeta {
    /// Namespace; empty if it has none.
    #[serde(default)]
    pub namespace: String,
    /// Name.
    #[serde(default)]
    pub name: String,
    /// Version.
    pub resource_version: String,
    /// Annotations.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
}

/// A Workload.
#[derive(Debug, Clone, Deserialize)]
pub struct ObservedWorkload {
    /// Identity and version.
    pub metadata: ObservedMeta,
    /// Observed state.
    #[serde(default)]
    pub status: WorkloadState,
}

/// Observed state of a Workload.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct WorkloadState {
    /// Conditions.
    #[serde(default)]
    pub conditions: Vec<Condition>,
    /// Reserved quota. `None`: it has none.
    pub admission: Option<ObservedAdmission>,
}

/// Reserved quota of a Workload.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObservedAdmission {
    /// Name of the ClusterQueue.
    pub cluster_queue: String,
    /// Usage of each pod set.
    #[serde(default)]
    pub pod_set_assignments: Vec<ObservedAssignment>,
}

/// Usage of one pod set.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObservedAssignment {
    /// Usage by resource.
    #[serde(default)]
    pub resource_usage: BTreeMap<String, Quantity>,
}

/// A batch/v1 Job.
#[derive(Debug, Clone, Deserialize)]
pub struct ObservedJob {
    /// Identity and version.
    pub metadata: ObservedMeta,
    /// Desired state.
    pub spec: JobGate,
}

/// The gate of a Job.
#[derive(Debug, Clone, Deserialize)]
pub struct JobGate {
    /// Keeps the Job from creating pods.
    #[serde(default)]
    pub suspend: bool,
}

/// A RayCluster.
#[derive(Debug, Clone, Deserialize)]
pub struct ObservedRayCluster {
    /// Identity and version.
    pub metadata: ObservedMeta,
    /// Observed state.
    #[serde(default)]
    pub status: RayClusterState,
}

/// A RayService.
#[derive(Debug, Clone, Deserialize)]
pub struct ObservedRayService {
    /// Identity and version.
    pub metadata: ObservedMeta,
    /// Desired state.
    pub spec: RayServiceVersion,
    /// Observed state.
    #[serde(default)]
    pub status: RayServiceState,
}

/// Version of Ray that a RayService asks for.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RayServiceVersion {
    ray_cluster_config: RayVersion,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RayVersion {
    ray_version: String,
}

/// Observed state of a RayService.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RayServiceState {
    #[serde(default)]
    active_service_status: ActiveCluster,
    #[serde(default)]
    conditions: Vec<Condition>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ActiveCluster {
    #[serde(default)]
    ray_cluster_name: String,
}

/// Observed state of a RayCluster.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct RayClusterState {
    /// `ready` once all pods are. `None`: not reported yet.
    pub state: Option<String>,
}

impl Watched for ObservedWorkload {
    const RESOURCE: Resource = WORKLOADS;

    fn metadata(&self) -> &ObservedMeta {
        &self.metadata
    }
}

impl Watched for ObservedJob {
    const RESOURCE: Resource = JOBS;

    fn metadata(&self) -> &ObservedMeta {
        &self.metadata
    }
}

impl Watched for ObservedRayCluster {
    const RESOURCE: Resource = RAY_CLUSTERS;

    fn metadata(&self) -> &ObservedMeta {
        &self.metadata
    }
}

impl Watched for ObservedRayService {
    const RESOURCE: Resource = RAY_SERVICES;

    fn metadata(&self) -> &ObservedMeta {
        &self.metadata
    }
}

impl ObservedRayService {
    /// Returns true if its spec has been upgraded.
    pub fn is_upgraded(&self) -> bool {
        self.spec.ray_cluster_config.ray_version == UPGRADED_RAY_VERSION
    }

    /// Returns the name of the RayCluster that serves, and that no other is about to replace. `None`
    /// if there is none.
    pub fn serving_cluster(&self) -> Option<&str> {
        let conditions = &self.status.conditions;
        let serves = condition::is_true(conditions, READY) && !condition::is_true(conditions, UPGRADE_IN_PROGRESS);
        serves.then_some(self.status.active_service_status.ray_cluster_name.as_str())
    }
}

impl ObservedMeta {
    /// Returns namespace and name, separated by a slash.
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

impl ObservedWorkload {
    /// Returns whether its quota must be released.
    pub fn is_evicted(&self) -> bool {
        let conditions = &self.status.conditions;
        condition::is_true(conditions, names::EVICTED) && matches!(self.standing(), Standing::Holding(_))
    }

    /// Returns namespace and name of the Workload that it replaces, in one step with its admission.
    /// `None` if it replaces none.
    pub fn replaces(&self) -> Option<&str> {
        self.metadata.annotations.get(REPLACES).map(String::as_str)
    }

    /// Returns whether it is pending, holds quota, or has finished.
    pub fn standing(&self) -> Standing {
        let conditions = &self.status.conditions;
        if condition::is_true(conditions, names::FINISHED) {
            return Standing::Finished;
        }
        let (true, Some(admission)) = (condition::is_true(conditions, names::QUOTA_RESERVED), &self.status.admission)
        else {
            return Standing::Pending;
        };
        let admitted = condition::get_true(conditions, names::ADMITTED);
        Standing::Holding(Holding {
            cluster_queue: admission.cluster_queue.clone(),
            usage: admission.usage(),
            admitted_at: admitted.map(|admitted| admitted.last_transition_time.0),
        })
    }
}

impl ObservedAdmission {
    /// Returns the usage of all pod sets, in milli-CPU. An invalid quantity counts as the maximum.
    fn usage(&self) -> Amount {
        let quantities = self.pod_set_assignments.iter().filter_map(|assignment| assignment.resource_usage.get(CPU));
        let amounts = quantities.map(|quantity| Amount::from_quantity(CPU, quantity).unwrap_or(Amount::MAX));
        amounts.fold(Amount::ZERO, Amount::plus)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn condition(type_: &str, status: &str) -> serde_json::Value {
        json!({"type": type_, "status": status, "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:05Z"})
    }

    fn workload(conditions: serde_json::Value) -> ObservedWorkload {
        let usage = |cpu: &str| json!({"name": "main", "resourceUsage": {"cpu": cpu, "memory": "1Gi"}, "count": 1});
        let admission = json!({"clusterQueue": "cq", "podSetAssignments": [usage("1500m"), usage("2")]});
        let metadata = json!({"namespace": "ns", "name": "w", "resourceVersion": "7", "managedFields": []});
        let status = json!({"conditions": conditions, "admission": admission});
        serde_json::from_value(json!({"metadata": metadata, "spec": {}, "status": status})).expect("a Workload")
    }

    #[test]
    fn usage_is_that_of_all_pod_sets() {
        let reserved = workload(json!([condition("QuotaReserved", "True")]));

        let expected = Holding { cluster_queue: "cq".into(), usage: Amount::new(3500), admitted_at: None };
        assert_eq!(reserved.standing(), Standing::Holding(expected));
    }

    #[test]
    fn finished_workload_holds_nothing() {
        let both = workload(json!([condition("QuotaReserved", "True"), condition("Finished", "True")]));

        assert_eq!(both.standing(), Standing::Finished);
    }

    #[test]
    fn workload_without_reserved_quota_waits_and_is_not_evicted() {
        let released = workload(json!([condition("QuotaReserved", "False"), condition("Evicted", "True")]));

        assert_eq!((released.standing(), released.is_evicted()), (Standing::Pending, false));
    }
}
