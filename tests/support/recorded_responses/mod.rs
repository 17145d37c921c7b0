//! Requests of `tests/simulation/api/recorded/requests.yaml`, and the responses of a real API server
//! to them, which `make record-responses` records in `answers.yaml`.

mod normalize;

use std::path::Path;

use http::Request;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde::Deserialize;
use serde_json::Value;

use crate::TestEnv;
use crate::env::repository_root;
pub use normalize::Normalizer;

const FOLDER: &str = "tests/simulation/api/recorded";

/// Request of `requests.yaml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedRequest {
    /// Expected behavior, for readers.
    #[serde(rename = "it")]
    pub description: String,
    /// Method and path, separated by a space.
    #[serde(rename = "ask")]
    pub method_and_path: String,
    /// Patch type: merge, json, strategic or apply; empty for other requests.
    #[serde(rename = "as", default)]
    pub patch_type: String,
    /// Request body; null for none.
    #[serde(rename = "send", default)]
    pub body: Value,
    /// Compares only code and reason, because the message depends on the implementation language.
    #[serde(rename = "loosely", default)]
    pub ignores_message: bool,
}

impl RecordedRequest {
    /// Returns all requests.
    ///
    /// # Panics
    /// Panics if `requests.yaml` is not a list of requests.
    pub fn all() -> Vec<Self> {
        serde_saphyr::from_str(&read("requests.yaml")).expect("requests.yaml is a list of requests")
    }

    /// Builds the request. `same` has the values of earlier responses.
    ///
    /// # Panics
    /// Panics if the method or the path is invalid.
    pub fn request<Body>(&self, same: &Normalizer, body: impl FnOnce(Vec<u8>) -> Body) -> Request<Body> {
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

/// Returns the recorded responses, in the order of the requests.
///
/// # Panics
/// Panics if `answers.yaml` is not a list of responses.
pub fn recorded() -> Vec<Value> {
    serde_saphyr::from_str(&read("answers.yaml")).expect("answers.yaml is a list of responses")
}

fn read(file: &str) -> String {
    let path = repository_root().join(FOLDER).join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Sends all requests to a real control plane with the CRDs in `config/crd`, and records its
/// responses.
///
/// # Panics
/// Panics if the control plane does not start, a request is not answered, or the file cannot be
/// written.
pub async fn record() {
    let env = TestEnv::start_bare().await;
    let client = client_without_retries(&env.kubeconfig).await;
    let mut normalizer = Normalizer::default();
    let mut responses = Vec::new();
    for asked in RecordedRequest::all() {
        let response = client.send(asked.request(&normalizer, kube::client::Body::from)).await.expect("a response");
        let code = response.status().as_u16();
        let body = http_body_util::BodyExt::collect(response.into_body()).await.expect("a body").to_bytes();
        responses.push(normalizer.normalize_response(&asked, code, &body));
    }
    let text = serde_saphyr::to_string(&responses).expect("YAML");
    let path = repository_root().join(FOLDER).join("answers.yaml");
    std::fs::write(&path, format!("# Responses of Kubernetes 1.36.3 to requests.yaml, in its order.\n{text}"))
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// Returns a client that passes error responses on, because they are recorded, too.
async fn client_without_retries(kubeconfig: &Path) -> Client {
    let read = Kubeconfig::read_from(kubeconfig).unwrap_or_else(|error| panic!("{}: {error}", kubeconfig.display()));
    let mut config =
        Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.expect("a configuration");
    config.default_retry = false;
    Client::try_from(config).expect("a client")
}
