//! The decisions that a cycle makes, as the log has them.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::super::{Effect, EvictReason};
use sluice_api::kueue::Admission;

/// What was decided about one workload. Workloads are named `namespace/name`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum Decision {
    /// It is admitted.
    Admit {
        /// The workload.
        workload: String,
        /// Name of the ClusterQueue whose quota it gets.
        cluster_queue: String,
        /// What each pod set gets.
        pod_sets: Vec<PodSetQuota>,
        /// The slice whose quota it takes over.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        replaces: Option<String>,
    },
    /// It has to stop.
    Evict {
        /// The workload.
        workload: String,
        /// The reason, as the condition Evicted spells it.
        reason: String,
        /// The workload that gets its quota.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        preemptor: Option<String>,
        /// By which right, as the condition Preempted spells it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        right: Option<String>,
        /// When it comes back, if time decides that.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        requeue_at: Option<Timestamp>,
    },
    /// It has to give up a part of what it holds.
    GiveBack {
        /// The workload.
        workload: String,
        /// The part, as the condition PartiallyPreempted spells it.
        part: String,
        /// The workload that gets its quota.
        preemptor: String,
        /// By which right, as the condition Preempted spells it.
        right: String,
    },
    /// Its status is to say that it is deactivated.
    Deactivate {
        /// The workload.
        workload: String,
        /// Why, as the condition DeactivationTarget spells it.
        cause: String,
    },
    /// Its status says so already, and its spec is to follow.
    SetInactive {
        /// The workload.
        workload: String,
    },
    /// Its admission gets smaller.
    Shrink {
        /// The workload.
        workload: String,
        /// Name of the ClusterQueue whose quota it holds.
        cluster_queue: String,
        /// What each pod set keeps.
        pod_sets: Vec<PodSetQuota>,
    },
    /// It is over, because a newer slice holds quota in its place.
    Replace {
        /// The workload.
        workload: String,
        /// The newer slice.
        by: String,
    },
    /// It waits.
    Wait {
        /// The workload.
        workload: String,
        /// The reason, as the condition QuotaReserved spells it.
        reason: String,
        /// What it is told.
        sentence: String,
    },
}

/// What one pod set gets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PodSetQuota {
    /// Name of the pod set.
    pub name: String,
    /// Number of pods; `None` when it is that of the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<i32>,
    /// The flavor of each resource.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub flavors: BTreeMap<String, String>,
}

impl Decision {
    /// The decision that an effect carries out; `None` for the statuses of queues, which only tell what is so.
    pub fn of(effect: &Effect) -> Option<Self> {
        let decision = match effect {
            Effect::Admit { workload, admission, replaces } => Self::Admit {
                workload: workload.to_string(),
                cluster_queue: admission.cluster_queue.clone(),
                pod_sets: pod_sets(admission),
                replaces: replaces.as_ref().map(ToString::to_string),
            },
            Effect::Pending { workload, why } => Self::Wait {
                workload: workload.to_string(),
                reason: why.reason().as_str().to_owned(),
                sentence: why.to_string(),
            },
            Effect::Evict { workload, reason } => evict(workload.to_string(), reason),
            Effect::GiveBack { workload, part, preemption } => Self::GiveBack {
                workload: workload.to_string(),
                part: part.as_str().to_owned(),
                preemptor: preemption.by.to_string(),
                right: preemption.right.as_str().to_owned(),
            },
            Effect::Deactivate { workload, cause } => {
                Self::Deactivate { workload: workload.to_string(), cause: cause.as_str().to_owned() }
            }
            Effect::SetInactive { workload } => Self::SetInactive { workload: workload.to_string() },
            Effect::FinishReplaced { workload, by } => {
                Self::Replace { workload: workload.to_string(), by: by.workload.to_string() }
            }
            Effect::ShrinkAdmission { workload, admission } => Self::Shrink {
                workload: workload.to_string(),
                cluster_queue: admission.cluster_queue.clone(),
                pod_sets: pod_sets(admission),
            },
            Effect::GivenBack { .. }
            | Effect::ClusterQueueStatus { .. }
            | Effect::CohortStatus { .. }
            | Effect::LocalQueueStatus { .. } => return None,
        };
        Some(decision)
    }
}

impl fmt::Display for Decision {
    /// As in the log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

fn evict(workload: String, reason: &EvictReason) -> Decision {
    let (preemptor, right) = match reason {
        EvictReason::Preempted(preemption) => {
            (Some(preemption.by.to_string()), Some(preemption.right.as_str().to_owned()))
        }
        _ => (None, None),
    };
    let requeue_at = match reason {
        EvictReason::PodsReadyTimeout(timeout) => Some(timeout.requeue_at),
        _ => None,
    };
    Decision::Evict { workload, reason: reason.as_str().to_owned(), preemptor, right, requeue_at }
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
