//! Data model of scripts whose users write arbitrary labels, owners and gates of Ray kinds.

use serde::{Deserialize, Serialize};

/// An action on a RayCluster or RayService. An action on an object that does not exist has no effect.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) enum RayAction {
    /// Changes the queue label.
    SetQueue {
        /// Kind of the object.
        kind: RayKind,
        /// Name of the object.
        name: String,
        /// Name of the LocalQueue. None removes the label.
        queue: Option<String>,
        /// Suspends the object in the same update, without which a running one stays in its queue.
        suspend: bool,
    },
    /// Changes `spec.suspend` of a RayCluster.
    Suspend {
        /// Name of the cluster.
        cluster: String,
        /// New value.
        suspend: bool,
    },
    /// Changes the owner references of a RayCluster.
    SetOwner {
        /// Name of the cluster.
        cluster: String,
        /// An object that has nothing to do with quota controls it: the first LocalQueue. Otherwise
        /// nothing does.
        owned: bool,
    },
    /// Deletes pods of a RayCluster.
    DeletePods {
        /// Name of the cluster.
        cluster: String,
        /// Maximum number.
        count: usize,
    },
}

/// A kind of Ray objects that are jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RayKind {
    /// A RayCluster.
    RayCluster,
    /// A RayService.
    RayService,
}

impl RayKind {
    /// Returns the kind as the API names it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::RayCluster => "RayCluster",
            Self::RayService => "RayService",
        }
    }
}
