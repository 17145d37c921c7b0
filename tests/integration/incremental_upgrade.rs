//! Incremental upgrades, gated by quota.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;
use serde_json::json;
use sluice_api::condition;
use sluice_api::quantity::Amount;

use crate::resource_change_fixture::{Fixture, RayOperatorKind};
use sluice_testkit::fake_dashboards::{last_serve_config, set_dashboard_behavior};
use sluice_testkit::fake_gateway::{
    FakeGatewayController, IncrementalOptions, incremental_service, rollout_positions, route_weights,
};
use sluice_testkit::history::{Change, Object, Recorder, State};
use sluice_testkit::objects::{QUEUE_SAMPLE, reserved_amount};
use sluice_testkit::{TestEnv, eventually_or_err, invariants};

const OPTIONS: IncrementalOptions = IncrementalOptions { surge: 50, step_size: 25 };

/// Expected rollout positions: capacity and traffic of the active and of the pending cluster, in
/// percent.
const ROLLOUT: [&str; 12] = [
    "- 100/0",
    "100/100 -",
    "100/100 0/0",
    "100/100 50/0",
    "100/75 50/25",
    "100/50 50/50",
    "50/50 50/50",
    "50/50 100/50",
    "50/25 100/75",
    "50/0 100/100",
    "0/0 100/100",
    "100/100 -",
];

/// Waits until the HTTPRoute has these weights, in percent.
async fn wait_for_weights(env: &TestEnv, wanted: &[(&str, i32)]) {
    let wanted: BTreeMap<String, i32> = wanted.iter().map(|(name, share)| ((*name).to_owned(), *share)).collect();
    eventually_or_err(&format!("the weights are {wanted:?}"), async || {
        let actual = env.route_weights().await;
        if actual == wanted { Ok(()) } else { Err(format!("but {actual:?}")) }
    })
    .await;
}

/// Waits until the message of the condition UpgradeInProgress contains these words.
async fn reports_progress(env: &TestEnv, words: &str) {
    eventually_or_err(&format!("UpgradeInProgress reports: {words}"), async || {
        let status = env.get_service().await.status.unwrap_or_default();
        let message = condition::get(&status.conditions, "UpgradeInProgress").map(|found| found.message.clone());
        if message.as_ref().is_some_and(|message| message.contains(words)) {
            Ok(())
        } else {
            Err(format!("but {message:?}"))
        }
    })
    .await;
}

/// Returns the weights of the HTTPRoute over time, without consecutive duplicates.
fn weights_over_time(history: &[Change]) -> Vec<BTreeMap<String, i32>> {
    let routes = history.iter().filter_map(|change| match &change.object {
        Object::HTTPRoute(route) if !change.deleted => Some(route_weights(route)),
        _ => None,
    });
    let mut routed: Vec<_> = routes.collect();
    routed.dedup();
    routed
}

/// Returns the maximum number of simultaneous pods, and of simultaneous workers.
fn max_pods(history: &[Change]) -> (usize, usize) {
    let mut state = State::default();
    let counts = history.iter().map(|change| {
        state.apply(change);
        let is_worker = |pod: &&k8s_openapi::api::core::v1::Pod| {
            pod.labels().get("ray.io/node-type").is_some_and(|kind| kind == "worker")
        };
        (state.pods.len(), state.pods.values().filter(is_worker).count())
    });
    counts.fold((0, 0), |most, now| (most.0.max(now.0), most.1.max(now.1)))
}

/// Returns the maximum CPU reservation in the status of the ClusterQueue.
fn max_reserved(history: &[Change]) -> String {
    let amounts = history.iter().filter_map(|change| match &change.object {
        Object::ClusterQueue(queue) => Some(reserved_amount(queue, "cpu")),
        _ => None,
    });
    let amounts = amounts.map(|amount| Amount::from_quantity("cpu", &Quantity(amount)).expect("an amount"));
    amounts.max().unwrap_or_default().display("cpu").to_string()
}

