//! Defaults of the CRD schemas, applied to objects that no API server has stored yet.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::Value;

use sluice_api::crds;

/// OpenAPI schema of each kind that Sluice defines, by kind.
static SCHEMAS: LazyLock<BTreeMap<String, Value>> = LazyLock::new(|| {
    let schemas = crds::all().into_iter().filter_map(|definition| {
        let schema = definition.spec.versions.into_iter().next()?.schema?.open_api_v3_schema?;
        Some((definition.spec.names.kind, serde_json::to_value(schema).ok()?))
    });
    schemas.collect()
});

/// Sets each unset field that has a default in the schema of its kind, as the API server would.
pub(super) fn apply_defaults(kind: &str, object: &mut Value) {
    if let Some(schema) = SCHEMAS.get(kind) {
        apply_schema_defaults(schema, object);
    }
}

fn apply_schema_defaults(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
                if let (None | Some(Value::Null), Some(default)) = (fields.get(name), schema.get("default")) {
                    fields.insert(name.clone(), default.clone());
                }
                if let Some(field) = fields.get_mut(name) {
                    apply_schema_defaults(schema, field);
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                apply_schema_defaults(&schema["items"], item);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unset_fields_get_the_defaults_of_the_schema() {
        let mut service =
            json!({"spec": {"rayClusterConfig": {"workerGroupSpecs": [{"groupName": "a", "replicas": 3}]}}});
        apply_defaults("RayService", &mut service);
        let group = json!({
            "groupName": "a", "replicas": 3, "minReplicas": 0, "maxReplicas": i32::MAX, "numOfHosts": 1, "priority": 0,
        });
        assert_eq!(service["spec"]["rayClusterConfig"]["workerGroupSpecs"][0], group);

        let mut flavor = json!({"metadata": {"name": "a"}});
        apply_defaults("ResourceFlavor", &mut flavor);
        assert_eq!(flavor, json!({"metadata": {"name": "a"}, "spec": {}}));
    }
}
