//! Jobs that ran before they came into a queue. What runs of them runs on until the queue has had its first say: where there is quota
//! for it, nothing has to stop. So what another operator ran is taken over as it is. (Kueue v0.19.2 stops such a job first:
//! `pkg/controller/jobframework/reconciler.go`, `ReconcileGenericJob`.)

use jiff::SignedDuration;

use super::record::MemberShare;
use super::slices::{Phase, Slice};
use super::{JobView, Member};
use sluice_api::condition;
use sluice_api::kueue::names;
use sluice_plan::Plan;

/// For how long the first word of the queue is waited for.
const PATIENCE: SignedDuration = SignedDuration::from_secs(10);
/// So many failures in a row take as long, with the pauses between them: the queue can't be asked.
pub(super) const FAILURES: u32 = 8;

/// Whether the queue has yet to say anything of this job, and is waited for. `asked` tells whether it could be asked at all.
pub(super) fn is_unjudged(view: &JobView<'_>, slices: &[Slice<'_>], asked: bool, plan: &mut Plan) -> bool {
    let is_untouched = |slice: &Slice<'_>| {
        let conditions = slice.workload.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        slice.phase == Phase::Waiting && condition::get(conditions, names::QUOTA_RESERVED).is_none()
    };
    let is_asked = asked && view.job.wants_to_run() && view.failures < FAILURES;
    if !is_asked || !slices.iter().all(is_untouched) {
        return false;
    }
    let made = slices.iter().filter_map(|slice| slice.workload.metadata.creation_timestamp.as_ref()).map(|time| time.0);
    let Some(until) = made.min().and_then(|made| made.checked_add(PATIENCE).ok()) else { return true };
    if until > view.now {
        plan.wake(until);
    }
    until > view.now
}

/// Whether a member that nothing pays for yet runs on meanwhile: it has pods, and more of them are held back.
pub(super) fn runs_on(view: &JobView<'_>, member: &Member) -> bool {
    let none = MemberShare { name: member.name.clone(), uid: member.uid.clone(), pods: Vec::new() };
    !member.live_pods.is_empty() && view.job.unheld(member, &none).is_none()
}
