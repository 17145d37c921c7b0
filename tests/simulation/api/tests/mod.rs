//! Tests through HTTP requests, as clients see the API server.

mod deletions;
mod lists;
mod properties;
mod server_side_apply;
mod updates;
mod watches;

use bytes::Bytes;
use http::Request;
use jiff::{Timestamp, ToSpan};
use serde_json::{Value, json};

use super::{ApiResponse, ApiServer, Watch};

const CLUSTERS: &str = "/apis/ray.io/v1/namespaces/default/rayclusters";
const PODS: &str = "/api/v1/namespaces/default/pods";

/// API server with helpers to send requests.
struct TestServer {
    api: ApiServer,
    now: Timestamp,
}

impl TestServer {
    fn new() -> Self {
        let now = "2026-01-01T00:00:00.5Z".parse().expect("a time");
        Self { api: ApiServer::new(now), now }
    }

    /// Advances the time by this many seconds.
    fn advance(&mut self, seconds: i64) {
        self.now = self.now.checked_add(seconds.seconds()).expect("a time");
    }

    fn request(&mut self, method: &str, path: &str, content_type: &str, body: &Value) -> ApiResponse {
        let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
        let request = Request::builder().method(method).uri(path).header("content-type", content_type).body(body);
        self.api.handle(self.now, request.expect("a request"))
    }

    /// Sends a request; returns the status code and the body.
    fn send(&mut self, method: &str, path: &str, content_type: &str, body: &Value) -> (u16, Value) {
        match self.request(method, path, content_type, body) {
            ApiResponse::Complete(response) => {
                (response.status().as_u16(), serde_json::from_slice(response.body()).expect("a JSON body"))
            }
            other => panic!("{method} {path} was answered with {other:?}"),
        }
    }

    fn get(&mut self, path: &str) -> (u16, Value) {
        self.send("GET", path, "", &Value::Null)
    }

    fn post(&mut self, path: &str, body: Value) -> (u16, Value) {
        self.send("POST", path, "application/json", &body)
    }

    fn put(&mut self, path: &str, body: &Value) -> (u16, Value) {
        self.send("PUT", path, "application/json", body)
    }

    fn merge(&mut self, path: &str, body: Value) -> (u16, Value) {
        self.send("PATCH", path, "application/merge-patch+json", &body)
    }

    fn delete(&mut self, path: &str, body: Value) -> (u16, Value) {
        self.send("DELETE", path, "application/json", &body)
    }

    fn watch(&mut self, path: &str) -> Watch {
        match self.request("GET", path, "", &Value::Null) {
            ApiResponse::Watch(watch) => watch,
            other => panic!("{path} was answered with {other:?}"),
        }
    }

    /// Returns the events of a watch since the last call: type and object.
    fn events(&mut self, watch: &mut Watch) -> Vec<(String, Value)> {
        let lines = self.api.events(watch);
        lines.iter().map(|line| decode_event(line)).collect()
    }

    /// Creates a RayCluster.
    fn create_cluster(&mut self, name: &str) -> Value {
        let (code, made) = self.post(CLUSTERS, cluster(name));
        assert_eq!(code, 201, "{made}");
        made
    }

    /// Creates a pod that runs on a node.
    fn create_running_pod(&mut self, name: &str) -> Value {
        let (code, made) = self.post(PODS, pod(name, json!({})));
        assert_eq!(code, 201, "{made}");
        let now = self.now;
        self.api.update(now, "Pod", "default", name, |pod| pod["spec"]["nodeName"] = "node".into()).expect("bound");
        self.api
            .update_status(now, "Pod", "default", name, |pod| pod["status"]["phase"] = "Running".into())
            .expect("started");
        made
    }
}

fn decode_event(line: &[u8]) -> (String, Value) {
    let mut event: Value = serde_json::from_slice(line).expect("a line of JSON");
    (event["type"].as_str().unwrap_or_default().to_owned(), event["object"].take())
}

fn cluster(name: &str) -> Value {
    json!({
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": name},
        "spec": {"headGroupSpec": {"template": {"spec": {"containers": [{"name": "head", "image": "ray:2"}]}}}},
    })
}

fn pod(name: &str, labels: Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {"containers": [{"name": "c", "image": "ray:2"}]},
    })
}

/// Returns the path of a RayCluster or of a subresource.
fn cluster_path(name: &str) -> String {
    format!("{CLUSTERS}/{name}")
}

/// Returns type and object name of each event.
fn summary(events: &[(String, Value)]) -> Vec<(&str, &str)> {
    events.iter().map(|(change, object)| (change.as_str(), object["metadata"]["name"].as_str().unwrap_or(""))).collect()
}
