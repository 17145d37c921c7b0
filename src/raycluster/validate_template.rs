//! Validation of pod templates. The API server validates pods only when the first one is created,
//! which is after quota was reserved for them (kueue v0.19.2 `pkg/webhooks/workload_webhook.go`,
//! `validatePodSet`, rejects invalid labels and annotations).

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, PodTemplateSpec};

use super::field_error::FieldError;
use sluice_api::ray::PodTemplate;
use sluice_api::ray::routing_annotations::is_dns_name;
use sluice_queue::requests::pod_requests;

/// Maximum size of all annotations of a pod, in bytes.
const MAX_ANNOTATIONS_BYTES: usize = 256 * 1024;
/// Maximum length of the name in a label or annotation key, in characters.
const MAX_KEY_NAME_LENGTH: usize = 63;

/// Validates the metadata of a pod template as submitted: labels that are added to it are validated
/// where they come from.
pub(super) fn validate_metadata(field: &str, template: &PodTemplate, problems: &mut Vec<FieldError>) {
    // The error is reported when the pod groups are built.
    let Ok(template) = template.parse() else { return };
    let metadata = template.metadata.unwrap_or_default();
    validate_labels(&format!("{field}.metadata.labels"), &metadata.labels.unwrap_or_default(), problems);
    let annotations = metadata.annotations.unwrap_or_default();
    validate_annotations(&format!("{field}.metadata.annotations"), &annotations, problems);
}

/// Validates what the API server would reject only when the first pod is created.
pub(super) fn validate_template(field: &str, template: &PodTemplateSpec, problems: &mut Vec<FieldError>) {
    let Some(spec) = &template.spec else { return };
    let node_selector = spec.node_selector.clone().unwrap_or_default();
    validate_labels(&format!("{field}.spec.nodeSelector"), &node_selector, problems);
    if let Err(error) = pod_requests(spec) {
        problems.push(FieldError::new(format!("{field}.spec"), error));
    }
    let mut names = BTreeSet::new();
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    for Container { name, .. } in containers {
        if !names.insert(name) {
            problems.push(FieldError::new(format!("{field}.spec"), format!("two containers have the name {name:?}")));
        }
    }
}

fn validate_labels(field: &str, labels: &BTreeMap<String, String>, problems: &mut Vec<FieldError>) {
    for (key, value) in labels {
        if !is_label_key(key) {
            problems.push(FieldError::new(field, format!("{key:?} is not a valid key; {KEY_RULE}")));
        }
        if !is_label_value(value) {
            let message = format!(
                "{value:?} is not a valid value; use up to 63 letters, digits, '-', '_' and '.', with a letter or \
                 digit at both ends"
            );
            problems.push(FieldError::new(format!("{field}[{key}]"), message));
        }
    }
}

fn validate_annotations(field: &str, annotations: &BTreeMap<String, String>, problems: &mut Vec<FieldError>) {
    // The API server ignores the case of annotation keys.
    for key in annotations.keys().filter(|key| !is_label_key(&key.to_lowercase())) {
        problems.push(FieldError::new(field, format!("{key:?} is not a valid key; {KEY_RULE}")));
    }
    let bytes: usize = annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
    if bytes > MAX_ANNOTATIONS_BYTES {
        let message = format!("has {bytes} bytes; at most {MAX_ANNOTATIONS_BYTES} are allowed");
        problems.push(FieldError::new(field, message));
    }
}

/// Form of the keys of labels and annotations, for messages.
const KEY_RULE: &str = "use a name like app or example.com/app";

/// Reports whether `key` is a valid label key: an optional DNS name with a slash, and a name.
pub(super) fn is_label_key(key: &str) -> bool {
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    !name.is_empty() && name.len() <= MAX_KEY_NAME_LENGTH && is_label_value(name) && prefix.is_none_or(is_dns_name)
}

/// Reports whether `value` is a valid label value: empty, or up to 63 letters, digits, '-', '_' and
/// '.', with a letter or digit at both ends.
pub(super) fn is_label_value(value: &str) -> bool {
    let is_alphanumeric = |c: char| c.is_ascii_alphanumeric();
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    value.is_empty()
        || (value.len() <= 63
            && value.chars().all(is_allowed)
            && value.starts_with(is_alphanumeric)
            && value.ends_with(is_alphanumeric))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn problems(template: Value) -> Vec<String> {
        let template = PodTemplate(template.into());
        let mut problems = Vec::new();
        validate_metadata("template", &template, &mut problems);
        validate_template("template", &template.parse().expect("a template"), &mut problems);
        problems.iter().map(ToString::to_string).collect()
    }

    #[rstest]
    #[case::label_value(json!({"metadata": {"labels": {"cost-center": "R&D / vision"}}}),
        "template.metadata.labels[cost-center]: \"R&D / vision\" is not a valid value")]
    #[case::label_key(json!({"metadata": {"labels": {"a b": ""}}}), "template.metadata.labels: \"a b\" is not a valid key")]
    #[case::annotation_key(json!({"metadata": {"annotations": {"a/b/c": ""}}}),
        "template.metadata.annotations: \"a/b/c\" is not a valid key")]
    #[case::annotations_in_all(json!({"metadata": {"annotations": {"a": "x".repeat(300_000)}}}),
        "template.metadata.annotations: has 300001 bytes")]
    #[case::node_selector(json!({"spec": {"containers": [], "nodeSelector": {"pool": "a b"}}}),
        "template.spec.nodeSelector[pool]: \"a b\" is not a valid value")]
    fn invalid_metadata_names_field_and_value(#[case] template: Value, #[case] expected: &str) {
        let problems = problems(template);
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].starts_with(expected), "{problems:?}");
    }

    #[test]
    fn valid_metadata_is_accepted() {
        let labels = json!({"app": "", "example.com/app": "a.B-c_1"});
        let annotations = json!({"Example.com/App": "R&D / vision"});
        assert_eq!(problems(json!({"metadata": {"labels": labels, "annotations": annotations}})), Vec::<String>::new());
    }

    #[rstest]
    #[case("app", true)]
    #[case("example.com/app", true)]
    #[case("ray.io/accelerator-type", true)]
    #[case("Example.com/app", false)]
    #[case("/app", false)]
    #[case("example.com/", false)]
    #[case("-app", false)]
    #[case("", false)]
    fn label_keys_are_validated(#[case] key: &str, #[case] expected: bool) {
        assert_eq!(is_label_key(key), expected);
    }
}
