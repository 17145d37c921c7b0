//! Deletes objects: preconditions, grace periods of pods, finalizers and propagation policies.

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::kinds::ResourceKind;
use super::status_error::StatusError;
use super::store::{self, StoredObject};
use super::write::rfc3339_seconds;
use super::{ApiServer, object_meta};

/// Propagation policy for the dependents of a deleted object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    /// The garbage collector deletes dependents after the owner.
    Background,
    /// The owner stays until its blocking dependents are deleted.
    Foreground,
    /// Dependents stay and lose their owner reference.
    Orphan,
}

/// Finalizer that keeps an owner until its blocking dependents are deleted.
pub const FOREGROUND_FINALIZER: &str = "foregroundDeletion";
/// Finalizer that keeps an owner until its dependents no longer reference it.
pub const ORPHAN_FINALIZER: &str = "orphan";

/// Options of a deletion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// Precondition: uid of the object.
    pub uid: Option<String>,
    /// Precondition: `resourceVersion` of the object.
    pub resource_version: Option<String>,
    /// Grace period of a pod in seconds; `None` uses `terminationGracePeriodSeconds` of the pod.
    pub grace_seconds: Option<i64>,
    /// Propagation policy; `None` means background.
    pub propagation: Option<Propagation>,
}

/// Outcome of a deletion.
#[derive(Debug, Clone)]
pub enum DeleteOutcome {
    /// The object is deleted; holds its last state.
    Deleted(StoredObject),
    /// The object is terminating; holds its current state.
    Terminating(StoredObject),
}

impl DeleteOptions {
    /// Parses the options from the body of a request, with `grace` and `policy` from its query as
    /// fallbacks.
    ///
    /// # Errors
    /// Returns an error if the body is malformed or the propagation policy is unknown.
    pub fn parse(body: &[u8], grace: &str, policy: &str) -> Result<Self, StatusError> {
        let body: Value = match body {
            [] => Value::Null,
            text => serde_json::from_slice(text).map_err(|error| StatusError::bad_request(error.to_string()))?,
        };
        let text = |pointer: &str| body.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let policy = text("/propagationPolicy").unwrap_or_else(|| policy.to_owned());
        let propagation = match policy.as_str() {
            "" => None,
            "Background" => Some(Propagation::Background),
            "Foreground" => Some(Propagation::Foreground),
            "Orphan" => Some(Propagation::Orphan),
            other => return Err(StatusError::bad_request(format!("invalid propagationPolicy: {other}"))),
        };
        Ok(Self {
            uid: text("/preconditions/uid"),
            resource_version: text("/preconditions/resourceVersion"),
            grace_seconds: body.get("gracePeriodSeconds").and_then(Value::as_i64).or_else(|| grace.parse().ok()),
            propagation,
        })
    }
}

impl ApiServer {
    /// Deletes an object, or marks it as terminating if finalizers or a grace period keep it.
    pub(super) fn delete_object(
        &mut self,
        now: Timestamp,
        kind: &'static ResourceKind,
        (namespace, name): (&str, &str),
        options: &DeleteOptions,
    ) -> Result<DeleteOutcome, StatusError> {
        let key = store::object_key(namespace, name);
        let old = self.store.get(kind, &key).cloned().ok_or_else(|| StatusError::not_found(kind, name))?;
        check_preconditions(kind, name, &old.object, options)?;
        let mut new = Value::clone(&old.object);
        let grace = match grace_period(kind, &old.object, options) {
            GracePeriod::Unchanged => return Ok(DeleteOutcome::Terminating(old)),
            GracePeriod::None => None,
            GracePeriod::Seconds(period) => {
                mark_terminating(&mut new, now, period);
                Some(period)
            }
        };
        // Jobs orphan their pods by default, for compatibility (kubernetes 1.36
        // `pkg/registry/batch/job/strategy.go`, `DefaultGarbageCollectionPolicy`).
        let default = (kind.kind == "Job" && !object_meta::is_terminating(&old.object)).then_some(Propagation::Orphan);
        set_propagation(&mut new, options.propagation.or(default));
        let must_stay = !object_meta::finalizers(&new).is_empty() || is_namespace(kind);
        if must_stay && grace.is_none() {
            mark_terminating(&mut new, now, 0);
        }
        if !must_stay && grace.is_none_or(|period| period == 0) {
            // The end of a pod's grace period gets a separate version, as in a real API server.
            // Other last changes of an object are never visible.
            if grace.is_some() {
                self.store.put(now, kind, key.clone(), new);
            }
            let last = self.remove_object(now, kind, &key).ok_or_else(|| StatusError::not_found(kind, name))?;
            return Ok(DeleteOutcome::Deleted(last));
        }
        if is_namespace(kind) {
            new["status"]["phase"] = "Terminating".into();
        }
        let stored = if new == *old.object { old } else { self.store.put(now, kind, key, new) };
        Ok(DeleteOutcome::Terminating(stored))
    }
}

