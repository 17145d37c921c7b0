//! Upgrades in steps, from the change of the spec to the end.

mod adoption;
mod ill;
mod leaving;
mod nonsense;

use std::collections::BTreeSet;

use jiff::SignedDuration;
use kube_core::ResourceExt;
use rstest::rstest;
use serde_json::{Value, json};

use super::workers::FULL_REPLICAS_ANNOTATION;
use crate::tests::stage::Stage;
use crate::tests::{chat, state, version};
use sluice_api::ray::RayServiceStatus;

/// A service with four workers and four replicas that is upgraded in steps.
fn service(surge: i32, step: i32, interval: i32) -> Value {
    let mut service = chat();
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

fn serving(surge: i32, step: i32, interval: i32) -> Stage {
    let mut stage = Stage::new(service(surge, step, interval));
    stage.play(60);
    assert_eq!(stage.condition("Ready"), state("True", "NonZeroServeEndpoints"));
    stage
}

/// Capacity and traffic of the active and the pending cluster, as the status has them.
fn shares(stage: &Stage) -> String {
    let status = stage.service().and_then(|service| service.status).unwrap_or_default();
    let share = |entry: Option<RayServiceStatus>| {
        let entry = entry?;
        Some(format!("{}/{}", entry.traffic_routed_percent?, entry.target_capacity?))
    };
    let shares = [share(status.active_service_status), share(status.pending_service_status)];
    shares.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// Plays for some seconds, and checks at every beat what must hold. Returns every change of the shares.
fn watched(stage: &mut Stage, seconds: i64) -> Vec<String> {
    let end = stage.now + SignedDuration::from_secs(seconds);
    let mut seen = vec![shares(stage)];
    while stage.now < end {
        stage.beat(end, &|_| true);
        stage.check_shares();
        let now = shares(stage);
        if seen.last() != Some(&now) {
            seen.push(now);
        }
    }
    seen
}

#[test]
fn a_service_is_reached_by_a_gateway_from_the_start() {
    let stage = serving(50, 25, 5);
    let active = stage.living()[0].clone();
    let gateway = stage.object("Gateway", "chat-gateway").expect("a Gateway");
    assert_eq!(gateway["spec"]["gatewayClassName"], "traefik");
    assert_eq!(gateway["spec"]["listeners"], json!([{"name": "http", "protocol": "HTTP", "port": 80}]));
    let route = stage.object("HTTPRoute", "chat-httproute").expect("a route");
    assert_eq!(route["spec"]["parentRefs"], json!([{"name": "chat-gateway", "namespace": "ml"}]));
    let backend = json!({"name": format!("{active}-serve-svc"), "namespace": "ml", "port": 8000, "weight": 100});
    let everything = json!([{"path": {"type": "PathPrefix", "value": "/"}}]);
    assert_eq!(route["spec"]["rules"], json!([{"matches": everything, "backendRefs": [backend]}]));
    let selector = &stage.object("Service", &format!("{active}-serve-svc")).expect("its Service")["spec"]["selector"];
    assert_eq!(*selector, json!({"ray.io/cluster": active, "ray.io/serve": "true"}));
    assert_eq!(shares(&stage), "100/100");
    assert_eq!(stage.leads_to(), Some(active), "clients inside the cluster have their Service");
}

#[test]
fn b27_an_upgrade_goes_step_by_step() {
    let mut stage = serving(50, 25, 5);
    let old = stage.living()[0].clone();

    stage.edit(version("2.54.0"));
    let seen = watched(&mut stage, 60);

    assert_eq!(seen, STEPS);
    let new = stage.leads_to().expect("it serves");
    assert_ne!(new, old);
    assert_eq!(stage.named(), (Some(new.clone()), None));
    assert_eq!(
        stage.applied(&new).last().expect("a configuration").get("target_capacity"),
        None,
        "no limit stays behind"
    );
    assert_eq!(stage.told("Promoted"), 1);

    stage.play(70);
    assert_eq!(stage.living(), [new]);
    assert_eq!(stage.served_by.len(), 2);
}

#[rstest]
#[case::halves(50, 25, 5, 6)]
#[case::quarters(25, 5, 10, 5)]
#[case::all_at_once(100, 100, 1, 8)]
fn workers_follow_the_capacity(#[case] surge: i32, #[case] step: i32, #[case] interval: i32, #[case] most: usize) {
    let mut stage = serving(surge, step, interval);
    stage.edit(version("2.54.0"));
    let end = stage.now + SignedDuration::from_secs(400);
    let mut seen = BTreeSet::new();
    while stage.now < end {
        stage.beat(end, &|_| true);
        if stage.living().len() == 2 && stage.named().1.is_some() {
            seen.insert(stage.workers_there());
        }
    }
    assert_eq!(seen.last(), Some(&most), "{seen:?}");
    let new = stage.cluster(&stage.living()[0]);
    assert_eq!(new.spec.worker_group_specs[0].replicas, Some(4));
    assert!(!new.annotations().contains_key(FULL_REPLICAS_ANNOTATION));
}

#[test]
fn traffic_follows_replicas_that_run() {
    let mut stage = serving(50, 25, 5);
    stage.deploy = SignedDuration::from_secs(40);
    stage.edit(version("2.54.0"));
    watched(&mut stage, 30);
    assert_eq!(shares(&stage), "100/100 0/50");
    assert!(
        stage.message("UpgradeInProgress").contains("can take 25 % of the traffic"),
        "{}",
        stage.message("UpgradeInProgress")
    );

    watched(&mut stage, 45);
    assert_eq!(shares(&stage), "50/50 50/100", "the next replicas take their time too");
    watched(&mut stage, 60);
    assert_eq!(shares(&stage), "100/100");
}

#[test]
fn b31_nothing_moves_while_nobody_lets_requests_in() {
    let mut stage = Stage::new(service(50, 25, 5));
    stage.lets_in = false;
    stage.play(60);
    stage.edit(version("2.54.0"));
    stage.play(30);
    assert_eq!(shares(&stage), "100/100 0/0");
    assert!(
        stage.message("UpgradeInProgress").contains("there is no GatewayClass traefik"),
        "{}",
        stage.message("UpgradeInProgress")
    );

    stage.lets_in = true;
    watched(&mut stage, 60);
    assert_eq!(shares(&stage), "100/100");
}

#[test]
fn the_next_capacity_waits_for_pods_that_have_to_go() {
    let mut stage = serving(50, 25, 5);
    stage.workers_linger = true;
    stage.edit(version("2.54.0"));
    watched(&mut stage, 60);
    assert_eq!(shares(&stage), "50/50 50/50");
    assert!(stage.message("UpgradeInProgress").contains("are gone"), "{}", stage.message("UpgradeInProgress"));
    assert_eq!(stage.workers_there(), 6);

    stage.workers_linger = false;
    watched(&mut stage, 60);
    assert_eq!(shares(&stage), "100/100");
}

/// How far an upgrade is when it is taken back, as the status says, and how that is chosen to go.
#[rstest]
#[case::before_traffic("100/100 0/50", None, &["100/100"])]
#[case::early("75/100 25/50", None, &["100/100 0/50", "100/100"])]
#[case::in_the_middle("50/50 50/50", None, &["50/100 50/50", "100/100 0/50", "100/100"])]
#[case::late("25/50 75/100", None, &["50/50 50/100", "50/50 50/50", "50/100 50/50", "100/100 0/50", "100/100"])]
#[case::in_the_middle_by_steps(
    "50/50 50/50", Some("Stepped"), &["50/100 50/50", "75/100 25/50", "100/100 0/50", "100/100"])]
