//! Update cases: changes of existing objects.

use serde_json::{Value, json};

use super::fixtures::{group, pod_set};

/// A change of an existing object, and the texts required in its rejection; none if it must be
/// accepted.
pub(super) struct UpdateCase {
    pub(super) kind: &'static str,
    pub(super) rule: &'static str,
    pub(super) status: bool,
    pub(super) change: Value,
    pub(super) refusal: &'static [&'static str],
}

/// Returns changes of the default objects after their creation.
#[rustfmt::skip]
pub(super) fn of_new_objects() -> Vec<UpdateCase> {
    let spec = |kind, rule, change, refusal| UpdateCase { kind, rule, status: false, change, refusal };
    let mut table = vec![
        spec(
            "LocalQueue",
            "another ClusterQueue",
            json!({"spec": {"clusterQueue": "other"}}),
            &["spec.clusterQueue", "field is immutable"][..],
        ),
        spec("LocalQueue", "a stop policy", json!({"spec": {"stopPolicy": "Hold"}}), &[]),
        spec("ResourceFlavor", "a topology where there was none", json!({"spec": {"topologyName": "racks"}}), &[]),
        spec("ClusterQueue", "another cohort", json!({"spec": {"cohortName": "other"}}), &[]),
        spec(
            "ClusterQueue",
            "a policy of concurrent admission",
            json!({"spec": {"concurrentAdmissionPolicy": {"migration": {"mode": "RetainFirstAdmission"}}}}),
            &["spec.concurrentAdmissionPolicy", "field is immutable"],
        ),
        spec(
            "ClusterQueue",
            "no cohort, and limits",
            json!({"spec": {"cohortName": null, "resourceGroups": [group(&["cpu"], &[("a", "cpu", json!({"borrowingLimit": 1}))])]}}),
            &["borrowingLimit must be nil when cohort is empty"],
        ),
        spec("Workload", "another queue while pending", json!({"spec": {"queueName": "other"}}), &[]),
        spec("Workload", "other pods while pending", json!({"spec": {"podSets": [pod_set("other", 9)]}}), &[]),
        spec(
            "Workload",
            "a gate added after creation",
            json!({"metadata": {"annotations": {"kueue.x-k8s.io/admission-gated-by": "example.com/budget"}}}),
            &["cannot add admission gate after creation"],
        ),
    ];
    table.extend(pending_statuses());
    table
}

pub(super) fn conditions(kinds: &[&str]) -> Value {
    kinds.iter().map(|kind| condition(kind, "True", "Test")).collect()
}

fn condition(kind: &str, status: &str, reason: &str) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

pub(super) fn admission(queue: &str, count: i32, cpu: &str) -> Value {
    let assignment =
        json!({"name": "main", "count": count, "flavors": {"cpu": "on-demand"}, "resourceUsage": {"cpu": cpu}});
    json!({"clusterQueue": queue, "podSetAssignments": [assignment]})
}

/// Returns changes of the status of a pending Workload.
#[rustfmt::skip]
fn pending_statuses() -> Vec<UpdateCase> {
    let status = |rule, change: Value, refusal| UpdateCase {
        kind: "Workload",
        rule,
        status: true,
        change: json!({"status": change}),
        refusal,
    };
    let with = |admission: Value| json!({"conditions": conditions(&["QuotaReserved"]), "admission": admission});
    let mut foreign = admission("team", 3, "3");
    foreign["podSetAssignments"][0]["name"] = json!("other");
    let none = json!({"clusterQueue": "team", "podSetAssignments": []});
    vec![
        status("quota", with(admission("team", 3, "3")), &[][..]),
        status("a condition with an invalid status", json!({"conditions": [condition("QuotaReserved", "Perhaps", "Test")]}), &["status.conditions[0].status", "Unsupported value"]),
        status("a condition without a reason", json!({"conditions": [condition("QuotaReserved", "False", "")]}), &["status.conditions[0].reason"]),
        status("a condition with an invalid type", json!({"conditions": [condition("quota reserved", "False", "Test")]}), &["status.conditions[0].type"]),
        status("a reservation without an admission", json!({"conditions": conditions(&["QuotaReserved"])}), &["status.admission", "must be set while the QuotaReserved condition is true"]),
        status("quota of no pod sets", with(none), &["status.admission.podSetAssignments", "same number of podSets as the spec"]),
        status("quota of another pod set", with(foreign), &["status.admission.podSetAssignments[*].name", "must be the name of a podSet"]),
        status("usage that is not a multiple of the count", with(admission("team", 3, "3001m")), &["status.admission.podSetAssignments[*].resourceUsage", "must be a multiple of the count"]),
        status("reclaimable pods of another pod set", json!({"reclaimablePods": [{"name": "other", "count": 1}]}), &["status.reclaimablePods[*].name"]),
        status("more reclaimable pods than the count", json!({"reclaimablePods": [{"name": "main", "count": 4}]}), &["status.reclaimablePods[*].count", "less than or equal"]),
        status("a cluster that was not nominated", json!({"clusterName": "b"}), &["status.clusterName", "must be one of the nominatedClusterNames"]),
    ]
}

