//! Conditions of a job: whether it is admitted, the quota that it waits for, and whether it holds
//! quota.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::condition_content::ConditionContent;
use super::context::ReconcileContext;
use super::demand_error::DemandError;
use super::slices::{self, Slice, SlicePhase};
use super::types::Member;
use super::upgrade_feasibility::{UPGRADE_ADMISSIBLE, UpgradeFeasibility};
use sluice_api::condition;
use sluice_api::job_conditions::{ADMITTED, QUOTA_RESERVED};
use sluice_api::kueue::names;
use sluice_plan::{EventRecord, Plan, WriteRank};

/// Reason: the whole demand of the job is admitted.
const REASON_ADMITTED: &str = "Admitted";
/// Reason: the owner of the job has suspended it, or scaled it to zero.
const REASON_SUSPENDED: &str = "Suspended";
/// Reason: the job has to name a LocalQueue and does not.
const REASON_NO_QUEUE_NAME: &str = "NoQueueName";
/// Reason: the job is invalid and cannot be queued.
const REASON_MISCONFIGURED: &str = "Misconfigured";
/// Reason: quota of a part of the job is preempted.
const REASON_PARTIALLY_PREEMPTED: &str = "PartiallyPreempted";
/// Reason: a slice of the job holds quota.
const REASON_RESERVED: &str = "QuotaReserved";
/// Reason: no slice of the job holds quota.
const REASON_PENDING: &str = "Pending";

/// Sets the conditions of a queued job.
pub(super) fn plan(
    context: &ReconcileContext<'_>,
    slices: &[Slice<'_>],
    members: &[Member],
    feasibility: &UpgradeFeasibility,
    plan: &mut Plan,
) {
    if !is_terminating(context) {
        write_conditions(context, slices, admitted_condition(context, slices, members), feasibility, &[], plan);
    }
}

/// Sets the conditions of an invalid job.
pub fn misconfigured(context: &ReconcileContext<'_>, slices: &[Slice<'_>], problem: &DemandError, plan: &mut Plan) {
    write_conditions(
        context,
        slices,
        Some(ConditionContent::new(false, REASON_MISCONFIGURED, problem.to_string())),
        &UpgradeFeasibility::Unknown,
        &[],
        plan,
    );
}

/// Sets the conditions of a job on hold that has to name a LocalQueue.
pub(super) fn missing_queue_name(context: &ReconcileContext<'_>, slices: &[Slice<'_>], plan: &mut Plan) {
    if is_terminating(context) {
        return;
    }
    let namespace = context.job.meta().namespace.as_deref().unwrap_or_default();
    let message = format!(
        "The job names no LocalQueue, and such jobs are held (manageJobsWithoutQueueName): set its label {} to a \
         LocalQueue of namespace {namespace}",
        names::QUEUE_NAME_LABEL
    );
    write_conditions(
        context,
        slices,
        Some(ConditionContent::new(false, REASON_NO_QUEUE_NAME, message)),
        &UpgradeFeasibility::NoUpgrade,
        &[],
        plan,
    );
}

/// Removes the conditions of a job that is no longer managed; QuotaReserved stays until the quota is
/// released and the gates are removed.
pub fn clear(context: &ReconcileContext<'_>, slices: &[Slice<'_>], has_gates: bool, plan: &mut Plan) {
    if is_terminating(context) {
        return;
    }
    if has_gates || quota_reserved_condition(slices).status {
        write_conditions(context, slices, None, &UpgradeFeasibility::NoUpgrade, &[ADMITTED], plan);
    } else if let Some(write) = context.job.set_conditions(Vec::new(), &[ADMITTED, QUOTA_RESERVED, UPGRADE_ADMISSIBLE])
    {
        plan.write(write.ranked(WriteRank::Decision));
    }
}

/// Returns true if the job is being deleted: its conditions no longer change.
fn is_terminating(context: &ReconcileContext<'_>) -> bool {
    context.job.meta().deletion_timestamp.is_some()
}

