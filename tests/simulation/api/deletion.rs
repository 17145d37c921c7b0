//! Deletion: preconditions, grace for pods, finalizers, and what becomes of what an object owns.

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::kinds::Kind;
use super::refusal::Refusal;
use super::store::{self, Stored};
use super::write::seconds;
use super::{Api, fields};

/// What becomes of the objects that the deleted one owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    /// The garbage collector deletes them afterwards.
    Background,
    /// The owner stays until those that block its deletion are gone.
    Foreground,
    /// They stay, and lose their owner.
    Orphan,
}

/// Holds an object until what it owns is gone.
pub const FOREGROUND: &str = "foregroundDeletion";
/// Holds an object until what it owns no longer names it.
pub const ORPHAN: &str = "orphan";

/// How something is to be deleted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// The uid that the object must have.
    pub uid: Option<String>,
    /// The version that the object must have.
    pub resource_version: Option<String>,
    /// How many seconds a pod has to end, instead of those that it says itself.
    pub grace_seconds: Option<i64>,
    /// What becomes of what it owns; in the background when it is not said.
    pub propagation: Option<Propagation>,
}

/// What a deletion led to.
#[derive(Debug, Clone)]
pub enum Deletion {
    /// The object is gone; its last state.
    Gone(Stored),
    /// The object is marked, and stays until something else has happened.
    Pending(Stored),
}

impl DeleteOptions {
    /// Reads the options out of a request's body and query.
    ///
    /// # Errors
    /// When the body is not a DeleteOptions object, or the policy is none.
    pub fn parse(body: &[u8], grace: &str, policy: &str) -> Result<Self, Refusal> {
        let body: Value = match body {
            [] => Value::Null,
            text => serde_json::from_slice(text).map_err(|error| Refusal::bad_request(error.to_string()))?,
        };
        let text = |pointer: &str| body.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let policy = text("/propagationPolicy").unwrap_or_else(|| policy.to_owned());
        let propagation = match policy.as_str() {
            "" => None,
            "Background" => Some(Propagation::Background),
            "Foreground" => Some(Propagation::Foreground),
            "Orphan" => Some(Propagation::Orphan),
            other => return Err(Refusal::bad_request(format!("invalid propagationPolicy: {other}"))),
        };
        Ok(Self {
            uid: text("/preconditions/uid"),
            resource_version: text("/preconditions/resourceVersion"),
            grace_seconds: body.get("gracePeriodSeconds").and_then(Value::as_i64).or_else(|| grace.parse().ok()),
            propagation,
        })
    }
}

impl Api {
    /// Deletes an object, or marks it as being deleted when it has to stay for now.
    pub(super) fn delete_stored(
        &mut self,
        now: Timestamp,
        kind: &'static Kind,
        (namespace, name): (&str, &str),
        options: &DeleteOptions,
    ) -> Result<Deletion, Refusal> {
        let key = store::key(namespace, name);
        let old = self.store.get(kind, &key).cloned().ok_or_else(|| Refusal::not_found(kind, name))?;
        check_preconditions(kind, name, &old.object, options)?;
        let mut new = Value::clone(&old.object);
        let grace = match grace_of(kind, &old.object, options) {
            Grace::Pending => return Ok(Deletion::Pending(old)),
            Grace::None => None,
            Grace::Seconds(period) => {
                mark(&mut new, now, period);
                Some(period)
            }
        };
        set_propagation(&mut new, options.propagation);
        let held = !fields::finalizers(&new).is_empty() || is_namespace(kind);
        if held && grace.is_none() {
            mark(&mut new, now, 0);
        }
        if !held && grace.is_none_or(|period| period == 0) {
            // That a pod ends is a version of its own. What else changes with the end of an object is never seen.
            if grace.is_some() {
                self.store.put(now, kind, key.clone(), new);
            }
            let last = self.take(now, kind, &key).ok_or_else(|| Refusal::not_found(kind, name))?;
            return Ok(Deletion::Gone(last));
        }
        if is_namespace(kind) {
            new["status"]["phase"] = "Terminating".into();
        }
        let stored = if new == *old.object { old } else { self.store.put(now, kind, key, new) };
        Ok(Deletion::Pending(stored))
    }
}

