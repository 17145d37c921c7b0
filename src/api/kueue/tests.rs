//! Manifests survive a round trip through the types without losing a field.

use rstest::rstest;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{ClusterQueue, Cohort, LocalQueue, ResourceFlavor, Workload, WorkloadPriorityClass};

fn round_trip<K: Serialize + DeserializeOwned>(manifest: Value) -> Value {
    let object: K = serde_json::from_value(manifest).expect("the manifest is of its kind");
    serde_json::to_value(object).expect("a Kubernetes object serializes")
}

fn manifest(kind: &str, fields: Value) -> Value {
    let mut manifest = json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": "x"}});
    if let (Some(all), Value::Object(fields)) = (manifest.as_object_mut(), fields) {
        all.extend(fields);
    }
    manifest
}

fn condition(type_: &str) -> Value {
    json!({"type": type_, "status": "True", "reason": "R", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

#[rstest]
#[case::resource_flavor(round_trip::<ResourceFlavor>, "ResourceFlavor", json!({"spec": {
    "nodeLabels": {"pool": "a"}, "topologyName": "t",
    "nodeTaints": [{"key": "k", "value": "v", "effect": "NoSchedule"}],
    "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}],
}}))]
#[case::workload_priority_class(round_trip::<WorkloadPriorityClass>, "WorkloadPriorityClass", json!({"value": 7, "description": "d"}))]
#[case::cohort(round_trip::<Cohort>, "Cohort", json!({"spec": {
    "parentName": "root", "fairSharing": {"weight": "2"},
    "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [{"name": "f", "resources": [
        {"name": "cpu", "nominalQuota": "9", "borrowingLimit": "1", "lendingLimit": "2"}]}]}],
}, "status": {"fairSharing": {"weightedShare": 3}}}))]
#[case::local_queue(round_trip::<LocalQueue>, "LocalQueue", json!({
    "spec": {"clusterQueue": "cq", "stopPolicy": "Hold", "fairSharing": {"weight": "1"}},
    "status": {
        "conditions": [condition("Active")], "pendingWorkloads": 1, "reservingWorkloads": 2, "admittedWorkloads": 2,
        "flavorsReservation": [{"name": "f", "resources": [{"name": "cpu", "total": "1"}]}],
        "flavorsUsage": [{"name": "f", "resources": [{"name": "cpu", "total": "1"}]}],
        "fairSharing": {"weightedShare": 1, "admissionFairSharingStatus": {
            "consumedResources": {"cpu": "1"}, "lastUpdate": "2026-01-01T00:00:00Z"}},
    },
}))]
#[case::cluster_queue(round_trip::<ClusterQueue>, "ClusterQueue", json!({
    "spec": {
        "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [{"name": "f", "resources": [
            {"name": "cpu", "nominalQuota": "9", "borrowingLimit": "1", "lendingLimit": "2"}]}]}],
        "cohortName": "all", "queueingStrategy": "StrictFIFO",
        "namespaceSelector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]}]},
        "flavorFungibility": {"whenCanBorrow": "TryNextFlavor", "whenCanPreempt": "TryNextFlavor", "preference": "PreemptionOverBorrowing"},
        "preemption": {
            "reclaimWithinCohort": "Any", "withinClusterQueue": "LowerOrNewerEqualPriority",
            "borrowWithinCohort": {"policy": "LowerPriority", "maxPriorityThreshold": 100},
        },
        "admissionChecksStrategy": {"admissionChecks": [{"name": "c", "onFlavors": ["f"]}]},
        "stopPolicy": "HoldAndDrain", "fairSharing": {"weight": "500m"},
        "admissionScope": {"admissionMode": "UsageBasedAdmissionFairSharing"},
        "concurrentAdmissionPolicy": {"migration": {"mode": "TryPreferredFlavors", "constraints": {"lastAcceptableFlavorName": "f"}}},
    },
    "status": {
        "conditions": [condition("Active")], "pendingWorkloads": 1, "reservingWorkloads": 2, "admittedWorkloads": 2,
        "flavorsReservation": [{"name": "f", "resources": [{"name": "cpu", "total": "1", "borrowed": "0"}]}],
        "flavorsUsage": [{"name": "f", "resources": [{"name": "cpu", "total": "1", "borrowed": "0"}]}],
        "fairSharing": {"weightedShare": 1},
    },
}))]
#[case::workload(round_trip::<Workload>, "Workload", json!({
    "spec": {
        "podSets": [{
            "name": "main", "count": 3, "minCount": 1,
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "unheardOf": {"deep": [1]}}]}},
            "topologyRequest": {
                "required": "rack", "preferred": "block", "unconstrained": true, "podIndexLabel": "i", "subGroupIndexLabel": "s",
                "subGroupCount": 2, "podSetGroupName": "g", "podSetSliceRequiredTopology": "rack", "podSetSliceSize": 4,
                "podsetSliceRequiredTopologyConstraints": [{"topology": "rack", "size": 2}],
            },
        }],
        "queueName": "q", "priority": 5, "active": true, "maximumExecutionTimeSeconds": 60,
        "priorityClassRef": {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "high"},
        "preemptionGates": [{"name": "gate"}],
    },
    "status": {
        "conditions": [condition("QuotaReserved")],
        "admission": {"clusterQueue": "cq", "podSetAssignments": [{
            "name": "main", "flavors": {"cpu": "f"}, "resourceUsage": {"cpu": "3"}, "count": 3,
            "topologyAssignment": {"levels": ["rack"], "slices": [{"domainCount": 1}]}, "delayedTopologyRequest": "Ready",
        }]},
        "requeueState": {"count": 2, "requeueAt": "2026-01-01T00:00:00Z"},
        "reclaimablePods": [{"name": "main", "count": 1}],
        "admissionChecks": [{
            "name": "c", "state": "Retry", "lastTransitionTime": "2026-01-01T00:00:00Z", "message": "m", "requeueAfterSeconds": 9,
            "retryCount": 1, "podSetUpdates": [{"name": "main", "labels": {"a": "b"}, "annotations": {"c": "d"},
                "nodeSelector": {"e": "f"}, "tolerations": [{"key": "k", "operator": "Exists"}]}],
        }],
        "resourceRequests": [{"name": "main", "resources": {"cpu": "3"}}],
        "accumulatedPastExecutionTimeSeconds": 4,
        "schedulingStats": {"evictions": [{"reason": "Preempted", "underlyingCause": "", "count": 1}]},
        "nominatedClusterNames": ["a"], "clusterName": "b", "unhealthyNodes": [{"name": "n"}],
        "preemptionGates": [{"name": "gate", "position": "Open", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
    },
}))]
fn manifests_keep_every_field_in_a_round_trip(
    #[case] round_trip: fn(Value) -> Value,
    #[case] kind: &str,
    #[case] fields: Value,
) {
    let manifest = manifest(kind, fields);
    assert_eq!(round_trip(manifest.clone()), manifest);
}

#[test]
fn numeric_quantities_are_accepted_and_absent_fields_have_defaults() {
    let quota = json!({"name": "cpu", "nominalQuota": 9});
    let groups = json!([{"coveredResources": ["cpu"], "flavors": [{"name": "f", "resources": [quota]}]}]);
    let queue: ClusterQueue =
        serde_json::from_value(manifest("ClusterQueue", json!({"spec": {"resourceGroups": groups}})))
            .expect("a ClusterQueue");
    assert_eq!(queue.spec.resource_groups[0].flavors[0].resources[0].nominal_quota.0, "9");

    let pod_sets = json!([{"template": {"spec": {}}}]);
    let workload: Workload =
        serde_json::from_value(manifest("Workload", json!({"spec": {"podSets": pod_sets}}))).expect("a Workload");
    assert_eq!((workload.spec.pod_sets[0].name.as_str(), workload.spec.pod_sets[0].count), ("main", 1));
}
