//! Gate of each member of a job: the member runs pods only while its gate is open.

use super::context::ReconcileContext;
use super::slice_record::MemberShare;
use super::slices::{Slice, SlicePhase, slices_of};
use super::types::{Gate, Member, PodGroupDemand};
use super::{adoption, replacement};
use sluice_api::ray::RayCluster;
use sluice_plan::{EventRecord, ObjectRef, Plan};

/// Opens the gates of members that the covering slice covers, and closes those of uncovered
/// members. A job that creates no more pods needs no slice.
///
/// A gate is opened only if the one slice covers the whole demand of the member and every other
/// open member, so that no more runs than is covered (invariant I2). A member that outgrows its
/// slice stays open while its surplus pods cannot start; if they run, it is closed until they are
/// gone. No gate is opened while a write to the slice is in flight: that write may revoke the
/// admission.
///
/// `awaits_decision` is true while the job waits for the first decision of the queue: running
/// members keep running until then.
pub fn plan(
    context: &ReconcileContext<'_>,
    members: &[Member],
    covering: Option<&Slice<'_>>,
    awaits_decision: bool,
    plan: &mut Plan,
) {
    let kind = context.job.member_kind();
    for member in members.iter().filter(|member| !member.is_terminating) {
        let needs_no_slice = context.job.is_finishing() && member.live_pods.is_empty();
        let should_be_open = match covering {
            _ if needs_no_slice => context.job.wants_to_run(),
            Some(_) if member.is_preempted => false,
            Some(slice) if member.is_open => match slice.record.member(&member.uid) {
                Some(share) => context.job.ungated_overrun(member, share).is_none(),
                None => {
                    replacement::is_restored(slice, member, members)
                        || adoption::runs_on_workload_of_kueue(context, slice, member, members)
                }
            },
            Some(slice) => {
                context.job.wants_to_run()
                    && may_open(context, slice, member, members)
                    && !replacement::has_running_displaced(&slice.record, context, members)
            }
            None => {
                awaits_decision && member.is_open && !member.is_preempted && adoption::keeps_running(context, member)
            }
        };
        if should_be_open == member.is_open {
            continue;
        }
        let gate = if should_be_open { Gate::Open } else { Gate::Closed };
        let Some(write) = context.job.set_gate(&member.name, gate) else { continue };
        let target = write.target.clone();
        plan.write(write.blocked_while_in_flight(blocking_objects(context, members, member, covering)));
        let note = match covering {
            _ if should_be_open && needs_no_slice => {
                let message = format!("Unsuspended {kind} {}: it creates no more pods, and can complete", member.name);
                context.job.event("GateOpened", &message)
            }
            Some(slice) if should_be_open => {
                let name = slice.workload.metadata.name.as_deref().unwrap_or_default();
                let message = format!("Unsuspended {kind} {}: slice {name} is admitted and covers it", member.name);
                context.job.event("GateOpened", &message)
            }
            _ => {
                let replacement = covering.and_then(|slice| replacement::replacement_on(slice, member, members));
                let replaced = replacement
                    .map(|by| format!("{kind} {0} replaces it, and requests fail until {0} serves", by.name));
                let preempted = covering.and_then(Slice::preemption_message);
                let share = covering.and_then(|slice| slice.record.member(&member.uid));
                let unheld = share.and_then(|share| context.job.ungated_overrun(member, share));
                let why =
                    replaced.as_deref().or(preempted).or(unheld.as_deref()).unwrap_or("no admitted slice covers it");
                let lost = context.job.suspension_consequence().map(|lost| format!("; {lost}")).unwrap_or_default();
                let message = format!("Suspended {kind} {}: {why}{lost}", member.name);
                EventRecord { warning: true, ..context.job.event("GateClosed", &message) }
            }
        };
        plan.events.push(note.only_if_written(&target));
    }
}

/// Returns the objects without which the gate of `member` must not change: no write to them may be
/// in flight.
///
/// - To open it: the slice, and the members that the slice does not cover, since their gates may be
///   opening on another slice.
/// - To close it for preemption of a surge: the objects that route requests.
/// - To close it without a covering slice: the pending slices, which may be admitted at the moment.
///   After [`adoption::MAX_FAILURES`] consecutive write failures they no longer block.
fn blocking_objects(
    context: &ReconcileContext<'_>,
    members: &[Member],
    member: &Member,
    covering: Option<&Slice<'_>>,
) -> Vec<ObjectRef> {
    match covering {
        Some(_) if member.is_preempted => context.job.routing_objects(),
        Some(slice) if !member.is_open => {
            let uncovered = members.iter().filter(|other| !other.is_open && slice.record.member(&other.uid).is_none());
            let namespace = &context.job.meta().namespace;
            let gates = uncovered.map(|other| ObjectRef::named::<RayCluster>(namespace.clone(), other.name.clone()));
            gates.chain([ObjectRef::of(slice.workload)]).collect()
        }
        None if context.consecutive_failures < adoption::MAX_FAILURES => {
            let slices = slices_of(context.workloads.iter().copied());
            let pending = slices.iter().filter(|slice| slice.phase == SlicePhase::Pending);
            pending.map(|slice| ObjectRef::of(slice.workload)).collect()
        }
        _ => Vec::new(),
    }
}

/// Returns true if the slice is granted as a whole, in the queue of the job, is not being deleted, and
/// covers the demand of the member and every open member.
fn may_open(context: &ReconcileContext<'_>, slice: &Slice<'_>, member: &Member, members: &[Member]) -> bool {
    let granted = slice.granted_counts();
    let is_whole =
        slice.record.counts().iter().all(|(pods, count)| granted.get(pods).is_some_and(|most| count <= most));
    let is_covered = |share: &MemberShare| {
        context.job.ungated_overrun(member, share).is_none()
            && covers_demand(share, member, context.job.starts_in_part())
    };
    is_whole
        && slice.phase == SlicePhase::Admitted
        && !slice.is_of_another_queue(context.job)
        && slice.record.member(&member.uid).is_some_and(is_covered)
        && members.iter().filter(|other| other.is_open).all(|other| slice.record.member(&other.uid).is_some())
}

/// Returns true if the share covers all pods that the member wants, or enough for it to start with:
/// any of each group if it starts in part.
fn covers_demand(share: &MemberShare, member: &Member, starts_in_part: bool) -> bool {
    let is_covered = |group: &PodGroupDemand| {
        let least = if starts_in_part { group.count.min(1) } else { group.min_count.unwrap_or(group.count) };
        least <= share.count(&group.name, &group.shape)
    };
    member.groups.as_ref().as_ref().is_ok_and(|groups| groups.iter().all(is_covered))
}
