//! Compares the in-memory API server with recorded responses of a real one (Kubernetes 1.36.3, with
//! the CRDs in `config/crd`).
//!
//! `KUBECONFIG=… cargo test --test simulation api::recorded -- --ignored` records the responses
//! again, from a control plane as described in `testenv/README.md`, where the namespace `recorded`
//! is unused.

mod normalize;

use std::path::Path;

use bytes::Bytes;
use http::Request;
use serde::Deserialize;
use serde_json::Value;

use super::{ApiResponse, ApiServer};
use normalize::Normalizer;

const REQUESTS: &str = include_str!("requests.yaml");
const ANSWERS: &str = include_str!("answers.yaml");

/// Request of `requests.yaml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordedRequest {
    /// Expected behavior, for readers.
    #[serde(rename = "it")]
    description: String,
    /// Method and path, separated by a space.
    #[serde(rename = "ask")]
    method_and_path: String,
    /// Patch type: merge, json, strategic or apply; empty for other requests.
    #[serde(rename = "as", default)]
    patch_type: String,
    /// Request body; null for none.
    #[serde(rename = "send", default)]
    body: Value,
    /// Compares only code and reason, because the message depends on the implementation language.
    #[serde(rename = "loosely", default)]
    ignores_message: bool,
}

impl RecordedRequest {
    fn all() -> Vec<Self> {
        serde_saphyr::from_str(REQUESTS).expect("requests.yaml is a list of requests")
    }

    fn request<Body>(&self, same: &Normalizer, body: impl FnOnce(Vec<u8>) -> Body) -> Request<Body> {
        let (method, path) = self.method_and_path.split_once(' ').expect("a method and a path");
        let path = same
            .expand_path(path)
            .replace("{ray}", "/apis/ray.io/v1/namespaces/recorded/rayclusters")
            .replace("{kueue}", "/apis/kueue.x-k8s.io/v1beta2/namespaces/recorded")
            .replace("{ns}", "/api/v1/namespaces/recorded");
        let content_type = match self.patch_type.as_str() {
            "merge" => "application/merge-patch+json",
            "json" => "application/json-patch+json",
            "strategic" => "application/strategic-merge-patch+json",
            "apply" => "application/apply-patch+yaml",
            _ => "application/json",
        };
        let text = if self.body.is_null() { Vec::new() } else { self.body.to_string().into_bytes() };
        let request = Request::builder().method(method).uri(path).header("content-type", content_type);
        request.header("user-agent", "recorder/1").body(body(text)).expect("a request")
    }
}

#[test]
fn responses_equal_those_of_a_real_api_server() {
    let expected: Vec<Value> = serde_saphyr::from_str(ANSWERS).expect("answers.yaml is a list of responses");
    let now = "2026-01-01T00:00:00Z".parse().expect("a time");
    let (mut api, mut same) = (ApiServer::new(now), Normalizer::default());
    api.compact();
    let mut wrong = Vec::new();
    let asked = RecordedRequest::all();
    for (index, asked) in asked.iter().enumerate() {
        let (code, body) = match api.handle(now, asked.request(&same, Bytes::from)) {
            ApiResponse::Complete(response) => (response.status().as_u16(), response.into_body()),
            ApiResponse::Watch(mut watch) => (200, api.events(&mut watch).concat().into()),
            ApiResponse::Proxy(call) => panic!("{} was proxied: {call:?}", asked.method_and_path),
        };
        let actual = same.normalize_response(asked, code, &body);
        let recorded = expected.get(index).unwrap_or(&Value::Null);
        if actual != *recorded {
            wrong.push(format!("actual   {actual}\nexpected {recorded}\n"));
        }
    }
    assert!(wrong.is_empty(), "{} of {} responses differ:\n{}", wrong.len(), asked.len(), wrong.join("\n"));
    assert_eq!(asked.len(), expected.len(), "every response has its request");
}

#[tokio::test]
#[ignore = "records the responses of a real API server"]
async fn record() {
    let mut config = kube::Config::infer().await.expect("a kubeconfig");
    // Error responses are recorded, too, so they must not be retried.
    config.default_retry = false;
    let client = kube::Client::try_from(config).expect("a client");
    let mut same = Normalizer::default();
    let mut answers = Vec::new();
    for asked in RecordedRequest::all() {
        let response = client.send(asked.request(&same, kube::client::Body::from)).await.expect("an answer");
        let code = response.status().as_u16();
        let body = http_body_util::BodyExt::collect(response.into_body()).await.expect("a body").to_bytes();
        answers.push(same.normalize_response(&asked, code, &body));
    }
    let text = serde_saphyr::to_string(&answers).expect("YAML");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("api/recorded/answers.yaml");
    std::fs::write(path, format!("# The answers of Kubernetes 1.36.3 to requests.yaml, in its order.\n{text}"))
        .expect("written");
}
