//! Slices of a job: normally at most one that holds quota and one pending successor.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::PodSpec;
use kube_core::ResourceExt;

use super::generic_job::GenericJob;
use super::shape::shape_of;
use super::slice_record::{MemberShare, PodSetShapeCounts, PodShare, SliceRecord, fits_within};
use super::types::{Member, PodGroupDemand, PodKind};
use sluice_api::condition;
use sluice_api::kueue::{Workload, names};
use sluice_queue::partial_preemption::{PARTIALLY_PREEMPTED, PreemptiblePart, part_to_release};
use sluice_queue::requests::{pod_requests, template_requests};

/// Lifecycle phase of a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlicePhase {
    /// The slice waits for quota.
    Pending,
    /// The slice holds quota, and the pods that it covers may run.
    Admitted,
    /// The slice holds quota and must release it.
    Evicted,
    /// The slice is being deleted and may still hold quota.
    Terminating,
    /// The slice has finished.
    Finished,
}

/// A slice of a job.
#[derive(Debug, Clone)]
pub struct Slice<'a> {
    /// The Workload.
    pub workload: &'a Workload,
    /// Requested pods; once the slice holds quota, the granted ones.
    pub record: SliceRecord,
    /// Lifecycle phase.
    pub phase: SlicePhase,
    /// Last part that the slice must release, with all parts before it; `None` without partial
    /// preemption.
    pub preempted_part: Option<PreemptiblePart>,
}

impl<'a> Slice<'a> {
    /// Reads a slice. One without a valid record covers nothing.
    pub fn from_workload(workload: &'a Workload) -> Self {
        let record = SliceRecord::from_workload(workload).unwrap_or_default();
        let holds = workload.status.as_ref().is_some_and(|status| status.admission.is_some());
        let record = if holds { record.limited_to_grant(|pod_set| granted_count(workload, pod_set)) } else { record };
        let gives_back = workload.status.as_ref().and_then(part_to_release);
        Self { workload, record, phase: phase_of(workload), preempted_part: gives_back }
    }

    /// Returns the number of covered pods by PodSet and shape, limited to the admission.
    pub fn granted_counts(&self) -> PodSetShapeCounts {
        let counts = self.record.counts().into_iter();
        counts
            .map(|((pod_set, shape), count)| {
                let most = granted_count(self.workload, &pod_set);
                ((pod_set, shape), count.min(most))
            })
            .collect()
    }

    /// Returns true if the admission grants quota for all pods that another slice covers.
    pub fn grants_all_of(&self, other: &SliceRecord) -> bool {
        let is_covered = |member: &MemberShare| self.record.member(&member.uid).is_some();
        other.members.iter().all(is_covered) && fits_within(&other.counts(), &self.granted_counts())
    }
}

/// Returns the number of pods of a PodSet that the admission of a slice grants.
fn granted_count(workload: &Workload, pod_set: &str) -> u32 {
    let admission = workload.status.as_ref().and_then(|status| status.admission.as_ref());
    let assignments = admission.map(|admission| admission.pod_set_assignments.as_slice()).unwrap_or_default();
    let assignment = assignments.iter().find(|assignment| assignment.name == pod_set);
    assignment.and_then(|assignment| assignment.count).and_then(|count| u32::try_from(count).ok()).unwrap_or(0)
}

