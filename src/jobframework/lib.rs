//! Job reconciliation: derives Workload slices from a job and starts the pods that they cover.
//!
//! [`plan`] is the same for every kind of job. It derives PodSets from the live members, keeps the
//! slices in line with them, and opens the gate of a member once an admitted slice covers it. A
//! kind of job is one file that implements [`GenericJob`].

mod adoption;
mod assess_upgrade;
pub mod batch_job;
mod condition_content;
pub mod conditions;
mod context;
mod demand_error;
pub mod finished;
mod flavor_split;
pub mod gate;
mod generic_job;
pub mod managed;
pub mod members;
mod new_slice;
mod on_hold;
mod pod_admission;
pub mod pod_classifier;
pub mod pod_sets;
mod preemptible_parts;
mod quota_request;
pub mod ray_cluster;
pub mod ray_job;
pub mod ray_service;
pub mod readiness;
mod replacement;
pub mod retention;
mod scale_up_steps;
pub mod shape;
mod slice_lifecycle;
pub mod slice_record;
pub mod slices;
mod types;
pub mod ungate;
pub mod upgrade_feasibility;

use flavor_split::FlavorSplit;
use managed::ManagementState;
use sluice_api::condition;
use sluice_api::kueue::{Workload, names};
use sluice_plan::{EventRecord, Plan, Write};
use sluice_queue::status;
use upgrade_feasibility::UpgradeFeasibility;

pub use context::{PodsReadyReports, ReconcileContext};
pub use demand_error::{DemandError, MemberPodSets};
pub use generic_job::{GenericJob, queue_name};
use quota_request::QuotaRequest;
pub use types::{
    Gate, GatedPod, JobResult, Member, PodAssignment, PodCounts, PodGroupDemand, PodGroupDemands, PodKind, Priority,
};

/// Plans the writes that take a job from its spec to running pods: slices, gates and conditions.
///
/// A misconfigured job gets no new slice and no gate is opened for it. Its admitted slice stays
/// valid, and is still evicted or preempted like any other.
pub fn plan(context: &ReconcileContext<'_>) -> Plan {
    if let Some(finish) = context.job.finished() {
        return finished::plan(context, &finish);
    }
    match context.managed {
        ManagementState::Unmanaged => return unmanage(context),
        ManagementState::NotQueued => return leave_queue(context),
        ManagementState::OnHold(hold) => return on_hold::plan(context, hold),
        ManagementState::InQueue => {}
    }
    let mut plan = Plan::default();
    let slices = slices::slices_of(context.workloads.iter().copied());
    let mut members = context.job.members();
    preemptible_parts::apply_preemption(&mut members, slices::covering(&slices).and_then(|slice| slice.preempted_part));
    suspend_template(context, &slices, &mut plan);
    let outcome = plan_slices(context, &slices, &members, &mut plan);
    let awaits_decision = adoption::awaits_first_decision(context, &slices, outcome.is_ok(), &mut plan);
    gate::plan(context, &members, slices::covering(&slices), awaits_decision, &mut plan);
    ungate::plan(context, &members, slices::covering(&slices), &mut plan);
    release_evicted(context, &slices, &members, &mut plan);
    readiness::plan(context, &slices, &members, &mut plan);
    if retention::delete_deactivated_job(context, &slices, &mut plan) {
        return plan;
    }
    match outcome {
        Ok(feasibility) => conditions::plan(context, &slices, &members, &feasibility, &mut plan),
        Err(problem) => conditions::misconfigured(context, &slices, &problem, &mut plan),
    }
    plan
}

/// Reconciles the slices with the demand of the members and returns the feasibility of an upgrade.
///
/// # Errors
/// If the demand cannot be requested.
fn plan_slices(
    context: &ReconcileContext<'_>,
    slices: &[slices::Slice<'_>],
    members: &[Member],
    plan: &mut Plan,
) -> Result<UpgradeFeasibility, DemandError> {
    // Displaced members request nothing: the quota belongs to their replacement already.
    let living: Vec<_> = slices.iter().filter(|slice| slice.phase != slices::SlicePhase::Finished).collect();
    let displaced = replacement::displaced_members(slices::covering(slices), context, members);
    let stays = |member: &&Member| displaced.iter().all(|displaced| displaced.uid != member.uid);
    let staying = context.orphaned_members.iter().chain(members).filter(stays);
    let together = pod_sets::desired_pod_sets(staying.clone(), &living, None)?;
    let wanted = &match FlavorSplit::detect(context, slices, members)
        .filter(|_| !slices::is_covered(&together.record, slices))
    {
        Some(split) => pod_sets::desired_pod_sets(staying, &living, Some(&split))?,
        None => together,
    };
    let settings = context.priority.clone().and_then(|priority| Ok((priority, max_execution_seconds(context.job)?)));
    let recorded = slice_lifecycle::recorded_priority(slices);
    let (priority, time_limit) = match &settings {
        Ok((priority, time_limit)) => (priority, *time_limit),
        Err(_) => (&recorded, None),
    };
    let request = QuotaRequest {
        context,
        members,
        demand: wanted,
        priority,
        max_execution_seconds: time_limit,
        displaced: &displaced,
        feasibility: UpgradeFeasibility::Unknown,
    };
    if let Err(problem) = &settings {
        slice_lifecycle::release_unused(&request, slices, plan);
        return Err(problem.clone());
    }
    let request = QuotaRequest { feasibility: assess_upgrade::assess(&request, slices), ..request };
    // A restored active member is requested before the pending one, so that it runs again sooner; and what
    // runs on a slice that was deleted by hand before anything else.
    let covering = slices::covering(slices);
    let first = slice_lifecycle::running_demand(&request, covering)
        .or_else(|| replacement::restored_demand(&request, covering));
    let request = QuotaRequest { demand: first.as_ref().unwrap_or(wanted), ..request };
    slice_lifecycle::plan(&request, slices, plan)?;
    pod_sets::check_pod_set_limit(&wanted.record).map(|()| request.feasibility)
}

/// Makes every member created from now on start suspended. The template of a job with slices was
/// suspended before, so an open one means that a client bypassed the admission policies.
fn suspend_template(context: &ReconcileContext<'_>, slices: &[slices::Slice<'_>], plan: &mut Plan) {
    let Some(write) = context.job.suspend_template() else { return };
    plan.write(write);
    if !slices.is_empty() {
        let message = "The gate in the template was open and has been closed: objects created from it wait for quota";
        plan.events.push(EventRecord { warning: true, ..context.job.event("TemplateGateClosed", message) });
    }
}

