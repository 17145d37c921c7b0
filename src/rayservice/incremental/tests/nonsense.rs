//! Invalid specs, during an upgrade and from the start.

use rstest::rstest;
use serde_json::{Value, json};

use super::{begin, service, serving, watched};
use crate::tests::stage::Stage;
use crate::tests::{chat, version};

#[rstest]
#[case::zero_step(json!({"upgradeStrategy": {"clusterUpgradeOptions": {"stepSizePercent": 0}}}))]
#[case::no_options(json!({"upgradeStrategy": {"clusterUpgradeOptions": null}}))]
#[case::no_configuration(json!({"serveConfigV2": "applications: 1"}))]
fn upgrade_with_an_invalid_spec_is_frozen(#[case] invalid: Value) {
    for at in ["100/100 0/50", "75/100 25/50", "50/50 50/50", "25/50 75/100"] {
        let mut stage = serving(50, 25, 5);
        begin(&mut stage, at);
        // The pause lets actions decided earlier complete first.
        stage.edit(json!({"metadata": {"annotations": {"sluice.dev/upgrade": "Paused"}}}));
        stage.play(10);
        let valid = json!({"spec": service(50, 25, 5)["spec"]});
        let (workers, route) = (stage.workers_there(), stage.object("HTTPRoute", "chat-httproute").cloned());

        stage.edit(json!({"spec": invalid, "metadata": {"annotations": {"sluice.dev/upgrade": null}}}));
        assert_eq!(watched(&mut stage, 60), [at]);
        stage.restart();
        assert_eq!(watched(&mut stage, 10), [at]);
        assert_eq!(stage.workers_there(), workers);
        assert_eq!(stage.object("HTTPRoute", "chat-httproute").cloned(), route);

        stage.edit(valid);
        stage.edit(version("2.54.0"));
        assert_eq!(watched(&mut stage, 70).last().map(String::as_str), Some("100/100"));
    }
}

#[test]
fn route_is_unchanged_while_the_options_are_invalid() {
    let mut stage = serving(50, 25, 5);
    let route = stage.object("HTTPRoute", "chat-httproute").cloned();
    stage.edit(json!({"spec": {"upgradeStrategy": {"clusterUpgradeOptions": {"stepSizePercent": 0}}}}));
    assert_eq!(watched(&mut stage, 20), ["100/100"]);
    assert_eq!(stage.object("HTTPRoute", "chat-httproute").cloned(), route);
}

#[test]
fn target_capacity_is_rejected_for_incremental_upgrades_only() {
    let config = "{applications: [{name: one, import_path: one:app}], target_capacity: 50}";
    let mut incremental = service(50, 25, 5);
    incremental["spec"]["serveConfigV2"] = json!(config);
    let mut stage = Stage::new(incremental);
    stage.play(10);
    let message = stage.message("Ready");
    assert!(message.contains("spec.serveConfigV2: target_capacity must not be set"), "{message}");
    assert!(stage.living().is_empty());

    let mut non_incremental = chat();
    non_incremental["spec"]["serveConfigV2"] = json!(config);
    let mut stage = Stage::new(non_incremental);
    stage.play(60);
    let applied = stage.applied(&stage.living()[0]);
    assert_eq!(applied.last().and_then(|config| config["target_capacity"].as_u64()), Some(50));
}
