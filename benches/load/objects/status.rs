//! Patches of Workloads and of the objects that they admit.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::{Value, json};
use sluice_api::condition::{self, ConditionUpdate};
use sluice_api::kueue::names;

use super::load::pod_set_names;
use super::{CPU, FLAVOR, READY};
use crate::plan::{Item, LoadPlan};

/// Returns the merge patch by which a manager admits a Workload.
pub fn admission(plan: &LoadPlan, item: &Item, now: Timestamp) -> Value {
    let class = plan.class_of(item);
    let (queue, usage) = (plan.namespace_of(item), class.cpu.to_quantity(CPU));
    let assignment =
        |name: &&str| json!({"name": name, "count": 1, "flavors": {CPU: FLAVOR}, "resourceUsage": {CPU: usage}});
    let assignments: Vec<Value> = pod_set_names(class.kind).iter().map(assignment).collect();
    let mut conditions = Vec::new();
    let message = format!("Quota reserved in ClusterQueue {queue}");
    set(&mut conditions, now, names::QUOTA_RESERVED, true, "QuotaReserved", &message);
    set(&mut conditions, now, names::ADMITTED, true, "Admitted", "The workload is admitted");
    json!({"status": {
        "admission": {"clusterQueue": queue, "podSetAssignments": assignments},
        "conditions": conditions,
    }})
}

/// Returns the JSON patch that finishes a Workload that holds quota of a ClusterQueue; it is invalid
/// for one that has lost it. It adds one condition, so it neither conflicts with other writes nor
/// removes their conditions.
pub fn finished(queue: &str, now: Timestamp) -> Value {
    let mut conditions = Vec::new();
    set(&mut conditions, now, names::FINISHED, true, "Succeeded", "The load has run");
    json!([
        {"op": "test", "path": "/status/admission/clusterQueue", "value": queue},
        {"op": "add", "path": "/status/conditions/-", "value": conditions[0]},
    ])
}

/// Returns the merge patch that releases the quota of an evicted Workload of this version, as Kueue's job reconciler
/// does once the pods are gone (kueue v0.19.2 `pkg/workload/workload.go`
/// `UnsetQuotaReservationWithCondition`).
pub fn released(version: &str, mut conditions: Vec<Condition>, now: Timestamp) -> Value {
    let message = condition::get(&conditions, names::EVICTED).map(|evicted| evicted.message.clone());
    let message = message.unwrap_or_default();
    set(&mut conditions, now, names::QUOTA_RESERVED, false, "Pending", &message);
    set(&mut conditions, now, names::ADMITTED, false, "NoReservation", "The workload has no reservation");
    json!({"metadata": {"resourceVersion": version}, "status": {"admission": null, "conditions": conditions}})
}

/// Returns the merge patch that opens the gate of a Job or RayCluster.
pub fn open_gate() -> Value {
    json!({"spec": {"suspend": false}})
}

/// Returns the merge patch of the status of a RayCluster that is ready.
pub fn ray_cluster_ready() -> Value {
    json!({"status": {"state": "ready", "readyWorkerReplicas": 1, "availableWorkerReplicas": 1, "desiredWorkerReplicas": 1}})
}

/// Returns the merge patch of the status of a RayService that this RayCluster serves.
pub fn ray_service_ready(cluster: &str, now: Timestamp) -> Value {
    let mut conditions = Vec::new();
    set(&mut conditions, now, READY, true, "NonZeroServeEndpoints", "The RayService serves");
    json!({"status": {"activeServiceStatus": {"rayClusterName": cluster}, "conditions": conditions}})
}

/// Returns the merge patch by which a Service leads to the pods of this RayCluster.
pub fn select_cluster(cluster: &str) -> Value {
    json!({"spec": {"selector": {"ray.io/cluster": cluster}}})
}

fn set(conditions: &mut Vec<Condition>, now: Timestamp, type_: &'static str, holds: bool, reason: &str, message: &str) {
    let update = ConditionUpdate {
        type_,
        status: holds,
        reason: reason.to_owned(),
        message: message.to_owned(),
        observed_generation: None,
    };
    condition::set(conditions, now, update);
}
