//! Validates metadata: names, labels, annotations, finalizers and owner references.

use serde_json::{Map, Value, json};

use super::kinds::ResourceKind;
use super::object_meta;
use super::status_error::FieldError;

/// Maximum total size of the annotations of an object, in bytes.
const MAX_ANNOTATION_BYTES: usize = 256 * 1024;

/// Standard finalizers, which need no domain prefix.
const STANDARD_FINALIZERS: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];

/// Metadata fields that only the API server writes.
const READ_ONLY_FIELDS: [&str; 8] = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generateName",
    "generation",
    "namespace",
    "resourceVersion",
    "uid",
];

/// Removes read-only and empty metadata fields from a new object.
pub fn prepare_for_create(object: &mut Value) {
    let metadata = object_meta::metadata_mut(object);
    metadata.retain(|field, _| {
        field == "generateName" || field == "namespace" || !READ_ONLY_FIELDS.contains(&field.as_str())
    });
    remove_unknown_and_empty(metadata);
}

/// Restores read-only metadata fields of an updated object and removes empty ones.
pub fn prepare_for_update(old: &Value, object: &mut Value) {
    let metadata = object_meta::metadata_mut(object);
    remove_unknown_and_empty(metadata);
    for field in READ_ONLY_FIELDS {
        match object_meta::metadata(old).and_then(|metadata| metadata.get(field)) {
            // A given uid is validated later.
            Some(_) if field == "uid" && metadata.contains_key(field) => None,
            Some(value) => metadata.insert(field.to_owned(), value.clone()),
            None if field.starts_with("deletion") => None,
            None => metadata.remove(field),
        };
    }
}

/// Removes unknown and empty fields, as decoding into ObjectMeta does.
fn remove_unknown_and_empty(metadata: &mut Map<String, Value>) {
    metadata.retain(|field, value| match field.as_str() {
        "labels" | "annotations" => value.as_object().is_none_or(|map| !map.is_empty()) && !value.is_null(),
        "finalizers" | "ownerReferences" => value.as_array().is_none_or(|list| !list.is_empty()) && !value.is_null(),
        "name" => true,
        other => READ_ONLY_FIELDS.contains(&other) && !value.is_null(),
    });
}

/// Validates the metadata of an object; `before` is the stored object, `None` on create.
pub fn validate(kind: &ResourceKind, object: &Value, before: Option<&Value>) -> Vec<FieldError> {
    let mut errors: Vec<FieldError> = before.map_or_else(Vec::new, |before| validate_update(before, object));
    if let Err(why) = check_name(kind, object_meta::name(object)) {
        errors.push(FieldError::invalid("metadata.name", &json!(object_meta::name(object)), why));
    }
    let Some(metadata) = object_meta::metadata(object) else { return errors };
    let entries = |field: &str| metadata.get(field).and_then(Value::as_object).into_iter().flatten();
    for (key, value) in entries("labels") {
        if let Err(why) = check_qualified(key) {
            errors.push(FieldError::invalid("metadata.labels", &json!(key), why));
        }
        if let Err(why) = check_label_value(value.as_str()) {
            errors.push(FieldError::invalid("metadata.labels", value, why));
        }
    }
    let mut size = 0;
    for (key, value) in entries("annotations") {
        size += key.len() + value.as_str().map_or(0, str::len);
        if let Err(why) = check_qualified(&key.to_lowercase()) {
            errors.push(FieldError::invalid("metadata.annotations", &json!(key), why));
        }
    }
    if size > MAX_ANNOTATION_BYTES {
        let text = format!("Too long: may not be more than {MAX_ANNOTATION_BYTES} bytes");
        errors.push(FieldError {
            field: "metadata.annotations".into(),
            cause_type: "FieldValueTooLong",
            message: text,
        });
    }
    errors.extend(validate_owner_references(metadata));
    errors.extend(validate_finalizers(kind, object));
    errors
}

/// Validates changes of immutable metadata fields.
fn validate_update(before: &Value, object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if object_meta::is_terminating(before) {
        let held = object_meta::finalizers(before);
        let added: Vec<String> = object_meta::finalizers(object)
            .into_iter()
            .filter(|finalizer| !held.contains(finalizer))
            .map(|finalizer| json!(finalizer).to_string())
            .collect();
        if !added.is_empty() {
            let why = "no new finalizers can be added if the object is being deleted, found new finalizers []string";
            errors.push(FieldError::forbidden("metadata.finalizers", &format!("{why}{{{}}}", added.join(", "))));
        }
    }
    for field in ["uid", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        let value_in = |object: &Value| object_meta::metadata(object).and_then(|metadata| metadata.get(field).cloned());
        if let Some(value) = value_in(object)
            && Some(&value) != value_in(before).as_ref()
        {
            errors.push(FieldError::invalid(format!("metadata.{field}"), &value, "field is immutable"));
        }
    }
    errors
}

fn validate_finalizers(kind: &ResourceKind, object: &Value) -> Vec<FieldError> {
    let finalizers = object_meta::finalizers(object);
    let malformed = finalizers.iter().filter_map(|finalizer| {
        Some(FieldError::invalid("metadata.finalizers", &json!(finalizer), check_qualified(finalizer).err()?))
    });
    let without_domain = finalizers.iter().enumerate().filter_map(|(index, finalizer)| {
        let is_valid = kind.is_custom() || finalizer.contains('/') || STANDARD_FINALIZERS.contains(finalizer);
        let why = "name is neither a standard finalizer name nor is it fully qualified";
        (!is_valid).then(|| FieldError::invalid(format!("metadata.finalizers[{index}]"), &json!(finalizer), why))
    });
    malformed.chain(without_domain).collect()
}

