//! Schema fragments that the derive cannot express.

use schemars::{Schema, SchemaGenerator, json_schema};

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
