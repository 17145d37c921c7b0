//! Normalizes responses of two API servers for comparison: values that differ in every run are
//! numbered in order of first appearance, and fields that ours does not implement are removed.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::RecordedRequest;

/// Values seen so far.
#[derive(Default)]
pub struct Normalizer {
    seen_values: BTreeMap<String, Vec<String>>,
    /// Continue token of the last truncated list.
    continue_token: String,
}

impl Normalizer {
    /// Replaces placeholders in a path by values of earlier responses.
    pub fn expand_path(&self, path: &str) -> String {
        let first =
            self.seen_values.get("resourceVersion").and_then(|versions| versions.first()).map_or("", String::as_str);
        path.replace("{version}", first).replace("{continue}", &self.continue_token)
    }

    /// Normalizes a response: an object, or the events of a watch.
    pub fn normalize_response(&mut self, asked: &RecordedRequest, code: u16, body: &[u8]) -> Value {
        let it = &asked.description;
        if asked.method_and_path.contains("watch=true") && code == 200 {
            let events =
                body.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<Value>(line).ok());
            let events = events.filter(|event| !is_periodic_bookmark(event)).map(|mut event| {
                let object = self.normalize_object(event["object"].take());
                json!({"type": event["type"], "object": object})
            });
            return json!({"it": it, "code": code, "events": events.collect::<Vec<_>>()});
        }
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        if asked.ignores_message {
            return json!({"it": it, "code": code, "reason": body["reason"]});
        }
        if let Some(token) = body.pointer("/metadata/continue").and_then(Value::as_str) {
            token.clone_into(&mut self.continue_token);
        }
        json!({"it": it, "code": code, "body": self.normalize_object(body)})
    }

    fn normalize_object(&mut self, mut object: Value) -> Value {
        if let Some(causes) = object.pointer_mut("/details/causes").and_then(Value::as_array_mut) {
            // The real API server reports some causes twice.
            causes.sort_by_key(Value::to_string);
            causes.dedup();
        }
        remove_unsupported_fields(&mut object);
        for item in object.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten() {
            remove_unsupported_fields(item);
        }
        if object["metadata"]["annotations"]["k8s.io/initial-events-end"] == "true" {
            object["metadata"]["resourceVersion"] = "now".into();
        }
        self.number_values(&mut object, "");
        object
    }

    fn number_values(&mut self, value: &mut Value, field: &str) {
        match value {
            Value::Object(fields) => fields.iter_mut().for_each(|(name, value)| self.number_values(value, name)),
            Value::Array(items) => items.iter_mut().for_each(|item| self.number_values(item, field)),
            Value::String(text) => match field {
                "creationTimestamp" | "deletionTimestamp" => *text = "then".into(),
                "continue" if !text.is_empty() => *text = "token".into(),
                "uid" => *text = self.numbered_value(field, text),
                "resourceVersion" if text != "now" => *text = self.numbered_value(field, text),
                "clusterIP" | "clusterIPs" if text.starts_with("10.") => *text = self.numbered_value("address", text),
                "message" => *text = self.normalize_message(text),
                _ => {}
            },
            _ => {}
        }
    }

    /// Replaces uids and versions in a message.
    fn normalize_message(&self, text: &str) -> String {
        let uids = self.seen_values.get("uid").into_iter().flatten().filter(|uid| uid.len() == 36);
        let text = uids.fold(text.to_owned(), |text, uid| text.replace(uid, "uid"));
        match text.rsplit_once('(') {
            Some((head, tail)) if tail.starts_with(|first: char| first.is_ascii_digit()) => {
                format!("{head}(version{}", tail.trim_start_matches(|digit: char| digit.is_ascii_digit()))
            }
            _ => text,
        }
    }

    fn numbered_value(&mut self, category: &str, text: &str) -> String {
        let known = self.seen_values.entry(category.to_owned()).or_default();
        let index = known.iter().position(|seen| seen == text).unwrap_or_else(|| {
            known.push(text.to_owned());
            known.len() - 1
        });
        format!("{category} {index}")
    }
}

/// Returns true if an event is a periodic bookmark rather than the end of the initial events.
fn is_periodic_bookmark(event: &Value) -> bool {
    event["type"] == "BOOKMARK" && event.pointer("/object/metadata/annotations").is_none()
}

/// Removes field owners, and what admission adds to pods: the service account token and the
/// tolerations of unreachable nodes.
fn remove_unsupported_fields(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else { return };
    if !spec.contains_key("containers") {
        return;
    }
    for field in ["serviceAccount", "serviceAccountName", "tolerations"] {
        spec.remove(field);
    }
    let is_no_token = |item: &Value| !item["name"].as_str().is_some_and(|name| name.starts_with("kube-api-access-"));
    let is_empty_without_token = |list: Option<&mut Value>| {
        list.and_then(Value::as_array_mut).is_some_and(|items| {
            items.retain(is_no_token);
            items.is_empty()
        })
    };
    if is_empty_without_token(spec.get_mut("volumes")) {
        spec.remove("volumes");
    }
    for container in spec.get_mut("containers").and_then(Value::as_array_mut).into_iter().flatten() {
        if is_empty_without_token(container.get_mut("volumeMounts"))
            && let Some(container) = container.as_object_mut()
        {
            container.remove("volumeMounts");
        }
    }
}
