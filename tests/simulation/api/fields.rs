//! Reading and writing the fields that every object has.

use serde_json::{Map, Value};

/// `metadata` of an object.
pub fn metadata(object: &Value) -> Option<&Map<String, Value>> {
    object.get("metadata")?.as_object()
}

/// A text in `metadata`; empty when it is not there.
pub fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    metadata(object).and_then(|metadata| metadata.get(field)).and_then(Value::as_str).unwrap_or_default()
}

/// The name of an object.
pub fn name(object: &Value) -> &str {
    text(object, "name")
}

/// The namespace of an object; empty when it has none.
pub fn namespace(object: &Value) -> &str {
    text(object, "namespace")
}

/// Namespace and name of an object.
pub fn place(object: &Value) -> (&str, &str) {
    (namespace(object), name(object))
}

/// The finalizers of an object, in order.
pub fn finalizers(object: &Value) -> Vec<&str> {
    let list = metadata(object).and_then(|metadata| metadata.get("finalizers")).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Whether the object is being deleted.
pub fn is_deleting(object: &Value) -> bool {
    metadata(object).is_some_and(|metadata| metadata.contains_key("deletionTimestamp"))
}

/// `metadata` to write to; made if it is not there or not an object.
pub fn metadata_mut(object: &mut Value) -> &mut Map<String, Value> {
    let object = map(object);
    map(object.entry("metadata").or_insert(Value::Null))
}

/// Sets a field of `metadata`.
pub fn set_metadata(object: &mut Value, field: &str, value: impl Into<Value>) {
    metadata_mut(object).insert(field.to_owned(), value.into());
}

/// Sets the finalizers; an empty list leaves none.
pub fn set_finalizers(object: &mut Value, finalizers: &[&str]) {
    if finalizers.is_empty() {
        metadata_mut(object).remove("finalizers");
    } else {
        set_metadata(object, "finalizers", finalizers.iter().map(|&name| Value::from(name)).collect::<Vec<_>>());
    }
}

/// The value as an object; it becomes an empty one when it is anything else.
pub fn map(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut().expect("it was just made an object")
}