/// Namespaces are held by a finalizer in their spec, until they are empty.
fn is_namespace(kind: &Kind) -> bool {
    kind.kind == "Namespace"
}

/// Whether a change leaves nothing that an object which is being deleted would have to stay for.
pub(super) fn is_done(old: &Value, new: &Value) -> bool {
    fields::is_deleting(old)
        && old.pointer("/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64) == Some(0)
        && fields::finalizers(new).is_empty()
        && old["kind"] != "Namespace"
}

fn check_preconditions(kind: &Kind, name: &str, object: &Value, options: &DeleteOptions) -> Result<(), Refusal> {
    let refused = |what: &str, wanted: &str, found: &str, then: &str| {
        let why = format!(
            "the {what} in the precondition ({wanted}) does not match the {what} in record ({found}). \
             The object might have been {then}"
        );
        Err(Refusal::precondition(kind, name, &why))
    };
    let (uid, version) = (fields::text(object, "uid"), fields::text(object, "resourceVersion"));
    match (&options.uid, &options.resource_version) {
        (Some(wanted), _) if wanted != uid => refused("UID", wanted, uid, "deleted and then recreated"),
        (_, Some(wanted)) if wanted != version => refused("ResourceVersion", wanted, version, "modified"),
        _ => Ok(()),
    }
}

/// How long an object has to end.
enum Grace {
    /// Its kind ends at once.
    None,
    /// It is ending already, and not to end sooner.
    Pending,
    /// This many seconds.
    Seconds(i64),
}

/// The rules for pods: those that no node runs end at once, and who asks again can only shorten what is left.
fn grace_of(kind: &Kind, object: &Value, options: &DeleteOptions) -> Grace {
    if kind.kind != "Pod" {
        return Grace::None;
    }
    if fields::is_deleting(object) {
        let current = object.pointer("/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64);
        return match (current, options.grace_seconds) {
            (None, _) => Grace::None,
            (Some(current), Some(wanted)) if wanted < current => Grace::Seconds(wanted.max(0)),
            _ => Grace::Pending,
        };
    }
    let phase = object.pointer("/status/phase").and_then(Value::as_str);
    let node = object.pointer("/spec/nodeName").and_then(Value::as_str).unwrap_or_default();
    if node.is_empty() || matches!(phase, Some("Failed" | "Succeeded")) {
        return Grace::Seconds(0);
    }
    let own = object.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(30);
    let period = options.grace_seconds.unwrap_or(own);
    Grace::Seconds(if period < 0 { 1 } else { period })
}

/// Marks an object as being deleted, until `period` seconds after the deletion was asked for.
fn mark(object: &mut Value, now: Timestamp, period: i64) {
    let metadata = fields::metadata_mut(object);
    let text = |field: &str| metadata.get(field).and_then(Value::as_str);
    let asked = match text("deletionTimestamp").and_then(|end| end.parse::<Timestamp>().ok()) {
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
    let end = asked.saturating_add(SignedDuration::from_secs(period)).unwrap_or(asked);
    metadata.insert("deletionTimestamp".into(), seconds(end).into());
    metadata.insert("deletionGracePeriodSeconds".into(), period.into());
}

/// Puts in the finalizer that the garbage collector works off, and takes out the other one.
fn set_propagation(object: &mut Value, propagation: Option<Propagation>) {
    let Some(propagation) = propagation else { return };
    let wanted = match propagation {
        Propagation::Background => None,
        Propagation::Foreground => Some(FOREGROUND),
        Propagation::Orphan => Some(ORPHAN),
    };
    let before: Vec<String> = fields::finalizers(object).into_iter().map(str::to_owned).collect();
    let others = before.iter().map(String::as_str).filter(|name| ![FOREGROUND, ORPHAN].contains(name));
    let finalizers: Vec<&str> = others.chain(wanted).collect();
    fields::set_finalizers(object, &finalizers);
}
