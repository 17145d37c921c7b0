//! Accessors for the object fields that controllers read, and a setter for conditions.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::api::ApiServer;

/// Identity of a pod. The uid distinguishes it from later pods with the same name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PodId {
    /// Number of pods created before it.
    pub(super) ordinal: u64,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
}

impl PodId {
    /// Returns the current state of the pod; `None` if it is deleted.
    pub(super) fn find<'a>(&self, api: &'a ApiServer) -> Option<&'a Arc<Value>> {
        api.get("Pod", &self.namespace, &self.name).filter(|pod| uid(pod) == self.uid)
    }
}

/// Returns the value at a JSON pointer. (`Value::pointer` allocates two strings for each segment,
/// and controllers read often.)
pub(super) fn value_at<'a>(object: &'a Value, pointer: &str) -> Option<&'a Value> {
    if pointer.contains('~') {
        return object.pointer(pointer);
    }
    pointer.split('/').skip(1).try_fold(object, |value, part| match value {
        Value::Object(fields) => fields.get(part),
        Value::Array(items) => items.get(part.parse::<usize>().ok()?),
        _ => None,
    })
}

/// Returns the string at a JSON pointer, or an empty string if there is none.
pub(super) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    value_at(object, pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the items of the list at a JSON pointer; none if there is no list.
pub(super) fn items<'a>(object: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    value_at(object, pointer).and_then(Value::as_array).into_iter().flatten()
}

/// Returns the entries of the map at a JSON pointer; none if there is no map.
pub(super) fn map_entries<'a>(
    object: &'a Value,
    pointer: &str,
) -> impl Iterator<Item = (&'a str, &'a Value)> + use<'a> {
    value_at(object, pointer)
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(name, value)| (name.as_str(), value))
}

pub(super) fn uid(object: &Value) -> &str {
    text(object, "/metadata/uid")
}

/// Returns namespace (empty for cluster-scoped objects) and name.
pub(super) fn namespaced_name(object: &Value) -> (String, String) {
    (text(object, "/metadata/namespace").to_owned(), text(object, "/metadata/name").to_owned())
}

pub(super) fn is_terminating(object: &Value) -> bool {
    !text(object, "/metadata/deletionTimestamp").is_empty()
}

/// Returns true if the pod has finished: its phase is Succeeded or Failed.
pub(super) fn has_ended(pod: &Value) -> bool {
    matches!(text(pod, "/status/phase"), "Succeeded" | "Failed")
}

/// Returns the status of a condition: "True", "False", "Unknown", or empty if it is missing.
pub(super) fn condition_status<'a>(object: &'a Value, kind: &str) -> &'a str {
    let found = items(object, "/status/conditions").find(|condition| condition["type"] == kind);
    found.map_or("", |condition| text(condition, "/status"))
}

/// Formats a time as Kubernetes does: RFC 3339 in whole seconds.
pub(super) fn rfc3339_seconds(at: Timestamp) -> String {
    Timestamp::from_second(at.as_second()).unwrap_or(at).to_string()
}

/// Sets a condition of an object. `lastTransitionTime` changes only with the status.
pub(super) fn set_condition(object: &mut Value, now: Timestamp, kind: &str, status: &str, reason: &str, message: &str) {
    let mut wanted = json!({"type": kind, "status": status, "lastTransitionTime": rfc3339_seconds(now)});
    for (field, text) in [("reason", reason), ("message", message)] {
        if !text.is_empty() {
            wanted[field] = json!(text);
        }
    }
    let conditions = &mut object["status"]["conditions"];
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let Some(conditions) = conditions.as_array_mut() else { return };
    match conditions.iter_mut().find(|condition| condition["type"] == kind) {
        Some(found) => {
            if found["status"] == wanted["status"] {
                wanted["lastTransitionTime"] = found["lastTransitionTime"].take();
            }
            *found = wanted;
        }
        None => conditions.push(wanted),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::whole("")]
    #[case::field("/a")]
    #[case::nested("/a/b/1/c")]
    #[case::escaped("/a/x~1y")]
    #[case::index_out_of_range("/a/b/2")]
    #[case::index_is_not_a_number("/a/b/c")]
    #[case::field_of_a_string("/a/b/0/c")]
    fn value_at_pointer_equals_that_of_serde_json(#[case] pointer: &str) {
        let object = json!({"a": {"b": ["t", {"c": 1}], "x/y": 2}});

        assert_eq!(value_at(&object, pointer), object.pointer(pointer));
    }
}
