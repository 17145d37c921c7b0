//! Members that make place for another: the quota is the other's already, and it starts once the last of their pods is gone.
//!
//! So a job can be made anew where there is no room for the old and the new at once. The slice that pays for the old is over
//! only when the last of its pods is gone; until then both slices are charged, by what is larger.

use super::pod_sets::Wanted;
use super::record::{Displaced, Record};
use super::slices::Slice;
use super::{JobView, Member, Request};
use sluice_api::ray::RayCluster;
use sluice_plan::ObjectRef;

/// Those that make place for a member that is still wanted. Nothing is asked for them.
pub(super) fn aside(covering: Option<&Slice<'_>>, view: &JobView<'_>, members: &[Member]) -> Vec<Displaced> {
    let displaced = covering.into_iter().flat_map(|slice| &slice.record.instead_of);
    displaced.filter(|displaced| makes_place(displaced, view, members)).cloned().collect()
}

/// What takes its place, if that is still wanted.
fn taker<'m>(displaced: &Displaced, members: &'m [Member]) -> Option<&'m Member> {
    members.iter().find(|member| member.uid == displaced.by && !member.going)
}

/// Whether it still makes place. It does not once it is to follow what took its place: it needs quota of its own again.
fn makes_place(displaced: &Displaced, view: &JobView<'_>, members: &[Member]) -> bool {
    taker(displaced, members).is_some() && view.job.next().as_ref() != Some(&displaced.uid)
}

/// Whose place is taken on a slice, if it is that of the member with this uid.
fn place_of<'s>(slice: &'s Slice<'_>, uid: &str) -> Option<&'s Displaced> {
    slice.record.instead_of.iter().find(|displaced| displaced.uid == uid)
}

/// Whether pods run on the quota of the slices before this one, and not on its own.
pub(super) fn outlasts(record: &Record, view: &JobView<'_>, members: &[Member]) -> bool {
    record.instead_of.iter().any(|displaced| runs_unpaid(displaced, record, view, members))
}

/// Those that a slice which pays for `record` from now on has to wait for: who makes place for a member that is wanted, and who
/// still has pods that it doesn't pay for.
pub(super) fn kept(held: &Slice<'_>, record: &Record, view: &JobView<'_>, members: &[Member]) -> Vec<Displaced> {
    let is_kept =
        |displaced: &&Displaced| makes_place(displaced, view, members) || runs_unpaid(displaced, record, view, members);
    held.record.instead_of.iter().filter(is_kept).cloned().collect()
}

fn runs_unpaid(displaced: &Displaced, record: &Record, view: &JobView<'_>, members: &[Member]) -> bool {
    record.member(&displaced.uid).is_none() && has_pods(&displaced.uid, view, members)
}

/// Whether the member with this uid, which may be gone, has pods that run.
fn has_pods(uid: &str, view: &JobView<'_>, members: &[Member]) -> bool {
    let same = view.outlived.iter().chain(members).filter(|member| member.uid == uid);
    same.into_iter().any(|member| !member.live_pods.is_empty())
}

/// What takes the place of a member on this slice, if it is to stop for that.
pub(super) fn taken_by<'m>(slice: &Slice<'_>, member: &Member, members: &'m [Member]) -> Option<&'m Member> {
    taker(place_of(slice, &member.uid)?, members)
}

/// Whether a member stays open although the slice doesn't pay for it: what was to take its place is not wanted any more, and the
/// slice before pays for its pods until they are asked for anew.
pub(super) fn is_wanted_back(slice: &Slice<'_>, member: &Member, members: &[Member]) -> bool {
    place_of(slice, &member.uid).is_some_and(|displaced| taker(displaced, members).is_none())
}

/// What is asked for first when what serves is wanted back whose place was taken: that, and only then what is to serve next.
/// `None` where it is not so.
pub(super) fn wanted_back(request: &Request<'_>, held: Option<&Slice<'_>>) -> Option<Wanted> {
    let held = held.filter(|_| request.outlook.instead().is_none())?;
    let serving = request.members.iter().find(|member| !member.surge && !member.going)?;
    let is_aside = request.aside.iter().any(|displaced| displaced.uid == serving.uid);
    if is_aside || place_of(held, &serving.uid).is_none() || held.record.member(&serving.uid).is_some() {
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

/// The clusters whose place is not taken any more once `record` is what is asked for. A gate of theirs that is being closed for that
/// is waited for: it would be closed on a slice that pays for it.
pub(super) fn regained(held: Option<&Slice<'_>>, record: &Record, request: &Request<'_>) -> Vec<ObjectRef> {
    let displaced = held.into_iter().flat_map(|held| &held.record.instead_of);
    let gone = displaced.filter(|displaced| record.instead_of.iter().all(|kept| kept.uid != displaced.uid));
    let namespace = &request.view.job.meta().namespace;
    gone.map(|displaced| ObjectRef::named::<RayCluster>(namespace.clone(), displaced.name.clone())).collect()
}
