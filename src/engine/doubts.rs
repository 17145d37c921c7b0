//! Writes that nobody has answered: each may have gone through, or may yet, though the object still looks as it did before. What rests
//! on such an object waits until it is known what became of it.
//!
//! A patch is pinned to the version that it was computed from. So it is settled by whatever is seen of the object after that version:
//! this was the patch, or it keeps the patch from going through. And it is settled by a later write that was taken.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use kube_core::ObjectMeta;

use super::arriving::UNANSWERED;
use sluice_plan::{ObjectRef, Write, WriteOp};

/// The objects that are in doubt.
#[derive(Debug)]
pub(super) struct Doubts<P> {
    by_target: BTreeMap<ObjectRef, Doubt<P>>,
}

#[derive(Debug)]
struct Doubt<P> {
    /// Whether the object may be being deleted: other news of it don't tell.
    is_deletion: bool,
    /// When the API server has given up on it, and what came of it has been seen.
    until: Timestamp,
    /// Who waits.
    planners: BTreeSet<P>,
}

impl<P> Default for Doubts<P> {
    fn default() -> Self {
        Self { by_target: BTreeMap::new() }
    }
}

impl<P: Ord + Clone> Doubts<P> {
    /// A write of an object, of which nothing newer is known, was not answered.
    pub(super) fn unanswered(&mut self, write: &Write, now: Timestamp) {
        let until = now.saturating_add(UNANSWERED).unwrap_or(Timestamp::MAX);
        let is_deletion = matches!(write.op, WriteOp::Delete { .. });
        let planners = BTreeSet::new();
        let doubt = Doubt { is_deletion, until, planners };
        let entry = self.by_target.entry(write.target.clone()).or_insert(doubt);
        entry.until = until;
        entry.is_deletion |= is_deletion;
    }

    /// Whether a write rests on an object that is in doubt; `planner` is told when none is any more.
    pub(super) fn hold(&mut self, write: &Write, planner: &P) -> bool {
        let others = write.quiet.iter().filter(|object| **object != write.target);
        for object in others {
            if let Some(doubt) = self.by_target.get_mut(object) {
                doubt.planners.insert(planner.clone());
                return true;
            }
        }
        false
    }

    /// An object was seen in a version that is new, or `None` if it is gone. Returns who waited for that.
    pub(super) fn seen(&mut self, target: &ObjectRef, meta: Option<&ObjectMeta>) -> BTreeSet<P> {
        let is_going = meta.is_none_or(|meta| meta.deletion_timestamp.is_some());
        self.settle(target, is_going)
    }

    /// A write was taken, or was too late for an object that is gone. Returns who waited for that.
    pub(super) fn taken(&mut self, write: &Write, gone: bool) -> BTreeSet<P> {
        self.settle(&write.target, gone || matches!(write.op, WriteOp::Delete { .. }))
    }

    /// Takes those who waited for what is no longer in doubt after all this time.
    pub(super) fn expire(&mut self, now: Timestamp) -> BTreeSet<P> {
        let over = self.by_target.extract_if(.., |_, doubt| doubt.until <= now);
        over.flat_map(|(_, doubt)| doubt.planners).collect()
    }

    /// The earliest time at which [`expire`](Self::expire) has something to give.
    pub(super) fn next(&self) -> Option<Timestamp> {
        self.by_target.values().filter(|doubt| !doubt.planners.is_empty()).map(|doubt| doubt.until).min()
    }

    fn settle(&mut self, target: &ObjectRef, is_going: bool) -> BTreeSet<P> {
        match self.by_target.get(target) {
            Some(doubt) if is_going || !doubt.is_deletion => {
                self.by_target.remove(target).map(|doubt| doubt.planners).unwrap_or_default()
            }
            _ => BTreeSet::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn object(name: &str) -> ObjectRef {
        ObjectRef {
            api_version: "ray.io/v1".into(),
            kind: "RayCluster".into(),
            plural: "rayclusters".into(),
            namespace: Some("ns".into()),
            name: name.into(),
        }
    }

    fn patch(name: &str) -> Write {
        Write { target: object(name), op: WriteOp::Patch(json!({"spec": {}})), quiet: Vec::new() }
    }

    fn delete(name: &str) -> Write {
        Write { op: WriteOp::Delete { uid: "u".into(), foreground: true }, ..patch(name) }
    }

    fn going() -> ObjectMeta {
        ObjectMeta { deletion_timestamp: Some(Time(Timestamp::UNIX_EPOCH)), ..ObjectMeta::default() }
    }

    #[rstest]
    #[case::a_patch_by_any_news(patch("a"), |doubts: &mut Doubts<_>| doubts.seen(&object("a"), Some(&ObjectMeta::default())), true)]
    #[case::a_patch_by_a_later_one(patch("a"), |doubts: &mut Doubts<_>| doubts.taken(&patch("a"), false), true)]
    #[case::a_deletion_by_its_beginning(delete("a"), |doubts: &mut Doubts<_>| doubts.seen(&object("a"), Some(&going())), true)]
    #[case::a_deletion_by_its_end(delete("a"), |doubts: &mut Doubts<_>| doubts.seen(&object("a"), None), true)]
    #[case::a_deletion_by_a_later_one(delete("a"), |doubts: &mut Doubts<_>| doubts.taken(&delete("a"), false), true)]
    #[case::no_deletion_by_other_news(
        delete("a"), |doubts: &mut Doubts<_>| doubts.seen(&object("a"), Some(&ObjectMeta::default())), false)]
    #[case::no_deletion_by_a_patch(delete("a"), |doubts: &mut Doubts<_>| doubts.taken(&patch("a"), false), false)]
    #[case::nothing_by_news_of_others(patch("a"), |doubts: &mut Doubts<_>| doubts.seen(&object("b"), None), false)]
    #[case::anything_by_time(
        delete("a"), |doubts: &mut Doubts<_>| doubts.expire(Timestamp::UNIX_EPOCH + SignedDuration::from_secs(60)), true)]
    fn what_rests_on_an_object_waits_until_it_is_known_what_became_of_it(
        #[case] unanswered: Write,
        #[case] happens: fn(&mut Doubts<&'static str>) -> BTreeSet<&'static str>,
        #[case] settles: bool,
    ) {
        // Given a write that nobody answered, and another that rests on its object,
        let mut doubts = Doubts::default();
        doubts.unanswered(&unanswered, Timestamp::UNIX_EPOCH);
        let other = patch("b").while_quiet([object("a")]);
        assert!(doubts.hold(&other, &"planner"));
        assert!(!doubts.hold(&patch("a").while_quiet([object("a")]), &"planner"), "the object itself can be written");

        // when this happens, then it goes on, or not yet.
        let told = happens(&mut doubts);
        assert_eq!(told.contains("planner"), settles);
        assert_eq!(doubts.hold(&other, &"planner"), !settles);
    }
}
