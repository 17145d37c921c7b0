//! Creation cases: objects that are accepted, and objects that are rejected.

use serde_json::{Value, json};

use super::fixtures::{group, groups, large, merge, pod_set, quota};

/// A creation request and its expected outcome.
pub(super) struct CreationCase {
    pub(super) kind: &'static str,
    /// Description of the rule that the object satisfies or violates.
    pub(super) rule: &'static str,
    /// JSON merge patch applied to the kind's default object.
    pub(super) change: Value,
    /// Texts required in the rejection; none if it must be accepted.
    pub(super) refusal: &'static [&'static str],
}

fn accepted(kind: &'static str, rule: &'static str, change: Value) -> CreationCase {
    CreationCase { kind, rule, change, refusal: &[] }
}

fn rejected(kind: &'static str, rule: &'static str, change: Value, refusal: &'static [&'static str]) -> CreationCase {
    CreationCase { kind, rule, change, refusal }
}

/// Returns all creation cases.
pub(super) fn all() -> impl Iterator<Item = CreationCase> {
    let quotas = [quotas("ClusterQueue", "cohortName"), quotas("Cohort", "parentName")];
    let others = [cluster_queues(), flavors(), local_queues(), workloads()];
    quotas.into_iter().chain(others).flatten()
}

/// Returns the quota rules that ClusterQueues and Cohorts share.
#[rustfmt::skip]
fn quotas(kind: &'static str, parent: &'static str) -> Vec<CreationCase> {
    let without_parent = |more: Value| {
        let mut change = quota(more);
        change["spec"][parent] = Value::Null;
        change
    };
    vec![
        accepted(kind, "a valid object", json!({})),
        accepted(kind, "quotas are quantities", quota(json!({"nominalQuota": "1500m"}))),
        rejected(kind, "quotas are not negative", quota(json!({"nominalQuota": -1})), &["is forbidden", "spec.resourceGroups[*].flavors[*].resources[*]: must be greater than or equal to 0: nominalQuota -1 of cpu in flavor on-demand"]),
        rejected(kind, "quotas are not negative, as text", quota(json!({"nominalQuota": "-1Gi"})), &["is forbidden", "nominalQuota -1Gi of cpu"]),
        rejected(kind, "borrowing limits are not negative", quota(json!({"borrowingLimit": -1})), &["is forbidden", "borrowingLimit -1 of cpu"]),
        rejected(kind, "lending limits are not negative", quota(json!({"lendingLimit": -1})), &["is forbidden", "lendingLimit -1 of cpu"]),
        rejected(kind, "quotas are in range", quota(json!({"nominalQuota": "1e400"})), &["nominalQuota"]),
        accepted(kind, "limits with a parent", quota(json!({"borrowingLimit": 5, "lendingLimit": "500m"}))),
        accepted(kind, "no limits without a parent", without_parent(json!({}))),
        rejected(kind, "a borrowing limit without a parent", without_parent(json!({"borrowingLimit": 5})), &["borrowingLimit", "must be nil when", "is empty"]),
        rejected(kind, "a lending limit without a parent", without_parent(json!({"lendingLimit": 0})), &["lendingLimit", "must be nil when", "is empty"]),
        accepted(kind, "two disjoint groups", groups(&[group(&["cpu"], &[("a", "cpu", json!({}))]), group(&["gpu"], &[("b", "gpu", json!({}))])])),
        rejected(kind, "a resource in two groups", groups(&[group(&["cpu"], &[("a", "cpu", json!({}))]), group(&["cpu"], &[("b", "cpu", json!({}))])]), &["spec.resourceGroups[*].coveredResources", "Duplicate value", "cpu"]),
        rejected(kind, "a flavor in two groups", groups(&[group(&["cpu"], &[("a", "cpu", json!({}))]), group(&["gpu"], &[("a", "gpu", json!({}))])]), &["spec.resourceGroups[*].flavors[*].name", "Duplicate value", "a: "]),
        rejected(kind, "a flavor twice in a group", groups(&[json!({"coveredResources": ["cpu"], "flavors": [{"name": "a", "resources": [{"name": "cpu", "nominalQuota": 1}]}, {"name": "a", "resources": [{"name": "cpu", "nominalQuota": 1}]}]})]), &["spec.resourceGroups[0].flavors[1]", "Duplicate value"]),
        accepted(kind, "flavors list the covered resources", groups(&[group(&["cpu", "memory"], &[("a", "cpu", json!({})), ("a", "memory", json!({}))])])),
        rejected(kind, "flavors list too little", groups(&[group(&["cpu", "memory"], &[("a", "cpu", json!({}))])]), &["spec.resourceGroups[0]", "same number of resources as the coveredResources"]),
        rejected(kind, "flavors list other resources", groups(&[group(&["cpu"], &[("a", "memory", json!({}))])]), &["is forbidden", "same resources as coveredResources"]),
        rejected(kind, "flavors list them in another order", groups(&[group(&["cpu", "memory"], &[("a", "memory", json!({})), ("a", "cpu", json!({}))])]), &["is forbidden", "same resources as coveredResources, in the same order: a"]),
        accepted(kind, "a vendor resource", groups(&[group(&["nvidia.com/mig-1g.5gb"], &[("a", "nvidia.com/mig-1g.5gb", json!({}))])])),
        rejected(kind, "resources have names", groups(&[group(&["@cpu"], &[("a", "@cpu", json!({}))])]), &["is forbidden", "spec.resourceGroups[*].coveredResources: Invalid value: @cpu"]),
        rejected(kind, "a group covers something", groups(&[json!({"coveredResources": [], "flavors": [{"name": "a", "resources": []}]})]), &["spec.resourceGroups[0].coveredResources"]),
        rejected(kind, "a group has a flavor", groups(&[json!({"coveredResources": ["cpu"], "flavors": []})]), &["spec.resourceGroups[0].flavors"]),
        rejected(kind, "flavors have names", groups(&[group(&["cpu"], &[("@", "cpu", json!({}))])]), &["spec.resourceGroups[0].flavors[0].name"]),
        rejected(kind, "parents have names", json!({"spec": {parent: "@all"}}), &["spec.", "Name: Invalid value"]),
        accepted(kind, "a zero weight", json!({"spec": {"fairSharing": {"weight": 0}}})),
        accepted(kind, "a small weight", json!({"spec": {"fairSharing": {"weight": "2n"}}})),
        rejected(kind, "a negative weight", json!({"spec": {"fairSharing": {"weight": -1}}}), &["is forbidden", "spec.fairSharing.weight: must be greater than or equal to 0: -1"]),
        rejected(kind, "a negative weight, as text", json!({"spec": {"fairSharing": {"weight": "-1"}}}), &["is forbidden", "spec.fairSharing.weight"]),
        rejected(kind, "a weight too small to distinguish from zero", json!({"spec": {"fairSharing": {"weight": "1n"}}}), &["is forbidden", "spec.fairSharing.weight: must be 0 or greater than 1n: 1n"]),
    ]
}

