//! Deletion of finished slices and deactivated jobs after their retention.

use jiff::SignedDuration;
use rstest::rstest;

use super::*;
use crate::retention::{RetentionPolicy, delete_deactivated_job, delete_finished_slices};

/// Retention of a minute for both.
fn one_minute() -> RetentionPolicy {
    let retention = Some(SignedDuration::from_mins(1));
    RetentionPolicy { after_finished: retention, after_deactivated_by_kueue: retention }
}

/// The context of a job `seconds` after its slices have finished or were evicted.
fn context_after<'a>(job: &'a FakeJob, slices: &[&'a Workload], seconds: i64) -> ReconcileContext<'a> {
    let now = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds);
    ReconcileContext { retention: one_minute(), now, ..context(job, slices) }
}

/// Two slices of a job, the first replaced by the second.
fn two_slices() -> [Workload; 2] {
    let (_, first) = serving();
    let mut second = first.clone();
    second.metadata.name = first.metadata.name.as_ref().map(|name| name.replace("-1", "-2"));
    second.metadata.uid = second.metadata.name.clone();
    let annotation = second.annotations_mut().get_mut("sluice.dev/slice").expect("a record");
    *annotation = annotation.replace("\"sequence\":1", "\"sequence\":2");
    [first, second]
}

#[rstest]
#[case::in_time([true, true], 59, 0)]
#[case::expired([true, true], 60, 2)]
#[case::older_one_unfinished([false, true], 60, 0)]
#[case::newer_one_unfinished([true, false], 60, 0)]
fn slices_of_a_finished_job_are_deleted_once_all_are_finished(
    #[case] finished: [bool; 2],
    #[case] seconds: i64,
    #[case] deleted: usize,
) {
    let job = job(Vec::new());
    let slices = two_slices().into_iter().zip(finished);
    let slices = slices.map(|(slice, finished)| if finished { with_condition(slice, names::FINISHED) } else { slice });
    let slices: Vec<Workload> = slices.collect();
    let context = context_after(&job, &slices.iter().collect::<Vec<_>>(), seconds);

    let mut plan = Plan::default();
    delete_finished_slices(&context, &slices::slices_of(context.workloads.iter().copied()), &mut plan);

    assert_eq!((deleted_names(&plan).len(), plan.events.len()), (deleted, deleted));
    let end = Timestamp::UNIX_EPOCH + SignedDuration::from_mins(1);
    assert_eq!(plan.wake_at, (seconds < 60).then_some(end));
}

/// State of the slice of a job.
#[derive(Debug, Clone, Copy)]
struct Deactivated {
    reason: &'static str,
    active: bool,
    /// Another slice covers the job.
    is_covered: bool,
    /// The plan writes to the job already.
    is_written: bool,
    is_terminating: bool,
    seconds: i64,
}

const EXPIRED: Deactivated = Deactivated {
    reason: "DeactivatedDueToRequeuingLimitExceeded",
    active: false,
    is_covered: false,
    is_written: false,
    is_terminating: false,
    seconds: 60,
};

#[rstest]
#[case::expired(EXPIRED, true)]
#[case::for_another_cause(Deactivated { reason: "DeactivatedDueToMaximumExecutionTimeExceeded", ..EXPIRED }, true)]
#[case::in_time(Deactivated { seconds: 59, ..EXPIRED }, false)]
#[case::by_a_user(Deactivated { reason: "Deactivated", ..EXPIRED }, false)]
#[case::evicted_only(Deactivated { reason: "PodsReadyTimeout", ..EXPIRED }, false)]
#[case::reactivated(Deactivated { active: true, ..EXPIRED }, false)]
#[case::running_on_another_slice(Deactivated { is_covered: true, ..EXPIRED }, false)]
#[case::being_suspended(Deactivated { is_written: true, ..EXPIRED }, false)]
#[case::deleted_already(Deactivated { is_terminating: true, ..EXPIRED }, false)]
fn job_deactivated_by_the_queue_manager_is_deleted(#[case] state: Deactivated, #[case] deleted: bool) {
    let [covering, mut slice] = two_slices();
    slice.status = None;
    slice = with_condition(slice, names::EVICTED);
    slice.status.get_or_insert_default().conditions[0].reason = state.reason.to_owned();
    slice.spec.active = Some(state.active);
    let mut job = job(Vec::new());
    job.meta.deletion_timestamp = state.is_terminating.then_some(Time(Timestamp::UNIX_EPOCH));
    let slices: Vec<&Workload> = if state.is_covered { vec![&covering, &slice] } else { vec![&slice] };
    let context = context_after(&job, &slices, state.seconds);

    let mut plan = Plan::default();
    plan.write(state.is_written.then(|| job.set_gate("a", Gate::Closed)).flatten());
    let is_deleted = delete_deactivated_job(&context, &slices::slices_of(slices), &mut plan);

    assert_eq!(is_deleted, deleted);
    let expected = if deleted { vec!["svc".to_owned()] } else { Vec::new() };
    assert_eq!((deleted_names(&plan), plan.events.len()), (expected, usize::from(deleted)));
}
