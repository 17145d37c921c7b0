//! Lifecycle of a RayService from creation to deletion.

use jiff::SignedDuration;
use kube_core::ResourceExt;
use rstest::rstest;
use serde_json::{Value, json};

use super::harness::Harness;
use super::{chat_service, ray_version_patch, running_service, state};
use sluice_api::ray::admission_annotations::TIMED_OUT_ANNOTATION;
use sluice_api::ray::incremental_annotations::{UPGRADE_DIRECTIVE_ANNOTATION, UPGRADE_FAILED_ANNOTATION};
use sluice_api::ray::names;
use sluice_api::ray::routing_annotations::ADOPTED_ROUTE_ANNOTATION;
use sluice_plan::{Plan, WriteOp};

#[test]
fn b01_new_ray_service_becomes_ready() {
    let mut harness = Harness::new(chat_service());
    harness.run_for(1);
    let first = harness.live_clusters();
    assert_eq!(harness.active_and_pending(), (None, Some(first[0].clone())));
    assert_eq!(harness.condition("Ready"), state("False", "Initializing"));
    assert_eq!(harness.selected_cluster(), None, "no cluster can serve yet");

    harness.run_for(30);

    assert_eq!(harness.active_and_pending(), (Some(first[0].clone()), None));
    assert_eq!(harness.selected_cluster(), Some(first[0].clone()));
    assert_eq!(harness.condition("Ready"), state("True", "NonZeroServeEndpoints"));
    assert_eq!(harness.condition("UpgradeInProgress"), state("False", "NoPendingCluster"));
    let status = harness.service().and_then(|service| service.status).expect("a status");
    assert_eq!(status.service_status.as_deref(), Some("Running"));
    assert_eq!(status.num_serve_endpoints, Some(1));
    let apps = status.active_service_status.and_then(|active| active.application_statuses).expect("applications");
    assert_eq!(apps["one"].status.as_deref(), Some("RUNNING"));
    assert_eq!(harness.applied_configs(&first[0]).len(), 1);
    assert_eq!(
        (
            harness.event_count("CreatedRayCluster"),
            harness.event_count("CreatedService"),
            harness.event_count("UpdatedServeApplications")
        ),
        (1, 2, 1)
    );
}

#[test]
fn ray_cluster_has_the_metadata_that_kuberay_sets() {
    let harness = running_service();
    let name = &harness.live_clusters()[0];
    assert_eq!(name.len(), "chat-".len() + 5);
    let child = harness.cluster(name);
    assert_eq!(child.labels()["team"], "a");
    assert_eq!(child.labels()[names::ORIGIN_NAME_LABEL], "chat");
    assert_eq!(child.labels()[names::ORIGIN_KIND_LABEL], "RayService");
    assert_eq!(child.annotations()["note"], "b");
    assert_eq!(child.annotations()[names::WORKER_GROUPS_ANNOTATION], "1");
    assert!(child.annotations()[names::SPEC_HASH_ANNOTATION].starts_with("defaulted-v1-"));
    let owner = &child.owner_references()[0];
    assert_eq!(
        (owner.kind.as_str(), owner.controller, owner.block_owner_deletion),
        ("RayService", Some(true), Some(true))
    );
    assert_eq!(child.spec.suspend, None);
}

#[rstest]
#[case::last_applied(sluice_api::LAST_APPLIED_ANNOTATION, "{}")]
#[case::admission_timed_out(TIMED_OUT_ANNOTATION, "hash")]
#[case::upgrade_directive(UPGRADE_DIRECTIVE_ANNOTATION, "pause")]
#[case::upgrade_failed(UPGRADE_FAILED_ANNOTATION, "hash")]
#[case::adopted_route(ADOPTED_ROUTE_ANNOTATION, "shop")]
#[case::template_suspended(names::TEMPLATE_SUSPENDED_ANNOTATION, "true")]
fn ray_cluster_has_no_annotation_about_its_service(#[case] annotation: &str, #[case] value: &str) {
    let mut service = chat_service();
    service["metadata"]["annotations"][annotation] = json!(value);
    let mut harness = Harness::new(service);
    harness.run_for(1);
    let child = harness.cluster(&harness.live_clusters()[0]);
    assert_eq!(child.annotations().get(annotation), None);
    assert_eq!(child.annotations()["note"], "b");
}

