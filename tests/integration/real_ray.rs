//! Upgrades on real Ray behind a real gateway, with requests that come in all the time. `make ray` runs it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::gateways::CLASS;
use crate::support::http::Http;
use crate::support::load::{Load, version_of};
use crate::support::objects::{QUEUE_SAMPLE, SERVICE_SAMPLE};
use crate::support::process_node::{ProcessNode, image};
use crate::support::traefik::{ADDRESS, Traefik};
use crate::support::{TestEnv, within};

/// How many requests come in a second.
const RATE: u32 = 10;
/// How many answers show who answers by now.
const SOME: usize = 100;
/// How long a cluster of Ray may take to serve, on a machine that is busy with another one.
const START: Duration = Duration::from_secs(400);

/// The sample's service with this version of its application.
fn service(version: &str) -> String {
    SERVICE_SAMPLE.replace("rayproject/ray:2.52.0", &format!("fruit:{version}"))
}

/// Versions of the application.
fn images() -> Value {
    let version = |version: &str| {
        image(&[("FRUIT_VERSION", version), ("FRUIT_STARTUP_SECONDS", "2"), ("RAY_USAGE_STATS_ENABLED", "0")])
    };
    json!({"fruit:1": version("1"), "fruit:2": version("2")})
}

/// A Gateway, and a route to the serve Service.
async fn let_in(env: &TestEnv) {
    let api = "gateway.networking.k8s.io/v1";
    let listener = json!({"name": "http", "port": 80, "protocol": "HTTP"});
    let gateway = json!({
        "apiVersion": api, "kind": "Gateway", "metadata": {"name": "public", "namespace": "default"},
        "spec": {"gatewayClassName": CLASS, "listeners": [listener]},
    });
    let rule = json!({"backendRefs": [{"name": "fruit-serve-svc", "port": 8000}]});
    let route = json!({
        "apiVersion": api, "kind": "HTTPRoute", "metadata": {"name": "shop", "namespace": "default"},
        "spec": {"parentRefs": [{"name": "public"}], "rules": [rule]},
    });
    for object in [gateway, route] {
        env.apply(&object.to_string()).await.expect("a way in");
    }
}

#[tokio::test]
#[ignore = "needs Ray, Traefik, and a network of its own: make ray"]
async fn an_upgrade_waits_for_quota_and_no_request_is_lost() {
    // Given a service that answers, in a queue that it fills,
    let env = TestEnv::start_bare().await;
    let _node = ProcessNode::start(&env, images()).await;
    let _traefik = Traefik::start(&env).await;
    let _manager = env.manager().await;
    env.apply(QUEUE_SAMPLE).await.expect("the queue");
    env.apply(&service("1")).await.expect("the service");
    let_in(&env).await;
    let url = format!("http://{ADDRESS}/fruit?amount=2");
    let http = Http::new();
    within(START, "the service answers", async || version_of(&http, &url).await).await;
    let load = Load::start(url, RATE);

    // when it is upgraded, then the old version answers everything while that waits,
    env.apply(&service("2")).await.expect("the service");
    let (pending, why) = env.waits_for_quota().await;
    println!("{why}");
    assert_eq!(load.next(SOME).await, BTreeMap::from([("1".to_owned(), SOME)]));
    assert!(env.pods_of(&pending).await.is_empty());

    // and once there is quota, the new one does: no request is lost, and none goes back to the old version.
    env.set_quota("2", "4Gi").await;
    within(START, "the new version answers", async || {
        let last = load.requests().pop().map(|request| request.answer);
        if last == Some(Ok("2".to_owned())) { Ok(()) } else { Err(format!("but {last:?}")) }
    })
    .await;
    env.only_cluster(&pending).await;
    assert_eq!(load.next(SOME).await, BTreeMap::from([("2".to_owned(), SOME)]));
    println!("{} requests, and each was answered", load.requests().len());
}