/// Returns the condition Admitted: whether the whole job may run, and the reason if not. `None`
/// before the first decision of the queue.
fn admitted_condition(
    context: &ReconcileContext<'_>,
    slices: &[Slice<'_>],
    members: &[Member],
) -> Option<ConditionContent> {
    if !context.job.wants_to_run() {
        return Some(suspended_condition(slices, members));
    }
    let covering = slices::covering(slices);
    if let Some(why) = covering.and_then(Slice::preemption_message) {
        let stopping = names_of(members.iter().filter(|member| member.is_preempted));
        let staying = names_of(members.iter().filter(|member| member.is_open && !member.is_preempted));
        let message = match stopping.as_str() {
            "" => format!("{staying} keeps running with fewer replicas. {why}"),
            stopping => format!("{stopping} is stopping ({staying} keeps running). {why}"),
        };
        return Some(ConditionContent::new(false, REASON_PARTIALLY_PREEMPTED, message));
    }
    if let Some(waiting) = slices::pending(slices) {
        // No condition before the first decision of the queue about the slice.
        let decision = pending_decision(waiting)?;
        let queue = context.job.queue_name().unwrap_or_default();
        let (subject, continues) = pending_subject(members, covering);
        return Some(ConditionContent::new(
            false,
            &decision.reason,
            format!("{subject} is pending in LocalQueue {queue}{continues}: {}", decision.message),
        ));
    }
    if let Some(evicted) = slices.iter().find(|slice| slice.phase == SlicePhase::Evicted) {
        let eviction = condition::get(conditions_of(evicted), names::EVICTED);
        let (reason, why) =
            eviction.map_or((names::EVICTED, ""), |found| (found.reason.as_str(), found.message.as_str()));
        return Some(ConditionContent::new(false, reason, format!("Pods of the job are being stopped: {why}")));
    }
    covering.map(|slice| ConditionContent::new(true, REASON_ADMITTED, holding_message(slice)))
}

fn names_of<'m>(members: impl Iterator<Item = &'m Member>) -> String {
    members.map(|member| member.name.as_str()).collect::<Vec<_>>().join(" and ")
}

