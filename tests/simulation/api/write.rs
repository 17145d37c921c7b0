//! Creates and updates objects: defaulting, validation, read-only fields and generations.

use jiff::Timestamp;
use serde_json::Value;

use super::apply::FieldManager;
use super::kinds::{self, ResourceKind};
use super::policies::{Attributes, UserName};
use super::status_error::{FieldError, StatusError};
use super::store::{self, StoredObject};
use super::{ApiServer, builtin, deletion, identity, metadata, object_meta};

/// Writer of a request and the options of the write.
#[derive(Debug, Clone)]
pub(super) struct WriteContext {
    /// Field manager that owns the written fields.
    pub manager: FieldManager,
    /// Endpoint that is written to.
    pub scope: WriteScope,
    /// Set for built-in controllers. They may change fields that clients may not, like the node of
    /// a pod.
    pub is_trusted: bool,
    /// User whose writes the admission policies review; `None` if they are not reviewed.
    pub user: Option<UserName>,
    /// Rejects unknown fields instead of pruning them (`fieldValidation=Strict`).
    pub rejects_unknown_fields: bool,
    /// Validates a creation and stores nothing (`dryRun=All`).
    pub is_dry_run: bool,
    /// Forces a new version even if the object is unchanged, because its field owners change.
    pub forces_new_version: bool,
}

/// Endpoint that a write goes to, and so the fields that it can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteScope {
    /// The main resource: everything except the status, if the kind has a status subresource.
    Main,
    /// The status subresource.
    Status,
}

impl ApiServer {
    /// Creates an object.
    pub(super) fn create_object(
        &mut self,
        now: Timestamp,
        kind: &'static ResourceKind,
        namespace: &str,
        mut object: Value,
        context: &WriteContext,
    ) -> Result<StoredObject, StatusError> {
        self.check_namespace(kind, namespace)?;
        identity::check_kind_and_namespace(kind, namespace, &object)?;
        let version = object_meta::metadata_text(&object, "resourceVersion");
        if !version.is_empty() && version != "0" {
            return Err(StatusError::internal_error("resourceVersion should not be set on objects to be created"));
        }
        let number = self.created_count + 1;
        if !context.is_dry_run {
            self.created_count = number;
        }
        metadata::prepare_for_create(&mut object);
        let name = identity::resolve_name(kind, &mut object, number)?;
        let metadata = object_meta::metadata_mut(&mut object);
        metadata.insert("uid".into(), identity::uid(number, self.uid_rng.as_ref()).into());
        metadata.insert("creationTimestamp".into(), rfc3339_seconds(now).into());
        if kind.namespaced {
            metadata.insert("namespace".into(), namespace.into());
        }
        if kind.tracks_generation {
            metadata.insert("generation".into(), 1.into());
        }
        object["apiVersion"] = kind.api_version().into();
        object["kind"] = kind.kind.clone().into();
        if kind.has_status && kind.kind != "Node" {
            object_meta::as_map_mut(&mut object).remove("status");
        }
        default_and_validate(kind, &name, &mut object, None, context)?;
        if !kind.is_custom() {
            builtin::initialize(&self.store, kind, &mut object)?;
        }
        self.review(kind, (namespace, &name), &object, None, context)?;
        // Checked last: validation errors take precedence over a name conflict.
        let key = store::object_key(namespace, &name);
        if self.store.get(kind, &key).is_some() {
            return Err(StatusError::already_exists(kind, &name));
        }
        if context.is_dry_run {
            return Ok(StoredObject::new(object));
        }
        let stored = self.store.put(now, kind, key.clone(), object);
        self.managed_fields.record_write(kind, &key, context.manager.clone(), None, stored.object.clone());
        Ok(stored)
    }