#[case::late_by_steps(
    "25/50 75/100", Some("Stepped"),
    &["50/50 50/100", "50/50 50/50", "50/100 50/50", "75/100 25/50", "100/100 0/50", "100/100"])]
#[case::at_the_end_at_once(
    "0/50 100/100", Some("Immediate"), &["50/50 50/100", "50/50 50/50", "50/100 50/50", "100/100 0/50", "100/100"])]
fn b32_an_upgrade_that_is_taken_back_ends_on_the_cluster_that_served(
    #[case] at: &str,
    #[case] rollback: Option<&str>,
    #[case] expected: &[&str],
) {
    let mut stage = serving(50, 25, 5);
    stage.edit(json!({"metadata": {"annotations": {"sluice.dev/rollback": rollback}}}));
    let old = stage.living()[0].clone();
    begin(&mut stage, at);

    stage.edit(version("2.53.0"));
    let seen = watched(&mut stage, 60);

    assert_eq!(seen[1..], *expected);
    assert_eq!(stage.named(), (Some(old.clone()), None));
    assert_eq!(stage.condition("RollbackInProgress"), None);
    stage.play(70);
    assert_eq!(stage.living(), std::slice::from_ref(&old));
    assert_eq!(stage.cluster(&old).spec.worker_group_specs[0].replicas, Some(4));
    assert_eq!(stage.applied(&old).last().expect("a configuration").get("target_capacity"), None);
}

