//! Condition PodsReady of a slice.
//!
//! Conditions and reasons are those of kueue v0.19.2 (`pkg/controller/jobframework/reconciler.go`,
//! `generatePodsReadyCondition`). Readiness is more precise: Kueue uses the state of a RayCluster
//! and the condition Ready of a RayService, which do not reflect a lost worker. Here every covered
//! pod counts, except those added to pods that ran before (the pending RayCluster of an upgrade, or
//! added workers). While these start, the slice is as ready as the pods that ran before, so that an
//! upgrade that never becomes ready does not evict the active cluster. The reason `WaitForScheduling`
//! is that of kueue#15402.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::context::{PodsReadyReports, ReconcileContext};
use super::slice_record::{MemberShare, PodShare};
use super::slices::{Slice, SlicePhase};
use super::types::{Member, PodCounts};
use sluice_api::condition::{self, ConditionUpdate};
use sluice_api::kueue::names::pods_ready_reason::{
    RECOVERED, STARTED, WAIT_FOR_RECOVERY, WAIT_FOR_SCHEDULING, WAIT_FOR_START,
};
use sluice_api::kueue::{WorkloadStatus, names};
use sluice_plan::{Plan, Write};

/// Progress of the pods that a slice covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodsProgress {
    /// Some pods have no node.
    Unscheduled,
    /// All pods have nodes, and some are not ready.
    Scheduled,
    /// All pods are ready.
    Ready,
}

/// Returns the progress of the pods that a slice covers; `None` if it covers no member that stays.
/// Surplus pods and pods of terminating or preempted members need not be ready, nor need starting
/// pods, unless all pods are starting.
pub fn pods_progress(slice: &Slice<'_>, members: &[Member]) -> Option<PodsProgress> {
    let staying: Vec<_> = staying_members(slice, members).collect();
    if staying.is_empty() {
        return None;
    }
    let any_settled = staying.iter().flat_map(|(_, share)| &share.pods).any(|pods| pods.starting < pods.count);
    let needed = |pods: &PodShare| if any_settled { pods.count.saturating_sub(pods.starting) } else { pods.count };
    let all_have = |counts: fn(&Member) -> &PodCounts| {
        staying.iter().all(|(member, share)| covers(member, counts(member), share, needed))
    };
    Some(if all_have(|member| &member.ready_pods) {
        PodsProgress::Ready
    } else if all_have(|member| &member.scheduled_pods) {
        PodsProgress::Scheduled
    } else {
        PodsProgress::Unscheduled
    })
}

/// Returns the member that has started: the oldest one that stays, once all its pods are ready.
/// Younger members have not proven yet that they can replace it.
pub fn started_member<'m>(slice: &Slice<'_>, members: &'m [Member]) -> Option<&'m Member> {
    let (oldest, share) = staying_members(slice, members).next()?;
    covers(oldest, &oldest.ready_pods, share, |pods| pods.count).then_some(oldest)
}

/// Returns the covered members that stay, oldest first, with their covered pods.
fn staying_members<'m, 's>(
    slice: &'s Slice<'_>,
    members: &'m [Member],
) -> impl Iterator<Item = (&'m Member, &'s MemberShare)> {
    let staying = members.iter().filter(|member| !member.is_terminating && !member.is_preempted);
    staying.filter_map(|member| Some((member, slice.record.member(&member.uid)?)))
}

/// Returns true if `counts` has as many pods of each group as needed, or as the member's spec wants,
/// regardless of their shape.
fn covers(member: &Member, counts: &PodCounts, share: &MemberShare, needed: impl Fn(&PodShare) -> u32) -> bool {
    let mut groups: BTreeMap<&str, u32> = BTreeMap::new();
    for pods in &share.pods {
        let sum = groups.entry(&pods.group).or_default();
        *sum = sum.saturating_add(needed(pods));
    }
    let count = |group: &str| counts.get(group).copied().unwrap_or(0);
    groups.into_iter().all(|(group, needed)| count(group) >= needed.min(desired_pods(member, group)))
}

/// Returns the number of pods of a group in the member's spec; no limit if the spec is invalid.
fn desired_pods(member: &Member, group: &str) -> u32 {
    let Ok(groups) = member.groups.as_ref() else { return u32::MAX };
    groups.iter().filter(|known| known.name == group).map(|known| known.count).sum()
}

/// Sets the condition PodsReady of each slice, if the queue acts on it.
pub fn plan(context: &ReconcileContext<'_>, slices: &[Slice<'_>], members: &[Member], plan: &mut Plan) {
    if context.pods_ready_reports == PodsReadyReports::Nothing {
        return;
    }
    for slice in slices {
        let mut status = slice.workload.status.clone().unwrap_or_default();
        match slice.phase {
            SlicePhase::Admitted => {
                let Some(progress) = pods_progress(slice, members) else { continue };
                update_condition(&mut status, progress, context);
            }
            SlicePhase::Pending => reset(&mut status, context.now),
            SlicePhase::Evicted | SlicePhase::Terminating | SlicePhase::Finished => continue,
        }
        plan.write(Write::patch_status(slice.workload, &status));
    }
}

/// Resets the condition PodsReady of a Workload that is not admitted, if it has that condition.
pub fn reset(status: &mut WorkloadStatus, now: Timestamp) {
    if condition::get(&status.conditions, names::PODS_READY).is_some() {
        set_condition(status, false, WAIT_FOR_START, now);
    }
}

fn update_condition(status: &mut WorkloadStatus, progress: PodsProgress, context: &ReconcileContext<'_>) {
    let reports_scheduling = context.pods_ready_reports == PodsReadyReports::SchedulingAndReadiness;
    let ready = progress == PodsProgress::Ready;
    let before = condition::get(&status.conditions, names::PODS_READY);
    let was_ready = before.is_some_and(|before| before.status == "True");
    let reason = before.map(|before| before.reason.as_str());
    let reason = match (ready, reason) {
        (true, Some(WAIT_FOR_RECOVERY | RECOVERED)) => RECOVERED,
        (true, _) => STARTED,
        (false, Some(WAIT_FOR_RECOVERY)) => WAIT_FOR_RECOVERY,
        (false, _) if was_ready => WAIT_FOR_RECOVERY,
        (false, _) if reports_scheduling && progress == PodsProgress::Unscheduled => WAIT_FOR_SCHEDULING,
        (false, _) => WAIT_FOR_START,
    };
    set_condition(status, ready, reason, context.now);
}

fn set_condition(status: &mut WorkloadStatus, ready: bool, reason: &'static str, now: Timestamp) {
    let message = match reason {
        STARTED | RECOVERED => "All pods are ready",
        WAIT_FOR_RECOVERY => "Some pods are no longer ready",
        WAIT_FOR_SCHEDULING => "Some pods have no node yet",
        _ => "Not all pods are ready",
    };
    let verdict = ConditionUpdate {
        type_: names::PODS_READY,
        status: ready,
        reason: reason.to_owned(),
        message: message.to_owned(),
        observed_generation: None,
    };
    condition::set(&mut status.conditions, now, verdict);
}
