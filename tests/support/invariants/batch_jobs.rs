//! batch/v1 Jobs: which of them need quota, which pods are theirs, and I2: a Job is resumed only while
//! an admitted slice covers it, or once it creates no more pods, with a gated template.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use sluice_api::kueue::scheduling_gate;

use super::{
    Invariant, JOB_UID_LABEL, OPENED_BY_HAND_ANNOTATION, QUEUE_NAME_LABEL, Violation, controller, is_admitted,
    mentions, object_key, owner_uid, slices_of_job,
};
use crate::history::State;

/// Label of a pod with the name of its Job.
const JOB_NAME_LABEL: &str = "batch.kubernetes.io/job-name";
/// Label of a pod with the uid of its Job.
const CONTROLLER_UID_LABEL: &str = "batch.kubernetes.io/controller-uid";

/// Checks a Job whose `suspend` changed from true to false.
pub(super) fn check_gate(state: &State, was: &Job, job: &Job) -> Vec<Violation> {
    let is_opened = is_suspended(was) && !is_suspended(job) && names_queue(was) && names_queue(job);
    let is_tampered = job.annotations().contains_key(OPENED_BY_HAND_ANNOTATION);
    if !is_opened || is_tampered || has_ray_owner(job) {
        return Vec::new();
    }
    let uid = job.uid().unwrap_or_default();
    let key = object_key(job);
    let is_covered = slices_of_job(state, &uid).any(|slice| is_admitted(slice) && mentions(slice, &uid));
    let uncovered =
        (!is_covered && !is_finishing(job)).then(|| format!("Job {key} was resumed, but no admitted slice covers it"));
    let ungated = (!has_gated_template(job)).then(|| format!("Job {key} was resumed without a scheduling gate"));
    uncovered.into_iter().chain(ungated).map(|message| Violation::new(Invariant::Gate, message)).collect()
}

/// Returns, for a Job with this uid that is charged by its own label, its uid, or `None` if it names
/// no queue. The outer option is `None` if there is no such Job.
pub(super) fn queued_batch_job(state: &State, uid: &str) -> Option<Option<String>> {
    let job = state.batch_job_with_uid(uid).filter(|job| !has_ray_owner(job))?;
    Some(names_queue(job).then(|| uid.to_owned()))
}

/// Reports whether a Job names a queue.
pub fn names_queue(job: &Job) -> bool {
    job.labels().get(QUEUE_NAME_LABEL).is_some_and(|queue| !queue.is_empty())
}

/// Reports whether an object of Ray controls a Job: it may be covered by slices of that one.
fn has_ray_owner(job: &Job) -> bool {
    controller(job).is_some_and(|owner| owner.api_version.starts_with("ray.io/"))
}

pub(super) fn has_gated_template(job: &Job) -> bool {
    let template = job.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    template.is_some_and(scheduling_gate::has_gate)
}

/// Reports whether the Job controller creates no more pods for a Job, although it is not finished.
fn is_finishing(job: &Job) -> bool {
    let conditions = job.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut met = conditions.filter(|condition| condition.status == "True");
    met.any(|condition| matches!(condition.type_.as_str(), "SuccessCriteriaMet" | "FailureTarget"))
}

fn is_suspended(job: &Job) -> bool {
    job.spec.as_ref().is_some_and(|spec| spec.suspend == Some(true))
}

/// Reports whether the Job controller created a pod, or it was ungated for a RayJob.
pub(super) fn is_of_batch_job(pod: &Pod) -> bool {
    pod.labels().contains_key(JOB_UID_LABEL) || pod.labels().contains_key(JOB_NAME_LABEL)
}

/// Returns the uid of the Job of a pod, also if the Job was deleted and left the pod. For a submitter
/// pod it is the uid of the RayJob that it was ungated for.
pub fn job_uid_of_pod(pod: &Pod) -> Option<String> {
    let label = |name: &str| pod.labels().get(name).cloned();
    let of_job = || owner_uid(pod).or_else(|| label(CONTROLLER_UID_LABEL));
    label(JOB_UID_LABEL).or_else(|| label(JOB_NAME_LABEL).and_then(|_| of_job()))
}
