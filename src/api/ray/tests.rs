//! Manifests survive a round trip through the types unchanged.

use kube_core::CustomResourceExt;
use rstest::rstest;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::ray_service::RayServiceUpgradeStrategy;
use super::{RayCluster, RayService, UpgradeType};

fn pod_template() -> Value {
    json!({
        "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}},
        "spec": {
            "containers": [{
                "name": "ray",
                "image": "rayproject/ray:2.53.0",
                "resources": {"limits": {"cpu": 1, "memory": "1.50Gi"}},
                "newerThanOurTypes": {"x": [1, null]},
            }],
            "alsoNewer": true,
        },
    })
}

fn cluster_spec() -> Value {
    let rules = json!({"ingressRules": [{"from": []}], "egressRules": [{"to": []}]});
    json!({
        "upgradeStrategy": {"type": "Recreate"},
        "authOptions": {"enableK8sTokenAuth": false, "secretName": "token", "mode": "token"},
        "suspend": false,
        "managedBy": "ray.io/kuberay-operator",
        "autoscalerOptions": {
            "resources": {"limits": {"cpu": "500m"}},
            "image": "autoscaler",
            "imagePullPolicy": "Always",
            "securityContext": {"runAsUser": 1000},
            "idleTimeoutSeconds": 60,
            "upscalingMode": "Conservative",
            "version": "v2",
            "env": [{"name": "A", "value": "b"}],
            "envFrom": [{"secretRef": {"name": "s"}}],
            "volumeMounts": [{"name": "v", "mountPath": "/v"}],
            "command": ["/bin/bash"],
            "args": ["-c", "true"],
        },
        "headServiceAnnotations": {"e": "f"},
        "enableInTreeAutoscaling": true,
        "gcsFaultToleranceOptions": {
            "backend": "redis",
            "redisUsername": {"value": "user", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            "redisPassword": {"value": "secret", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            "externalStorageNamespace": "ns",
            "redisAddress": "redis:6379",
            "storage": {
                "claimName": "claim", "size": "1Gi", "storageClassName": "fast", "accessModes": ["ReadWriteOnce"],
                "subPath": "p", "deletionPolicy": "Retain",
            },
        },
        "historyServerOptions": {"collectorOptions": {
            "image": "collector", "imagePullPolicy": "Never", "resources": {"limits": {"cpu": 1}}, "env": [{"name": "A"}],
        }},
        "networkPolicy": {
            "mode": "DenyAllIngress",
            "head": rules,
            "worker": rules,
            "workerGroups": [{"groupName": "small", "ingressRules": [{}], "egressRules": [{}]}],
        },
        "tlsOptions": {"enabled": true},
        "headGroupSpec": {
            "template": pod_template(),
            "headService": {"metadata": {"name": "mine"}, "spec": {"type": "NodePort"}},
            "enableIngress": true,
            "ingressOptions": {"host": "h", "path": "/", "pathType": "Exact", "tls": [{"hosts": ["h"]}]},
            "resources": {"CPU": "1"},
            "labels": {"g": "h"},
            "rayStartParams": {"dashboard-host": "0.0.0.0"},
            "serviceType": "ClusterIP",
        },
        "rayVersion": "2.53.0",
        "workerGroupSpecs": [{
            "suspend": false,
            "groupName": "small",
            "replicas": 1,
            "minReplicas": 0,
            "maxReplicas": 2147483647,
            "idleTimeoutSeconds": 30,
            "priority": 5,
            "resources": {"GPU": "1"},
            "labels": {"i": "j"},
            "rayStartParams": {},
            "template": pod_template(),
            "scaleStrategy": {"workersToDelete": ["w"]},
            "numOfHosts": 2,
        }],
    })
}

fn conditions() -> Value {
    json!([{
        "type": "HeadPodReady", "status": "True", "reason": "HeadPodRunningAndReady", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 2,
    }])
}

fn cluster_status() -> Value {
    json!({
        "state": "ready",
        "desiredCPU": "2500m",
        "desiredMemory": "4Gi",
        "desiredGPU": "0",
        "desiredTPU": "0",
        "lastUpdateTime": "2026-01-01T00:00:00Z",
        "stateTransitionTimes": {"ready": "2026-01-01T00:00:00Z"},
        "endpoints": {"dashboard": "8265"},
        "head": {"podIP": "198.18.0.1", "podName": "p", "serviceIP": "198.18.0.2", "serviceName": "s"},
        "reason": "none",
        "conditions": conditions(),
        "readyWorkerReplicas": 1,
        "availableWorkerReplicas": 1,
        "desiredWorkerReplicas": 1,
        "minWorkerReplicas": 0,
        "maxWorkerReplicas": 2147483647,
        "observedGeneration": 2,
    })
}

fn object(kind: &str, spec: Value, status: Option<Value>) -> Value {
    let mut object = json!({
        "apiVersion": "ray.io/v1", "kind": kind, "metadata": {"name": "demo", "namespace": "default"}, "spec": spec,
    });
    if let Some(status) = status {
        object["status"] = status;
    }
    object
}

fn service_spec() -> Value {
    json!({
        "rayClusterDeletionDelaySeconds": 30,
        "serviceUnhealthySecondThreshold": 900,
        "deploymentUnhealthySecondThreshold": 300,
        "serveService": {"metadata": {"name": "mine"}, "spec": {"ports": [{"name": "serve", "port": 80}]}},
        "upgradeStrategy": {
            "type": "NewClusterWithIncrementalUpgrade",
            "clusterUpgradeOptions": {
                "maxSurgePercent": 40, "stepSizePercent": 5, "intervalSeconds": 10, "gatewayClassName": "istio",
            },
        },
        "managedBy": "ray.io/kuberay-operator",
        "serveConfigV2": "applications: []\n",
        "rayClusterConfig": cluster_spec(),
        "excludeHeadPodFromServeSvc": true,
        "suspend": true,
    })
}

fn service_status() -> Value {
    let cluster = json!({
        "applicationStatuses": {"app": {
            "status": "RUNNING", "message": "",
            "serveDeploymentStatuses": {"d": {"status": "HEALTHY", "message": "fine"}},
        }},
        "targetCapacity": 100,
        "trafficRoutedPercent": 0,
        "lastTrafficMigratedTime": "2026-01-01T00:00:00Z",
        "rayClusterName": "demo-abcde",
        "rayClusterStatus": cluster_status(),
    });
    json!({
        "conditions": conditions(),
        "lastUpdateTime": "2026-01-01T00:00:00Z",
        "serviceStatus": "Running",
        "activeServiceStatus": cluster,
        "pendingServiceStatus": cluster,
        "numServeEndpoints": 2,
        "observedGeneration": 3,
    })
}

fn round_trip<T: DeserializeOwned + Serialize>(manifest: &Value) -> Value {
    let typed: T = serde_json::from_value(manifest.clone()).expect("the manifest can be read");
    serde_json::to_value(typed).expect("the types can be written")
}

#[rstest]
#[case::full(object("RayCluster", cluster_spec(), Some(cluster_status())))]
#[case::minimal(object("RayCluster", json!({"headGroupSpec": {"template": pod_template()}}), None))]
fn ray_cluster_is_unchanged_by_a_round_trip(#[case] manifest: Value) {
    assert_eq!(round_trip::<RayCluster>(&manifest), manifest);
}

#[rstest]
#[case::full(object("RayService", service_spec(), Some(service_status())))]
#[case::minimal(object("RayService", json!({"rayClusterConfig": {"headGroupSpec": {"template": pod_template()}}}), None))]
fn ray_service_is_unchanged_by_a_round_trip(#[case] manifest: Value) {
    assert_eq!(round_trip::<RayService>(&manifest), manifest);
}

/// The round-trip manifests must have every property of the schema.
#[rstest]
#[case::cluster(schema::<RayCluster>(), object("RayCluster", cluster_spec(), Some(cluster_status())))]
#[case::service(schema::<RayService>(), object("RayService", service_spec(), Some(service_status())))]
fn the_full_manifests_have_every_field_of_the_schema(#[case] schema: Value, #[case] manifest: Value) {
    let mut missing = Vec::new();
    for part in ["spec", "status"] {
        compare(part, &schema["properties"][part], &manifest[part], &mut missing);
    }
    assert_eq!(missing, Vec::<String>::new());
}

fn schema<K: CustomResourceExt>() -> Value {
    let definition = serde_json::to_value(K::crd()).expect("a definition is JSON");
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

fn compare(path: &str, schema: &Value, value: &Value, missing: &mut Vec<String>) {
    // Core types are kept as they are; the schema has those of their fields that have a default.
    if schema.get("x-kubernetes-preserve-unknown-fields").is_some() {
        return;
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        match value.get(name) {
            Some(value) => compare(&path, property, value, missing),
            None => missing.push(path),
        }
    }
    if let (Some(items), Some(first)) = (schema.get("items"), value.get(0)) {
        compare(&format!("{path}[]"), items, first, missing);
    }
}

#[rstest]
#[case::cluster(schema::<RayCluster>(), "/properties/spec", &["headGroupSpec"])]
#[case::head(schema::<RayCluster>(), "/properties/spec/properties/headGroupSpec", &["template"])]
#[case::worker_group(schema::<RayCluster>(), "/properties/spec/properties/workerGroupSpecs/items", &["groupName", "template"])]
#[case::status(schema::<RayCluster>(), "/properties/status", &[])]
#[case::service(schema::<RayService>(), "/properties/spec", &["rayClusterConfig"])]
#[case::upgrade(schema::<RayService>(), "/properties/spec/properties/upgradeStrategy", &[])]
#[case::service_status(schema::<RayService>(), "/properties/status", &[])]
fn required_fields_are_those_of_kuberay(#[case] schema: Value, #[case] path: &str, #[case] expected: &[&str]) {
    let part = schema.pointer(path).expect("the schema has this part");
    let required: Vec<_> = part["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    assert_eq!(required, expected);
}

#[test]
fn unknown_upgrade_strategy_deserializes() {
    let strategy: RayServiceUpgradeStrategy = serde_json::from_value(json!({"type": "Blue"})).expect("it can be read");
    assert_eq!(strategy.type_, Some(UpgradeType::Unknown("Blue".into())));
    assert_eq!(round_trip::<RayServiceUpgradeStrategy>(&json!({"type": "None"})), json!({"type": "None"}));
}
