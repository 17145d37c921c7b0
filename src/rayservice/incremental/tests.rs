//! Incremental upgrades, from the change of the spec to completion.

mod invalid_specs;
mod unhealthy;
mod user_provided_routes;
mod worker_removal;

use std::collections::BTreeSet;

use jiff::SignedDuration;
use kube_core::ResourceExt;
use rstest::rstest;
use serde_json::{Value, json};

use super::workers::FULL_REPLICAS_ANNOTATION;
use crate::tests::harness::Harness;
use crate::tests::{chat_service, ray_version_patch, state};
use sluice_api::ray::RayServiceStatus;
use sluice_api::ray::names::DELETE_AFTER_ANNOTATION;

/// Returns a RayService with four workers and four Serve replicas that is upgraded incrementally.
fn incremental_service(surge: i32, step: i32, interval: i32) -> Value {
    let mut service = chat_service();
    service["spec"]["serveConfigV2"] =
        json!("applications: [{name: one, import_path: one:app, deployments: [{name: model, num_replicas: 4}]}]");
    service["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]["replicas"] = json!(4);
    service["spec"]["upgradeStrategy"] = json!({
        "type": "NewClusterWithIncrementalUpgrade",
        "clusterUpgradeOptions": {
            "maxSurgePercent": surge, "stepSizePercent": step, "intervalSeconds": interval,
            "gatewayClassName": "traefik",
        },
    });
    service
}

fn running_service(surge: i32, step: i32, interval: i32) -> Harness {
    let mut harness = Harness::new(incremental_service(surge, step, interval));
    harness.run_for(60);
    assert_eq!(harness.condition("Ready"), state("True", "NonZeroServeEndpoints"));
    harness
}

/// Returns `traffic/capacity` of the active and the pending cluster according to the status.
fn recorded_shares(harness: &Harness) -> String {
    let status = harness.service().and_then(|service| service.status).unwrap_or_default();
    let share = |entry: Option<RayServiceStatus>| {
        let entry = entry?;
        Some(format!("{}/{}", entry.traffic_routed_percent?, entry.target_capacity?))
    };
    let shares = [share(status.active_service_status), share(status.pending_service_status)];
    shares.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// Runs for some seconds and checks the invariants at every beat. Returns every change of the
/// shares.
fn run_and_check(harness: &mut Harness, seconds: i64) -> Vec<String> {
    let end = harness.now + SignedDuration::from_secs(seconds);
    let mut seen = vec![recorded_shares(harness)];
    while harness.now < end {
        harness.run_once(end, &|_| true);
        harness.check_rollout_invariants();
        let now = recorded_shares(harness);
        if seen.last() != Some(&now) {
            seen.push(now);
        }
    }
    seen
}

#[test]
fn gateway_and_route_exist_before_the_first_upgrade() {
    let harness = running_service(50, 25, 5);
    let active = harness.live_clusters()[0].clone();
    let gateway = harness.object("Gateway", "chat-gateway").expect("a Gateway");
    assert_eq!(gateway["spec"]["gatewayClassName"], "traefik");
    assert_eq!(gateway["spec"]["listeners"], json!([{"name": "http", "protocol": "HTTP", "port": 80}]));
    let route = harness.object("HTTPRoute", "chat-httproute").expect("a route");
    assert_eq!(route["spec"]["parentRefs"], json!([{"name": "chat-gateway", "namespace": "ml"}]));
    let backend = json!({"name": format!("{active}-serve-svc"), "namespace": "ml", "port": 8000, "weight": 100});
    let everything = json!([{"path": {"type": "PathPrefix", "value": "/"}}]);
    assert_eq!(route["spec"]["rules"], json!([{"matches": everything, "backendRefs": [backend]}]));
    let selector = &harness.object("Service", &format!("{active}-serve-svc")).expect("its Service")["spec"]["selector"];
    assert_eq!(*selector, json!({"ray.io/cluster": active, "ray.io/serve": "true"}));
    assert_eq!(recorded_shares(&harness), "100/100");
    assert_eq!(harness.selected_cluster(), Some(active), "in-cluster clients use the serve Service");
}

#[test]
fn b27_upgrade_proceeds_step_by_step() {
    let mut harness = running_service(50, 25, 5);
    let old = harness.live_clusters()[0].clone();

    harness.patch_service(ray_version_patch("2.54.0"));
    let seen = run_and_check(&mut harness, 60);

    assert_eq!(seen, STEPS);
    let new = harness.selected_cluster().expect("it serves");
    assert_ne!(new, old);
    assert_eq!(harness.active_and_pending(), (Some(new.clone()), None));
    assert_eq!(
        harness.applied_configs(&new).last().expect("a configuration").get("target_capacity"),
        None,
        "the capacity limit is removed"
    );
    assert_eq!(harness.event_count("Promoted"), 1);

    harness.run_for(70);
    assert_eq!(harness.live_clusters(), [new]);
    assert_eq!(harness.served_by.len(), 2);
}

#[rstest]
#[case::halves(50, 25, 5, 6)]
#[case::quarters(25, 5, 10, 5)]
#[case::full_surge(100, 100, 1, 8)]
fn workers_are_scaled_with_the_capacity(
    #[case] surge: i32,
    #[case] step: i32,
    #[case] interval: i32,
    #[case] most: usize,
) {
    let mut harness = running_service(surge, step, interval);
    harness.patch_service(ray_version_patch("2.54.0"));
    let end = harness.now + SignedDuration::from_secs(400);
    let mut seen = BTreeSet::new();
    while harness.now < end {
        harness.run_once(end, &|_| true);
        if harness.live_clusters().len() == 2 && harness.active_and_pending().1.is_some() {
            seen.insert(harness.worker_count());
        }
    }
    assert_eq!(seen.last(), Some(&most), "{seen:?}");
    let new = harness.cluster(&harness.live_clusters()[0]);
    assert_eq!(new.spec.worker_group_specs[0].replicas, Some(4));
    assert!(!new.annotations().contains_key(FULL_REPLICAS_ANNOTATION));
}

#[test]
fn traffic_waits_for_running_replicas() {
    let mut harness = running_service(50, 25, 5);
    harness.deploy_time = SignedDuration::from_secs(40);
    harness.patch_service(ray_version_patch("2.54.0"));
    run_and_check(&mut harness, 30);
    assert_eq!(recorded_shares(&harness), "100/100 0/50");
    assert!(
        harness.message("UpgradeInProgress").contains("can serve 25% of the traffic"),
        "{}",
        harness.message("UpgradeInProgress")
    );

    run_and_check(&mut harness, 45);
    assert_eq!(recorded_shares(&harness), "50/50 50/100", "the next replicas are still starting");
    run_and_check(&mut harness, 60);
    assert_eq!(recorded_shares(&harness), "100/100");
}

#[test]
fn b31_upgrade_waits_for_the_gateway_class() {
    let mut harness = Harness::new(incremental_service(50, 25, 5));
    harness.has_gateway_controller = false;
    harness.run_for(60);
    harness.patch_service(ray_version_patch("2.54.0"));
    harness.run_for(30);
    assert_eq!(recorded_shares(&harness), "100/100 0/0");
    assert!(
        harness.message("UpgradeInProgress").contains("GatewayClass traefik does not exist"),
        "{}",
        harness.message("UpgradeInProgress")
    );

    harness.has_gateway_controller = true;
    run_and_check(&mut harness, 60);
    assert_eq!(recorded_shares(&harness), "100/100");
}

#[test]
fn capacity_waits_for_surplus_pods_to_terminate() {
    let mut harness = running_service(50, 25, 5);
    harness.workers_stay_terminating = true;
    harness.patch_service(ray_version_patch("2.54.0"));
    run_and_check(&mut harness, 60);
    assert_eq!(recorded_shares(&harness), "50/50 50/50");
    assert!(harness.message("UpgradeInProgress").contains("to terminate"), "{}", harness.message("UpgradeInProgress"));
    assert_eq!(harness.worker_count(), 6);

    harness.workers_stay_terminating = false;
    run_and_check(&mut harness, 60);
    assert_eq!(recorded_shares(&harness), "100/100");
}

/// Shares at which the upgrade is rolled back, the rollback mode, and the expected shares.
#[rstest]
#[case::before_traffic("100/100 0/50", None, &["100/100"])]
#[case::early("75/100 25/50", None, &["100/100 0/50", "100/100"])]
#[case::in_the_middle("50/50 50/50", None, &["50/100 50/50", "100/100 0/50", "100/100"])]
#[case::late("25/50 75/100", None, &["50/50 50/100", "50/50 50/50", "50/100 50/50", "100/100 0/50", "100/100"])]
#[case::in_the_middle_stepped(
    "50/50 50/50", Some("Stepped"), &["50/100 50/50", "75/100 25/50", "100/100 0/50", "100/100"])]
