//! Changes applied in place, without a second cluster.

use serde_json::{Value, json};

use super::fixture::{configure, url};
use super::{RealRayFixture, SAMPLE_SIZE, START_TIMEOUT, print_summary, service};
use sluice_testkit::http::HttpClient;
use sluice_testkit::load::assert_all_answered;
use sluice_testkit::poll_until;

/// Price of a mango after the change in the first RayService guide (KubeRay 0.3
/// `docs/guidance/rayservice.md`).
pub(super) const PRICE: u64 = 4;

/// Returns the service with the price in its Serve configuration.
pub(super) fn priced(version: &str) -> Value {
    let mut service = service(version);
    configure(&mut service, |deployment| {
        if deployment["name"] == "MangoStand" {
            deployment["user_config"] = json!({"price": PRICE});
        }
    });
    service
}

/// Waits until two mangos cost twice this price.
pub(super) async fn costs(price: u64) {
    let http = HttpClient::new();
    poll_until(START_TIMEOUT, &format!("a mango costs {price}"), async || {
        let (_, body) = http.send("GET", &url(), String::new()).await?;
        let answer: Value = serde_json::from_str(&body).map_err(|error| format!("{error}: {body}"))?;
        if answer["cost"] == 2 * price { Ok(()) } else { Err(format!("but {answer}")) }
    })
    .await;
}

pub(super) async fn a_change_of_the_serve_configuration_loses_no_request(fixture: &RealRayFixture) {
    // Given a service that answers,
    let env = &fixture.env;
    let load = fixture.start_load().await;
    let cluster = env.wait_until_serving("2.52.0").await;

    // when only its Serve configuration changes, then the active cluster applies it,
    fixture.apply(&priced("2")).await;
    costs(PRICE).await;
    load.count_next(SAMPLE_SIZE).await;

    // without a new cluster, and no request fails.
    env.wait_for_only_cluster(&cluster).await;
    assert_eq!(env.wait_until_serving("2.52.0").await, cluster);
    let requests = load.stop().await;
    print_summary("In-place update of serveConfigV2", &requests);
    assert_all_answered(&requests);
}
