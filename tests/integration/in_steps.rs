//! Incremental upgrades, gated by quota.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;
use serde_json::json;
use sluice_api::condition;
use sluice_api::quantity::Amount;

use crate::stage::{Operator, Stage};
use sluice_testkit::dashboards::{last_config, steer};
use sluice_testkit::gateways::{PlayedGateways, Steps, course, service_in_steps, weights};
use sluice_testkit::history::{Change, Object, Recorder, State};
use sluice_testkit::objects::{QUEUE_SAMPLE, reserved};
use sluice_testkit::{TestEnv, eventually_or_tell, invariants};

const STEPS: Steps = Steps { surge: 50, step: 25 };

/// Expected rollout positions: capacity and traffic of the active and of the pending cluster, in
/// percent.
const COURSE: [&str; 12] = [
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
async fn shares_are(env: &TestEnv, wanted: &[(&str, i32)]) {
    let wanted: BTreeMap<String, i32> = wanted.iter().map(|(name, share)| ((*name).to_owned(), *share)).collect();
    eventually_or_tell(&format!("the weights are {wanted:?}"), async || {
        let actual = env.weights().await;
        if actual == wanted { Ok(()) } else { Err(format!("but {actual:?}")) }
    })
    .await;
}

/// Waits until the message of the condition UpgradeInProgress contains these words.
async fn reports_progress(env: &TestEnv, words: &str) {
    eventually_or_tell(&format!("UpgradeInProgress reports: {words}"), async || {
        let status = env.service().await.status.unwrap_or_default();
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
fn routed(history: &[Change]) -> Vec<BTreeMap<String, i32>> {
    let routes = history.iter().filter_map(|change| match &change.object {
        Object::HTTPRoute(route) if !change.gone => Some(weights(route)),
        _ => None,
    });
    let mut routed: Vec<_> = routes.collect();
    routed.dedup();
    routed
}

/// Returns the maximum number of simultaneous pods, and of simultaneous workers.
fn most_pods(history: &[Change]) -> (usize, usize) {
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
fn most_reserved(history: &[Change]) -> String {
    let amounts = history.iter().filter_map(|change| match &change.object {
        Object::ClusterQueue(queue) => Some(reserved(queue, "cpu")),
        _ => None,
    });
    let amounts = amounts.map(|amount| Amount::from_quantity("cpu", &Quantity(amount)).expect("an amount"));
    amounts.max().unwrap_or_default().display("cpu").to_string()
}

#[tokio::test]
async fn incremental_upgrade_takes_all_steps_within_its_surge() {
    // Given a service that requests 2500m CPU, in a queue with another 1500m for a head and half of
    // the workers,
    let stage = Stage::with(Operator::Ours).await;
    let env = &stage.env;
    let _gateways = PlayedGateways::start(env).await;
    env.set_quota("4", "8Gi").await;
    env.apply(&service_in_steps(STEPS).to_string()).await.expect("the service");
    let first = env.serves_from("2.52.0").await;
    shares_are(env, &[(&first, 100)]).await;
    stage.has_pods(&first, 0, 5).await;

    // when it is upgraded,
    env.set_ray_version("2.53.0").await;
    let second = env.serves_from("2.53.0").await;
    env.only_cluster(&second).await;
    env.reserves_cpu("2500m").await;
    stage.has_pods(&second, 0, 5).await;
    shares_are(env, &[(&second, 100)]).await;

    // then the status and the route went through all steps in order,
    let history = stage.ends().await;
    assert_eq!(course(&history), COURSE);
    let shares = |of_second: i32| BTreeMap::from([(first.clone(), 100 - of_second), (second.clone(), of_second)]);
    let mut expected = vec![BTreeMap::from([(first.clone(), 100)])];
    expected.extend([0, 25, 50, 75, 100].map(shares));
    expected.push(BTreeMap::from([(second.clone(), 100)]));
    assert_eq!(routed(&history), expected);
    // the surge was never exceeded,
    assert_eq!(most_pods(&history), (8, 6));
    assert_eq!(most_reserved(&history), "4");
    // and the new active cluster has no target capacity.
    let config = last_config(env, &second).await.expect("a configuration");
    assert!(config["applications"].is_array() && config.get("target_capacity").is_none(), "{config}");
}

#[tokio::test]
async fn incremental_upgrade_without_quota_for_its_surge_waits_and_resumes() {
    // Given a service whose quota is one milli-CPU short of its surge,
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let _gateways = PlayedGateways::start(&env).await;
    env.apply(QUEUE_SAMPLE).await.expect("the queue");
    let manager = env.manager().await;
    env.set_quota("3999m", "8Gi").await;
    env.apply(&service_in_steps(STEPS).to_string()).await.expect("the service");
    let first = env.serves_from("2.52.0").await;
    shares_are(&env, &[(&first, 100)]).await;

    // when it is upgraded, then it keeps serving and reports the shortfall;
    env.set_ray_version("2.53.0").await;
    let (second, message) = env.waits_for_quota().await;
    assert!(message.contains("nominalQuota is 4") && message.contains("3999m"), "{message}");
    let status = env.service().await.status.unwrap_or_default();
    assert!(
        condition::is_true(&status.conditions, "Ready") && condition::is_true(&status.conditions, "UpgradeInProgress")
    );
    assert!(env.pods_of(&second).await.is_empty());
    assert_eq!(env.weights().await.get(&first), Some(&100));

    // and once there is enough, a restarted manager continues,
    manager.kill().await;
    steer(&env, &json!({"runningReplicas": 2})).await;
    let manager = env.manager().await;
    env.set_quota("4", "8Gi").await;
    reports_progress(&env, "waiting for replicas of the pending cluster that can serve 75% of the traffic").await;
    shares_are(&env, &[(&first, 50), (&second, 50)]).await;

    // as does the next one, from the middle.
    manager.kill().await;
    let _manager = env.manager().await;
    steer(&env, &json!({})).await;
    assert_eq!(env.serves_from("2.53.0").await, second);
    env.only_cluster(&second).await;
    env.reserves_cpu("2500m").await;
    env.one_slice_is_left().await;

    let history = recorder.history().await;
    let breaches = invariants::breaches(&history);
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
    assert_eq!(course(&history), COURSE);
    assert_eq!(most_pods(&history), (8, 6));
    assert_eq!(most_reserved(&history), "4");
}
