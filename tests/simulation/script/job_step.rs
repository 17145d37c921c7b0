//! Data model of scripts with batch/v1 Jobs.

use serde::{Deserialize, Serialize};

use super::setup::{ResourceAmounts, is_false};

/// A batch/v1 Job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BatchJob {
    /// Name.
    pub(crate) name: String,
    /// Name of its LocalQueue, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) queue: Option<String>,
    /// Priority class, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) priority: Option<String>,
    /// Completions.
    pub(crate) completions: Completions,
    /// `spec.parallelism`.
    pub(crate) parallelism: u32,
    /// Minimum number of pods for partial admission, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) min_parallelism: Option<u32>,
    /// `spec.backoffLimit`.
    pub(crate) backoff_limit: u32,
    /// `spec.podReplacementPolicy: Failed`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) replaces_failed_only: bool,
    /// Requests of a pod.
    pub(crate) size: ResourceAmounts,
    /// Milliseconds for which a pod is ready before it ends; None runs until it is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) runs_for: Option<u32>,
    /// Share of the pods that fail when they end, in percent.
    #[serde(default)]
    pub(crate) fails_percent: u32,
    /// Circumstances of its creation.
    pub(crate) creation: Creation,
}

/// Completions of a Job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Completions {
    /// None: the Job is done once a pod has succeeded and none is active.
    WorkQueue,
    /// As many successes.
    Count(u32),
    /// A success of each index.
    Indexed(u32),
}

/// Circumstances in which a Job is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Creation {
    /// The mutating webhook of Sluice suspends it and gates its template.
    Webhook,
    /// The webhook is down, and the user suspends it.
    Suspended,
    /// The webhook is down, and the Job may run before Sluice sees it.
    Unsuspended,
}

/// An action on a Job. An action on a Job that does not exist has no effect.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) enum JobAction {
    /// Applies a complete Job. If one of this name is terminating, waits until it is deleted.
    Put(BatchJob),
    /// Changes `spec.parallelism`, and `spec.completions` of an Indexed Job of the same number.
    Scale {
        /// Name of the Job.
        job: String,
        /// New number.
        parallelism: u32,
    },
    /// Changes `spec.suspend`.
    Suspend {
        /// Name of the Job.
        job: String,
        /// New value.
        suspend: bool,
    },
    /// Changes the queue label.
    SetQueue {
        /// Name of the Job.
        job: String,
        /// Name of the LocalQueue. None removes the label.
        queue: Option<String>,
        /// Suspends the Job in the same update, without which a running Job stays in its queue.
        suspend: bool,
    },
    /// Deletes a Job.
    Delete {
        /// Name of the Job.
        job: String,
        /// Propagation policy.
        propagation: Propagation,
    },
    /// Deletes pods of a Job, or those that an orphaning deletion has left.
    DeletePods {
        /// Name of the Job.
        job: String,
        /// State of the pods.
        state: PodState,
        /// Maximum number.
        count: usize,
    },
}

/// Propagation policy of a deletion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Propagation {
    /// Deletes the pods after the Job.
    Background,
    /// Deletes the pods before the Job.
    Foreground,
    /// Leaves the pods.
    Orphan,
}

/// State of pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum PodState {
    /// Without a node.
    Unbound,
    /// Bound, and not ended.
    Bound,
    /// Succeeded or failed.
    Ended,
}

impl BatchJob {
    /// Returns the requests of as many pods as may run at a time.
    pub(crate) fn total_requests(&self) -> ResourceAmounts {
        self.size.times(self.parallelism)
    }
}
