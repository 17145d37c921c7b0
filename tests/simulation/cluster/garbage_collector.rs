//! Garbage collector: deletes the dependents of deleted owners, and removes the finalizers of
//! owners that wait for their dependents.
//!
//! Owners are identified by uid: an owner recreated under the same name is a different one
//! (Kubernetes
//! 1.36 `pkg/controller/garbagecollector/garbagecollector.go`, `attemptToDeleteItem`).

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde_json::Value;

use super::object_view::{is_terminating, items, namespaced_name, text, uid};
use super::{ControllerContext, Task};
use crate::api::{ApiServer, DeleteOptions, ObjectChange, Propagation, ResourceKind, kinds};

/// Finalizer that keeps an owner until its blocking dependents are deleted.
const FOREGROUND_FINALIZER: &str = "foregroundDeletion";
/// Finalizer that keeps an owner until its dependents no longer reference it.
const ORPHAN_FINALIZER: &str = "orphan";

/// Garbage collector with its ownership graph of all objects.
#[derive(Debug, Default)]
pub(super) struct GarbageCollector {
    objects: BTreeMap<String, TrackedObject>,
    /// Uids of dependents by owner uid, including owners that are not known.
    dependents: BTreeMap<String, BTreeSet<String>>,
    /// Objects with pending processing.
    queued: BTreeSet<String>,
    /// Number of times processing was scheduled.
    enqueue_count: u64,
}

/// Node of the ownership graph: what matters of an object.
#[derive(Debug, Clone, PartialEq)]
struct TrackedObject {
    kind: &'static str,
    namespace: String,
    name: String,
    owners: Vec<OwnerRef>,
    terminating: bool,
    /// Set if it is terminating and waits for its dependents to be deleted.
    awaits_dependents: bool,
    /// Set if it is terminating and its dependents are to be orphaned.
    orphans_dependents: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct OwnerRef {
    uid: String,
    /// Set if the object blocks foreground deletion of this owner (`blockOwnerDeletion`).
    blocks_deletion: bool,
}

impl TrackedObject {
    fn read(kind: &'static ResourceKind, object: &Value) -> Self {
        let (namespace, name) = namespaced_name(object);
        let owner = |owner: &Value| OwnerRef {
            uid: text(owner, "/uid").to_owned(),
            blocks_deletion: owner.get("blockOwnerDeletion") == Some(&Value::Bool(true)),
        };
        let deleted = is_terminating(object);
        let held_by =
            |finalizer: &str| deleted && items(object, "/metadata/finalizers").any(|present| present == finalizer);
        Self {
            kind: &kind.kind,
            namespace,
            name,
            owners: items(object, "/metadata/ownerReferences").map(owner).collect(),
            terminating: deleted,
            awaits_dependents: held_by(FOREGROUND_FINALIZER),
            orphans_dependents: held_by(ORPHAN_FINALIZER),
        }
    }
}

impl GarbageCollector {
    /// Observes a change of any object.
    pub(super) fn observe(&mut self, context: &mut ControllerContext<'_>, change: &ObjectChange) {
        let uid = uid(&change.object);
        if change.deleted {
            return self.remove(context, uid);
        }
        self.observe_object(context, change.kind, &change.object);
    }

    /// Starts again with all objects, as after a restart of the process.
    pub(super) fn restart(&mut self, context: &mut ControllerContext<'_>, api: &ApiServer) {
        *self = Self { queued: std::mem::take(&mut self.queued), enqueue_count: self.enqueue_count, ..Self::default() };
        for kind in kinds::all() {
            for object in api.list(&kind.kind) {
                self.observe_object(context, kind, object);
            }
        }
    }

    fn observe_object(&mut self, context: &mut ControllerContext<'_>, kind: &'static ResourceKind, object: &Value) {
        let (uid, held) = (uid(object), TrackedObject::read(kind, object));
        if self.objects.get(uid) == Some(&held) {
            return;
        }
        let before = self.objects.insert(uid.to_owned(), held.clone());
        let owners_before = before.as_ref().map_or(&[][..], |before| &before.owners);
        if owners_before != held.owners {
            self.update_index(uid, owners_before, &held.owners);
            let is_deleted_or_waits =
                |owner: &OwnerRef| self.objects.get(&owner.uid).is_none_or(|owner| owner.awaits_dependents);
            if held.owners.iter().any(is_deleted_or_waits) {
                self.enqueue(context, uid);
            }
            // A former owner may have waited for this object.
            for owner in owners_before {
                self.enqueue_if_waiting(context, &owner.uid);
            }
        }
        if held.terminating
            && before.is_none_or(|before| !before.terminating)
            && (held.awaits_dependents || held.orphans_dependents)
        {
            self.enqueue(context, uid);
            if held.awaits_dependents {
                self.enqueue_dependents(context, uid);
            }
        }
    }

    fn remove(&mut self, context: &mut ControllerContext<'_>, uid: &str) {
        let Some(held) = self.objects.remove(uid) else { return };
        self.update_index(uid, &held.owners, &[]);
        for owner in &held.owners {
            self.enqueue_if_waiting(context, &owner.uid);
        }
        self.enqueue_dependents(context, uid);
    }

