//! Garbage collector: deletes the dependents of deleted owners, and removes the finalizers of
//! owners that wait for their dependents.
//!
//! Owners are identified by uid: an owner recreated under the same name is a different one
//! (Kubernetes
//! 1.36 `pkg/controller/garbagecollector/garbagecollector.go`, `attemptToDeleteItem`).

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde_json::Value;

use super::read::{is_deleted, items, key, text, uid};
use super::{Chore, Desk};
use crate::api::{Api, Change, DeleteOptions, Kind, Propagation};

/// Finalizer that keeps an owner until its blocking dependents are deleted.
const FOREGROUND: &str = "foregroundDeletion";
/// Finalizer that keeps an owner until its dependents no longer reference it.
const ORPHAN: &str = "orphan";

/// Garbage collector with its ownership graph of all objects.
#[derive(Debug, Default)]
pub(super) struct Garbage {
    objects: BTreeMap<String, Held>,
    /// Uids of dependents by owner uid, including owners that are not known.
    dependents: BTreeMap<String, BTreeSet<String>>,
    /// Objects with pending processing.
    due: BTreeSet<String>,
    /// Number of times processing was scheduled.
    rounds: u64,
}

/// Node of the ownership graph: what matters of an object.
#[derive(Debug, Clone, PartialEq)]
struct Held {
    kind: &'static str,
    namespace: String,
    name: String,
    owners: Vec<Owner>,
    deleted: bool,
    /// Set if it is terminating and waits for its dependents to be deleted.
    foreground: bool,
    /// Set if it is terminating and its dependents are to be orphaned.
    orphan: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Owner {
    uid: String,
    /// Set if the object blocks foreground deletion of this owner (`blockOwnerDeletion`).
    blocks: bool,
}

impl Held {
    fn read(kind: &'static Kind, object: &Value) -> Self {
        let (namespace, name) = key(object);
        let owner = |owner: &Value| Owner {
            uid: text(owner, "/uid").to_owned(),
            blocks: owner.get("blockOwnerDeletion") == Some(&Value::Bool(true)),
        };
        let deleted = is_deleted(object);
        let held_by =
            |finalizer: &str| deleted && items(object, "/metadata/finalizers").any(|present| present == finalizer);
        Self {
            kind: &kind.kind,
            namespace,
            name,
            owners: items(object, "/metadata/ownerReferences").map(owner).collect(),
            deleted,
            foreground: held_by(FOREGROUND),
            orphan: held_by(ORPHAN),
        }
    }
}

impl Garbage {
    /// Observes a change of any object.
    pub(super) fn see(&mut self, context: &mut Desk<'_>, change: &Change) {
        let uid = uid(&change.object);
        if change.gone {
            return self.forget(context, uid);
        }
        let held = Held::read(change.kind, &change.object);
        if self.objects.get(uid) == Some(&held) {
            return;
        }
        let before = self.objects.insert(uid.to_owned(), held.clone());
        let owners_before = before.as_ref().map_or(&[][..], |before| &before.owners);
        if owners_before != held.owners {
            self.index(uid, owners_before, &held.owners);
            let is_deleted_or_waits = |owner: &Owner| self.objects.get(&owner.uid).is_none_or(|owner| owner.foreground);
            if held.owners.iter().any(is_deleted_or_waits) {
                self.plan(context, uid);
            }
            // A former owner may have waited for this object.
            for owner in owners_before {
                self.plan_if_waiting(context, &owner.uid);
            }
        }
        if held.deleted && before.is_none_or(|before| !before.deleted) && (held.foreground || held.orphan) {
            self.plan(context, uid);
            if held.foreground {
                self.plan_dependents(context, uid);
            }
        }
    }

    fn forget(&mut self, context: &mut Desk<'_>, uid: &str) {
        let Some(held) = self.objects.remove(uid) else { return };
        self.index(uid, &held.owners, &[]);
        for owner in &held.owners {
            self.plan_if_waiting(context, &owner.uid);
        }
        self.plan_dependents(context, uid);
    }

