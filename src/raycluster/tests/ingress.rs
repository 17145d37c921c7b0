//! The way in to the dashboard of a cluster.

use k8s_openapi::api::networking::v1::Ingress;
use kube_core::ResourceExt;
use serde_json::{Value, json};

use super::super::fixtures::{Stage, changed};
use super::created;

/// A cluster whose dashboard is to be reached from outside, with these options.
fn open(options: Value) -> Stage {
    let mut cluster = changed(json!({"headGroupSpec": {"enableIngress": true, "ingressOptions": options}}));
    cluster.annotations_mut().insert("kubernetes.io/ingress.class".to_owned(), "nginx".to_owned());
    cluster.annotations_mut().insert("nginx/rewrite".to_owned(), "/".to_owned());
    Stage::new(cluster)
}

fn spec(stage: &Stage) -> Value {
    serde_json::to_value(stage.ingress.as_ref().and_then(|ingress| ingress.spec.clone())).expect("JSON")
}

#[test]
fn the_dashboard_is_reached_by_an_ingress_with_the_class_and_annotations_of_the_cluster() {
    let mut stage = open(Value::Null);

    stage.settle();

    let backend = json!({"service": {"name": "demo-head-svc", "port": {"number": 8265}}});
    let path = json!({"path": "/", "pathType": "Prefix", "backend": backend});
    let expected = json!({"ingressClassName": "nginx", "rules": [{"http": {"paths": [path]}}]});
    assert_eq!(spec(&stage), expected);
    let ingress = stage.ingress.as_ref().expect("an Ingress");
    assert_eq!(ingress.name_any(), "demo-head-ingress");
    assert_eq!(serde_json::to_value(ingress.annotations()).ok(), Some(json!({"nginx/rewrite": "/"})));
    assert_eq!(ingress.labels()["ray.io/identifier"], "demo-head");
}

#[test]
fn host_path_and_certificates_are_those_of_the_options() {
    let tls = json!([{"hosts": ["ray.example.com"], "secretName": "ray"}]);
    let mut stage = open(json!({"host": "ray.example.com", "path": "/ray", "pathType": "Exact", "tls": tls}));

    stage.settle();

    let spec = spec(&stage);
    assert_eq!((&spec["tls"], &spec["rules"][0]["host"]), (&tls, &json!("ray.example.com")));
    let path = &spec["rules"][0]["http"]["paths"][0];
    assert_eq!((&path["path"], &path["pathType"]), (&json!("/ray"), &json!("Exact")));
}

#[test]
fn an_ingress_follows_its_options_and_keeps_what_others_have_added() {
    let mut stage = open(Value::Null);
    stage.settle();
    let ingress = stage.ingress.as_mut().expect("an Ingress");
    ingress.annotations_mut().insert("cert-manager.io/issuer".to_owned(), "ours".to_owned());

    stage.edit(|spec| {
        spec.head_group_spec.ingress_options = serde_json::from_value(json!({"host": "b"})).expect("options");
    });
    stage.settle();

    assert_eq!(spec(&stage)["rules"][0]["host"], "b");
    let ingress = stage.ingress.as_ref().expect("an Ingress");
    assert_eq!(ingress.annotations().keys().collect::<Vec<_>>(), ["cert-manager.io/issuer", "nginx/rewrite"]);
}

#[test]
fn who_no_longer_asks_for_the_way_in_gets_it_closed() {
    let mut stage = open(Value::Null);
    stage.settle();

    stage.edit(|spec| spec.head_group_spec.enable_ingress = Some(false));
    stage.settle();

    assert_eq!(stage.ingress, None);
}

#[test]
fn an_ingress_of_somebody_else_is_left_alone() {
    let mut stage = open(Value::Null);
    let mut other = Ingress::default();
    other.metadata.name = Some("demo-head-ingress".to_owned());
    stage.ingress = Some(other.clone());

    let plan = stage.step();
    stage.edit(|spec| spec.head_group_spec.enable_ingress = None);
    stage.settle();

    assert!(plan.notes.iter().any(|note| note.warning && note.message.contains("belongs to somebody else")));
    assert_eq!(stage.ingress, Some(other));
}

#[test]
fn certificates_that_cannot_be_read_are_told_by_their_field() {
    let mut stage = open(json!({"tls": [{"hosts": "ray.example.com"}]}));

    let plan = stage.step();

    assert_eq!(created(&plan, "Ingress"), 0);
    let told = "spec.headGroupSpec.ingressOptions.tls can't be read";
    assert!(plan.notes.iter().any(|note| note.message.contains(told)), "{:?}", plan.notes);
}