    /// Updates an object with the result of `change`. An unchanged object gets no new version.
    pub(super) fn update_object(
        &mut self,
        now: Timestamp,
        kind: &'static ResourceKind,
        (namespace, name): (&str, &str),
        context: &WriteContext,
        change: impl FnOnce(&Value) -> Result<Value, StatusError>,
    ) -> Result<StoredObject, StatusError> {
        let key = store::object_key(namespace, name);
        let old = self.store.get(kind, &key).cloned().ok_or_else(|| StatusError::not_found(kind, name))?;
        let mut new = change(&old.object)?;
        identity::check_name_and_version(kind, name, &old.object, &new)?;
        identity::check_kind_and_namespace(kind, namespace, &new)?;
        match context.scope {
            WriteScope::Main => preserve_read_only_fields(kind, &old.object, &mut new),
            WriteScope::Status => preserve_all_but_status(kind, &old.object, &mut new),
        }
        default_and_validate(kind, name, &mut new, Some(&old.object), context)?;
        // The Job controller's writes are validated, too: it relies on that.
        if !kind.is_custom() && (!context.is_trusted || kind.kind == "Job") {
            builtin::validate_update(kind, name, &old.object, &new)?;
        }
        self.review(kind, (namespace, name), &new, Some(&old.object), context)?;
        if kind.tracks_generation && context.scope == WriteScope::Main && increments_generation(kind, &old.object, &new)
        {
            let generation = old.object.pointer("/metadata/generation").and_then(Value::as_i64).unwrap_or(0);
            object_meta::set_metadata(&mut new, "generation", generation + 1);
        }
        if new == *old.object && !context.forces_new_version {
            return Ok(old);
        }
        if deletion::completes_deletion(&old.object, &new) {
            // Watches see the state before this update as the last one; the response has the
            // update.
            self.remove_object(now, kind, &key);
            return Ok(StoredObject::new(new));
        }
        let stored = self.store.put(now, kind, key.clone(), new);
        self.managed_fields.record_write(kind, &key, context.manager.clone(), Some(old.object), stored.object.clone());
        Ok(stored)
    }

    /// Removes an object and its field owners.
    pub(super) fn remove_object(
        &mut self,
        now: Timestamp,
        kind: &'static ResourceKind,
        key: &str,
    ) -> Option<StoredObject> {
        self.managed_fields.remove(kind, key);
        self.store.remove(now, kind, key)
    }

    /// Checks that the namespace exists and is not terminating.
    fn check_namespace(&self, kind: &ResourceKind, namespace: &str) -> Result<(), StatusError> {
        if !kind.namespaced {
            return Ok(());
        }
        let namespaces = kinds::by_name("Namespace");
        let found =
            self.store.get(namespaces, namespace).ok_or_else(|| StatusError::not_found(namespaces, namespace))?;
        if object_meta::is_terminating(&found.object) {
            let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
            return Err(StatusError::forbidden(kind, "", &why));
        }
        Ok(())
    }

    /// Lets the admission policies review a write of a known user.
    fn review(
        &self,
        kind: &ResourceKind,
        (namespace, name): (&str, &str),
        object: &Value,
        old: Option<&Value>,
        context: &WriteContext,
    ) -> Result<(), StatusError> {
        let Some(user) = context.user else { return Ok(()) };
        let subresource = match context.scope {
            WriteScope::Main => "",
            WriteScope::Status => "status",
        };
        let exists = |kind: &str, name: &str| self.get(kind, namespace, name).is_some();
        self.policies.review(&Attributes { kind, subresource, namespace, name, user, object, old }, exists)
    }
}

/// Formats a time as in object metadata: RFC 3339 in whole seconds.
pub(super) fn rfc3339_seconds(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).map_or_else(|_| time.to_string(), |time| time.to_string())
}

