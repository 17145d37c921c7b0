//! Fields of received objects that nothing reads. They are dropped, because an operator's memory is
//! mostly the objects that it watches.

use std::any::Any;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

use super::cluster_state::{SecretMeta, WatchedKind};

/// Drops unused fields of an object:
///
/// - `managedFields`, which account for half of the bytes;
/// - the annotations of a Secret, one of which contains the whole Secret after `kubectl apply`;
/// - what only the kubelet reads in the spec of a pod. A patch names only fields that it changes, so
///   the others stay.
pub fn strip<K: WatchedKind>(mut object: K) -> Arc<K> {
    object.meta_mut().managed_fields = None;
    let any: &mut dyn Any = &mut object;
    if let Some(secret) = any.downcast_mut::<SecretMeta>() {
        secret.metadata.annotations = None;
    } else if let Some(spec) = any.downcast_mut::<Pod>().and_then(|pod| pod.spec.as_mut()) {
        strip_pod_spec(spec);
    }
    Arc::new(object)
}

fn strip_pod_spec(spec: &mut PodSpec) {
    spec.volumes = None;
    spec.security_context = None;
    spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()).for_each(strip_container);
}

fn strip_container(container: &mut Container) {
    let all = std::mem::take(container);
    *container = Container {
        args: None,
        command: None,
        env: None,
        env_from: None,
        lifecycle: None,
        liveness_probe: None,
        readiness_probe: None,
        security_context: None,
        startup_probe: None,
        volume_mounts: None,
        ..all
    };
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn managed_fields_and_secret_annotations_are_dropped() {
        let object = json!({"metadata": {"name": "a", "annotations": {"a": "b"}, "managedFields": [{}]}});
        let secret: SecretMeta = serde_json::from_value(object.clone()).expect("a Secret");
        let pod: Pod = serde_json::from_value(object).expect("a Pod");

        let (secret, pod) = (strip(secret), strip(pod));

        assert_eq!((&secret.metadata.annotations, &secret.metadata.managed_fields), (&None, &None));
        assert!(pod.metadata.annotations.is_some() && pod.metadata.managed_fields.is_none());
    }

    #[test]
    fn pod_keeps_only_what_quota_nodes_and_readiness_depend_on() {
        let requests = json!({"requests": {"cpu": "1"}});
        let kept = json!({
            "metadata": {"name": "a"},
            "spec": {
                "nodeName": "node",
                "nodeSelector": {"zone": "a"},
                "schedulingGates": [{"name": "kueue.x-k8s.io/elastic-job"}],
                "containers": [{"name": "ray", "image": "ray", "ports": [{"containerPort": 8000}], "resources": requests}],
                "initContainers": [{"name": "wait", "restartPolicy": "Always", "resources": requests}],
            },
            "status": {"phase": "Running", "podIP": "10.0.0.1"},
        });
        let mut received = kept.clone();
        received["spec"]["volumes"] = json!([{"name": "shm", "emptyDir": {"medium": "Memory"}}]);
        for list in ["containers", "initContainers"] {
            let container = &mut received["spec"][list][0];
            container["args"] = json!(["ray start"]);
            container["env"] = json!([{"name": "RAY_ADDRESS", "value": "10.0.0.1"}]);
            container["volumeMounts"] = json!([{"name": "shm", "mountPath": "/dev/shm"}]);
            container["readinessProbe"] = json!({"exec": {"command": ["true"]}});
        }

        let pod: Pod = serde_json::from_value(received).expect("a Pod");

        let expected: Pod = serde_json::from_value(kept).expect("a Pod");
        assert_eq!(*strip(pod), expected);
    }
}
