//! The ValidatingAdmissionPolicies of `config/policy`, evaluated for requests of known users
//! (apiserver `pkg/admission/plugin/policy/validating`). Requests without a user, as those of the
//! simulated cluster's own controllers, are not checked.
//!
//! A parameter only decides whether a policy applies: expressions cannot read it.
//!
//! Not implemented: audit annotations, `authorizer`, `namespaceObject`, and bindings
//! that warn instead of deny. A policy that has any of them is refused when it is read.

use std::sync::LazyLock;

use k8s_openapi::api::admissionregistration::v1 as admission;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::cel::{Expression, Variables, from_json};
use super::kinds::{self, ResourceKind};
use super::selector::Selector;
use super::status_error::StatusError;

/// Folder of the policies.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/policy");

static POLICIES: LazyLock<Vec<Policy>> = LazyLock::new(read_policies);

/// User that a request is sent by. Transports add it to the extensions of their requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserName(pub &'static str);

impl UserName {
    /// Service account of Sluice, which most policies exempt.
    pub const SLUICE: Self = Self("system:serviceaccount:sluice-system:sluice");
    /// User of the scripts, with all permissions.
    pub const ADMINISTRATOR: Self = Self("kubernetes-admin");
}

/// Write that policies review (`admission.Attributes`).
#[derive(Debug, Clone, Copy)]
pub(super) struct Attributes<'a> {
    pub kind: &'a ResourceKind,
    /// Subresource that is written to, like `status`; empty for the resource itself.
    pub subresource: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    pub user: UserName,
    pub object: &'a Value,
    /// Stored object; `None` on create.
    pub old: Option<&'a Value>,
}

/// Policy with its binding.
#[derive(Debug)]
struct Policy {
    name: String,
    binding: String,
    /// Object that must exist in the namespace of the write for the policy to apply.
    param: Option<Param>,
    /// True if a write passes when an expression fails (`failurePolicy: Ignore`).
    ignores_failures: bool,
    resources: Vec<admission::NamedRuleWithOperations>,
    object_selector: Option<Selector>,
    namespace_selector: Option<Selector>,
    conditions: Vec<Expression>,
    variables: Vec<Variable>,
    validations: Vec<Validation>,
}

/// Parameter of a policy.
#[derive(Debug)]
struct Param {
    kind: String,
    name: String,
}

/// Variable of a policy, evaluated once for each request.
#[derive(Debug)]
struct Variable {
    /// Name with its prefix, like `variables.queue`.
    name: String,
    value: Expression,
}

/// Condition that an object must satisfy.
#[derive(Debug)]
struct Validation {
    condition: Expression,
    /// Message of the denial; empty if there is none.
    message: String,
    message_expression: Option<Expression>,
    reason: Reason,
}

/// Reason of a denial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    Invalid,
    Forbidden,
}

/// Result of the match conditions of a policy.
#[derive(Debug, PartialEq, Eq)]
enum Matching {
    Applies,
    Exempt,
    Failed(String),
}

/// Denial of a request.
#[derive(Debug)]
struct Denial {
    message: String,
    reason: Reason,
}

impl Denial {
    /// Returns the denial of a request that a policy cannot be evaluated for (`failurePolicy: Fail`).
    fn failed(message: String) -> Self {
        Self { message, reason: Reason::Invalid }
    }
}

/// The policies of `config/policy` that are installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InstalledPolicies {
    /// All of them.
    #[default]
    All,
    /// All but the one with this name.
    AllBut(&'static str),
    /// None of them.
    None,
}

impl InstalledPolicies {
    fn include(self, policy: &Policy) -> bool {
        match self {
            Self::All => true,
            Self::AllBut(name) => policy.name != name,
            Self::None => false,
        }
    }

