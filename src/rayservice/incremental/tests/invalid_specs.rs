//! Invalid specs, during an upgrade and from the start.

use rstest::rstest;
use serde_json::{Value, json};

use super::{incremental_service, run_and_check, running_service, upgrade_until};
use crate::tests::harness::Harness;
use crate::tests::{chat_service, ray_version_patch};

#[rstest]
#[case::zero_step(json!({"upgradeStrategy": {"clusterUpgradeOptions": {"stepSizePercent": 0}}}))]
#[case::no_options(json!({"upgradeStrategy": {"clusterUpgradeOptions": null}}))]
#[case::no_configuration(json!({"serveConfigV2": "applications: 1"}))]
fn upgrade_with_an_invalid_spec_is_frozen(#[case] invalid: Value) {
    for at in ["100/100 0/50", "75/100 25/50", "50/50 50/50", "25/50 75/100"] {
        let mut harness = running_service(50, 25, 5);
        upgrade_until(&mut harness, at);
        // The pause lets actions decided earlier complete first.
        harness.patch_service(json!({"metadata": {"annotations": {"sluice.dev/upgrade": "Paused"}}}));
        harness.run_for(10);
        let valid = json!({"spec": incremental_service(50, 25, 5)["spec"]});
        let (workers, route) = (harness.worker_count(), harness.object("HTTPRoute", "chat-httproute").cloned());

        harness.patch_service(json!({"spec": invalid, "metadata": {"annotations": {"sluice.dev/upgrade": null}}}));
        assert_eq!(run_and_check(&mut harness, 60), [at]);
        harness.restart();
        assert_eq!(run_and_check(&mut harness, 10), [at]);
        assert_eq!(harness.worker_count(), workers);
        assert_eq!(harness.object("HTTPRoute", "chat-httproute").cloned(), route);

        harness.patch_service(valid);
        harness.patch_service(ray_version_patch("2.54.0"));
        assert_eq!(run_and_check(&mut harness, 70).last().map(String::as_str), Some("100/100"));
    }
}

#[test]
fn route_is_unchanged_while_the_options_are_invalid() {
    let mut harness = running_service(50, 25, 5);
    let route = harness.object("HTTPRoute", "chat-httproute").cloned();
    harness.patch_service(json!({"spec": {"upgradeStrategy": {"clusterUpgradeOptions": {"stepSizePercent": 0}}}}));
    assert_eq!(run_and_check(&mut harness, 20), ["100/100"]);
    assert_eq!(harness.object("HTTPRoute", "chat-httproute").cloned(), route);
}

#[test]
fn target_capacity_is_rejected_for_incremental_upgrades_only() {
    let config = "{applications: [{name: one, import_path: one:app}], target_capacity: 50}";
    let mut incremental = incremental_service(50, 25, 5);
    incremental["spec"]["serveConfigV2"] = json!(config);
    let mut harness = Harness::new(incremental);
    harness.run_for(10);
    let message = harness.message("Ready");
    assert!(message.contains("spec.serveConfigV2: target_capacity must not be set"), "{message}");
    assert!(harness.live_clusters().is_empty());

    let mut non_incremental = chat_service();
    non_incremental["spec"]["serveConfigV2"] = json!(config);
    let mut harness = Harness::new(non_incremental);
    harness.run_for(60);
    let applied = harness.applied_configs(&harness.live_clusters()[0]);
    assert_eq!(applied.last().and_then(|config| config["target_capacity"].as_u64()), Some(50));
}
