//! Upgrades that replace one cluster by another.

use jiff::SignedDuration;
use kube_core::ResourceExt;
use serde_json::json;

use super::harness::Harness;
use super::{chat_service, groups_with_one_appended, ray_version_patch, running_service, serve_config, state};
use sluice_api::ray::names;

#[test]
fn b06_new_version_gets_a_cluster_that_takes_over_once_it_is_running() {
    let mut harness = running_service();
    let old = harness.live_clusters()[0].clone();
    harness.deploy_time = SignedDuration::from_secs(20);

    harness.patch_service(ray_version_patch("2.54.0"));
    harness.run_for(15);

    assert_eq!(harness.condition("UpgradeInProgress"), state("True", "BothActivePendingClustersExist"));
    assert!(harness.message("UpgradeInProgress").contains("application one is DEPLOYING"));
    assert_eq!(harness.selected_cluster(), Some(old.clone()));
    let status = harness.service().and_then(|service| service.status).expect("a status");
    assert!(
        status.active_service_status.and_then(|active| active.application_statuses).is_some(),
        "applications are kept"
    );

    harness.run_for(20);
    let new = harness.selected_cluster().expect("a serving cluster");
    assert_ne!(new, old);
    assert_eq!(harness.active_and_pending(), (Some(new.clone()), None));
    assert_eq!(harness.live_clusters().len(), 2, "the old one is kept for open connections");
    assert_eq!(harness.event_count("UpgradeStarted") + harness.event_count("Promoted"), 2);

    harness.run_for(70);
    assert_eq!(harness.live_clusters(), [new]);
    assert_eq!(harness.served_by.len(), 2);
}

#[test]
fn b10_configuration_changed_with_the_cluster_spec_never_reaches_the_active_cluster() {
    let mut harness = running_service();
    let old = harness.live_clusters()[0].clone();
    harness.pods_start = false;
    harness.patch_service(ray_version_patch("2.54.0"));
    harness.patch_service(json!({"spec": {"serveConfigV2": serve_config("two")}}));
    harness.run_for(30);
    harness.restart();
    harness.run_for(30);
    harness.patch_service(json!({"spec": {"serveConfigV2": serve_config("three")}}));
    harness.run_for(30);
    assert_eq!(harness.applied_configs(&old).len(), 1);

    harness.pods_start = true;
    harness.run_for(30);
    let new = harness.selected_cluster().expect("a serving cluster");
    assert_eq!(harness.applied_configs(&new)[0]["applications"][0]["name"], "three");
    assert_eq!(harness.applied_configs(&old).len(), 1);
}

#[test]
fn reverted_change_deletes_the_pending_cluster_immediately() {
    let mut harness = running_service();
    let old = harness.live_clusters();
    harness.is_queued = true;
    harness.patch_service(ray_version_patch("2.54.0"));
    harness.run_for(20);
    assert_eq!(harness.live_clusters().len(), 2);

    harness.patch_service(ray_version_patch("2.53.0"));
    harness.run_for(2);

    assert_eq!(harness.live_clusters(), old, "a cluster that never served is deleted immediately");
    assert_eq!(harness.condition("UpgradeInProgress"), state("False", "NoPendingCluster"));
    assert_eq!(harness.event_count("UpgradeCancelled"), 1);
    assert_eq!(harness.served_by, old);
}

#[test]
fn b05_further_change_replaces_the_pending_cluster() {
    let mut harness = running_service();
    harness.pods_start = false;
    harness.patch_service(ray_version_patch("2.54.0"));
    harness.run_for(10);
    let (active, second) = harness.active_and_pending();

    harness.patch_service(ray_version_patch("2.55.0"));
    harness.run_for(10);

    let (still, third) = harness.active_and_pending();
    assert_eq!(still, active);
    assert_ne!(third, second);
    assert_eq!(harness.live_clusters().len(), 2);
    assert!(!harness.live_clusters().contains(&second.expect("a name")));
}

#[test]
fn pending_cluster_without_a_head_blocks_nothing() {
    let mut harness = running_service();
    let old = harness.live_clusters()[0].clone();
    harness.pods_start = false;
    harness.patch_service(ray_version_patch("2.54.0"));
    harness.run_for(30);
    assert!(harness.message("UpgradeInProgress").contains("its head pod is not ready (HeadPodNotFound)"));

    harness.patch_service(
        json!({"spec": {"serveConfigV2": serve_config("two"), "rayClusterConfig": {"rayVersion": "2.53.0"}}}),
    );
    harness.run_for(20);

    assert_eq!(harness.live_clusters(), std::slice::from_ref(&old));
    assert_eq!(harness.applied_configs(&old).len(), 2);
}

#[test]
fn name_of_a_terminating_cluster_is_not_reused() {
    let mut harness = running_service();
    harness.pods_start = false;
    harness.patch_service(ray_version_patch("2.54.0"));
    harness.run_for(5);
    let second = harness.active_and_pending().1.expect("a pending cluster");
    harness.pods_stay_terminating = true;
    harness.pods_start = true;
    harness.run_for(1);

    harness.patch_service(ray_version_patch("2.53.0"));
    harness.run_for(5);
    harness.patch_service(ray_version_patch("2.54.0"));
    harness.run_for(1);

    let again = harness.active_and_pending().1.expect("a pending cluster");
    assert_ne!(again, second, "the first one is still terminating");
    assert_eq!(harness.clusters().len(), 3);
}