    /// Reviews a write. `exists` reports whether an object of a kind exists in its namespace under a
    /// name.
    ///
    /// # Errors
    /// Returns the error of the first policy that denies it.
    pub(super) fn review(self, write: &Attributes<'_>, exists: impl Fn(&str, &str) -> bool) -> Result<(), StatusError> {
        let installed = POLICIES.iter().filter(|policy| self.include(policy));
        let has_param = |policy: &&Policy| policy.param.as_ref().is_none_or(|param| exists(&param.kind, &param.name));
        let mut candidates = installed.filter(|policy| policy.selects(write)).filter(has_param).peekable();
        if candidates.peek().is_none() {
            return Ok(());
        }
        let request = write.request();
        candidates.try_for_each(|policy| policy.review(write, &request))
    }
}

impl Attributes<'_> {
    fn operation(&self) -> &'static str {
        if self.old.is_some() { "UPDATE" } else { "CREATE" }
    }

    /// Returns true if a rule for this resource, like `pods` or `pods/status`, selects the write.
    fn is_resource(&self, resource: &str) -> bool {
        resource.split_once('/').unwrap_or((resource, "")) == (self.kind.plural.as_str(), self.subresource)
    }

    /// Returns the variable `request` (`AdmissionRequest`).
    fn request(&self) -> Value {
        let ResourceKind { group, version, kind, plural, .. } = self.kind;
        let mut request = json!({
            "kind": {"group": group, "version": version, "kind": kind},
            "resource": {"group": group, "version": version, "resource": plural},
            "name": self.name,
            "namespace": self.namespace,
            "operation": self.operation(),
            "userInfo": {"username": self.user.0},
        });
        if !self.subresource.is_empty() {
            request["subResource"] = self.subresource.into();
        }
        request
    }

    fn variables<'a>(&'a self, request: &'a Value) -> Variables<'a> {
        let mut variables = Variables::new();
        variables.set("request", from_json(request));
        variables.set("object", from_json(self.object));
        variables.set("oldObject", from_json(self.old.unwrap_or(&Value::Null)));
        variables
    }
}

impl Policy {
    /// Returns true if the policy and its binding select the resource, the object and the namespace.
    fn selects(&self, write: &Attributes<'_>) -> bool {
        self.resources.iter().any(|rule| selects_resource(rule, write))
            && self.object_selector.as_ref().is_none_or(|selector| {
                selector.matches(write.object) || write.old.is_some_and(|old| selector.matches(old))
            })
            && self.namespace_selector.as_ref().is_none_or(|selector| {
                let labels = json!({"kubernetes.io/metadata.name": write.namespace});
                !write.kind.namespaced || selector.matches(&json!({"metadata": {"labels": labels}}))
            })
    }

    fn review(&self, write: &Attributes<'_>, request: &Value) -> Result<(), StatusError> {
        let mut variables = write.variables(request);
        let denial = match self.matching(&variables) {
            Matching::Exempt => None,
            Matching::Failed(_) if self.ignores_failures => None,
            Matching::Failed(error) => Some(Denial::failed(error)),
            Matching::Applies => {
                let failed = self.evaluate_variables(&mut variables);
                self.validations.iter().find_map(|validation| validation.check(&variables, failed.as_deref()))
            }
        };
        let Some(Denial { message, reason }) = denial else { return Ok(()) };
        let (policy, binding) = (&self.name, &self.binding);
        let message =
            format!("ValidatingAdmissionPolicy '{policy}' with binding '{binding}' denied request: {message}");
        let (code, reason) = match reason {
            Reason::Invalid => (422, "Invalid"),
            Reason::Forbidden => (403, "Forbidden"),
        };
        Err(StatusError::denied_by_admission(code, reason, write.kind, write.name, &message))
    }

    /// Evaluates the match conditions: one that is false exempts, even if another one fails.
    fn matching(&self, variables: &Variables<'_>) -> Matching {
        let mut matching = Matching::Applies;
        for condition in &self.conditions {
            match condition.is_true(variables) {
                Ok(true) => {}
                Ok(false) => return Matching::Exempt,
                Err(error) => matching = Matching::Failed(error),
            }
        }
        matching
    }

