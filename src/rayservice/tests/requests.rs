//! How requests find their way, and to which applications.

use k8s_openapi::api::core::v1::Service;
use rstest::rstest;
use serde_json::{Value, json};

use super::stage::Stage;
use super::{chat, config, serving, state, version};
use sluice_api::ray::names;

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
fn b02_another_configuration_is_applied_in_place() {
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
fn b14_a_head_that_comes_up_anew_gets_its_applications_back() {
    let mut stage = serving();
    let name = stage.living()[0].clone();
    stage.lose_head(&name);
    stage.play(20);
    assert_eq!(stage.applied(&name).len(), 1);
    assert_eq!(stage.condition("Ready"), state("True", "NonZeroServeEndpoints"));
}

/// The Serve configurations that are kept for a cluster.
fn kept(stage: &Stage) -> Vec<String> {
    stage.names("ControllerRevision")
}

#[rstest]
#[case::in_an_upgrade(&[version("2.54.0"), json!({"spec": {"serveConfigV2": config("two")}})])]
#[case::while_the_spec_makes_no_sense(&[json!({"spec": {"serveConfigV2": "applications: 3"}})])]
fn a_head_that_comes_up_anew_while_something_else_is_wanted_gets_what_it_had(#[case] edits: &[Value]) {
    // Given a service whose next cluster waits for quota, or that can have none,
    let mut stage = serving();
    let name = stage.living()[0].clone();
    stage.gated = true;
    edits.iter().for_each(|edit| stage.edit(edit.clone()));
    stage.play(10);

    // when its head is lost, and so is all that this process has remembered,
    stage.lose_head(&name);
    stage.restart();
    stage.play(20);

    // then it has its own applications again, and none of another cluster's.
    assert_eq!(stage.applied(&name), [json!({"applications": [{"name": "one", "import_path": "one:app"}]})]);
    assert_eq!(stage.told("ServeApplicationsLost"), 0);
}

#[test]
fn a_configuration_is_kept_until_it_is_on_record_that_the_next_one_was_taken() {
    let mut stage = serving();
    let first = kept(&stage);
    assert_eq!(first.len(), 1);

    // Serve refuses the next one: it may still need the first.
    stage.refusal = Some(400);
    stage.edit(json!({"spec": {"serveConfigV2": config("two")}}));
    stage.play(20);
    assert!(kept(&stage).contains(&first[0]) && kept(&stage).len() == 2, "{:?}", kept(&stage));

    stage.refusal = None;
    stage.play(120);
    assert!(!kept(&stage).contains(&first[0]) && kept(&stage).len() == 1, "{:?}", kept(&stage));
}

#[test]
fn a_head_that_comes_up_anew_while_serve_refuses_the_next_configuration_gets_the_one_before() {
    let mut stage = serving();
    let name = stage.living()[0].clone();
    stage.refused_app = Some("two");
    stage.edit(json!({"spec": {"serveConfigV2": config("two")}}));
    stage.play(20);

    stage.lose_head(&name);
    stage.play(120);

    let applied = stage.applied(&name);
    assert_eq!(applied, [json!({"applications": [{"name": "one", "import_path": "one:app"}]})]);
    assert_eq!(stage.condition("Ready"), state("True", "NonZeroServeEndpoints"));
    stage.refused_app = None;
    stage.play(120);
    assert_eq!(stage.applied(&name).last().expect("one")["applications"][0]["name"], "two");
}

#[test]
fn applications_that_are_lost_and_kept_nowhere_are_told() {
    // Given a cluster whose configuration an earlier release has not kept,
    let mut stage = serving();
    let name = stage.living()[0].clone();
    stage.gated = true;
    stage.edit(version("2.54.0"));
    stage.edit(json!({"spec": {"serveConfigV2": config("two")}}));
    stage.play(10);
    stage.forget("ControllerRevision", &kept(&stage)[0]);

    // when its head is lost in an upgrade, then that is told, and the spec put back helps.
    stage.lose_head(&name);
    stage.play(20);
    assert_eq!((stage.applied(&name).len(), stage.told("ServeApplicationsLost")), (0, 1));
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
