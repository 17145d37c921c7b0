//! Tracks the writes that are in flight.

use std::collections::{BTreeMap, BTreeSet};

use sluice_plan::{ObjectRef, Write, WriteOp};

/// Identifies one write, so that its result is not mistaken for that of another write to the same
/// object.
pub type WriteId = u64;

/// The writes in flight, at most one per object.
///
/// A planner that wants to write an object with a write in flight replans after that write
/// completes. So no plan is based on an object whose newest version has not arrived yet.
#[derive(Debug, Clone)]
pub(super) struct InFlight<P> {
    last_id: WriteId,
    by_target: BTreeMap<ObjectRef, WriteInFlight<P>>,
}

#[derive(Debug, Clone)]
struct WriteInFlight<P> {
    id: WriteId,
    /// The API server accepted the deletion, and its watch event has not arrived yet.
    awaits_delete_event: bool,
    /// The watch event of the deletion arrived before the response.
    observed_deleted: bool,
    planners: BTreeSet<P>,
}

impl<P> Default for InFlight<P> {
    fn default() -> Self {
        Self { last_id: 0, by_target: BTreeMap::new() }
    }
}

impl<P: Ord + Clone> InFlight<P> {
    /// Records that `planner` sends a write. Returns `None` if a write to its target, or to an
    /// object that blocks it, is in flight; `planner` is then returned when that write completes.
    pub(super) fn begin(&mut self, write: &Write, planner: &P) -> Option<WriteId> {
        let target = &write.target;
        let busy = std::iter::once(target).chain(&write.blocked_by).find(|object| self.by_target.contains_key(object));
        if let Some(entry) = busy.and_then(|busy| self.by_target.get_mut(busy)) {
            entry.planners.insert(planner.clone());
            return None;
        }
        self.last_id += 1;
        let entry = WriteInFlight {
            id: self.last_id,
            awaits_delete_event: false,
            observed_deleted: false,
            planners: BTreeSet::from([planner.clone()]),
        };
        self.by_target.insert(target.clone(), entry);
        Some(self.last_id)
    }

    /// Records the result of a write; returns the planners to run again. An accepted deletion stays
    /// in flight until its watch event arrives, because until then the object still looks present;
    /// that event may also precede the response.
    pub(super) fn on_result(&mut self, id: WriteId, write: &Write, gone: bool) -> BTreeSet<P> {
        match self.by_target.get_mut(&write.target) {
            Some(entry)
                if entry.id == id && gone && !entry.observed_deleted && matches!(write.op, WriteOp::Delete { .. }) =>
            {
                entry.awaits_delete_event = true;
                BTreeSet::new()
            }
            Some(entry) if entry.id == id => self.finish(&write.target),
            _ => BTreeSet::new(),
        }
    }

    /// Records a watch event of `target`, `gone` if it was a deletion; returns the planners to run
    /// again.
    pub(super) fn on_observed(&mut self, target: &ObjectRef, gone: bool) -> BTreeSet<P> {
        match self.by_target.get_mut(target) {
            Some(entry) if entry.awaits_delete_event => self.finish(target),
            Some(entry) => {
                entry.observed_deleted |= gone;
                BTreeSet::new()
            }
            None => BTreeSet::new(),
        }
    }

    /// Reports whether no write awaits its response.
    pub(super) fn is_empty(&self) -> bool {
        self.by_target.values().all(|entry| entry.awaits_delete_event)
    }

    /// Reports whether a write to `target` is in flight.
    pub(super) fn contains(&self, target: &ObjectRef) -> bool {
        self.by_target.contains_key(target)
    }

    /// Returns the number of targets.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_target.len()
    }

    fn finish(&mut self, target: &ObjectRef) -> BTreeSet<P> {
        self.by_target.remove(target).map(|entry| entry.planners).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target() -> ObjectRef {
        ObjectRef {
            api_version: "v1".into(),
            kind: "Pod".into(),
            plural: "pods".into(),
            namespace: Some("ns".into()),
            name: "p".into(),
        }
    }

    fn delete() -> Write {
        Write::new(target(), WriteOp::Delete { uid: "u".into(), foreground: false })
    }

    #[test]
    fn write_is_blocked_while_a_dependency_has_a_write_in_flight() {
        let mut writes = InFlight::default();
        let slice = ObjectRef { name: "slice".into(), ..target() };
        let gate = delete().blocked_while_in_flight([slice.clone()]);
        let eviction = Write::new(slice, delete().op).blocked_while_in_flight([target()]);
        let open = writes.begin(&gate, &"job").expect("nothing is in flight");
        assert_eq!(writes.begin(&eviction, &"workload"), None);

        assert_eq!(writes.on_result(open, &gate, false), ["job", "workload"].into());

        assert!(writes.begin(&eviction, &"workload").is_some());
        assert_eq!(writes.begin(&gate, &"job"), None);
    }

    #[test]
    fn blocked_planner_is_returned_when_the_write_completes() {
        let mut writes = InFlight::default();
        let id = writes.begin(&delete(), &"first").expect("nothing is in flight");

        assert_eq!(writes.begin(&delete(), &"second"), None);
        assert_eq!(writes.on_result(id, &delete(), false), BTreeSet::from(["first", "second"]));
        assert!(writes.begin(&delete(), &"second").is_some_and(|next| next != id));
    }

    #[test]
    fn deletion_is_in_flight_until_its_watch_event_arrives() {
        let mut writes = InFlight::default();
        let id = writes.begin(&delete(), &"planner").expect("nothing is in flight");

        assert!(writes.on_result(id, &delete(), true).is_empty());
        assert!(writes.is_empty(), "no response is pending");
        assert_eq!(writes.begin(&delete(), &"planner"), None, "the object still looks present");
        assert_eq!(writes.on_observed(&target(), true), BTreeSet::from(["planner"]));
        assert!(writes.begin(&delete(), &"planner").is_some());
    }

    #[test]
    fn deletion_whose_watch_event_came_first_completes_with_its_response() {
        let mut writes = InFlight::default();
        let id = writes.begin(&delete(), &"planner").expect("nothing is in flight");

        assert!(writes.on_observed(&target(), true).is_empty());
        assert_eq!(writes.on_result(id, &delete(), true), BTreeSet::from(["planner"]));
        assert!(writes.begin(&delete(), &"planner").is_some(), "the name can be used again");
    }

    #[test]
    fn duplicate_result_is_ignored() {
        let mut writes = InFlight::default();
        let first = writes.begin(&delete(), &"planner").expect("nothing is in flight");
        writes.on_result(first, &delete(), false);
        let second = writes.begin(&delete(), &"planner").expect("nothing is in flight");

        assert!(writes.on_result(first, &delete(), false).is_empty());
        assert_eq!(writes.on_result(second, &delete(), false), BTreeSet::from(["planner"]));
    }
}
