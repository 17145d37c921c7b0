//! Adoption of jobs that ran before they were queued, or on a Workload of Kueue.
//!
//! Their pods keep running until the queue has made its first decision, so nothing stops if there
//! is quota, and a job of another operator is adopted as it is. (Kueue v0.19.2 stops such a job
//! first: `pkg/controller/jobframework/reconciler.go`, `ReconcileGenericJob`.)

use jiff::SignedDuration;

use super::context::ReconcileContext;
use super::slice_record::MemberShare;
use super::slices::{Slice, SlicePhase};
use super::types::Member;
use sluice_api::condition;
use sluice_api::kueue::names;
use sluice_plan::{ObjectKey, Plan};
use sluice_queue::{Decision, DecisionTarget};

/// Time to wait for the first decision of the queue.
const FIRST_DECISION_TIMEOUT: SignedDuration = SignedDuration::from_secs(10);
/// Number of consecutive write failures that takes as long as [`FIRST_DECISION_TIMEOUT`], with backoff. After
/// that the queue counts as unreachable.
pub(super) const MAX_FAILURES: u32 = 8;

/// Returns true while the job waits for the first decision of the queue, or for the admission that
/// the queue has decided on since. `can_request` is false if its demand could not be requested.
pub(super) fn awaits_first_decision(
    context: &ReconcileContext<'_>,
    slices: &[Slice<'_>],
    can_request: bool,
    plan: &mut Plan,
) -> bool {
    let is_asked = can_request && context.job.wants_to_run() && context.consecutive_failures < MAX_FAILURES;
    let is_undecided = |slice: &Slice<'_>| {
        slice.phase == SlicePhase::Pending
            && condition::get(slice.workload.conditions(), names::QUOTA_RESERVED).is_none()
    };
    let is_being_admitted = |slice: &Slice<'_>| is_being_admitted(context, slice);
    if !is_asked || !slices.iter().all(|slice| is_undecided(slice) || is_being_admitted(slice)) {
        return false;
    }
    if slices.iter().any(is_being_admitted) {
        return true;
    }
    let created =
        slices.iter().filter_map(|slice| slice.workload.metadata.creation_timestamp.as_ref()).map(|time| time.0);
    let Some(until) = created.min().and_then(|created| created.checked_add(FIRST_DECISION_TIMEOUT).ok()) else {
        return true;
    };
    if until > context.now {
        plan.wake_by(until);
    }
    until > context.now
}

/// Returns true if the queue admits a pending slice that was never evicted: the Workload may still
/// say that it is pending, in particular after a restart.
fn is_being_admitted(context: &ReconcileContext<'_>, slice: &Slice<'_>) -> bool {
    let decision = || context.scheduler.decision_for(&DecisionTarget::Workload(ObjectKey::of(slice.workload)));
    slice.phase == SlicePhase::Pending
        && condition::get(slice.workload.conditions(), names::EVICTED).is_none()
        && matches!(decision(), Some(Decision::Admit { .. }))
}

/// Returns true if a member that no slice covers yet keeps running meanwhile: it has pods, and no
/// more of them can start.
pub(super) fn keeps_running(context: &ReconcileContext<'_>, member: &Member) -> bool {
    let none = MemberShare { name: member.name.clone(), uid: member.uid.clone(), pods: Vec::new() };
    !member.live_pods.is_empty() && context.job.ungated_overrun(member, &none).is_none()
}

/// Returns true if a member that runs on a Workload of Kueue keeps running until a slice replaces that
/// Workload: its quota is for the pods of this member alone, and no more of them can start.
pub(super) fn runs_on_workload_of_kueue(
    context: &ReconcileContext<'_>,
    held: &Slice<'_>,
    member: &Member,
    members: &[Member],
) -> bool {
    let runs_alone = members.iter().all(|other| other.uid == member.uid || other.live_pods.is_empty());
    runs_alone && held.is_unrecorded_quota_for(member) && keeps_running(context, member)
}