/// Applies defaults, prunes unknown fields and validates. `before` is the stored object, `None` on
/// create.
fn default_and_validate(
    kind: &ResourceKind,
    name: &str,
    object: &mut Value,
    before: Option<&Value>,
    context: &WriteContext,
) -> Result<(), StatusError> {
    let mut errors = match before {
        Some(before) if before.get("metadata") == object.get("metadata") => Vec::new(),
        before => metadata::validate(kind, object, before),
    };
    match (&kind.schema, context.scope) {
        (None, _) => {
            builtin::apply_defaults(kind, object);
            errors.extend(builtin::validate(kind, object));
        }
        (Some(schema), WriteScope::Main) => {
            let unknown = schema.prune_and_default(object, before);
            if let (true, Some(field)) = (context.rejects_unknown_fields, unknown.first()) {
                let why = format!("strict decoding error: unknown field \"{field}\"");
                return Err(if before.is_none() {
                    StatusError::undecodable_body(kind, &why)
                } else {
                    StatusError::undecodable_patch(&why)
                });
            }
            errors.extend(schema.validate(object, before));
            // CEL rules run only on structurally valid objects.
            if !errors.iter().any(FieldError::skips_cel_rules) {
                errors.extend(schema.validate_rules(object, before));
            }
        }
        (Some(schema), WriteScope::Status) => errors.extend(schema.default_and_validate_status(object, before)),
    }
    if errors.is_empty() {
        return Ok(());
    }
    if kind.has_cel_rules && errors.iter().any(FieldError::skips_cel_rules) {
        errors.push(FieldError::rules_not_checked());
    }
    Err(StatusError::invalid(kind, name, &errors))
}

/// Restores the fields that a write to the main resource cannot change.
fn preserve_read_only_fields(kind: &ResourceKind, old: &Value, new: &mut Value) {
    metadata::prepare_for_update(old, new);
    builtin::preserve_allocated(kind, old, new);
    new["apiVersion"] = old["apiVersion"].clone();
    new["kind"] = old["kind"].clone();
    if kind.has_status {
        match old.get("status") {
            Some(status) => new["status"] = status.clone(),
            None => {
                object_meta::as_map_mut(new).remove("status");
            }
        }
    }
}

/// Removes the fields of an applied configuration that this endpoint ignores.
pub(super) fn retain_scope_fields(kind: &ResourceKind, part: WriteScope, wanted: &mut Value) {
    let fields = object_meta::as_map_mut(wanted);
    match part {
        WriteScope::Main if kind.has_status => {
            fields.remove("status");
        }
        WriteScope::Main => {}
        WriteScope::Status => {
            fields.retain(|field, _| ["apiVersion", "kind", "metadata", "status"].contains(&field.as_str()));
            let identifying = ["name", "namespace", "uid", "resourceVersion"];
            object_meta::metadata_mut(wanted).retain(|field, _| identifying.contains(&field.as_str()));
        }
    }
}

/// Restores everything except the status. The status endpoint of pods can also change labels,
/// annotations and finalizers.
fn preserve_all_but_status(kind: &ResourceKind, old: &Value, new: &mut Value) {
    let metadata = (kind.kind == "Pod").then(|| {
        metadata::prepare_for_update(old, new);
        let owners = old.pointer("/metadata/ownerReferences").cloned();
        let metadata = object_meta::metadata_mut(new);
        metadata.remove("ownerReferences");
        metadata.extend(owners.map(|owners| ("ownerReferences".to_owned(), owners)));
        Value::from(metadata.clone())
    });
    let (Some(old), fields) = (old.as_object(), object_meta::as_map_mut(new)) else { return };
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
fn increments_generation(kind: &ResourceKind, old: &Value, new: &Value) -> bool {
    let node = |pod: &Value| pod.pointer("/spec/nodeName").cloned();
    if kind.kind == "Pod" && node(old) != node(new) {
        return false;
    }
    let counted = |field: &str| field != "metadata" && !(kind.has_status && field == "status");
    let (Some(old), Some(new)) = (old.as_object(), new.as_object()) else { return old != new };
    let changed = |(field, value): (&String, &Value)| counted(field) && old.get(field) != Some(value);
    new.iter().any(changed) || old.keys().any(|field| counted(field) && !new.contains_key(field))
}
