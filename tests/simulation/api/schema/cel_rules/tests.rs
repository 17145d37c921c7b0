//! Every rule of every CRD is violated once, with its field and message, and satisfied once.

use std::collections::BTreeSet;

use rstest::rstest;
use serde_json::{Value, json};
use sluice_api::crds;

use super::super::super::cel::tests::undeclared_functions;
use super::super::super::kinds;
use super::*;

/// Change of a valid object of a kind that violates one rule, and one that satisfies it.
struct RuleCase {
    kind: &'static str,
    /// Merge patch of the object before the change; `None` if the object is new.
    before: Option<Value>,
    violation: Value,
    valid: Value,
    /// Field and message of the violation.
    expected: &'static str,
}

fn created(kind: &'static str, violation: Value, valid: Value, expected: &'static str) -> RuleCase {
    RuleCase { kind, before: None, violation, valid, expected }
}

fn updated(kind: &'static str, before: Value, violation: Value, valid: Value, expected: &'static str) -> RuleCase {
    RuleCase { kind, before: Some(before), violation, valid, expected }
}

fn spec(fields: Value) -> Value {
    json!({"spec": fields})
}

/// Returns a valid object that the patches of the cases apply to.
fn base(kind: &str) -> Value {
    let spec = match kind {
        "ClusterQueue" | "Cohort" => json!({"resourceGroups": groups(1, 1, 1)}),
        "LocalQueue" => json!({"clusterQueue": "team-a"}),
        "ResourceFlavor" => json!({"nodeLabels": {"pool": "a"}}),
        "Workload" => json!({"podSets": [{"name": "main", "count": 2}]}),
        "RayCluster" => json!({"workerGroupSpecs": [worker_group("small")]}),
        "RayService" => json!({"rayClusterConfig": {"workerGroupSpecs": [worker_group("small")]}}),
        other => panic!("no object of kind {other}"),
    };
    json!({"metadata": {"name": "a"}, "spec": spec})
}

/// Returns resource groups with this many flavors and resources each.
fn groups(count: usize, flavors: usize, resources: usize) -> Value {
    let group = |group: usize| {
        let names: Vec<String> = (0..resources).map(|resource| format!("example.com/r{group}-{resource}")).collect();
        let quotas: Vec<Value> = names.iter().map(|name| json!({"name": name, "nominalQuota": "1"})).collect();
        let flavors: Vec<Value> =
            (0..flavors).map(|flavor| json!({"name": format!("f{group}-{flavor}"), "resources": quotas})).collect();
        json!({"coveredResources": names, "flavors": flavors})
    };
    (0..count).map(group).collect()
}

/// Returns one resource group whose only quota sets this limit.
fn limited(limit: &str) -> Value {
    let quota = json!({"name": "cpu", "nominalQuota": "1", limit: "1"});
    json!([{"coveredResources": ["cpu"], "flavors": [{"name": "f", "resources": [quota]}]}])
}

/// Returns one resource group that covers two resources, with quotas of the given ones.
fn listing(resources: &[&str]) -> Value {
    let quotas: Vec<Value> = resources.iter().map(|name| json!({"name": name, "nominalQuota": "1"})).collect();
    json!([{"coveredResources": ["cpu", "memory"], "flavors": [{"name": "f", "resources": quotas}]}])
}

fn worker_group(name: &str) -> Value {
    json!({"groupName": name, "replicas": 1, "minReplicas": 0, "maxReplicas": 2})
}

/// Returns the case of the rule that ClusterQueues and Cohorts share.
fn covered_resources_case(kind: &'static str) -> RuleCase {
    let listed = |resources: &[&str]| spec(json!({"resourceGroups": listing(resources)}));
    created(
        kind,
        listed(&["cpu"]),
        listed(&["cpu", "memory"]),
        "spec.resourceGroups[0]: Invalid value: flavors must have the same number of resources as the coveredResources",
    )
}

