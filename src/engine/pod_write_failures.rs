//! Rejected pod writes of clusters, kept while the write is still planned. A cluster reports in its
//! status why pods are missing, and each pod is retried with its own backoff while everything else
//! proceeds. The records are lost on restart; the new process retries and gets the same rejections.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;

use super::planner_key::PlannerKey;
use super::work_queue::backoff_after;
use super::{Engine, WriteError};
use sluice_api::ray::names;
use sluice_plan::ObjectKey;
use sluice_plan::{ObjectRef, Plan, Write, WriteOp};
use sluice_raycluster::{RayNodeType, ReplicaFailure};

/// Rejected pod writes, by cluster and pod.
#[derive(Debug, Default)]
pub(super) struct PodWriteFailures {
    by_cluster: BTreeMap<ObjectKey, BTreeMap<ObjectRef, FailedPodWrite>>,
}

/// A rejected pod write and its backoff.
#[derive(Debug)]
struct FailedPodWrite {
    failure: ReplicaFailure,
    /// Number of consecutive failures.
    consecutive_failures: u32,
    /// Time of the next attempt.
    retry_at: Timestamp,
}

impl PodWriteFailures {
    /// Returns the failure that a cluster reports: that of the first pod, in order of references.
    pub(super) fn reported_failure(&self, cluster: &ObjectKey) -> Option<&ReplicaFailure> {
        self.by_cluster.get(cluster)?.values().next().map(|standing| &standing.failure)
    }

    /// Drops the failures of a deleted cluster.
    pub(super) fn forget(&mut self, cluster: &ObjectKey) {
        self.by_cluster.remove(cluster);
    }

    /// Records a failure; the backoff doubles with each consecutive one.
    fn record(&mut self, cluster: ObjectKey, pod: ObjectRef, setback: ReplicaFailure, now: Timestamp) {
        let standing = self.by_cluster.entry(cluster).or_default();
        let before = standing.get(&pod).map_or(0, |before| before.consecutive_failures);
        let until = now.saturating_add(backoff_after(before)).unwrap_or(Timestamp::MAX);
        standing.insert(
            pod,
            FailedPodWrite { failure: setback, consecutive_failures: before.saturating_add(1), retry_at: until },
        );
    }

    /// Returns the time of the next attempt for a pod; `None` if its last write was not rejected.
    fn retry_at(&self, cluster: &ObjectKey, pod: &ObjectRef) -> Option<Timestamp> {
        self.by_cluster.get(cluster)?.get(pod).map(|standing| standing.retry_at)
    }

    /// Keeps the failures of pods that still have a planned write; reports whether any was dropped.
    fn retain_planned(&mut self, cluster: &ObjectKey, is_wanted: impl Fn(&ObjectRef) -> bool) -> bool {
        let Some(standing) = self.by_cluster.get_mut(cluster) else { return false };
        let before = standing.len();
        standing.retain(|pod, _| is_wanted(pod));
        let is_less = standing.len() < before;
        if standing.is_empty() {
            self.by_cluster.remove(cluster);
        }
        is_less
    }
}

impl Engine {
    /// Records that a write of this planner succeeded.
    pub(super) fn on_write_succeeded(&mut self, planner: &PlannerKey, write: &Write) {
        if let Some(cluster) = planner.ray_cluster() {
            self.pod_write_failures.retain_planned(cluster, |pod| *pod != write.target);
        }
        self.work_queue.reset_backoff(planner);
    }

    /// Records that a write of this planner failed and schedules a retry with backoff. If the API
    /// server rejects the creation or deletion of a pod, only that pod backs off.
    pub(super) fn on_write_failed(&mut self, planner: PlannerKey, write: &Write, error: &WriteError, now: Timestamp) {
        match (planner.ray_cluster(), self.replica_failure(write, error)) {
            (Some(cluster), Some(setback)) => {
                self.pod_write_failures.record(cluster.clone(), write.target.clone(), setback, now);
                self.work_queue.enqueue(planner);
            }
            _ => self.work_queue.requeue_with_backoff(planner, now),
        }
    }

    /// Removes pod writes in backoff from a plan. Failures of pods without a planned write are
    /// dropped, and the planner runs again to update the status.
    pub(super) fn apply_backoff(&mut self, planner: &PlannerKey, plan: &mut Plan, now: Timestamp) {
        let Some(cluster) = planner.ray_cluster() else { return };
        if self.pod_write_failures.retain_planned(cluster, |pod| plan.writes.iter().any(|write| write.target == *pod)) {
            self.work_queue.enqueue(planner.clone());
        }
        let backoff_end =
            |write: &Write| self.pod_write_failures.retry_at(cluster, &write.target).filter(|until| *until > now);
        if let Some(first) = plan.writes.iter().filter_map(backoff_end).min() {
            plan.wake_by(first);
        }
        plan.writes.retain(|write| backoff_end(write).is_none());
    }

    /// Returns the failure to report for a rejected pod write; `None` for writes of other kinds,
    /// and for conflicts, overload (HTTP 429, 503, 504) and missing responses, which say nothing
    /// about the pod.
    fn replica_failure(&self, write: &Write, error: &WriteError) -> Option<ReplicaFailure> {
        let is_rejection = !error.is_conflict() && error.code.is_some_and(|code| !matches!(code, 429 | 503 | 504));
        if !is_rejection {
            return None;
        }
        ReplicaFailure::of_write(write, self.pod_role_of(write)?, &error.message)
    }

    /// Returns the Ray role of the pod that a write targets; `None` if the target is not a Ray pod.
    fn pod_role_of(&self, write: &Write) -> Option<RayNodeType> {
        if write.target.kind != "Pod" {
            return None;
        }
        let key = ObjectKey::new(write.target.namespace.clone().unwrap_or_default(), write.target.name.clone());
        let observed =
            || self.cluster_state.pods.get(&key)?.metadata.labels.as_ref()?.get(names::NODE_TYPE_LABEL).cloned();
        let node_type = match &write.op {
            WriteOp::Create(pod) => {
                let labels = pod.pointer("/metadata/labels").and_then(Value::as_object);
                labels.and_then(|labels| labels.get(names::NODE_TYPE_LABEL)?.as_str().map(str::to_owned))
            }
            WriteOp::Patch(_) | WriteOp::PatchStatus(_) | WriteOp::Delete { .. } => observed(),
        };
        Some(if node_type? == RayNodeType::Head.to_string() { RayNodeType::Head } else { RayNodeType::Worker })
    }
}
