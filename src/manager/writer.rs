//! Sends writes to the API server: concurrently, each with a timeout, and none after leadership is
//! lost.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use kube::core::Request;
use kube::core::params::{DeleteParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy};
use serde_json::Value;
use tokio::sync::{Semaphore, mpsc};
use tracing::debug;

use sluice_engine::WriteId;
use sluice_engine::cluster_state::Object;
use sluice_engine::{EngineInput, WriteError, WriteOutcome};
use sluice_metrics::Metrics;
use sluice_plan::{ObjectRef, Write, WriteOp};

/// Field manager of all writes.
const FIELD_MANAGER: &str = "sluice";
/// Maximum number of writes in flight; each uses one connection.
const MAX_IN_FLIGHT: usize = 32;
/// Timeout of a write. Its outcome is unknown then; the next plan starts from the observed state.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Sends writes concurrently, up to [`MAX_IN_FLIGHT`].
#[derive(Clone)]
pub(super) struct Writer {
    client: Client,
    permits: Arc<Semaphore>,
    results: mpsc::Sender<EngineInput>,
    metrics: Metrics,
}

impl Writer {
    /// Creates a writer that writes through `client` and sends the results to `answers`.
    pub(super) fn new(client: Client, answers: mpsc::Sender<EngineInput>, metrics: Metrics) -> Self {
        Self { client, permits: Arc::new(Semaphore::new(MAX_IN_FLIGHT)), results: answers, metrics }
    }

    /// Sends a write as soon as a permit is free.
    pub(super) fn send(&self, id: WriteId, write: Write) {
        let writer = self.clone();
        tokio::spawn(async move {
            let Ok(_permit) = writer.permits.acquire().await else { return };
            let result = match tokio::time::timeout(TIMEOUT, execute(&writer.client, &write)).await {
                Ok(result) => result,
                Err(_) => Err(WriteError::unanswered(format!("no response within {} s", TIMEOUT.as_secs()))),
            };
            debug!(target = %write.target, op = write.op.operation(), ok = result.is_ok(), "wrote");
            writer.metrics.record_write(&write, &result);
            // The receiver is dropped only on shutdown.
            let _ = writer.results.send(EngineInput::Written { id, write: Box::new(write), result }).await;
        });
    }
}

async fn execute(client: &Client, write: &Write) -> Result<WriteOutcome, WriteError> {
    let request = request(write).map_err(|error| WriteError::unanswered(error.to_string()))?;
    let body: Value = client.request(request).await.map_err(|error| to_write_error(&write.target, error))?;
    if body.get("kind").and_then(Value::as_str) == Some("Status") {
        return Ok(WriteOutcome::Deleted);
    }
    let object = Object::decode(&write.target.types(), body)
        .map_err(|error| WriteError::unanswered(format!("decoding the response: {error}")))?;
    Ok(object.map_or(WriteOutcome::Untracked, WriteOutcome::Object))
}

fn to_write_error(target: &ObjectRef, error: kube::Error) -> WriteError {
    match error {
        kube::Error::Api(status) => WriteError {
            code: Some(status.code),
            message: status.message.clone(),
            target_not_found: status.code == 404
                && status
                    .details
                    .as_ref()
                    .is_some_and(|details| details.name == target.name && details.kind == target.plural),
        },
        other => WriteError::unanswered(other.to_string()),
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
    use kube::core::Status;
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
        let status: Status = serde_json::from_value(status).expect("a status");

        let error = to_write_error(&target("v1", "pods", Some("ns")), kube::Error::Api(Box::new(status)));

        assert_eq!((error.code, error.target_not_found), (Some(code), absent));
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