    fn update_index(&mut self, uid: &str, before: &[OwnerRef], after: &[OwnerRef]) {
        for owner in before {
            if let Some(dependents) = self.dependents.get_mut(&owner.uid) {
                dependents.remove(uid);
                if dependents.is_empty() {
                    self.dependents.remove(&owner.uid);
                }
            }
        }
        for owner in after {
            self.dependents.entry(owner.uid.clone()).or_default().insert(uid.to_owned());
        }
    }

    fn dependents(&self, owner: &str) -> impl Iterator<Item = (&str, &TrackedObject)> {
        let uids = self.dependents.get(owner).into_iter().flatten();
        uids.filter_map(|uid| Some((uid.as_str(), self.objects.get(uid)?)))
    }

    fn enqueue_if_waiting(&mut self, context: &mut ControllerContext<'_>, uid: &str) {
        if self.objects.get(uid).is_some_and(|held| held.awaits_dependents || held.orphans_dependents) {
            self.enqueue(context, uid);
        }
    }

    fn enqueue_dependents(&mut self, context: &mut ControllerContext<'_>, owner: &str) {
        let dependents: Vec<String> = self.dependents(owner).map(|(uid, _)| uid.to_owned()).collect();
        for uid in dependents {
            self.enqueue(context, &uid);
        }
    }

    fn enqueue(&mut self, context: &mut ControllerContext<'_>, uid: &str) {
        if self.queued.insert(uid.to_owned()) {
            self.enqueue_count += 1;
            let delay = context.latencies.sample(&context.latencies.garbage_collection, "collect", self.enqueue_count);
            context.schedule_after(delay, Task::CollectGarbage(uid.to_owned()));
        }
    }

    /// Processes an object: deletes it if its owners are deleted, and removes its finalizer if it
    /// no longer waits for dependents.
    pub(super) fn process(&mut self, now: Timestamp, api: &mut ApiServer, uid: &str) {
        self.queued.remove(uid);
        let Some(held) = self.objects.get(uid) else { return };
        if held.orphans_dependents {
            self.orphan_dependents(now, api, uid, held);
        } else if held.awaits_dependents {
            let blocks =
                |held: &TrackedObject| held.owners.iter().any(|owner| owner.blocks_deletion && owner.uid == uid);
            if !self.dependents(uid).any(|(_, held)| blocks(held)) {
                remove_finalizer(now, api, uid, held, FOREGROUND_FINALIZER);
            }
        } else if !held.terminating && !held.owners.is_empty() {
            self.process_owned(now, api, uid, held);
        }
    }

    /// Deletes an object without remaining owners, or removes the references to deleted ones.
    fn process_owned(&self, now: Timestamp, api: &mut ApiServer, uid: &str, held: &TrackedObject) {
        let waits = |owner: &&OwnerRef| self.objects.get(&owner.uid).is_some_and(|owner| owner.awaits_dependents);
        let stays = |owner: &&OwnerRef| self.objects.get(&owner.uid).is_some_and(|owner| !owner.awaits_dependents);
        if held.owners.iter().any(|owner| stays(&owner)) {
            let lost = |owner: &&OwnerRef| !stays(owner);
            let lost: BTreeSet<&str> = held.owners.iter().filter(lost).map(|owner| owner.uid.as_str()).collect();
            return remove_owners(now, api, uid, held, &lost);
        }
        let owner_waits = held.owners.iter().any(|owner| waits(&owner)) && self.dependents(uid).next().is_some();
        let propagation = if owner_waits { Propagation::Foreground } else { Propagation::Background };
        let options =
            DeleteOptions { uid: Some(uid.to_owned()), propagation: Some(propagation), ..DeleteOptions::default() };
        if exists(api, uid, held) {
            api.delete(now, held.kind, &held.namespace, &held.name, &options).expect("the object exists with this uid");
        }
    }

    /// Removes an owner from its dependents, then removes its orphan finalizer.
    fn orphan_dependents(&self, now: Timestamp, api: &mut ApiServer, uid: &str, held: &TrackedObject) {
        for (dependent, tracked) in self.dependents(uid) {
            remove_owners(now, api, dependent, tracked, &BTreeSet::from([uid]));
        }
        remove_finalizer(now, api, uid, held, ORPHAN_FINALIZER);
    }
}

fn exists(api: &ApiServer, wanted: &str, held: &TrackedObject) -> bool {
    api.get(held.kind, &held.namespace, &held.name).is_some_and(|object| uid(object) == wanted)
}

fn update(now: Timestamp, api: &mut ApiServer, uid: &str, held: &TrackedObject, change: impl FnOnce(&mut Value)) {
    if exists(api, uid, held) {
        api.update(now, held.kind, &held.namespace, &held.name, change).expect("the object exists");
    }
}

fn remove_owners(now: Timestamp, api: &mut ApiServer, uid: &str, held: &TrackedObject, owners: &BTreeSet<&str>) {
    if owners.is_empty() {
        return;
    }
    update(now, api, uid, held, |object| {
        if let Some(Value::Array(references)) = object.pointer_mut("/metadata/ownerReferences") {
            references.retain(|reference| !owners.contains(text(reference, "/uid")));
        }
    });
}

fn remove_finalizer(now: Timestamp, api: &mut ApiServer, uid: &str, held: &TrackedObject, finalizer: &str) {
    update(now, api, uid, held, |object| {
        if let Some(Value::Array(finalizers)) = object.pointer_mut("/metadata/finalizers") {
            finalizers.retain(|present| present != finalizer);
        }
    });
}