fn cluster_queue_cases() -> Vec<RuleCase> {
    let of = |count, flavors, resources| spec(json!({"resourceGroups": groups(count, flavors, resources)}));
    let alone = |limit: &str| spec(json!({"resourceGroups": limited(limit)}));
    let in_cohort = |limit: &str| spec(json!({"resourceGroups": limited(limit), "cohortName": "org"}));
    let preemption = |reclaim: &str| {
        let borrow = json!({"policy": "LowerPriority"});
        spec(json!({"preemption": {"reclaimWithinCohort": reclaim, "borrowWithinCohort": borrow}}))
    };
    let fungibility = |borrow: &str| {
        let preference = "PreemptionOverBorrowing";
        spec(
            json!({"flavorFungibility": {"whenCanBorrow": borrow, "whenCanPreempt": "TryNextFlavor", "preference": preference}}),
        )
    };
    let policy = |mode: &str| spec(json!({"concurrentAdmissionPolicy": {"migration": {"mode": mode}}}));
    let immutable = "spec.concurrentAdmissionPolicy: Invalid value: field is immutable";
    vec![
        covered_resources_case("ClusterQueue"),
        created(
            "ClusterQueue",
            alone("borrowingLimit"),
            in_cohort("borrowingLimit"),
            "spec: Invalid value: borrowingLimit must be nil when cohort is empty",
        ),
        created(
            "ClusterQueue",
            alone("lendingLimit"),
            in_cohort("lendingLimit"),
            "spec: Invalid value: lendingLimit must be nil when cohort is empty",
        ),
        created(
            "ClusterQueue",
            of(5, 64, 1),
            of(4, 64, 1),
            "spec.resourceGroups: Invalid value: the resourceGroups may have at most 256 flavors in total",
        ),
        created(
            "ClusterQueue",
            of(5, 1, 64),
            of(4, 1, 64),
            "spec.resourceGroups: Invalid value: the resourceGroups may have at most 256 coveredResources in total",
        ),
        created(
            "ClusterQueue",
            of(1, 64, 9),
            of(1, 64, 8),
            "spec.resourceGroups: Invalid value: a resourceGroup may have at most 512 quotas, which is flavors times coveredResources",
        ),
        created(
            "ClusterQueue",
            preemption("Never"),
            preemption("Any"),
            "spec.preemption: Invalid value: reclaimWithinCohort=Never and borrowWithinCohort.Policy!=Never",
        ),
        created(
            "ClusterQueue",
            fungibility("MayStopSearch"),
            fungibility("TryNextFlavor"),
            "spec.flavorFungibility: Invalid value: preference can only be set when both whenCanBorrow and whenCanPreempt are \
             TryNextFlavor",
        ),
        updated("ClusterQueue", policy("a"), policy("b"), policy("a"), immutable),
        updated("ClusterQueue", json!({}), policy("a"), spec(json!({"stopPolicy": "Hold"})), immutable),
    ]
}

