//! Unacknowledged writes: no response arrived, so the write may have taken effect, or may still do
//! so, although the object looks unchanged. Writes that depend on such an object are blocked until
//! the outcome is known.
//!
//! A patch carries the resource version that it was computed from. Any newer version of the object
//! therefore resolves it: either that version is the patch, or it makes the patch fail with a
//! conflict. A later accepted write to the object resolves it too.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::UNANSWERED_WRITE_TIMEOUT;
use sluice_plan::{ObjectRef, Write, WriteOp};

/// The unacknowledged writes, by target.
#[derive(Debug, Clone)]
pub(super) struct UnacknowledgedWrites<P> {
    by_target: BTreeMap<ObjectRef, UnacknowledgedWrite<P>>,
}

#[derive(Debug, Clone)]
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
        let first = UnacknowledgedWrite { is_deletion, expires_at: until, blocked_planners: planners };
        let entry = self.by_target.entry(write.target.clone()).or_insert(first);
        entry.expires_at = until;
        entry.is_deletion |= is_deletion;
    }

    /// Reports whether a write depends on an object with an unacknowledged write. If so, `planner`
    /// is returned when that one is resolved.
    pub(super) fn is_blocked(&mut self, write: &Write, planner: &P) -> bool {
        let dependencies = write.blocked_by.iter().filter(|object| **object != write.target);
        for object in dependencies {
            if let Some(unacknowledged) = self.by_target.get_mut(object) {
                unacknowledged.blocked_planners.insert(planner.clone());
                return true;
            }
        }
        false
    }

    /// Records a new version of an object, `is_terminating` if it is being deleted or gone. Returns
    /// the unblocked planners.
    pub(super) fn on_observed(&mut self, target: &ObjectRef, is_terminating: bool) -> BTreeSet<P> {
        self.resolve(target, is_terminating)
    }

    /// Records a write that the API server accepted, or whose target is `gone`. Returns the
    /// unblocked planners.
    pub(super) fn on_accepted(&mut self, write: &Write, gone: bool) -> BTreeSet<P> {
        self.resolve(&write.target, gone || matches!(write.op, WriteOp::Delete { .. }))
    }

    /// Drops expired writes; returns the unblocked planners.
    pub(super) fn expire(&mut self, now: Timestamp) -> BTreeSet<P> {
        let over = self.by_target.extract_if(.., |_, write| write.expires_at <= now);
        over.flat_map(|(_, write)| write.blocked_planners).collect()
    }

    /// Returns the time at which [`expire`](Self::expire) drops the next write.
    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        self.by_target.values().map(|unacknowledged| unacknowledged.expires_at).min()
    }

    /// Reports whether a write to `target` is unacknowledged.
    pub(super) fn contains(&self, target: &ObjectRef) -> bool {
        self.by_target.contains_key(target)
    }

    /// Returns the number of targets.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_target.len()
    }

    fn resolve(&mut self, target: &ObjectRef, is_terminating: bool) -> BTreeSet<P> {
        match self.by_target.get(target) {
            Some(write) if is_terminating || !write.is_deletion => {
                self.by_target.remove(target).map(|write| write.blocked_planners).unwrap_or_default()
            }
            _ => BTreeSet::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
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
        Write::new(object(name), WriteOp::Patch(json!({"spec": {}})))
    }

    fn delete(name: &str) -> Write {
        Write { op: WriteOp::Delete { uid: "u".into(), foreground: true }, ..patch(name) }
    }

    #[rstest]
    #[case::patch_by_newer_version(patch("a"), |writes: &mut UnacknowledgedWrites<_>| writes.on_observed(&object("a"), false), true)]
    #[case::patch_by_accepted_patch(patch("a"), |writes: &mut UnacknowledgedWrites<_>| writes.on_accepted(&patch("a"), false), true)]
    #[case::delete_by_deletion_timestamp(delete("a"), |writes: &mut UnacknowledgedWrites<_>| writes.on_observed(&object("a"), true), true)]
    #[case::delete_by_accepted_delete(delete("a"), |writes: &mut UnacknowledgedWrites<_>| writes.on_accepted(&delete("a"), false), true)]
    #[case::delete_not_by_live_version(
        delete("a"), |writes: &mut UnacknowledgedWrites<_>| writes.on_observed(&object("a"), false), false)]
    #[case::delete_not_by_accepted_patch(delete("a"), |writes: &mut UnacknowledgedWrites<_>| writes.on_accepted(&patch("a"), false), false)]
    #[case::not_by_another_object(patch("a"), |writes: &mut UnacknowledgedWrites<_>| writes.on_observed(&object("b"), true), false)]
    #[case::any_write_by_timeout(
        delete("a"), |writes: &mut UnacknowledgedWrites<_>| writes.expire(Timestamp::UNIX_EPOCH + SignedDuration::from_secs(60)), true)]
    fn dependent_write_is_blocked_until_unacknowledged_write_is_resolved(
        #[case] unanswered: Write,
        #[case] happens: fn(&mut UnacknowledgedWrites<&'static str>) -> BTreeSet<&'static str>,
        #[case] settles: bool,
    ) {
        // Given an unacknowledged write, and another write that depends on its target,
        let mut writes = UnacknowledgedWrites::default();
        writes.record(&unanswered, Timestamp::UNIX_EPOCH);
        let other = patch("b").blocked_while_in_flight([object("a")]);
        assert!(writes.is_blocked(&other, &"planner"));
        assert!(
            !writes.is_blocked(&patch("a").blocked_while_in_flight([object("a")]), &"planner"),
            "the object itself can be written"
        );

        // when this happens, then the other write is unblocked, or not yet.
        let unblocked = happens(&mut writes);
        assert_eq!(unblocked.contains("planner"), settles);
        assert_eq!(writes.is_blocked(&other, &"planner"), !settles);
    }
}