/// Upgrades a service as far as this.
fn begin(stage: &mut Stage, until: &str) {
    stage.edit(version("2.54.0"));
    play_until(stage, until);
}

fn play_until(stage: &mut Stage, until: &str) {
    let end = stage.now + SignedDuration::from_secs(100);
    while shares(stage) != until {
        stage.beat(end, &|_| true);
        assert!(stage.now < end, "it is at {}", shares(stage));
    }
}

#[test]
fn an_upgrade_can_be_paused_and_goes_on() {
    let mut stage = serving(50, 25, 5);
    begin(&mut stage, "75/100 25/50");
    stage.edit(json!({"metadata": {"annotations": {"sluice.dev/upgrade": "Paused"}}}));
    assert_eq!(watched(&mut stage, 60), ["75/100 25/50"]);
    let told = stage.message("UpgradeInProgress");
    assert!(told.contains("it is paused by annotation sluice.dev/upgrade"), "{told}");

    stage.edit(json!({"metadata": {"annotations": {"sluice.dev/upgrade": null}}}));
    assert_eq!(watched(&mut stage, 60).last().map(String::as_str), Some("100/100"));
}

#[test]
fn an_upgrade_can_be_promoted_and_the_next_one_is_not_meant() {
    let mut stage = serving(50, 1, 600);
    stage.edit(json!({"metadata": {"annotations": {"sluice.dev/bake-seconds": "3600"}}}));
    begin(&mut stage, "99/100 1/50");
    stage.edit(json!({"metadata": {"annotations": {"sluice.dev/upgrade": "Promote"}}}));

    let seen = watched(&mut stage, 60);

    let expected =
        ["99/100 1/50", "50/100 50/50", "50/50 50/50", "50/50 50/100", "0/50 100/100", "0/0 100/100", "100/100"];
    assert_eq!(seen, expected);
    let service = stage.service().expect("the service");
    assert!(!service.annotations().contains_key("sluice.dev/upgrade"));
}

#[rstest]
#[case::before_traffic("100/100 0/50")]
#[case::early("75/100 25/50")]
#[case::late("25/50 75/100")]
fn an_upgrade_whose_applications_fail_goes_back_and_is_not_tried_again(#[case] at: &str) {
    let mut stage = serving(50, 25, 5);
    stage.edit(json!({"metadata": {"annotations": {"sluice.dev/rollback": "Stepped"}}}));
    let old = stage.living()[0].clone();
    begin(&mut stage, at);
    let pending = stage.named().1.expect("it is pending");
    stage.failing.insert(pending.clone());

    // When its applications fail, then all requests go back without a pause,
    let seen = watched(&mut stage, 20);
    assert_eq!(seen.last().map(String::as_str), Some("100/100"), "{seen:?}");
    let why = "application one is DEPLOY_FAILED: no module named one";
    assert_eq!(stage.told("UpgradeFailed"), 1);
    assert!(stage.message("sluice.dev/UpgradeBlocked").contains(why), "{}", stage.message("sluice.dev/UpgradeBlocked"));

    // and the same is not tried again, also not by another process,
    stage.restart();
    stage.play(100);
    assert_eq!(stage.living(), std::slice::from_ref(&old));
    assert_eq!(stage.condition("sluice.dev/UpgradeBlocked"), state("True", "UpgradeFailed"));

    // but something else is: here, the same cluster with another configuration.
    stage.failing.clear();
    let other = service(50, 25, 5)["spec"]["serveConfigV2"].as_str().expect("a text").replace("one:app", "two:app");
    stage.edit(json!({"spec": {"serveConfigV2": other}}));
    stage.play(150);
    assert_ne!(stage.living(), [old]);
    assert_eq!(stage.condition("sluice.dev/UpgradeBlocked"), None);
    assert!(!stage.service().expect("the service").annotations().contains_key("sluice.dev/upgrade-failed"));
}

#[test]
fn an_upgrade_that_has_failed_is_not_promoted_any_more() {
    let mut stage = serving(50, 25, 5);
    begin(&mut stage, "75/100 25/50");
    stage.edit(json!({"metadata": {"annotations": {"sluice.dev/upgrade": "Promote"}}}));
    let pending = stage.named().1.expect("it is pending");
    stage.failing.insert(pending);
    stage.play(30);

    let service = stage.service().expect("the service");
    assert!(service.annotations().contains_key("sluice.dev/upgrade-failed"));
    assert!(!service.annotations().contains_key("sluice.dev/upgrade"));
}

