//! Lifecycle of slices: resizes the slice that holds quota, requests missing quota with a
//! successor, and finishes the slices that an admitted successor replaces.

use jiff::{SignedDuration, Timestamp};
use kube_core::ResourceExt;

use super::context::PodsReadyReports;
use super::demand_error::DemandError;
use super::new_slice::{build_pod_sets, new_slice, set_min_counts};
use super::pod_sets::DesiredPodSets;
use super::quota_request::QuotaRequest;
use super::slice_record::{SliceRecord, fits_within};
use super::slices::{Slice, SlicePhase, covering, holds_quota, newest_holder, predecessor_name};
use super::types::{Member, Priority};
use super::{pod_admission, pod_sets, preemptible_parts, readiness, replacement, scale_up_steps};
use sluice_api::condition::{self, ConditionUpdate};
use sluice_api::kueue::names::finished_reason::OUT_OF_SYNC;
use sluice_api::kueue::workload::PriorityClassKind;
use sluice_api::kueue::{Workload, names};
use sluice_plan::ObjectKey;
use sluice_plan::{Plan, Write, WriteRank};
use sluice_queue::partial_admission::SLICE_ANNOTATION;
use sluice_queue::{ReplacementSlice, status};

/// Time after which a slice that was deleted by hand gets a successor. The garbage collector deletes the
/// slices of a job that is gone too, and the deletion of the job may be observed later.
const SUCCESSION_DELAY: SignedDuration = SignedDuration::from_secs(5);

/// Reconciles the slices with the demand of the job. One that has moved to another LocalQueue gives its
/// quota back once it has stopped, and requests it there.
///
/// # Errors
/// If the API server rejects the pods for which quota would be requested.
pub(super) fn plan(request: &QuotaRequest<'_>, slices: &[Slice<'_>], plan: &mut Plan) -> Result<(), DemandError> {
    delete_finished(slices, plan);
    if let Some(holder) = newest_holder(slices) {
        finish_replaced(slices, holder, request, plan);
    }
    let (context, wanted) = (request.context, request.demand);
    if !context.job.wants_to_run() {
        scale_to_zero(request, slices, plan);
        return Ok(());
    }
    let pending: Vec<&Slice<'_>> = slices.iter().filter(|slice| slice.phase == SlicePhase::Pending).collect();
    if wanted.record.members.is_empty() {
        // A service can have no RayCluster between two of them. Slices that hold quota stay as they are.
        if request.members.iter().any(Member::is_scaled_to_zero) {
            plan.writes.extend(pending.iter().map(|slice| Write::delete(slice.workload)));
        }
        return Ok(());
    }
    // If the job has stopped, the slice of the queue that it has left is gone before the next one is
    // requested.
    let is_left = |held: &Slice<'_>| held.is_of_another_queue(context.job) && context.is_stopped(request.members);
    let stays = |held: &&Slice<'_>| !(held.was_deleted_by_hand() && is_left(held));
    let held = covering(slices).filter(stays);
    if let Some(held) = held {
        pod_admission::evict_if_rejected(request, held, plan);
    }
    match held {
        Some(held) if held.was_deleted_by_hand() => match succession_time(held).filter(|due| *due > context.now) {
            Some(due) => {
                plan.wake_by(due);
                Ok(())
            }
            None => {
                let still_wanted = held.record.intersection(&wanted.record);
                if !still_wanted.members.is_empty() && !retains_surplus(held, request) {
                    resize_held(held, still_wanted, request, plan);
                }
                request_slice(request, slices, &pending, Some(held), plan)
            }
        },
        Some(held) if is_left(held) => {
            plan.write(Write::delete(held.workload));
            Ok(())
        }
        Some(held)
            if request.feasibility.displaced_member().is_none()
                && fits_within(&wanted.record.counts(), &held.granted_counts()) =>
        {
            let record = delta_over(held, request);
            let record = if retains_surplus(held, request) { record.retaining(&held.record) } else { record };
            resize_held(held, record, request, plan);
            for slice in pending {
                plan.write(Write::delete(slice.workload));
            }
            Ok(())
        }
        Some(held) => {
            let still_wanted = with_started_pods(held, request).intersection(&wanted.record);
            if !still_wanted.members.is_empty() && !retains_surplus(held, request) {
                resize_held(held, still_wanted, request, plan);
            } else if still_wanted.members.is_empty() && is_idle(request) && pending.iter().any(|slice| waits(slice)) {
                // A Workload has at least one PodSet, so a slice with nothing left to cover stays for its
                // successor. If that has to wait, the quota is unused until then.
                let message = "Nothing that it covers exists any longer, and its successor waits for quota".to_owned();
                plan.write(finish_slice(held.workload, OUT_OF_SYNC, message, context.now));
                return Ok(());
            }
            request_slice(request, slices, &pending, Some(held), plan)
        }
        // No request while quota has to be released: it would be counted twice.
        None if newest_holder(slices).is_some() => Ok(()),
        None => request_slice(request, slices, &pending, None, plan),
    }
}