/// Returns true for Namespace, which a finalizer in its spec keeps until the namespace is empty.
fn is_namespace(kind: &ResourceKind) -> bool {
    kind.kind == "Namespace"
}

/// Returns true if an update removes the last finalizer of a terminating object whose grace period
/// is over.
pub(super) fn completes_deletion(old: &Value, new: &Value) -> bool {
    object_meta::is_terminating(old)
        && old.pointer("/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64) == Some(0)
        && object_meta::finalizers(new).is_empty()
        && old["kind"] != "Namespace"
}

fn check_preconditions(
    kind: &ResourceKind,
    name: &str,
    object: &Value,
    options: &DeleteOptions,
) -> Result<(), StatusError> {
    let refused = |what: &str, wanted: &str, found: &str, then: &str| {
        let why = format!(
            "the {what} in the precondition ({wanted}) does not match the {what} in record ({found}). \
             The object might have been {then}"
        );
        Err(StatusError::precondition_failed(kind, name, &why))
    };
    let (uid, version) =
        (object_meta::metadata_text(object, "uid"), object_meta::metadata_text(object, "resourceVersion"));
    match (&options.uid, &options.resource_version) {
        (Some(wanted), _) if wanted != uid => refused("UID", wanted, uid, "deleted and then recreated"),
        (_, Some(wanted)) if wanted != version => refused("ResourceVersion", wanted, version, "modified"),
        _ => Ok(()),
    }
}

/// Grace period of a deletion.
enum GracePeriod {
    /// Objects of this kind have no grace period.
    None,
    /// The object is terminating already, with a grace period that is not longer.
    Unchanged,
    /// Grace period in seconds.
    Seconds(i64),
}

/// Returns the grace period of a deletion. Only pods have one: unscheduled and finished pods get 0
/// seconds, and a repeated deletion can only shorten the period.
fn grace_period(kind: &ResourceKind, object: &Value, options: &DeleteOptions) -> GracePeriod {
    if kind.kind != "Pod" {
        return GracePeriod::None;
    }
    if object_meta::is_terminating(object) {
        let current = object.pointer("/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64);
        return match (current, options.grace_seconds) {
            (None, _) => GracePeriod::None,
            (Some(current), Some(wanted)) if wanted < current => GracePeriod::Seconds(wanted.max(0)),
            _ => GracePeriod::Unchanged,
        };
    }
    let phase = object.pointer("/status/phase").and_then(Value::as_str);
    let node = object.pointer("/spec/nodeName").and_then(Value::as_str).unwrap_or_default();
    if node.is_empty() || matches!(phase, Some("Failed" | "Succeeded")) {
        return GracePeriod::Seconds(0);
    }
    let default = object.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(30);
    let period = options.grace_seconds.unwrap_or(default);
    GracePeriod::Seconds(if period < 0 { 1 } else { period })
}

/// Marks an object as terminating, until `period` seconds after the first deletion request.
fn mark_terminating(object: &mut Value, now: Timestamp, period: i64) {
    let metadata = object_meta::metadata_mut(object);
    let text = |field: &str| metadata.get(field).and_then(Value::as_str);
    let requested_at = match text("deletionTimestamp").and_then(|end| end.parse::<Timestamp>().ok()) {
        Some(end) => {
            let current = metadata.get("deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0);
            end.saturating_sub(SignedDuration::from_secs(current)).unwrap_or(now)
        }
        None => {
            if let Some(generation) = metadata.get("generation").and_then(Value::as_i64) {
                metadata.insert("generation".into(), (generation + 1).into());
            }
            now
        }
    };
    let end = requested_at.saturating_add(SignedDuration::from_secs(period)).unwrap_or(requested_at);
    metadata.insert("deletionTimestamp".into(), rfc3339_seconds(end).into());
    metadata.insert("deletionGracePeriodSeconds".into(), period.into());
}

/// Sets the finalizer of the propagation policy, which the garbage collector removes later.
fn set_propagation(object: &mut Value, propagation: Option<Propagation>) {
    let Some(propagation) = propagation else { return };
    let wanted = match propagation {
        Propagation::Background => None,
        Propagation::Foreground => Some(FOREGROUND_FINALIZER),
        Propagation::Orphan => Some(ORPHAN_FINALIZER),
    };
    let before: Vec<String> = object_meta::finalizers(object).into_iter().map(str::to_owned).collect();
    let others =
        before.iter().map(String::as_str).filter(|name| ![FOREGROUND_FINALIZER, ORPHAN_FINALIZER].contains(name));
    let finalizers: Vec<&str> = others.chain(wanted).collect();
    object_meta::set_finalizers(object, &finalizers);
}
