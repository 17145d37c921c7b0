//! Sends writes to the API server: concurrently, each with a timeout, and none after leadership is
//! lost.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt;
use jiff::SignedDuration;
use kube::Client;
use kube::client::Body;
use kube::core::params::{DeleteParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy};
use kube::core::{Request, Status};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::debug;

use crate::in_flight_limit::{InFlightLimit, Response};
use crate::write_queue::WriteQueue;
use crate::written_versions::WrittenVersions;
use sluice_engine::WriteId;
use sluice_engine::cluster_state::Object;
use sluice_engine::{ApiServerLoad, EngineInput, WriteError, WriteOutcome};
use sluice_metrics::Metrics;
use sluice_plan::{ObjectRef, Write, WriteOp};

/// Field manager of all writes.
const FIELD_MANAGER: &str = "sluice";
/// Timeout of a write. Its outcome is unknown then; the next plan starts from the observed state.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Sends writes concurrently, up to the limit that the latency of earlier ones allows.
#[derive(Clone)]
pub(super) struct Writer {
    client: Client,
    pending: Arc<Mutex<PendingWrites>>,
    results: mpsc::Sender<EngineInput>,
    written: WrittenVersions,
    metrics: Metrics,
}

/// A write and its id.
type IdentifiedWrite = (WriteId, Write);

/// The writes whose response has not arrived.
struct PendingWrites {
    limit: InFlightLimit,
    /// Number of writes that were sent.
    in_flight: usize,
    /// The others.
    waiting: WriteQueue<IdentifiedWrite>,
}

impl Writer {
    /// Creates a writer that writes through `client`, sends the results to `answers` and records their
    /// versions in `written`.
    pub(super) fn new(
        client: Client,
        answers: mpsc::Sender<EngineInput>,
        written: WrittenVersions,
        metrics: Metrics,
    ) -> Self {
        let pending = PendingWrites::new();
        metrics.set_max_writes_in_flight(pending.limit.limit());
        Self { client, pending: Arc::new(Mutex::new(pending)), results: answers, written, metrics }
    }

    /// Sends a write as soon as fewer writes are in flight than allowed.
    pub(super) fn send(&self, id: WriteId, write: Write) {
        let ready = self.lock().push(id, write);
        self.send_all(ready);
    }

    fn send_all(&self, writes: Vec<IdentifiedWrite>) {
        for (id, write) in writes {
            let writer = self.clone();
            tokio::spawn(async move { writer.write(id, write).await });
        }
    }

    async fn write(&self, id: WriteId, write: Write) {
        let sent_at = Instant::now();
        let result = match tokio::time::timeout(TIMEOUT, execute(&self.client, &write)).await {
            Ok(result) => result,
            Err(_) => Err(WriteError::unanswered(format!("no response within {} s", TIMEOUT.as_secs()))),
        };
        if let Ok(WriteOutcome::Object(object)) = &result {
            self.written.record(object);
        }
        let (load, ready) = self.complete(&write, &result, sent_at);
        self.send_all(ready);
        debug!(target = %write.target, op = write.op.operation(), ok = result.is_ok(), "wrote");
        self.metrics.record_write(&write, &result);
        // The receiver is dropped only on shutdown.
        let _ = self.results.send(EngineInput::Written { id, write: Box::new(write), result, load }).await;
    }

    fn complete(
        &self,
        write: &Write,
        result: &Result<WriteOutcome, WriteError>,
        sent_at: Instant,
    ) -> (ApiServerLoad, Vec<IdentifiedWrite>) {
        let mut pending = self.lock();
        let completed = pending.complete(write, result, sent_at, Instant::now());
        self.metrics.set_max_writes_in_flight(pending.limit.limit());
        completed
    }

    fn lock(&self) -> MutexGuard<'_, PendingWrites> {
        // Nothing panics while it holds the lock.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingWrites {
    fn new() -> Self {
        Self { limit: InFlightLimit::new(), in_flight: 0, waiting: WriteQueue::default() }
    }

    /// Adds a write; returns those that can be sent now.
    fn push(&mut self, id: WriteId, write: Write) -> Vec<IdentifiedWrite> {
        self.waiting.push(write.rank, write.priority, (id, write));
        self.take_ready()
    }

    /// Ends a write. Returns the load of the API server, and the writes that can be sent now.
    fn complete(
        &mut self,
        write: &Write,
        result: &Result<WriteOutcome, WriteError>,
        sent_at: Instant,
        now: Instant,
    ) -> (ApiServerLoad, Vec<IdentifiedWrite>) {
        let response = match result {
            Ok(_) => Response::Accepted,
            Err(WriteError { code: None | Some(429 | 503 | 504), .. }) => Response::Overloaded,
            Err(_) => Response::Rejected,
        };
        let load = self.limit.record(write, response, now.duration_since(sent_at), self.in_flight, now);
        self.in_flight -= 1;
        (load, self.take_ready())
    }