#[case::late_stepped(
    "25/50 75/100", Some("Stepped"),
    &["50/50 50/100", "50/50 50/50", "50/100 50/50", "75/100 25/50", "100/100 0/50", "100/100"])]
#[case::at_the_end_immediate(
    "0/50 100/100", Some("Immediate"), &["50/50 50/100", "50/50 50/50", "50/100 50/50", "100/100 0/50", "100/100"])]
fn b32_rolled_back_upgrade_ends_on_the_active_cluster(
    #[case] at: &str,
    #[case] rollback: Option<&str>,
    #[case] expected: &[&str],
) {
    let mut harness = running_service(50, 25, 5);
    harness.patch_service(json!({"metadata": {"annotations": {"sluice.dev/rollback": rollback}}}));
    let old = harness.live_clusters()[0].clone();
    upgrade_until(&mut harness, at);

    harness.patch_service(ray_version_patch("2.53.0"));
    let seen = run_and_check(&mut harness, 60);

    assert_eq!(seen[1..], *expected);
    assert_eq!(harness.active_and_pending(), (Some(old.clone()), None));
    assert_eq!(harness.condition("RollbackInProgress"), None);
    harness.run_for(70);
    assert_eq!(harness.live_clusters(), std::slice::from_ref(&old));
    assert_eq!(harness.cluster(&old).spec.worker_group_specs[0].replicas, Some(4));
    assert_eq!(harness.applied_configs(&old).last().expect("a configuration").get("target_capacity"), None);
}

