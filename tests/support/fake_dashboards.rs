//! Controls the fake Ray dashboards and reads the Serve configurations that they received (see
//! testenv/README.md).

use http::StatusCode;
use serde_json::Value;

use super::TestEnv;

/// Sets the behavior of the fake Ray dashboards of all heads.
pub async fn set_dashboard_behavior(env: &TestEnv, steering: &Value) {
    env.control("PUT", "/dashboards/*/*", steering.to_string(), StatusCode::NO_CONTENT).await;
}

/// Returns the last Serve configuration that a cluster's head accepted, or `None` if it accepted
/// none.
pub async fn last_serve_config(env: &TestEnv, cluster: &str) -> Option<Value> {
    let list = env.control("GET", "/dashboards", String::new(), StatusCode::OK).await;
    let list: Value = serde_json::from_str(&list).expect("a list of dashboards");
    let head = format!("{cluster}-head-svc");
    let mut dashboards = list["dashboards"].as_array().expect("a list of dashboards").iter();
    let config = dashboards.find(|dashboard| dashboard["service"] == head)?["config"].clone();
    Some(config).filter(|config| !config.is_null())
}