#[rustfmt::skip]
fn cluster_queues() -> Vec<CreationCase> {
    let kind = "ClusterQueue";
    let selecting = |selector: Value| json!({"spec": {"namespaceSelector": selector}});
    let preempting = |reclaim: &str, borrow: &str| json!({"spec": {"preemption": {"reclaimWithinCohort": reclaim, "borrowWithinCohort": {"policy": borrow}}}});
    let choosing = |borrow: &str, preempt: &str| {
        let preference = "PreemptionOverBorrowing";
        json!({"spec": {"flavorFungibility": {"whenCanBorrow": borrow, "whenCanPreempt": preempt, "preference": preference}}})
    };
    let checking = |flavor: &str| json!({"spec": {"admissionChecksStrategy": {"admissionChecks": [{"name": "budget", "onFlavors": [flavor]}]}}});
    let large_ones = |count: usize, flavors: usize, resources: usize| {
        groups(&(0..count).map(|n| large(&format!("g{n}"), flavors, resources)).collect::<Vec<_>>())
    };
    vec![
        accepted(kind, "lending all of the quota", quota(json!({"nominalQuota": 2, "lendingLimit": "2000m"}))),
        rejected(kind, "lending more than the quota", quota(json!({"nominalQuota": 2, "lendingLimit": "2001m"})), &["spec.resourceGroups[*].flavors[*].resources[*].lendingLimit", "must be less than or equal to the nominalQuota", "cpu in flavor on-demand (2001m of 2)"]),
        accepted(kind, "reclaiming and borrowing", preempting("LowerPriority", "LowerPriority")),
        accepted(kind, "neither reclaiming nor borrowing", preempting("Never", "Never")),
        rejected(kind, "borrowing without reclaiming", preempting("Never", "LowerPriority"), &["spec.preemption", "reclaimWithinCohort=Never and borrowWithinCohort.Policy!=Never"]),
        rejected(kind, "an unsupported policy", preempting("Sometimes", "Never"), &["spec.preemption.reclaimWithinCohort", "Unsupported value"]),
        accepted(kind, "a preference between flavors", choosing("TryNextFlavor", "TryNextFlavor")),
        rejected(kind, "a preference where the search may stop at borrowing", choosing("MayStopSearch", "TryNextFlavor"), &["spec.flavorFungibility", "preference can only be set when both whenCanBorrow and whenCanPreempt are TryNextFlavor"]),
        rejected(kind, "a preference where the search may stop at preemption", choosing("TryNextFlavor", "MayStopSearch"), &["spec.flavorFungibility", "preference can only be set"]),
        rejected(kind, "an unsupported strategy", json!({"spec": {"queueingStrategy": "LIFO"}}), &["spec.queueingStrategy", "Unsupported value"]),
        rejected(kind, "an unsupported stop policy", json!({"spec": {"stopPolicy": "Drain"}}), &["spec.stopPolicy", "Unsupported value"]),
        accepted(kind, "every namespace", selecting(json!({}))),
        accepted(kind, "some namespaces", selecting(json!({"matchLabels": {"example.com/team": "a"}, "matchExpressions": [{"key": "tier", "operator": "In", "values": ["prod", "dev"]}, {"key": "old", "operator": "DoesNotExist"}]}))),
        rejected(kind, "an unsupported operator", selecting(json!({"matchExpressions": [{"key": "tier", "operator": "Equals", "values": ["a"]}]})), &["spec.namespaceSelector.matchExpressions[*].operator", "must be In, NotIn, Exists or DoesNotExist"]),
        rejected(kind, "In without values", selecting(json!({"matchExpressions": [{"key": "tier", "operator": "In"}]})), &["spec.namespaceSelector.matchExpressions[*].values", "must be set with In and NotIn"]),
        rejected(kind, "Exists with values", selecting(json!({"matchExpressions": [{"key": "tier", "operator": "Exists", "values": ["a"]}]})), &["spec.namespaceSelector.matchExpressions[*].values"]),
        rejected(kind, "an invalid label key", selecting(json!({"matchLabels": {"te am": "a"}})), &["spec.namespaceSelector", "a key must be a label name"]),
        rejected(kind, "an invalid label value", selecting(json!({"matchLabels": {"team": "a b"}})), &["spec.namespaceSelector", "a value must be the value of a label"]),
        rejected(kind, "an invalid label value in a list", selecting(json!({"matchExpressions": [{"key": "tier", "operator": "In", "values": ["-"]}]})), &["spec.namespaceSelector", "a value must be the value of a label"]),
        accepted(kind, "a check of an existing flavor", checking("on-demand")),
        rejected(kind, "a check of a missing flavor", checking("spot"), &["spec.admissionChecksStrategy.admissionChecks[*].onFlavors", "spot"]),
        accepted(kind, "the maximum number of quotas", large_ones(11, 22, 23)),
        rejected(kind, "more than 256 flavors", large_ones(5, 64, 1), &["spec.resourceGroups", "256 flavors"]),
        rejected(kind, "more than 256 resources", large_ones(5, 1, 64), &["spec.resourceGroups", "256 coveredResources"]),
        rejected(kind, "more than 512 quotas in a group", large_ones(1, 9, 57), &["spec.resourceGroups", "512 quotas"]),
    ]
}

