//! Status of a Job: conditions, counters, and pods that are not counted yet.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{JobCondition, JobStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Outcomes of a Job. Each has an interim condition while pods remain, and a final one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JobEnd {
    /// Its completions are reached, or a pod of a work queue succeeded and none is active.
    Complete,
    /// More pods failed than its backoff limit allows.
    Failed,
}

impl JobEnd {
    pub(super) const ALL: [Self; 2] = [Self::Complete, Self::Failed];

    /// Returns the type of the condition while pods remain.
    pub(super) fn interim_condition(self) -> &'static str {
        match self {
            Self::Complete => "SuccessCriteriaMet",
            Self::Failed => "FailureTarget",
        }
    }

    /// Returns the type of the final condition.
    pub(super) fn final_condition(self) -> &'static str {
        match self {
            Self::Complete => "Complete",
            Self::Failed => "Failed",
        }
    }

    /// Returns reason and message of both conditions.
    pub(super) fn reason(self) -> (&'static str, &'static str) {
        match self {
            Self::Complete => ("CompletionsReached", "Reached expected number of succeeded pods"),
            Self::Failed => ("BackoffLimitExceeded", "Job has reached the specified backoff limit"),
        }
    }
}

pub(super) fn is_true(status: &JobStatus, kind: &str) -> bool {
    let mut conditions = status.conditions.iter().flatten();
    conditions.any(|condition| condition.type_ == kind && condition.status == "True")
}

/// Sets a condition, unless it would be added as False. Returns true if that changes the status
/// (kubernetes 1.36 `pkg/controller/job/job_controller.go`, `ensureJobConditionStatus`).
pub(super) fn set_condition(
    status: &mut JobStatus,
    now: Timestamp,
    kind: &str,
    value: bool,
    (reason, message): (&str, &str),
) -> bool {
    let at = Some(whole_seconds(now));
    let wanted = JobCondition {
        type_: kind.to_owned(),
        status: if value { "True" } else { "False" }.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_probe_time: at.clone(),
        last_transition_time: at,
    };
    let conditions = status.conditions.get_or_insert_default();
    match conditions.iter_mut().find(|found| found.type_ == kind) {
        Some(found)
            if (&found.status, &found.reason, &found.message) == (&wanted.status, &wanted.reason, &wanted.message) =>
        {
            false
        }
        Some(found) => {
            *found = wanted;
            true
        }
        None if value => {
            conditions.push(wanted);
            true
        }
        None => false,
    }
}

/// Counts recorded pods that have lost their finalizer. Returns true if that changes the status
/// (`cleanUncountedPodsWithoutFinalizers`).
pub(super) fn count_recorded(status: &mut JobStatus, tracked: &BTreeSet<String>) -> bool {
    let uncounted = status.uncounted_terminated_pods.get_or_insert_default();
    let count = |list: &mut Option<Vec<String>>, counter: &mut Option<i32>| {
        let recorded = list.take().unwrap_or_default();
        let (kept, gone): (Vec<String>, Vec<String>) = recorded.into_iter().partition(|uid| tracked.contains(uid));
        *list = Some(kept).filter(|kept| !kept.is_empty());
        let counted = i32::try_from(gone.len()).expect("a small number");
        *counter = non_zero(counter.unwrap_or(0) + counted);
        counted > 0
    };
    let succeeded = count(&mut uncounted.succeeded, &mut status.succeeded);
    let failed = count(&mut uncounted.failed, &mut status.failed);
    succeeded || failed
}

/// Returns a counter as it is encoded: zero is omitted.
pub(super) fn non_zero(number: i32) -> Option<i32> {
    (number != 0).then_some(number)
}

/// Returns a time as objects have it, in whole seconds.
pub(super) fn whole_seconds(time: Timestamp) -> Time {
    Time(Timestamp::from_second(time.as_second()).unwrap_or(time))
}
