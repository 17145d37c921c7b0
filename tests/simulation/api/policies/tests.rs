//! Every validation of every policy denies one write, with its message, and allows one.

mod cases;

use std::collections::BTreeSet;

use rstest::rstest;
use serde_json::{Value, json};

use super::super::cel::tests::undeclared_functions;
use super::super::{ApiResponse, ApiServer};
use super::*;
use cases::PolicyCase;

/// RayJobs, which the simulated API server does not serve.
static RAY_JOB: LazyLock<ResourceKind> = LazyLock::new(|| ResourceKind {
    index: usize::MAX,
    group: "ray.io".into(),
    version: "v1".into(),
    kind: "RayJob".into(),
    plural: "rayjobs".into(),
    namespaced: true,
    has_status: true,
    tracks_generation: true,
    has_cel_rules: false,
    schema: None,
});

fn kind_of(kind: &str) -> &'static ResourceKind {
    if kind == "RayJob" { &RAY_JOB } else { kinds::by_name(kind) }
}

fn merged(object: &Value, patch: &Value) -> Value {
    let mut object = object.clone();
    json_patch::merge(&mut object, patch);
    object
}

/// Returns the administrator's write of a case.
fn attributes<'a>(case: &PolicyCase, object: &'a Value, old: Option<&'a Value>) -> Attributes<'a> {
    Attributes {
        kind: kind_of(case.kind),
        subresource: case.subresource,
        namespace: "team",
        name: "a",
        user: UserName::ADMINISTRATOR,
        object,
        old,
    }
}

/// Returns the position of the validation of a policy that denies a write.
fn denying_validation(policy: &Policy, write: &Attributes<'_>) -> Option<usize> {
    let request = write.request();
    let mut variables = write.variables(&request);
    assert_eq!(policy.matching(&variables), Matching::Applies, "{}", policy.name);
    assert_eq!(policy.evaluate_variables(&mut variables), None, "{}", policy.name);
    policy.validations.iter().position(|validation| validation.check(&variables, None).is_some())
}

#[test]
fn every_validation_of_every_policy_denies_with_its_message_and_allows() {
    let mut covered = BTreeSet::new();
    for case in cases::all() {
        let base = cases::base(case.kind);
        let old = case.old.as_ref().map(|patch| merged(&base, patch));
        let from = old.as_ref().unwrap_or(&base);
        let (denied, allowed) = (merged(from, &case.denied), merged(from, &case.allowed));
        let policy = POLICIES.iter().find(|policy| policy.name == case.policy).expect("a policy");

        let write = attributes(&case, &denied, old.as_ref());
        assert!(policy.selects(&write), "{} does not select {}", case.policy, case.kind);
        let position = denying_validation(policy, &write);
        let error = policy.review(&write, &write.request()).expect_err(case.expected);
        assert!(error.message.contains(case.expected), "{}: {}", case.policy, error.message);
        assert_ne!(
            InstalledPolicies::AllBut(&policy.name).review(&write, |_, _| true),
            Err(error),
            "{} is left out",
            case.policy
        );
        assert_eq!(InstalledPolicies::None.review(&write, |_, _| true), Ok(()));
        covered.extend(position.map(|position| (case.policy.to_owned(), position)));

        let write = attributes(&case, &allowed, old.as_ref());
        let accepted =
            InstalledPolicies::All.review(&Attributes { subresource: case.allowed_subresource, ..write }, |_, _| true);
        assert_eq!(accepted.map_err(|error| error.message), Ok(()), "{}: {}", case.policy, case.expected);
    }
    let all = POLICIES
        .iter()
        .flat_map(|policy| (0..policy.validations.len()).map(|position| (policy.name.clone(), position)));
    let without: Vec<(String, usize)> = all.filter(|validation| !covered.contains(validation)).collect();
    assert!(without.is_empty(), "validations without a case: {without:?}");
}

#[test]
fn every_expression_calls_only_declared_functions() {
    for policy in POLICIES.iter() {
        let validations = policy.validations.iter();
        let expressions = validations
            .flat_map(|validation| std::iter::once(&validation.condition).chain(&validation.message_expression));
        let variables = policy.variables.iter().map(|variable| &variable.value);
        for expression in expressions.chain(&policy.conditions).chain(variables) {
            assert_eq!(undeclared_functions(expression), Vec::<String>::new(), "{}: {expression:?}", policy.name);
        }
    }
    assert!(POLICIES.len() >= 15);
}

fn queued_cluster(suspended: bool) -> Value {
    let metadata = json!({"name": "a", "namespace": "team", "labels": {"kueue.x-k8s.io/queue-name": "a"}});
    json!({"metadata": metadata, "spec": {"suspend": suspended}})
}

#[rstest]
#[case::administrator(UserName::ADMINISTRATOR, "team", true)]
#[case::sluice(UserName::SLUICE, "team", false)]
#[case::exempt_namespace(UserName::ADMINISTRATOR, "sluice-system", false)]
fn gate_is_protected_from_users_in_managed_namespaces(
    #[case] user: UserName,
    #[case] namespace: &str,
    #[case] denied: bool,
) {
    let (old, object) = (queued_cluster(true), queued_cluster(false));
    let kind = kinds::by_name("RayCluster");
    let write = Attributes { kind, subresource: "", namespace, name: "a", user, object: &object, old: Some(&old) };
    let review = |write: &Attributes<'_>| InstalledPolicies::All.review(write, |_, _| true);
    assert_eq!(review(&write).is_err(), denied);
    // The policy selects updates of the resource, not its status.
    assert_eq!(review(&Attributes { subresource: "status", ..write }), Ok(()));
    assert_eq!(review(&Attributes { old: None, ..write }), Ok(()));
}