/// Releases the quota that a job no longer uses, although its demand cannot be requested.
pub(super) fn release_unused(request: &QuotaRequest<'_>, slices: &[Slice<'_>], plan: &mut Plan) {
    if !request.context.job.wants_to_run() {
        return scale_to_zero(request, slices, plan);
    }
    let admitted =
        covering(slices).filter(|held| held.phase == SlicePhase::Admitted && !retains_surplus(held, request));
    let Some(held) = admitted else { return };
    let still_wanted = with_started_pods(held, request).intersection(&request.demand.record);
    if !still_wanted.members.is_empty() {
        resize_held(held, still_wanted, request, plan);
    }
}

/// Returns the priority of the newest slice that holds quota; that without a class if there is none.
pub(super) fn recorded_priority(slices: &[Slice<'_>]) -> Priority {
    let Some(holder) = newest_holder(slices) else { return Priority::default() };
    let spec = &holder.workload.spec;
    Priority { value: spec.priority.unwrap_or_default(), class: spec.priority_class_ref.clone() }
}

/// Returns the time at which a slice that was deleted by hand gets a successor; `None` if it is not being
/// deleted.
fn succession_time(slice: &Slice<'_>) -> Option<Timestamp> {
    let deleted = slice.workload.metadata.deletion_timestamp.as_ref()?;
    deleted.0.checked_add(SUCCESSION_DELAY).ok()
}

/// Returns the demand to request first if the slice that the job runs on was deleted by hand: what it
/// covers of the whole demand. The queue admits that at once, in exchange for the slice. `None`
/// otherwise.
pub(super) fn running_demand(request: &QuotaRequest<'_>, held: Option<&Slice<'_>>) -> Option<DesiredPodSets> {
    let held = held.filter(|held| held.was_deleted_by_hand())?;
    let mut running = request.demand.clone();
    let covered = held.record.intersection(&running.record);
    running.record.members = covered.members;
    (!running.record.members.is_empty()).then_some(running)
}

/// Returns true if no member may run pods.
fn is_idle(request: &QuotaRequest<'_>) -> bool {
    request.displaced.is_empty() && request.context.is_stopped(request.members)
}

/// Returns true if the queue has found that a pending slice has to wait.
fn waits(slice: &Slice<'_>) -> bool {
    condition::get(slice.workload.conditions(), names::QUOTA_RESERVED).is_some_and(|found| found.status == "False")
}

/// Returns true if surplus quota is retained for what the job requests next, unless it is
/// preempted.
fn retains_surplus(held: &Slice<'_>, request: &QuotaRequest<'_>) -> bool {
    request.context.job.retains_quota() && held.preempted_part.is_none()
}

/// Finishes the slices that hold quota and are older than `newest`, which covers the whole job.
///
/// The queue does this for a slice that replaces another in the same ClusterQueue. But the job may
/// have moved to another ClusterQueue, or a slice between the two may have been deleted manually.
///
/// A slice that covers pods of a member that `newest` displaces finishes when the last of them is
/// gone.
fn finish_replaced(slices: &[Slice<'_>], newest: &Slice<'_>, request: &QuotaRequest<'_>, plan: &mut Plan) {
    let context = request.context;
    if replacement::has_running_displaced(&newest.record, context, request.members) {
        return;
    }
    let by = ReplacementSlice {
        workload: ObjectKey::of(newest.workload),
        uid: newest.workload.uid().unwrap_or_default(),
        job_uid: context.job.meta().uid.clone(),
    };
    let older = slices.iter().filter(|slice| slice.record.sequence < newest.record.sequence);
    for slice in older.filter(|slice| slice.phase != SlicePhase::Finished && holds_quota(slice.workload)) {
        plan.write(Write::patch_status(slice.workload, &status::finished_replaced(slice.workload, &by, context.now)));
    }
}

/// Deletes finished slices, except for the newest slice: the next sequence number follows from it.
/// A finished slice stays until the slices that it replaced have finished too: it links its
/// successor to them.
fn delete_finished(slices: &[Slice<'_>], plan: &mut Plan) {
    let Some(newest) = slices.last().map(|slice| slice.record.sequence) else { return };
    let finished = slices.iter().take_while(|slice| slice.phase == SlicePhase::Finished);
    for slice in finished.filter(|slice| slice.record.sequence < newest) {
        if slice.workload.metadata.deletion_timestamp.is_none() {
            plan.write(Write::delete(slice.workload));
        }
    }
}

/// Shrinks the slices of a job that should not run, as its pods terminate, and requests nothing. A
/// deactivated slice stays, so that the job is still deactivated when it should run again (kueue
/// v0.19.2 `pkg/controller/jobframework/reconciler.go`, `prepareWorkload`).
fn scale_to_zero(request: &QuotaRequest<'_>, slices: &[Slice<'_>], plan: &mut Plan) {
    let wanted = request.demand;
    let newest = newest_holder(slices).map(|newest| newest.record.sequence);
    for slice in slices.iter().filter(|slice| slice.workload.spec.active != Some(false)) {
        match slice.phase {
            SlicePhase::Pending => plan.write(Write::delete(slice.workload)),
            // An older slice stays unchanged until it is finished as replaced.
            SlicePhase::Admitted | SlicePhase::Evicted if newest > Some(slice.record.sequence) => {}
            SlicePhase::Admitted | SlicePhase::Evicted if covers_nothing_of(slice, wanted) => {
                let message = format!("{} has nothing left to run", request.context.job.reference());
                let now = request.context.now;
                plan.write(finish_slice(slice.workload, OUT_OF_SYNC, message, now));
            }
            // A Workload of Kueue has no record yet, and covers whatever runs.
            SlicePhase::Admitted if slice.record.members.is_empty() => {}
            SlicePhase::Admitted => resize_held(slice, slice.record.intersection(&wanted.record), request, plan),
            SlicePhase::Evicted | SlicePhase::Terminating | SlicePhase::Finished => {}
        }
    }
}

/// Returns true if nothing that the slice covers is still there. Pods that it does not cover don't count: the
/// creation of a pod that is gone may have been sent twice.
fn covers_nothing_of(slice: &Slice<'_>, demand: &DesiredPodSets) -> bool {
    let has_record = !slice.record.members.is_empty();
    demand.record.members.is_empty() || has_record && slice.record.intersection(&demand.record).members.is_empty()
}

/// Sets the condition Finished of a slice; `None` if it has that condition already.
pub(super) fn finish_slice(slice: &Workload, reason: &str, message: String, now: Timestamp) -> Option<Write> {
    let mut status = slice.status.clone().unwrap_or_default();
    let verdict = ConditionUpdate {
        type_: names::FINISHED,
        status: true,
        reason: reason.to_owned(),
        message,
        observed_generation: slice.metadata.generation,
    };
    condition::set(&mut status.conditions, now, verdict);
    Write::patch_status(slice, &status)
}

/// Requests the whole demand with a pending slice, or with a new one. Of several pending slices the
/// oldest stays, since it is first in the queue, unless it replaces another slice than `held`, or its
/// record claims more than it requests.
/// Nothing is requested if a Workload cannot hold all PodSets, or before the API server has accepted
/// the pods.
///
/// # Errors
/// If the API server rejects the pods.
fn request_slice(
    request: &QuotaRequest<'_>,
    slices: &[Slice<'_>],
    pending: &[&Slice<'_>],
    held: Option<&Slice<'_>>,
    plan: &mut Plan,
) -> Result<(), DemandError> {
    if pod_sets::check_pod_set_limit(&request.demand.record).is_err() {
        return Ok(());
    }
    let held_name = held.map(|held| held.workload.name_any());
    let replaces_held = |slice: &Slice<'_>| held.is_none() || predecessor_name(slice.workload) == held_name.as_deref();
    let is_usable = |slice: &Slice<'_>| {
        let is_rejected = pod_admission::was_evicted_for_rejection(slice.workload);
        replaces_held(slice) && slice.is_consistent() && !is_rejected
    };
    let kept = pending.iter().position(|slice| is_usable(slice));
    let record = requested_record(request, held);
    let blockers = replacement::restored_members(held, &record, request);
    for (index, slice) in pending.iter().enumerate() {
        if Some(index) == kept {
            let write = resized(slice, record.clone(), request);
            plan.write(write.map(|write| write.blocked_while_in_flight(blockers.clone())));
        } else {
            plan.write(Write::delete(slice.workload));
        }
    }
    if kept.is_none() && pod_admission::accepts_pods(request, &record, plan)? {
        // A Workload without a record, such as one from Kueue, is the first slice.
        let sequence = slices.last().map_or(1, |slice| slice.record.sequence.max(1) + 1);
        let parts = preemptible_parts::for_record(&record, request.members, request.context.creates_pods);
        let slice = new_slice(request, SliceRecord { sequence, parts, ..record }, held);
        let creation = Write::create(&slice)
            .ranked(WriteRank::QuotaRequest)
            .with_priority(slice.spec.priority.unwrap_or_default());
        plan.write(creation.blocked_while_in_flight(blockers));
    }
    Ok(())
}

/// Returns the record of the successor of `held`, or of the first slice.
fn requested_record(request: &QuotaRequest<'_>, held: Option<&Slice<'_>>) -> SliceRecord {
    let mut record = held.map_or_else(|| request.demand.record.clone(), |held| delta_over(held, request));
    record.displaces = request.displaced.to_vec();
    match request.feasibility.displaced_member() {
        Some(displaced) => {
            record.members.retain(|member| member.uid != displaced.uid);
            record.displaces.push(displaced.clone());
        }
        None => {
            let held = held.map(|held| &held.record);
            let too_early = request.feasibility.deferred_member(held);
            record.members.retain(|member| too_early != Some(member.uid.as_str()));
            record.steps = match held {
                Some(held) => scale_up_steps::from_held(held, &record, request.members),
                None => scale_up_steps::from_min_count(&record, request.members),
            };
        }
    }
    record
}

/// Returns the record of a slice, with the pods of the started member marked as started.
fn with_started_pods(held: &Slice<'_>, request: &QuotaRequest<'_>) -> SliceRecord {
    let record = held.record.clone();
    match readiness::started_member(held, request.members) {
        Some(member) => record.mark_started(&member.uid),
        None => record,
    }
}

/// Returns the whole demand. If the queue watches readiness, pods beyond `held` are marked as
/// starting.
fn delta_over(held: &Slice<'_>, request: &QuotaRequest<'_>) -> SliceRecord {
    let wanted = request.demand.record.clone();
    match request.context.pods_ready_reports {
        PodsReadyReports::Nothing => wanted,
        PodsReadyReports::Readiness | PodsReadyReports::SchedulingAndReadiness => {
            wanted.mark_starting(&with_started_pods(held, request))
        }
    }
}

/// Resizes a slice that holds quota to cover `record`, in place.
fn resize_held(held: &Slice<'_>, record: SliceRecord, request: &QuotaRequest<'_>, plan: &mut Plan) {
    let instead_of = replacement::still_displaced(held, &record, request.context, request.members);
    let record = SliceRecord { displaces: instead_of, ..record };
    let blockers = replacement::restored_members(Some(held), &record, request);
    plan.write(resized(held, record, request).map(|write| write.blocked_while_in_flight(blockers)));
}

/// Returns the patch that makes a slice cover `record`; `None` if nothing changes. Queue, execution
/// time limit and minimum counts are immutable once quota is reserved.
fn resized(slice: &Slice<'_>, record: SliceRecord, request: &QuotaRequest<'_>) -> Option<Write> {
    let parts = preemptible_parts::for_record(&record, request.members, request.context.creates_pods);
    let record = SliceRecord { sequence: slice.record.sequence, parts, ..record };
    let mut adjusted = slice.workload.clone();
    adjusted.annotations_mut().insert(SLICE_ANNOTATION.into(), record.to_annotation());
    let reserved = holds_quota(slice.workload);
    adjusted.spec.pod_sets = build_pod_sets(&record, request.demand, &slice.workload.spec.pod_sets);
    if !reserved && predecessor_name(slice.workload).is_none() {
        set_min_counts(&mut adjusted.spec.pod_sets, request.demand);
    }
    if !reserved {
        adjusted.spec.queue_name = request.context.job.queue_name();
        adjusted.spec.maximum_execution_time_seconds = request.max_execution_seconds;
    }
    if !reserved || accepts_priority_change(slice.workload, request.priority) {
        adjusted.spec.priority = Some(request.priority.value);
        adjusted.spec.priority_class_ref = request.priority.class.clone();
    }
    Write::patch(slice.workload, &adjusted)
}

/// Returns true if a slice that holds quota takes on the job's priority: only a change from one
/// WorkloadPriorityClass to another is allowed (kueue v0.19.2
/// `pkg/controller/jobframework/reconciler.go`, `classifyWorkloadsForPriorityUpdate`).
fn accepts_priority_change(workload: &Workload, priority: &Priority) -> bool {
    let refs = [workload.spec.priority_class_ref.as_ref(), priority.class.as_ref()];
    refs.iter().all(|class| class.is_some_and(|class| class.kind == PriorityClassKind::WorkloadPriorityClass))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use sluice_api::kueue::workload::{PriorityClassGroup, PriorityClassRef};

    fn class(kind: PriorityClassKind) -> PriorityClassRef {
        PriorityClassRef { group: PriorityClassGroup::Kueue, kind, name: "c".into() }
    }

    #[rstest]
    #[case::from_class_to_class(
        Some(PriorityClassKind::WorkloadPriorityClass),
        Some(PriorityClassKind::WorkloadPriorityClass),
        true
    )]
    #[case::none_before(None, Some(PriorityClassKind::WorkloadPriorityClass), false)]
    #[case::label_removed(Some(PriorityClassKind::WorkloadPriorityClass), None, false)]
    #[case::from_the_class_of_its_pods(
        Some(PriorityClassKind::PriorityClass),
        Some(PriorityClassKind::WorkloadPriorityClass),
        false
    )]
    fn slice_with_quota_only_changes_from_one_workload_priority_class_to_another(
        #[case] current: Option<PriorityClassKind>,
        #[case] wanted: Option<PriorityClassKind>,
        #[case] expected: bool,
    ) {
        let mut slice = Workload::default();
        slice.spec.priority_class_ref = current.map(class);
        let priority = Priority { value: 5, class: wanted.map(class) };

        assert_eq!(accepts_priority_change(&slice, &priority), expected);
    }
}
