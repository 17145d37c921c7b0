//! Specs that make no sense, in the middle and from the start.

use rstest::rstest;
use serde_json::{Value, json};

use super::{begin, service, serving, watched};
use crate::tests::stage::Stage;
use crate::tests::{chat, version};

#[rstest]
#[case::no_step(json!({"upgradeStrategy": {"clusterUpgradeOptions": {"stepSizePercent": 0}}}))]
#[case::no_options(json!({"upgradeStrategy": {"clusterUpgradeOptions": null}}))]
#[case::no_configuration(json!({"serveConfigV2": "applications: 1"}))]
fn an_upgrade_whose_spec_makes_no_sense_stays_as_it_is(#[case] nonsense: Value) {
    for at in ["100/100 0/50", "75/100 25/50", "50/50 50/50", "25/50 75/100"] {
        let mut stage = serving(50, 25, 5);
        begin(&mut stage, at);
        // What was decided before is still done.
        stage.edit(json!({"metadata": {"annotations": {"sluice.dev/upgrade": "Paused"}}}));
        stage.play(10);
        let right = json!({"spec": service(50, 25, 5)["spec"]});
        let (workers, route) = (stage.workers_there(), stage.object("HTTPRoute", "chat-httproute").cloned());

        stage.edit(json!({"spec": nonsense, "metadata": {"annotations": {"sluice.dev/upgrade": null}}}));
        assert_eq!(watched(&mut stage, 60), [at]);
        stage.restart();
        assert_eq!(watched(&mut stage, 10), [at]);
        assert_eq!(stage.workers_there(), workers);
        assert_eq!(stage.object("HTTPRoute", "chat-httproute").cloned(), route);

        stage.edit(right);
        stage.edit(version("2.54.0"));
        assert_eq!(watched(&mut stage, 70).last().map(String::as_str), Some("100/100"));
    }
}

#[test]
fn the_ways_in_of_a_service_whose_options_make_no_sense_stay_as_they_are() {
    let mut stage = serving(50, 25, 5);
    let route = stage.object("HTTPRoute", "chat-httproute").cloned();
    stage.edit(json!({"spec": {"upgradeStrategy": {"clusterUpgradeOptions": {"stepSizePercent": 0}}}}));
    assert_eq!(watched(&mut stage, 20), ["100/100"]);
    assert_eq!(stage.object("HTTPRoute", "chat-httproute").cloned(), route);
}

#[test]
fn a_capacity_of_its_own_is_refused_where_the_steps_set_it() {
    let config = "{applications: [{name: one, import_path: one:app}], target_capacity: 50}";
    let mut in_steps = service(50, 25, 5);
    in_steps["spec"]["serveConfigV2"] = json!(config);
    let mut stage = Stage::new(in_steps);
    stage.play(10);
    let told = stage.message("Ready");
    assert!(told.contains("spec.serveConfigV2: target_capacity is set by Sluice itself"), "{told}");
    assert!(stage.living().is_empty());

    let mut otherwise = chat();
    otherwise["spec"]["serveConfigV2"] = json!(config);
    let mut stage = Stage::new(otherwise);
    stage.play(60);
    let applied = stage.applied(&stage.living()[0]);
    assert_eq!(applied.last().and_then(|config| config["target_capacity"].as_u64()), Some(50));
}
