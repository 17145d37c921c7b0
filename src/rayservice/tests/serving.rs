//! Services, Serve configurations and the head pod label.

use k8s_openapi::api::core::v1::Service;
use rstest::rstest;
use serde_json::{Value, json};

use super::harness::Harness;
use super::{chat_service, ray_version_patch, running_service, serve_config, state};
use sluice_api::ray::names;

#[test]
fn services_select_the_cluster_and_have_the_ports_of_its_head() {
    let stage = running_service();
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
fn b02_changed_serve_configuration_is_applied_in_place() {
    let mut stage = running_service();
    let before = stage.live_clusters();

    stage.patch_service(json!({"spec": {"serveConfigV2": serve_config("two")}}));
    stage.run_for(30);

    assert_eq!(stage.live_clusters(), before);
    assert_eq!(stage.applied_configs(&before[0]).len(), 2);
    let status = stage.service().and_then(|service| service.status).expect("a status");
    assert!(
        status.active_service_status.and_then(|active| active.application_statuses).expect("seen").contains_key("two")
    );
    assert_eq!(stage.event_count("UpgradeStarted"), 0);
}

#[test]
fn b14_restarted_head_gets_its_applications_back() {
    let mut stage = running_service();
    let name = stage.live_clusters()[0].clone();
    stage.lose_head(&name);
    stage.run_for(20);
    assert_eq!(stage.applied_configs(&name).len(), 1);
    assert_eq!(stage.condition("Ready"), state("True", "NonZeroServeEndpoints"));
}

/// Returns the names of the stored Serve configurations.
fn stored_configs(stage: &Harness) -> Vec<String> {
    stage.object_names("ControllerRevision")
}

#[rstest]
#[case::in_an_upgrade(&[ray_version_patch("2.54.0"), json!({"spec": {"serveConfigV2": serve_config("two")}})])]
#[case::while_the_spec_is_invalid(&[json!({"spec": {"serveConfigV2": "applications: 3"}})])]
fn restarted_head_gets_its_previous_configuration_while_the_spec_differs(#[case] edits: &[Value]) {
    // Given a RayService whose pending cluster waits for quota, or whose spec is invalid,
    let mut stage = running_service();
    let name = stage.live_clusters()[0].clone();
    stage.is_queued = true;
    edits.iter().for_each(|edit| stage.patch_service(edit.clone()));
    stage.run_for(10);

    // when its head is lost and the operator restarts,
    stage.lose_head(&name);
    stage.restart();
    stage.run_for(20);

    // then it has its own applications again, and none of the pending cluster.
    assert_eq!(stage.applied_configs(&name), [json!({"applications": [{"name": "one", "import_path": "one:app"}]})]);
    assert_eq!(stage.event_count("ServeApplicationsLost"), 0);
}

#[test]
fn stored_configuration_is_kept_until_the_next_one_is_recorded_as_applied() {
    let mut stage = running_service();
    let first = stored_configs(&stage);
    assert_eq!(first.len(), 1);

    // Serve rejects the next one, so the first may still be needed.
    stage.rejection_code = Some(400);
    stage.patch_service(json!({"spec": {"serveConfigV2": serve_config("two")}}));
    stage.run_for(20);
    assert!(
        stored_configs(&stage).contains(&first[0]) && stored_configs(&stage).len() == 2,
        "{:?}",
        stored_configs(&stage)
    );

    stage.rejection_code = None;
    stage.run_for(120);
    assert!(
        !stored_configs(&stage).contains(&first[0]) && stored_configs(&stage).len() == 1,
        "{:?}",
        stored_configs(&stage)
    );
}

#[test]
fn restarted_head_gets_its_previous_configuration_while_serve_rejects_the_next_one() {
    let mut stage = running_service();
    let name = stage.live_clusters()[0].clone();
    stage.rejected_app = Some("two");
    stage.patch_service(json!({"spec": {"serveConfigV2": serve_config("two")}}));
    stage.run_for(20);

    stage.lose_head(&name);
    stage.run_for(120);

    let applied = stage.applied_configs(&name);
    assert_eq!(applied, [json!({"applications": [{"name": "one", "import_path": "one:app"}]})]);
    assert_eq!(stage.condition("Ready"), state("True", "NonZeroServeEndpoints"));
    stage.rejected_app = None;
    stage.run_for(120);
    assert_eq!(stage.applied_configs(&name).last().expect("one")["applications"][0]["name"], "two");
}

#[test]
fn lost_applications_without_a_stored_configuration_are_reported() {
    // Given a cluster whose configuration was not stored by an earlier release,
    let mut stage = running_service();
    let name = stage.live_clusters()[0].clone();
    stage.is_queued = true;
    stage.patch_service(ray_version_patch("2.54.0"));
    stage.patch_service(json!({"spec": {"serveConfigV2": serve_config("two")}}));
    stage.run_for(10);
    stage.remove_object("ControllerRevision", &stored_configs(&stage)[0]);

    // when its head is lost in an upgrade, then this is reported, and reverting the spec helps.
    stage.lose_head(&name);
    stage.run_for(20);
    assert_eq!((stage.applied_configs(&name).len(), stage.event_count("ServeApplicationsLost")), (0, 1));
    stage.patch_service(json!({"spec": {"serveConfigV2": serve_config("one")}}));
    stage.run_for(20);
    assert_eq!(stage.applied_configs(&name).len(), 1);
}

#[rstest]
#[case::included(json!(null), "true")]
#[case::excluded(json!(true), "false")]
fn head_label_follows_the_exclude_setting(#[case] exclude: Value, #[case] expected: &str) {
    let mut stage = running_service();
    stage.patch_service(json!({"spec": {"excludeHeadPodFromServeSvc": exclude}}));
    stage.run_for(30);
    let head = format!("{}-head", stage.live_clusters()[0]);
    let labels = &stage.object("Pod", &head).expect("a head")["metadata"]["labels"];
    assert_eq!(labels[names::SERVE_LABEL], expected);
}

#[test]
fn rejected_configuration_is_reported_and_retried_with_backoff() {
    let mut stage = Harness::new(chat_service());
    stage.rejection_code = Some(400);
    stage.run_for(120);
    assert_eq!(stage.event_count("FailedToUpdateServeApplications"), 1);
    assert!(stage.message("Ready").contains("HTTP status 400: no"), "{}", stage.message("Ready"));

    stage.rejection_code = None;
    stage.patch_service(json!({"spec": {"serveConfigV2": serve_config("two")}}));
    stage.run_for(10);
    assert_eq!(stage.condition("Ready"), state("True", "NonZeroServeEndpoints"), "another one is applied immediately");
}

#[test]
fn deleted_or_modified_service_is_restored() {
    let mut stage = running_service();
    let name = stage.live_clusters()[0].clone();
    stage.delete("Service", "chat-serve-svc");
    stage.patch_as_other_client("Service", "chat-head-svc", json!({"spec": {"selector": {"ray.io/cluster": "other"}}}));
    stage.run_for(5);
    assert_eq!(stage.selected_cluster(), Some(name.clone()));
    let head = stage.object("Service", "chat-head-svc").expect("the Service");
    assert_eq!(head["spec"]["selector"]["ray.io/cluster"], json!(name));
}

#[test]
fn custom_serve_service_keeps_its_spec_and_fields_added_by_others() {
    let mut service = chat_service();
    service["spec"]["serveService"] = json!({
        "metadata": {"name": "front", "annotations": {"lb": "internal"}},
        "spec": {"type": "LoadBalancer", "ports": [{"name": "web", "port": 80, "targetPort": 8000}], "selector": {"x": "y"}},
    });
    let mut stage = Harness::new(service);
    stage.run_for(30);
    stage.patch_as_other_client(
        "Service",
        "front",
        json!({"spec": {"clusterIP": "10.9.9.9", "ports": [
            {"name": "web", "port": 80, "targetPort": 8000, "nodePort": 30_080, "protocol": "TCP"},
            {"name": "serve", "port": 8000, "targetPort": 8000, "nodePort": 30_081, "protocol": "TCP"},
        ]}}),
    );
    assert!(stage.plan().writes.is_empty(), "{:?}", stage.plan().writes);
    let front = stage.object("Service", "front").expect("the Service");
    assert_eq!(front["spec"]["type"], "LoadBalancer");
    assert_eq!(front["metadata"]["annotations"]["lb"], "internal");
    assert_eq!(front["spec"]["selector"].as_object().expect("a selector").len(), 2);
}
