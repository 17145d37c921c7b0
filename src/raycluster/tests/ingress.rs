//! Ingress for the dashboard of a cluster.

use k8s_openapi::api::networking::v1::Ingress;
use kube_core::ResourceExt;
use serde_json::{Value, json};

use super::super::fixtures::{TestCluster, cluster_with_patch};
use super::created;

/// Returns a cluster with `enableIngress` and these options.
fn open(options: Value) -> TestCluster {
    let mut cluster = cluster_with_patch(json!({"headGroupSpec": {"enableIngress": true, "ingressOptions": options}}));
    cluster.annotations_mut().insert("kubernetes.io/ingress.class".to_owned(), "nginx".to_owned());
    cluster.annotations_mut().insert("nginx/rewrite".to_owned(), "/".to_owned());
    TestCluster::new(cluster)
}

fn spec(test_cluster: &TestCluster) -> Value {
    serde_json::to_value(test_cluster.ingress.as_ref().and_then(|ingress| ingress.spec.clone())).expect("JSON")
}

#[test]
fn ingress_has_class_and_annotations_of_the_cluster() {
    let mut test_cluster = open(Value::Null);

    test_cluster.reconcile_until_stable();

    let backend = json!({"service": {"name": "demo-head-svc", "port": {"number": 8265}}});
    let path = json!({"path": "/", "pathType": "Prefix", "backend": backend});
    let expected = json!({"ingressClassName": "nginx", "rules": [{"http": {"paths": [path]}}]});
    assert_eq!(spec(&test_cluster), expected);
    let ingress = test_cluster.ingress.as_ref().expect("an Ingress");
    assert_eq!(ingress.name_any(), "demo-head-ingress");
    assert_eq!(serde_json::to_value(ingress.annotations()).ok(), Some(json!({"nginx/rewrite": "/"})));
    assert_eq!(ingress.labels()["ray.io/identifier"], "demo-head");
}

#[test]
fn ingress_has_host_path_and_tls_of_the_options() {
    let tls = json!([{"hosts": ["ray.example.com"], "secretName": "ray"}]);
    let mut test_cluster = open(json!({"host": "ray.example.com", "path": "/ray", "pathType": "Exact", "tls": tls}));

    test_cluster.reconcile_until_stable();

    let spec = spec(&test_cluster);
    assert_eq!((&spec["tls"], &spec["rules"][0]["host"]), (&tls, &json!("ray.example.com")));
    let path = &spec["rules"][0]["http"]["paths"][0];
    assert_eq!((&path["path"], &path["pathType"]), (&json!("/ray"), &json!("Exact")));
}

#[test]
fn changed_options_update_the_ingress_and_keep_foreign_annotations() {
    let mut test_cluster = open(Value::Null);
    test_cluster.reconcile_until_stable();
    let ingress = test_cluster.ingress.as_mut().expect("an Ingress");
    ingress.annotations_mut().insert("cert-manager.io/issuer".to_owned(), "ours".to_owned());

    test_cluster.edit(|spec| {
        spec.head_group_spec.ingress_options = serde_json::from_value(json!({"host": "b"})).expect("options");
    });
    test_cluster.reconcile_until_stable();

    assert_eq!(spec(&test_cluster)["rules"][0]["host"], "b");
    let ingress = test_cluster.ingress.as_ref().expect("an Ingress");
    assert_eq!(ingress.annotations().keys().collect::<Vec<_>>(), ["cert-manager.io/issuer", "nginx/rewrite"]);
}

#[test]
fn ingress_is_deleted_when_it_is_disabled() {
    let mut test_cluster = open(Value::Null);
    test_cluster.reconcile_until_stable();

    test_cluster.edit(|spec| spec.head_group_spec.enable_ingress = Some(false));
    test_cluster.reconcile_until_stable();

    assert_eq!(test_cluster.ingress, None);
}

#[test]
fn ingress_not_owned_by_the_cluster_stays_unchanged() {
    let mut test_cluster = open(Value::Null);
    let mut other = Ingress::default();
    other.metadata.name = Some("demo-head-ingress".to_owned());
    test_cluster.ingress = Some(other.clone());

    let plan = test_cluster.reconcile_once();
    test_cluster.edit(|spec| spec.head_group_spec.enable_ingress = None);
    test_cluster.reconcile_until_stable();

    assert!(plan.events.iter().any(|note| note.warning && note.message.contains("is not owned by this RayCluster")));
    assert_eq!(test_cluster.ingress, Some(other));
}

#[test]
fn invalid_tls_options_are_reported_with_their_field() {
    let mut test_cluster = open(json!({"tls": [{"hosts": "ray.example.com"}]}));

    let plan = test_cluster.reconcile_once();

    assert_eq!(created(&plan, "Ingress"), 0);
    let expected = "spec.headGroupSpec.ingressOptions.tls can't be parsed";
    assert!(plan.events.iter().any(|note| note.message.contains(expected)), "{:?}", plan.events);
}
