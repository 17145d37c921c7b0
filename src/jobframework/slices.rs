//! Slices of a job: normally at most one that holds quota and one pending successor.

use std::collections::{BTreeMap, BTreeSet};

use kube_core::ResourceExt;

use super::record::{Counts, Record, Share, fits_within};
use super::{Group, Member};
use sluice_api::condition;
use sluice_api::kueue::{Workload, names};
use sluice_queue::parts::{PARTLY_PREEMPTED, Part, preempted_part};

/// Lifecycle phase of a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The slice waits for quota.
    Waiting,
    /// The slice holds quota, and the pods that it covers may run.
    Admitted,
    /// The slice holds quota and must release it.
    Evicted,
    /// The slice is being deleted and may still hold quota.
    Going,
    /// The slice has finished.
    Finished,
}

/// A slice of a job.
#[derive(Debug, Clone)]
pub struct Slice<'a> {
    /// The Workload.
    pub workload: &'a Workload,
    /// Requested pods; once the slice holds quota, the granted ones.
    pub record: Record,
    /// Lifecycle phase.
    pub phase: Phase,
    /// Last part that the slice must release, with all parts before it; `None` without partial
    /// preemption.
    pub gives_back: Option<Part>,
}

impl<'a> Slice<'a> {
    /// Reads a slice. One without a valid record covers nothing.
    pub fn of(workload: &'a Workload) -> Self {
        let record = Record::of(workload).unwrap_or_default();
        let holds = workload.status.as_ref().is_some_and(|status| status.admission.is_some());
        let record = if holds { record.as_granted(|pod_set| granted(workload, pod_set)) } else { record };
        let gives_back = workload.status.as_ref().and_then(preempted_part);
        Self { workload, record, phase: phase_of(workload), gives_back }
    }

    /// Returns the number of covered pods by PodSet and shape, limited to the admission.
    pub fn granted(&self) -> Counts {
        let counts = self.record.counts().into_iter();
        counts
            .map(|((pod_set, shape), count)| {
                let most = granted(self.workload, &pod_set);
                ((pod_set, shape), count.min(most))
            })
            .collect()
    }
}

/// Returns the number of pods of a PodSet that the admission of a slice grants.
fn granted(workload: &Workload, pod_set: &str) -> u32 {
    let admission = workload.status.as_ref().and_then(|status| status.admission.as_ref());
    let assignments = admission.map(|admission| admission.pod_set_assignments.as_slice()).unwrap_or_default();
    let assignment = assignments.iter().find(|assignment| assignment.name == pod_set);
    assignment.and_then(|assignment| assignment.count).and_then(|count| u32::try_from(count).ok()).unwrap_or(0)
}

impl Slice<'_> {
    /// Returns the message of the partial preemption; `None` without one.
    pub fn preemption(&self) -> Option<&str> {
        let conditions = self.workload.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        self.gives_back?;
        Some(condition::get(conditions, PARTLY_PREEMPTED)?.message.as_str())
    }

    /// Returns the number of pods of the current shape that the slice covers, by group of a member.
    pub fn grant(&self, member: &Member) -> BTreeMap<String, u32> {
        let Some(share) = self.record.member(&member.uid) else { return BTreeMap::new() };
        let groups = member.groups.iter().flatten();
        let most = |group: &Group| if self.gives_back == Some(Part::Replicas) { group.fewest } else { u32::MAX };
        groups.map(|group| (group.name.clone(), share.count(&group.name, &group.shape).min(most(group)))).collect()
    }

    /// Returns the number of covered pods of another shape than the current template of their
    /// group, by group of a member.
    pub fn earlier(&self, member: &Member) -> BTreeMap<String, u32> {
        let mut earlier = BTreeMap::new();
        let Some(share) = self.record.member(&member.uid) else { return earlier };
        let is_present = |share: &&Share| member.groups.iter().flatten().any(|group| group.kind() == share.kind());
        for share in share.pods.iter().filter(|share| !is_present(share)) {
            *earlier.entry(share.group.clone()).or_default() += share.count;
        }
        earlier
    }

    /// Returns the flavors assigned to a PodSet.
    pub fn flavors(&self, pod_set: &str) -> BTreeSet<String> {
        let admission = self.workload.status.as_ref().and_then(|status| status.admission.as_ref());
        let assignments = admission.map(|admission| admission.pod_set_assignments.as_slice()).unwrap_or_default();
        let assigned = assignments.iter().filter(|assignment| assignment.name == pod_set);
        assigned.flat_map(|assignment| assignment.flavors.values().cloned()).collect()
    }
}

fn phase_of(workload: &Workload) -> Phase {
    let conditions = workload.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let is_true = |kind| condition::is_true(conditions, kind);
    if is_true(names::FINISHED) {
        Phase::Finished
    } else if workload.metadata.deletion_timestamp.is_some() {
        Phase::Going
    } else if !is_true(names::QUOTA_RESERVED) {
        Phase::Waiting
    } else if is_true(names::EVICTED) {
        Phase::Evicted
    } else if is_true(names::ADMITTED) {
        Phase::Admitted
    } else {
        // Quota is reserved, but the slice is not admitted: no pod may run yet.
        Phase::Waiting
    }
}

/// Returns all slices of a job, oldest first.
pub fn slices_of<'a>(workloads: impl IntoIterator<Item = &'a Workload>) -> Vec<Slice<'a>> {
    let mut slices: Vec<Slice<'a>> = workloads.into_iter().map(Slice::of).collect();
    slices.sort_by_key(|slice| (slice.record.sequence, slice.workload.name_any()));
    slices
}

/// Returns the slice that the members may run on: the newest one that holds quota, if it is
/// admitted and not evicted. Older slices count as finished, even before their Finished condition
/// is set.
pub fn covering<'s, 'a>(slices: &'s [Slice<'a>]) -> Option<&'s Slice<'a>> {
    newest_holder(slices).filter(|slice| slice.phase == Phase::Admitted)
}

/// Returns true if the covering slice covers all of `wanted`.
pub(super) fn is_paid_for(wanted: &Record, slices: &[Slice<'_>]) -> bool {
    covering(slices).is_some_and(|held| fits_within(&wanted.counts(), &held.granted()))
}

/// Returns the newest slice that holds quota; `None` if none does.
pub(super) fn newest_holder<'s, 'a>(slices: &'s [Slice<'a>]) -> Option<&'s Slice<'a>> {
    let holds = |slice: &&Slice<'_>| match slice.phase {
        Phase::Admitted | Phase::Evicted => true,
        Phase::Going => holds_quota(slice.workload),
        Phase::Waiting | Phase::Finished => false,
    };
    slices.iter().rev().find(holds)
}

/// Returns the newest pending slice; `None` if there is none.
pub fn waiting<'s, 'a>(slices: &'s [Slice<'a>]) -> Option<&'s Slice<'a>> {
    slices.iter().rev().find(|slice| slice.phase == Phase::Waiting)
}

/// Returns true if a Workload has its quota reserved.
pub(super) fn holds_quota(workload: &Workload) -> bool {
    let conditions = workload.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    condition::is_true(conditions, names::QUOTA_RESERVED)
}
