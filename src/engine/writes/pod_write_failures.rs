//! Rejected pod writes of clusters, kept while the write is still planned. A cluster reports in its
//! status why pods are missing, and each pod is retried with its own backoff while everything else
//! proceeds. The records are lost on restart; the new process retries and gets the same rejections.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube_core::ResourceExt;
use serde_json::Value;

use super::planner_backoffs::{backoff_end, forgotten_at};
use super::{PlannerKey, WriteError};
use sluice_api::ray::names;
use sluice_plan::{ObjectRef, Write, WriteOp};
use sluice_raycluster::{RayNodeType, ReplicaFailure};

/// Rejected pod writes, by planner and pod.
#[derive(Debug, Clone, Default)]
pub(super) struct PodWriteFailures {
    by_planner: BTreeMap<PlannerKey, BTreeMap<ObjectRef, FailedPodWrite>>,
}

/// A rejected pod write and its backoff.
#[derive(Debug, Clone)]
struct FailedPodWrite {
    failure: ReplicaFailure,
    /// Number of consecutive failures.
    consecutive_failures: u32,
    /// Time of the next attempt.
    retry_at: Timestamp,
}

impl PodWriteFailures {
    /// Returns the failure that a planner reports: that of the first pod, in order of references.
    pub(super) fn reported_failure(&self, planner: &PlannerKey) -> Option<&ReplicaFailure> {
        self.by_planner.get(planner)?.values().next().map(|failed| &failed.failure)
    }

    /// Drops the failures of a planner whose cluster is deleted.
    pub(super) fn forget(&mut self, planner: &PlannerKey) {
        self.by_planner.remove(planner);
    }

    /// Records a failure; the backoff doubles with each consecutive one.
    pub(super) fn record(&mut self, planner: PlannerKey, pod: ObjectRef, failure: ReplicaFailure, now: Timestamp) {
        let of_planner = self.by_planner.entry(planner).or_default();
        let before = of_planner.get(&pod).map_or(0, |failed| failed.consecutive_failures);
        let failed = FailedPodWrite {
            failure,
            consecutive_failures: before.saturating_add(1),
            retry_at: backoff_end(before, now),
        };
        of_planner.insert(pod, failed);
    }

    /// Records that a write to `pod` succeeded.
    pub(super) fn on_succeeded(&mut self, planner: &PlannerKey, pod: &ObjectRef) {
        self.retain(planner, |failed| failed != pod);
    }

    /// Returns the time of the next attempt for a pod; `None` if its last write was not rejected.
    pub(super) fn retry_at(&self, planner: &PlannerKey, pod: &ObjectRef) -> Option<Timestamp> {
        self.by_planner.get(planner)?.get(pod).map(|failed| failed.retry_at)
    }

    /// Keeps the failures of pods that are still written; reports whether any was dropped.
    pub(super) fn retain_planned(&mut self, planner: &PlannerKey, writes: &[Write]) -> bool {
        self.retain(planner, |pod| writes.iter().any(|write| write.target == *pod))
    }

    /// Drops the failures of pods that are no longer retried; returns the planners that reported
    /// them.
    pub(super) fn expire(&mut self, now: Timestamp) -> BTreeSet<PlannerKey> {
        let mut changed = BTreeSet::new();
        self.by_planner.retain(|planner, pods| {
            if pods.extract_if(.., |_, failed| forgotten_at(failed.retry_at) <= now).count() > 0 {
                changed.insert(planner.clone());
            }
            !pods.is_empty()
        });
        changed
    }

    /// Returns the time at which [`expire`](Self::expire) drops the next failure.
    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        self.by_planner.values().flat_map(BTreeMap::values).map(|failed| forgotten_at(failed.retry_at)).min()
    }

    /// Returns the number of planners with failures.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_planner.len()
    }

    /// Keeps the failures of pods that are `wanted`; reports whether any was dropped.
    fn retain(&mut self, planner: &PlannerKey, wanted: impl Fn(&ObjectRef) -> bool) -> bool {
        let Some(pods) = self.by_planner.get_mut(planner) else { return false };
        let before = pods.len();
        pods.retain(|pod, _| wanted(pod));
        let is_less = pods.len() < before;
        if pods.is_empty() {
            self.by_planner.remove(planner);
        }
        is_less
    }
}

/// Returns the failure to report for a rejected pod write, whose pod is `observed`; `None` for
/// writes of other kinds, and for conflicts, overload (HTTP 429, 503, 504) and missing responses,
/// which say nothing about the pod.
pub(super) fn replica_failure(write: &Write, error: &WriteError, observed: Option<&Pod>) -> Option<ReplicaFailure> {
    let is_rejection = !error.is_conflict() && error.code.is_some_and(|code| !matches!(code, 429 | 503 | 504));
    if !is_rejection || write.target.kind != "Pod" {
        return None;
    }
    ReplicaFailure::of_write(write, node_type(write, observed)?, &error.message)
}

/// Returns the Ray role of the pod that a write targets; `None` if it is not a Ray pod.
fn node_type(write: &Write, observed: Option<&Pod>) -> Option<RayNodeType> {
    let node_type = match &write.op {
        WriteOp::Create(pod) => {
            let labels = pod.pointer("/metadata/labels").and_then(Value::as_object);
            labels.and_then(|labels| labels.get(names::NODE_TYPE_LABEL)?.as_str())
        }
        WriteOp::Patch(_) | WriteOp::PatchStatus(_) | WriteOp::Delete { .. } => {
            observed.and_then(|pod| pod.labels().get(names::NODE_TYPE_LABEL)).map(String::as_str)
        }
    };
    Some(if node_type? == RayNodeType::Head.to_string() { RayNodeType::Head } else { RayNodeType::Worker })
}