/// Upgrades the RayService until it has these shares.
fn upgrade_until(harness: &mut Harness, until: &str) {
    harness.patch_service(ray_version_patch("2.54.0"));
    run_until(harness, until);
}

fn run_until(harness: &mut Harness, until: &str) {
    let end = harness.now + SignedDuration::from_secs(100);
    while recorded_shares(harness) != until {
        harness.run_once(end, &|_| true);
        assert!(harness.now < end, "it is at {}", recorded_shares(harness));
    }
}

#[test]
fn old_cluster_is_not_deleted_while_the_serve_service_selects_it() {
    // Given an upgrade during which another client takes every change of the serve Service back,
    let mut harness = running_service(50, 25, 5);
    let old = harness.live_clusters()[0].clone();
    harness.patch_service(ray_version_patch("2.54.0"));
    let end = harness.now + SignedDuration::from_secs(300);
    let deletion_time = |harness: &Harness| harness.cluster(&old).annotations().get(DELETE_AFTER_ANNOTATION).cloned();
    let mut deletion_times = BTreeSet::new();
    while deletion_times.len() < 3 {
        harness.run_once(end, &|_| true);
        let selector = json!({"ray.io/cluster": old});
        harness.patch_as_other_client("Service", "chat-serve-svc", json!({"spec": {"selector": selector}}));
        deletion_times.extend(deletion_time(&harness));
        assert!(harness.now < end, "its deletion is put off once per delay: {deletion_times:?}");
    }

    // when that client stops, then the old cluster goes after the delay.
    harness.run_for(50);
    assert_eq!(harness.live_clusters().len(), 2);
    harness.run_for(20);
    assert_ne!(harness.live_clusters(), [old]);
    assert_eq!(harness.live_clusters().len(), 1);
}

#[test]
fn upgrade_can_be_paused_and_resumed() {
    let mut harness = running_service(50, 25, 5);
    upgrade_until(&mut harness, "75/100 25/50");
    harness.patch_service(json!({"metadata": {"annotations": {"sluice.dev/upgrade": "Paused"}}}));
    assert_eq!(run_and_check(&mut harness, 60), ["75/100 25/50"]);
    let message = harness.message("UpgradeInProgress");
    assert!(message.contains("it is paused by annotation sluice.dev/upgrade"), "{message}");

    harness.patch_service(json!({"metadata": {"annotations": {"sluice.dev/upgrade": null}}}));
    assert_eq!(run_and_check(&mut harness, 60).last().map(String::as_str), Some("100/100"));
}

