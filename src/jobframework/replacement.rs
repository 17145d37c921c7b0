//! Replacement of a member: its replacement holds the quota already, and starts once the last pod
//! of the displaced member is gone.
//!
//! So a job can be recreated where the old and the new member never fit together. The slice that
//! covers the old member finishes only when the last of its pods is gone. Until then the usage is
//! the larger of the two slices.

use super::context::ReconcileContext;
use super::pod_sets::DesiredPodSets;
use super::quota_request::QuotaRequest;
use super::slice_record::{DisplacedMember, SliceRecord};
use super::slices::Slice;
use super::types::Member;
use sluice_api::ray::RayCluster;
use sluice_plan::ObjectRef;

/// Returns the members displaced by a member that is still desired. Nothing is requested for them.
pub(super) fn displaced_members(
    covering: Option<&Slice<'_>>,
    context: &ReconcileContext<'_>,
    members: &[Member],
) -> Vec<DisplacedMember> {
    let displaced = covering.into_iter().flat_map(|slice| &slice.record.displaces);
    displaced.filter(|displaced| is_displaced(displaced, context, members)).cloned().collect()
}

/// Returns the replacement of a displaced member; `None` if it is no longer desired.
fn replacement_of<'m>(displaced: &DisplacedMember, members: &'m [Member]) -> Option<&'m Member> {
    members.iter().find(|member| member.uid == displaced.replaced_by && !member.is_terminating)
}

/// Returns true if the member is still displaced. It is not once it becomes the pending member of a
/// later upgrade: it then needs quota again.
fn is_displaced(displaced: &DisplacedMember, context: &ReconcileContext<'_>, members: &[Member]) -> bool {
    replacement_of(displaced, members).is_some() && context.job.pending_member().as_ref() != Some(&displaced.uid)
}

/// Returns the entry of the member with this uid among the displaced members of a slice.
fn displaced_entry<'s>(slice: &'s Slice<'_>, uid: &str) -> Option<&'s DisplacedMember> {
    slice.record.displaces.iter().find(|displaced| displaced.uid == uid)
}

/// Returns true if pods of displaced members still run, on the quota of previous slices.
pub(super) fn has_running_displaced(record: &SliceRecord, context: &ReconcileContext<'_>, members: &[Member]) -> bool {
    record.displaces.iter().any(|displaced| runs_uncovered(displaced, record, context, members))
}

/// Returns the displaced members that a slice must still wait for once it covers `record`: those
/// whose replacement is desired, and those with running pods that the slice does not cover.
pub(super) fn still_displaced(
    held: &Slice<'_>,
    record: &SliceRecord,
    context: &ReconcileContext<'_>,
    members: &[Member],
) -> Vec<DisplacedMember> {
    let is_kept = |displaced: &&DisplacedMember| {
        is_displaced(displaced, context, members) || runs_uncovered(displaced, record, context, members)
    };
    held.record.displaces.iter().filter(is_kept).cloned().collect()
}

/// Returns true if a displaced member has running pods that `record` does not cover.
fn runs_uncovered(
    displaced: &DisplacedMember,
    record: &SliceRecord,
    context: &ReconcileContext<'_>,
    members: &[Member],
) -> bool {
    record.member(&displaced.uid).is_none() && has_live_pods(&displaced.uid, context, members)
}

/// Returns true if the member with this uid, which may be orphaned, has live pods.
fn has_live_pods(uid: &str, context: &ReconcileContext<'_>, members: &[Member]) -> bool {
    let same = context.orphaned_members.iter().chain(members).filter(|member| member.uid == uid);
    same.into_iter().any(|member| !member.live_pods.is_empty())
}

/// Returns the replacement of a member on this slice, if the member has to stop for it.
pub(super) fn replacement_on<'m>(slice: &Slice<'_>, member: &Member, members: &'m [Member]) -> Option<&'m Member> {
    replacement_of(displaced_entry(slice, &member.uid)?, members)
}

/// Returns true if a member stays open although the slice does not cover it: its replacement is no
/// longer desired, and the previous slice covers its pods until they are requested again.
pub(super) fn is_restored(slice: &Slice<'_>, member: &Member, members: &[Member]) -> bool {
    displaced_entry(slice, &member.uid).is_some_and(|displaced| replacement_of(displaced, members).is_none())
}

/// Returns the demand to request first if the active member is displaced and desired again: without
/// the pending member, which is requested afterwards. `None` otherwise.
pub(super) fn restored_demand(request: &QuotaRequest<'_>, held: Option<&Slice<'_>>) -> Option<DesiredPodSets> {
    if request.feasibility.displaced_member().is_some() {
        return None;
    }
    let held = held?;
    let serving = request.members.iter().find(|member| !member.is_surge && !member.is_terminating)?;
    let is_displaced = request.displaced.iter().any(|displaced| displaced.uid == serving.uid);
    if is_displaced || displaced_entry(held, &serving.uid).is_none() || held.record.member(&serving.uid).is_some() {
        return None;
    }
    let can_wait = |uid: &str| {
        let mut same = request.members.iter().filter(|member| member.uid == uid);
        same.any(|member| member.is_surge && member.live_pods.is_empty()) && held.record.member(uid).is_none()
    };
    let mut wanted = request.demand.clone();
    wanted.record.members.retain(|member| !can_wait(&member.uid));
    Some(wanted)
}

/// Returns the clusters that are no longer displaced once `record` is requested. The request waits
/// for writes to them: a gate that is being closed would otherwise be closed on a slice that covers
/// it.
pub(super) fn restored_members(
    held: Option<&Slice<'_>>,
    record: &SliceRecord,
    request: &QuotaRequest<'_>,
) -> Vec<ObjectRef> {
    let displaced = held.into_iter().flat_map(|held| &held.record.displaces);
    let gone = displaced.filter(|displaced| record.displaces.iter().all(|kept| kept.uid != displaced.uid));
    let namespace = &request.context.job.meta().namespace;
    gone.map(|displaced| ObjectRef::named::<RayCluster>(namespace.clone(), displaced.name.clone())).collect()
}