    fn index(&mut self, uid: &str, before: &[Owner], after: &[Owner]) {
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

    fn dependents(&self, owner: &str) -> impl Iterator<Item = (&str, &Held)> {
        let uids = self.dependents.get(owner).into_iter().flatten();
        uids.filter_map(|uid| Some((uid.as_str(), self.objects.get(uid)?)))
    }

    fn plan_if_waiting(&mut self, context: &mut Desk<'_>, uid: &str) {
        if self.objects.get(uid).is_some_and(|held| held.foreground || held.orphan) {
            self.plan(context, uid);
        }
    }

    fn plan_dependents(&mut self, context: &mut Desk<'_>, owner: &str) {
        let dependents: Vec<String> = self.dependents(owner).map(|(uid, _)| uid.to_owned()).collect();
        for uid in dependents {
            self.plan(context, &uid);
        }
    }

    fn plan(&mut self, context: &mut Desk<'_>, uid: &str) {
        if self.due.insert(uid.to_owned()) {
            self.rounds += 1;
            let delay = context.latencies.draw(&context.latencies.collect, "collect", self.rounds);
            context.after(delay, Chore::Collect(uid.to_owned()));
        }
    }

    /// Processes an object: deletes it if its owners are deleted, and removes its finalizer if it
    /// no longer waits for dependents.
    pub(super) fn collect(&mut self, now: Timestamp, api: &mut Api, uid: &str) {
        self.due.remove(uid);
        let Some(held) = self.objects.get(uid) else { return };
        if held.orphan {
            self.set_free(now, api, uid, held);
        } else if held.foreground {
            let blocks = |held: &Held| held.owners.iter().any(|owner| owner.blocks && owner.uid == uid);
            if !self.dependents(uid).any(|(_, held)| blocks(held)) {
                drop_finalizer(now, api, uid, held, FOREGROUND);
            }
        } else if !held.deleted && !held.owners.is_empty() {
            self.judge(now, api, uid, held);
        }
    }

    /// Deletes an object without remaining owners, or removes the references to deleted ones.
    fn judge(&self, now: Timestamp, api: &mut Api, uid: &str, held: &Held) {
        let waits = |owner: &&Owner| self.objects.get(&owner.uid).is_some_and(|owner| owner.foreground);
        let stays = |owner: &&Owner| self.objects.get(&owner.uid).is_some_and(|owner| !owner.foreground);
        if held.owners.iter().any(|owner| stays(&owner)) {
            let lost = |owner: &&Owner| !stays(owner);
            let lost: BTreeSet<&str> = held.owners.iter().filter(lost).map(|owner| owner.uid.as_str()).collect();
            return disown(now, api, uid, held, &lost);
        }
        let owner_waits = held.owners.iter().any(|owner| waits(&owner)) && self.dependents(uid).next().is_some();
        let propagation = if owner_waits { Propagation::Foreground } else { Propagation::Background };
        let options =
            DeleteOptions { uid: Some(uid.to_owned()), propagation: Some(propagation), ..DeleteOptions::default() };
        if is_there(api, uid, held) {
            api.delete(now, held.kind, &held.namespace, &held.name, &options).expect("the object exists with this uid");
        }
    }

    /// Removes an owner from its dependents, then removes its orphan finalizer.
    fn set_free(&self, now: Timestamp, api: &mut Api, uid: &str, held: &Held) {
        for (dependent, tracked) in self.dependents(uid) {
            disown(now, api, dependent, tracked, &BTreeSet::from([uid]));
        }
        drop_finalizer(now, api, uid, held, ORPHAN);
    }
}

fn is_there(api: &Api, wanted: &str, held: &Held) -> bool {
    api.get(held.kind, &held.namespace, &held.name).is_some_and(|object| uid(object) == wanted)
}

fn update(now: Timestamp, api: &mut Api, uid: &str, held: &Held, change: impl FnOnce(&mut Value)) {
    if is_there(api, uid, held) {
        api.update(now, held.kind, &held.namespace, &held.name, change).expect("the object exists");
    }
}

fn disown(now: Timestamp, api: &mut Api, uid: &str, held: &Held, owners: &BTreeSet<&str>) {
    if owners.is_empty() {
        return;
    }
    update(now, api, uid, held, |object| {
        if let Some(Value::Array(references)) = object.pointer_mut("/metadata/ownerReferences") {
            references.retain(|reference| !owners.contains(text(reference, "/uid")));
        }
    });
}

fn drop_finalizer(now: Timestamp, api: &mut Api, uid: &str, held: &Held, finalizer: &str) {
    update(now, api, uid, held, |object| {
        if let Some(Value::Array(finalizers)) = object.pointer_mut("/metadata/finalizers") {
            finalizers.retain(|present| present != finalizer);
        }
    });
}
