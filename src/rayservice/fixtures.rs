//! RayCluster fixtures shared by several tests.

use serde_json::json;
use sluice_api::ray::{RayCluster, WorkerGroupSpec};

/// Returns `default/demo` with a head of 1 CPU and 2Gi, and no workers.
pub(crate) fn cluster() -> RayCluster {
    serde_json::from_value(json!({
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": "demo", "namespace": "default", "uid": "uid-1", "generation": 1, "resourceVersion": "7"},
        "spec": {
            "rayVersion": "2.53.0",
            "headGroupSpec": {"template": {"spec": {"containers": [{
                "name": "ray-head",
                "image": "rayproject/ray:2.53.0",
                "resources": {"limits": {"cpu": 1, "memory": "2Gi"}},
            }]}}},
        },
    }))
    .expect("the fixture is a RayCluster")
}

/// Returns a worker group of 500m CPU and 1Gi per replica.
pub(crate) fn worker(name: &str, replicas: i32) -> WorkerGroupSpec {
    serde_json::from_value(json!({
        "groupName": name,
        "replicas": replicas,
        "minReplicas": 0,
        "maxReplicas": 100,
        "numOfHosts": 1,
        "template": {"spec": {"containers": [{
            "name": "ray-worker",
            "image": "rayproject/ray:2.53.0",
            "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}},
        }]}},
    }))
    .expect("the fixture is a worker group")
}