    /// Adds the variables of the policy; returns the error of the first that cannot be evaluated.
    fn evaluate_variables(&self, variables: &mut Variables<'_>) -> Option<String> {
        let mut failed = None;
        for Variable { name, value } in &self.variables {
            match value.value(variables) {
                Ok(value) => variables.set(name.as_str(), value),
                Err(error) => {
                    let name = name.trim_start_matches("variables.");
                    failed.get_or_insert(format!("composited variable \"{name}\" fails to evaluate: {error}"));
                }
            }
        }
        failed
    }
}

impl Validation {
    /// Evaluates the condition; `None` if the object satisfies it. `failed_variable` is the error of a
    /// variable that has no value.
    fn check(&self, variables: &Variables<'_>, failed_variable: Option<&str>) -> Option<Denial> {
        let text = self.condition.text();
        match self.condition.is_true(variables) {
            Ok(true) => None,
            Ok(false) => {
                let written = self.message_expression.as_ref().and_then(|expression| expression.message(variables));
                let message = match written {
                    Some(text) => text,
                    None if self.message.is_empty() => format!("failed expression: {text}"),
                    None => self.message.clone(),
                };
                Some(Denial { message, reason: self.reason })
            }
            Err(error) => {
                let error = failed_variable.filter(|_| error.contains("no such attribute")).unwrap_or(&error);
                Some(Denial::failed(format!("expression '{text}' resulted in error: {error}")))
            }
        }
    }
}

fn selects_resource(rule: &admission::NamedRuleWithOperations, write: &Attributes<'_>) -> bool {
    let lists = |list: &Option<Vec<String>>, text: &str| list.iter().flatten().any(|listed| listed == text);
    rule.resources.iter().flatten().any(|resource| write.is_resource(resource))
        && lists(&rule.api_groups, &write.kind.group)
        && lists(&rule.api_versions, &write.kind.version)
        && lists(&rule.operations, write.operation())
}

