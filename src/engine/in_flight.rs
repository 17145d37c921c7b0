//! Writes that were sent and not yet answered.

use std::collections::{BTreeMap, BTreeSet};

use sluice_plan::{ObjectRef, Write, WriteOp};

/// Identifies one write, so that its answer can be told from that to another write of the same object.
pub type WriteId = u64;

/// At most one write an object is under way. Whoever wants to write an object that has one is told to plan anew once that
/// one is answered; so no plan is ever made from an object whose newest version is still on its way to us.
#[derive(Debug)]
pub struct InFlight<P> {
    last_id: WriteId,
    by_target: BTreeMap<ObjectRef, Entry<P>>,
}

#[derive(Debug)]
struct Entry<P> {
    id: WriteId,
    /// A deletion that the API server carried out, whose event hasn't been seen yet.
    deleted: bool,
    /// The object was seen to be gone before the answer came.
    seen_gone: bool,
    planners: BTreeSet<P>,
}

impl<P> Default for InFlight<P> {
    fn default() -> Self {
        Self { last_id: 0, by_target: BTreeMap::new() }
    }
}

impl<P: Ord + Clone> InFlight<P> {
    /// Notes that `planner` sends a write; `None` when one of its target, or of what has to be quiet meanwhile, is under way,
    /// and `planner` has to wait for that.
    pub fn begin(&mut self, write: &Write, planner: &P) -> Option<WriteId> {
        let target = &write.target;
        let busy = std::iter::once(target).chain(&write.quiet).find(|object| self.by_target.contains_key(object));
        if let Some(entry) = busy.and_then(|busy| self.by_target.get_mut(busy)) {
            entry.planners.insert(planner.clone());
            return None;
        }
        self.last_id += 1;
        let entry =
            Entry { id: self.last_id, deleted: false, seen_gone: false, planners: BTreeSet::from([planner.clone()]) };
        self.by_target.insert(target.clone(), entry);
        Some(self.last_id)
    }

    /// Notes the answer to a write; returns who has to plan anew. A deletion that was carried out stays under way until
    /// its event is seen, since until then the object looks as if it were still there; that event may have come first.
    pub fn answered(&mut self, id: WriteId, write: &Write, gone: bool) -> BTreeSet<P> {
        match self.by_target.get_mut(&write.target) {
            Some(entry) if entry.id == id && gone && !entry.seen_gone && matches!(write.op, WriteOp::Delete { .. }) => {
                entry.deleted = true;
                BTreeSet::new()
            }
            Some(entry) if entry.id == id => self.finish(&write.target),
            _ => BTreeSet::new(),
        }
    }

    /// Notes an event of `target`, and whether it was that of its end; returns who has to plan anew.
    pub fn observed(&mut self, target: &ObjectRef, gone: bool) -> BTreeSet<P> {
        match self.by_target.get_mut(target) {
            Some(entry) if entry.deleted => self.finish(target),
            Some(entry) => {
                entry.seen_gone |= gone;
                BTreeSet::new()
            }
            None => BTreeSet::new(),
        }
    }

    /// Whether nothing is under way.
    pub fn is_empty(&self) -> bool {
        self.by_target.values().all(|entry| entry.deleted)
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
        Write { target: target(), op: WriteOp::Delete { uid: "u".into(), foreground: false }, quiet: Vec::new() }
    }

    #[test]
    fn a_write_waits_until_all_is_quiet_about_what_it_rests_on() {
        let mut writes = InFlight::default();
        let slice = ObjectRef { name: "slice".into(), ..target() };
        let gate = delete().while_quiet([slice.clone()]);
        let eviction = Write { target: slice, op: delete().op, quiet: vec![target()] };
        let open = writes.begin(&gate, &"job").expect("nothing is under way");
        assert_eq!(writes.begin(&eviction, &"workload"), None);

        assert_eq!(writes.answered(open, &gate, false), ["job", "workload"].into());

        assert!(writes.begin(&eviction, &"workload").is_some());
        assert_eq!(writes.begin(&gate, &"job"), None);
    }

    #[test]
    fn whoever_wants_to_write_an_object_meanwhile_is_told_when_the_write_is_answered() {
        let mut writes = InFlight::default();
        let id = writes.begin(&delete(), &"first").expect("nothing is under way");

        assert_eq!(writes.begin(&delete(), &"second"), None);
        assert_eq!(writes.answered(id, &delete(), false), BTreeSet::from(["first", "second"]));
        assert!(writes.begin(&delete(), &"second").is_some_and(|next| next != id));
    }

    #[test]
    fn a_deletion_is_under_way_until_its_event_is_seen() {
        let mut writes = InFlight::default();
        let id = writes.begin(&delete(), &"planner").expect("nothing is under way");

        assert!(writes.answered(id, &delete(), true).is_empty());
        assert!(writes.is_empty(), "no answer is waited for");
        assert_eq!(writes.begin(&delete(), &"planner"), None, "the object still looks as if it were there");
        assert_eq!(writes.observed(&target(), true), BTreeSet::from(["planner"]));
        assert!(writes.begin(&delete(), &"planner").is_some());
    }

    #[test]
    fn a_deletion_whose_event_came_before_its_answer_is_over_with_the_answer() {
        let mut writes = InFlight::default();
        let id = writes.begin(&delete(), &"planner").expect("nothing is under way");

        assert!(writes.observed(&target(), true).is_empty());
        assert_eq!(writes.answered(id, &delete(), true), BTreeSet::from(["planner"]));
        assert!(writes.begin(&delete(), &"planner").is_some(), "the name can be used again");
    }

    #[test]
    fn an_answer_that_comes_twice_changes_nothing() {
        let mut writes = InFlight::default();
        let first = writes.begin(&delete(), &"planner").expect("nothing is under way");
        writes.answered(first, &delete(), false);
        let second = writes.begin(&delete(), &"planner").expect("nothing is under way");

        assert!(writes.answered(first, &delete(), false).is_empty());
        assert_eq!(writes.answered(second, &delete(), false), BTreeSet::from(["planner"]));
    }
}
