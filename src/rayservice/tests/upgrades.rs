//! Upgrades that replace one cluster by another.

use jiff::SignedDuration;
use kube_core::ResourceExt;
use serde_json::json;

use super::stage::Stage;
use super::{chat, config, serving, state, version, with_another_group};
use sluice_api::ray::names;

#[test]
fn b06_new_version_gets_a_cluster_that_takes_over_once_it_is_running() {
    let mut stage = serving();
    let old = stage.living()[0].clone();
    stage.deploy = SignedDuration::from_secs(20);

    stage.edit(version("2.54.0"));
    stage.play(15);

    assert_eq!(stage.condition("UpgradeInProgress"), state("True", "BothActivePendingClustersExist"));
    assert!(stage.message("UpgradeInProgress").contains("application one is DEPLOYING"));
    assert_eq!(stage.leads_to(), Some(old.clone()));
    let status = stage.service().and_then(|service| service.status).expect("a status");
    assert!(
        status.active_service_status.and_then(|active| active.application_statuses).is_some(),
        "applications are kept"
    );

    stage.play(20);
    let new = stage.leads_to().expect("a serving cluster");
    assert_ne!(new, old);
    assert_eq!(stage.named(), (Some(new.clone()), None));
    assert_eq!(stage.living().len(), 2, "the old one is kept for open connections");
    assert_eq!(stage.told("UpgradeStarted") + stage.told("Promoted"), 2);

    stage.play(70);
    assert_eq!(stage.living(), [new]);
    assert_eq!(stage.served_by.len(), 2);
}

#[test]
fn b10_configuration_changed_with_the_cluster_spec_never_reaches_the_active_cluster() {
    let mut stage = serving();
    let old = stage.living()[0].clone();
    stage.pods_start = false;
    stage.edit(version("2.54.0"));
    stage.edit(json!({"spec": {"serveConfigV2": config("two")}}));
    stage.play(30);
    stage.restart();
    stage.play(30);
    stage.edit(json!({"spec": {"serveConfigV2": config("three")}}));
    stage.play(30);
    assert_eq!(stage.applied(&old).len(), 1);

    stage.pods_start = true;
    stage.play(30);
    let new = stage.leads_to().expect("a serving cluster");
    assert_eq!(stage.applied(&new)[0]["applications"][0]["name"], "three");
    assert_eq!(stage.applied(&old).len(), 1);
}

#[test]
fn reverted_change_deletes_the_pending_cluster_immediately() {
    let mut stage = serving();
    let old = stage.living();
    stage.gated = true;
    stage.edit(version("2.54.0"));
    stage.play(20);
    assert_eq!(stage.living().len(), 2);

    stage.edit(version("2.53.0"));
    stage.play(2);

    assert_eq!(stage.living(), old, "a cluster that never served is deleted immediately");
    assert_eq!(stage.condition("UpgradeInProgress"), state("False", "NoPendingCluster"));
    assert_eq!(stage.told("UpgradeCancelled"), 1);
    assert_eq!(stage.served_by, old);
}

#[test]
fn b05_further_change_replaces_the_pending_cluster() {
    let mut stage = serving();
    stage.pods_start = false;
    stage.edit(version("2.54.0"));
    stage.play(10);
    let (active, second) = stage.named();

    stage.edit(version("2.55.0"));
    stage.play(10);

    let (still, third) = stage.named();
    assert_eq!(still, active);
    assert_ne!(third, second);
    assert_eq!(stage.living().len(), 2);
    assert!(!stage.living().contains(&second.expect("a name")));
}

#[test]
fn pending_cluster_without_a_head_blocks_nothing() {
    let mut stage = serving();
    let old = stage.living()[0].clone();
    stage.pods_start = false;
    stage.edit(version("2.54.0"));
    stage.play(30);
    assert!(stage.message("UpgradeInProgress").contains("its head pod is not ready (HeadPodNotFound)"));

    stage.edit(json!({"spec": {"serveConfigV2": config("two"), "rayClusterConfig": {"rayVersion": "2.53.0"}}}));
    stage.play(20);

    assert_eq!(stage.living(), std::slice::from_ref(&old));
    assert_eq!(stage.applied(&old).len(), 2);
}

#[test]
fn name_of_a_terminating_cluster_is_not_reused() {
    let mut stage = serving();
    stage.pods_start = false;
    stage.edit(version("2.54.0"));
    stage.play(5);
    let second = stage.named().1.expect("a pending cluster");
    stage.pods_linger = true;
    stage.pods_start = true;
    stage.play(1);

    stage.edit(version("2.53.0"));
    stage.play(5);
    stage.edit(version("2.54.0"));
    stage.play(1);

    let again = stage.named().1.expect("a pending cluster");
    assert_ne!(again, second, "the first one is still terminating");
    assert_eq!(stage.clusters().len(), 3);
}