#[test]
fn queued_cluster_is_created_suspended_and_ready_reports_the_cause() {
    let mut harness = Harness::new(chat_service());
    harness.is_queued = true;
    harness.run_for(10);

    let name = harness.live_clusters()[0].clone();
    assert_eq!(harness.cluster(&name).spec.suspend, Some(true));
    assert!(harness.message("Ready").contains("until quota is reserved for it"), "{}", harness.message("Ready"));

    harness.set_unsuspended(&name, true);
    harness.run_for(20);
    assert_eq!(harness.selected_cluster(), Some(name));
}

#[test]
fn steady_state_plans_no_writes() {
    let mut harness = running_service();
    let plans: Vec<Plan> = (0..20)
        .map(|_| {
            harness.now += SignedDuration::from_secs(3);
            harness.plan()
        })
        .collect();
    assert!(plans.iter().all(|plan| plan.writes.is_empty() && plan.events.is_empty()), "{plans:?}");
}

#[rstest]
#[case::yaml(json!({"serveConfigV2": "applications: ["}), "spec.serveConfigV2: invalid YAML: line 1 column 15")]
#[case::no_config(json!({"serveConfigV2": null}), "spec.serveConfigV2: must be a mapping")]
#[case::no_head(json!({"rayClusterConfig": {"headGroupSpec": {"template": {"spec": {"containers": []}}}}}),
    "spec.rayClusterConfig.headGroupSpec.template.spec.containers")]
#[case::delay(json!({"rayClusterDeletionDelaySeconds": -1}), "spec.rayClusterDeletionDelaySeconds: -1 must not be negative")]
#[case::strategy(json!({"upgradeStrategy": {"type": "Blue"}}), "spec.upgradeStrategy.type: unsupported value \"Blue\"; supported values: NewCluster")]
#[case::no_port(
    json!({"rayClusterConfig": {"headGroupSpec": {"template": {"spec": {"containers": [
        {"name": "ray", "ports": [{"name": "dashboard", "containerPort": 8265}]}]}}}}}),
    "containers[0].ports: no port is named \"serve\"")]
#[case::head_name(json!({"rayClusterConfig": {"headGroupSpec": {"headService": {"metadata": {"name": "mine"}}}}}),
    "headService.metadata.name: \"mine\"")]
fn invalid_spec_is_reported_and_does_not_affect_a_running_cluster(#[case] spec: Value, #[case] message: &str) {
    let mut fresh = Harness::new(chat_service());
    fresh.patch_service(json!({"spec": spec}));
    fresh.run_for(10);
    assert_eq!(fresh.condition("Ready"), state("False", "ValidationFailed"));
    assert!(fresh.message("Ready").contains(message), "{}", fresh.message("Ready"));
    assert_eq!((fresh.live_clusters().len(), fresh.event_count("InvalidRayServiceSpec")), (0, 1));

    let mut harness = running_service();
    let before = harness.live_clusters();
    harness.patch_service(json!({"spec": spec}));
    harness.run_for(100);
    assert_eq!(harness.condition("Ready"), state("True", "NonZeroServeEndpoints"));
    assert_eq!(harness.condition("sluice.dev/SpecRejected"), state("True", "InvalidSpec"));
    assert!(harness.message("sluice.dev/SpecRejected").contains(message));
    assert_eq!((harness.live_clusters(), harness.served_by.clone()), (before.clone(), before));

    let original = chat_service();
    harness.patch_service(json!({"spec": {"upgradeStrategy": null, "rayClusterDeletionDelaySeconds": null}}));
    harness.patch_service(json!({"spec": {"rayClusterConfig": {"headGroupSpec": {"headService": null}}}}));
    harness.patch_service(json!({"spec": original["spec"]}));
    harness.run_for(10);
    assert_eq!(harness.condition("sluice.dev/SpecRejected"), None);
}

#[rstest]
#[case::too_long("c".repeat(48))]
#[case::starts_with_digit("1chat".into())]
fn b20_name_unsuitable_for_derived_names_is_rejected(#[case] name: String) {
    let mut service = chat_service();
    service["metadata"]["name"] = json!(name);
    let mut harness = Harness::new(service);
    harness.run_for(10);
    assert_eq!(harness.condition("Ready"), state("False", "ValidationFailed"));
    assert!(harness.message("Ready").starts_with("metadata.name: "));
}