fn validate_owner_references(metadata: &Map<String, Value>) -> Vec<FieldError> {
    let owners = metadata.get("ownerReferences").and_then(Value::as_array);
    let owners: Vec<&Value> = owners.into_iter().flatten().collect();
    let mut errors = Vec::new();
    for owner in &owners {
        let lacks = |field: &&str| owner.get(*field).and_then(Value::as_str).unwrap_or_default().is_empty();
        for field in ["apiVersion", "kind", "name", "uid"].into_iter().filter(lacks) {
            let why = if field == "apiVersion" { "version must not be empty" } else { "must not be empty" };
            errors.push(FieldError::invalid(format!("metadata.ownerReferences.{field}"), &json!(""), why));
        }
    }
    let controllers: Vec<String> = owners
        .iter()
        .filter(|owner| owner.get("controller") == Some(&Value::Bool(true)))
        .map(|owner| format!("{}/{}", owner["kind"].as_str().unwrap_or(""), owner["name"].as_str().unwrap_or("")))
        .collect();
    if let [first, second, ..] = controllers.as_slice() {
        let why = format!(
            "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {second}"
        );
        errors.push(FieldError::invalid("metadata.ownerReferences", &json!(owners), &why));
    }
    errors
}

const INVALID_SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and \
    must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const INVALID_DNS_LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and \
    end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const INVALID_LABEL_KEY: &str = "a valid label key must consist of alphanumeric characters, '-', '_' or '.', and must start and end with \
    an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
    '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
const INVALID_LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and \
    must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for \
    validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const INVALID_NAME_PART: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
    alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
    '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";

fn check_name(kind: &ResourceKind, name: &str) -> Result<(), &'static str> {
    match kind.kind.as_str() {
        "Service" | "Namespace" if name.len() > 63 => Err("must be no more than 63 characters"),
        "Service" | "Namespace" if !is_dns_label(name) => Err(INVALID_DNS_LABEL),
        "Service" | "Namespace" => Ok(()),
        _ if name.len() > 253 => Err("must be no more than 253 characters"),
        _ if !is_subdomain(name) => Err(INVALID_SUBDOMAIN),
        _ => Ok(()),
    }
}

/// Validates a key of labels, annotations or finalizers: `name` or `domain/name`.
fn check_qualified(key: &str) -> Result<(), &'static str> {
    if key.matches('/').count() > 1 {
        return Err(INVALID_LABEL_KEY);
    }
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    match prefix {
        Some("") => return Err("prefix part must be non-empty"),
        Some(prefix) if prefix.len() > 253 || !is_subdomain(prefix) => return Err(INVALID_SUBDOMAIN),
        _ => {}
    }
    match name {
        "" => Err("name part must be non-empty"),
        name if name.len() > 63 => Err("name part must be no more than 63 bytes"),
        name if !is_qualified_name_part(name) => Err(INVALID_NAME_PART),
        _ => Ok(()),
    }
}

fn check_label_value(value: Option<&str>) -> Result<(), &'static str> {
    match value {
        None => Err("must be a string"),
        Some(value) if value.len() > 63 => Err("must be no more than 63 bytes"),
        Some(value) if !value.is_empty() && !is_qualified_name_part(value) => Err(INVALID_LABEL_VALUE),
        Some(_) => Ok(()),
    }
}

fn is_subdomain(text: &str) -> bool {
    text.split('.').all(is_dns_label)
}

fn is_dns_label(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    has_allowed_ends(text, allowed) && text.bytes().all(|byte| allowed(byte) || byte == b'-')
}

fn is_qualified_name_part(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric();
    has_allowed_ends(text, allowed) && text.bytes().all(|byte| allowed(byte) || b"-_.".contains(&byte))
}

/// Returns true if the first and the last byte are allowed; false for an empty string.
fn has_allowed_ends(text: &str, allowed: impl Fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    bytes.first().is_some_and(|&byte| allowed(byte)) && bytes.last().is_some_and(|&byte| allowed(byte))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::super::kinds;
    use super::*;

    #[rstest]
    #[case::name("Pod", json!({"name": "Upper"}), "metadata.name")]
    #[case::service_name("Service", json!({"name": "a.b"}), "metadata.name")]
    #[case::long_service_name("Service", json!({"name": "a".repeat(64)}), "metadata.name")]
    #[case::label_value("Pod", json!({"name": "a", "labels": {"x": "a".repeat(64)}}), "metadata.labels")]
    #[case::label_key("Pod", json!({"name": "a", "labels": {"x/y/z": ""}}), "metadata.labels")]
    #[case::owner(
        "Pod",
        json!({"name": "a", "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "b"}]}),
        "metadata.ownerReferences.uid"
    )]
    fn invalid_metadata_field_is_reported(#[case] kind: &str, #[case] metadata: Value, #[case] field: &str) {
        let errors = validate(kinds::by_name(kind), &json!({"metadata": metadata}), None);
        assert_eq!(errors.iter().map(|error| error.field.as_str()).collect::<Vec<_>>(), [field]);
    }

    #[test]
    fn valid_metadata_has_no_errors() {
        let metadata = json!({
            "name": "a-1.b",
            "labels": {"ray.io/cluster": "A_b.c", "x": ""},
            "annotations": {"Ray.io/Some": "any thing"},
            "finalizers": ["sluice.dev/x", "foregroundDeletion"],
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "b", "uid": "u", "controller": true}],
        });
        assert_eq!(validate(kinds::by_name("Pod"), &json!({"metadata": metadata}), None), []);
    }
}
