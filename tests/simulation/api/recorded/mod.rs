//! The answers of a real API server (Kubernetes 1.36.3, with the definitions in `config/crd`) to many requests, and whether
//! the one in memory gives the same.
//!
//! `KUBECONFIG=… cargo test --test simulation api::recorded -- --ignored` records them anew, from a control plane as
//! `testenv/README.md` describes it, in which the namespace `recorded` was never used.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use http::Request;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Answer, Api};

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

    fn request<Body>(&self, body: impl FnOnce(Vec<u8>) -> Body) -> Request<Body> {
        let (method, path) = self.ask.split_once(' ').expect("a method and a path");
        let path = path
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

/// Makes answers comparable: what differs in every run is numbered in the order in which it is first seen.
#[derive(Default)]
struct Same {
    seen: BTreeMap<String, Vec<String>>,
}

impl Same {
    fn answer(&mut self, asked: &Asked, code: u16, mut body: Value) -> Value {
        let it = &asked.it;
        if asked.loosely {
            return json!({"it": it, "code": code, "reason": body["reason"]});
        }
        if let Some(causes) = body.pointer_mut("/details/causes").and_then(Value::as_array_mut) {
            // The real one looks twice at some things.
            causes.sort_by_key(Value::to_string);
            causes.dedup();
        }
        if let Some(metadata) = body.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
        // What admission of ours does not do: a token in every pod, and how long it tolerates a lost node.
        if let Some(spec) = body.get_mut("spec").and_then(Value::as_object_mut)
            && spec.contains_key("containers")
        {
            for field in ["serviceAccount", "serviceAccountName", "tolerations"] {
                spec.remove(field);
            }
            let is_token =
                |item: &Value| item["name"].as_str().is_some_and(|name| name.starts_with("kube-api-access-"));
            if let Some(volumes) = spec.get_mut("volumes").and_then(Value::as_array_mut) {
                volumes.retain(|volume| !is_token(volume));
            }
            for container in spec.get_mut("containers").and_then(Value::as_array_mut).into_iter().flatten() {
                let mounts = container.get_mut("volumeMounts").and_then(Value::as_array_mut);
                if let (Some(mounts), Some(container)) =
                    (mounts.map(|mounts| mounts.is_empty() || mounts.iter().all(is_token)), container.as_object_mut())
                    && mounts
                {
                    container.remove("volumeMounts");
                }
            }
        }
        self.number(&mut body, "");
        json!({"it": it, "code": code, "body": body})
    }

    fn number(&mut self, value: &mut Value, field: &str) {
        match value {
            Value::Object(fields) => fields.iter_mut().for_each(|(name, value)| self.number(value, name)),
            Value::Array(items) => items.iter_mut().for_each(|item| self.number(item, field)),
            Value::String(text) => match field {
                "creationTimestamp" | "deletionTimestamp" | "startTime" => *text = "then".into(),
                "uid" | "resourceVersion" => *text = self.numbered(field, text),
                "clusterIP" | "clusterIPs" if text.starts_with("10.") => *text = self.numbered("address", text),
                "message" => {
                    for uid in self.seen.get("uid").into_iter().flatten().filter(|uid| uid.len() == 36) {
                        *text = text.replace(uid, "uid");
                    }
                    for version in self.seen.get("resourceVersion").into_iter().flatten() {
                        *text = text.replace(&format!("({version})"), "(version)");
                    }
                }
                _ => {}
            },
            _ => {}
        }
    }

    fn numbered(&mut self, what: &str, text: &str) -> String {
        let known = self.seen.entry(what.to_owned()).or_default();
        let index = known.iter().position(|one| one == text).unwrap_or_else(|| {
            known.push(text.to_owned());
            known.len() - 1
        });
        format!("{what} {index}")
    }
}

#[test]
fn its_answers_are_those_of_the_real_one() {
    let expected: Vec<Value> = serde_saphyr::from_str(ANSWERS).expect("answers.yaml is a list of answers");
    let now = "2026-01-01T00:00:00Z".parse().expect("a time");
    let (mut api, mut same) = (Api::new(now), Same::default());
    let answers = Asked::all().into_iter().map(|asked| {
        let Answer::Done(response) = api.handle(now, asked.request(Bytes::from)) else {
            panic!("{} is no call", asked.ask)
        };
        let body = serde_json::from_slice(response.body()).unwrap_or_default();
        same.answer(&asked, response.status().as_u16(), body)
    });
    let answers: Vec<Value> = answers.collect();
    let wrong: Vec<String> = answers
        .iter()
        .zip(&expected)
        .filter(|(is, should)| is != should)
        .map(|(is, should)| format!("is     {is}\nshould {should}\n"))
        .collect();
    assert!(
        wrong.is_empty() && answers.len() == expected.len(),
        "{} of {}:\n{}",
        wrong.len(),
        answers.len(),
        wrong.join("\n")
    );
}

#[tokio::test]
#[ignore = "records the answers of a real API server"]
async fn record() {
    let client = kube::Client::try_default().await.expect("an API server");
    let mut same = Same::default();
    let mut answers = Vec::new();
    for asked in Asked::all() {
        let response = client.send(asked.request(kube::client::Body::from)).await.expect("an answer");
        let code = response.status().as_u16();
        let body = http_body_util::BodyExt::collect(response.into_body()).await.expect("a body").to_bytes();
        answers.push(same.answer(&asked, code, serde_json::from_slice(&body).unwrap_or_default()));
    }
    let text = serde_saphyr::to_string(&answers).expect("YAML");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/simulation/api/recorded/answers.yaml");
    std::fs::write(path, format!("# The answers of Kubernetes 1.36.3 to requests.yaml, in its order.\n{text}"))
        .expect("written");
}
