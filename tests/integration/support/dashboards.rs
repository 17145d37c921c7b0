//! The stand-ins for Ray's dashboards: how they are steered, and what they were sent (see testenv/README.md).

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

use super::TestEnv;

/// Steers the dashboards of all heads.
pub async fn steer(env: &TestEnv, steering: &Value) {
    let (status, body) = ask(env, "PUT", "/dashboards/*/*", steering.to_string()).await;
    assert_eq!(status, StatusCode::NO_CONTENT, "{}", String::from_utf8_lossy(&body));
}

/// The Serve configuration that a cluster's head was sent last, if it took any.
pub async fn last_config(env: &TestEnv, cluster: &str) -> Option<Value> {
    let (status, body) = ask(env, "GET", "/dashboards", String::new()).await;
    assert_eq!(status, StatusCode::OK, "{}", String::from_utf8_lossy(&body));
    let told: Value = serde_json::from_slice(&body).expect("a list of dashboards");
    let head = format!("{cluster}-head-svc");
    let mut dashboards = told["dashboards"].as_array().expect("a list of dashboards").iter();
    let config = dashboards.find(|dashboard| dashboard["service"] == head)?["config"].clone();
    Some(config).filter(|config| !config.is_null())
}

async fn ask(env: &TestEnv, method: &str, path: &str, body: String) -> (StatusCode, Bytes) {
    let request = Request::builder().method(method).uri(format!("{}{path}", env.steer.trim_end_matches('/')));
    let request = request.body(Full::new(Bytes::from(body))).expect("a request");
    let client = Client::builder(TokioExecutor::new()).build_http();
    let answer = client.request(request).await.expect("the dashboards are there");
    let status = answer.status();
    (status, answer.into_body().collect().await.expect("an answer").to_bytes())
}
