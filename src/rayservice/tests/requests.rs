//! How requests find their way, and to which applications.

use k8s_openapi::api::core::v1::Service;
use rstest::rstest;
use serde_json::{Value, json};

use super::stage::Stage;
use super::{chat, config, serving, state, version};
use crate::api::ray::names;

#[test]
fn the_services_lead_to_the_cluster_and_take_the_ports_of_its_head() {
    let stage = serving();
    let service = |name: &str| -> Service {
        serde_json::from_value(stage.object("Service", name).expect("the Service").clone()).expect("a Service")
    };
    let serve = service("chat-serve-svc").spec.expect("a spec");
    let ports: Vec<_> = serve.ports.iter().flatten().map(|port| (port.name.as_deref(), port.port)).collect();
    assert_eq!(ports, [(Some("serve"), 8000)]);
    assert_eq!(serve.selector.expect("a selector")[names::SERVE_LABEL], "true");
    let head = service("chat-head-svc").spec.expect("a spec");
    assert_eq!(head.cluster_ip.as_deref(), Some("None"));
    assert_eq!(head.selector.expect("a selector")[names::NODE_TYPE_LABEL], "head");
}

#[test]
fn another_configuration_is_applied_in_place() {
    let mut stage = serving();
    let before = stage.living();

    stage.edit(json!({"spec": {"serveConfigV2": config("two")}}));
    stage.play(30);

    assert_eq!(stage.living(), before);
    assert_eq!(stage.applied(&before[0]).len(), 2);
    let status = stage.service().and_then(|service| service.status).expect("a status");
    assert!(
        status.active_service_status.and_then(|active| active.application_statuses).expect("seen").contains_key("two")
    );
    assert_eq!(stage.told("UpgradeStarted"), 0);
}

#[test]
fn a_head_that_comes_up_anew_gets_its_applications_back() {
    let mut stage = serving();
    let name = stage.living()[0].clone();
    stage.lose_head(&name);
    stage.play(20);
    assert_eq!(stage.applied(&name).len(), 1);
    assert_eq!(stage.condition("Ready"), state("True", "NonZeroServeEndpoints"));
}

#[test]
fn a_head_that_comes_up_anew_in_an_upgrade_gets_no_configuration_of_another_cluster() {
    let mut stage = serving();
    let name = stage.living()[0].clone();
    stage.gated = true;
    stage.edit(version("2.54.0"));
    stage.edit(json!({"spec": {"serveConfigV2": config("two")}}));
    stage.play(10);
    stage.lose_head(&name);
    stage.play(20);
    assert_eq!(stage.applied(&name).len(), 0);
    assert_eq!(stage.told("ServeApplicationsLost"), 1);

    stage.edit(json!({"spec": {"serveConfigV2": config("one")}}));
    stage.play(20);
    assert_eq!(stage.applied(&name).len(), 1);
}

#[rstest]
#[case::counts(json!(null), "true")]
#[case::excluded(json!(true), "false")]
fn the_head_takes_requests_if_its_proxy_does_and_nobody_minds(#[case] exclude: Value, #[case] expected: &str) {
    let mut stage = serving();
    stage.edit(json!({"spec": {"excludeHeadPodFromServeSvc": exclude}}));
    stage.play(30);
    let head = format!("{}-head", stage.living()[0]);
    let labels = &stage.object("Pod", &head).expect("a head")["metadata"]["labels"];
    assert_eq!(labels[names::SERVE_LABEL], expected);
}

#[test]
fn a_configuration_that_serve_refuses_is_told_and_tried_again_less_and_less_often() {
    let mut stage = Stage::new(chat());
    stage.refusal = Some(400);
    stage.play(120);
    assert_eq!(stage.told("FailedToUpdateServeApplications"), 1);
    assert!(stage.message("Ready").contains("HTTP status 400: no"), "{}", stage.message("Ready"));

    stage.refusal = None;
    stage.edit(json!({"spec": {"serveConfigV2": config("two")}}));
    stage.play(10);
    assert_eq!(stage.condition("Ready"), state("True", "NonZeroServeEndpoints"), "another one is tried at once");
}

#[test]
fn a_service_object_that_somebody_deletes_or_bends_is_put_right() {
    let mut stage = serving();
    let name = stage.living()[0].clone();
    stage.delete("Service", "chat-serve-svc");
    stage.meddle("Service", "chat-head-svc", json!({"spec": {"selector": {"ray.io/cluster": "other"}}}));
    stage.play(5);
    assert_eq!(stage.leads_to(), Some(name.clone()));
    let head = stage.object("Service", "chat-head-svc").expect("there");
    assert_eq!(head["spec"]["selector"]["ray.io/cluster"], json!(name));
}

#[test]
fn a_serve_service_of_the_users_own_keeps_its_shape_and_what_others_add() {
    let mut service = chat();
    service["spec"]["serveService"] = json!({
        "metadata": {"name": "front", "annotations": {"lb": "internal"}},
        "spec": {"type": "LoadBalancer", "ports": [{"name": "web", "port": 80, "targetPort": 8000}], "selector": {"x": "y"}},
    });
    let mut stage = Stage::new(service);
    stage.play(30);
    stage.meddle(
        "Service",
        "front",
        json!({"spec": {"clusterIP": "10.9.9.9", "ports": [
            {"name": "web", "port": 80, "targetPort": 8000, "nodePort": 30_080, "protocol": "TCP"},
            {"name": "serve", "port": 8000, "targetPort": 8000, "nodePort": 30_081, "protocol": "TCP"},
        ]}}),
    );
    assert!(stage.plan().writes.is_empty(), "{:?}", stage.plan().writes);
    let front = stage.object("Service", "front").expect("there");
    assert_eq!(front["spec"]["type"], "LoadBalancer");
    assert_eq!(front["metadata"]["annotations"]["lb"], "internal");
    assert_eq!(front["spec"]["selector"].as_object().expect("a selector").len(), 2);
}