fn flavor_cases() -> Vec<RuleCase> {
    let toleration = |fields: Value| spec(json!({"tolerations": [fields]}));
    let taint = |effect: &str| spec(json!({"nodeTaints": [{"key": "spot", "effect": effect}]}));
    let topology = |name: Value| spec(json!({"topologyName": name}));
    let kind = "ResourceFlavor";
    vec![
        created(
            kind,
            spec(json!({"topologyName": "rack", "nodeLabels": {"pool": null}})),
            topology("rack".into()),
            "spec: Invalid value: at least one nodeLabel is required when topology is set",
        ),
        updated(
            kind,
            topology("rack".into()),
            topology(Value::Null),
            spec(json!({"topologyName": "rack", "nodeLabels": {"pool": "b"}})),
            "spec: Invalid value: topologyName is immutable when topologyName is set",
        ),
        created(
            kind,
            taint("Sometimes"),
            taint("NoSchedule"),
            "spec.nodeTaints: Invalid value: supported taint effect values: 'NoSchedule', 'PreferNoSchedule', 'NoExecute'",
        ),
        created(
            kind,
            toleration(json!({"operator": "Equal", "value": "x"})),
            toleration(json!({"operator": "Exists"})),
            "spec.tolerations: Invalid value: operator must be Exists when 'key' is empty, which means 'match all values and all keys'",
        ),
        created(
            kind,
            toleration(json!({"key": "spot", "tolerationSeconds": 5, "effect": "NoSchedule"})),
            toleration(json!({"key": "spot", "tolerationSeconds": 5, "effect": "NoExecute"})),
            "spec.tolerations: Invalid value: effect must be 'NoExecute' when 'tolerationSeconds' is set",
        ),
        created(
            kind,
            toleration(json!({"key": "spot", "operator": "Like"})),
            toleration(json!({"key": "spot", "operator": "Equal"})),
            "spec.tolerations: Invalid value: supported toleration values: 'Equal'(default), 'Exists'",
        ),
        created(
            kind,
            toleration(json!({"key": "spot", "operator": "Exists", "value": "x"})),
            toleration(json!({"key": "spot", "operator": "Equal", "value": "x"})),
            "spec.tolerations: Invalid value: a value must be empty when 'operator' is 'Exists'",
        ),
        created(
            kind,
            toleration(json!({"key": "spot", "effect": "Sometimes"})),
            toleration(json!({"key": "spot", "effect": "PreferNoSchedule"})),
            "spec.tolerations: Invalid value: supported taint effect values: 'NoSchedule', 'PreferNoSchedule', 'NoExecute'",
        ),
    ]
}

fn workload_cases() -> Vec<RuleCase> {
    let class = |group: &str, kind: &str| {
        spec(json!({"priority": 1, "priorityClassRef": {"group": group, "kind": kind, "name": "high"}}))
    };
    let pod_set = |least: i64| {
        spec(json!({"podSets": [{"name": "main", "count": 2}, {"name": "more", "count": 2, "minCount": least}]}))
    };
    let kind = "Workload";
    vec![
        created(
            kind,
            spec(json!({"priorityClassRef": {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "high"}})),
            class("scheduling.k8s.io", "PriorityClass"),
            "spec: Invalid value: priority should not be nil when priorityClassRef is set",
        ),
        created(
            kind,
            pod_set(3),
            pod_set(2),
            "spec.podSets[1]: Invalid value: minCount should be positive and less or equal to count",
        ),
        created(
            kind,
            class("scheduling.k8s.io", "WorkloadPriorityClass"),
            class("scheduling.k8s.io", "PriorityClass"),
            "spec.priorityClassRef: Invalid value: only the PriorityClass kind is allowed for the scheduling.k8s.io group",
        ),
        created(
            kind,
            class("kueue.x-k8s.io", "PriorityClass"),
            class("kueue.x-k8s.io", "WorkloadPriorityClass"),
            "spec.priorityClassRef: Invalid value: only the WorkloadPriorityClass kind is allowed for the kueue.x-k8s.io group",
        ),
        updated(
            kind,
            json!({"status": {"clusterName": "east"}}),
            json!({"status": {"clusterName": "west"}}),
            json!({"status": {"clusterName": "east"}}),
            "status: Invalid value: clusterName is immutable once set",
        ),
        updated(
            kind,
            json!({"status": {"clusterName": "east"}}),
            json!({"status": {"clusterName": "east", "nominatedClusterNames": ["west"]}}),
            json!({"status": {"nominatedClusterNames": ["west"]}}),
            "status: Invalid value: clusterName and nominatedClusterNames are mutually exclusive",
        ),
    ]
}

/// Wraps the fields of a cluster's spec into a spec.
type ClusterSpec = fn(Value) -> Value;

