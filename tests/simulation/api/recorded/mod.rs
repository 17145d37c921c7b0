//! Compares the in-memory API server with recorded responses of a real one (Kubernetes 1.36.3, with
//! the CRDs and policies in `config`). `make record-responses` records them.

use bytes::Bytes;
use serde_json::Value;
use sluice_testkit::recorded_responses::{Normalizer, RecordedRequest, recorded};

use super::{ApiResponse, ApiServer};

#[test]
fn responses_equal_those_of_a_real_api_server() {
    let expected = recorded();
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
