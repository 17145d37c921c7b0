//! Cases of the policy for ClusterQueues and Cohorts.

use serde_json::{Value, json};

use super::{PolicyCase, Target, create, groups, spec};

const CLUSTER_QUEUE: Target = ("sluice-quotas", "ClusterQueue", "");
const COHORT: Target = ("sluice-quotas", "Cohort", "");

fn resource_group(group: Value) -> Value {
    spec(json!({"resourceGroups": [group]}))
}

/// Returns a quota of 4 CPUs with one field set.
fn quota(field: &str, value: Value) -> Value {
    let mut quota = json!({"name": "cpu", "nominalQuota": "4"});
    quota[field] = value;
    resource_group(json!({"coveredResources": ["cpu"], "flavors": [{"name": "f", "resources": [quota]}]}))
}

pub(super) fn resource_groups() -> Vec<PolicyCase> {
    let of = |groups: Value| spec(json!({"resourceGroups": groups}));
    let listing = |resources: [&str; 2]| {
        let quotas = resources.map(|name| json!({"name": name, "nominalQuota": "4"}));
        resource_group(json!({"coveredResources": ["cpu", "memory"], "flavors": [{"name": "f", "resources": quotas}]}))
    };
    vec![
        create(
            CLUSTER_QUEUE,
            of(groups(&[("cpu", "f"), ("cpu", "g")])),
            of(groups(&[("cpu", "f"), ("memory", "g")])),
            "spec.resourceGroups[*].coveredResources: Duplicate value: cpu, cpu: a resource may be covered by one group only, once",
        ),
        create(
            COHORT,
            of(groups(&[("cpu", "f"), ("memory", "f")])),
            of(groups(&[("cpu", "f"), ("memory", "g")])),
            "spec.resourceGroups[*].flavors[*].name: Duplicate value: f, f: a flavor may be listed in one group only",
        ),
        create(
            COHORT,
            of(groups(&[("@cpu", "f")])),
            of(groups(&[("nvidia.com/mig-1g.5gb", "f")])),
            "spec.resourceGroups[*].coveredResources: Invalid value: @cpu: must be the name of a resource",
        ),
        create(
            CLUSTER_QUEUE,
            listing(["memory", "cpu"]),
            listing(["cpu", "memory"]),
            "spec.resourceGroups[*].flavors: must list the same resources as coveredResources, in the same order: f",
        ),
    ]
}

pub(super) fn quota_values() -> Vec<PolicyCase> {
    let in_cohort = |field: &str| {
        let mut queue = quota(field, "1".into());
        queue["spec"]["parentName"] = "org".into();
        queue
    };
    let weight = |weight: Value| spec(json!({"fairSharing": {"weight": weight}}));
    vec![
        create(
            CLUSTER_QUEUE,
            quota("nominalQuota", "-1".into()),
            quota("nominalQuota", 0.into()),
            "spec.resourceGroups[*].flavors[*].resources[*]: must be greater than or equal to 0: nominalQuota -1 of cpu in flavor f",
        ),
        create(
            COHORT,
            quota("borrowingLimit", "1".into()),
            in_cohort("borrowingLimit"),
            "borrowingLimit: must be nil when parent is empty",
        ),
        create(
            COHORT,
            quota("lendingLimit", "1".into()),
            in_cohort("lendingLimit"),
            "lendingLimit: must be nil when parent is empty",
        ),
        create(
            CLUSTER_QUEUE,
            weight((-1).into()),
            weight(0.into()),
            "spec.fairSharing.weight: must be greater than or equal to 0: -1",
        ),
        create(
            ("sluice-quotas", "LocalQueue", ""),
            weight("1n".into()),
            weight("2n".into()),
            "spec.fairSharing.weight: must be 0 or greater than 1n: 1n",
        ),
        create(
            CLUSTER_QUEUE,
            quota("lendingLimit", "4001m".into()),
            quota("lendingLimit", "4".into()),
            "lendingLimit: must be less than or equal to the nominalQuota: cpu in flavor f (4001m of 4)",
        ),
    ]
}

pub(super) fn namespaces_and_checks() -> Vec<PolicyCase> {
    let selecting = |key: &str, operator: &str, values: &[&str]| {
        let wanted = json!({"key": key, "operator": operator, "values": values});
        spec(json!({"namespaceSelector": {"matchExpressions": [wanted]}}))
    };
    let checked_on = |flavor: &str| {
        let check = json!({"name": "c", "onFlavors": [flavor]});
        spec(json!({"admissionChecksStrategy": {"admissionChecks": [check]}}))
    };
    vec![
        create(
            CLUSTER_QUEUE,
            selecting("team", "Like", &["a"]),
            selecting("team", "In", &["a"]),
            "spec.namespaceSelector.matchExpressions[*].operator: must be In, NotIn, Exists or DoesNotExist",
        ),
        create(
            CLUSTER_QUEUE,
            selecting("team", "In", &[]),
            selecting("team", "Exists", &[]),
            "spec.namespaceSelector.matchExpressions[*].values: must be set with In and NotIn",
        ),
        create(
            CLUSTER_QUEUE,
            selecting("a b", "Exists", &[]),
            spec(json!({"namespaceSelector": {"matchLabels": {"example.com/team": "a"}}})),
            "spec.namespaceSelector: a key must be a label name, such as team or example.com/team",
        ),
        create(
            CLUSTER_QUEUE,
            spec(json!({"namespaceSelector": {"matchLabels": {"team": "a b"}}})),
            spec(json!({"namespaceSelector": {"matchLabels": {"team": ""}}})),
            "spec.namespaceSelector: a value must be the value of a label",
        ),
        create(
            CLUSTER_QUEUE,
            checked_on("g"),
            checked_on("f"),
            "spec.admissionChecksStrategy.admissionChecks[*].onFlavors: not in resourceGroups: g",
        ),
    ]
}
