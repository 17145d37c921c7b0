//! Reasons of evictions, and their words in conditions and statistics.

use super::status::deactivation_target;
use super::{PodsReadyTimeout, Preemption};
use sluice_api::kueue::{Workload, names};

/// The reason that a workload is evicted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EvictionReason {
    /// Its ClusterQueue is being drained (`stopPolicy: HoldAndDrain`).
    ClusterQueueStopped,
    /// Its LocalQueue is being drained (`stopPolicy: HoldAndDrain`).
    LocalQueueStopped,
    /// Its `spec.active` is false.
    Deactivated,
    /// It was preempted by another workload.
    Preempted(Box<Preemption>),
    /// Its pods did not become ready within the timeout.
    PodsReadyTimeout(Box<PodsReadyTimeout>),
    /// It has no pod, and the API server rejects its pods with this message. The job framework evicts
    /// it.
    PodsRejected(String),
}

impl EvictionReason {
    /// Returns the eviction reason as Kueue spells it.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::ClusterQueueStopped => names::evicted_reason::CLUSTER_QUEUE_STOPPED,
            Self::LocalQueueStopped => names::evicted_reason::LOCAL_QUEUE_STOPPED,
            Self::Deactivated => names::evicted_reason::DEACTIVATED,
            Self::Preempted(_) => names::evicted_reason::PREEMPTED,
            Self::PodsReadyTimeout(_) => names::evicted_reason::PODS_READY_TIMEOUT,
            Self::PodsRejected(_) => names::evicted_reason::PODS_REJECTED,
        }
    }

    /// Returns the reason of the condition Evicted. A deactivation by the scheduler includes the
    /// cause (kueue v0.19.2 `pkg/workload/evict/evict.go`).
    pub(super) fn with_cause(&self, workload: &Workload) -> String {
        match (self, deactivation_target(workload)) {
            (Self::Deactivated, Some(target)) => format!("{}DueTo{}", self.as_str(), target.reason),
            _ => self.as_str().to_owned(),
        }
    }

    /// Returns the message of the condition Evicted.
    pub(super) fn message(&self, workload: &Workload) -> String {
        match self {
            Self::ClusterQueueStopped => "The ClusterQueue is stopped".to_owned(),
            Self::LocalQueueStopped => "The LocalQueue is stopped".to_owned(),
            Self::Deactivated => match deactivation_target(workload) {
                Some(target) => format!("The workload is deactivated due to {}", target.message),
                None => "The workload is deactivated".to_owned(),
            },
            Self::Preempted(preemption) => preemption.to_string(),
            Self::PodsReadyTimeout(_) => {
                let meta = &workload.metadata;
                let (namespace, name) = (meta.namespace.as_deref(), meta.name.as_deref());
                format!("Exceeded the PodsReady timeout {}/{}", namespace.unwrap_or_default(), name.unwrap_or_default())
            }
            Self::PodsRejected(message) => format!("It has no pod, and the API server rejects its pods: {message}"),
        }
    }

    /// Returns the underlying cause for the eviction statistics; empty if there is none.
    pub(super) fn underlying_cause(&self, workload: &Workload) -> String {
        match self {
            Self::Deactivated => deactivation_target(workload).map(|target| target.reason.clone()).unwrap_or_default(),
            Self::PodsReadyTimeout(timeout) => timeout.cause.as_str().to_owned(),
            Self::ClusterQueueStopped | Self::LocalQueueStopped | Self::Preempted(_) | Self::PodsRejected(_) => {
                String::new()
            }
        }
    }
}