/// Cases of the rules of a RayCluster's spec, which a RayService repeats below `rayClusterConfig`.
fn cluster_spec_cases(kind: &'static str, within: ClusterSpec, expected: [&'static str; 6]) -> Vec<RuleCase> {
    let [backend, managed, managers, unique, ordered, reserved] = expected;
    let managed_by = |manager: &str| within(json!({"managedBy": manager}));
    let stored_in = |backend: &str| within(json!({"gcsFaultToleranceOptions": {"backend": backend}}));
    let grouped = |groups: &[Value]| within(json!({"workerGroupSpecs": groups}));
    let of_size = |least: i64| {
        let mut group = worker_group("small");
        group["minReplicas"] = least.into();
        grouped(&[group])
    };
    let (ray, kueue) = ("ray.io/kuberay-operator", "kueue.x-k8s.io/multikueue");
    let [small, large] = ["small", "large"].map(worker_group);
    vec![
        updated(kind, stored_in("redis"), stored_in("rocksdb"), stored_in("redis"), backend),
        updated(kind, managed_by(ray), managed_by(kueue), managed_by(ray), managed),
        created(kind, managed_by("me"), managed_by(kueue), managers),
        created(kind, grouped(&[small.clone(), small.clone()]), grouped(&[small, large]), unique),
        created(kind, of_size(3), of_size(2), ordered),
        created(kind, grouped(&[worker_group("headgroup")]), grouped(&[worker_group("head")]), reserved),
    ]
}

fn name_cases(kind: &'static str, longest: usize, [length, form]: [&'static str; 2]) -> Vec<RuleCase> {
    let named = |name: &str| json!({"metadata": {"name": name}});
    vec![
        created(kind, named(&"a".repeat(longest + 1)), named(&"a".repeat(longest)), length),
        created(kind, named("1a"), named("a1"), form),
    ]
}

fn ray_cases() -> Vec<RuleCase> {
    let managers = "the managedBy field value must be either 'ray.io/kuberay-operator' or 'kueue.x-k8s.io/multikueue'";
    let form = "<nil>: Invalid value: metadata.name must start with a lower-case letter, and contain only lower-case letters, digits \
                and '-'";
    let leak = |text: String| -> &'static str { text.leak() };
    let at = |path: &str| {
        [
            format!("{path}.gcsFaultToleranceOptions.backend: Invalid value: \"rocksdb\": gcsFaultToleranceOptions.backend is immutable"),
            format!("{path}.managedBy: Invalid value: \"kueue.x-k8s.io/multikueue\": the managedBy field is immutable"),
            format!("{path}.managedBy: Invalid value: \"me\": {managers}"),
            format!("{path}.workerGroupSpecs: Invalid value: groupName must be unique"),
            format!("{path}.workerGroupSpecs[0]: Invalid value: minReplicas must not be greater than maxReplicas"),
            format!("{path}.workerGroupSpecs[0].groupName: Invalid value: \"headgroup\": groupName headgroup is reserved for the head"),
        ]
        .map(leak)
    };
    let managed = |manager: &str| spec(json!({"managedBy": manager}));
    let (ray, kueue) = ("ray.io/kuberay-operator", "kueue.x-k8s.io/multikueue");
    let mut cases = cluster_spec_cases("RayCluster", spec, at("spec"));
    cases.extend(cluster_spec_cases(
        "RayService",
        |fields| spec(json!({"rayClusterConfig": fields})),
        at("spec.rayClusterConfig"),
    ));
    cases.extend(name_cases(
        "RayCluster",
        53,
        ["<nil>: Invalid value: metadata.name may have at most 53 characters", form],
    ));
    cases.extend(name_cases(
        "RayService",
        47,
        ["<nil>: Invalid value: metadata.name may have at most 47 characters", form],
    ));
    cases.extend([
        updated("RayService", managed(ray), managed(kueue), managed(ray), at("spec")[1]),
        created("RayService", managed("me"), managed(kueue), at("spec")[2]),
    ]);
    cases
}

