//! Says on the job itself whether it may run, and in numbers what it waits for; and whether it holds quota.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::fitting::{Outlook, UPGRADE_ADMISSIBLE};
use super::slices::{self, Phase, Slice};
use super::{JobView, Member};
use sluice_api::condition;
use sluice_api::kueue::names;
use sluice_api::sluice::{ADMITTED, QUOTA_RESERVED};
use sluice_plan::{Note, Plan};

/// All that the job wants is admitted.
const REASON_ADMITTED: &str = "Admitted";
/// The job's owner wants nothing of it to run.
const REASON_SUSPENDED: &str = "Suspended";
/// The job names no LocalQueue, and has to.
const REASON_NO_QUEUE_NAME: &str = "NoQueueName";
/// The job can't be queued as it is.
const REASON_MISCONFIGURED: &str = "Misconfigured";
/// Others get the quota of a part of the job.
const REASON_PARTLY_PREEMPTED: &str = "PartiallyPreempted";
/// A slice of the job holds quota.
const REASON_RESERVED: &str = "QuotaReserved";
/// No slice of the job holds quota.
const REASON_PENDING: &str = "Pending";

/// What a condition says.
#[derive(Debug, Clone)]
pub(super) struct Says {
    pub(super) status: bool,
    pub(super) reason: String,
    pub(super) message: String,
}

impl Says {
    pub(super) fn new(status: bool, reason: &str, message: impl Into<String>) -> Self {
        Self { status, reason: reason.to_owned(), message: message.into() }
    }

    fn condition(&self, kind: &str, view: &JobView<'_>) -> Condition {
        Condition {
            type_: kind.to_owned(),
            status: if self.status { "True" } else { "False" }.to_owned(),
            reason: self.reason.clone(),
            message: self.message.clone(),
            last_transition_time: Time(condition::whole_seconds(view.now)),
            observed_generation: view.job.meta().generation,
        }
    }
}

/// Shows where the job stands.
pub(super) fn plan(view: &JobView<'_>, slices: &[Slice<'_>], members: &[Member], outlook: &Outlook, plan: &mut Plan) {
    if !is_going(view) {
        show(view, slices, admission(view, slices, members), outlook, &[], plan);
    }
}

/// Shows why the job can't be queued.
pub fn misconfigured(view: &JobView<'_>, slices: &[Slice<'_>], problem: &str, plan: &mut Plan) {
    show(view, slices, Some(Says::new(false, REASON_MISCONFIGURED, problem)), &Outlook::Unknown, &[], plan);
}

/// Shows that the job waits for somebody to say in which queue it is.
pub(super) fn unnamed(view: &JobView<'_>, slices: &[Slice<'_>], plan: &mut Plan) {
    if is_going(view) {
        return;
    }
    let namespace = view.job.meta().namespace.as_deref().unwrap_or_default();
    let message = format!(
        "It names no LocalQueue, and jobs that name none are held (manageJobsWithoutQueueName): put the label {} on it, with the name \
         of a LocalQueue of namespace {namespace}",
        names::QUEUE_NAME_LABEL
    );
    show(view, slices, Some(Says::new(false, REASON_NO_QUEUE_NAME, message)), &Outlook::NoUpgrade, &[], plan);
}

/// Shows what is left of a job that is in no queue any more: what it held may still be on its way back.
pub fn left(view: &JobView<'_>, slices: &[Slice<'_>], plan: &mut Plan) {
    if !is_going(view) {
        show(view, slices, None, &Outlook::NoUpgrade, &[ADMITTED], plan);
    }
}

/// A job that is being deleted says no more.
fn is_going(view: &JobView<'_>) -> bool {
    view.job.meta().deletion_timestamp.is_some()
}

/// Whether all of the job may run, and if not, why; `None` while nobody can tell yet.
fn admission(view: &JobView<'_>, slices: &[Slice<'_>], members: &[Member]) -> Option<Says> {
    if !view.job.wants_to_run() {
        return Some(suspension(slices));
    }
    let covering = slices::covering(slices);
    if let Some(why) = covering.and_then(Slice::preemption) {
        let stopping = names_of(members.iter().filter(|member| member.preempted));
        let staying = names_of(members.iter().filter(|member| member.open && !member.preempted));
        let message = match stopping.as_str() {
            "" => format!("{staying} runs on with fewer replicas. {why}"),
            stopping => format!("{staying} runs on; {stopping} stops. {why}"),
        };
        return Some(Says::new(false, REASON_PARTLY_PREEMPTED, message));
    }
    if let Some(waiting) = slices::waiting(slices) {
        // Before the queue has looked at a slice there is nothing to say.
        let (reason, why) = queue_says(waiting)?;
        let subject = subject(members, covering);
        let queue = view.job.queue_name().unwrap_or_default();
        return Some(Says::new(false, &reason, format!("{subject} waits in LocalQueue {queue}: {why}")));
    }
    if let Some(evicted) = slices.iter().find(|slice| slice.phase == Phase::Evicted) {
        let eviction = condition::get(conditions_of(evicted), names::EVICTED);
        let (reason, why) =
            eviction.map_or((names::EVICTED, ""), |found| (found.reason.as_str(), found.message.as_str()));
        return Some(Says::new(false, reason, format!("Its pods are being stopped: {why}")));
    }
    covering.map(|slice| Says::new(true, REASON_ADMITTED, held_by(slice)))
}

fn names_of<'m>(members: impl Iterator<Item = &'m Member>) -> String {
    members.map(|member| member.name.as_str()).collect::<Vec<_>>().join(" and ")
}

