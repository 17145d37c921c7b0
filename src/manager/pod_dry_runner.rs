//! Creates pods with `dryRun=All`, and reports if the API server accepts them.

use std::sync::Arc;
use std::time::Duration;

use kube::api::{DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use tokio::sync::{Semaphore, mpsc};
use tracing::debug;

use sluice_engine::{EngineInput, WriteError};
use sluice_plan::PodDryRun;

/// Number of dry runs in flight: they are no writes, and must not delay any.
const MAX_IN_FLIGHT: usize = 8;
/// Timeout of a dry run.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Sends dry runs of pods to the API server.
#[derive(Clone)]
pub(super) struct PodDryRunner {
    client: Client,
    answers: mpsc::Sender<EngineInput>,
    permits: Arc<Semaphore>,
}

impl PodDryRunner {
    /// Creates a runner that sends the results to `answers`.
    pub(super) fn new(client: Client, answers: mpsc::Sender<EngineInput>) -> Self {
        Self { client, answers, permits: Arc::new(Semaphore::new(MAX_IN_FLIGHT)) }
    }

    /// Sends a dry run as soon as fewer are in flight than allowed.
    pub(super) fn send(&self, dry_run: PodDryRun) {
        let runner = self.clone();
        tokio::spawn(async move {
            // The semaphore is never closed.
            let Ok(_permit) = runner.permits.acquire().await else { return };
            let result = match tokio::time::timeout(TIMEOUT, runner.create(&dry_run)).await {
                Ok(result) => result,
                Err(_) => Err(WriteError::unanswered(format!("no response within {} s", TIMEOUT.as_secs()))),
            };
            debug!(namespace = dry_run.id.namespace, ?result, "dry run of a pod");
            // The receiver is dropped only on shutdown.
            let _ = runner.answers.send(EngineInput::PodDryRunAnswered(dry_run.id, result)).await;
        });
    }

    async fn create(&self, dry_run: &PodDryRun) -> Result<(), WriteError> {
        let pods = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Pod"));
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &dry_run.id.namespace, &pods);
        let pod = serde_json::from_value(dry_run.pod.clone())
            .map_err(|error| WriteError::unanswered(format!("encoding the pod: {error}")))?;
        match api.create(&PostParams { dry_run: true, ..PostParams::default() }, &pod).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) => {
                Err(WriteError { code: Some(status.code), ..WriteError::unanswered(status.message.clone()) })
            }
            Err(error) => Err(WriteError::unanswered(error.to_string())),
        }
    }
}