#[rustfmt::skip]
fn flavors() -> Vec<CreationCase> {
    let kind = "ResourceFlavor";
    let labeled = |labels: Value| json!({"spec": {"nodeLabels": labels}});
    let tainted = |taints: Value| json!({"spec": {"nodeTaints": taints}});
    let tolerating = |toleration: Value| json!({"spec": {"tolerations": [toleration]}});
    let many: serde_json::Map<String, Value> = (0..9).map(|n| (format!("l{n}"), json!("v"))).collect();
    vec![
        accepted(kind, "labels, taints and tolerations", json!({"spec": {"nodeLabels": {"example.com/pool": "a.b_c"}, "nodeTaints": [{"key": "spot", "value": "true", "effect": "NoSchedule"}, {"key": "spot", "effect": "NoExecute"}], "tolerations": [{"key": "example.com/spot", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}, {"operator": "Exists"}]}})),
        rejected(kind, "too many labels", labeled(Value::Object(many)), &["spec.nodeLabels", "at most 8"]),
        rejected(kind, "an invalid label key", labeled(json!({"po ol": "a"})), &["spec.nodeLabels", "a key must be a label name"]),
        rejected(kind, "an invalid label value", labeled(json!({"pool": "a b"})), &["spec.nodeLabels.pool"]),
        rejected(kind, "a taint without a key", tainted(json!([{"key": "", "effect": "NoSchedule"}])), &["spec.nodeTaints[*].key"]),
        rejected(kind, "an invalid taint value", tainted(json!([{"key": "spot", "value": "a b", "effect": "NoSchedule"}])), &["spec.nodeTaints[*].value"]),
        rejected(kind, "an unsupported taint effect", tainted(json!([{"key": "spot", "effect": "Never"}])), &["spec.nodeTaints", "supported taint effect values"]),
        rejected(kind, "a taint twice", tainted(json!([{"key": "spot", "value": "a", "effect": "NoSchedule"}, {"key": "spot", "value": "b", "effect": "NoSchedule"}])), &["spec.nodeTaints", "Duplicate value", "unique by key and effect"]),
        rejected(kind, "an invalid toleration key", tolerating(json!({"key": "my key", "operator": "Exists"})), &["spec.tolerations[*].key"]),
        rejected(kind, "a toleration with Equal and no key", tolerating(json!({"operator": "Equal", "value": "a"})), &["spec.tolerations", "operator must be Exists when 'key' is empty"]),
        rejected(kind, "a toleration with seconds and no eviction", tolerating(json!({"key": "spot", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 5})), &["spec.tolerations", "effect must be 'NoExecute'"]),
        rejected(kind, "an unsupported operator", tolerating(json!({"key": "spot", "operator": "In"})), &["spec.tolerations", "supported toleration values"]),
        rejected(kind, "a value with Exists", tolerating(json!({"key": "spot", "operator": "Exists", "value": "a"})), &["spec.tolerations", "a value must be empty"]),
        rejected(kind, "a toleration of an unsupported effect", tolerating(json!({"key": "spot", "operator": "Exists", "effect": "Never"})), &["spec.tolerations", "supported taint effect values"]),
        accepted(kind, "a topology with a label", json!({"spec": {"topologyName": "racks"}})),
        rejected(kind, "a topology without a label", json!({"spec": {"topologyName": "racks", "nodeLabels": null}}), &["at least one nodeLabel is required when topology is set"]),
    ]
}

