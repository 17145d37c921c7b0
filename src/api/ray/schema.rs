//! Schema fragments that the derive cannot express.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use super::core_defaults::{self, FieldDefault};

/// Object of the core API that is passed through unchanged.
pub(super) fn opaque_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// List of objects of the core API that are passed through unchanged.
pub(super) fn opaque_list(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
    })
}

/// Environment variables of a container.
pub(super) fn env_vars(_: &mut SchemaGenerator) -> Schema {
    list_with_defaults(&core_defaults::env_var())
}

/// Sources of environment variables of a container.
pub(super) fn env_sources(_: &mut SchemaGenerator) -> Schema {
    list_with_defaults(&core_defaults::env_source())
}

/// Source of a value, such as a Secret key.
pub(super) fn value_source(_: &mut SchemaGenerator) -> Schema {
    schema_of(&object_with_defaults(&core_defaults::value_source()))
}

/// Template of a Service.
pub(super) fn service(_: &mut SchemaGenerator) -> Schema {
    schema_of(&object_with_defaults(&core_defaults::service()))
}

fn list_with_defaults(defaults: &[FieldDefault]) -> Schema {
    schema_of(&json!({"type": "array", "items": object_with_defaults(defaults)}))
}

fn object_with_defaults(defaults: &[FieldDefault]) -> Value {
    let mut schema = json!({});
    core_defaults::add_to_schema(&mut schema, defaults);
    schema
}

/// Converts the JSON of an object schema.
pub(super) fn schema_of(schema: &Value) -> Schema {
    Schema::from(schema.as_object().cloned().unwrap_or_default())
}

/// Quantity in the form of the core API.
pub(super) fn quantity(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]})
}

/// Schema of `managedBy`, with KubeRay's rules.
pub(super) fn managed_by(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "description": "Controller that reconciles the object: ray.io/kuberay-operator (the default) or kueue.x-k8s.io/multikueue. Immutable.",
        "x-kubernetes-validations": [
            {"rule": "self == oldSelf", "message": "the managedBy field is immutable"},
            {
                "rule": "self in ['ray.io/kuberay-operator', 'kueue.x-k8s.io/multikueue']",
                "message": "the managedBy field value must be either 'ray.io/kuberay-operator' or 'kueue.x-k8s.io/multikueue'",
            },
        ],
    })
}