#[test]
fn draining_cluster_serves_again_when_the_spec_is_reverted() {
    let mut stage = serving();
    let old = stage.living()[0].clone();
    stage.edit(version("2.54.0"));
    stage.play(30);
    assert_ne!(stage.leads_to(), Some(old.clone()));

    stage.edit(version("2.53.0"));
    stage.play(5);

    assert_eq!(stage.leads_to(), Some(old.clone()));
    assert_eq!(stage.told("CreatedRayCluster"), 2, "no cluster was created for it");
    stage.play(100);
    assert_eq!(stage.living(), [old]);
}

#[test]
fn change_reverted_while_traffic_moves_keeps_both_clusters_for_the_deletion_delay() {
    let mut stage = serving();
    let old = stage.leads_to();
    stage.edit(version("2.54.0"));
    let end = stage.now + SignedDuration::from_secs(60);
    while stage.leads_to() == old && stage.now < end {
        stage.beat(end, &|_| true);
    }
    let new = stage.leads_to();
    assert_eq!((stage.named().0, new != old), (old.clone(), true), "the status lags behind");

    stage.edit(version("2.53.0"));
    stage.play(10);

    assert_eq!(stage.leads_to(), old);
    assert_eq!(stage.named(), (old.clone(), None));
    assert!(stage.living().contains(&new.expect("it served")), "requests that it took may still be running");
    stage.play(100);
    assert_eq!(stage.living(), Vec::from_iter(old));
}

#[test]
fn replica_changes_do_not_affect_existing_clusters() {
    let mut stage = serving();
    let before = stage.living();
    let mut groups = chat()["spec"]["rayClusterConfig"]["workerGroupSpecs"].clone();
    groups[0]["replicas"] = json!(4);
    stage.edit(json!({"spec": {"rayClusterConfig": {"workerGroupSpecs": groups}}}));
    stage.play(20);

    assert_eq!(stage.living(), before);
    assert_eq!(stage.cluster(&before[0]).spec.worker_group_specs[0].replicas, Some(1));
}

#[test]
fn b03_appended_group_is_added_in_place_and_keeps_the_scaled_groups() {
    let mut stage = serving();
    let before = stage.living();
    let mut scaled = chat()["spec"]["rayClusterConfig"]["workerGroupSpecs"].clone();
    scaled[0]["replicas"] = json!(3);
    stage.meddle("RayCluster", &before[0], json!({"spec": {"workerGroupSpecs": scaled}}));

    stage.edit(json!({"spec": {"rayClusterConfig": {"workerGroupSpecs": with_another_group()}}}));
    stage.play(20);

    assert_eq!(stage.living(), before);
    let groups = stage.cluster(&before[0]).spec.worker_group_specs;
    let groups: Vec<_> = groups.iter().map(|group| (group.group_name.as_str(), group.replicas)).collect();
    assert_eq!(groups, [("small", Some(3)), ("big", Some(1))]);
    assert_eq!(stage.told("UpdatedRayCluster"), 1);
}

#[test]
fn upgrade_blocked_by_the_strategy_is_reported() {
    let mut stage = serving();
    let before = stage.living();
    stage.edit(json!({"spec": {"upgradeStrategy": {"type": "None"}}}));
    stage.edit(version("2.54.0"));
    stage.play(30);

    assert_eq!(stage.living(), before);
    assert_eq!(stage.condition("sluice.dev/UpgradeBlocked"), state("True", "UpgradeStrategyNone"));
    assert_eq!(stage.condition("sluice.dev/Unsupported"), None);
    assert_eq!(stage.condition("Ready"), state("True", "NonZeroServeEndpoints"));
    assert_eq!(stage.told("UpgradeBlocked"), 1);

    stage.edit(json!({"spec": {"upgradeStrategy": null}}));
    stage.play(30);
    assert_eq!(stage.condition("sluice.dev/UpgradeBlocked"), None);
    assert_eq!(stage.served_by.len(), 2);
}

#[test]
fn cluster_without_workers_takes_over_once_its_head_serves() {
    let mut stage = Stage::new(chat());
    stage.workers = false;
    stage.play(30);
    stage.edit(version("2.54.0"));
    stage.play(30);
    assert_eq!(stage.served_by.len(), 2);
    assert_eq!(stage.condition("Ready"), state("True", "NonZeroServeEndpoints"));
}

#[test]
fn kuberay_clusters_are_adopted_unchanged() {
    let mut stage = serving();
    let name = stage.living()[0].clone();
    let annotations = json!({(names::SPEC_HASH_ANNOTATION): "94Q7P53ETTCG3N1LC5S2KGF6PI8U6FHG", (names::SERVE_CONFIG_HASH_ANNOTATION): null});
    stage.meddle("RayCluster", &name, json!({"metadata": {"annotations": annotations}}));
    stage.restart();
    stage.play(30);
    assert_eq!(stage.living(), std::slice::from_ref(&name));
    assert!(stage.cluster(&name).annotations()[names::SPEC_HASH_ANNOTATION].starts_with("plain-"));
}
