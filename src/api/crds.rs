//! CustomResourceDefinitions of the kinds that Sluice serves, generated from the types.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube_core::CustomResourceExt;
use serde_json::Value;

use super::kueue::{ClusterQueue, Cohort, LocalQueue, ResourceFlavor, Workload, WorkloadPriorityClass};
use super::ray::{RayCluster, RayService};

/// Returns the definitions of all kinds, sorted by name.
pub fn all() -> Vec<CustomResourceDefinition> {
    let definitions = [
        ClusterQueue::crd(),
        Cohort::crd(),
        LocalQueue::crd(),
        with_name_rules(RayCluster::crd(), 53),
        with_name_rules(RayService::crd(), 47),
        ResourceFlavor::crd(),
        Workload::crd(),
        WorkloadPriorityClass::crd(),
    ];
    let mut definitions: Vec<_> = definitions.into_iter().map(normalize).collect();
    definitions.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    definitions
}

/// Returns all definitions as one stream of YAML documents.
pub fn to_yaml() -> String {
    all().iter().map(|definition| format!("---\n{}", crd_yaml(definition))).collect()
}

/// Returns the files of `config/crd`: their names and contents, the kustomization included.
pub fn files() -> Vec<(String, String)> {
    let note = "# Generated from src/api; `make generate` writes it.\n";
    let mut files: Vec<(String, String)> =
        all().iter().map(|definition| (file_name(definition), format!("{note}{}", crd_yaml(definition)))).collect();
    let resources: String = files.iter().map(|(name, _)| format!("- {name}\n")).collect();
    let kustomization =
        format!("apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n{resources}");
    files.push(("kustomization.yaml".to_owned(), kustomization));
    files
}

fn file_name(definition: &CustomResourceDefinition) -> String {
    format!("{}_{}.yaml", definition.spec.group, definition.spec.names.plural)
}

/// Serializes one definition as YAML. It does not fail for our own types.
fn crd_yaml(definition: &CustomResourceDefinition) -> String {
    let value = serde_json::to_value(definition).expect("a definition is JSON");
    serde_saphyr::to_string(&value).expect("JSON is YAML")
}

/// Limits the length of object names, in characters, because names derived from them must fit into
/// 63 (KubeRay 1.7 `ray-operator/controllers/ray/utils/validation.go`). They are also the first
/// part of Service names, so they must be DNS-1035 labels.
fn with_name_rules(mut definition: CustomResourceDefinition, longest: usize) -> CustomResourceDefinition {
    let rules = serde_json::json!([{
        "rule": format!("size(self.metadata.name) <= {longest}"),
        "message": format!("metadata.name may have at most {longest} characters"),
    }, {
        "rule": "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        "message": "metadata.name must start with a lower-case letter, and contain only lower-case letters, digits and '-'",
    }]);
    for version in &mut definition.spec.versions {
        if let Some(root) = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut()) {
            root.x_kubernetes_validations = serde_json::from_value(rules.clone()).ok();
        }
    }
    definition
}

/// Removes from the generated schema what the derive adds because a Rust field is an `Option` or
/// has a default. Manifests do not contain explicit nulls: the API server drops a null for a field
/// that is not nullable, and stores it for one that is, where it would hide the default and count
/// as set in a CEL rule.
fn normalize(definition: CustomResourceDefinition) -> CustomResourceDefinition {
    let mut value = serde_json::to_value(definition).expect("a definition is JSON");
    for version in value.pointer_mut("/spec/versions").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(root) = version.pointer_mut("/schema/openAPIV3Schema") {
            normalize_schema(root);
            root.pointer_mut("/properties/status").map(remove_zero_defaults);
            if let Some(condition) = root.pointer_mut("/properties/status/properties/conditions/items/properties") {
                add_condition_rules(condition);
            }
            // A ResourceFlavor or Cohort may be submitted without a spec, but the Rust types require one.
            if let Some(spec) = root.pointer_mut("/properties/spec").and_then(Value::as_object_mut)
                && !spec.contains_key("required")
            {
                spec.insert("default".to_owned(), Value::Object(serde_json::Map::new()));
            }
            if let Some(root) = root.as_object_mut() {
                root.remove("title");
            }
        }
    }
    serde_json::from_value(value).expect("a tidied definition is a definition")
}