    fn take_ready(&mut self) -> Vec<IdentifiedWrite> {
        let free = self.limit.limit().saturating_sub(self.in_flight);
        let ready: Vec<IdentifiedWrite> = std::iter::from_fn(|| self.waiting.pop()).take(free).collect();
        self.in_flight += ready.len();
        ready
    }
}

async fn execute(client: &Client, write: &Write) -> Result<WriteOutcome, WriteError> {
    let unanswered = |error: &dyn std::error::Error| WriteError::unanswered(error.to_string());
    let request = request(write).map_err(|error| unanswered(&error))?;
    let response = client.send(request.map(Body::from)).await.map_err(|error| unanswered(&error))?;
    let (status, retry_after) = (response.status(), retry_after(response.headers()));
    let body = response.into_body().collect().await.map_err(|error| unanswered(&error))?.to_bytes();
    if !status.is_success() {
        return Err(WriteError { retry_after, ..to_write_error(&write.target, status, &body) });
    }
    let body: Value = serde_json::from_slice(&body)
        .map_err(|error| WriteError::unanswered(format!("decoding the response: {error}")))?;
    if body.get("kind").and_then(Value::as_str) == Some("Status") {
        return Ok(WriteOutcome::Deleted);
    }
    let object = Object::decode(&write.target.types(), body)
        .map_err(|error| WriteError::unanswered(format!("decoding the response: {error}")))?;
    Ok(object.map_or(WriteOutcome::Untracked, WriteOutcome::Object))
}

/// Returns the time that the API server asks to wait before a retry; `None` if it asks for none.
/// It sends seconds, never a date (kubernetes 1.36
/// `staging/src/k8s.io/apiserver/pkg/server/filters/priority-and-fairness.go`).
fn retry_after(headers: &HeaderMap) -> Option<SignedDuration> {
    let seconds: u32 = headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(SignedDuration::from_secs(seconds.into()))
}

/// Returns the error of a response. Its body is a `Status`, or text if the request was refused
/// before it reached the API.
fn to_write_error(target: &ObjectRef, code: StatusCode, body: &[u8]) -> WriteError {
    let status: Option<Status> = serde_json::from_slice(body).ok();
    let is_target = |status: &Status| {
        let details = status.details.as_ref();
        details.is_some_and(|details| details.name == target.name && details.kind == target.plural)
    };
    WriteError {
        code: Some(code.as_u16()),
        target_not_found: code == StatusCode::NOT_FOUND && status.as_ref().is_some_and(is_target),
        message: match status {
            Some(status) => status.message,
            None => String::from_utf8_lossy(body).trim().to_owned(),
        },
        retry_after: None,
    }
}

/// Returns the HTTP request of a write.
fn request(write: &Write) -> Result<http::Request<Vec<u8>>, kube::core::request::Error> {
    let name = &write.target.name;
    let requests = Request::new(collection_path(&write.target));
    let patch_params = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() };
    match &write.op {
        WriteOp::Create(object) => {
            let params = PostParams { field_manager: Some(FIELD_MANAGER.into()), ..PostParams::default() };
            requests.create(&params, object.to_string().into_bytes())
        }
        WriteOp::Patch(body) => requests.patch(name, &patch_params, &Patch::Merge(body)),
        WriteOp::PatchStatus(body) => requests.patch_subresource("status", name, &patch_params, &Patch::Merge(body)),
        WriteOp::Delete { uid, foreground } => {
            let preconditions = Preconditions { uid: Some(uid.clone()), resource_version: None };
            let policy = if *foreground { PropagationPolicy::Foreground } else { PropagationPolicy::Background };
            let params = DeleteParams { propagation_policy: Some(policy), ..DeleteParams::default() };
            requests.delete(name, &params.preconditions(preconditions))
        }
    }
}

