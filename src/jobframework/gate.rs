//! The gate: which members of a job may run.

use super::record::MemberShare;
use super::slices::{Phase, Slice, slices_of};
use super::{Group, JobView, Member, instead, newcomer};
use sluice_api::ray::RayCluster;
use sluice_plan::{Note, ObjectRef, Plan};

/// Opens the members that the covering slice pays for, and closes those that nothing pays for.
///
/// A member is opened only if the one slice pays for all that it wants, and for every other member that is open; so what
/// runs is never more than what is paid for (invariant I2). A member that outgrows its share stays open as long as its surplus
/// pods are held back; if they run, it is closed until they are gone. And none is opened while something is written about the slice: that may be
/// what takes its admission away.
///
/// `unjudged` is whether the queue has yet to say anything of the job: what runs of it runs on until then.
pub fn plan(view: &JobView<'_>, members: &[Member], covering: Option<&Slice<'_>>, unjudged: bool, plan: &mut Plan) {
    let kind = view.job.member_kind();
    for member in members.iter().filter(|member| !member.going) {
        let should_be_open = match covering {
            Some(_) if member.preempted => false,
            Some(slice) if member.open => match slice.record.member(&member.uid) {
                Some(share) => view.job.unheld(member, share).is_none(),
                None => instead::is_wanted_back(slice, member, members),
            },
            Some(slice) => {
                view.job.wants_to_run()
                    && may_open(view, slice, member, members)
                    && !instead::outlasts(&slice.record, view, members)
            }
            None => unjudged && member.open && !member.preempted && newcomer::runs_on(view, member),
        };
        if should_be_open == member.open {
            continue;
        }
        let Some(write) = view.job.set_open(&member.name, should_be_open) else { continue };
        let target = write.target.clone();
        plan.write(write.while_quiet(rests_on(view, members, member, covering)));
        let note = match covering {
            Some(slice) if should_be_open => {
                let name = slice.workload.metadata.name.as_deref().unwrap_or_default();
                let message = format!("{kind} {} may run: slice {name} is admitted and covers it", member.name);
                view.job.note("GateOpened", &message)
            }
            _ => {
                let taken = covering.and_then(|slice| instead::taken_by(slice, member, members));
                let taken =
                    taken.map(|by| format!("{kind} {} takes its place, and requests fail until that serves", by.name));
                let preempted = covering.and_then(Slice::preemption);
                let share = covering.and_then(|slice| slice.record.member(&member.uid));
                let unheld = share.and_then(|share| view.job.unheld(member, share));
                let why = taken.as_deref().or(preempted).or(unheld.as_deref()).unwrap_or("no admitted slice covers it");
                let message = format!("{kind} {} is suspended: {why}", member.name);
                Note { warning: true, ..view.job.note("GateClosed", &message) }
            }
        };
        plan.notes.push(note.of_write(&target));
    }
}

/// What may not change while the gate of a member does: the slice that it is opened on, and the members that this doesn't pay for,
/// which may be being opened on another; if others get its quota because it serves nobody, what says whom requests are sent to; and if
/// nothing pays for it, the slices that may be admitted just now: what is closed then would be left without any reason to be. If writes
/// fail on and on, that isn't waited for any more.
fn rests_on(view: &JobView<'_>, members: &[Member], member: &Member, covering: Option<&Slice<'_>>) -> Vec<ObjectRef> {
    match covering {
        Some(_) if member.preempted => view.job.routed_by(),
        Some(slice) if !member.open => {
            let unpaid = members.iter().filter(|other| !other.open && slice.record.member(&other.uid).is_none());
            let namespace = &view.job.meta().namespace;
            let gates = unpaid.map(|other| ObjectRef::named::<RayCluster>(namespace.clone(), other.name.clone()));
            gates.chain([ObjectRef::of(slice.workload)]).collect()
        }
        None if view.failures < newcomer::FAILURES => {
            let slices = slices_of(view.workloads.iter().copied());
            let waiting = slices.iter().filter(|slice| slice.phase == Phase::Waiting);
            waiting.map(|slice| ObjectRef::of(slice.workload)).collect()
        }
        _ => Vec::new(),
    }
}

fn may_open(view: &JobView<'_>, slice: &Slice<'_>, member: &Member, members: &[Member]) -> bool {
    let granted = slice.granted();
    let whole = slice.record.counts().iter().all(|(pods, count)| granted.get(pods).is_some_and(|most| count <= most));
    let held = |share: &MemberShare| view.job.unheld(member, share).is_none() && covers(share, member);
    whole
        && slice.record.member(&member.uid).is_some_and(held)
        && members.iter().filter(|other| other.open).all(|other| slice.record.member(&other.uid).is_some())
}

/// Whether the share pays for everything that the member wants, or for as much as it can start with.
fn covers(share: &MemberShare, member: &Member) -> bool {
    let paid = |group: &Group| group.min_count.unwrap_or(group.count) <= share.count(&group.name, &group.shape);
    member.groups.as_ref().as_ref().is_ok_and(|groups| groups.iter().all(paid))
}