impl Slice<'_> {
    /// Returns the message of the partial preemption; `None` without one.
    pub fn preemption_message(&self) -> Option<&str> {
        let conditions = self.workload.conditions();
        self.preempted_part?;
        Some(condition::get(conditions, PARTIALLY_PREEMPTED)?.message.as_str())
    }

    /// Returns the number of pods of the current shape that the slice covers, by group of a member.
    pub fn granted_pods(&self, member: &Member) -> BTreeMap<String, u32> {
        let Some(share) = self.record.member(&member.uid) else { return BTreeMap::new() };
        let groups = member.groups.iter().flatten();
        let most = |group: &PodGroupDemand| {
            if self.preempted_part == Some(PreemptiblePart::Replicas) { group.min_pods } else { u32::MAX }
        };
        groups.map(|group| (group.name.clone(), share.count(&group.name, &group.shape).min(most(group)))).collect()
    }

    /// Returns the number of covered pods of another shape than the current template of their
    /// group, by group of a member.
    pub fn outdated_pods(&self, member: &Member) -> BTreeMap<String, u32> {
        let mut earlier = BTreeMap::new();
        let Some(share) = self.record.member(&member.uid) else { return earlier };
        let is_present = |share: &&PodShare| member.groups.iter().flatten().any(|group| group.kind() == share.kind());
        for share in share.pods.iter().filter(|share| !is_present(share)) {
            *earlier.entry(share.group.clone()).or_default() += share.count;
        }
        earlier
    }

    /// Returns true if the PodSets request what the record claims to cover: so many pods of this shape.
    /// Any user who may create Workloads can create one with a record that claims more than its
    /// PodSets are charged for.
    pub fn is_consistent(&self) -> bool {
        let pod_set = |name: &str| self.workload.spec.pod_sets.iter().find(|pod_set| pod_set.name == name);
        let has_shape = |share: &PodShare| {
            let spec = pod_set(&share.pod_set).and_then(|pod_set| pod_set.template.decode_spec::<PodSpec>().ok());
            spec.is_some_and(|spec| shape_of(&spec).is_ok_and(|shape| shape == share.shape))
        };
        let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
        let shares = || self.record.members.iter().flat_map(|member| &member.pods);
        for share in shares() {
            *counts.entry(&share.pod_set).or_default() += share.count;
        }
        let has_count = |(name, count): (&str, u32)| {
            pod_set(name).is_some_and(|pod_set| u32::try_from(pod_set.count).is_ok_and(|known| known == count))
        };
        counts.into_iter().all(has_count) && shares().all(has_shape)
    }

    /// Returns true if the slice has no record, such as a Workload of Kueue, and its admission grants quota
    /// for all pods of `member`: for so many in each PodSet, and for all that each of them requests.
    /// Their shapes may differ, because the templates in a Workload of Kueue are as the user wrote them.
    pub(super) fn is_unrecorded_quota_for(&self, member: &Member) -> bool {
        let is_granted = |(kind, run): (&PodKind, &u32)| {
            let group = member.groups.iter().flatten().find(|group| group.kind() == *kind);
            group.is_some_and(|group| {
                *run <= granted_count(self.workload, &group.pod_set) && self.requests_all_of(group)
            })
        };
        self.record.members.is_empty() && member.live_pods.iter().all(is_granted)
    }

    /// Returns true if the PodSet of a group requests no less for each pod than the group does.
    fn requests_all_of(&self, group: &PodGroupDemand) -> bool {
        let pod_set = self.workload.spec.pod_sets.iter().find(|known| known.name == group.pod_set);
        let known = pod_set.and_then(|known| template_requests(&known.template).ok());
        let wanted = group.template.spec.as_ref().and_then(|spec| pod_requests(spec).ok());
        let (Some(known), Some(wanted)) = (known, wanted) else { return false };
        wanted.iter().all(|(resource, amount)| known.get(resource) >= amount)
    }

    /// Returns true if the slice is being deleted although its job runs on it. Sluice deletes a slice
    /// only once its job has stopped, has moved or has left its queue.
    pub(super) fn was_deleted_by_hand(&self) -> bool {
        let is_true = |kind| condition::is_true(self.workload.conditions(), kind);
        self.phase == SlicePhase::Terminating && is_true(names::ADMITTED) && !is_true(names::EVICTED)
    }

    /// Returns true if the job has moved to another LocalQueue since the slice was created.
    pub(super) fn is_of_another_queue(&self, job: &dyn GenericJob) -> bool {
        self.workload.spec.queue_name != job.queue_name()
    }

    /// Returns the flavors assigned to a PodSet.
    pub fn flavors(&self, pod_set: &str) -> BTreeSet<String> {
        let admission = self.workload.status.as_ref().and_then(|status| status.admission.as_ref());
        let assignments = admission.map(|admission| admission.pod_set_assignments.as_slice()).unwrap_or_default();
        let assigned = assignments.iter().filter(|assignment| assignment.name == pod_set);
        assigned.flat_map(|assignment| assignment.flavors.values().cloned()).collect()
    }
}

/// Returns the name of the Workload that a slice replaces; `None` if it replaces none.
pub fn predecessor_name(slice: &Workload) -> Option<&str> {
    let claim = slice.annotations().get(names::SLICE_REPLACEMENT_FOR_ANNOTATION)?;
    Some(claim.rsplit_once('/').map_or(claim.as_str(), |(_, name)| name))
}

fn phase_of(workload: &Workload) -> SlicePhase {
    let conditions = workload.conditions();
    let is_true = |kind| condition::is_true(conditions, kind);
    if is_true(names::FINISHED) {
        SlicePhase::Finished
    } else if workload.metadata.deletion_timestamp.is_some() {
        SlicePhase::Terminating
    } else if !is_true(names::QUOTA_RESERVED) {
        SlicePhase::Pending
    } else if is_true(names::EVICTED) {
        SlicePhase::Evicted
    } else if is_true(names::ADMITTED) {
        SlicePhase::Admitted
    } else {
        // Quota is reserved, but the slice is not admitted: no pod may run yet.
        SlicePhase::Pending
    }
}

/// Returns all slices of a job, oldest first.
pub fn slices_of<'a>(workloads: impl IntoIterator<Item = &'a Workload>) -> Vec<Slice<'a>> {
    let mut slices: Vec<Slice<'a>> = workloads.into_iter().map(Slice::from_workload).collect();
    slices.sort_by_key(|slice| (slice.record.sequence, slice.workload.name_any()));
    slices
}

/// Returns the slice that the members may run on: the newest one that holds quota, if it is
/// admitted and not evicted. Older slices count as finished, even before their Finished condition
/// is set. One that was deleted by hand covers what runs until its successor does.
pub fn covering<'s, 'a>(slices: &'s [Slice<'a>]) -> Option<&'s Slice<'a>> {
    newest_holder(slices).filter(|slice| slice.phase == SlicePhase::Admitted || slice.was_deleted_by_hand())
}

/// Returns true if the covering slice covers all of `wanted`.
pub(super) fn is_covered(wanted: &SliceRecord, slices: &[Slice<'_>]) -> bool {
    covering(slices).is_some_and(|held| fits_within(&wanted.counts(), &held.granted_counts()))
}

/// Returns the newest slice that holds quota; `None` if none does.
pub(super) fn newest_holder<'s, 'a>(slices: &'s [Slice<'a>]) -> Option<&'s Slice<'a>> {
    let holds = |slice: &&Slice<'_>| match slice.phase {
        SlicePhase::Admitted | SlicePhase::Evicted => true,
        SlicePhase::Terminating => holds_quota(slice.workload),
        SlicePhase::Pending | SlicePhase::Finished => false,
    };
    slices.iter().rev().find(holds)
}

/// Returns the newest pending slice; `None` if there is none.
pub fn pending<'s, 'a>(slices: &'s [Slice<'a>]) -> Option<&'s Slice<'a>> {
    slices.iter().rev().find(|slice| slice.phase == SlicePhase::Pending)
}

/// Returns true if a Workload has its quota reserved.
pub(super) fn holds_quota(workload: &Workload) -> bool {
    let conditions = workload.conditions();
    condition::is_true(conditions, names::QUOTA_RESERVED)
}
