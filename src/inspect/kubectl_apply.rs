//! Client-side `kubectl apply`: merges a manifest into the live object.

use serde_json::{Map, Value};

use super::snapshot::{ManifestError, decode_watched};
use sluice_api::LAST_APPLIED_ANNOTATION;
use sluice_engine::cluster_state::Object;

/// Returns the object after the manifest is applied; None for a kind that Sluice doesn't read. The
/// spec is that of the manifest. Labels and annotations set by other clients are preserved.
///
/// # Errors
/// If the result isn't a valid object of its kind.
pub(super) fn apply_manifest(live: Option<&Object>, manifest: Value) -> Result<Option<Object>, ManifestError> {
    let Some(live) = live.map(Object::manifest) else { return decode_watched(manifest) };
    let last_applied = live["metadata"]["annotations"][LAST_APPLIED_ANNOTATION].as_str();
    let last_applied: Value = last_applied.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let Value::Object(fields) = manifest else { return Err(ManifestError::NotAnObject) };
    let mut applied = live;
    for (field, value) in fields {
        match field.as_str() {
            "metadata" => {
                for map in ["labels", "annotations"] {
                    merge_map(&mut applied["metadata"][map], &last_applied["metadata"][map], &value[map]);
                }
            }
            "status" => {}
            _ => applied[field] = value,
        }
    }
    decode_watched(applied)
}

/// Adds the entries of `manifest` to `live`, and removes those of `last_applied` that `manifest` no
/// longer has.
fn merge_map(live: &mut Value, last_applied: &Value, manifest: &Value) {
    if live.is_null() {
        *live = Value::Object(Map::new());
    }
    let (Value::Object(live), empty) = (live, Map::new()) else { return };
    let manifest = manifest.as_object().unwrap_or(&empty);
    let is_dropped = |key: &String| last_applied.get(key).is_some() && !manifest.contains_key(key);
    live.retain(|key, _| !is_dropped(key));
    live.extend(manifest.clone());
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn local_queue(metadata: &Value, spec: &Value) -> Value {
        json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue", "metadata": metadata, "spec": spec})
    }

    #[test]
    fn spec_comes_from_the_manifest_and_labels_of_other_clients_are_preserved() {
        let last = json!({"metadata": {"labels": {"mine": "1", "dropped": "1"}}}).to_string();
        let annotations = json!({(LAST_APPLIED_ANNOTATION): last});
        let meta = json!({
            "name": "a", "namespace": "team", "uid": "u-1", "resourceVersion": "7",
            "labels": {"mine": "1", "dropped": "1", "other-client": "1"}, "annotations": annotations,
        });
        let live = decode_watched(local_queue(&meta, &json!({"clusterQueue": "old", "stopPolicy": "Hold"})))
            .expect("an object");

        let manifest = local_queue(
            &json!({"name": "a", "namespace": "team", "labels": {"mine": "2"}}),
            &json!({"clusterQueue": "new"}),
        );
        let applied = apply_manifest(live.as_ref(), manifest).expect("an object").expect("a known kind").manifest();

        assert_eq!(
            applied["spec"],
            json!({"clusterQueue": "new", "stopPolicy": "None"}),
            "with the defaults of the CRD"
        );
        assert_eq!(applied["metadata"]["labels"], json!({"mine": "2", "other-client": "1"}));
        assert_eq!(applied["metadata"]["uid"], "u-1");
    }
}