#[test]
fn the_old_cluster_keeps_what_it_has_while_the_new_one_bakes() {
    let mut stage = serving(50, 50, 1);
    stage.edit(json!({"metadata": {"annotations": {"sluice.dev/bake-seconds": "120"}}}));
    begin(&mut stage, "0/50 100/100");
    assert_eq!(watched(&mut stage, 110), ["0/50 100/100"]);
    assert_eq!(watched(&mut stage, 20), ["0/50 100/100", "0/0 100/100", "100/100"]);
}

#[test]
fn b33_an_upgrade_that_was_taken_back_goes_on_when_it_is_wanted_again() {
    let mut stage = serving(50, 25, 5);
    begin(&mut stage, "25/50 75/100");
    let pending = stage.named().1;
    stage.edit(version("2.53.0"));
    play_until(&mut stage, "50/100 50/50");
    stage.edit(version("2.54.0"));
    watched(&mut stage, 60);
    assert_eq!(stage.named(), (pending, None));
}

#[test]
fn b33_a_third_version_comes_once_the_active_cluster_has_everything_back() {
    let mut stage = serving(50, 25, 5);
    let old = stage.living()[0].clone();
    begin(&mut stage, "50/50 50/50");
    let second = stage.named().1.expect("it is pending");

    stage.edit(version("2.55.0"));
    stage.play(1);
    assert_eq!(stage.condition("RollbackInProgress"), state("True", "DesiredClusterSpecChanged"));
    watched(&mut stage, 100);

    let third = stage.named().0.expect("it serves");
    assert!(third != old && third != second);
    stage.play(100);
    assert_eq!(stage.living(), [third]);
}

#[test]
fn b34_a_pending_cluster_that_takes_nothing_any_more_is_left() {
    let mut stage = serving(50, 25, 5);
    let old = stage.living()[0].clone();
    begin(&mut stage, "25/50 75/100");
    let pending = stage.named().1.expect("it is pending");
    stage.lose_head(&pending);
    stage.pods_start = false;
    stage.unreachable.insert(pending);
    stage.edit(version("2.53.0"));
    stage.play(2);
    assert_eq!(stage.share(&old), 100, "whoever can answer does");
    stage.pods_start = true;
    stage.play(60);
    assert_eq!(stage.named(), (Some(old), None));
}

/// All steps of an upgrade with a surge of a half and steps of a quarter.
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

/// Plays an upgrade to its end; after so many writes a new process takes over. Returns its steps, and how many writes there were.
fn interrupted(after: usize) -> (Vec<String>, usize) {
    let mut stage = serving(50, 25, 5);
    stage.edit(version("2.54.0"));
    let end = stage.now + SignedDuration::from_secs(60);
    let (mut seen, mut written) = (vec![shares(&stage)], 0);
    while stage.now < end {
        let is_last = written < after;
        let planned = stage.beat(end, &|index| !is_last || written + index < after);
        stage.check_shares();
        written += planned;
        if is_last && written >= after {
            stage.restart();
        }
        let now = shares(&stage);
        if seen.last() != Some(&now) {
            seen.push(now);
        }
    }
    (seen, written)
}

#[test]
fn an_upgrade_goes_the_same_way_after_whichever_write_it_is_interrupted() {
    let (steps, writes) = interrupted(0);
    assert_eq!(steps, STEPS);
    for after in 1..writes {
        assert_eq!(interrupted(after).0, STEPS, "after {after} of {writes} writes");
    }
}

#[test]
fn a_service_that_is_not_to_be_upgraded_in_steps_any_more_finishes_what_was_begun() {
    let mut stage = serving(50, 25, 5);
    begin(&mut stage, "75/100 25/50");
    stage.edit(json!({"spec": {"upgradeStrategy": {"type": "NewCluster", "clusterUpgradeOptions": null}}}));
    stage.play(60);
    let route = stage.object("HTTPRoute", "chat-httproute").expect("a route");
    assert_eq!(route["spec"]["rules"][0]["backendRefs"][0]["name"], "chat-serve-svc");
    assert_eq!(shares(&stage), "");
    assert_eq!(stage.named().1, None);
}
