//! Brings the slices of a job in line with what it wants: what is held is adjusted, what is not held is asked for, and a slice that
//! is admitted succeeds the one before it.

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

/// Brings the slices in line with what the job wants.
pub(super) fn plan(request: &Request<'_>, slices: &[Slice<'_>], plan: &mut Plan) {
    tidy(slices, plan);
    if let Some(holder) = newest_holder(slices) {
        supersede(slices, holder, request, plan);
    }
    let (view, wanted) = (request.view, request.wanted);
    if !view.job.wants_to_run() {
        return wind_down(request, slices, plan);
    }
    let waiting: Vec<&Slice<'_>> = slices.iter().filter(|slice| slice.phase == Phase::Waiting).collect();
    if wanted.record.members.is_empty() {
        // Between two children there may be none for a moment. What is held or asked for stays as it is.
        return;
    }
    match covering(slices) {
        Some(held) if request.outlook.instead().is_none() && fits_within(&wanted.record.counts(), &held.granted()) => {
            let record = on_top_of(held, request);
            let record = if keeps(held, request) { record.keeping(&held.record) } else { record };
            adjust_held(held, record, request, plan);
            waiting.iter().for_each(|slice| plan.write(Write::delete(slice.workload, false)));
        }
        Some(held) => {
            // A Workload has a pod set at least, so what is held stays until there is another.
            let still_wanted = up_to_date(held, request).meet(&wanted.record);
            if !still_wanted.members.is_empty() && !keeps(held, request) {
                adjust_held(held, still_wanted, request, plan);
            }
            ask(request, slices, &waiting, Some(held), plan);
        }
        // Whoever has to give quota back gets none until that is done: it would be counted twice.
        None if newest_holder(slices).is_some() => {}
        None => ask(request, slices, &waiting, None, plan),
    }
}

/// Whether what is held and not needed now stays held for what the job will need next. Others may have more right to it.
fn keeps(held: &Slice<'_>, request: &Request<'_>) -> bool {
    request.view.job.keeps_what_it_holds() && held.gives_back.is_none()
}

/// A slice that holds quota is over once a newer one does: all that the job wants is paid for by that one. The queue sees to it
/// where the newer one says that it replaces the other in their ClusterQueue. But the job may have been moved to another, and
/// who was between the two may have been deleted by hand.
///
/// One that pays for pods of a member whose place the newer one takes is over when the last of them is gone.
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

