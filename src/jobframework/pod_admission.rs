//! Dry runs of a job's pods: no quota is requested for pods that the API server rejects, or kept if it
//! rejects them later, as it would be held for nothing.

use jiff::SignedDuration;

use super::demand_error::DemandError;
use super::quota_request::QuotaRequest;
use super::slice_record::SliceRecord;
use super::slices::Slice;
use super::types::{Member, PodGroupDemand};
use sluice_api::condition;
use sluice_api::kueue::{Workload, names};
use sluice_plan::{Plan, PodDryRun, PodVerdict, Write};
use sluice_queue::{EvictionReason, status};

/// Time after admission in which a job without pods is not asked about: something else creates them.
const GRACE_PERIOD: SignedDuration = SignedDuration::from_mins(1);
/// Time until a job that still has no pod is asked about again.
const RECHECK_INTERVAL: SignedDuration = SignedDuration::from_mins(10);

/// Evicts an admitted job that has no pod because the API server rejects them all, by rules that are
/// newer than the dry run before its admission. Otherwise it would hold quota for nothing.
pub(super) fn evict_if_rejected(request: &QuotaRequest<'_>, held: &Slice<'_>, plan: &mut Plan) {
    let context = request.context;
    let has_pods = |member: &Member| !member.live_pods.is_empty() || !member.gated_pods.is_empty();
    let is_open = request.members.iter().any(|member| member.is_open);
    let admitted = condition::get_true(held.workload.conditions(), names::ADMITTED);
    let Some(admitted) = admitted.filter(|_| is_open && !request.members.iter().any(has_pods)) else { return };
    let settled_at = admitted.last_transition_time.0 + GRACE_PERIOD;
    if context.now < settled_at {
        return plan.wake_by(settled_at);
    }
    match accepts_pods(request, &held.record, plan) {
        Ok(_) => plan.wake_by(context.now + RECHECK_INTERVAL),
        Err(DemandError::PodsRejected { message, .. }) => {
            let reason = EvictionReason::PodsRejected(message);
            plan.write(Write::patch_status(held.workload, &status::evicted(held.workload, &reason, context.now)));
        }
        Err(_) => {}
    }
}

/// Reports whether a pending slice was evicted because its pods are rejected. It would be admitted
/// again before they are accepted.
pub(super) fn was_evicted_for_rejection(slice: &Workload) -> bool {
    let evicted = condition::get_true(slice.conditions(), names::EVICTED);
    evicted.is_some_and(|evicted| evicted.reason == names::evicted_reason::PODS_REJECTED)
}

/// Returns true if the API server accepts the pods of every group in `record` that has no pod yet, or
/// if they are not known in full, and false if it has not answered. Plans the dry runs that are due.
///
/// # Errors
/// If it rejects the pods of a group.
pub(super) fn accepts_pods(
    request: &QuotaRequest<'_>,
    record: &SliceRecord,
    plan: &mut Plan,
) -> Result<bool, DemandError> {
    let context = request.context;
    if !context.creates_pods && !context.job.has_complete_templates() {
        return Ok(true);
    }
    let mut is_answered = true;
    let members = request.members.iter().filter(|member| record.member(&member.uid).is_some());
    for (member, group) in members.flat_map(groups_without_pods) {
        let namespace = context.job.meta().namespace.as_deref().unwrap_or_default();
        let dry_run = PodDryRun::new(namespace, &format!("{}-{}", member.name, group.pod_set), &group.template);
        match (context.pod_verdict)(&dry_run.id) {
            PodVerdict::Accepted => {}
            PodVerdict::Unknown => {
                is_answered = false;
                plan.pod_dry_runs.push(dry_run);
            }
            PodVerdict::Rejected { message, retry_at } => {
                if retry_at <= context.now {
                    plan.pod_dry_runs.push(dry_run);
                } else {
                    plan.wake_by(retry_at);
                }
                return Err(DemandError::PodsRejected { pod_set: group.pod_set.clone(), message });
            }
        }
    }
    Ok(is_answered)
}

/// Returns the groups of a member that need pods and have none. Where there are pods, the API server
/// has accepted such ones.
fn groups_without_pods(member: &Member) -> impl Iterator<Item = (&Member, &PodGroupDemand)> {
    let groups = member.groups.as_ref().as_ref().map(Vec::as_slice).unwrap_or_default();
    let has_pods = |group: &PodGroupDemand| {
        member.live_pods.keys().chain(member.gated_pods.iter().map(|pod| &pod.kind)).any(|kind| *kind == group.kind())
    };
    let missing = groups.iter().filter(move |group| group.count > 0 && !has_pods(group));
    missing.map(move |group| (member, group))
}