/// Deletes the slices of a job that is not managed (any longer).
fn unmanage(context: &ReconcileContext<'_>) -> Plan {
    let mut plan = Plan::default();
    delete_slices(context, &mut plan);
    conditions::clear(context, &slices::slices_of(context.workloads.iter().copied()), false, &mut plan);
    plan
}

/// Takes off a job that left its queue what the queue had put on. The conditions go last, because they
/// tell the gates of the queue from those of the owner.
fn leave_queue(context: &ReconcileContext<'_>) -> Plan {
    let mut plan = Plan::default();
    delete_slices(context, &mut plan);
    let gates = context.job.remove_gates();
    let slices = slices::slices_of(context.workloads.iter().copied());
    conditions::clear(context, &slices, !gates.is_empty(), &mut plan);
    plan.writes.extend(gates);
    plan
}

/// Deletes all slices. Their finalizer holds the quota that pods still use until the pods are gone.
fn delete_slices(context: &ReconcileContext<'_>, plan: &mut Plan) {
    let there = context.workloads.iter().filter(|workload| workload.metadata.deletion_timestamp.is_none());
    plan.writes.extend(there.map(|workload| Write::delete(*workload)));
}

/// Reads the maximum execution time of a job from its label, in seconds (kueue v0.19.2
/// `pkg/controller/jobframework/validation.go`, `validateCreateForMaxExecTime`); `None` without the
/// label. A slice that holds quota keeps the limit that it was admitted with.
///
/// # Errors
/// If the label is not a positive number of seconds.
fn max_execution_seconds(job: &dyn GenericJob) -> Result<Option<i32>, DemandError> {
    let label = names::MAX_EXEC_TIME_LABEL;
    let Some(text) = job.meta().labels.as_ref().and_then(|labels| labels.get(label)) else { return Ok(None) };
    let limit = text.parse().ok().filter(|limit| *limit > 0);
    limit.map(Some).ok_or_else(|| DemandError::MaxExecutionTime { value: text.clone() })
}

/// Releases the quota of an evicted slice once no pod uses it.
fn release_evicted(context: &ReconcileContext<'_>, slices: &[slices::Slice<'_>], members: &[Member], plan: &mut Plan) {
    let quiet = context.is_stopped(members);
    // A slice that replaced an admitted one is released after that one has finished: otherwise the
    // quota of the replaced slice would be counted again.
    let alone = slices.iter().all(|slice| slice.phase != slices::SlicePhase::Admitted);
    for slice in slices.iter().filter(|slice| slice.phase == slices::SlicePhase::Evicted && quiet && alone) {
        let mut released = status::released(slice.workload, context.now);
        readiness::reset(&mut released, context.now);
        plan.write(Write::patch_status(slice.workload, &released));
    }
}

/// Removes the finalizer of a Workload that is being deleted, once no pod uses its quota.
pub fn release_finalizer(workload: &Workload, has_pods: bool) -> Plan {
    let mut plan = Plan::default();
    let conditions = workload.conditions();
    let is_true = |kind| condition::is_true(conditions, kind);
    let holds_quota = is_true(names::QUOTA_RESERVED) && !is_true(names::FINISHED);
    if workload.metadata.deletion_timestamp.is_some() && !(holds_quota && has_pods) {
        let mut released = workload.clone();
        if let Some(finalizers) = &mut released.metadata.finalizers {
            finalizers.retain(|finalizer| finalizer != names::RESOURCE_IN_USE_FINALIZER);
        }
        plan.write(Write::patch(workload, &released));
    }
    plan
}

#[cfg(test)]
mod tests;
