//! Lifecycle of slices: resizes the slice that holds quota, requests missing quota with a
//! successor, and finishes the slices that an admitted successor replaces.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube_core::ObjectMeta;
use kube_core::ResourceExt;

use super::pod_sets::Wanted;
use super::record::{Record, fits_within};
use super::slices::{Phase, Slice, covering, holds_quota, newest_holder};
use super::{Job, Priority, Request, growth, instead, parts, pod_sets, readiness};
use sluice_api::condition::{self, Verdict};
use sluice_api::fingerprint;
use sluice_api::kueue::workload::PriorityClassKind;
use sluice_api::kueue::{PodSet, Workload, WorkloadSpec, names};
use sluice_plan::ObjectKey;
use sluice_plan::{Plan, Write};
use sluice_queue::steps::SLICE_ANNOTATION;
use sluice_queue::{Successor, status};

/// Reconciles the slices with the demand of the job.
pub(super) fn plan(request: &Request<'_>, slices: &[Slice<'_>], plan: &mut Plan) {
    tidy(slices, plan);
    if let Some(holder) = newest_holder(slices) {
        supersede(slices, holder, request, plan);
    }
    let (view, wanted) = (request.view, request.wanted);
    if !view.job.wants_to_run() {
        return wind_down(request, slices, plan);
    }
    let pending: Vec<&Slice<'_>> = slices.iter().filter(|slice| slice.phase == Phase::Waiting).collect();
    if wanted.record.members.is_empty() {
        // A service can have no RayCluster between two of them. Slices stay as they are.
        return;
    }
    match covering(slices) {
        Some(held) if request.outlook.instead().is_none() && fits_within(&wanted.record.counts(), &held.granted()) => {
            let record = on_top_of(held, request);
            let record = if keeps(held, request) { record.keeping(&held.record) } else { record };
            adjust_held(held, record, request, plan);
            for slice in pending {
                plan.write(Write::delete(slice.workload, false));
            }
        }
        Some(held) => {
            // A Workload has at least one PodSet, so a slice with nothing left to cover stays until
            // its successor is admitted.
            let still_wanted = up_to_date(held, request).meet(&wanted.record);
            if !still_wanted.members.is_empty() && !keeps(held, request) {
                adjust_held(held, still_wanted, request, plan);
            }
            ask(request, slices, &pending, Some(held), plan);
        }
        // No request while quota has to be released: it would be counted twice.
        None if newest_holder(slices).is_some() => {}
        None => ask(request, slices, &pending, None, plan),
    }
}

/// Returns true if surplus quota is retained for what the job requests next, unless it is
/// preempted.
fn keeps(held: &Slice<'_>, request: &Request<'_>) -> bool {
    request.view.job.keeps_what_it_holds() && held.gives_back.is_none()
}