/// Reads the policies that the kustomization lists, in its order.
///
/// # Panics
/// Panics if a policy is malformed, has no binding or uses what is not implemented.
fn read_policies() -> Vec<Policy> {
    let read = |file: &str| std::fs::read_to_string(format!("{FOLDER}/{file}")).expect("a file of config/policy");
    let list: Value = serde_saphyr::from_str(&read("kustomization.yaml")).expect("YAML");
    let files = list["resources"].as_array().expect("a list of files").iter().filter_map(Value::as_str);
    let objects: Vec<Value> = files
        .flat_map(|file| {
            let documents = read(file);
            documents
                .split("\n---\n")
                .map(|text| serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{file}: {error}")))
                .collect::<Vec<Value>>()
        })
        .collect();
    let bindings: Vec<admission::ValidatingAdmissionPolicyBinding> =
        decode(&objects, "ValidatingAdmissionPolicyBinding");
    let policies: Vec<admission::ValidatingAdmissionPolicy> = decode(&objects, "ValidatingAdmissionPolicy");
    assert_eq!(policies.len() + bindings.len(), objects.len(), "config/policy has only policies and bindings");
    policies
        .into_iter()
        .map(|policy| {
            let bound_to = |binding: &&admission::ValidatingAdmissionPolicyBinding| {
                Some(&binding.spec.policy_name) == policy.metadata.name.as_ref()
            };
            let binding = bindings.iter().find(bound_to).expect("a policy has a binding");
            Policy::new(&policy, binding)
        })
        .collect()
}

/// Decodes the objects of one kind.
fn decode<T: DeserializeOwned>(objects: &[Value], kind: &str) -> Vec<T> {
    let of_kind = objects.iter().filter(|object| object["kind"] == kind);
    of_kind
        .map(|object| serde_json::from_value(object.clone()).unwrap_or_else(|error| panic!("{object}: {error}")))
        .collect()
}

impl Policy {
    fn new(
        policy: &admission::ValidatingAdmissionPolicy,
        binding: &admission::ValidatingAdmissionPolicyBinding,
    ) -> Self {
        let name = policy.metadata.name.clone().expect("a policy has a name");
        let spec = policy.spec.as_ref().expect("a policy has a spec");
        let bound = &binding.spec;
        let param = spec.param_kind.as_ref().zip(bound.param_ref.as_ref()).map(|(kind, named)| {
            assert_eq!(named.parameter_not_found_action.as_deref(), Some("Allow"), "{name}");
            assert!(named.namespace.is_none() && named.selector.is_none(), "{name}");
            let (kind, name) = (kind.kind.clone(), named.name.clone());
            Param { kind: kind.expect("a kind"), name: name.expect("a name") }
        });
        assert_eq!(param.is_some(), spec.param_kind.is_some() || bound.param_ref.is_some(), "{name}");
        assert!(spec.audit_annotations.is_none(), "{name}: audit annotations are not implemented");
        let ignores_failures = match spec.failure_policy.as_deref() {
            Some("Fail") => false,
            Some("Ignore") => true,
            other => panic!("{name}: unknown failure policy {other:?}"),
        };
        assert_eq!(bound.validation_actions, ["Deny"], "{name}");
        let constraints = spec.match_constraints.clone().unwrap_or_default();
        assert!(constraints.namespace_selector.is_none() && constraints.exclude_resource_rules.is_none(), "{name}");
        let place = bound.match_resources.clone().unwrap_or_default();
        assert!(place.object_selector.is_none() && place.resource_rules.is_none(), "{name}");
        Self {
            binding: binding.metadata.name.clone().expect("a binding has a name"),
            param,
            ignores_failures,
            resources: constraints.resource_rules.unwrap_or_default(),
            object_selector: constraints.object_selector.as_ref().map(label_selector),
            namespace_selector: place.namespace_selector.as_ref().map(label_selector),
            conditions: spec
                .match_conditions
                .iter()
                .flatten()
                .map(|condition| Expression::compile(&condition.expression))
                .collect(),
            variables: spec.variables.iter().flatten().map(Variable::new).collect(),
            validations: spec.validations.iter().flatten().map(Validation::new).collect(),
            name,
        }
    }
}

impl Variable {
    fn new(variable: &admission::Variable) -> Self {
        let name = format!("variables.{}", variable.name);
        Self { name, value: Expression::compile(&variable.expression) }
    }
}

impl Validation {
    fn new(validation: &admission::Validation) -> Self {
        Self {
            condition: Expression::compile(&validation.expression),
            message: validation.message.as_deref().unwrap_or_default().trim().to_owned(),
            message_expression: validation.message_expression.as_deref().map(Expression::compile),
            reason: match validation.reason.as_deref() {
                None | Some("Invalid") => Reason::Invalid,
                Some("Forbidden") => Reason::Forbidden,
                Some(other) => panic!("unknown reason {other}"),
            },
        }
    }
}

/// Converts a label selector.
fn label_selector(selector: &LabelSelector) -> Selector {
    assert!(selector.match_labels.is_none(), "matchLabels are not implemented");
    let requirement = |key: &str, operator: &str, values: &[String]| match operator {
        "In" => format!("{key} in ({})", values.join(",")),
        "NotIn" => format!("{key} notin ({})", values.join(",")),
        "Exists" => key.to_owned(),
        "DoesNotExist" => format!("!{key}"),
        other => panic!("unknown operator {other}"),
    };
    let requirements: Vec<String> = selector
        .match_expressions
        .iter()
        .flatten()
        .map(|wanted| requirement(&wanted.key, &wanted.operator, wanted.values.as_deref().unwrap_or_default()))
        .collect();
    Selector::parse(kinds::by_name("Pod"), &requirements.join(","), "").expect("a label selector")
}

#[cfg(test)]
mod tests;