#[test]
fn b23_b24_suspending_deletes_the_clusters_and_keeps_the_services() {
    let mut harness = running_service();
    harness.patch_service(ray_version_patch("2.54.0"));
    harness.run_for(1);
    harness.pods_stay_terminating = true;
    harness.patch_service(json!({"spec": {"suspend": true}}));
    harness.run_for(10);
    assert_eq!(harness.condition("Suspending"), state("True", "SuspendInProgress"));
    harness.patch_service(json!({"spec": {"suspend": false}}));
    harness.run_for(10);
    assert_eq!(
        harness.condition("Suspending"),
        state("True", "SuspendInProgress"),
        "a started suspension is completed"
    );

    harness.patch_service(json!({"spec": {"suspend": true}}));
    harness.pods_stay_terminating = false;
    harness.run_for(10);
    assert_eq!(harness.condition("Suspended"), state("True", "SuspendComplete"));
    assert_eq!(harness.condition("Ready"), state("False", "SuspendComplete"));
    assert_eq!(harness.clusters().len(), 0);
    assert_eq!(harness.active_and_pending(), (None, None));
    let uid = harness.object("Service", "chat-serve-svc").expect("the Service is kept")["metadata"]["uid"].clone();
    let before = harness.selected_cluster();

    harness.patch_service(json!({"spec": {"suspend": false}}));
    harness.run_for(30);
    assert_eq!(harness.condition("Suspended"), state("False", "RayServiceResumed"));
    assert_eq!(harness.condition("Ready"), state("True", "NonZeroServeEndpoints"));
    assert_eq!(harness.object("Service", "chat-serve-svc").expect("there")["metadata"]["uid"], uid);
    assert_ne!(harness.selected_cluster(), before, "a new cluster serves after resuming");
}

#[test]
fn spec_change_while_resuming_replaces_the_pending_cluster() {
    let mut harness = running_service();
    let old = harness.selected_cluster();
    harness.patch_service(json!({"spec": {"suspend": true}}));
    harness.run_for(10);
    harness.is_queued = true;
    harness.patch_service(json!({"spec": {"suspend": false}}));
    harness.run_for(10);
    assert_eq!(harness.selected_cluster(), old, "the serve Service is unchanged until a cluster can serve");
    assert_eq!(
        harness.active_and_pending(),
        (None, harness.live_clusters().pop()),
        "the new cluster is pending, not active"
    );

    harness.patch_service(ray_version_patch("2.54.0"));
    harness.run_for(10);

    assert_eq!(harness.live_clusters().len(), 1, "no cluster is active, so none is kept in addition to the new one");
    assert_eq!(harness.condition("UpgradeInProgress"), state("False", "Initializing"));
}

#[test]
fn b25_ray_service_created_suspended_creates_no_cluster_until_resumed() {
    let mut service = chat_service();
    service["spec"]["suspend"] = json!(true);
    let mut harness = Harness::new(service);
    harness.run_for(10);
    assert_eq!(harness.condition("Suspended"), state("True", "SuspendComplete"));
    assert_eq!(harness.event_count("CreatedRayCluster"), 0);
    harness.patch_service(json!({"spec": {"suspend": false}}));
    harness.run_for(30);
    assert_eq!(harness.condition("Ready"), state("True", "NonZeroServeEndpoints"));
}

#[test]
fn deleted_ray_service_is_finalized_after_its_clusters_are_gone() {
    let mut harness = running_service();
    harness.patch_service(ray_version_patch("2.54.0"));
    harness.run_for(1);
    harness.pods_stay_terminating = true;
    harness.delete("RayService", "chat");
    harness.run_for(30);
    assert!(harness.service().is_some());
    assert!(harness.live_clusters().is_empty());

    harness.pods_stay_terminating = false;
    harness.run_for(5);
    assert!(harness.service().is_none());
}

#[test]
fn finalizer_is_added_before_any_other_write() {
    let harness = Harness::new(chat_service());
    let plan = harness.plan();
    assert_eq!(plan.writes.len(), 1);
    let WriteOp::Patch(patch) = &plan.writes[0].op else { panic!("{plan:?}") };
    assert_eq!(patch["metadata"]["finalizers"], json!([names::SERVICE_FINALIZER]));
}