/// Deletes what is over, except for the newest slice: its sequence number is what the next one counts from. One that took the
/// place of another stays until that is over as well: it is how the next one is known to have taken the place of both.
fn tidy(slices: &[Slice<'_>], plan: &mut Plan) {
    let Some(newest) = slices.last().map(|slice| slice.record.sequence) else { return };
    let over = slices.iter().take_while(|slice| slice.phase == Phase::Finished);
    for slice in over.filter(|slice| slice.record.sequence < newest) {
        if slice.workload.metadata.deletion_timestamp.is_none() {
            plan.write(Write::delete(slice.workload, false));
        }
    }
}

/// The job doesn't want to run: nothing is asked for, and what is held shrinks with its pods to nothing.
fn wind_down(request: &Request<'_>, slices: &[Slice<'_>], plan: &mut Plan) {
    let wanted = request.wanted;
    let newest = newest_holder(slices).map(|newest| newest.record.sequence);
    for slice in slices {
        match slice.phase {
            Phase::Waiting => plan.write(Write::delete(slice.workload, false)),
            // It pays for what it always did until the newest one is the only one.
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

/// Asks for all that is wanted: by a slice that waits already, or by a new one. Of several that wait the oldest stays, since
/// it is the furthest in the queue; but not one that is to replace another slice than the one that is held. Nothing is asked for
/// that no Workload has room for.
fn ask(request: &Request<'_>, slices: &[Slice<'_>], waiting: &[&Slice<'_>], held: Option<&Slice<'_>>, plan: &mut Plan) {
    if pod_sets::enough_room(&request.wanted.record).is_err() {
        return;
    }
    let held_name = held.map(|held| held.workload.name_any());
    let fits = |slice: &Slice<'_>| held.is_none() || predecessor(slice.workload) == held_name;
    let kept = waiting.iter().position(|slice| fits(slice));
    let record = asked(request, held);
    let quiet = instead::regained(held, &record, request);
    for (index, slice) in waiting.iter().enumerate() {
        if Some(index) == kept {
            let write = adjusted(slice, record.clone(), request);
            plan.write(write.map(|write| write.while_quiet(quiet.clone())));
        } else {
            plan.write(Write::delete(slice.workload, false));
        }
    }
    if kept.is_none() {
        let sequence = slices.last().map_or(0, |slice| slice.record.sequence) + 1;
        let parts = parts::of(&record, request.members, request.view.makes_pods);
        let slice = new_slice(request, Record { sequence, parts, ..record }, held);
        plan.write(Write::create(&slice).while_quiet(quiet));
    }
}

/// What is asked for by who succeeds the slice that is held, or by the first one.
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

/// What a slice pays for, as far as it has started.
fn up_to_date(held: &Slice<'_>, request: &Request<'_>) -> Record {
    let record = held.record.clone();
    match readiness::started(held, request.members) {
        Some(member) => record.started(&member.uid),
        None => record,
    }
}

/// All that is wanted; where readiness counts, it is told what of that has still to start.
fn on_top_of(held: &Slice<'_>, request: &Request<'_>) -> Record {
    let wanted = request.wanted.record.clone();
    if request.view.watches_readiness { wanted.on_top_of(&up_to_date(held, request)) } else { wanted }
}

/// The name of the slice that this one replaces.
fn predecessor(workload: &Workload) -> Option<String> {
    let claim = workload.annotations().get(names::SLICE_REPLACEMENT_FOR_ANNOTATION)?;
    Some(claim.rsplit_once('/').map_or(claim.as_str(), |(_, name)| name).to_owned())
}

/// Makes a slice that holds quota pay for `record`, in place.
fn adjust_held(held: &Slice<'_>, record: Record, request: &Request<'_>, plan: &mut Plan) {
    let instead_of = instead::kept(held, &record, request.view, request.members);
    let record = Record { instead_of, ..record };
    let quiet = instead::regained(Some(held), &record, request);
    plan.write(adjusted(held, record, request).map(|write| write.while_quiet(quiet)));
}

/// Makes a slice pay for `record`, in place.
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

/// Whether a slice that holds quota takes on the job's priority. It can go from one WorkloadPriorityClass to another, and
/// nothing else about its class may change (kueue v0.19.2 `pkg/controller/jobframework/reconciler.go`,
/// `classifyWorkloadsForPriorityUpdate`).
fn follows_label(workload: &Workload, priority: &Priority) -> bool {
    let refs = [workload.spec.priority_class_ref.as_ref(), priority.class.as_ref()];
    refs.iter().all(|class| class.is_some_and(|class| class.kind == PriorityClassKind::WorkloadPriorityClass))
}

/// A slice that pays for `record` and takes over from the slice that it replaces.
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

/// The PodSets that a record adds up to. A PodSet that the slice has already keeps its template.
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

/// Says with how many pods the job can start. (What runs grows as far as there is quota in any case.)
fn accept_fewer(pod_sets: &mut [PodSet], wanted: &Wanted) {
    for set in pod_sets {
        let min_count = wanted.min_counts.get(&set.name).and_then(|min_count| i32::try_from(*min_count).ok());
        set.min_count = min_count.filter(|min_count| *min_count < set.count);
    }
}

/// `rayservice-NAME-UUUUU-N`: the job, five characters of its uid's hash so that a job made anew doesn't meet the slices of
/// its namesake, and the sequence number. At most 63 characters, so that it can be the value of a label.
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
    #[case::that_of_its_pods(
        Some(PriorityClassKind::PriorityClass),
        Some(PriorityClassKind::WorkloadPriorityClass),
        false
    )]
    fn a_slice_that_holds_quota_goes_only_from_one_workload_priority_class_to_another(
        #[case] has: Option<PriorityClassKind>,
        #[case] wanted: Option<PriorityClassKind>,
        #[case] expected: bool,
    ) {
        let mut slice = Workload::default();
        slice.spec.priority_class_ref = has.map(class);
        let priority = Priority { value: 5, class: wanted.map(class) };

        assert_eq!(follows_label(&slice, &priority), expected);
    }
}
