//! Pieces of schema that the derive can't say.

use schemars::{Schema, SchemaGenerator, json_schema};

/// A value of the core API that we hand on as it is.
pub(super) fn opaque_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// A list of values of the core API that we hand on as they are.
pub(super) fn opaque_list(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
    })
}

/// A quantity, as the core API writes it.
pub(super) fn quantity(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]})
}

/// Who reconciles the object. The rules are KubeRay's.
pub(super) fn managed_by(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "description": "Who reconciles the object: ray.io/kuberay-operator (the default) or kueue.x-k8s.io/multikueue.",
        "x-kubernetes-validations": [
            {"rule": "self == oldSelf", "message": "the managedBy field is immutable"},
            {
                "rule": "self in ['ray.io/kuberay-operator', 'kueue.x-k8s.io/multikueue']",
                "message": "the managedBy field value must be either 'ray.io/kuberay-operator' or 'kueue.x-k8s.io/multikueue'",
            },
        ],
    })
}
