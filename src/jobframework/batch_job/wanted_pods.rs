//! Pods that the Job controller keeps active, as far as the status of the Job tells.

use k8s_openapi::api::batch::v1::{Job as BatchJob, JobSpec};
use k8s_openapi::api::core::v1::Pod;
use kube_core::ResourceExt;

use super::{COMPLETE, FAILED, true_condition};
use sluice_api::pod;

/// Finalizer of a pod whose end the Job controller has not recorded.
const TRACKING_FINALIZER: &str = "batch.kubernetes.io/job-tracking";
/// Conditions of a Job whose remaining pods are deleted before it is Complete or Failed.
pub(super) const FINISHING: [&str; 4] = ["SuccessCriteriaMet", "FailureTarget", COMPLETE, FAILED];

/// Returns the number of pods that the Job controller keeps active (kubernetes v1.36
/// `pkg/controller/job/job_controller.go`, `manageJob` and `syncJob`):
///
/// - with completions, no more than remain; an index that has failed does not, and one beyond the
///   completions, which may have been lowered, counts for nothing;
/// - without them, those that are active once a pod has succeeded;
/// - none once the Job is about to finish: by its success or failure policy, its deadline or its
///   backoff limit.
pub(super) fn wanted_pods(job: &BatchJob, spec: &JobSpec) -> i32 {
    let parallelism = spec.parallelism.unwrap_or(1);
    let status = job.status.as_ref();
    if true_condition(job, &FINISHING).is_some() {
        return 0;
    }
    let indexes = |list: Option<&String>| count_indexes(list.map_or("", String::as_str), spec.completions);
    let succeeded = if spec.completion_mode.as_deref() == Some("Indexed") {
        // An index is listed as soon as the success of its pod is recorded.
        indexes(status.and_then(|status| status.completed_indexes.as_ref()))
    } else {
        let counted = status.and_then(|status| status.succeeded).unwrap_or(0);
        counted.saturating_add(i32::try_from(uncounted_successes(job).count()).unwrap_or(i32::MAX))
    };
    let failed = indexes(status.and_then(|status| status.failed_indexes.as_ref()));
    match spec.completions {
        Some(completions) => parallelism.min(completions.saturating_sub(succeeded).saturating_sub(failed).max(0)),
        None if succeeded > 0 => status.and_then(|status| status.active).unwrap_or(0),
        None => parallelism,
    }
}

/// Returns the number of indexes below `completions` in a list like `1,3-5` (kubernetes v1.36
/// `pkg/controller/job/indexed_job_utils.go`, `parseIndexesFromString`).
fn count_indexes(list: &str, completions: Option<i32>) -> i32 {
    let end = completions.unwrap_or(i32::MAX);
    let count = |interval: &str| {
        let (first, last) = interval.split_once('-').unwrap_or((interval, interval));
        let (first, last) = (first.trim().parse::<i32>().ok()?, last.trim().parse::<i32>().ok()?);
        Some(last.saturating_add(1).min(end).saturating_sub(first).max(0))
    };
    list.split(',').filter_map(count).fold(0, i32::saturating_add)
}

/// Returns the uids of the pods whose success the Job controller has recorded, and not added to
/// `status.succeeded` yet.
fn uncounted_successes(job: &BatchJob) -> impl Iterator<Item = &String> {
    let uncounted = job.status.as_ref().and_then(|status| status.uncounted_terminated_pods.as_ref());
    uncounted.into_iter().flat_map(|uncounted| uncounted.succeeded.iter().flatten())
}