#[test]
fn draining_cluster_serves_again_when_the_spec_is_reverted() {
    let mut harness = running_service();
    let old = harness.live_clusters()[0].clone();
    harness.patch_service(ray_version_patch("2.54.0"));
    harness.run_for(30);
    assert_ne!(harness.selected_cluster(), Some(old.clone()));

    harness.patch_service(ray_version_patch("2.53.0"));
    harness.run_for(5);

    assert_eq!(harness.selected_cluster(), Some(old.clone()));
    assert_eq!(harness.event_count("CreatedRayCluster"), 2, "no cluster was created for it");
    harness.run_for(100);
    assert_eq!(harness.live_clusters(), [old]);
}

#[test]
fn change_reverted_while_traffic_moves_keeps_both_clusters_for_the_deletion_delay() {
    let mut harness = running_service();
    let old = harness.selected_cluster();
    harness.patch_service(ray_version_patch("2.54.0"));
    let end = harness.now + SignedDuration::from_secs(60);
    while harness.selected_cluster() == old && harness.now < end {
        harness.run_once(end, &|_| true);
    }
    let new = harness.selected_cluster();
    assert_eq!((harness.active_and_pending().0, new != old), (old.clone(), true), "the status lags behind");

    harness.patch_service(ray_version_patch("2.53.0"));
    harness.run_for(10);

    assert_eq!(harness.selected_cluster(), old);
    assert_eq!(harness.active_and_pending(), (old.clone(), None));
    assert!(harness.live_clusters().contains(&new.expect("it served")), "requests that it took may still be running");
    harness.run_for(100);
    assert_eq!(harness.live_clusters(), Vec::from_iter(old));
}

#[test]
fn replica_changes_do_not_affect_existing_clusters() {
    let mut harness = running_service();
    let before = harness.live_clusters();
    let mut groups = chat_service()["spec"]["rayClusterConfig"]["workerGroupSpecs"].clone();
    groups[0]["replicas"] = json!(4);
    harness.patch_service(json!({"spec": {"rayClusterConfig": {"workerGroupSpecs": groups}}}));
    harness.run_for(20);

    assert_eq!(harness.live_clusters(), before);
    assert_eq!(harness.cluster(&before[0]).spec.worker_group_specs[0].replicas, Some(1));
}

#[test]
fn b03_appended_group_is_added_in_place_and_keeps_the_scaled_groups() {
    let mut harness = running_service();
    let before = harness.live_clusters();
    let mut scaled = chat_service()["spec"]["rayClusterConfig"]["workerGroupSpecs"].clone();
    scaled[0]["replicas"] = json!(3);
    harness.patch_as_other_client("RayCluster", &before[0], json!({"spec": {"workerGroupSpecs": scaled}}));

    harness.patch_service(json!({"spec": {"rayClusterConfig": {"workerGroupSpecs": groups_with_one_appended()}}}));
    harness.run_for(20);

    assert_eq!(harness.live_clusters(), before);
    let groups = harness.cluster(&before[0]).spec.worker_group_specs;
    let groups: Vec<_> = groups.iter().map(|group| (group.group_name.as_str(), group.replicas)).collect();
    assert_eq!(groups, [("small", Some(3)), ("big", Some(1))]);
    assert_eq!(harness.event_count("UpdatedRayCluster"), 1);
}

#[test]
fn upgrade_blocked_by_the_strategy_is_reported() {
    let mut harness = running_service();
    let before = harness.live_clusters();
    harness.patch_service(json!({"spec": {"upgradeStrategy": {"type": "None"}}}));
    harness.patch_service(ray_version_patch("2.54.0"));
    harness.run_for(30);

    assert_eq!(harness.live_clusters(), before);
    assert_eq!(harness.condition("sluice.dev/UpgradeBlocked"), state("True", "UpgradeStrategyNone"));
    assert_eq!(harness.condition("sluice.dev/Unsupported"), None);
    assert_eq!(harness.condition("Ready"), state("True", "NonZeroServeEndpoints"));
    assert_eq!(harness.event_count("UpgradeBlocked"), 1);

    harness.patch_service(json!({"spec": {"upgradeStrategy": null}}));
    harness.run_for(30);
    assert_eq!(harness.condition("sluice.dev/UpgradeBlocked"), None);
    assert_eq!(harness.served_by.len(), 2);
}

#[test]
fn cluster_without_workers_takes_over_once_its_head_serves() {
    let mut harness = Harness::new(chat_service());
    harness.has_workers = false;
    harness.run_for(30);
    harness.patch_service(ray_version_patch("2.54.0"));
    harness.run_for(30);
    assert_eq!(harness.served_by.len(), 2);
    assert_eq!(harness.condition("Ready"), state("True", "NonZeroServeEndpoints"));
}

#[test]
fn kuberay_clusters_are_adopted_unchanged() {
    let mut harness = running_service();
    let name = harness.live_clusters()[0].clone();
    let annotations = json!({(names::SPEC_HASH_ANNOTATION): "94Q7P53ETTCG3N1LC5S2KGF6PI8U6FHG", (names::SERVE_CONFIG_HASH_ANNOTATION): null});
    harness.patch_as_other_client("RayCluster", &name, json!({"metadata": {"annotations": annotations}}));
    harness.restart();
    harness.run_for(30);
    assert_eq!(harness.live_clusters(), std::slice::from_ref(&name));
    assert!(harness.cluster(&name).annotations()[names::SPEC_HASH_ANNOTATION].starts_with("defaulted-"));
}