#[test]
fn promotion_applies_to_one_upgrade_only() {
    let mut harness = running_service(50, 1, 600);
    harness.patch_service(json!({"metadata": {"annotations": {"sluice.dev/bake-seconds": "3600"}}}));
    upgrade_until(&mut harness, "99/100 1/50");
    harness.patch_service(json!({"metadata": {"annotations": {"sluice.dev/upgrade": "Promote"}}}));

    let seen = run_and_check(&mut harness, 60);

    let expected =
        ["99/100 1/50", "50/100 50/50", "50/50 50/50", "50/50 50/100", "0/50 100/100", "0/0 100/100", "100/100"];
    assert_eq!(seen, expected);
    let service = harness.service().expect("the service");
    assert!(!service.annotations().contains_key("sluice.dev/upgrade"));
}

#[rstest]
#[case::before_traffic("100/100 0/50")]
#[case::early("75/100 25/50")]
#[case::late("25/50 75/100")]
fn upgrade_with_failing_applications_is_rolled_back_and_not_retried(#[case] at: &str) {
    let mut harness = running_service(50, 25, 5);
    harness.patch_service(json!({"metadata": {"annotations": {"sluice.dev/rollback": "Stepped"}}}));
    let old = harness.live_clusters()[0].clone();
    upgrade_until(&mut harness, at);
    let pending = harness.active_and_pending().1.expect("it is pending");
    harness.failing_clusters.insert(pending.clone());

    // When its applications fail, then all traffic returns without a pause,
    let seen = run_and_check(&mut harness, 20);
    assert_eq!(seen.last().map(String::as_str), Some("100/100"), "{seen:?}");
    let why = "application one is DEPLOY_FAILED: no module named one";
    assert_eq!(harness.event_count("UpgradeFailed"), 1);
    assert!(
        harness.message("sluice.dev/UpgradeBlocked").contains(why),
        "{}",
        harness.message("sluice.dev/UpgradeBlocked")
    );

    // and the same upgrade is not retried, not even after a restart,
    harness.restart();
    harness.run_for(100);
    assert_eq!(harness.live_clusters(), std::slice::from_ref(&old));
    assert_eq!(harness.condition("sluice.dev/UpgradeBlocked"), state("True", "UpgradeFailed"));

    // but a different one is: here, the same cluster with another configuration.
    harness.failing_clusters.clear();
    let other =
        incremental_service(50, 25, 5)["spec"]["serveConfigV2"].as_str().expect("a text").replace("one:app", "two:app");
    harness.patch_service(json!({"spec": {"serveConfigV2": other}}));
    harness.run_for(150);
    assert_ne!(harness.live_clusters(), [old]);
    assert_eq!(harness.condition("sluice.dev/UpgradeBlocked"), None);
    assert!(!harness.service().expect("the service").annotations().contains_key("sluice.dev/upgrade-failed"));
}

#[test]
fn failed_upgrade_drops_the_promotion() {
    let mut harness = running_service(50, 25, 5);
    upgrade_until(&mut harness, "75/100 25/50");
    harness.patch_service(json!({"metadata": {"annotations": {"sluice.dev/upgrade": "Promote"}}}));
    let pending = harness.active_and_pending().1.expect("it is pending");
    harness.failing_clusters.insert(pending);
    harness.run_for(30);

    let service = harness.service().expect("the service");
    assert!(service.annotations().contains_key("sluice.dev/upgrade-failed"));
    assert!(!service.annotations().contains_key("sluice.dev/upgrade"));
}

#[test]
fn old_cluster_keeps_its_capacity_during_the_bake_time() {
    let mut harness = running_service(50, 50, 1);
    harness.patch_service(json!({"metadata": {"annotations": {"sluice.dev/bake-seconds": "120"}}}));
    upgrade_until(&mut harness, "0/50 100/100");
    assert_eq!(run_and_check(&mut harness, 110), ["0/50 100/100"]);
    assert_eq!(run_and_check(&mut harness, 20), ["0/50 100/100", "0/0 100/100", "100/100"]);
}