/// Reports whether the status of a Job includes the success of a pod: no pod is wanted in its place.
/// The Job controller removes its finalizer from a pod once it has recorded the pod.
pub(super) fn is_counted_success(job: &BatchJob, pod: &Pod) -> bool {
    let is_recorded = || uncounted_successes(job).any(|uid| Some(uid) == pod.metadata.uid.as_ref());
    pod::has_succeeded(pod) && (!pod.finalizers().iter().any(|name| name == TRACKING_FINALIZER) || is_recorded())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::super::groups;
    use super::*;

    #[rstest]
    #[case::no_pod_has_succeeded(json!({"parallelism": 3}), json!({"active": 2}), 3)]
    #[case::default_parallelism(json!({}), json!({}), 1)]
    #[case::scaled_to_zero(json!({"parallelism": 0}), json!({}), 0)]
    #[case::completions_remain(json!({"parallelism": 3, "completions": 9}), json!({"active": 3, "succeeded": 4}), 3)]
    #[case::fewer_completions_remain(json!({"parallelism": 3, "completions": 5}), json!({"active": 1, "succeeded": 4}), 1)]
    #[case::parallelism_above_completions(json!({"parallelism": 5, "completions": 3}), json!({"active": 3}), 3)]
    #[case::parallelism_raised_above_what_remains(
        json!({"parallelism": 9, "completions": 5}),
        json!({"active": 3, "succeeded": 2}),
        3
    )]
    #[case::recorded_success(
        json!({"parallelism": 3, "completions": 3}),
        json!({"active": 2, "succeeded": 0, "uncountedTerminatedPods": {"succeeded": ["a"]}}),
        2
    )]
    #[case::recorded_index(
        json!({"parallelism": 3, "completions": 3, "completionMode": "Indexed"}),
        json!({"active": 2, "succeeded": 1, "completedIndexes": "0", "uncountedTerminatedPods": {"succeeded": ["a"]}}),
        2
    )]
    #[case::indexes_failed(
        json!({"parallelism": 5, "completions": 5, "completionMode": "Indexed"}),
        json!({"active": 1, "succeeded": 1, "completedIndexes": "4", "failedIndexes": "0,2-3"}),
        1
    )]
    #[case::completions_lowered_below_an_index_that_is_done(
        json!({"parallelism": 2, "completions": 2, "completionMode": "Indexed"}),
        json!({"succeeded": 2, "completedIndexes": "1-2"}),
        1
    )]
    #[case::completions_lowered_below_an_index_that_failed(
        json!({"parallelism": 2, "completions": 2, "completionMode": "Indexed"}),
        json!({"failedIndexes": "1-2"}),
        1
    )]
    #[case::every_index_is_done(
        json!({"parallelism": 3, "completions": 3, "completionMode": "Indexed"}),
        json!({"succeeded": 1, "completedIndexes": "1", "failedIndexes": "0,2"}),
        0
    )]
    #[case::success_policy_is_met(
        json!({"parallelism": 3, "completions": 3}),
        json!({"active": 2, "succeeded": 1, "conditions": [{"type": "SuccessCriteriaMet", "status": "True"}]}),
        0
    )]
    #[case::pod_failure_policy_fails_the_job(
        json!({"parallelism": 3}),
        json!({"active": 2, "conditions": [{"type": "FailureTarget", "status": "True"}]}),
        0
    )]
    #[case::terminating_pods_are_replaced(json!({"parallelism": 3}), json!({"active": 2, "terminating": 1}), 3)]
    #[case::more_successes_than_completions(json!({"parallelism": 3, "completions": 3}), json!({"succeeded": 4}), 0)]
    #[case::work_queue_is_empty(json!({"parallelism": 3}), json!({"active": 2, "succeeded": 1}), 2)]
    #[case::work_queue_is_empty_and_one_failed(json!({"parallelism": 3}), json!({"active": 1, "succeeded": 1, "failed": 1}), 1)]
    #[case::work_queue_is_empty_by_a_recorded_success(
        json!({"parallelism": 3}),
        json!({"active": 2, "uncountedTerminatedPods": {"succeeded": ["a"]}}),
        2
    )]
    #[case::work_queue_is_empty_and_scaled(json!({"parallelism": 9}), json!({"active": 2, "succeeded": 1}), 2)]
    #[case::work_queue_is_done(json!({"parallelism": 3}), json!({"succeeded": 3}), 0)]
    fn quota_covers_what_the_job_controller_keeps_active(
        #[case] spec: Value,
        #[case] status: Value,
        #[case] expected: u32,
    ) {
        let mut job = json!({"metadata": {"name": "sum"}, "spec": spec, "status": status});
        job["spec"]["template"] = json!({"spec": {"containers": []}});
        let job: BatchJob = serde_json::from_value(job).expect("a Job");

        let groups = groups(&job).expect("valid");

        assert_eq!(groups[0].count, expected);
    }

    #[rstest]
    #[case::none("", 0)]
    #[case::one("7", 1)]
    #[case::intervals("0,2-3,5", 4)]
    #[case::last_interval("1,3-5", 4)]
    fn indexes_are_counted(#[case] list: &str, #[case] expected: i32) {
        assert_eq!(count_indexes(list, None), expected);
    }
}
