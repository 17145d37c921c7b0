//! Incremental upgrades: capacity and traffic move from one cluster to the other step by step.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use sluice_api::condition;

use super::fixture::{REQUESTS_PER_SECOND, configure};
use super::request_stats::{median, throughput};
use super::{RealRayFixture, SAMPLE_SIZE, START_TIMEOUT, print_summary, service};
use sluice_testkit::fake_gateway::GATEWAY_CLASS;
use sluice_testkit::load::{CompletedRequest, LoadGenerator, assert_all_answered};
use sluice_testkit::poll_until;

/// Time before the upgrade in which the baseline throughput is measured.
const BEFORE: Duration = Duration::from_secs(30);
/// Tolerated deviation in requests per step: a round of the gateway's weighted round robin may be
/// incomplete or restart when the set of pods changes.
const TOLERANCE: usize = 5;

/// Returns the service with two replicas of each deployment, upgraded incrementally.
fn service_in_steps(version: &str) -> Value {
    let mut service = service(version);
    configure(&mut service, |deployment| deployment["num_replicas"] = 2.into());
    service["metadata"]["annotations"] = json!({"sluice.dev/upgrade-deadline": "5m"});
    service["spec"]["upgradeStrategy"] = json!({
        "type": "NewClusterWithIncrementalUpgrade",
        "clusterUpgradeOptions": {
            "maxSurgePercent": 50, "stepSizePercent": 25, "intervalSeconds": 10, "gatewayClassName": GATEWAY_CLASS,
        },
    });
    service
}

/// The gateway's weight for a cluster, in percent, and the period in which it was in effect.
struct ObservedWeight {
    from: Duration,
    until: Duration,
    percent: i64,
}

/// Records the gateway's weight for a cluster until `over` completes.
async fn record_weights(
    fixture: &RealRayFixture,
    load: &LoadGenerator,
    cluster: &str,
    over: impl Future<Output = ()>,
) -> Vec<ObservedWeight> {
    let mut shares: Vec<ObservedWeight> = Vec::new();
    tokio::pin!(over);
    loop {
        let asked = load.elapsed();
        let look = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            fixture.traefik.routing_to(cluster).await
        };
        let sends = tokio::select! {
            () = &mut over => return shares,
            sends = look => sends,
        };
        // Before the first step, the gateway does not know the cluster.
        let Ok((percent, _)) = sends else { continue };
        match shares.last_mut() {
            Some(last) if last.percent == percent => last.until = asked,
            _ => shares.push(ObservedWeight { from: load.elapsed(), until: asked, percent }),
        }
    }
}

/// Asserts that a version answered its share of the requests.
///
/// # Panics
/// Panics if it did not.
fn assert_share(requests: &[CompletedRequest], share: &ObservedWeight, version: &str) {
    let within = |request: &&CompletedRequest| {
        request.scheduled_at >= share.from && request.scheduled_at + request.latency <= share.until
    };
    let sent: Vec<&CompletedRequest> = requests.iter().filter(within).collect();
    let answered = sent.iter().filter(|request| request.outcome.as_deref() == Ok(version)).count();
    println!("  at {} %: version {version} answered {answered} of {}", share.percent, sent.len());
    let expected = sent.len() * usize::try_from(share.percent).expect("a share") / 100;
    assert!(answered.abs_diff(expected) <= TOLERANCE, "{}% should go to version {version}", share.percent);
}

/// Asserts that the throughput of each step is at least 90% of the baseline before the upgrade.
///
/// The throughput of a step is the median of its windows: capacity that is missing is missing in
/// all of them, whereas a machine that stalls for a second delays the answers of one.
///
/// # Panics
/// Panics if it is not.
fn assert_throughput_stays(requests: &[CompletedRequest], begun: Duration, steps: &[ObservedWeight]) {
    // (The first windows start before the load.)
    let before = median(throughput(requests, begun.saturating_sub(BEFORE * 2 / 3)..begun));
    for step in steps {
        let windows = throughput(requests, step.from..step.until);
        let (least, typical) = (windows.iter().min().copied().unwrap_or_default(), median(windows));
        println!("  at {} %: {typical} answered in 10 s ({least} at least), and {before} before", step.percent);
        assert!(
            typical * 10 >= before * 9,
            "at {} %, {typical} answers in 10 s are less than nine tenths of {before}",
            step.percent
        );
    }
}