/// Adds the constraints of the API conventions to conditions (apimachinery `meta/v1`, type
/// `Condition`), which the Rust type does not have.
fn add_condition_rules(fields: &mut Value) {
    let rules = serde_json::json!({
        "type": {
            "maxLength": 316,
            "pattern": r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
        },
        "status": {"enum": ["True", "False", "Unknown"]},
        "reason": {"minLength": 1, "maxLength": 1024, "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"},
        "message": {"maxLength": 32768},
        "observedGeneration": {"minimum": 0},
    });
    for (name, rules) in rules.as_object().into_iter().flatten() {
        if let (Some(field), Some(rules)) = (fields.get_mut(name).and_then(Value::as_object_mut), rules.as_object()) {
            field.extend(rules.clone());
        }
    }
}

/// Removes `nullable` and defaults of null, "" and [] from a schema and all schemas below it, and
/// joins the lines of their descriptions. Schemas that preserve unknown fields are not derived, and
/// stay as they are.
fn normalize_schema(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else { return };
    fields.remove("nullable");
    if let Some(Value::String(description)) = fields.get_mut("description") {
        *description = join_lines(description);
    }
    let empty = [Value::Null, Value::from(""), Value::Array(Vec::new())];
    if fields.get("default").is_some_and(|default| empty.contains(default)) {
        fields.remove("default");
    }
    if fields.contains_key("x-kubernetes-preserve-unknown-fields") {
        return;
    }
    for nested in ["items", "additionalProperties"] {
        fields.get_mut(nested).map(normalize_schema);
    }
    for property in fields.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten() {
        normalize_schema(property.1);
    }
}

/// Joins the lines of a single paragraph: they are as long as those of a doc comment, and kubectl
/// breaks lines at another width. Several paragraphs, which may contain lists, stay as they are.
fn join_lines(text: &str) -> String {
    if text.contains("\n\n") { text.to_owned() } else { text.replace('\n', " ") }
}

/// Removes defaults of zero from a status schema and all schemas below it: a default would claim a
/// count that was never computed.
fn remove_zero_defaults(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else { return };
    if fields.get("default") == Some(&Value::from(0)) {
        fields.remove("default");
    }
    for nested in ["items", "additionalProperties"] {
        fields.get_mut(nested).map(remove_zero_defaults);
    }
    for property in fields.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten() {
        remove_zero_defaults(property.1);
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[test]
    fn schemas_have_only_keywords_that_the_api_server_accepts() {
        for definition in all() {
            let text = crd_yaml(&definition);
            for keyword in ["nullable:", "$ref", "default: null"] {
                assert!(!text.contains(keyword), "{} has {keyword}", file_name(&definition));
            }
        }
    }

    #[rstest]
    #[case::paragraph("Name of the cohort.\nUnset means none.", "Name of the cohort. Unset means none.")]
    #[case::paragraphs("A number:\n\n- exact\n- positive", "A number:\n\n- exact\n- positive")]
    fn lines_of_a_paragraph_are_joined(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(join_lines(text), expected);
    }

    /// A CEL rule fails on an absent field, so manifests of KubeRay are accepted only with these
    /// defaults.
    #[rstest]
    #[case::replicas("replicas", json!(0))]
    #[case::min_replicas("minReplicas", json!(0))]
    #[case::max_replicas("maxReplicas", json!(2_147_483_647))]
    #[case::num_of_hosts("numOfHosts", json!(1))]
    #[case::priority("priority", json!(0))]
    fn worker_group_has_the_defaults_of_kuberay(#[case] field: &str, #[case] expected: Value) {
        let definition = serde_json::to_value(all().into_iter().find(|crd| crd.spec.names.kind == "RayCluster"))
            .expect("a definition is JSON");
        let group = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/workerGroupSpecs/items";
        assert_eq!(definition.pointer(&format!("{group}/properties/{field}/default")), Some(&expected));
    }
}