#[rstest]
#[case::with_a_default_queue(true)]
#[case::without_a_default_queue(false)]
fn job_leaves_its_queue_only_in_a_namespace_without_a_default_queue(#[case] has_default_queue: bool) {
    let old = queued_cluster(true);
    let object = json!({"metadata": {"name": "a", "namespace": "team"}, "spec": {"suspend": true}});
    let (kind, user) = (kinds::by_name("RayCluster"), UserName::ADMINISTRATOR);
    let write =
        Attributes { kind, subresource: "", namespace: "team", name: "a", user, object: &object, old: Some(&old) };

    let exists = |kind: &str, name: &str| (kind, name) == ("LocalQueue", "default") && has_default_queue;
    assert_eq!(InstalledPolicies::All.review(&write, exists).is_err(), has_default_queue);
}

#[test]
fn denial_is_worded_as_in_the_api_server() {
    let now = "2026-01-01T00:00:00Z".parse().expect("a time");
    let mut api = ApiServer::new(now);
    let metadata = json!({"name": "a", "namespace": "default", "labels": {"kueue.x-k8s.io/queue-name": "a"}});
    let group = json!({"template": {"spec": {"containers": [{"name": "ray", "image": "ray"}]}}, "rayStartParams": {}});
    api.create(
        now,
        json!({"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": metadata, "spec": {"headGroupSpec": group, "suspend": true}}),
    )
    .expect("a valid cluster");
    let mut send = |user: Option<UserName>| {
        let path = "/apis/ray.io/v1/namespaces/default/rayclusters/a";
        let request = http::Request::patch(path).header("content-type", "application/merge-patch+json");
        let mut request = request.body(r#"{"spec":{"suspend":false}}"#.into()).expect("a request");
        request.extensions_mut().extend(
            user.map(|user| {
                let mut extensions = http::Extensions::new();
                extensions.insert(user);
                extensions
            })
            .unwrap_or_default(),
        );
        let ApiResponse::Complete(response) = api.handle(now, request) else { panic!("no response") };
        serde_json::from_slice::<Value>(response.body()).expect("JSON")
    };

    let status = send(Some(UserName::ADMINISTRATOR));

    let message = "ValidatingAdmissionPolicy 'sluice-gate' with binding 'sluice-gate' denied request: spec.suspend of a queued \
                   RayCluster cannot be set to false by hand: Sluice does so once an admitted Workload covers the cluster. Leave it \
                   true. Condition sluice.dev/Admitted of the RayService, or of a standalone RayCluster, reports why it is pending";
    assert_eq!(status["message"], format!("rayclusters.ray.io \"a\" is forbidden: {message}"));
    assert_eq!((&status["reason"], &status["code"]), (&json!("Forbidden"), &json!(403)));
    let details = json!({"name": "a", "group": "ray.io", "kind": "rayclusters", "causes": [{"message": message}]});
    assert_eq!(status["details"], details);
    assert_eq!(send(None)["spec"]["suspend"], false, "requests without a user are not reviewed");
}

#[rstest]
#[case::no_message(json!({"expression": "object.a == 1"}), "failed expression: object.a == 1")]
#[case::message(json!({"expression": "object.a == 1", "message": "must be 1"}), "must be 1")]
#[case::message_expression(
    json!({"expression": "object.a == 1", "message": "must be 1", "messageExpression": "'is ' + string(object.a)"}),
    "is 2"
)]
#[case::failed_message_expression(
    json!({"expression": "object.a == 1", "message": "must be 1", "messageExpression": "object.b"}),
    "must be 1"
)]
#[case::error(json!({"expression": "object.b == 1"}), "expression 'object.b == 1' resulted in error: no such key: b")]
#[case::variable(json!({"expression": "variables.two == 1"}), "failed expression: variables.two == 1")]
#[case::failed_variable(
    json!({"expression": "variables.none == 1"}),
    "expression 'variables.none == 1' resulted in error: composited variable \"none\" fails to evaluate: no such key: b"
)]
#[case::satisfied(json!({"expression": "variables.two == 2 && oldObject == null"}), "")]
#[case::exempt(json!({"expression": "false", "condition": "object.a == 1"}), "")]
#[case::failed_condition(json!({"expression": "true", "condition": "object.b == 1"}), "no such key: b")]
fn validation_denies_with_a_message(#[case] validation: Value, #[case] expected: &str) {
    let condition = validation["condition"].as_str().unwrap_or("true");
    let policy: admission::ValidatingAdmissionPolicy = serde_json::from_value(json!({
        "metadata": {"name": "p"},
        "spec": {
            "failurePolicy": "Fail",
            "matchConditions": [{"name": "c", "expression": condition}],
            "variables": [{"name": "two", "expression": "object.a"}, {"name": "none", "expression": "object.b"}],
            "validations": [validation],
        },
    }))
    .expect("a policy");
    let binding: admission::ValidatingAdmissionPolicyBinding = serde_json::from_value(
        json!({"metadata": {"name": "b"}, "spec": {"policyName": "p", "validationActions": ["Deny"]}}),
    )
    .expect("a binding");
    let object = json!({"a": 2});
    let write = Attributes {
        kind: kinds::by_name("Pod"),
        subresource: "",
        namespace: "team",
        name: "a",
        user: UserName::ADMINISTRATOR,
        object: &object,
        old: None,
    };
    let reviewed = Policy::new(&policy, &binding).review(&write, &write.request());
    let message = reviewed.err().map(|error| error.message).unwrap_or_default();
    let denial = message.split_once("denied request: ").map_or("", |(_, denial)| denial);
    assert_eq!(denial, expected);
}
