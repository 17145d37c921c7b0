//! Builder of the Workloads that are the slices of a job.

use indexmap::IndexMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube_core::ObjectMeta;
use kube_core::ResourceExt;
use sluice_api::canonical_hash;
use sluice_api::kueue::{PodSet, Workload, WorkloadSpec, names};
use sluice_queue::partial_admission::SLICE_ANNOTATION;

use super::generic_job::GenericJob;
use super::pod_sets::DesiredPodSets;
use super::quota_request::QuotaRequest;
use super::slice_record::SliceRecord;
use super::slices::Slice;

/// Builds a slice that covers `record` and replaces the slice `replaces`, if any.
pub(super) fn new_slice(request: &QuotaRequest<'_>, record: SliceRecord, replaces: Option<&Slice<'_>>) -> Workload {
    let QuotaRequest { context, demand: wanted, priority, .. } = request;
    let reference = context.job.reference();
    let spec = WorkloadSpec {
        pod_sets: build_pod_sets(&record, wanted, &[]),
        queue_name: context.job.queue_name(),
        priority: Some(priority.value),
        priority_class_ref: priority.class.clone(),
        active: Some(true),
        maximum_execution_time_seconds: request.max_execution_seconds,
        ..WorkloadSpec::default()
    };
    let uid = context.job.meta().uid.clone().unwrap_or_default();
    let mut slice = Workload::new(&slice_name(context.job, record.sequence), spec);
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
        set_min_counts(&mut slice.spec.pod_sets, wanted);
    }
    if let Some(replaced) = replaces {
        let claim = format!("{}/{}", replaced.workload.namespace().unwrap_or_default(), replaced.workload.name_any());
        slice.annotations_mut().insert(names::SLICE_REPLACEMENT_FOR_ANNOTATION.into(), claim);
    }
    slice
}

/// Builds the PodSets of a record. An existing PodSet keeps its template.
pub(super) fn build_pod_sets(record: &SliceRecord, wanted: &DesiredPodSets, existing: &[PodSet]) -> Vec<PodSet> {
    let mut pod_sets: IndexMap<&str, PodSet> = IndexMap::new();
    for share in record.members.iter().flat_map(|member| &member.pods) {
        let count = i32::try_from(share.count).unwrap_or(i32::MAX);
        if let Some(known) = pod_sets.get_mut(share.pod_set.as_str()) {
            known.count = known.count.saturating_add(count);
            continue;
        }
        let kept = existing.iter().find(|known| known.name == share.pod_set);
        let template = match (kept, wanted.templates.get(&share.pod_set)) {
            (Some(kept), _) => kept.template.clone(),
            (None, Some(mold)) => mold.template(),
            (None, None) => continue,
        };
        let pod_set = PodSet { name: share.pod_set.clone(), count, template, ..PodSet::default() };
        pod_sets.insert(&share.pod_set, pod_set);
    }
    pod_sets.into_values().collect()
}

/// Sets `minCount`, the number of pods that the job can start with. (A running job grows as far as
/// its quota allows in any case.)
pub(super) fn set_min_counts(pod_sets: &mut [PodSet], wanted: &DesiredPodSets) {
    for set in pod_sets {
        let min_count = wanted.min_counts.get(&set.name).and_then(|min_count| i32::try_from(*min_count).ok());
        set.min_count = min_count.filter(|min_count| *min_count < set.count);
    }
}

/// Returns `rayservice-NAME-UUUUU-N`: kind and name of the job, five characters of the hash of its
/// uid so that a recreated job does not collide with slices of its predecessor, and the sequence
/// number. At most 63 characters, so that it is a valid label value.
pub(super) fn slice_name(job: &dyn GenericJob, sequence: u64) -> String {
    let reference = job.reference();
    let uid = job.meta().uid.clone().unwrap_or_default();
    let ending = format!("-{}-{sequence}", canonical_hash::short_hash(&uid));
    let start: String = format!("{}-{}", reference.kind.to_lowercase(), reference.name);
    let kept: String = start.chars().take(63 - ending.len()).collect();
    format!("{}{ending}", kept.trim_end_matches(['-', '.']))
}