#[test]
fn b21_ray_service_managed_by_another_controller_is_ignored() {
    let mut service = chat_service();
    service["spec"]["managedBy"] = json!("kueue.x-k8s.io/multikueue");
    assert_eq!(Harness::new(service).plan(), Plan::default());
}

#[test]
fn conditions_of_other_controllers_are_kept() {
    let mut harness = Harness::new(chat_service());
    let admitted = json!({
        "type": "sluice.dev/Admitted", "status": "False", "reason": "Pending", "message": "m",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    harness.patch_service(json!({"status": {"conditions": [admitted]}}));
    harness.run_for(30);
    assert_eq!(harness.condition("sluice.dev/Admitted"), state("False", "Pending"));
}

#[test]
fn externally_deleted_active_cluster_is_replaced() {
    let mut harness = running_service();
    let old = harness.live_clusters()[0].clone();
    harness.delete("RayCluster", &old);
    harness.run_for(40);
    let new = harness.live_clusters();
    assert_eq!(new.len(), 1);
    assert_eq!(harness.selected_cluster().as_ref(), new.first());
    assert_eq!(harness.condition("Ready"), state("True", "NonZeroServeEndpoints"));
}

#[test]
fn unsupported_cluster_field_is_reported_on_the_ray_service() {
    let mut harness = running_service();
    harness.patch_service(json!({"spec": {"rayClusterConfig": {"historyServerOptions": {}}}}));
    harness.run_for(5);
    let message = harness.message("sluice.dev/Unsupported");
    assert!(message.contains("spec.rayClusterConfig.historyServerOptions"), "{message}");
}

/// Returns a RayService whose pods do not start, with this initialization timeout.
fn service_with_timeout(limit: &str) -> Harness {
    let mut service = chat_service();
    service["metadata"]["annotations"][names::INITIALIZING_TIMEOUT_ANNOTATION] = json!(limit);
    let mut harness = Harness::new(service);
    harness.pods_start = false;
    harness
}

#[rstest]
#[case::go_duration("1m0s")]
#[case::in_seconds("60")]
fn b22_initialization_timeout_is_final_despite_edits(#[case] limit: &str) {
    let mut harness = service_with_timeout(limit);
    harness.run_for(50);
    assert_eq!((harness.live_clusters().len(), harness.condition("Ready")), (1, state("False", "Initializing")));

    harness.run_for(30);
    assert_eq!((harness.live_clusters().len(), harness.condition("Ready")), (0, state("False", "InitializingTimeout")));
    assert_eq!(harness.event_count("RayServiceInitializingTimeout"), 1);
    harness.pods_start = true;
    harness.patch_service(ray_version_patch("2.54.0"));
    harness.restart();
    harness.run_for(120);
    assert_eq!((harness.live_clusters().len(), harness.condition("Ready")), (0, state("False", "InitializingTimeout")));

    // After suspending and resuming it starts over with the full timeout.
    harness.patch_service(json!({"spec": {"suspend": true}}));
    harness.run_for(20);
    harness.pods_start = false;
    harness.patch_service(json!({"spec": {"suspend": false}}));
    harness.run_for(50);
    assert_eq!((harness.live_clusters().len(), harness.condition("Ready")), (1, state("False", "Initializing")));
    harness.pods_start = true;
    harness.run_for(60);
    assert_eq!(harness.condition("Ready"), state("True", "NonZeroServeEndpoints"));
}

#[test]
fn b22_ray_service_that_was_ready_does_not_time_out() {
    let mut harness = service_with_timeout("60");
    harness.pods_start = true;
    harness.run_for(40);
    let name = harness.live_clusters()[0].clone();
    harness.pods_start = false;
    harness.lose_head(&name);
    harness.run_for(300);
    assert_eq!(
        (harness.live_clusters(), harness.condition("Ready")),
        (vec![name], state("False", "ZeroServeEndpoints"))
    );
}

#[test]
fn time_pending_for_quota_does_not_count_toward_the_timeout() {
    let mut harness = service_with_timeout("60");
    harness.is_queued = true;
    harness.run_for(600);
    assert_eq!((harness.live_clusters().len(), harness.condition("Ready")), (1, state("False", "Initializing")));
}
