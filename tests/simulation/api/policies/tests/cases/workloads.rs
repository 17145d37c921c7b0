//! Writes of Workloads and of their status.

use super::*;

/// Returns PodSets, each with the given fields in addition to a name and a count.
fn pod_sets(of: &[Value]) -> Value {
    let pod_set = |(index, fields): (usize, &Value)| {
        let mut pod_set =
            json!({"name": format!("p{index}"), "count": 2, "template": {"spec": {"containers": [{"name": "c"}]}}});
        json_patch::merge(&mut pod_set, fields);
        pod_set
    };
    let sets: Vec<Value> = of.iter().enumerate().map(pod_set).collect();
    spec(json!({"podSets": sets}))
}

pub(super) fn workload_specs() -> Vec<PolicyCase> {
    let target = ("sluice-workloads", "Workload", "");
    let least = json!({"minCount": 1});
    let elastic = || annotations(json!({GATE: "true"}));
    let requesting = |resource: &str, amount: Value| {
        let container = json!({"name": "c", "resources": {"requests": {resource: amount}}});
        pod_sets(&[json!({"template": {"spec": {"containers": [container]}}})])
    };
    let templated = |metadata: Value| pod_sets(&[json!({"template": {"metadata": metadata}})]);
    let topology = |request: Value| pod_sets(&[json!({"topologyRequest": request})]);
    vec![
        create(
            target,
            annotations(json!({"sluice.dev/slice": "{}"})),
            annotations(json!({"example.com/slice": "{}"})),
            "metadata.annotations[sluice.dev/slice]: is written by Sluice alone",
        ),
        create(
            target,
            pod_sets(&[least.clone(), least.clone()]),
            pod_sets(&[least.clone(), json!({})]),
            "spec.podSets: at most one podSet can use minCount",
        ),
        create(
            target,
            and(elastic(), pod_sets(&[least])),
            and(elastic(), pod_sets(&[json!({})])),
            "spec.podSets: partial admission and elastic job cannot be used together",
        ),
        create(
            target,
            requesting("pods", "1".into()),
            requesting("cpu", "1".into()),
            "spec.podSets[*].template.spec: resources[pods]: the key is reserved, because each pod counts as one",
        ),
        create(
            target,
            requesting("cpu", "-1m".into()),
            requesting("cpu", 1.into()),
            "spec.podSets[*].template.spec: requests and limits must be quantities greater than or equal to 0",
        ),
        create(
            target,
            templated(json!({"labels": {"a": "b c"}})),
            templated(json!({"labels": {"a": "b"}})),
            "spec.podSets[*].template.metadata.labels: must be valid label names and values",
        ),
        create(
            target,
            templated(json!({"annotations": {"a b": "c"}})),
            templated(json!({"annotations": {"Example.com/b": "c"}})),
            "spec.podSets[*].template.metadata.annotations: must have valid annotation names",
        ),
        create(
            target,
            topology(json!({"podSetSliceSize": 2})),
            topology(json!({"podSetSliceSize": 2, "podSetSliceRequiredTopology": "rack"})),
            "spec.podSets[*].topologyRequest.podSetSliceSize: must be set if and only if podSetSliceRequiredTopology is set",
        ),
    ]
}

/// Returns a status whose condition of this type is True.
fn condition(kind: &str) -> Value {
    status(json!({"conditions": [{"type": kind, "status": "True"}]}))
}

fn class(group: &str, kind: &str, name: &str) -> Value {
    spec(json!({"priorityClassRef": {"group": group, "kind": kind, "name": name}}))
}