#[rustfmt::skip]
fn local_queues() -> Vec<CreationCase> {
    let kind = "LocalQueue";
    vec![
        accepted(kind, "a valid object", json!({})),
        rejected(kind, "ClusterQueues have names", json!({"spec": {"clusterQueue": "@"}}), &["spec.clusterQueue"]),
        rejected(kind, "an unsupported stop policy", json!({"spec": {"stopPolicy": "Drain"}}), &["spec.stopPolicy", "Unsupported value"]),
    ]
}

#[rustfmt::skip]
fn workloads() -> Vec<CreationCase> {
    let kind = "Workload";
    let with_pod_sets = |pod_sets: Value| json!({"spec": {"podSets": pod_sets}});
    let with = |more: Value| {
        let mut set = pod_set("main", 3);
        merge(&mut set, &more);
        with_pod_sets(json!([set]))
    };
    let requesting =
        |resources: Value| with(json!({"template": {"spec": {"containers": [{"name": "c", "resources": resources}]}}}));
    let of_class = |group: &str, kind: &str| json!({"spec": {"priority": 1, "priorityClassRef": {"group": group, "kind": kind, "name": "high"}}});
    let gated = |by: &str| json!({"metadata": {"annotations": {"kueue.x-k8s.io/admission-gated-by": by}}});
    let many: Vec<Value> = (0..19).map(|n| pod_set(&format!("s{n}"), 1)).collect();
    let reducible = |name: &str| {
        let mut set = pod_set(name, 3);
        set["minCount"] = json!(1);
        set
    };
    let mut elastic = with_pod_sets(json!([reducible("main")]));
    elastic["metadata"] = json!({"annotations": {"kueue.x-k8s.io/elastic-job": "true"}});
    vec![
        accepted(kind, "a valid object", json!({})),
        rejected(kind, "no pods", with_pod_sets(json!([])), &["spec.podSets", "at least 1"]),
        rejected(kind, "too many pod sets", with_pod_sets(Value::Array(many)), &["spec.podSets", "at most 18"]),
        rejected(kind, "two pod sets of one name", with_pod_sets(json!([pod_set("main", 1), pod_set("main", 2)])), &["spec.podSets[1]", "Duplicate value"]),
        rejected(kind, "pod sets have names", with_pod_sets(json!([pod_set("Main", 1)])), &["spec.podSets[0].name"]),
        accepted(kind, "a count of zero", with_pod_sets(json!([pod_set("main", 0)]))),
        rejected(kind, "a negative count", with_pod_sets(json!([pod_set("main", -1)])), &["spec.podSets[0].count", "greater than or equal to 0"]),
        accepted(kind, "a minCount equal to the count", with(json!({"minCount": 3}))),
        rejected(kind, "a minCount above the count", with(json!({"minCount": 4})), &["spec.podSets[0]", "minCount should be positive and less or equal to count"]),
        rejected(kind, "a minCount of zero", with(json!({"minCount": 0})), &["spec.podSets[0].minCount", "greater than or equal to 1"]),
        rejected(kind, "two reducible pod sets", with_pod_sets(json!([reducible("a"), reducible("b")])), &["spec.podSets", "at most one podSet can use minCount"]),
        rejected(kind, "a reducible elastic job", elastic, &["spec.podSets", "partial admission and elastic job cannot be used together"]),
        rejected(kind, "a request of the resource pods", requesting(json!({"requests": {"pods": 1}})), &["spec.podSets[*].template.spec", "pods", "the key is reserved"]),
        rejected(kind, "negative requests", requesting(json!({"requests": {"cpu": "-1"}})), &["spec.podSets[*].template.spec", "greater than or equal to 0"]),
        rejected(kind, "negative limits", requesting(json!({"limits": {"cpu": -1}})), &["spec.podSets[*].template.spec", "greater than or equal to 0"]),
        rejected(kind, "requests that are not quantities", requesting(json!({"requests": {"cpu": "much"}})), &["spec.podSets[*].template.spec", "must be quantities"]),
        rejected(kind, "negative requests of an init container", with(json!({"template": {"spec": {"initContainers": [{"name": "i", "resources": {"requests": {"cpu": "-1"}}}]}}})), &["spec.podSets[*].template.spec"]),
        rejected(kind, "negative pod-level requests", with(json!({"template": {"spec": {"resources": {"requests": {"cpu": "-1"}}}}})), &["spec.podSets[*].template.spec"]),
        accepted(kind, "labels and annotations", with(json!({"template": {"metadata": {"labels": {"example.com/a": "b"}, "annotations": {"Example.com/A": "any text"}}}}))),
        rejected(kind, "invalid labels", with(json!({"template": {"metadata": {"labels": {"a": "b c"}}}})), &["spec.podSets[*].template.metadata.labels"]),
        rejected(kind, "invalid annotations", with(json!({"template": {"metadata": {"annotations": {"a b": "c"}}}})), &["spec.podSets[*].template.metadata.annotations"]),
        accepted(kind, "topology slices with a size", with(json!({"topologyRequest": {"podSetSliceRequiredTopology": "rack", "podSetSliceSize": 1}}))),
        rejected(kind, "topology slices without a size", with(json!({"topologyRequest": {"podSetSliceRequiredTopology": "rack"}})), &["spec.podSets[*].topologyRequest.podSetSliceSize"]),
        rejected(kind, "a slice size without topology slices", with(json!({"topologyRequest": {"podSetSliceSize": 1}})), &["spec.podSets[*].topologyRequest.podSetSliceSize"]),
        accepted(kind, "a class", of_class("kueue.x-k8s.io", "WorkloadPriorityClass")),
        rejected(kind, "a class without a priority", json!({"spec": {"priorityClassRef": {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "high"}}}), &["spec", "priority should not be nil when priorityClassRef is set"]),
        rejected(kind, "a class of pods in our group", of_class("kueue.x-k8s.io", "PriorityClass"), &["spec.priorityClassRef", "only the WorkloadPriorityClass kind"]),
        rejected(kind, "a class of workloads in the other group", of_class("scheduling.k8s.io", "WorkloadPriorityClass"), &["spec.priorityClassRef", "only the PriorityClass kind"]),
        rejected(kind, "a maximum execution time of zero", json!({"spec": {"maximumExecutionTimeSeconds": 0}}), &["spec.maximumExecutionTimeSeconds", "greater than or equal to 1"]),
        rejected(kind, "queues have names", json!({"spec": {"queueName": "@"}}), &["spec.queueName"]),
        accepted(kind, "gates", gated("example.com/budget, example.com/licence")),
        rejected(kind, "a gate twice", gated("example.com/budget,example.com/budget"), &["metadata.annotations[kueue.x-k8s.io/admission-gated-by]", "each once"]),
        rejected(kind, "a gate without a name", gated("example.com/budget,"), &["metadata.annotations[kueue.x-k8s.io/admission-gated-by]"]),
        rejected(kind, "a gate without a domain", gated("budget"), &["metadata.annotations[kueue.x-k8s.io/admission-gated-by]", "example.com/budget"]),
    ]
}
