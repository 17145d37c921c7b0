//! Pods of a Job: their states, those to delete first, and new ones.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use sluice_api::pod::is_ready;

use super::indexes::{INDEX_ANNOTATION, index_of};

/// Finalizer of a pod whose end the Job controller has not recorded.
pub(super) const TRACKING_FINALIZER: &str = "batch.kubernetes.io/job-tracking";

pub(super) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

pub(super) fn has_succeeded(pod: &Pod) -> bool {
    phase(pod) == "Succeeded"
}

fn has_ended(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// Reports whether a pod has neither ended nor been deleted (kubernetes 1.36
/// `pkg/controller/controller_utils.go`, `IsPodActive`).
pub(super) fn is_active(pod: &Pod) -> bool {
    !has_ended(pod) && pod.metadata.deletion_timestamp.is_none()
}

/// Reports whether a deleted pod has not ended (`IsPodTerminating`).
pub(super) fn is_terminating(pod: &Pod) -> bool {
    !has_ended(pod) && pod.metadata.deletion_timestamp.is_some()
}

/// Reports whether a pod counts as failed: unless only failed pods are replaced, a deleted pod does,
/// too (`isPodFailed`).
pub(super) fn is_failed(pod: &Pod, replaces_failed_only: bool) -> bool {
    phase(pod) == "Failed" || !replaces_failed_only && is_terminating(pod)
}

pub(super) fn is_tracked(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == TRACKING_FINALIZER)
}

/// Returns the time at which a pod ended, or at which it was deleted (`getFinishedTime`).
pub(super) fn finished_at(pod: &Pod) -> Option<Timestamp> {
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    let ends = statuses.filter_map(|status| status.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref());
    let grace = SignedDuration::from_secs(pod.metadata.deletion_grace_period_seconds.unwrap_or(0));
    let deleted = || pod.metadata.deletion_timestamp.as_ref()?.0.checked_sub(grace).ok();
    let created = || Some(pod.metadata.creation_timestamp.as_ref()?.0);
    ends.map(|time| time.0).max().or_else(deleted).or_else(created)
}

/// Returns the pods to delete: for an Indexed Job those with an index of another pod or out of
/// range, and then so many others that `at_least` are deleted. Pods that are not bound go first, then
/// those that do not run or are not ready, then the newest (`activePodsForRemoval`, `ActivePods`).
pub(super) fn pods_to_delete<'a>(job: &JobSpec, mut active: Vec<&'a Pod>, at_least: usize) -> Vec<&'a Pod> {
    let is_ready = |pod: &Pod| is_ready(pod);
    active.sort_by_key(|pod| {
        let is_bound = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
        let created = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
        (is_bound, phase(pod) == "Running", is_ready(pod), Reverse(created))
    });
    let (mut deleted, mut kept) = (Vec::new(), active.clone());
    if let Some(completions) = job.completions.filter(|_| is_indexed(job)) {
        // The pod that would be deleted last keeps its index.
        let mut taken = BTreeSet::new();
        active.reverse();
        let keeps = |pod: &&Pod| index_of(pod, completions).is_some_and(|index| taken.insert(index));
        (kept, deleted) = active.into_iter().partition(keeps);
        kept.reverse();
    }
    let more = at_least.saturating_sub(deleted.len());
    deleted.extend(kept.into_iter().take(more));
    deleted
}

pub(super) fn is_indexed(job: &JobSpec) -> bool {
    job.completion_mode.as_deref() == Some("Indexed")
}

/// Returns a new pod of a Job (`manageJob`). It has an index if the Job is Indexed.
pub(super) fn new_pod(job: &Job, index: Option<i32>) -> Value {
    let template = job.spec.as_ref().map(|spec| &spec.template);
    let mut pod = serde_json::to_value(template).expect("a template is JSON");
    pod["apiVersion"] = "v1".into();
    pod["kind"] = "Pod".into();
    let name = job.metadata.name.clone().unwrap_or_default();
    let metadata = &mut pod["metadata"];
    metadata["generateName"] = format!("{name}-").into();
    metadata["namespace"] = json!(job.metadata.namespace);
    metadata["finalizers"] = json!([TRACKING_FINALIZER]);
    metadata["ownerReferences"] = json!([{
        "apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": job.metadata.uid,
        "controller": true, "blockOwnerDeletion": true,
    }]);
    if let Some(index) = index {
        metadata["generateName"] = format!("{name}-{index}-").into();
        metadata["annotations"][INDEX_ANNOTATION] = index.to_string().into();
        metadata["labels"][INDEX_ANNOTATION] = index.to_string().into();
        pod["spec"]["hostname"] = format!("{name}-{index}").into();
    }
    pod
}
