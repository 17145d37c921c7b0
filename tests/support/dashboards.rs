//! The stand-ins for Ray's dashboards: how they are steered, and what they were sent (see testenv/README.md).

use http::StatusCode;
use serde_json::Value;

use super::TestEnv;
use super::http::Http;

/// Steers the dashboards of all heads.
pub async fn steer(env: &TestEnv, steering: &Value) {
    ask(env, "PUT", "/dashboards/*/*", steering.to_string(), StatusCode::NO_CONTENT).await;
}

/// The Serve configuration that a cluster's head was sent last, if it took any.
pub async fn last_config(env: &TestEnv, cluster: &str) -> Option<Value> {
    let told = ask(env, "GET", "/dashboards", String::new(), StatusCode::OK).await;
    let told: Value = serde_json::from_str(&told).expect("a list of dashboards");
    let head = format!("{cluster}-head-svc");
    let mut dashboards = told["dashboards"].as_array().expect("a list of dashboards").iter();
    let config = dashboards.find(|dashboard| dashboard["service"] == head)?["config"].clone();
    Some(config).filter(|config| !config.is_null())
}

async fn ask(env: &TestEnv, method: &str, path: &str, body: String, expected: StatusCode) -> String {
    let url = format!("{}{path}", env.steer.trim_end_matches('/'));
    let (status, body) = Http::new().ask(method, &url, body).await.expect("the dashboards answer");
    assert_eq!(status, expected, "{body}");
    body
}
