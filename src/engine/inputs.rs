//! Inputs of the engine: watch events, and answers to its commands.

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sluice_plan::{PodDryRunId, ServeReply, Write};

use super::WriteId;
use super::cluster_state::{Object, ObjectList};

/// An input to the engine: a watch event, a write result, a Serve reply or the answer to a dry run.
#[derive(Debug, Clone)]
pub enum EngineInput {
    /// A watch listed all objects in its scope.
    Listed {
        /// Scope of the watch.
        scope: Scope,
        /// All objects of the scope.
        objects: ObjectList,
        /// Resource version of the list. Later changes follow as events.
        version: u64,
    },
    /// A watch observed a new or changed object.
    Applied(Object),
    /// A watch observed the deletion of an object.
    Deleted(Object),
    /// A watch broke. The database of the API server may have been restored from a backup since.
    WatchBroken(Scope),
    /// After a watch broke, the API server is not at an older version than before.
    HistoryVerified(Scope),
    /// A write completed, failed, or timed out.
    Written {
        /// Id of the write.
        id: WriteId,
        /// The write that was sent.
        write: Box<Write>,
        /// Outcome of the write.
        result: Result<WriteOutcome, WriteError>,
        /// Load of the API server when it responded.
        load: ApiServerLoad,
    },
    /// A call to the Serve REST API completed or failed.
    ServeReplied(ServeReply),
    /// The dry run of a pod was answered, or failed.
    PodDryRunAnswered(PodDryRunId, Result<(), WriteError>),
}

/// The objects that one watch covers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Scope {
    /// Kind of the objects, like `RayCluster`.
    pub kind: String,
    /// Namespace of the objects; `None` for all namespaces.
    pub namespace: Option<String>,
    /// Label key that the objects must have; `None` for no restriction.
    pub label: Option<&'static str>,
}

impl Scope {
    /// Reports whether this scope covers an object of its kind with this metadata.
    pub fn covers(&self, meta: &ObjectMeta) -> bool {
        let in_namespace = self.namespace.as_ref().is_none_or(|namespace| meta.namespace.as_ref() == Some(namespace));
        let has_label = |label| meta.labels.as_ref().is_some_and(|labels| labels.contains_key(label));
        in_namespace && self.label.is_none_or(has_label)
    }
}

/// Outcome of a write that the API server accepted.
#[derive(Debug, Clone)]
pub enum WriteOutcome {
    /// The object after the write.
    Object(Object),
    /// The object was deleted.
    Deleted,
    /// The object is of a kind that the engine does not watch.
    Untracked,
}

/// Load of the API server, as its responses to writes show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApiServerLoad {
    /// It responds about as fast as it can.
    Low,
    /// It takes several times as long, refuses writes, or does not respond.
    High,
}

/// Error of a failed write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteError {
    /// HTTP status code; `None` if no response arrived, in which case the write may have taken
    /// effect.
    pub code: Option<u16>,
    /// Message of the API server, or of the transport.
    pub message: String,
    /// The API server reported the target itself as not found, as opposed to its namespace or kind.
    pub target_not_found: bool,
    /// Time for which the API server asks to wait before a retry; `None` if it asks for none.
    pub retry_after: Option<SignedDuration>,
}

impl WriteError {
    /// Returns the error of a write without a response.
    pub fn unanswered(message: String) -> Self {
        Self { code: None, message, target_not_found: false, retry_after: None }
    }

    /// Reports whether the target was changed, created or deleted since the write was planned;
    /// replanning resolves that.
    pub fn is_conflict(&self) -> bool {
        matches!(self.code, Some(404 | 409))
    }
}
