//! Creates and updates objects: defaulting, validation, read-only fields and generations.

use jiff::Timestamp;
use serde_json::Value;

use super::apply::Manager;
use super::kinds::{self, Kind};
use super::refusal::{Flaw, Refusal};
use super::store::{self, Stored};
use super::{Api, builtin, deletion, fields, identity, metadata};

/// Writer of a request and the options of the write.
#[derive(Debug, Clone)]
pub(super) struct Hand {
    /// Field manager that owns the written fields.
    pub manager: Manager,
    /// Endpoint that is written to.
    pub part: Part,
    /// Set for built-in controllers. They may change fields that clients may not, like the node of
    /// a pod.
    pub trusted: bool,
    /// Rejects unknown fields instead of pruning them (`fieldValidation=Strict`).
    pub strict: bool,
    /// Forces a new version even if the object is unchanged, because its field owners change.
    pub touches: bool,
}

/// Endpoint that a write goes to, and so the fields that it can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The main resource: everything except the status, if the kind has a status subresource.
    Main,
    /// The status subresource.
    Status,
}

impl Api {
    /// Creates an object.
    pub(super) fn store_new(
        &mut self,
        now: Timestamp,
        kind: &'static Kind,
        namespace: &str,
        mut object: Value,
        context: &Hand,
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
        let metadata = fields::metadata_mut(&mut object);
        metadata.insert("uid".into(), identity::uid(self.made, self.uids.as_ref()).into());
        metadata.insert("creationTimestamp".into(), seconds(now).into());
        if kind.namespaced {
            metadata.insert("namespace".into(), namespace.into());
        }
        if kind.counts_generations {
            metadata.insert("generation".into(), 1.into());
        }
        object["apiVersion"] = kind.api_version().into();
        object["kind"] = kind.kind.clone().into();
        if kind.has_status && kind.kind != "Node" {
            fields::map(&mut object).remove("status");
        }
        settle(kind, &name, &mut object, None, context)?;
        if !kind.is_custom() {
            builtin::begin(&self.store, kind, &mut object)?;
        }
        // Checked last: validation errors take precedence over a name conflict.
        let key = store::key(namespace, &name);
        if self.store.get(kind, &key).is_some() {
            return Err(Refusal::already_exists(kind, &name));
        }
        let stored = self.store.put(now, kind, key.clone(), object);
        self.ledger.wrote(kind, &key, context.manager.clone(), None, stored.object.clone());
        Ok(stored)
    }

    /// Updates an object with the result of `change`. An unchanged object gets no new version.
    pub(super) fn store_changed(
        &mut self,
        now: Timestamp,
        kind: &'static Kind,
        (namespace, name): (&str, &str),
        context: &Hand,
        change: impl FnOnce(&Value) -> Result<Value, Refusal>,
    ) -> Result<Stored, Refusal> {
        let key = store::key(namespace, name);
        let old = self.store.get(kind, &key).cloned().ok_or_else(|| Refusal::not_found(kind, name))?;
        let mut new = change(&old.object)?;
        identity::check(kind, name, &old.object, &new)?;
        identity::check_place(kind, namespace, &new)?;
        match context.part {
            Part::Main => keep_on_main(kind, &old.object, &mut new),
            Part::Status => keep_but_status(kind, &old.object, &mut new),
        }
        settle(kind, name, &mut new, Some(&old.object), context)?;
        if !kind.is_custom() && !context.trusted {
            builtin::check_change(kind, name, &old.object, &new)?;
        }
        if kind.counts_generations && context.part == Part::Main && differs_in_spec(kind, &old.object, &new) {
            let generation = old.object.pointer("/metadata/generation").and_then(Value::as_i64).unwrap_or(0);
            fields::set_metadata(&mut new, "generation", generation + 1);
        }
        if new == *old.object && !context.touches {
            return Ok(old);
        }
        if deletion::is_done(&old.object, &new) {
            // Watches see the state before this update as the last one; the response has the
            // update.
            self.take(now, kind, &key);
            return Ok(Stored::of(new));
        }
        let stored = self.store.put(now, kind, key.clone(), new);
        self.ledger.wrote(kind, &key, context.manager.clone(), Some(old.object), stored.object.clone());
        Ok(stored)
    }

    /// Removes an object and its field owners.
    pub(super) fn take(&mut self, now: Timestamp, kind: &'static Kind, key: &str) -> Option<Stored> {
        self.ledger.forget(kind, key);
        self.store.take(now, kind, key)
    }

    /// Checks that the namespace exists and is not terminating.
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

/// Formats a time as in object metadata: RFC 3339 in whole seconds.
pub(super) fn seconds(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).map_or_else(|_| time.to_string(), |time| time.to_string())
}

/// Applies defaults, prunes unknown fields and validates. `before` is the stored object, `None` on
/// create.
fn settle(kind: &Kind, name: &str, object: &mut Value, before: Option<&Value>, context: &Hand) -> Result<(), Refusal> {
    let mut errors = match before {
        Some(before) if before.get("metadata") == object.get("metadata") => Vec::new(),
        before => metadata::flaws(kind, object, before),
    };
    match (&kind.schema, context.part) {
        (None, _) => {
            builtin::default(kind, object);
            errors.extend(builtin::flaws(kind, object));
        }
        (Some(schema), Part::Main) => {
            let unknown = schema.settle(object, before);
            if let (true, Some(field)) = (context.strict, unknown.first()) {
                let why = format!("strict decoding error: unknown field \"{field}\"");
                return Err(if before.is_none() {
                    Refusal::unreadable(kind, &why)
                } else {
                    Refusal::unpatchable(&why)
                });
            }
            errors.extend(schema.flaws(object, before));
            // CEL rules run only on structurally valid objects.
            if !errors.iter().any(Flaw::hides_others) {
                errors.extend(schema.broken_rules(object, before));
            }
        }
        (Some(schema), Part::Status) => errors.extend(schema.settle_status(object, before)),
    }
    if errors.is_empty() {
        return Ok(());
    }
    if kind.has_rules && errors.iter().any(Flaw::hides_others) {
        errors.push(Flaw::unchecked_rules());
    }
    Err(Refusal::invalid(kind, name, &errors))
}

/// Restores the fields that a write to the main resource cannot change.
fn keep_on_main(kind: &Kind, old: &Value, new: &mut Value) {
    metadata::tidy_changed(old, new);
    builtin::keep(kind, old, new);
    new["apiVersion"] = old["apiVersion"].clone();
    new["kind"] = old["kind"].clone();
    if kind.has_status {
        match old.get("status") {
            Some(status) => new["status"] = status.clone(),
            None => {
                fields::map(new).remove("status");
            }
        }
    }
}

/// Removes the fields of an applied configuration that this endpoint ignores.
pub(super) fn keep_to_part(kind: &Kind, part: Part, wanted: &mut Value) {
    let fields = fields::map(wanted);
    match part {
        Part::Main if kind.has_status => {
            fields.remove("status");
        }
        Part::Main => {}
        Part::Status => {
            fields.retain(|field, _| ["apiVersion", "kind", "metadata", "status"].contains(&field.as_str()));
            let identifying = ["name", "namespace", "uid", "resourceVersion"];
            fields::metadata_mut(wanted).retain(|field, _| identifying.contains(&field.as_str()));
        }
    }
}

/// Restores everything except the status. The status endpoint of pods can also change labels,
/// annotations and finalizers.
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

/// Returns true if an update increments the generation: any change outside of metadata and, with a
/// status subresource, outside of the status. Binding a pod to a node does not count.
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
