//! The slices of a job: at most one that holds quota and one that waits to succeed it.

use std::collections::{BTreeMap, BTreeSet};

use kube_core::ResourceExt;

use super::record::{Counts, Record, Share, fits_within};
use super::{Group, Member};
use sluice_api::condition;
use sluice_api::kueue::{Workload, names};
use sluice_queue::parts::{PARTLY_PREEMPTED, Part, preempted_part};

/// Where a slice is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It waits for quota.
    Waiting,
    /// It holds quota, and what it covers may run.
    Admitted,
    /// It holds quota, and has been told to give it back.
    Evicted,
    /// It is being deleted, and may still hold quota.
    Going,
    /// It is over.
    Finished,
}

/// One slice of a job.
#[derive(Debug, Clone)]
pub struct Slice<'a> {
    /// The object.
    pub workload: &'a Workload,
    /// What it was built from: what it asks for, or, once it holds quota, what of that it was granted.
    pub record: Record,
    /// Where it is in its life.
    pub phase: Phase,
    /// Up to which part it has to give back what it holds.
    pub gives_back: Option<Part>,
}

impl<'a> Slice<'a> {
    /// Reads a slice. One whose record was lost counts as paying for nothing.
    pub fn of(workload: &'a Workload) -> Self {
        let record = Record::of(workload).unwrap_or_default();
        let holds = workload.status.as_ref().is_some_and(|status| status.admission.is_some());
        let record = if holds { record.as_granted(|pod_set| granted(workload, pod_set)) } else { record };
        let gives_back = workload.status.as_ref().and_then(preempted_part);
        Self { workload, record, phase: phase_of(workload), gives_back }
    }

    /// The pods that it pays for: what it was built from, as far as its admission grants that.
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

/// How many pods of a PodSet a slice's admission grants.
fn granted(workload: &Workload, pod_set: &str) -> u32 {
    let admission = workload.status.as_ref().and_then(|status| status.admission.as_ref());
    let assignments = admission.map(|admission| admission.pod_set_assignments.as_slice()).unwrap_or_default();
    let assignment = assignments.iter().find(|assignment| assignment.name == pod_set);
    assignment.and_then(|assignment| assignment.count).and_then(|count| u32::try_from(count).ok()).unwrap_or(0)
}

impl Slice<'_> {
    /// Why it has to give back a part of what it holds, if it has to.
    pub fn preemption(&self) -> Option<&str> {
        let conditions = self.workload.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        let condition = condition::get(conditions, PARTLY_PREEMPTED).filter(|_| self.gives_back.is_some())?;
        Some(condition.message.as_str())
    }

    /// How many pods of each group of a member it pays for. Pods of a shape that it was not built for are not among them.
    pub fn grant(&self, member: &Member) -> BTreeMap<String, u32> {
        let Some(share) = self.record.member(&member.uid) else { return BTreeMap::new() };
        let groups = member.groups.iter().flatten();
        let most = |group: &Group| if self.gives_back == Some(Part::Replicas) { group.fewest } else { u32::MAX };
        groups.map(|group| (group.name.clone(), share.count(&group.name, &group.shape).min(most(group)))).collect()
    }

    /// How many pods of each group of a member it pays for that are of another shape than the group's template has now.
    pub fn earlier(&self, member: &Member) -> BTreeMap<String, u32> {
        let mut earlier = BTreeMap::new();
        let Some(share) = self.record.member(&member.uid) else { return earlier };
        let is_present = |share: &&Share| member.groups.iter().flatten().any(|group| group.kind() == share.kind());
        for share in share.pods.iter().filter(|share| !is_present(share)) {
            *earlier.entry(share.group.clone()).or_default() += share.count;
        }
        earlier
    }

    /// The flavors whose quota pods of a PodSet use.
    pub fn flavors(&self, pod_set: &str) -> BTreeSet<String> {
        let admission = self.workload.status.as_ref().and_then(|status| status.admission.as_ref());
        let assignments = admission.map(|admission| admission.pod_set_assignments.as_slice()).unwrap_or_default();
        let assigned = assignments.iter().filter(|assignment| assignment.name == pod_set);
        assigned.flat_map(|assignment| assignment.flavors.values().cloned()).collect()
    }
}

fn phase_of(workload: &Workload) -> Phase {
    let conditions = workload.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let is = |kind| condition::is_true(conditions, kind);
    if is(names::FINISHED) {
        Phase::Finished
    } else if workload.metadata.deletion_timestamp.is_some() {
        Phase::Going
    } else if !is(names::QUOTA_RESERVED) {
        Phase::Waiting
    } else if is(names::EVICTED) {
        Phase::Evicted
    } else if is(names::ADMITTED) {
        Phase::Admitted
    } else {
        // Reserved, and waiting for something else: nothing may run on it yet, and nobody takes it away.
        Phase::Waiting
    }
}

/// All slices of a job, the oldest first.
pub fn slices_of<'a>(workloads: impl IntoIterator<Item = &'a Workload>) -> Vec<Slice<'a>> {
    let mut slices: Vec<Slice<'a>> = workloads.into_iter().map(Slice::of).collect();
    slices.sort_by_key(|slice| (slice.record.sequence, slice.workload.name_any()));
    slices
}

/// The slice that the job's members may run on: the newest that holds quota, unless it has to give that back. Those before it
/// are over, also when nobody has come to say so on them yet.
pub fn covering<'s, 'a>(slices: &'s [Slice<'a>]) -> Option<&'s Slice<'a>> {
    newest_holder(slices).filter(|slice| slice.phase == Phase::Admitted)
}

/// Whether the slice that the job's members may run on pays for all of this.
pub(super) fn is_paid_for(wanted: &Record, slices: &[Slice<'_>]) -> bool {
    covering(slices).is_some_and(|held| fits_within(&wanted.counts(), &held.granted()))
}

pub(super) fn newest_holder<'s, 'a>(slices: &'s [Slice<'a>]) -> Option<&'s Slice<'a>> {
    let holds = |slice: &&Slice<'_>| match slice.phase {
        Phase::Admitted | Phase::Evicted => true,
        Phase::Going => holds_quota(slice.workload),
        Phase::Waiting | Phase::Finished => false,
    };
    slices.iter().rev().find(holds)
}

/// The newest slice that waits.
pub fn waiting<'s, 'a>(slices: &'s [Slice<'a>]) -> Option<&'s Slice<'a>> {
    slices.iter().rev().find(|slice| slice.phase == Phase::Waiting)
}

pub(super) fn holds_quota(workload: &Workload) -> bool {
    let conditions = workload.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    condition::is_true(conditions, names::QUOTA_RESERVED)
}