fn collection_path(target: &ObjectRef) -> String {
    let prefix = if target.api_version.contains('/') { "apis" } else { "api" };
    match &target.namespace {
        Some(namespace) => format!("/{prefix}/{}/namespaces/{namespace}/{}", target.api_version, target.plural),
        None => format!("/{prefix}/{}/{}", target.api_version, target.plural),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn target(api_version: &str, plural: &str, namespace: Option<&str>) -> ObjectRef {
        ObjectRef {
            api_version: api_version.into(),
            kind: "Any".into(),
            plural: plural.into(),
            namespace: namespace.map(Into::into),
            name: "x".into(),
        }
    }

    fn sent(target: ObjectRef, op: WriteOp) -> (String, String, Value) {
        let request = request(&Write::new(target, op)).expect("a request");
        let body = serde_json::from_slice(request.body()).unwrap_or(Value::Null);
        (request.method().to_string(), request.uri().to_string(), body)
    }

    #[test]
    fn write_becomes_the_request_of_its_operation() {
        let pods = || target("v1", "pods", Some("ns"));
        let (method, uri, _) = sent(pods(), WriteOp::Create(json!({"metadata": {"name": "x"}})));
        assert_eq!((method.as_str(), uri.as_str()), ("POST", "/api/v1/namespaces/ns/pods?&fieldManager=sluice"));

        let queue = target("kueue.x-k8s.io/v1beta2", "clusterqueues", None);
        let (method, uri, body) = sent(queue, WriteOp::PatchStatus(json!({"status": {}})));
        assert_eq!(method, "PATCH");
        assert_eq!(uri, "/apis/kueue.x-k8s.io/v1beta2/clusterqueues/x/status?&fieldManager=sluice");
        assert_eq!(body, json!({"status": {}}));
    }

    #[rstest]
    #[case::object_missing(404, "x", "pods", true)]
    #[case::namespace_missing(404, "ns", "namespaces", false)]
    #[case::another_object(404, "y", "pods", false)]
    #[case::conflict(409, "x", "pods", false)]
    fn object_is_absent_only_if_the_status_names_the_object_itself(
        #[case] code: u16,
        #[case] name: &str,
        #[case] kind: &str,
        #[case] absent: bool,
    ) {
        let details = json!({"name": name, "kind": kind});
        let status = json!({"status": "Failure", "message": "no", "reason": "No", "code": code, "details": details});
        let status_code = StatusCode::from_u16(code).expect("a status code");

        let error = to_write_error(&target("v1", "pods", Some("ns")), status_code, status.to_string().as_bytes());

        assert_eq!((error.code, error.message.as_str(), error.target_not_found), (Some(code), "no", absent));
    }

    #[test]
    fn refusal_of_priority_and_fairness_is_text() {
        let body = b"Too many requests, please try again later.\n";

        let error = to_write_error(&target("v1", "pods", Some("ns")), StatusCode::TOO_MANY_REQUESTS, body);

        assert_eq!((error.code, error.message.as_str()), (Some(429), "Too many requests, please try again later."));
    }

    #[tokio::test]
    async fn refusal_says_how_long_to_wait() {
        let respond = |_: http::Request<Body>| async {
            let response = http::Response::builder().status(StatusCode::TOO_MANY_REQUESTS).header(RETRY_AFTER, "2");
            response.body(Body::from(b"Too many requests".to_vec()))
        };
        let client = Client::new(tower::service_fn(respond), "default");
        let write = Write::new(target("v1", "pods", Some("ns")), WriteOp::Patch(json!({})));

        let error = execute(&client, &write).await.expect_err("a refusal");

        assert_eq!((error.code, error.retry_after), (Some(429), Some(SignedDuration::from_secs(2))));
    }

    #[test]
    fn writes_in_flight_follow_the_limit() {
        // Given more writes than can be in flight,
        let mut pending = PendingWrites::new();
        let write = || Write::new(target("v1", "pods", Some("ns")), WriteOp::Patch(json!({})));
        let sent: usize = (0..100).map(|_| pending.push(WriteId::default(), write()).len()).sum();
        assert_eq!(sent, 32);
        let now = Instant::now();
        let mut end = |result| {
            let (load, ready) = pending.complete(&write(), &result, now, now);
            (load, ready.len(), pending.in_flight, pending.limit.limit())
        };

        // when the API server refuses one of them, then no other is sent until half of them have ended;
        let refusal = WriteError { code: Some(429), ..WriteError::unanswered("refused".to_owned()) };
        assert_eq!(end(Err(refusal)), (ApiServerLoad::High, 0, 31, 16));
        let mut ended = (16..31).rev().map(|left| (end(Ok(WriteOutcome::Untracked)), left));
        assert!(ended.all(|((_, ready, in_flight, _), left)| (ready, in_flight) == (0, left)));

        // and then as many are in flight as the limit is.
        let (_, ready, in_flight, limit) = end(Ok(WriteOutcome::Untracked));
        assert_eq!((ready > 0, in_flight), (true, limit));
    }

    #[rstest]
    #[case::seconds("2", Some(2))]
    #[case::no_number("soon", None)]
    #[case::date("Wed, 21 Oct 2026 07:28:00 GMT", None)]
    #[case::negative("-1", None)]
    fn retry_after_is_a_number_of_seconds(#[case] header: &'static str, #[case] expected: Option<i64>) {
        let headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(header))]);
        assert_eq!(retry_after(&headers), expected.map(SignedDuration::from_secs));
    }

    #[test]
    fn deletion_has_a_uid_precondition() {
        let delete = WriteOp::Delete { uid: "u-1".into(), foreground: true };
        let (method, _, body) = sent(target("v1", "pods", Some("ns")), delete);

        assert_eq!(method, "DELETE");
        assert_eq!(body["preconditions"], json!({"uid": "u-1"}));
        assert_eq!(body["propagationPolicy"], "Foreground");
    }
}
