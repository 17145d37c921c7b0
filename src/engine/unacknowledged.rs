//! Unacknowledged writes: no response arrived, so the write may have taken effect, or may still do
//! so, although the object looks unchanged. Writes that depend on such an object are blocked until
//! the outcome is known.
//!
//! A patch carries the resource version that it was computed from. Any newer version of the object
//! therefore resolves it: either that version is the patch, or it makes the patch fail with a
//! conflict. A later accepted write to the object resolves it too.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use kube_core::ObjectMeta;

use super::pod_expectations::UNANSWERED_WRITE_TIMEOUT;
use sluice_plan::{ObjectRef, Write, WriteOp};

/// The unacknowledged writes, by target.
#[derive(Debug)]
pub(super) struct UnacknowledgedWrites<P> {
    by_target: BTreeMap<ObjectRef, UnacknowledgedWrite<P>>,
}

#[derive(Debug)]
struct UnacknowledgedWrite<P> {
    /// One of the writes is a delete, which versions without a deletion timestamp do not resolve.
    is_deletion: bool,
    /// Time at which the API server has timed out the request and its effect has been observed.
    expires_at: Timestamp,
    /// Planners with a blocked write.
    blocked_planners: BTreeSet<P>,
}

impl<P> Default for UnacknowledgedWrites<P> {
    fn default() -> Self {
        Self { by_target: BTreeMap::new() }
    }
}

impl<P: Ord + Clone> UnacknowledgedWrites<P> {
    /// Records a write without a response; no newer version of its target is known.
    pub(super) fn record(&mut self, write: &Write, now: Timestamp) {
        let until = now.saturating_add(UNANSWERED_WRITE_TIMEOUT).unwrap_or(Timestamp::MAX);
        let is_deletion = matches!(write.op, WriteOp::Delete { .. });
        let planners = BTreeSet::new();
        let doubt = UnacknowledgedWrite { is_deletion, expires_at: until, blocked_planners: planners };
        let entry = self.by_target.entry(write.target.clone()).or_insert(doubt);
        entry.expires_at = until;
        entry.is_deletion |= is_deletion;
    }

    /// Reports whether a write depends on an object with an unacknowledged write. If so, `planner`
    /// is returned when that one is resolved.
    pub(super) fn is_blocked(&mut self, write: &Write, planner: &P) -> bool {
        let dependencies = write.blocked_by.iter().filter(|object| **object != write.target);
        for object in dependencies {
            if let Some(doubt) = self.by_target.get_mut(object) {
                doubt.blocked_planners.insert(planner.clone());
                return true;
            }
        }
        false
    }

    /// Records a new version of an object, `None` if it was deleted. Returns the unblocked
    /// planners.
    pub(super) fn on_observed(&mut self, target: &ObjectRef, meta: Option<&ObjectMeta>) -> BTreeSet<P> {
        let is_terminating = meta.is_none_or(|meta| meta.deletion_timestamp.is_some());
        self.resolve(target, is_terminating)
    }

    /// Records a write that the API server accepted, or whose target is `gone`. Returns the
    /// unblocked planners.
    pub(super) fn on_accepted(&mut self, write: &Write, gone: bool) -> BTreeSet<P> {
        self.resolve(&write.target, gone || matches!(write.op, WriteOp::Delete { .. }))
    }

    /// Drops expired writes; returns the unblocked planners.
    pub(super) fn expire(&mut self, now: Timestamp) -> BTreeSet<P> {
        let over = self.by_target.extract_if(.., |_, doubt| doubt.expires_at <= now);
        over.flat_map(|(_, doubt)| doubt.blocked_planners).collect()
    }

    /// Returns the earliest time at which [`expire`](Self::expire) unblocks a planner; `None` if no
    /// planner is blocked.
    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        self.by_target.values().filter(|doubt| !doubt.blocked_planners.is_empty()).map(|doubt| doubt.expires_at).min()
    }

    fn resolve(&mut self, target: &ObjectRef, is_terminating: bool) -> BTreeSet<P> {
        match self.by_target.get(target) {
            Some(doubt) if is_terminating || !doubt.is_deletion => {
                self.by_target.remove(target).map(|doubt| doubt.blocked_planners).unwrap_or_default()
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
        Write { target: object(name), op: WriteOp::Patch(json!({"spec": {}})), blocked_by: Vec::new() }
    }

    fn delete(name: &str) -> Write {
        Write { op: WriteOp::Delete { uid: "u".into(), foreground: true }, ..patch(name) }
    }

    fn terminating() -> ObjectMeta {
        ObjectMeta { deletion_timestamp: Some(Time(Timestamp::UNIX_EPOCH)), ..ObjectMeta::default() }
    }

    #[rstest]
    #[case::patch_by_newer_version(patch("a"), |doubts: &mut UnacknowledgedWrites<_>| doubts.on_observed(&object("a"), Some(&ObjectMeta::default())), true)]
    #[case::patch_by_accepted_patch(patch("a"), |doubts: &mut UnacknowledgedWrites<_>| doubts.on_accepted(&patch("a"), false), true)]
    #[case::delete_by_deletion_timestamp(delete("a"), |doubts: &mut UnacknowledgedWrites<_>| doubts.on_observed(&object("a"), Some(&terminating())), true)]
    #[case::delete_by_removal(delete("a"), |doubts: &mut UnacknowledgedWrites<_>| doubts.on_observed(&object("a"), None), true)]
    #[case::delete_by_accepted_delete(delete("a"), |doubts: &mut UnacknowledgedWrites<_>| doubts.on_accepted(&delete("a"), false), true)]
    #[case::delete_not_by_live_version(
        delete("a"), |doubts: &mut UnacknowledgedWrites<_>| doubts.on_observed(&object("a"), Some(&ObjectMeta::default())), false)]
    #[case::delete_not_by_accepted_patch(delete("a"), |doubts: &mut UnacknowledgedWrites<_>| doubts.on_accepted(&patch("a"), false), false)]
    #[case::not_by_another_object(patch("a"), |doubts: &mut UnacknowledgedWrites<_>| doubts.on_observed(&object("b"), None), false)]
    #[case::any_write_by_timeout(
        delete("a"), |doubts: &mut UnacknowledgedWrites<_>| doubts.expire(Timestamp::UNIX_EPOCH + SignedDuration::from_secs(60)), true)]
    fn dependent_write_is_blocked_until_unacknowledged_write_is_resolved(
        #[case] unanswered: Write,
        #[case] happens: fn(&mut UnacknowledgedWrites<&'static str>) -> BTreeSet<&'static str>,
        #[case] settles: bool,
    ) {
        // Given an unacknowledged write, and another write that depends on its target,
        let mut doubts = UnacknowledgedWrites::default();
        doubts.record(&unanswered, Timestamp::UNIX_EPOCH);
        let other = patch("b").blocked_while_in_flight([object("a")]);
        assert!(doubts.is_blocked(&other, &"planner"));
        assert!(
            !doubts.is_blocked(&patch("a").blocked_while_in_flight([object("a")]), &"planner"),
            "the object itself can be written"
        );

        // when this happens, then the other write is unblocked, or not yet.
        let unblocked = happens(&mut doubts);
        assert_eq!(unblocked.contains("planner"), settles);
        assert_eq!(doubts.is_blocked(&other, &"planner"), !settles);
    }
}
