//! Retention: deletes finished Workloads, and jobs that the queue manager deactivated, once their
//! time is over.

use jiff::{SignedDuration, Timestamp};

use super::context::ReconcileContext;
use super::slices::{Slice, SlicePhase, covering};
use sluice_api::condition;
use sluice_api::kueue::{Workload, names};
use sluice_plan::{EventRecord, ObjectRef, Plan, Write, WriteRank};
use sluice_queue::status;

/// Times after which objects are deleted (kueue v0.19.2 `apis/config/v1beta2/configuration_types.go`,
/// `objectRetentionPolicies.workloads`). Zero deletes immediately, `None` never.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RetentionPolicy {
    /// Time from the end of a Workload to its deletion.
    pub after_finished: Option<SignedDuration>,
    /// Time from the eviction of a Workload that the queue manager deactivated to the deletion of its
    /// job.
    pub after_deactivated_by_kueue: Option<SignedDuration>,
}

/// Deletes the slices of a finished job once all of them are finished, each at its own time: until then
/// a finished slice may link another to the one that it replaced.
///
/// Of a job that is not finished, `slice_lifecycle` deletes what it doesn't need any more. It needs the
/// newest slice, whose sequence number the next one follows.
pub(super) fn delete_finished_slices(context: &ReconcileContext<'_>, slices: &[Slice<'_>], plan: &mut Plan) {
    if slices.iter().any(|slice| slice.phase != SlicePhase::Finished) {
        return;
    }
    for slice in slices {
        delete_finished(context.retention, slice.workload, context.now, plan);
    }
}

/// Deletes a finished Workload once its retention is over (kueue v0.19.2
/// `pkg/controller/core/workload_controller.go`, `Reconcile`).
pub fn delete_finished(policy: RetentionPolicy, workload: &Workload, now: Timestamp, plan: &mut Plan) {
    let Some(retention) = policy.after_finished else { return };
    let Some(finished) = condition::get_true(workload.conditions(), names::FINISHED) else { return };
    if workload.metadata.deletion_timestamp.is_some() || !is_over(finished.last_transition_time.0, retention, now, plan)
    {
        return;
    }
    plan.write(Write::delete(workload).ranked(WriteRank::Cleanup));
    let event = EventRecord::normal(workload, "Deleted", "Deleted finished workload due to elapsed retention");
    plan.events.push(event.only_if_written(&ObjectRef::of(workload)));
}

/// Deletes a job that has been deactivated by the queue manager for as long as its retention (kueue
/// v0.19.2 `pkg/controller/jobframework/reconciler.go`, `handleWorkloadAfterDeactivatedPolicy`). A job
/// that still runs on another slice stays, and one that is being suspended is deleted afterwards, so
/// that nothing else is written to it. Reports whether the plan deletes it.
pub(super) fn delete_deactivated_job(context: &ReconcileContext<'_>, slices: &[Slice<'_>], plan: &mut Plan) -> bool {
    let Some(retention) = context.retention.after_deactivated_by_kueue else { return false };
    let is_terminating = context.job.meta().deletion_timestamp.is_some();
    if is_terminating || covering(slices).is_some() {
        return false;
    }
    let Some(deactivated_at) = deactivated_by_queue_manager(slices) else { return false };
    let job = context.job.reference();
    if !is_over(deactivated_at, retention, context.now, plan) || plan.writes.iter().any(|write| write.target == job) {
        return false;
    }
    plan.write(context.job.delete().ranked(WriteRank::Cleanup));
    let event = context.job.event("Deleted", "Deleted job: deactivation retention period expired");
    plan.events.push(event.only_if_written(&job));
    true
}

/// Returns the time at which the queue manager evicted the current slice because it deactivated it;
/// `None` if it is active, or a user deactivated it.
fn deactivated_by_queue_manager(slices: &[Slice<'_>]) -> Option<Timestamp> {
    let is_current = |slice: &&Slice<'_>| matches!(slice.phase, SlicePhase::Pending | SlicePhase::Evicted);
    let slice = slices.iter().rev().find(is_current).filter(|slice| slice.workload.spec.active == Some(false))?;
    let evicted = condition::get_true(slice.workload.conditions(), names::EVICTED)?;
    status::is_deactivation_with_cause(&evicted.reason).then_some(evicted.last_transition_time.0)
}

/// Reports whether a retention that began at `start` is over; if not, replans at its end.
fn is_over(start: Timestamp, retention: SignedDuration, now: Timestamp, plan: &mut Plan) -> bool {
    let end = start.saturating_add(retention).unwrap_or(Timestamp::MAX);
    if end > now {
        plan.wake_by(end);
    }
    end <= now
}
