//! Dry runs of a job's pods: no quota is requested for pods that the API server rejects, as it would
//! be held for nothing.

use super::demand_error::DemandError;
use super::quota_request::QuotaRequest;
use super::slice_record::SliceRecord;
use super::types::{Member, PodGroupDemand};
use sluice_plan::{Plan, PodDryRun, PodVerdict};

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