pub(super) fn workload_updates() -> Vec<PolicyCase> {
    let target = ("sluice-workloads", "Workload", "");
    let reserved = |old: Value| and(condition("QuotaReserved"), old);
    let (kueue, own, builtin) = ("kueue.x-k8s.io", "WorkloadPriorityClass", "PriorityClass");
    let high = || class(kueue, own, "high");
    let counted = |count: i64| pod_sets(&[json!({"count": count})]);
    let gated_by = |gates: &str| annotations(json!({GATED_BY: gates}));
    vec![
        update(
            target,
            reserved(counted(2)),
            counted(3),
            counted(1),
            "spec.podSets: field is immutable while quota is reserved, except that a count may decrease",
        ),
        update(
            target,
            reserved(json!({})),
            high(),
            spec(json!({"active": false})),
            "spec.priorityClassRef: is immutable while workload quota reserved",
        ),
        update(
            target,
            reserved(high()),
            class("scheduling.k8s.io", own, "high"),
            class(kueue, own, "low"),
            "spec.priorityClassRef.group: is immutable while workload quota reserved",
        ),
        update(
            target,
            reserved(high()),
            class(kueue, builtin, "high"),
            class(kueue, own, "low"),
            "spec.priorityClassRef.kind: is immutable while workload quota reserved",
        ),
        update(
            target,
            reserved(class("scheduling.k8s.io", builtin, "high")),
            class("scheduling.k8s.io", builtin, "low"),
            spec(json!({"active": false})),
            "spec.priorityClassRef.name: is immutable for a PriorityClass while workload quota reserved",
        ),
        update(
            target,
            reserved(spec(json!({"queueName": "a"}))),
            spec(json!({"queueName": "b"})),
            spec(json!({"active": false})),
            "spec.queueName: is immutable while workload quota reserved",
        ),
        update(
            target,
            reserved(spec(json!({"queueName": "a"}))),
            spec(json!({"queueName": null})),
            spec(json!({"active": false})),
            "spec.queueName: is immutable while workload quota reserved",
        ),
        update(
            target,
            condition("Admitted"),
            spec(json!({"maximumExecutionTimeSeconds": 5})),
            spec(json!({"active": false})),
            "spec.maximumExecutionTimeSeconds: is immutable while the workload is admitted",
        ),
        update(
            target,
            json!({}),
            gated_by("example.com/budget"),
            annotations(json!({"x": "y"})),
            "metadata.annotations[kueue.x-k8s.io/admission-gated-by]: cannot add admission gate after creation",
        ),
        update(
            target,
            gated_by("example.com/a,example.com/b"),
            gated_by("example.com/a,example.com/c"),
            gated_by("example.com/b"),
            "metadata.annotations[kueue.x-k8s.io/admission-gated-by]: can only remove gates, not add new ones",
        ),
        create(
            target,
            gated_by("example.com/a,example.com/a"),
            gated_by("example.com/a, example.com/b"),
            "must be names like example.com/budget of at most 63 characters, each once, separated by commas",
        ),
    ]
}

/// Returns the status of a Workload that has reserved quota, with one assignment.
fn admitted(assignment: Value) -> Value {
    let mut assigned = json!({"name": "main", "count": 2, "resourceUsage": {"cpu": "2"}});
    json_patch::merge(&mut assigned, &assignment);
    let admission = json!({"clusterQueue": "team", "podSetAssignments": [assigned]});
    and(condition("QuotaReserved"), status(json!({"admission": admission})))
}

pub(super) fn admissions() -> Vec<PolicyCase> {
    let target = ("sluice-admissions", "Workload", "status");
    let mut twice = admitted(json!({}));
    let assignments = &mut twice["status"]["admission"]["podSetAssignments"];
    *assignments = json!([assignments[0], assignments[0]]);
    vec![
        update(
            target,
            json!({}),
            condition("QuotaReserved"),
            admitted(json!({})),
            "status.admission: must be set while the QuotaReserved condition is true",
        ),
        update(
            target,
            json!({}),
            twice,
            admitted(json!({})),
            "status.admission.podSetAssignments: must have the same number of podSets as the spec",
        ),
        update(
            target,
            json!({}),
            admitted(json!({"name": "other"})),
            admitted(json!({})),
            "status.admission.podSetAssignments[*].name: must be the name of a podSet",
        ),
        update(
            target,
            json!({}),
            admitted(json!({"resourceUsage": {"cpu": "1001m", "memory": "4Gi"}})),
            admitted(json!({"resourceUsage": {"cpu": "1", "memory": "4Gi"}})),
            "status.admission.podSetAssignments[*].resourceUsage: must be a multiple of the count",
        ),
        update(
            target,
            admitted(json!({})),
            admitted(json!({"resourceUsage": {"cpu": "4"}})),
            admitted(json!({"topologyAssignment": {}})),
            "status.admission: field is immutable, except for topologyAssignment; it can only be removed",
        ),
        update(
            target,
            json!({}),
            status(json!({"clusterName": "east"})),
            status(json!({"nominatedClusterNames": ["east"]})),
            "status.clusterName: must be one of the nominatedClusterNames",
        ),
    ]
}