#[test]
fn b33_rolled_back_upgrade_resumes_when_requested_again() {
    let mut harness = running_service(50, 25, 5);
    upgrade_until(&mut harness, "25/50 75/100");
    let pending = harness.active_and_pending().1;
    harness.patch_service(ray_version_patch("2.53.0"));
    run_until(&mut harness, "50/100 50/50");
    harness.patch_service(ray_version_patch("2.54.0"));
    run_and_check(&mut harness, 60);
    assert_eq!(harness.active_and_pending(), (pending, None));
}

#[test]
fn b33_third_version_starts_once_the_rollback_is_complete() {
    let mut harness = running_service(50, 25, 5);
    let old = harness.live_clusters()[0].clone();
    upgrade_until(&mut harness, "50/50 50/50");
    let second = harness.active_and_pending().1.expect("it is pending");

    harness.patch_service(ray_version_patch("2.55.0"));
    harness.run_for(1);
    assert_eq!(harness.condition("RollbackInProgress"), state("True", "DesiredClusterSpecChanged"));
    run_and_check(&mut harness, 100);

    let third = harness.active_and_pending().0.expect("it serves");
    assert!(third != old && third != second);
    harness.run_for(100);
    assert_eq!(harness.live_clusters(), [third]);
}

#[test]
fn b34_pending_cluster_without_endpoints_loses_its_traffic() {
    let mut harness = running_service(50, 25, 5);
    let old = harness.live_clusters()[0].clone();
    upgrade_until(&mut harness, "25/50 75/100");
    let pending = harness.active_and_pending().1.expect("it is pending");
    harness.lose_head(&pending);
    harness.pods_start = false;
    harness.clusters_without_endpoints.insert(pending);
    harness.patch_service(ray_version_patch("2.53.0"));
    harness.run_for(2);
    assert_eq!(harness.traffic_share(&old), 100, "the cluster with endpoints receives all traffic");
    harness.pods_start = true;
    harness.run_for(60);
    assert_eq!(harness.active_and_pending(), (Some(old), None));
}

/// Shares of an upgrade with a surge of 50 percent and steps of 25 percent.
const STEPS: [&str; 11] = [
    "100/100",
    "100/100 0/0",
    "100/100 0/50",
    "75/100 25/50",
    "50/100 50/50",
    "50/50 50/50",
    "50/50 50/100",
    "25/50 75/100",
    "0/50 100/100",
    "0/0 100/100",
    "100/100",
];

/// Runs an upgrade to completion, with a restart after `after` writes. Returns its steps and the
/// number of writes.
fn upgrade_with_restart(after: usize) -> (Vec<String>, usize) {
    let mut harness = running_service(50, 25, 5);
    harness.patch_service(ray_version_patch("2.54.0"));
    let end = harness.now + SignedDuration::from_secs(60);
    let (mut seen, mut written) = (vec![recorded_shares(&harness)], 0);
    while harness.now < end {
        let is_before_restart = written < after;
        let planned = harness.run_once(end, &|index| !is_before_restart || written + index < after);
        harness.check_rollout_invariants();
        written += planned;
        if is_before_restart && written >= after {
            harness.restart();
        }
        let now = recorded_shares(&harness);
        if seen.last() != Some(&now) {
            seen.push(now);
        }
    }
    (seen, written)
}

#[test]
fn upgrade_takes_the_same_steps_after_a_restart_at_any_write() {
    let (steps, writes) = upgrade_with_restart(0);
    assert_eq!(steps, STEPS);
    for after in 1..writes {
        assert_eq!(upgrade_with_restart(after).0, STEPS, "after {after} of {writes} writes");
    }
}

#[test]
fn upgrade_in_progress_is_finished_when_the_strategy_changes() {
    let mut harness = running_service(50, 25, 5);
    upgrade_until(&mut harness, "75/100 25/50");
    harness.patch_service(json!({"spec": {"upgradeStrategy": {"type": "NewCluster", "clusterUpgradeOptions": null}}}));
    harness.run_for(60);
    let route = harness.object("HTTPRoute", "chat-httproute").expect("a route");
    assert_eq!(route["spec"]["rules"][0]["backendRefs"][0]["name"], "chat-serve-svc");
    assert_eq!(recorded_shares(&harness), "");
    assert_eq!(harness.active_and_pending().1, None);
}