/// Finishes the slices that hold quota and are older than `newest`, which covers the whole job.
///
/// The queue does this for a slice that replaces another in the same ClusterQueue. But the job may
/// have moved to another ClusterQueue, or a slice between the two may have been deleted manually.
///
/// A slice that covers pods of a member that `newest` displaces finishes when the last of them is
/// gone.
fn supersede(slices: &[Slice<'_>], newest: &Slice<'_>, request: &Request<'_>, plan: &mut Plan) {
    let view = request.view;
    if instead::outlasts(&newest.record, view, request.members) {
        return;
    }
    let by = Successor {
        workload: ObjectKey::of(newest.workload),
        uid: newest.workload.uid().unwrap_or_default(),
        job_uid: view.job.meta().uid.clone().unwrap_or_default(),
    };
    let older = slices.iter().filter(|slice| slice.record.sequence < newest.record.sequence);
    for slice in older.filter(|slice| matches!(slice.phase, Phase::Admitted | Phase::Evicted)) {
        plan.write(Write::patch_status(slice.workload, &status::finished_replaced(slice.workload, &by, view.now)));
    }
}

/// Deletes finished slices, except for the newest slice: the next sequence number follows from it.
/// A finished slice stays until the slices that it replaced have finished too: it links its
/// successor to them.
fn tidy(slices: &[Slice<'_>], plan: &mut Plan) {
    let Some(newest) = slices.last().map(|slice| slice.record.sequence) else { return };
    let finished = slices.iter().take_while(|slice| slice.phase == Phase::Finished);
    for slice in finished.filter(|slice| slice.record.sequence < newest) {
        if slice.workload.metadata.deletion_timestamp.is_none() {
            plan.write(Write::delete(slice.workload, false));
        }
    }
}

/// Shrinks the slices of a job that should not run, as its pods terminate, and requests nothing.
fn wind_down(request: &Request<'_>, slices: &[Slice<'_>], plan: &mut Plan) {
    let wanted = request.wanted;
    let newest = newest_holder(slices).map(|newest| newest.record.sequence);
    for slice in slices {
        match slice.phase {
            Phase::Waiting => plan.write(Write::delete(slice.workload, false)),
            // An older slice stays unchanged until it is finished as replaced.
            Phase::Admitted | Phase::Evicted if newest > Some(slice.record.sequence) => {}
            Phase::Admitted | Phase::Evicted if wanted.record.members.is_empty() => {
                let message = format!("{} has nothing left to run", request.view.job.reference());
                let now = request.view.now;
                plan.write(finish(slice.workload, names::finished_reason::OUT_OF_SYNC, message, now));
            }
            Phase::Admitted => adjust_held(slice, slice.record.meet(&wanted.record), request, plan),
            Phase::Evicted | Phase::Going | Phase::Finished => {}
        }
    }
}

/// Sets the condition Finished of a slice; `None` if it has that condition already.
pub(super) fn finish(slice: &Workload, reason: &str, message: String, now: Timestamp) -> Option<Write> {
    let mut status = slice.status.clone().unwrap_or_default();
    let verdict = Verdict {
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
/// oldest stays, since it is first in the queue, unless it replaces another slice than `held`.
/// Nothing is requested if a Workload cannot hold all PodSets.
fn ask(request: &Request<'_>, slices: &[Slice<'_>], pending: &[&Slice<'_>], held: Option<&Slice<'_>>, plan: &mut Plan) {
    if pod_sets::enough_room(&request.wanted.record).is_err() {
        return;
    }
    let held_name = held.map(|held| held.workload.name_any());
    let is_usable = |slice: &Slice<'_>| held.is_none() || predecessor(slice.workload) == held_name;
    let kept = pending.iter().position(|slice| is_usable(slice));
    let record = asked(request, held);
    let blockers = instead::regained(held, &record, request);
    for (index, slice) in pending.iter().enumerate() {
        if Some(index) == kept {
            let write = adjusted(slice, record.clone(), request);
            plan.write(write.map(|write| write.while_quiet(blockers.clone())));
        } else {
            plan.write(Write::delete(slice.workload, false));
        }
    }
    if kept.is_none() {
        let sequence = slices.last().map_or(0, |slice| slice.record.sequence) + 1;
        let parts = parts::of(&record, request.members, request.view.makes_pods);
        let slice = new_slice(request, Record { sequence, parts, ..record }, held);
        plan.write(Write::create(&slice).while_quiet(blockers));
    }
}

/// Returns the record of the successor of `held`, or of the first slice.
fn asked(request: &Request<'_>, held: Option<&Slice<'_>>) -> Record {
    let mut record = held.map_or_else(|| request.wanted.record.clone(), |held| on_top_of(held, request));
    record.instead_of = request.aside.to_vec();
    match request.outlook.instead() {
        Some(displaced) => {
            record.members.retain(|member| member.uid != displaced.uid);
            record.instead_of.push(displaced.clone());
        }
        None => {
            let held = held.map(|held| &held.record);
            let too_early = request.outlook.too_early(held);
            record.members.retain(|member| too_early != Some(member.uid.as_str()));
            record.steps = match held {
                Some(held) => growth::steps(held, &record, request.members),
                None => growth::from_fewest(&record, request.members),
            };
        }
    }
    record
}

/// Returns the record of a slice, with the pods of the started member marked as started.
fn up_to_date(held: &Slice<'_>, request: &Request<'_>) -> Record {
    let record = held.record.clone();
    match readiness::started(held, request.members) {
        Some(member) => record.started(&member.uid),
        None => record,
    }
}

/// Returns the whole demand. If the queue watches readiness, pods beyond `held` are marked as
/// starting.
fn on_top_of(held: &Slice<'_>, request: &Request<'_>) -> Record {
    let wanted = request.wanted.record.clone();
    if request.view.watches_readiness { wanted.on_top_of(&up_to_date(held, request)) } else { wanted }
}

/// Returns the name of the slice that this one replaces; `None` if it replaces none.
fn predecessor(workload: &Workload) -> Option<String> {
    let claim = workload.annotations().get(names::SLICE_REPLACEMENT_FOR_ANNOTATION)?;
    Some(claim.rsplit_once('/').map_or(claim.as_str(), |(_, name)| name).to_owned())
}

/// Resizes a slice that holds quota to cover `record`, in place.
fn adjust_held(held: &Slice<'_>, record: Record, request: &Request<'_>, plan: &mut Plan) {
    let instead_of = instead::kept(held, &record, request.view, request.members);
    let record = Record { instead_of, ..record };
    let blockers = instead::regained(Some(held), &record, request);
    plan.write(adjusted(held, record, request).map(|write| write.while_quiet(blockers)));
}

/// Returns the patch that makes a slice cover `record`; `None` if nothing changes. Queue, execution
/// time limit and minimum counts are immutable once quota is reserved.
fn adjusted(slice: &Slice<'_>, record: Record, request: &Request<'_>) -> Option<Write> {
    let parts = parts::of(&record, request.members, request.view.makes_pods);
    let record = Record { sequence: slice.record.sequence, parts, ..record };
    let mut adjusted = slice.workload.clone();
    adjusted.annotations_mut().insert(SLICE_ANNOTATION.into(), record.to_annotation());
    let reserved = holds_quota(slice.workload);
    adjusted.spec.pod_sets = pod_sets(&record, request.wanted, &slice.workload.spec.pod_sets);
    if !reserved && predecessor(slice.workload).is_none() {
        accept_fewer(&mut adjusted.spec.pod_sets, request.wanted);
    }
    if !reserved {
        adjusted.spec.queue_name = request.view.job.queue_name();
        adjusted.spec.maximum_execution_time_seconds = request.time_limit;
    }
    if !reserved || follows_label(slice.workload, request.priority) {
        adjusted.spec.priority = Some(request.priority.value);
        adjusted.spec.priority_class_ref = request.priority.class.clone();
    }
    Write::patch(slice.workload, &adjusted)
}

/// Returns true if a slice that holds quota takes on the job's priority: only a change from one
/// WorkloadPriorityClass to another is allowed (kueue v0.19.2
/// `pkg/controller/jobframework/reconciler.go`, `classifyWorkloadsForPriorityUpdate`).
fn follows_label(workload: &Workload, priority: &Priority) -> bool {
    let refs = [workload.spec.priority_class_ref.as_ref(), priority.class.as_ref()];
    refs.iter().all(|class| class.is_some_and(|class| class.kind == PriorityClassKind::WorkloadPriorityClass))
}

/// Builds a slice that covers `record` and replaces the slice `replaces`, if any.
pub(super) fn new_slice(request: &Request<'_>, record: Record, replaces: Option<&Slice<'_>>) -> Workload {
    let Request { view, wanted, priority, .. } = request;
    let reference = view.job.reference();
    let spec = WorkloadSpec {
        pod_sets: pod_sets(&record, wanted, &[]),
        queue_name: view.job.queue_name(),
        priority: Some(priority.value),
        priority_class_ref: priority.class.clone(),
        active: Some(true),
        maximum_execution_time_seconds: request.time_limit,
        ..WorkloadSpec::default()
    };
    let uid = view.job.meta().uid.clone().unwrap_or_default();
    let mut slice = Workload::new(&slice_name(view.job, record.sequence), spec);
    slice.metadata = ObjectMeta {
        namespace: reference.namespace.clone(),
        labels: Some([(names::JOB_UID_LABEL.to_owned(), uid.clone())].into()),
        annotations: Some([(SLICE_ANNOTATION.to_owned(), record.to_annotation())].into()),
        finalizers: Some(vec![names::RESOURCE_IN_USE_FINALIZER.to_owned()]),
        owner_references: Some(vec![OwnerReference {
            api_version: reference.api_version,
            kind: reference.kind,
            name: reference.name,
            uid,
            controller: Some(true),
            block_owner_deletion: Some(true),
        }]),
        ..slice.metadata
    };
    if replaces.is_none() {
        accept_fewer(&mut slice.spec.pod_sets, wanted);
    }
    if let Some(replaced) = replaces {
        let claim = format!("{}/{}", replaced.workload.namespace().unwrap_or_default(), replaced.workload.name_any());
        slice.annotations_mut().insert(names::SLICE_REPLACEMENT_FOR_ANNOTATION.into(), claim);
    }
    slice
}

/// Builds the PodSets of a record. An existing PodSet keeps its template.
fn pod_sets(record: &Record, wanted: &Wanted, existing: &[PodSet]) -> Vec<PodSet> {
    let mut pod_sets: Vec<PodSet> = Vec::new();
    for share in record.members.iter().flat_map(|member| &member.pods) {
        let count = i32::try_from(share.count).unwrap_or(i32::MAX);
        if let Some(known) = pod_sets.iter_mut().find(|known| known.name == share.pod_set) {
            known.count = known.count.saturating_add(count);
            continue;
        }
        let kept = existing.iter().find(|known| known.name == share.pod_set);
        let template = match (kept, wanted.templates.get(&share.pod_set)) {
            (Some(kept), _) => kept.template.clone(),
            (None, Some(mold)) => mold.template(),
            (None, None) => continue,
        };
        pod_sets.push(PodSet { name: share.pod_set.clone(), count, template, ..PodSet::default() });
    }
    pod_sets
}

/// Sets `minCount`, the number of pods that the job can start with. (A running job grows as far as
/// its quota allows in any case.)
fn accept_fewer(pod_sets: &mut [PodSet], wanted: &Wanted) {
    for set in pod_sets {
        let min_count = wanted.min_counts.get(&set.name).and_then(|min_count| i32::try_from(*min_count).ok());
        set.min_count = min_count.filter(|min_count| *min_count < set.count);
    }
}

/// Returns `rayservice-NAME-UUUUU-N`: kind and name of the job, five characters of the hash of its
/// uid so that a recreated job does not collide with slices of its predecessor, and the sequence
/// number. At most 63 characters, so that it is a valid label value.
fn slice_name(job: &dyn Job, sequence: u64) -> String {
    let reference = job.reference();
    let uid = job.meta().uid.clone().unwrap_or_default();
    let ending = format!("-{}-{sequence}", fingerprint::short(&uid));
    let start: String = format!("{}-{}", reference.kind.to_lowercase(), reference.name);
    let kept: String = start.chars().take(63 - ending.len()).collect();
    format!("{}{ending}", kept.trim_end_matches(['-', '.']))
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

        assert_eq!(follows_label(&slice, &priority), expected);
    }
}