pub(super) fn reclaimable_pods() -> Vec<PolicyCase> {
    let target = ("sluice-admissions", "Workload", "status");
    let reclaimable = |name: &str, count: i64| status(json!({"reclaimablePods": [{"name": name, "count": count}]}));
    vec![
        update(
            target,
            json!({}),
            reclaimable("other", 1),
            reclaimable("main", 1),
            "status.reclaimablePods[*].name: must be the name of a podSet",
        ),
        update(
            target,
            json!({}),
            reclaimable("main", 3),
            reclaimable("main", 2),
            "status.reclaimablePods[*].count: should be less than or equal to the count of the podSet",
        ),
        update(
            target,
            and(admitted(json!({})), reclaimable("main", 2)),
            reclaimable("main", 1),
            reclaimable("main", 2),
            "status.reclaimablePods: a count cannot decrease, or be removed, while quota is reserved",
        ),
    ]
}

pub(super) fn admission_checks() -> Vec<PolicyCase> {
    let target = ("sluice-admissions", "Workload", "status");
    let check = |state: &str, update: Value| {
        let check = json!({
            "name": "budget",
            "state": state,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
            "message": "",
            "podSetUpdates": [update],
        });
        status(json!({"admissionChecks": [check]}))
    };
    let updated = |field: &str, value: Value| {
        let mut update = json!({"name": "main"});
        update[field] = value;
        check("Pending", update)
    };
    let labeled = |state: &str, value: &str| check(state, json!({"name": "main", "labels": {"a": value}}));
    vec![
        update(
            target,
            json!({}),
            updated("name", "other".into()),
            updated("name", "main".into()),
            "status.admissionChecks[*].podSetUpdates[*].name: must be the name of a podSet",
        ),
        update(
            target,
            json!({}),
            updated("labels", json!({"a": "b c"})),
            updated("labels", json!({"example.com/a": "b"})),
            "status.admissionChecks[*].podSetUpdates[*].labels: must be valid label names and values",
        ),
        update(
            target,
            json!({}),
            updated("nodeSelector", json!({"@a": "b"})),
            updated("nodeSelector", json!({"a": "b"})),
            "status.admissionChecks[*].podSetUpdates[*].nodeSelector: must be valid label names and values",
        ),
        update(
            target,
            json!({}),
            updated("annotations", json!({"@a": "b c"})),
            updated("annotations", json!({"A": "b c"})),
            "status.admissionChecks[*].podSetUpdates[*].annotations: must have valid annotation names",
        ),
        update(
            target,
            json!({}),
            updated("tolerations", json!([{"key": "a b"}])),
            updated("tolerations", json!([{"key": "a"}, {"operator": "Exists"}])),
            "status.admissionChecks[*].podSetUpdates[*].tolerations[*].key: must be a taint key",
        ),
        update(
            target,
            labeled("Ready", "b"),
            labeled("Ready", "c"),
            labeled("Pending", "c"),
            "status.admissionChecks[*].podSetUpdates: field is immutable while the check is Ready",
        ),
    ]
}

pub(super) fn topology_assignments() -> Vec<PolicyCase> {
    let target = ("sluice-admissions", "Workload", "status");
    // Two levels, and one slice of two domains in two blocks.
    let slice = |domains: i64, levels: usize, counts: &[i64]| {
        let values = json!({"individual": {"roots": ["a", "b"]}});
        let slice = json!({
            "domainCount": domains,
            "valuesPerLevel": vec![values; levels],
            "podCounts": {"individual": counts},
        });
        let topology = json!({"levels": ["block", "rack"], "slices": [slice]});
        status(json!({"admission": {
            "clusterQueue": "a",
            "podSetAssignments": [{"name": "main", "topologyAssignment": topology}],
        }}))
    };
    let valid = || slice(2, 2, &[1, 1]);
    vec![
        update(
            target,
            json!({}),
            slice(2, 1, &[1, 1]),
            valid(),
            "valuesPerLevel must have the same length as the number of levels in this TopologyAssignment",
        ),
        update(
            target,
            json!({}),
            slice(2, 2, &[1]),
            valid(),
            "podCounts.individual must have length equal to domainCount",
        ),
        update(
            target,
            json!({}),
            slice(3, 2, &[1, 1, 1]),
            valid(),
            "valuesPerLevel.individual, if set, must have roots of length equal to domainCount",
        ),
    ]
}