fn all_cases() -> Vec<RuleCase> {
    let [team_a, team_b] = ["team-a", "team-b"].map(|queue| spec(json!({"clusterQueue": queue})));
    let moved = "spec.clusterQueue: Invalid value: \"team-b\": field is immutable";
    let mut cases =
        vec![covered_resources_case("Cohort"), updated("LocalQueue", team_a.clone(), team_b, team_a, moved)];
    cases.extend([cluster_queue_cases(), flavor_cases(), workload_cases(), ray_cases()].into_iter().flatten());
    cases
}

/// Returns the valid object of a kind after a merge patch.
fn patched(kind: &str, patch: &Value) -> Value {
    let mut object = base(kind);
    json_patch::merge(&mut object, patch);
    let schema = kinds::by_name(kind).schema.as_ref().expect("a custom kind");
    schema.prune_and_default(&mut object, None);
    object
}

/// Returns the errors of the rules for an object of a kind.
fn errors(kind: &str, object: &Value, before: Option<&Value>) -> Vec<String> {
    let schema = kinds::by_name(kind).schema.as_ref().expect("a custom kind");
    schema.validate_rules(object, before).iter().map(|error| format!("{}: {}", error.field, error.message)).collect()
}

#[test]
fn each_violation_is_reported_with_its_field_and_message() {
    for RuleCase { kind, before, violation, valid, expected } in all_cases() {
        let before = before.map(|patch| patched(kind, &patch));
        let reported = errors(kind, &patched(kind, &violation), before.as_ref());
        assert!(reported.iter().any(|error| error == expected), "{kind} {violation}: {reported:#?} lacks {expected}");
        assert_eq!(errors(kind, &patched(kind, &valid), before.as_ref()), Vec::<String>::new(), "{kind} {valid}");
        // `Schema::check_rules` relies on it.
        if let Some(before) = &before {
            let schema = kinds::by_name(kind).schema.as_ref().expect("a custom kind");
            let mut unchanged = Vec::new();
            schema.check_rules(before, Some(before), ValuePath::Root, &mut unchanged);
            assert!(unchanged.is_empty(), "{kind} {before}");
        }
    }
}

/// Returns `KIND FIELD MESSAGE` of each rule below a schema.
fn collect_rules(kind: &str, path: &str, schema: &Value, rules: &mut BTreeSet<String>) {
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        let text = |field: &str| rule[field].as_str().unwrap_or_default().to_owned();
        let field = format!("{path}{}", text("fieldPath"));
        rules.insert(format!("{kind} {} {}", path_or_nil(field.trim_start_matches('.')), text("message")));
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        collect_rules(kind, format!("{path}.{name}").trim_start_matches('.'), property, rules);
    }
    if schema["items"].is_object() {
        collect_rules(kind, &format!("{path}[*]"), &schema["items"], rules);
    }
    if schema["additionalProperties"].is_object() {
        collect_rules(kind, &format!("{path}.*"), &schema["additionalProperties"], rules);
    }
}

#[test]
fn every_rule_of_every_crd_has_a_case() {
    let mut rules = BTreeSet::new();
    for definition in crds::all() {
        let definition = serde_json::to_value(definition).expect("a CRD is JSON");
        let kind = definition["spec"]["names"]["kind"].as_str().expect("a CRD has a kind");
        for version in definition["spec"]["versions"].as_array().expect("a CRD has versions") {
            collect_rules(kind, "", &version["schema"]["openAPIV3Schema"], &mut rules);
        }
    }
    assert!(!rules.is_empty());
    let expected: Vec<(&str, String)> = all_cases()
        .iter()
        .map(|case| (case.kind, case.expected.replacen("[0]", "[*]", 1).replacen("[1]", "[*]", 1)))
        .collect();
    let has_case = |rule: &&String| {
        let (kind, rest) = rule.split_once(' ').expect("a kind and a rule");
        let (field, message) = rest.split_once(' ').expect("a field and a message");
        !expected
            .iter()
            .any(|(of, text)| *of == kind && text.starts_with(&format!("{field}: ")) && text.ends_with(message))
    };
    let without: Vec<&String> = rules.iter().filter(has_case).collect();
    assert!(without.is_empty(), "{without:#?}");
}

