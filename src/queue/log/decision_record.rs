//! Decisions of a scheduling cycle in the form of the decision log.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::super::{Decision, EvictionReason};
use sluice_api::kueue::Admission;

/// Decision about one workload. Workloads are named `namespace/name`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum DecisionRecord {
    /// Admits the workload.
    Admit {
        /// The workload.
        workload: String,
        /// Name of the ClusterQueue that admits it.
        cluster_queue: String,
        /// Quota of each pod set.
        pod_sets: Vec<PodSetQuota>,
        /// The slice whose quota it takes over.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        replaces: Option<String>,
    },
    /// Evicts the workload.
    Evict {
        /// The workload.
        workload: String,
        /// Reason of the condition Evicted.
        reason: String,
        /// The preemptor; `None` for other evictions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        preemptor: Option<String>,
        /// Reason of the condition Preempted; `None` for other evictions.
        #[serde(rename = "right", default, skip_serializing_if = "Option::is_none")]
        preemption_reason: Option<String>,
        /// End of the requeue backoff; `None` if the requeue does not depend on time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        requeue_at: Option<Timestamp>,
    },
    /// Preempts a part of the workload.
    #[serde(rename = "giveBack")]
    PreemptPart {
        /// The workload.
        workload: String,
        /// Reason of the condition PartiallyPreempted.
        part: String,
        /// The preemptor.
        preemptor: String,
        /// Preemption reason, spelled as in the condition Preempted.
        #[serde(rename = "right")]
        preemption_reason: String,
    },
    /// Sets the condition DeactivationTarget.
    Deactivate {
        /// The workload.
        workload: String,
        /// Reason of the condition DeactivationTarget.
        cause: String,
    },
    /// Sets `spec.active` to false after the condition DeactivationTarget.
    SetInactive {
        /// The workload.
        workload: String,
    },
    /// Reduces the admission to a scaled-down spec.
    #[serde(rename = "shrink")]
    ReduceAdmission {
        /// The workload.
        workload: String,
        /// Name of the ClusterQueue that admitted it.
        cluster_queue: String,
        /// Remaining quota of each pod set.
        pod_sets: Vec<PodSetQuota>,
    },
    /// Finishes a slice that was replaced by a newer slice with quota.
    #[serde(rename = "replace")]
    FinishReplaced {
        /// The workload.
        workload: String,
        /// The newer slice.
        by: String,
    },
    /// Keeps the workload pending.
    #[serde(rename = "wait")]
    Pending {
        /// The workload.
        workload: String,
        /// Reason of the condition QuotaReserved.
        reason: String,
        /// Message of the condition QuotaReserved.
        #[serde(rename = "sentence")]
        message: String,
    },
}

/// Quota of one pod set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PodSetQuota {
    /// Name of the pod set.
    pub name: String,
    /// Number of pods; `None` for the count of the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<i32>,
    /// Flavor by resource.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub flavors: BTreeMap<String, String>,
}

impl DecisionRecord {
    /// Returns the log form of a decision; `None` for status updates that merely reflect state.
    pub fn from_decision(effect: &Decision) -> Option<Self> {
        let decision = match effect {
            Decision::Admit { workload, admission, replaces } => Self::Admit {
                workload: workload.to_string(),
                cluster_queue: admission.cluster_queue.clone(),
                pod_sets: pod_sets(admission),
                replaces: replaces.as_ref().map(ToString::to_string),
            },
            Decision::Pending { workload, cause: why } => Self::Pending {
                workload: workload.to_string(),
                reason: why.reason().as_str().to_owned(),
                message: why.to_string(),
            },
            Decision::Evict { workload, reason } => evict(workload.to_string(), reason),
            Decision::PreemptPart { workload, part, preemption } => Self::PreemptPart {
                workload: workload.to_string(),
                part: part.as_str().to_owned(),
                preemptor: preemption.preemptor.to_string(),
                preemption_reason: preemption.reason.as_str().to_owned(),
            },
            Decision::Deactivate { workload, cause } => {
                Self::Deactivate { workload: workload.to_string(), cause: cause.as_str().to_owned() }
            }
            Decision::SetInactive { workload } => Self::SetInactive { workload: workload.to_string() },
            Decision::FinishReplaced { workload, replacement: by } => {
                Self::FinishReplaced { workload: workload.to_string(), by: by.workload.to_string() }
            }
            Decision::ReduceAdmission { workload, admission } => Self::ReduceAdmission {
                workload: workload.to_string(),
                cluster_queue: admission.cluster_queue.clone(),
                pod_sets: pod_sets(admission),
            },
            Decision::PartReleased { .. }
            | Decision::ClusterQueueStatus { .. }
            | Decision::CohortStatus { .. }
            | Decision::LocalQueueStatus { .. } => return None,
        };
        Some(decision)
    }
}

impl fmt::Display for DecisionRecord {
    /// Formats the decision as JSON, as in the log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

fn evict(workload: String, reason: &EvictionReason) -> DecisionRecord {
    let (preemptor, right) = match reason {
        EvictionReason::Preempted(preemption) => {
            (Some(preemption.preemptor.to_string()), Some(preemption.reason.as_str().to_owned()))
        }
        _ => (None, None),
    };
    let requeue_at = match reason {
        EvictionReason::PodsReadyTimeout(timeout) => Some(timeout.requeue_at),
        _ => None,
    };
    DecisionRecord::Evict {
        workload,
        reason: reason.as_str().to_owned(),
        preemptor,
        preemption_reason: right,
        requeue_at,
    }
}

fn pod_sets(admission: &Admission) -> Vec<PodSetQuota> {
    let assignments = admission.pod_set_assignments.iter();
    assignments
        .map(|assignment| PodSetQuota {
            name: assignment.name.clone(),
            count: assignment.count,
            flavors: assignment.flavors.clone(),
        })
        .collect()
}
