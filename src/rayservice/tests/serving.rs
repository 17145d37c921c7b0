//! Services, Serve configurations and the head pod label.

use k8s_openapi::api::core::v1::Service;
use rstest::rstest;
use serde_json::{Value, json};

use super::harness::Harness;
use super::{chat_service, ray_version_patch, running_service, serve_config, state};
use sluice_api::ray::names;

#[test]
fn services_select_the_cluster_and_have_the_ports_of_its_head() {
    let harness = running_service();
    let service = |name: &str| -> Service {
        serde_json::from_value(harness.object("Service", name).expect("the Service").clone()).expect("a Service")
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
    let mut harness = running_service();
    let before = harness.live_clusters();

    harness.patch_service(json!({"spec": {"serveConfigV2": serve_config("two")}}));
    harness.run_for(30);

    assert_eq!(harness.live_clusters(), before);
    assert_eq!(harness.applied_configs(&before[0]).len(), 2);
    let status = harness.service().and_then(|service| service.status).expect("a status");
    assert!(
        status.active_service_status.and_then(|active| active.application_statuses).expect("seen").contains_key("two")
    );
    assert_eq!(harness.event_count("UpgradeStarted"), 0);
}

#[test]
fn b14_restarted_head_gets_its_applications_back() {
    let mut harness = running_service();
    let name = harness.live_clusters()[0].clone();
    harness.lose_head(&name);
    harness.run_for(20);
    assert_eq!(harness.applied_configs(&name).len(), 1);
    assert_eq!(harness.condition("Ready"), state("True", "NonZeroServeEndpoints"));
}

/// Returns the names of the stored Serve configurations.
fn stored_configs(harness: &Harness) -> Vec<String> {
    harness.object_names("ControllerRevision")
}

#[rstest]
#[case::in_an_upgrade(&[ray_version_patch("2.54.0"), json!({"spec": {"serveConfigV2": serve_config("two")}})])]
#[case::while_the_spec_is_invalid(&[json!({"spec": {"serveConfigV2": "applications: 3"}})])]
fn restarted_head_gets_its_previous_configuration_while_the_spec_differs(#[case] edits: &[Value]) {
    // Given a RayService whose pending cluster waits for quota, or whose spec is invalid,
    let mut harness = running_service();
    let name = harness.live_clusters()[0].clone();
    harness.is_queued = true;
    edits.iter().for_each(|edit| harness.patch_service(edit.clone()));
    harness.run_for(10);

    // when its head is lost and the operator restarts,
    harness.lose_head(&name);
    harness.restart();
    harness.run_for(20);

    // then it has its own applications again, and none of the pending cluster.
    assert_eq!(harness.applied_configs(&name), [json!({"applications": [{"name": "one", "import_path": "one:app"}]})]);
    assert_eq!(harness.event_count("ServeApplicationsLost"), 0);
}

#[test]
fn stored_configuration_is_kept_until_the_next_one_is_recorded_as_applied() {
    let mut harness = running_service();
    let first = stored_configs(&harness);
    assert_eq!(first.len(), 1);

    // Serve rejects the next one, so the first may still be needed.
    harness.rejection_code = Some(400);
    harness.patch_service(json!({"spec": {"serveConfigV2": serve_config("two")}}));
    harness.run_for(20);
    assert!(
        stored_configs(&harness).contains(&first[0]) && stored_configs(&harness).len() == 2,
        "{:?}",
        stored_configs(&harness)
    );

    harness.rejection_code = None;
    harness.run_for(120);
    assert!(
        !stored_configs(&harness).contains(&first[0]) && stored_configs(&harness).len() == 1,
        "{:?}",
        stored_configs(&harness)
    );
}

#[test]
fn restarted_head_gets_its_previous_configuration_while_serve_rejects_the_next_one() {
    let mut harness = running_service();
    let name = harness.live_clusters()[0].clone();
    harness.rejected_app = Some("two");
    harness.patch_service(json!({"spec": {"serveConfigV2": serve_config("two")}}));
    harness.run_for(20);

    harness.lose_head(&name);
    harness.run_for(120);

    let applied = harness.applied_configs(&name);
    assert_eq!(applied, [json!({"applications": [{"name": "one", "import_path": "one:app"}]})]);
    assert_eq!(harness.condition("Ready"), state("True", "NonZeroServeEndpoints"));
    harness.rejected_app = None;
    harness.run_for(120);
    assert_eq!(harness.applied_configs(&name).last().expect("one")["applications"][0]["name"], "two");
}

#[test]
fn lost_applications_without_a_stored_configuration_are_reported() {
    // Given a cluster whose configuration was not stored by an earlier release,
    let mut harness = running_service();
    let name = harness.live_clusters()[0].clone();
    let stored = stored_configs(&harness);
    harness.is_queued = true;
    harness.patch_service(ray_version_patch("2.54.0"));
    harness.patch_service(json!({"spec": {"serveConfigV2": serve_config("two")}}));
    harness.run_for(10);
    harness.remove_object("ControllerRevision", &stored[0]);

    // when its head is lost in an upgrade, then this is reported, and reverting the spec helps.
    harness.lose_head(&name);
    harness.run_for(20);
    assert_eq!((harness.applied_configs(&name).len(), harness.event_count("ServeApplicationsLost")), (0, 1));
    harness.patch_service(json!({"spec": {"serveConfigV2": serve_config("one")}}));
    harness.run_for(20);
    assert_eq!(harness.applied_configs(&name).len(), 1);
}

#[rstest]
#[case::included(json!(null), "true")]
#[case::excluded(json!(true), "false")]
fn head_label_follows_the_exclude_setting(#[case] exclude: Value, #[case] expected: &str) {
    let mut harness = running_service();
    harness.patch_service(json!({"spec": {"excludeHeadPodFromServeSvc": exclude}}));
    harness.run_for(30);
    let head = format!("{}-head", harness.live_clusters()[0]);
    let labels = &harness.object("Pod", &head).expect("a head")["metadata"]["labels"];
    assert_eq!(labels[names::SERVE_LABEL], expected);
}

#[test]
fn rejected_configuration_is_reported_and_retried_with_backoff() {
    let mut harness = Harness::new(chat_service());
    harness.rejection_code = Some(400);
    harness.run_for(120);
    assert_eq!(harness.event_count("FailedToUpdateServeApplications"), 1);
    assert!(harness.message("Ready").contains("HTTP status 400: no"), "{}", harness.message("Ready"));

    harness.rejection_code = None;
    harness.patch_service(json!({"spec": {"serveConfigV2": serve_config("two")}}));
    harness.run_for(10);
    assert_eq!(
        harness.condition("Ready"),
        state("True", "NonZeroServeEndpoints"),
        "another one is applied immediately"
    );
}

#[test]
fn deleted_or_modified_service_is_restored() {
    let mut harness = running_service();
    let name = harness.live_clusters()[0].clone();
    harness.delete("Service", "chat-serve-svc");
    harness.patch_as_other_client(
        "Service",
        "chat-head-svc",
        json!({"spec": {"selector": {"ray.io/cluster": "other"}}}),
    );
    harness.run_for(5);
    assert_eq!(harness.selected_cluster(), Some(name.clone()));
    let head = harness.object("Service", "chat-head-svc").expect("the Service");
    assert_eq!(head["spec"]["selector"]["ray.io/cluster"], json!(name));
}

#[test]
fn custom_serve_service_keeps_its_spec_and_fields_added_by_others() {
    let mut service = chat_service();
    service["spec"]["serveService"] = json!({
        "metadata": {"name": "front", "annotations": {"lb": "internal"}},
        "spec": {"type": "LoadBalancer", "ports": [{"name": "web", "port": 80, "targetPort": 8000}], "selector": {"x": "y"}},
    });
    let mut harness = Harness::new(service);
    harness.run_for(30);
    harness.patch_as_other_client(
        "Service",
        "front",
        json!({"spec": {"clusterIP": "10.9.9.9", "ports": [
            {"name": "web", "port": 80, "targetPort": 8000, "nodePort": 30_080, "protocol": "TCP"},
            {"name": "serve", "port": 8000, "targetPort": 8000, "nodePort": 30_081, "protocol": "TCP"},
        ]}}),
    );
    assert!(harness.plan().writes.is_empty(), "{:?}", harness.plan().writes);
    let front = harness.object("Service", "front").expect("the Service");
    assert_eq!(front["spec"]["type"], "LoadBalancer");
    assert_eq!(front["metadata"]["annotations"]["lb"], "internal");
    assert_eq!(front["spec"]["selector"].as_object().expect("a selector").len(), 2);
}
