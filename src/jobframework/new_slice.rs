//! Builder of the Workloads that are the slices of a job.

use indexmap::IndexMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube_core::ObjectMeta;
use kube_core::ResourceExt;
use sha1::{Digest, Sha1};
use sluice_api::kueue::{PodSet, Workload, WorkloadSpec, names};
use sluice_plan::ObjectRef;
use sluice_queue::partial_admission::SLICE_ANNOTATION;

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
    let mut slice = Workload::new(&slice_name(&reference, &uid, record.sequence), spec);
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

/// Characters of a label value. Tools put names of Workloads into labels.
const MAX_NAME_LENGTH: usize = 63;
/// Hexadecimal digits of the hash in a name.
const HASH_LENGTH: usize = 5;

/// Returns the name of a slice: for the first slice of a job `KIND-NAME-HASH`, the name that Kueue
/// gives to its Workload, so that tools which compute it find the Workload; for each further one
/// `KIND-NAME-HASH-N` with its sequence number. The hash contains the uid of the job, so that a
/// recreated job does not collide with slices of its predecessor.
///
/// Source: `pkg/controller/jobframework/workload_names.go` of Kueue v0.19.2, with the gate
/// `ShortWorkloadNames`.
fn slice_name(job: &ObjectRef, uid: &str, sequence: u64) -> String {
    let group = job.api_version.split_once('/').map_or("", |(group, _)| group);
    let digest = Sha1::digest(format!("{}\n{group}\n{}\n{uid}", job.kind, job.name));
    let hash: String = digest.iter().map(|byte| format!("{byte:02x}")).take(HASH_LENGTH.div_ceil(2)).collect();
    let number = if sequence <= 1 { String::new() } else { format!("-{sequence}") };
    let ending = format!("-{}{number}", &hash[..HASH_LENGTH]);
    let start = format!("{}-{}", job.kind.to_lowercase(), job.name);
    let kept: String = start.chars().take(MAX_NAME_LENGTH - ending.len()).collect();
    // No label of a DNS name begins with a hyphen: Kueue fails to create such a Workload.
    format!("{}{ending}", kept.trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::job("batch/v1", "Job", "train", "1f0c", 1, "job-train-4d141")]
    #[case::ray_cluster("ray.io/v1", "RayCluster", "train", "1f0c", 1, "raycluster-train-4bc56")]
    #[case::recreated("batch/v1", "Job", "train", "2b7d", 1, "job-train-f081d")]
    #[case::further("batch/v1", "Job", "train", "1f0c", 12, "job-train-4d141-12")]
    #[case::long("batch/v1", "Job", &"a".repeat(60), "1f0c", 1, "job-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-c419d")]
    #[case::long_further("batch/v1", "Job", &"a".repeat(60), "1f0c", 12, "job-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-c419d-12")]
    #[case::cut_at_a_dot("batch/v1", "Job", &format!("{}.b", "a".repeat(52)), "1f0c", 1, "job-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-86862")]
    fn slices_have_the_name_of_the_job_and_a_hash(
        #[case] api_version: &str,
        #[case] kind: &str,
        #[case] name: &str,
        #[case] uid: &str,
        #[case] sequence: u64,
        #[case] expected: &str,
    ) {
        let job = ObjectRef {
            api_version: api_version.into(),
            kind: kind.into(),
            plural: String::new(),
            namespace: Some("ns".into()),
            name: name.into(),
        };

        assert_eq!(slice_name(&job, uid, sequence), expected);
    }
}
