//! What objects look like, and how they are patched.

use kube::ResourceExt;
use serde_json::{Value, json};

use crate::api::ray::{RayCluster, names};

/// The head pod of a cluster, ready.
pub(super) fn head_pod(cluster: &RayCluster) -> Value {
    json!({
        "metadata": {
            "name": format!("{}-head", cluster.name_any()), "namespace": "ml",
            "labels": {(names::CLUSTER_LABEL): cluster.name_any(), (names::SERVE_LABEL): "false"},
            "ownerReferences": [{
                "apiVersion": "ray.io/v1", "kind": "RayCluster", "name": cluster.name_any(),
                "uid": cluster.uid(), "controller": true,
            }],
        },
        "spec": {"containers": [{"name": "ray"}]},
        "status": {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
    })
}

/// Applies a merge patch.
pub(super) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (name, value) in fields {
        if value.is_null() {
            target.as_object_mut().expect("an object").remove(name);
        } else {
            merge(&mut target[name.as_str()], value);
        }
    }
}
