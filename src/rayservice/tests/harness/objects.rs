//! Object fixtures, and changes made by other clients.

use kube_core::ResourceExt;
use serde_json::{Value, json};

use super::Harness;
use sluice_api::ray::{RayCluster, names};

/// Returns the ready head pod of a cluster.
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

impl Harness {
    /// Removes an object immediately.
    pub(crate) fn remove_object(&mut self, kind: &str, name: &str) {
        self.objects.remove(&(kind.to_owned(), name.to_owned()));
    }

    /// Patches an object as another client would.
    pub(crate) fn patch_as_other_client(&mut self, kind: &str, name: &str, patch: Value) {
        self.patch(&(kind.to_owned(), name.to_owned()), &patch);
    }
}