/// Waits until this is the only cluster.
async fn wait_for_only_cluster(fixture: &RealRayFixture, cluster: &str) {
    poll_until(START_TIMEOUT, &format!("{cluster} serves alone"), async || {
        let weights = fixture.env.route_weights().await;
        if weights == BTreeMap::from([(cluster.to_owned(), 100)]) { Ok(()) } else { Err(format!("but {weights:?}")) }
    })
    .await;
    fixture.env.wait_for_only_cluster(cluster).await;
}

pub(super) async fn requests_follow_the_weights_and_throughput_stays(fixture: &RealRayFixture) {
    // Given a service that has answered for a while, and quota for both clusters,
    let env = &fixture.env;
    env.set_quota("2", "4Gi").await;
    fixture.apply(&service_in_steps("1")).await;
    let load = fixture.start_load().await;
    let before = REQUESTS_PER_SECOND as usize * BEFORE.as_secs() as usize;
    assert_eq!(load.count_next(before).await, BTreeMap::from([("1".to_owned(), before)]));

    // when it is upgraded,
    let begun = load.elapsed();
    fixture.apply(&service_in_steps("2")).await;
    let second = env.wait_for_pending_cluster().await;
    let shares = record_weights(fixture, &load, &second, wait_for_only_cluster(fixture, &second)).await;
    assert_eq!(load.count_next(SAMPLE_SIZE).await, BTreeMap::from([("2".to_owned(), SAMPLE_SIZE)]));

    // then no request fails, each step answers its share, and throughput stays.
    let requests = load.stop().await;
    print_summary("Incremental upgrade", &requests);
    assert_all_answered(&requests);
    let steps: Vec<i64> = shares.iter().map(|share| share.percent).collect();
    assert_eq!(steps, [0, 25, 50, 75, 100]);
    for share in &shares {
        assert_share(&requests, share, "2");
    }
    assert_throughput_stays(&requests, begun, &shares);
}

pub(super) async fn an_upgrade_that_is_put_back_half_way_loses_no_request(fixture: &RealRayFixture) {
    // Given an upgrade that is halfway through,
    let env = &fixture.env;
    let load = fixture.start_load().await;
    let first = env.wait_until_serving("2.52.0").await;
    fixture.apply(&service_in_steps("3")).await;
    let second = env.wait_for_pending_cluster().await;
    poll_until(START_TIMEOUT, "half of the requests go to the next cluster", async || {
        let weights = env.route_weights().await;
        if weights.get(&second) == Some(&50) { Ok(()) } else { Err(format!("but {weights:?}")) }
    })
    .await;
    fixture.wait_for_version("3", &load).await;

    // when its spec is reverted,
    fixture.apply(&service_in_steps("2")).await;
    wait_for_only_cluster(fixture, &first).await;

    // then the old version answers everything again, and no request fails.
    assert_eq!(load.count_next(SAMPLE_SIZE).await, BTreeMap::from([("2".to_owned(), SAMPLE_SIZE)]));
    let requests = load.stop().await;
    print_summary("Rollback by hand, half-way", &requests);
    assert_all_answered(&requests);
}

pub(super) async fn an_upgrade_that_fails_to_start_goes_back_by_itself(fixture: &RealRayFixture) {
    // Given a service that answers,
    let env = &fixture.env;
    let load = fixture.start_load().await;
    let first = env.wait_until_serving("2.52.0").await;

    // when it is upgraded to a version that does not start, then the upgrade fails with the reason,
    fixture.apply(&service_in_steps("rotten")).await;
    let why = poll_until(START_TIMEOUT, "the upgrade fails", async || {
        let status = env.get_service().await.status.unwrap_or_default();
        let blocked =
            condition::get(&status.conditions, "sluice.dev/UpgradeBlocked").filter(|found| found.status == "True");
        blocked.map(|found| format!("{}: {}", found.reason, found.message)).ok_or_else(String::new)
    })
    .await;
    assert!(why.starts_with("UpgradeFailed") && why.contains("the mangos are rotten"), "{why}");
    wait_for_only_cluster(fixture, &first).await;

    // and the old version has answered everything.
    load.count_next(SAMPLE_SIZE).await;
    let requests = load.stop().await;
    print_summary("Rollback by itself", &requests);
    assert_all_answered(&requests);
    assert!(requests.iter().all(|request| request.outcome.as_deref() == Ok("2")));
}
