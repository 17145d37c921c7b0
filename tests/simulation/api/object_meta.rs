//! Accessors for `metadata`, which every object has.

use serde_json::{Map, Value};

/// Returns `metadata` of an object; `None` if it is missing.
pub fn metadata(object: &Value) -> Option<&Map<String, Value>> {
    object.get("metadata")?.as_object()
}

/// Returns a string field of `metadata`, or an empty string if it is missing.
pub fn metadata_text<'a>(object: &'a Value, field: &str) -> &'a str {
    metadata(object).and_then(|metadata| metadata.get(field)).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the name of an object.
pub fn name(object: &Value) -> &str {
    metadata_text(object, "name")
}

/// Returns the namespace of an object, or an empty string if it is cluster-scoped.
pub fn namespace(object: &Value) -> &str {
    metadata_text(object, "namespace")
}

/// Returns namespace and name of an object.
pub fn namespaced_name(object: &Value) -> (&str, &str) {
    (namespace(object), name(object))
}

/// Returns the finalizers of an object in order.
pub fn finalizers(object: &Value) -> Vec<&str> {
    let list = metadata(object).and_then(|metadata| metadata.get("finalizers")).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Returns true if the object is terminating (has a `deletionTimestamp`).
pub fn is_terminating(object: &Value) -> bool {
    metadata(object).is_some_and(|metadata| metadata.contains_key("deletionTimestamp"))
}

/// Returns mutable `metadata`; creates it if it is missing or not an object.
pub fn metadata_mut(object: &mut Value) -> &mut Map<String, Value> {
    let object = as_map_mut(object);
    as_map_mut(object.entry("metadata").or_insert(Value::Null))
}

/// Sets a field of `metadata`.
pub fn set_metadata(object: &mut Value, field: &str, value: impl Into<Value>) {
    metadata_mut(object).insert(field.to_owned(), value.into());
}

/// Sets the finalizers; an empty list removes the field.
pub fn set_finalizers(object: &mut Value, finalizers: &[&str]) {
    if finalizers.is_empty() {
        metadata_mut(object).remove("finalizers");
    } else {
        set_metadata(object, "finalizers", finalizers.iter().map(|&name| Value::from(name)).collect::<Vec<_>>());
    }
}

/// Returns the value as a mutable object; any other value is replaced by an empty object.
pub fn as_map_mut(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut().expect("the value is an object")
}