#[test]
fn every_rule_calls_only_declared_functions() {
    fn visit(schema: &Schema, visited: &mut usize) {
        for rule in &schema.cel_rules {
            *visited += 1;
            let undeclared = undeclared_functions(rule.condition());
            assert!(undeclared.is_empty(), "{:?}: {undeclared:?}", rule.condition());
        }
        let below = schema.properties.values().chain(schema.additional_properties.as_deref());
        below.chain(schema.items.as_deref()).for_each(|schema| visit(schema, visited));
    }
    let mut visited = 0;
    kinds::all().iter().filter_map(|kind| kind.schema.as_ref()).for_each(|schema| visit(schema, &mut visited));
    assert!(visited > 40, "{visited}");
}

#[rstest]
#[case::message(json!({"rule": "self.a == 1", "message": "must be 1"}), "<nil>: Invalid value: must be 1")]
#[case::no_message(json!({"rule": "self.a == 1"}), "<nil>: Invalid value: failed rule: self.a == 1")]
#[case::message_expression(
    json!({"rule": "self.a == 1", "messageExpression": "'is ' + string(self.a)", "message": "x"}),
    "<nil>: Invalid value: is 2"
)]
#[case::failed_message_expression(
    json!({"rule": "self.a == 1", "messageExpression": "self.b", "message": "must be 1"}),
    "<nil>: Invalid value: must be 1"
)]
#[case::field_path(json!({"rule": "self.a == 1", "message": "x", "fieldPath": ".a"}), "a: Invalid value: x")]
#[case::forbidden(json!({"rule": "false", "message": "x", "reason": "FieldValueForbidden"}), "<nil>: Forbidden: x")]
#[case::required(json!({"rule": "false", "message": "x", "reason": "FieldValueRequired"}), "<nil>: Required value: x")]
#[case::error(
    json!({"rule": "self.b == 1", "message": "b"}),
    "<nil>: Invalid value: \"object\": no such key: b evaluating rule: b"
)]
#[case::error_without_message(
    json!({"rule": "self.b == 1"}),
    "<nil>: Invalid value: \"object\": no such key: b evaluating rule: self.b == 1"
)]
#[case::transition_on_creation(json!({"rule": "self.a == oldSelf.a"}), "")]
#[case::optional_old_self(
    json!({"rule": "!oldSelf.hasValue() && self.a == 1", "optionalOldSelf": true, "message": "new"}),
    "<nil>: Invalid value: new"
)]
fn violation_is_worded_as_in_the_api_server(#[case] rule: Value, #[case] expected: &str) {
    let schema = Schema::parse(&json!({"type": "object", "x-kubernetes-validations": [rule]}));
    let reported = schema.validate_rules(&json!({"a": 2}), None);
    let texts: Vec<String> = reported.iter().map(|error| format!("{}: {}", error.field, error.message)).collect();
    assert_eq!(texts.join("; "), expected);
}

#[test]
fn optional_old_self_is_the_old_value() {
    let rule = json!({"rule": "oldSelf.orValue(self).a == self.a", "optionalOldSelf": true, "message": "fixed"});
    let schema = Schema::parse(&json!({"type": "object", "x-kubernetes-validations": [rule]}));
    let [one, two] = [1, 2].map(|a| json!({"a": a, "b": 0}));
    assert!(schema.validate_rules(&one, None).is_empty());
    assert_eq!(schema.validate_rules(&two, Some(&one)).len(), 1);
    assert!(schema.validate_rules(&json!({"a": 1, "b": 1}), Some(&one)).is_empty());
}
