//! Checks the identity of written objects, and generates uids and names.

use serde_json::{Value, json};

use super::kinds::ResourceKind;
use super::object_meta;
use super::status_error::{FieldError, StatusError};
use crate::rng::SeededRandom;

/// Alphabet of generated name suffixes, as in Kubernetes: without vowels, so that no words result.
const NAME_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// Maximum length of a generated name.
const MAX_GENERATED_NAME: usize = 63;
/// Length of the random suffix of a generated name.
const SUFFIX_LENGTH: usize = 5;

/// Returns the `n`th uid, the same in every run. Uids ascend with `n`, or are in the random order
/// that `order` gives.
pub fn uid(n: u64, order: Option<&SeededRandom>) -> String {
    let rank = order.map_or(0, |order| order.nth(n).rng().u32(..));
    format!("{rank:08x}-0000-4000-8000-{n:012x}")
}

/// Returns the name of the `n`th object; generates one if only `generateName` is set.
///
/// # Errors
/// Returns an error if neither is set.
pub fn resolve_name(kind: &ResourceKind, object: &mut Value, n: u64) -> Result<String, StatusError> {
    let name = object_meta::name(object);
    if !name.is_empty() {
        return Ok(name.to_owned());
    }
    let base = object_meta::metadata_text(object, "generateName");
    if base.is_empty() {
        let mut errors = vec![FieldError::required("metadata.name", "name or generateName is required")];
        errors.extend(kind.has_cel_rules.then(FieldError::rules_not_checked));
        return Err(StatusError::invalid(kind, "", &errors));
    }
    let base: String = base.chars().take(MAX_GENERATED_NAME - SUFFIX_LENGTH).collect();
    let name = format!("{base}{}", random_suffix(n));
    object_meta::set_metadata(object, "name", name.clone());
    Ok(name)
}

/// Returns a suffix that looks random and is deterministic for each `n`.
fn random_suffix(n: u64) -> String {
    let mut rest = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
    let mut letter = || {
        let index = usize::try_from(rest % 27).unwrap_or_default();
        rest /= 27;
        char::from(NAME_ALPHABET[index])
    };
    (0..SUFFIX_LENGTH).map(|_| letter()).collect()
}

/// Checks that an object has the kind and the namespace of the request path.
///
/// # Errors
/// Returns an error if either differs.
pub fn check_kind_and_namespace(kind: &ResourceKind, namespace: &str, object: &Value) -> Result<(), StatusError> {
    let expected = [("apiVersion", kind.api_version()), ("kind", kind.kind.clone())];
    for (field, expected) in expected {
        let given = object.get(field).and_then(Value::as_str).unwrap_or_default();
        if given == expected || (given.is_empty() && !kind.is_custom()) {
            continue;
        }
        if !kind.is_custom() || given.is_empty() {
            let message = format!("the object provided is unrecognized (must be of type {}): {given}", kind.kind);
            return Err(StatusError::bad_request(message));
        }
        let error = FieldError::invalid(field, &json!(given), &format!("must be {expected}"));
        let given_kind = object.get("kind").and_then(Value::as_str).unwrap_or_default();
        return Err(StatusError::invalid_as(given_kind, &kind.group, object_meta::name(object), &[error]));
    }
    let given_namespace = object_meta::namespace(object);
    if !given_namespace.is_empty() && given_namespace != namespace {
        let message = "the namespace of the provided object does not match the namespace sent on the request";
        return Err(StatusError::bad_request(message));
    }
    Ok(())
}

/// Checks that a replacement has the uid of the object, if it has one.
///
/// # Errors
/// Returns a conflict if it has another uid.
pub fn check_uid(kind: &ResourceKind, name: &str, old: &Value, new: &Value) -> Result<(), StatusError> {
    let (given, uid) = (object_meta::metadata_text(new, "uid"), object_meta::metadata_text(old, "uid"));
    if given.is_empty() || given == uid {
        return Ok(());
    }
    let group = if kind.group.is_empty() { String::new() } else { format!("{}/", kind.group) };
    let key = super::store_key(old);
    let why = format!(
        "StorageError: invalid object, Code: 4, Key: /registry/{group}{}/{key}, ResourceVersion: 0, AdditionalErrorMsg: \
         Precondition failed: UID in precondition: {given}, UID in object meta: {uid}",
        kind.plural,
    );
    Err(StatusError::conflict(kind, name, &why))
}

/// Returns true if an update of this kind requires a `resourceVersion`.
fn requires_resource_version(kind: &ResourceKind) -> bool {
    kind.is_custom() || ["Lease", "RuntimeClass"].contains(&kind.kind.as_str())
}

/// Checks that an update has the name of the object and its current version.
///
/// # Errors
/// Returns an error if the name differs, the version is outdated, or a required version is missing.
pub fn check_name_and_version(kind: &ResourceKind, name: &str, old: &Value, new: &Value) -> Result<(), StatusError> {
    let given = object_meta::name(new);
    if given != name {
        let message = format!("the name of the object ({given}) does not match the name on the URL ({name})");
        return Err(StatusError::bad_request(message));
    }
    match object_meta::metadata_text(new, "resourceVersion") {
        "" | "0" if requires_resource_version(kind) => {
            let error = FieldError::invalid("metadata.resourceVersion", &json!(0), "must be specified for an update");
            Err(StatusError::invalid_as(&kind.plural, &kind.group, name, &[error]))
        }
        "" | "0" => Ok(()),
        version if version != object_meta::metadata_text(old, "resourceVersion") => {
            Err(StatusError::outdated_version(kind, name))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn uids_ascend_unless_their_order_is_random() {
        let chance = SeededRandom::new(1);
        let uids = |order: Option<&SeededRandom>| (0..100).map(|n| uid(n, order)).collect::<Vec<_>>();

        let (ascending, shuffled) = (uids(None), uids(Some(&chance)));

        assert!(ascending.is_sorted());
        assert!(!shuffled.is_sorted());
        assert_eq!(shuffled.iter().collect::<BTreeSet<_>>().len(), 100);
        assert_eq!(shuffled, uids(Some(&chance)));
    }
}
