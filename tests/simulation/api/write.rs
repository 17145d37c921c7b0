//! Creating and changing objects: what the API server puts in, keeps, refuses and counts.

use jiff::Timestamp;
use serde_json::Value;

use super::apply::Manager;
use super::kinds::{self, Kind};
use super::refusal::{Flaw, Refusal};
use super::store::{self, Stored};
use super::{Api, builtin, deletion, fields, identity, metadata};

/// Who writes, and how.
#[derive(Debug, Clone)]
pub(super) struct Hand {
    /// Who owns what is written.
    pub manager: Manager,
    /// The part that is written.
    pub part: Part,
    /// Whether it is a controller of the cluster itself, which may do what clients may not, like bind a pod to a node.
    pub trusted: bool,
    /// Whether fields that are not known are refused rather than left out.
    pub strict: bool,
    /// Whether a version is made even if the object stays the same, because its owners change.
    pub touches: bool,
}

/// The part of an object that a write is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// All but the status, if the status has a path of its own.
    Main,
    /// The status.
    Status,
}

impl Api {
    /// Stores a new object.
    pub(super) fn store_new(
        &mut self,
        now: Timestamp,
        kind: &'static Kind,
        namespace: &str,
        mut object: Value,
        hand: &Hand,
    ) -> Result<Stored, Refusal> {
        self.takes_new(kind, namespace)?;
        identity::check_place(kind, namespace, &object)?;
        let version = fields::text(&object, "resourceVersion");
        if !version.is_empty() && version != "0" {
            return Err(Refusal::broken("resourceVersion should not be set on objects to be created"));
        }
        self.made += 1;
        metadata::tidy_new(&mut object);
        let name = identity::settle_name(kind, &mut object, self.made)?;
        let own = fields::metadata_mut(&mut object);
        own.insert("uid".into(), identity::uid(self.made, self.uids.as_ref()).into());
        own.insert("creationTimestamp".into(), seconds(now).into());
        if kind.namespaced {
            own.insert("namespace".into(), namespace.into());
        }
        if kind.counts_generations {
            own.insert("generation".into(), 1.into());
        }
        object["apiVersion"] = kind.api_version().into();
        object["kind"] = kind.kind.clone().into();
        if kind.has_status && kind.kind != "Node" {
            fields::map(&mut object).remove("status");
        }
        settle(kind, &name, &mut object, None, hand)?;
        if !kind.is_custom() {
            builtin::begin(&self.store, kind, &mut object)?;
        }
        let key = store::key(namespace, &name);
        if self.store.get(kind, &key).is_some() {
            return Err(Refusal::already_exists(kind, &name));
        }
        let stored = self.store.put(now, kind, key.clone(), object);
        self.ledger.wrote(kind, &key, hand.manager.clone(), None, stored.object.clone());
        Ok(stored)
    }

    /// Stores what `change` makes of an object. Nothing is stored when it is the same as before.
    pub(super) fn store_changed(
        &mut self,
        now: Timestamp,
        kind: &'static Kind,
        (namespace, name): (&str, &str),
        hand: &Hand,
        change: impl FnOnce(&Value) -> Result<Value, Refusal>,
    ) -> Result<Stored, Refusal> {
        let key = store::key(namespace, name);
        let old = self.store.get(kind, &key).cloned().ok_or_else(|| Refusal::not_found(kind, name))?;
        let mut new = change(&old.object)?;
        identity::check(kind, name, &old.object, &new)?;
        identity::check_place(kind, namespace, &new)?;
        match hand.part {
            Part::Main => keep_on_main(kind, &old.object, &mut new),
            Part::Status => keep_but_status(kind, &old.object, &mut new),
        }
        settle(kind, name, &mut new, Some(&old.object), hand)?;
        if !kind.is_custom() && !hand.trusted {
            builtin::check_change(kind, name, &old.object, &new)?;
        }
        if kind.counts_generations && hand.part == Part::Main && differs_in_spec(kind, &old.object, &new) {
            let generation = old.object.pointer("/metadata/generation").and_then(Value::as_i64).unwrap_or(0);
            fields::set_metadata(&mut new, "generation", generation + 1);
        }
        if new == *old.object && !hand.touches {
            return Ok(old);
        }
        if deletion::is_done(&old.object, &new) {
            // The last state that is seen is the one before; the answer is what would have been.
            self.take(now, kind, &key);
            return Ok(Stored::of(new));
        }
        let stored = self.store.put(now, kind, key.clone(), new);
        self.ledger.wrote(kind, &key, hand.manager.clone(), Some(old.object), stored.object.clone());
        Ok(stored)
    }

    /// Takes an object out, and forgets who owned its fields.
    pub(super) fn take(&mut self, now: Timestamp, kind: &'static Kind, key: &str) -> Option<Stored> {
        self.ledger.forget(kind, key);
        self.store.take(now, kind, key)
    }