/// What is left of a job that its owner has suspended.
fn suspension(slices: &[Slice<'_>]) -> Says {
    let holder = slices.iter().find(|slice| matches!(slice.phase, Phase::Admitted | Phase::Evicted));
    let message = match holder {
        Some(slice) => {
            format!("Its owner has suspended it: slice {} holds quota until its pods are gone", name_of(slice))
        }
        None => "Its owner has suspended it: it holds no quota".to_owned(),
    };
    Says::new(false, REASON_SUSPENDED, message)
}

/// Whether the job holds quota. (Of several slices that do, the newest is the one that counts.)
fn reservation(slices: &[Slice<'_>]) -> Says {
    let holds = |slice: &&Slice<'_>| {
        slice.phase != Phase::Finished && condition::is_true(conditions_of(slice), names::QUOTA_RESERVED)
    };
    match slices.iter().rev().find(holds) {
        Some(slice) => Says::new(true, REASON_RESERVED, held_by(slice)),
        None => Says::new(false, REASON_PENDING, "No slice of it holds quota"),
    }
}

fn held_by(slice: &Slice<'_>) -> String {
    let admission = slice.workload.status.as_ref().and_then(|status| status.admission.as_ref());
    let queue = admission.map(|admission| admission.cluster_queue.as_str()).unwrap_or_default();
    let names: Vec<&str> = slice.record.members.iter().map(|member| member.name.as_str()).collect();
    format!("Slice {} holds quota in ClusterQueue {queue} for {}", name_of(slice), names.join(" and "))
}

/// What waits: the whole job, or the members that the covering slice doesn't pay for.
fn subject(members: &[Member], covering: Option<&Slice<'_>>) -> String {
    let Some(covering) = covering else { return "The job".to_owned() };
    let waiting = members.iter().filter(|member| !member.open && covering.record.member(&member.uid).is_none());
    let serving: Vec<&str> = covering.record.members.iter().map(|member| member.name.as_str()).collect();
    match names_of(waiting) {
        none if none.is_empty() => format!("{} runs on; what it grows by", serving.join(" and ")),
        same if serving == [&same] => format!("{same} runs on; its new spec"),
        waiting => format!("{} runs on; the upgrade to {waiting}", serving.join(" and ")),
    }
}

fn queue_says(slice: &Slice<'_>) -> Option<(String, String)> {
    let found = condition::get(conditions_of(slice), names::QUOTA_RESERVED)?;
    (found.status == "False").then(|| (found.reason.clone(), found.message.clone()))
}

/// Shows all conditions in one write. What is said of quota goes along with what is said of admission, and is worth a write of its
/// own only when quota has come or gone: such a write would stand in the way of the gate of a RayCluster. Nothing is said any more
/// of the types `gone`.
fn show(
    view: &JobView<'_>,
    slices: &[Slice<'_>],
    admitted: Option<Says>,
    outlook: &Outlook,
    gone: &[&str],
    plan: &mut Plan,
) {
    let shown = view.job.conditions();
    let (reserved, upgrade) = (reservation(slices), outlook.says());
    let mut notes = Vec::new();
    if let Some(says) = admitted.as_ref().filter(|says| !is_shown(shown, &says.condition(ADMITTED, view))) {
        let as_wanted = says.status || says.reason == REASON_SUSPENDED;
        notes.push(Note { warning: !as_wanted, ..view.job.note(&says.reason, &says.message) });
    }
    // That it goes as upgrades do is nothing to tell of.
    let is_told = |says: &&Says| outlook.is_trouble() && !is_shown(shown, &says.condition(UPGRADE_ADMISSIBLE, view));
    if let Some(says) = upgrade.as_ref().filter(is_told) {
        notes.push(Note { warning: true, ..view.job.note(&says.reason, &says.message) });
    }
    let mut wanted: Vec<Condition> = admitted.iter().map(|says| says.condition(ADMITTED, view)).collect();
    if !wanted.is_empty() || reserved.status != condition::is_true(shown, QUOTA_RESERVED) {
        wanted.push(reserved.condition(QUOTA_RESERVED, view));
    }
    wanted.extend(upgrade.iter().map(|says| says.condition(UPGRADE_ADMISSIBLE, view)));
    let over: &[&str] = if *outlook == Outlook::NoUpgrade { &[UPGRADE_ADMISSIBLE] } else { &[] };
    if let Some(write) = view.job.show(wanted, &[over, gone].concat()) {
        plan.write(write);
        plan.notes.extend(notes);
    }
}

/// Whether all of these are shown, and none of the types `gone`.
pub fn shows(conditions: &[Condition], wanted: &[Condition], gone: &[&str]) -> bool {
    wanted.iter().all(|wanted| is_shown(conditions, wanted))
        && gone.iter().all(|kind| condition::get(conditions, kind).is_none())
}

/// Puts conditions in the place of those of their types, and takes those of the types `gone` away.
pub fn show_in(conditions: &mut Vec<Condition>, wanted: Vec<Condition>, gone: &[&str]) {
    conditions.retain(|held| !gone.contains(&held.type_.as_str()));
    wanted.into_iter().for_each(|wanted| replace(conditions, wanted));
}

/// Whether this is what a condition says already, whenever it came to say so.
fn is_shown(conditions: &[Condition], wanted: &Condition) -> bool {
    condition::get(conditions, &wanted.type_).is_some_and(|held| {
        let last_transition_time = held.last_transition_time.clone();
        *held == Condition { last_transition_time, ..wanted.clone() }
    })
}

/// Puts a condition in the place of the one of its type. The transition time stays unless the status changes.
fn replace(conditions: &mut Vec<Condition>, mut wanted: Condition) {
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
