//! The condition PodsReady of a slice: whether the pods that it pays for do their work.
//!
//! Conditions and reasons are those of kueue v0.19.2 (`pkg/controller/jobframework/reconciler.go`,
//! `generatePodsReadyCondition`). What counts as ready is finer than there: Kueue takes a RayCluster's state and a
//! RayService's condition Ready, which say nothing of a worker that is lost; here every pod counts that the slice pays for,
//! except for those that came on top of what ran before (an upgrade's new cluster, or workers that were added). While they
//! start, the slice is as ready as what ran before, so that an upgrade which never comes up does not stop what serves.

use jiff::Timestamp;

use super::slices::{Phase, Slice};
use super::{JobView, Member};
use crate::api::condition::{self, Verdict};
use crate::api::kueue::names::pods_ready_reason::{RECOVERED, STARTED, WAIT_FOR_RECOVERY, WAIT_FOR_START};
use crate::api::kueue::{Workload, WorkloadStatus, names};
use crate::engine::plan::{Plan, Write};

/// How ready the pods are that a slice pays for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readiness {
    /// Pods are missing that should be ready.
    Short,
    /// Everything is ready but for pods that came on top, which are starting.
    Growing,
    /// Everything is ready.
    Whole,
}

/// How ready the pods are that a slice pays for; `None` when it pays for no member that stays. Pods that are no longer
/// wanted need not be ready, and neither do those of members on their way out.
pub fn of(slice: &Slice<'_>, members: &[Member]) -> Option<Readiness> {
    let staying = members.iter().filter(|member| !member.going);
    let paid: Vec<_> = staying.filter_map(|member| Some((member, slice.record.member(&member.uid)?))).collect();
    if paid.is_empty() {
        return None;
    }
    let (mut whole, mut settled_ready, mut any_settled) = (true, true, false);
    for (member, share) in paid {
        for pods in &share.pods {
            let needed = wanted(member, &pods.group).min(pods.count);
            let settled = needed.min(pods.count.saturating_sub(pods.starting));
            let ready = member.ready_pods.get(&pods.group).copied().unwrap_or(0);
            whole &= ready >= needed;
            settled_ready &= ready >= settled;
            any_settled |= settled > 0;
        }
    }
    Some(match (whole, any_settled && settled_ready) {
        (true, _) => Readiness::Whole,
        (false, true) => Readiness::Growing,
        (false, false) => Readiness::Short,
    })
}

/// How many pods of a group a member wants; as many as are paid for when its spec doesn't say.
fn wanted(member: &Member, group: &str) -> u32 {
    let Ok(groups) = &member.groups else { return u32::MAX };
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
                let Some(readiness) = of(slice, members) else { continue };
                say(&mut status, readiness != Readiness::Short, view.now);
            }
            Phase::Waiting => forget(&mut status, view.now),
            Phase::Evicted | Phase::Going | Phase::Finished => continue,
        }
        let said = Workload { status: Some(status), ..slice.workload.clone() };
        plan.write(Write::patch_status(slice.workload, &said));
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