    /// Whether new objects may be made in this namespace.
    fn takes_new(&self, kind: &Kind, namespace: &str) -> Result<(), Refusal> {
        if !kind.namespaced {
            return Ok(());
        }
        let namespaces = kinds::named("Namespace");
        let found = self.store.get(namespaces, namespace).ok_or_else(|| Refusal::not_found(namespaces, namespace))?;
        if fields::is_deleting(&found.object) {
            let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
            return Err(Refusal::forbidden(kind, "", &why));
        }
        Ok(())
    }
}

/// A time as metadata has it: whole seconds.
pub(super) fn seconds(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).map_or_else(|_| time.to_string(), |time| time.to_string())
}

/// Puts in what is not said, takes out what is unknown, and refuses what is not allowed; `before` is what the object was.
fn settle(kind: &Kind, name: &str, object: &mut Value, before: Option<&Value>, hand: &Hand) -> Result<(), Refusal> {
    let mut flaws = match before {
        Some(before) if before.get("metadata") == object.get("metadata") => Vec::new(),
        before => metadata::flaws(kind, object, before),
    };
    match (&kind.schema, hand.part) {
        (None, _) => {
            builtin::default(kind, object);
            flaws.extend(builtin::flaws(kind, object));
        }
        (Some(schema), Part::Main) => {
            let unknown = schema.settle(object, before);
            if let (true, Some(field)) = (hand.strict, unknown.first()) {
                let why = format!("strict decoding error: unknown field \"{field}\"");
                return Err(if before.is_none() {
                    Refusal::unreadable(kind, &why)
                } else {
                    Refusal::unpatchable(&why)
                });
            }
            flaws.extend(schema.flaws(object, before));
            if !flaws.iter().any(Flaw::hides_others) {
                flaws.extend(schema.broken_rules(object, before));
            }
        }
        (Some(schema), Part::Status) => flaws.extend(schema.settle_status(object, before)),
    }
    if flaws.is_empty() {
        return Ok(());
    }
    if kind.has_rules && flaws.iter().any(Flaw::hides_others) {
        flaws.push(Flaw::unchecked_rules());
    }
    Err(Refusal::invalid(kind, name, &flaws))
}

/// Puts back what a write to the main path can't change.
fn keep_on_main(kind: &Kind, old: &Value, new: &mut Value) {
    metadata::tidy_changed(old, new);
    builtin::keep(kind, old, new);
    new["apiVersion"] = old["apiVersion"].clone();
    new["kind"] = old["kind"].clone();
    if kind.has_status {
        match old.get("status") {
            Some(status) => new["status"] = status.clone(),
            None => drop(fields::map(new).remove("status")),
        }
    }
}

/// Leaves of what somebody applies what this part of the object can take.
pub(super) fn keep_to_part(kind: &Kind, part: Part, wanted: &mut Value) {
    let fields = fields::map(wanted);
    match part {
        Part::Main if kind.has_status => drop(fields.remove("status")),
        Part::Main => {}
        Part::Status => {
            fields.retain(|field, _| ["apiVersion", "kind", "metadata", "status"].contains(&field.as_str()));
            let of_the_object = ["name", "namespace", "uid", "resourceVersion"];
            fields::metadata_mut(wanted).retain(|field, _| of_the_object.contains(&field.as_str()));
        }
    }
}

/// Puts back all but the status. Of pods, labels, annotations and finalizers can be changed by this path, too.
fn keep_but_status(kind: &Kind, old: &Value, new: &mut Value) {
    let metadata = (kind.kind == "Pod").then(|| {
        metadata::tidy_changed(old, new);
        let owners = old.pointer("/metadata/ownerReferences").cloned();
        let metadata = fields::metadata_mut(new);
        metadata.remove("ownerReferences");
        metadata.extend(owners.map(|owners| ("ownerReferences".to_owned(), owners)));
        Value::from(metadata.clone())
    });
    let (Some(old), fields) = (old.as_object(), fields::map(new)) else { return };
    fields.retain(|field, _| field == "status" || old.contains_key(field));
    for (field, value) in old.iter().filter(|(field, _)| *field != "status") {
        if fields.get(field) != Some(value) {
            fields.insert(field.clone(), value.clone());
        }
    }
    fields.extend(metadata.map(|metadata| ("metadata".to_owned(), metadata)));
}

/// Whether two states differ in what a generation counts: all but metadata, and status where that has its own path. That a
/// pod is bound to a node doesn't count.
fn differs_in_spec(kind: &Kind, old: &Value, new: &Value) -> bool {
    let node = |pod: &Value| pod.pointer("/spec/nodeName").cloned();
    if kind.kind == "Pod" && node(old) != node(new) {
        return false;
    }
    let counted = |field: &str| field != "metadata" && !(kind.has_status && field == "status");
    let (Some(old), Some(new)) = (old.as_object(), new.as_object()) else { return old != new };
    let changed = |(field, value): (&String, &Value)| counted(field) && old.get(field) != Some(value);
    new.iter().any(changed) || old.keys().any(|field| counted(field) && !new.contains_key(field))
}
