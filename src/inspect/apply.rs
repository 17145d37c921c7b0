//! What becomes of an object when somebody applies a manifest.

use serde_json::{Map, Value};

use super::snapshot::known;
use sluice_api::LAST_APPLIED_ANNOTATION;
use sluice_engine::world::Object;

/// The object as it is once the manifest is applied: its spec is that of the manifest, and of its labels and annotations those
/// stay that others have put on it. `None` for a kind that Sluice doesn't look at.
///
/// # Errors
/// When it isn't as an object of its kind should be.
pub(super) fn applied(live: Option<&Object>, manifest: Value) -> Result<Option<Object>, String> {
    let Some(live) = live.map(Object::manifest) else { return known(manifest) };
    let before = live["metadata"]["annotations"][LAST_APPLIED_ANNOTATION].as_str();
    let before: Value = before.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let Value::Object(given) = manifest else { return Err("it isn't an object".to_owned()) };
    let mut applied = live;
    for (field, value) in given {
        match field.as_str() {
            "metadata" => {
                for map in ["labels", "annotations"] {
                    merge(&mut applied["metadata"][map], &before["metadata"][map], &value[map]);
                }
            }
            "status" => {}
            _ => applied[field] = value,
        }
    }
    known(applied)
}

/// Adds what is given, and removes what was given before and no longer is.
fn merge(live: &mut Value, before: &Value, given: &Value) {
    if live.is_null() {
        *live = Value::Object(Map::new());
    }
    let (Value::Object(live), none) = (live, Map::new()) else { return };
    let given = given.as_object().unwrap_or(&none);
    let is_dropped = |key: &String| before.get(key).is_some() && !given.contains_key(key);
    live.retain(|key, _| !is_dropped(key));
    live.extend(given.clone());
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn local_queue(metadata: &Value, spec: &Value) -> Value {
        json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue", "metadata": metadata, "spec": spec})
    }

    #[test]
    fn the_spec_is_that_of_the_manifest_and_what_others_have_put_on_it_stays() {
        let last = json!({"metadata": {"labels": {"mine": "1", "dropped": "1"}}}).to_string();
        let annotations = json!({(LAST_APPLIED_ANNOTATION): last});
        let meta = json!({
            "name": "a", "namespace": "team", "uid": "u-1", "resourceVersion": "7",
            "labels": {"mine": "1", "dropped": "1", "of-others": "1"}, "annotations": annotations,
        });
        let live = known(local_queue(&meta, &json!({"clusterQueue": "old", "stopPolicy": "Hold"}))).expect("an object");

        let manifest = local_queue(
            &json!({"name": "a", "namespace": "team", "labels": {"mine": "2"}}),
            &json!({"clusterQueue": "new"}),
        );
        let applied = applied(live.as_ref(), manifest).expect("an object").expect("a known kind").manifest();

        assert_eq!(
            applied["spec"],
            json!({"clusterQueue": "new", "stopPolicy": "None"}),
            "with what the definition adds"
        );
        assert_eq!(applied["metadata"]["labels"], json!({"mine": "2", "of-others": "1"}));
        assert_eq!(applied["metadata"]["uid"], "u-1");
    }
}
