//! The condition PodsReady of a slice: whether the pods that it pays for do their work.
//!
//! Conditions and reasons are those of kueue v0.19.2 (`pkg/controller/jobframework/reconciler.go`,
//! `generatePodsReadyCondition`). What counts as ready is finer than there: Kueue takes a RayCluster's state and a
//! RayService's condition Ready, which say nothing of a worker that is lost; here every pod counts that the slice pays for,
//! except for those that came on top of what ran before (an upgrade's new cluster, or workers that were added). While they
//! start, the slice is as ready as what ran before, so that an upgrade which never comes up does not stop what serves.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::record::{MemberShare, Share};
use super::slices::{Phase, Slice};
use super::{JobView, Member};
use sluice_api::condition::{self, Verdict};
use sluice_api::kueue::names::pods_ready_reason::{RECOVERED, STARTED, WAIT_FOR_RECOVERY, WAIT_FOR_START};
use sluice_api::kueue::{WorkloadStatus, names};
use sluice_plan::{Plan, Write};

/// Whether the pods that a slice pays for are ready; `None` when it pays for no member that stays. Pods that are no longer
/// wanted need not be ready, and neither do those of members on their way out, nor, beside others, those that are starting.
pub fn of(slice: &Slice<'_>, members: &[Member]) -> Option<bool> {
    let staying: Vec<_> = staying(slice, members).collect();
    let any_settled = staying.iter().flat_map(|(_, share)| &share.pods).any(|pods| pods.starting < pods.count);
    let needed = |pods: &Share| if any_settled { pods.count.saturating_sub(pods.starting) } else { pods.count };
    (!staying.is_empty()).then(|| staying.iter().all(|(member, share)| has_ready(member, share, needed)))
}

/// The member whose start is over: the oldest one that stays, once all its pods are ready. Those after it are still to
/// show that they can take its place.
pub fn started<'m>(slice: &Slice<'_>, members: &'m [Member]) -> Option<&'m Member> {
    let (oldest, share) = staying(slice, members).next()?;
    has_ready(oldest, share, |pods| pods.count).then_some(oldest)
}

/// The members that a slice pays for and that stay, the oldest first.
fn staying<'m, 's>(slice: &'s Slice<'_>, members: &'m [Member]) -> impl Iterator<Item = (&'m Member, &'s MemberShare)> {
    let staying = members.iter().filter(|member| !member.going && !member.preempted);
    staying.filter_map(|member| Some((member, slice.record.member(&member.uid)?)))
}

/// Whether of each group as many pods are ready as are needed, or as the member wants, of whatever shape.
fn has_ready(member: &Member, share: &MemberShare, needed: impl Fn(&Share) -> u32) -> bool {
    let mut groups: BTreeMap<&str, u32> = BTreeMap::new();
    for pods in &share.pods {
        let sum = groups.entry(&pods.group).or_default();
        *sum = sum.saturating_add(needed(pods));
    }
    let ready = |group: &str| member.ready_pods.get(group).copied().unwrap_or(0);
    groups.into_iter().all(|(group, needed)| ready(group) >= needed.min(wanted(member, group)))
}

/// How many pods of a group a member wants; as many as are paid for when its spec doesn't say.
fn wanted(member: &Member, group: &str) -> u32 {
    let Ok(groups) = member.groups.as_ref() else { return u32::MAX };
    groups.iter().filter(|known| known.name == group).map(|known| known.count).sum()
}

/// Says on each slice how ready its pods are, where the queue wants to know.
pub fn plan(view: &JobView<'_>, slices: &[Slice<'_>], members: &[Member], plan: &mut Plan) {
    if !view.watches_readiness {
        return;
    }
    for slice in slices {
        let mut status = slice.workload.status.clone().unwrap_or_default();
        match slice.phase {
            Phase::Admitted => {
                let Some(ready) = of(slice, members) else { continue };
                say(&mut status, ready, view.now);
            }
            Phase::Waiting => forget(&mut status, view.now),
            Phase::Evicted | Phase::Going | Phase::Finished => continue,
        }
        plan.write(Write::patch_status(slice.workload, &status));
    }
}

/// A workload that is not admitted starts from the beginning when it is. (One that never said anything need not say that.)
pub fn forget(status: &mut WorkloadStatus, now: Timestamp) {
    if condition::get(&status.conditions, names::PODS_READY).is_some() {
        set(status, false, WAIT_FOR_START, now);
    }
}

fn say(status: &mut WorkloadStatus, ready: bool, now: Timestamp) {
    let before = condition::get(&status.conditions, names::PODS_READY);
    let was_ready = before.is_some_and(|before| before.status == "True");
    let reason = before.map(|before| before.reason.as_str());
    let reason = match (ready, reason) {
        (true, Some(WAIT_FOR_RECOVERY | RECOVERED)) => RECOVERED,
        (true, _) => STARTED,
        (false, Some(WAIT_FOR_RECOVERY)) => WAIT_FOR_RECOVERY,
        (false, _) if was_ready => WAIT_FOR_RECOVERY,
        (false, _) => WAIT_FOR_START,
    };
    set(status, ready, reason, now);
}

fn set(status: &mut WorkloadStatus, ready: bool, reason: &'static str, now: Timestamp) {
    let message = match reason {
        STARTED | RECOVERED => "All pods are ready",
        WAIT_FOR_RECOVERY => "Pods that were ready are not any more",
        _ => "Not all pods are ready yet",
    };
    let verdict = Verdict {
        type_: names::PODS_READY,
        status: ready,
        reason: reason.to_owned(),
        message: message.to_owned(),
        observed_generation: None,
    };
    condition::set(&mut status.conditions, now, verdict);
}