#[tokio::test]
async fn incremental_upgrade_takes_all_steps_within_its_surge() {
    // Given a service that requests 2500m CPU, in a queue with another 1500m for a head and half of
    // the workers,
    let fixture = Fixture::start_in(TestEnv::start_with_gateway_api().await, RayOperatorKind::Ours).await;
    let env = &fixture.env;
    let _gateways = FakeGatewayController::start(env).await;
    env.set_quota("4", "8Gi").await;
    env.apply(&incremental_service(OPTIONS).to_string()).await.expect("the service");
    let first = env.wait_until_serving("2.52.0").await;
    wait_for_weights(env, &[(&first, 100)]).await;
    fixture.wait_for_pods(&first, 0, 5).await;

    // when it is upgraded,
    env.set_ray_version("2.53.0").await;
    let second = env.wait_until_serving("2.53.0").await;
    env.wait_for_only_cluster(&second).await;
    env.wait_for_reserved_cpu("2500m").await;
    fixture.wait_for_pods(&second, 0, 5).await;
    wait_for_weights(env, &[(&second, 100)]).await;

    // then the status and the route went through all steps in order,
    let history = fixture.check_history().await;
    assert_eq!(rollout_positions(&history), ROLLOUT);
    let shares = |of_second: i32| BTreeMap::from([(first.clone(), 100 - of_second), (second.clone(), of_second)]);
    let mut expected = vec![BTreeMap::from([(first.clone(), 100)])];
    expected.extend([0, 25, 50, 75, 100].map(shares));
    expected.push(BTreeMap::from([(second.clone(), 100)]));
    assert_eq!(weights_over_time(&history), expected);
    // the surge was never exceeded,
    assert_eq!(max_pods(&history), (8, 6));
    assert_eq!(max_reserved(&history), "4");
    // and the new active cluster has no target capacity.
    let config = last_serve_config(env, &second).await.expect("a configuration");
    assert!(config["applications"].is_array() && config.get("target_capacity").is_none(), "{config}");
}

#[tokio::test]
async fn incremental_upgrade_without_quota_for_its_surge_waits_and_resumes() {
    // Given a service whose quota is one milli-CPU short of its surge,
    let env = TestEnv::start_with_gateway_api().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let _gateways = FakeGatewayController::start(&env).await;
    env.apply(QUEUE_SAMPLE).await.expect("the queue");
    let manager = env.manager().await;
    env.set_quota("3999m", "8Gi").await;
    env.apply(&incremental_service(OPTIONS).to_string()).await.expect("the service");
    let first = env.wait_until_serving("2.52.0").await;
    wait_for_weights(&env, &[(&first, 100)]).await;

    // when it is upgraded, then it keeps serving and reports the shortfall;
    env.set_ray_version("2.53.0").await;
    let (second, message) = env.wait_for_pending_upgrade().await;
    assert!(message.contains("nominalQuota is 4") && message.contains("3999m"), "{message}");
    let status = env.get_service().await.status.unwrap_or_default();
    assert!(
        condition::is_true(&status.conditions, "Ready") && condition::is_true(&status.conditions, "UpgradeInProgress")
    );
    assert!(env.pods_of(&second).await.is_empty());
    assert_eq!(env.route_weights().await.get(&first), Some(&100));

    // and once there is enough, a restarted manager continues,
    manager.kill().await;
    set_dashboard_behavior(&env, &json!({"runningReplicas": 2})).await;
    let manager = env.manager().await;
    env.set_quota("4", "8Gi").await;
    reports_progress(&env, "waiting for replicas of the pending cluster that can serve 75% of the traffic").await;
    wait_for_weights(&env, &[(&first, 50), (&second, 50)]).await;

    // as does the next one, from the middle.
    manager.kill().await;
    let _manager = env.manager().await;
    set_dashboard_behavior(&env, &json!({})).await;
    assert_eq!(env.wait_until_serving("2.53.0").await, second);
    env.wait_for_only_cluster(&second).await;
    env.wait_for_reserved_cpu("2500m").await;
    env.wait_for_single_slice().await;

    let history = recorder.history().await;
    let breaches = invariants::violations(&history);
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
    assert_eq!(rollout_positions(&history), ROLLOUT);
    assert_eq!(max_pods(&history), (8, 6));
    assert_eq!(max_reserved(&history), "4");
}