/// Returns changes of a ResourceFlavor with a topology.
#[rustfmt::skip]
pub(super) fn with_a_topology() -> Vec<UpdateCase> {
    let spec = |rule, change: Value, refusal| UpdateCase { kind: "ResourceFlavor", rule, status: false, change: json!({"spec": change}), refusal };
    vec![
        spec("another topology", json!({"topologyName": "rooms"}), &["topologyName is immutable when topologyName is set"][..]),
        spec("no topology", json!({"topologyName": null}), &["topologyName is immutable when topologyName is set"]),
        spec("other labels", json!({"nodeLabels": {"pool": "b"}}), &["spec.nodeLabels", "immutable when topologyName is set"]),
        spec("other tolerations", json!({"tolerations": [{"operator": "Exists"}]}), &["spec.tolerations", "immutable when topologyName is set"]),
        spec("a taint", json!({"nodeTaints": [{"key": "spot", "effect": "NoSchedule"}]}), &[]),
    ]
}

/// Returns changes of a Workload with reserved quota.
#[rustfmt::skip]
pub(super) fn with_reserved_quota() -> Vec<UpdateCase> {
    let spec = |rule, change: Value, refusal| UpdateCase {
        kind: "Workload",
        rule,
        status: false,
        change: json!({"spec": change}),
        refusal,
    };
    let status = |rule, change: Value, refusal| UpdateCase {
        kind: "Workload",
        rule,
        status: true,
        change: json!({"status": change}),
        refusal,
    };
    let class =
        |group: &str, kind: &str, name: &str| json!({"priorityClassRef": {"group": group, "kind": kind, "name": name}});
    let mut other_shape = pod_set("main", 3);
    other_shape["template"]["spec"]["containers"][0]["image"] = json!("x");
    vec![
        spec("fewer pods", json!({"podSets": [pod_set("main", 2)]}), &[][..]),
        spec("more pods", json!({"podSets": [pod_set("main", 4)]}), &["spec.podSets", "field is immutable while quota is reserved"]),
        spec("other pods", json!({"podSets": [other_shape]}), &["spec.podSets", "field is immutable while quota is reserved"]),
        spec("another pod set", json!({"podSets": [pod_set("main", 3), pod_set("more", 1)]}), &["spec.podSets", "field is immutable while quota is reserved"]),
        spec("another queue", json!({"queueName": "other"}), &["spec.queueName", "is immutable while workload quota reserved"]),
        spec("no class", json!({"priorityClassRef": null}), &["spec.priorityClassRef", "is immutable while workload quota reserved"]),
        spec("a class of another group", class("kueue.x-k8s.io", "WorkloadPriorityClass", "high"), &["spec.priorityClassRef.group", "is immutable while workload quota reserved"]),
        spec("another class of pods", class("scheduling.k8s.io", "PriorityClass", "low"), &["spec.priorityClassRef.name", "is immutable for a PriorityClass"]),
        spec("another priority", json!({"priority": 2}), &[]),
        spec("a maximum execution time", json!({"maximumExecutionTimeSeconds": 60}), &["spec.maximumExecutionTimeSeconds", "is immutable while the workload is admitted"]),
        spec("deactivation", json!({"active": false}), &[]),
        status("another admission", json!({"admission": admission("other", 3, "3")}), &["status.admission", "field is immutable"]),
        status("more quota", json!({"admission": admission("team", 3, "6")}), &["status.admission", "field is immutable"]),
        status("no quota", json!({"conditions": [], "admission": null}), &[]),
        status("more reclaimable pods", json!({"reclaimablePods": [{"name": "main", "count": 2}]}), &[]),
        status("fewer reclaimable pods", json!({"reclaimablePods": [{"name": "main", "count": 0}]}), &["status.reclaimablePods", "cannot decrease"]),
        status("no reclaimable pods", json!({"reclaimablePods": null}), &["status.reclaimablePods", "cannot decrease, or be removed"]),
    ]
}
