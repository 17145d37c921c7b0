//! Replacement of a member: its replacement holds the quota already, and starts once the last pod
//! of the displaced member is gone.
//!
//! So a job can be recreated where the old and the new member never fit together. The slice that
//! covers the old member finishes only when the last of its pods is gone. Until then the usage is
//! the larger of the two slices.

use super::pod_sets::Wanted;
use super::record::{Displaced, Record};
use super::slices::Slice;
use super::{JobView, Member, Request};
use sluice_api::ray::RayCluster;
use sluice_plan::ObjectRef;

/// Returns the members displaced by a member that is still desired. Nothing is requested for them.
pub(super) fn aside(covering: Option<&Slice<'_>>, view: &JobView<'_>, members: &[Member]) -> Vec<Displaced> {
    let displaced = covering.into_iter().flat_map(|slice| &slice.record.instead_of);
    displaced.filter(|displaced| makes_place(displaced, view, members)).cloned().collect()
}

/// Returns the replacement of a displaced member; `None` if it is no longer desired.
fn taker<'m>(displaced: &Displaced, members: &'m [Member]) -> Option<&'m Member> {
    members.iter().find(|member| member.uid == displaced.by && !member.going)
}

/// Returns true if the member is still displaced. It is not once it becomes the pending member of a
/// later upgrade: it then needs quota again.
fn makes_place(displaced: &Displaced, view: &JobView<'_>, members: &[Member]) -> bool {
    taker(displaced, members).is_some() && view.job.next().as_ref() != Some(&displaced.uid)
}

/// Returns the entry of the member with this uid among the displaced members of a slice.
fn place_of<'s>(slice: &'s Slice<'_>, uid: &str) -> Option<&'s Displaced> {
    slice.record.instead_of.iter().find(|displaced| displaced.uid == uid)
}

/// Returns true if pods of displaced members still run, on the quota of previous slices.
pub(super) fn outlasts(record: &Record, view: &JobView<'_>, members: &[Member]) -> bool {
    record.instead_of.iter().any(|displaced| runs_unpaid(displaced, record, view, members))
}

/// Returns the displaced members that a slice must still wait for once it covers `record`: those
/// whose replacement is desired, and those with running pods that the slice does not cover.
pub(super) fn kept(held: &Slice<'_>, record: &Record, view: &JobView<'_>, members: &[Member]) -> Vec<Displaced> {
    let is_kept =
        |displaced: &&Displaced| makes_place(displaced, view, members) || runs_unpaid(displaced, record, view, members);
    held.record.instead_of.iter().filter(is_kept).cloned().collect()
}

/// Returns true if a displaced member has running pods that `record` does not cover.
fn runs_unpaid(displaced: &Displaced, record: &Record, view: &JobView<'_>, members: &[Member]) -> bool {
    record.member(&displaced.uid).is_none() && has_pods(&displaced.uid, view, members)
}

/// Returns true if the member with this uid, which may be orphaned, has live pods.
fn has_pods(uid: &str, view: &JobView<'_>, members: &[Member]) -> bool {
    let same = view.outlived.iter().chain(members).filter(|member| member.uid == uid);
    same.into_iter().any(|member| !member.live_pods.is_empty())
}

/// Returns the replacement of a member on this slice, if the member has to stop for it.
pub(super) fn taken_by<'m>(slice: &Slice<'_>, member: &Member, members: &'m [Member]) -> Option<&'m Member> {
    taker(place_of(slice, &member.uid)?, members)
}

/// Returns true if a member stays open although the slice does not cover it: its replacement is no
/// longer desired, and the previous slice covers its pods until they are requested again.
pub(super) fn is_wanted_back(slice: &Slice<'_>, member: &Member, members: &[Member]) -> bool {
    place_of(slice, &member.uid).is_some_and(|displaced| taker(displaced, members).is_none())
}

/// Returns the demand to request first if the active member is displaced and desired again: without
/// the pending member, which is requested afterwards. `None` otherwise.
pub(super) fn wanted_back(request: &Request<'_>, held: Option<&Slice<'_>>) -> Option<Wanted> {
    if request.outlook.instead().is_some() {
        return None;
    }
    let held = held?;
    let serving = request.members.iter().find(|member| !member.surge && !member.going)?;
    let is_displaced = request.aside.iter().any(|displaced| displaced.uid == serving.uid);
    if is_displaced || place_of(held, &serving.uid).is_none() || held.record.member(&serving.uid).is_some() {
        return None;
    }
    let can_wait = |uid: &str| {
        let mut same = request.members.iter().filter(|member| member.uid == uid);
        same.any(|member| member.surge && member.live_pods.is_empty()) && held.record.member(uid).is_none()
    };
    let mut wanted = request.wanted.clone();
    wanted.record.members.retain(|member| !can_wait(&member.uid));
    Some(wanted)
}

/// Returns the clusters that are no longer displaced once `record` is requested. The request waits
/// for writes to them: a gate that is being closed would otherwise be closed on a slice that covers
/// it.
pub(super) fn regained(held: Option<&Slice<'_>>, record: &Record, request: &Request<'_>) -> Vec<ObjectRef> {
    let displaced = held.into_iter().flat_map(|held| &held.record.instead_of);
    let gone = displaced.filter(|displaced| record.instead_of.iter().all(|kept| kept.uid != displaced.uid));
    let namespace = &request.view.job.meta().namespace;
    gone.map(|displaced| ObjectRef::named::<RayCluster>(namespace.clone(), displaced.name.clone())).collect()
}
