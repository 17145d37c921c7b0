//! Says on the job itself whether it may run, and in numbers what it waits for.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::slices::{self, Phase, Slice};
use super::{Job, JobView, Member};
use crate::api::condition;
use crate::api::kueue::names;
use crate::engine::plan::{Note, Plan};

/// The condition on a job that says whether the queue lets all of it run.
pub const ADMITTED: &str = "sluice.dev/Admitted";
/// All that the job wants is admitted.
const REASON_ADMITTED: &str = "Admitted";
/// The job's owner wants nothing of it to run.
const REASON_SUSPENDED: &str = "Suspended";
/// The job can't be queued as it is.
const REASON_MISCONFIGURED: &str = "Misconfigured";

/// Shows where the job stands.
pub fn plan(view: &JobView<'_>, slices: &[Slice<'_>], members: &[Member], plan: &mut Plan) {
    if !view.job.wants_to_run() {
        return suspended(view, slices, plan);
    }
    let covering = slices::covering(slices);
    if let Some(waiting) = slices::waiting(slices) {
        // Before the queue has looked at a slice there is nothing to say.
        let Some((reason, why)) = queue_says(waiting) else { return };
        let subject = subject(members, covering);
        let queue = view.job.queue_name().unwrap_or_default();
        let message = format!("{subject} waits in LocalQueue {queue}: {why}");
        return show(view.job, view.now, false, &reason, message, plan);
    }
    if let Some(evicted) = slices.iter().find(|slice| slice.phase == Phase::Evicted) {
        let conditions = conditions_of(evicted);
        let eviction = condition::get(conditions, names::EVICTED);
        let (reason, why) =
            eviction.map_or((names::EVICTED, ""), |found| (found.reason.as_str(), found.message.as_str()));
        return show(view.job, view.now, false, reason, format!("Its pods are being stopped: {why}"), plan);
    }
    if let Some(slice) = covering {
        let queue = slice.workload.status.as_ref().and_then(|status| status.admission.as_ref());
        let queue = queue.map(|admission| admission.cluster_queue.as_str()).unwrap_or_default();
        let names: Vec<&str> = slice.record.members.iter().map(|member| member.name.as_str()).collect();
        let message =
            format!("Slice {} holds quota in ClusterQueue {queue} for {}", name_of(slice), names.join(" and "));
        show(view.job, view.now, true, REASON_ADMITTED, message, plan);
    }
}

/// Shows what is left of a job that its owner has suspended. (One that is being deleted says no more.)
fn suspended(view: &JobView<'_>, slices: &[Slice<'_>], plan: &mut Plan) {
    if view.job.meta().deletion_timestamp.is_some() {
        return;
    }
    let holder = slices.iter().find(|slice| matches!(slice.phase, Phase::Admitted | Phase::Evicted));
    let message = match holder {
        Some(slice) => {
            format!("Its owner has suspended it: slice {} holds quota until its pods are gone", name_of(slice))
        }
        None => "Its owner has suspended it: it holds no quota".to_owned(),
    };
    show(view.job, view.now, false, REASON_SUSPENDED, message, plan);
}

/// Shows why the job can't be queued.
pub fn misconfigured(view: &JobView<'_>, problem: &str, plan: &mut Plan) {
    show(view.job, view.now, false, REASON_MISCONFIGURED, problem.to_owned(), plan);
}

/// What waits: the whole job, or the members that the covering slice doesn't pay for.
fn subject(members: &[Member], covering: Option<&Slice<'_>>) -> String {
    let Some(covering) = covering else { return "The job".to_owned() };
    let waiting = members.iter().filter(|member| !member.open && covering.record.member(&member.uid).is_none());
    let waiting: Vec<&str> = waiting.map(|member| member.name.as_str()).collect();
    let serving: Vec<&str> = covering.record.members.iter().map(|member| member.name.as_str()).collect();
    match waiting.as_slice() {
        [] => format!("{} runs on; what it grows by", serving.join(" and ")),
        waiting => format!("{} runs on; the upgrade to {}", serving.join(" and "), waiting.join(" and ")),
    }
}

fn queue_says(slice: &Slice<'_>) -> Option<(String, String)> {
    let found = condition::get(conditions_of(slice), names::QUOTA_RESERVED)?;
    (found.status == "False").then(|| (found.reason.clone(), found.message.clone()))
}

fn show(job: &dyn Job, now: Timestamp, admitted: bool, reason: &str, message: String, plan: &mut Plan) {
    let wanted = Condition {
        type_: ADMITTED.to_owned(),
        status: if admitted { "True" } else { "False" }.to_owned(),
        reason: reason.to_owned(),
        message: message.clone(),
        last_transition_time: Time(condition::whole_seconds(now)),
        observed_generation: job.meta().generation,
    };
    let Some(write) = job.show(wanted) else { return };
    plan.write(write);
    let as_wanted = admitted || reason == REASON_SUSPENDED;
    plan.notes.push(Note { warning: !as_wanted, ..job.note(reason, &message) });
}

/// Puts a condition in the place of the one of its type. The transition time stays unless the status changes.
pub fn replace(conditions: &mut Vec<Condition>, mut wanted: Condition) {
    match conditions.iter_mut().find(|held| held.type_ == wanted.type_) {
        Some(held) => {
            if held.status == wanted.status {
                wanted.last_transition_time = held.last_transition_time.clone();
            }
            *held = wanted;
        }
        None => conditions.push(wanted),
    }
}

fn conditions_of<'s>(slice: &'s Slice<'_>) -> &'s [Condition] {
    slice.workload.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default()
}

fn name_of<'s>(slice: &'s Slice<'_>) -> &'s str {
    slice.workload.metadata.name.as_deref().unwrap_or_default()
}
