//! The answers of a real API server (Kubernetes 1.36.3, with the definitions in `config/crd`) to many requests, and whether
//! the one in memory gives the same.
//!
//! `KUBECONFIG=… cargo test --test simulation api::recorded -- --ignored` records them anew, from a control plane as
//! `testenv/README.md` describes it, in which the namespace `recorded` was never used.

mod same;

use std::path::Path;

use bytes::Bytes;
use http::Request;
use serde::Deserialize;
use serde_json::Value;

use super::{Answer, Api};
use same::Same;

const REQUESTS: &str = include_str!("requests.yaml");
const ANSWERS: &str = include_str!("answers.yaml");

/// One request.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    /// What the API server does with it, for people.
    it: String,
    /// Method and path.
    ask: String,
    /// The type of patch.
    #[serde(rename = "as", default)]
    patch: String,
    /// The body.
    #[serde(default)]
    send: Value,
    /// Whether the words of the answer are those of a programming language, and only its code and reason count.
    #[serde(default)]
    loosely: bool,
}

impl Asked {
    fn all() -> Vec<Self> {
        serde_saphyr::from_str(REQUESTS).expect("requests.yaml is a list of requests")
    }

    fn request<Body>(&self, same: &Same, body: impl FnOnce(Vec<u8>) -> Body) -> Request<Body> {
        let (method, path) = self.ask.split_once(' ').expect("a method and a path");
        let path = same
            .path(path)
            .replace("{ray}", "/apis/ray.io/v1/namespaces/recorded/rayclusters")
            .replace("{kueue}", "/apis/kueue.x-k8s.io/v1beta2/namespaces/recorded")
            .replace("{ns}", "/api/v1/namespaces/recorded");
        let content_type = match self.patch.as_str() {
            "merge" => "application/merge-patch+json",
            "json" => "application/json-patch+json",
            "strategic" => "application/strategic-merge-patch+json",
            "apply" => "application/apply-patch+yaml",
            _ => "application/json",
        };
        let text = if self.send.is_null() { Vec::new() } else { self.send.to_string().into_bytes() };
        let request = Request::builder().method(method).uri(path).header("content-type", content_type);
        request.header("user-agent", "recorder/1").body(body(text)).expect("a request")
    }
}

#[test]
fn its_answers_are_those_of_the_real_one() {
    let expected: Vec<Value> = serde_saphyr::from_str(ANSWERS).expect("answers.yaml is a list of answers");
    let now = "2026-01-01T00:00:00Z".parse().expect("a time");
    let (mut api, mut same) = (Api::new(now), Same::default());
    api.compact();
    let mut wrong = Vec::new();
    let asked = Asked::all();
    for (index, asked) in asked.iter().enumerate() {
        let (code, body) = match api.handle(now, asked.request(&same, Bytes::from)) {
            Answer::Done(response) => (response.status().as_u16(), response.into_body()),
            Answer::Watch(mut watch) => (200, api.events(&mut watch).concat().into()),
            Answer::Proxy(call) => panic!("{} became {call:?}", asked.ask),
        };
        let is = same.answer(asked, code, &body);
        let should = expected.get(index).unwrap_or(&Value::Null);
        if is != *should {
            wrong.push(format!("is     {is}\nshould {should}\n"));
        }
    }
    assert!(wrong.is_empty(), "{} of {} answers:\n{}", wrong.len(), asked.len(), wrong.join("\n"));
    assert_eq!(asked.len(), expected.len(), "every answer has its request");
}

#[tokio::test]
#[ignore = "records the answers of a real API server"]
async fn record() {
    let mut config = kube::Config::infer().await.expect("a kubeconfig");
    // What is refused is the answer, not a reason to ask again.
    config.default_retry = false;
    let client = kube::Client::try_from(config).expect("a client");
    let mut same = Same::default();
    let mut answers = Vec::new();
    for asked in Asked::all() {
        let response = client.send(asked.request(&same, kube::client::Body::from)).await.expect("an answer");
        let code = response.status().as_u16();
        let body = http_body_util::BodyExt::collect(response.into_body()).await.expect("a body").to_bytes();
        answers.push(same.answer(&asked, code, &body));
    }
    let text = serde_saphyr::to_string(&answers).expect("YAML");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("api/recorded/answers.yaml");
    std::fs::write(path, format!("# The answers of Kubernetes 1.36.3 to requests.yaml, in its order.\n{text}"))
        .expect("written");
}