/// Returns the condition Admitted of a job that its owner has suspended.
fn suspended_condition(slices: &[Slice<'_>], members: &[Member]) -> ConditionContent {
    let is_scaled_to_zero = !members.is_empty() && members.iter().all(Member::is_scaled_to_zero);
    let cause = if is_scaled_to_zero { "Scaled to zero" } else { "Suspended" };
    let holder = slices.iter().find(|slice| matches!(slice.phase, SlicePhase::Admitted | SlicePhase::Evicted));
    let message = match holder {
        Some(slice) => {
            format!("{cause} by its owner: slice {} holds quota until its pods are gone", name_of(slice))
        }
        None => format!("{cause} by its owner: the job holds no quota"),
    };
    ConditionContent::new(false, REASON_SUSPENDED, message)
}

/// Returns the condition QuotaReserved. Of several slices that hold quota, the newest one counts.
fn quota_reserved_condition(slices: &[Slice<'_>]) -> ConditionContent {
    let holds = |slice: &&Slice<'_>| {
        slice.phase != SlicePhase::Finished && condition::is_true(conditions_of(slice), names::QUOTA_RESERVED)
    };
    match slices.iter().rev().find(holds) {
        Some(slice) => ConditionContent::new(true, REASON_RESERVED, holding_message(slice)),
        None => ConditionContent::new(false, REASON_PENDING, "No slice of the job holds quota"),
    }
}

fn holding_message(slice: &Slice<'_>) -> String {
    let admission = slice.workload.status.as_ref().and_then(|status| status.admission.as_ref());
    let queue = admission.map(|admission| admission.cluster_queue.as_str()).unwrap_or_default();
    let names: Vec<&str> = slice.record.members.iter().map(|member| member.name.as_str()).collect();
    // A Workload of Kueue names no member.
    let covered = if names.is_empty() { String::new() } else { format!(" for {}", names.join(" and ")) };
    format!("Slice {} holds quota in ClusterQueue {queue}{covered}", name_of(slice))
}

/// Names what is pending, the whole job or the members that the covering slice does not cover; and,
/// in parentheses, the members that keep running.
fn pending_subject(members: &[Member], covering: Option<&Slice<'_>>) -> (String, String) {
    let Some(covering) = covering else { return ("job".to_owned(), String::new()) };
    let pending = members.iter().filter(|member| !member.is_open && covering.record.member(&member.uid).is_none());
    let names: Vec<&str> = covering.record.members.iter().map(|member| member.name.as_str()).collect();
    let (covered, keep) = (names.join(" and "), if names.len() == 1 { "keeps" } else { "keep" });
    match names_of(pending) {
        none if none.is_empty() => (format!("scale-up of {covered}"), format!(" ({covered} {keep} running)")),
        same if names == [&same] => (format!("new spec of {same}"), format!(" ({same} keeps running)")),
        pending => (format!("upgrade to {pending}"), format!(" ({covered} {keep} serving)")),
    }
}

/// Returns the queue's last decision about a pending slice; `None` before it.
fn pending_decision<'s>(slice: &'s Slice<'_>) -> Option<&'s Condition> {
    condition::get_false(conditions_of(slice), names::QUOTA_RESERVED)
}

/// Sets all conditions in one write, and removes those of the types in `gone`.
///
/// QuotaReserved is written together with Admitted, and separately only when its status changes: a
/// separate write would delay the write to the gate of a RayCluster. The policies depend on its
/// status, and an owner may have to act on a new problem; everything else is only reported.
fn write_conditions(
    context: &ReconcileContext<'_>,
    slices: &[Slice<'_>],
    admitted: Option<ConditionContent>,
    feasibility: &UpgradeFeasibility,
    gone: &[&str],
    plan: &mut Plan,
) {
    let shown = context.job.conditions();
    let (reserved, upgrade) = (quota_reserved_condition(slices), feasibility.condition());
    let mut notes = Vec::new();
    if let Some(says) = admitted.as_ref().filter(|says| !is_current(shown, &says.condition(ADMITTED, context))) {
        let is_expected = says.status || says.reason == REASON_SUSPENDED;
        notes.push(EventRecord { warning: !is_expected, ..context.job.event(&says.reason, &says.message) });
    }
    // An upgrade that proceeds as usual emits no Event.
    let is_news = |says: &&ConditionContent| {
        feasibility.needs_attention() && !is_current(shown, &says.condition(UPGRADE_ADMISSIBLE, context))
    };
    if let Some(says) = upgrade.as_ref().filter(is_news) {
        notes.push(EventRecord { warning: true, ..context.job.event(&says.reason, &says.message) });
    }
    let mut wanted: Vec<Condition> = admitted.iter().map(|says| says.condition(ADMITTED, context)).collect();
    let changes_reservation = reserved.status != condition::is_true(shown, QUOTA_RESERVED);
    if !wanted.is_empty() || changes_reservation {
        wanted.push(reserved.condition(QUOTA_RESERVED, context));
    }
    wanted.extend(upgrade.iter().map(|says| says.condition(UPGRADE_ADMISSIBLE, context)));
    let is_urgent = changes_reservation || wanted.iter().any(|wanted| is_new_problem(shown, wanted));
    let rank = if is_urgent { WriteRank::Decision } else { WriteRank::Progress };
    let removed: &[&str] = if *feasibility == UpgradeFeasibility::NoUpgrade { &[UPGRADE_ADMISSIBLE] } else { &[] };
    if let Some(write) = context.job.set_conditions(wanted, &[removed, gone].concat()) {
        plan.write(write.ranked(rank));
        plan.events.extend(notes);
    }
}

/// Returns true if all of `wanted` are set, and none of the types in `gone`.
pub fn are_current(conditions: &[Condition], wanted: &[Condition], gone: &[&str]) -> bool {
    wanted.iter().all(|wanted| is_current(conditions, wanted))
        && gone.iter().all(|kind| condition::get(conditions, kind).is_none())
}

/// Sets the conditions `wanted`, and removes those of the types in `gone`.
pub fn apply_to(conditions: &mut Vec<Condition>, wanted: Vec<Condition>, gone: &[&str]) {
    conditions.retain(|held| !gone.contains(&held.type_.as_str()));
    for wanted in wanted {
        upsert(conditions, wanted);
    }
}

/// Returns true if this condition is set already, ignoring the transition time.
fn is_current(conditions: &[Condition], wanted: &Condition) -> bool {
    condition::get(conditions, &wanted.type_).is_some_and(|held| {
        let last_transition_time = held.last_transition_time.clone();
        *held == Condition { last_transition_time, ..wanted.clone() }
    })
}

/// Reports whether a condition says that something is not so, for another reason than before.
fn is_new_problem(conditions: &[Condition], wanted: &Condition) -> bool {
    wanted.status == condition::status(false)
        && condition::get(conditions, &wanted.type_)
            .is_none_or(|held| (&held.status, &held.reason) != (&wanted.status, &wanted.reason))
}

/// Sets a condition. The transition time stays unless the status changes.
fn upsert(conditions: &mut Vec<Condition>, mut wanted: Condition) {
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
    slice.workload.conditions()
}

fn name_of<'s>(slice: &'s Slice<'_>) -> &'s str {
    slice.workload.metadata.name.as_deref().unwrap_or_default()
}
