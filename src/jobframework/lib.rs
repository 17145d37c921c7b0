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
mod finished;
mod flavor_split;
pub mod gate;
mod generic_job;
pub mod managed;
pub mod members;
mod new_slice;
mod on_hold;
pub mod pod_classifier;
pub mod pod_sets;
mod preemptible_parts;
mod quota_request;
pub mod ray_cluster;
pub mod ray_job;
pub mod ray_service;
pub mod readiness;
mod replacement;
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

pub use context::ReconcileContext;
pub use generic_job::{GenericJob, queue_name};
use quota_request::QuotaRequest;
pub use types::{GatedPod, JobResult, Member, PodAssignment, PodGroupDemand, PodGroupDemands, PodKind, Priority};

/// Plans the writes that take a job from its spec to running pods: slices, gates and conditions.
///
/// A misconfigured job gets no new slice and no gate is opened for it. Its admitted slice stays
/// valid, and is still evicted or preempted like any other.
pub fn plan(view: &ReconcileContext<'_>) -> Plan {
    if let Some(finish) = view.job.finished() {
        return finished::plan(view, &finish);
    }
    match view.managed {
        ManagementState::Unmanaged => return unmanage(view),
        ManagementState::OnHold(hold) => return on_hold::plan(view, hold),
        ManagementState::InQueue => {}
    }
    let mut plan = Plan::default();
    let slices = slices::slices_of(view.workloads.iter().copied());
    let mut members = view.job.members();
    preemptible_parts::apply_preemption(&mut members, slices::covering(&slices).and_then(|slice| slice.preempted_part));
    suspend_template(view, &slices, &mut plan);
    let outcome = plan_slices(view, &slices, &members, &mut plan);
    let awaits_decision = adoption::awaits_first_decision(view, &slices, outcome.is_ok(), &mut plan);
    gate::plan(view, &members, slices::covering(&slices), awaits_decision, &mut plan);
    ungate::plan(view, &members, slices::covering(&slices), &mut plan);
    release_evicted(view, &slices, &members, &mut plan);
    readiness::plan(view, &slices, &members, &mut plan);
    match outcome {
        Ok(feasibility) => conditions::plan(view, &slices, &members, &feasibility, &mut plan),
        Err(problem) => conditions::misconfigured(view, &slices, &problem, &mut plan),
    }
    plan
}

/// Reconciles the slices with the demand of the members and returns the feasibility of an upgrade.
///
/// # Errors
/// Returns a message that names the field and its value if the demand cannot be requested.
fn plan_slices(
    view: &ReconcileContext<'_>,
    slices: &[slices::Slice<'_>],
    members: &[Member],
    plan: &mut Plan,
) -> Result<UpgradeFeasibility, String> {
    // Displaced members request nothing: the quota belongs to their replacement already.
    let living: Vec<_> = slices.iter().filter(|slice| slice.phase != slices::SlicePhase::Finished).collect();
    let displaced = replacement::displaced_members(slices::covering(slices), view, members);
    let stays = |member: &&Member| displaced.iter().all(|displaced| displaced.uid != member.uid);
    let staying = view.orphaned_members.iter().chain(members).filter(stays);
    let together = pod_sets::desired_pod_sets(staying.clone(), &living, None)?;
    let wanted =
        &match FlavorSplit::detect(view, slices, members).filter(|_| !slices::is_covered(&together.record, slices)) {
            Some(split) => pod_sets::desired_pod_sets(staying, &living, Some(&split))?,
            None => together,
        };
    let (priority, time_limit) = (&view.priority.clone()?, max_execution_seconds(view.job)?);
    let request = QuotaRequest {
        view,
        members,
        demand: wanted,
        priority,
        max_execution_seconds: time_limit,
        displaced: &displaced,
        feasibility: UpgradeFeasibility::Unknown,
    };
    let request = QuotaRequest { feasibility: assess_upgrade::assess(&request, slices), ..request };
    // A restored active member is requested before the pending one, so that it runs again sooner.
    let first = replacement::restored_demand(&request, slices::covering(slices));
    let request = QuotaRequest { demand: first.as_ref().unwrap_or(wanted), ..request };
    slice_lifecycle::plan(&request, slices, plan);
    pod_sets::check_pod_set_limit(&wanted.record).map(|()| request.feasibility)
}

/// Makes every member created from now on start suspended. The template of a job with slices was
/// suspended before, so an open one means that a client bypassed the admission policies.
fn suspend_template(view: &ReconcileContext<'_>, slices: &[slices::Slice<'_>], plan: &mut Plan) {
    let Some(write) = view.job.suspend_template() else { return };
    plan.write(write);
    if !slices.is_empty() {
        let message = "The gate in the template was open and has been closed: objects created from it wait for quota";
        plan.events.push(EventRecord { warning: true, ..view.job.event("TemplateGateClosed", message) });
    }
}

/// Deletes the slices of a job that is not managed (any longer).
fn unmanage(view: &ReconcileContext<'_>) -> Plan {
    let mut plan = Plan::default();
    delete_slices(view, &mut plan);
    conditions::clear(view, &slices::slices_of(view.workloads.iter().copied()), &mut plan);
    plan
}

/// Deletes all slices. Their finalizer holds the quota that pods still use until the pods are gone.
fn delete_slices(view: &ReconcileContext<'_>, plan: &mut Plan) {
    let there = view.workloads.iter().filter(|workload| workload.metadata.deletion_timestamp.is_none());
    plan.writes.extend(there.map(|workload| Write::delete(*workload, false)));
}

/// Reads the maximum execution time of a job from its label, in seconds (kueue v0.19.2
/// `pkg/controller/jobframework/validation.go`, `validateCreateForMaxExecTime`); `None` without the
/// label. A slice that holds quota keeps the limit that it was admitted with.
///
/// # Errors
/// Returns a message if the label is not a positive number of seconds.
fn max_execution_seconds(job: &dyn GenericJob) -> Result<Option<i32>, String> {
    let label = names::MAX_EXEC_TIME_LABEL;
    let Some(text) = job.meta().labels.as_ref().and_then(|labels| labels.get(label)) else { return Ok(None) };
    let limit = text.parse().ok().filter(|limit| *limit > 0);
    limit
        .map(Some)
        .ok_or_else(|| format!("label {label}: {text:?} is not a number of seconds between 1 and {}", i32::MAX))
}

/// Releases the quota of an evicted slice once no pod uses it.
fn release_evicted(view: &ReconcileContext<'_>, slices: &[slices::Slice<'_>], members: &[Member], plan: &mut Plan) {
    let quiet =
        view.orphaned_members.is_empty() && members.iter().all(|member| !member.is_open && member.live_pods.is_empty());
    // A slice that replaced an admitted one is released after that one has finished: otherwise the
    // quota of the replaced slice would be counted again.
    let alone = slices.iter().all(|slice| slice.phase != slices::SlicePhase::Admitted);
    for slice in slices.iter().filter(|slice| slice.phase == slices::SlicePhase::Evicted && quiet && alone) {
        let mut released = status::released(slice.workload, view.now);
        readiness::reset(&mut released, view.now);
        plan.write(Write::patch_status(slice.workload, &released));
    }
}

/// Removes the finalizer of a Workload that is being deleted, once no pod uses its quota.
pub fn release_finalizer(workload: &Workload, has_pods: bool) -> Plan {
    let mut plan = Plan::default();
    let conditions = workload.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
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
