//! Parses and applies patches.

use serde_json::Value;

use super::kinds::ResourceKind;
use super::object_meta;
use super::status_error::StatusError;

/// Parsed patch, other than a server-side apply.
#[derive(Debug, Clone, PartialEq)]
pub enum Patch {
    /// A JSON merge patch (RFC 7386).
    Merge(Value),
    /// A JSON patch (RFC 6902).
    Json(json_patch::Patch),
}

/// Supported media types of patches.
const ACCEPTED_MEDIA_TYPES: [&str; 3] =
    ["application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"];

impl Patch {
    /// Parses a patch.
    ///
    /// # Errors
    /// Returns an error if the media type is unsupported (415) or the body is malformed (400).
    pub fn parse(content_type: &str, body: &[u8]) -> Result<Self, StatusError> {
        let unreadable = |error: serde_json::Error| StatusError::bad_request(format!("error decoding patch: {error}"));
        match content_type.split(';').next().unwrap_or_default().trim() {
            "application/merge-patch+json" => Ok(Self::Merge(serde_json::from_slice(body).map_err(unreadable)?)),
            "application/json-patch+json" => Ok(Self::Json(serde_json::from_slice(body).map_err(unreadable)?)),
            _ => Err(StatusError::unsupported_media_type(&ACCEPTED_MEDIA_TYPES)),
        }
    }

    /// Returns the patched object.
    ///
    /// # Errors
    /// Returns an error if an operation of a JSON patch fails.
    pub fn apply_to(&self, object: &Value) -> Result<Value, StatusError> {
        let mut object = object.clone();
        match self {
            Self::Merge(patch) => json_patch::merge(&mut object, patch),
            Self::Json(patch) => {
                json_patch::patch(&mut object, patch).map_err(|_| StatusError::unprocessable_patch())?;
            }
        }
        Ok(object)
    }
}

/// Returns true for the media type of server-side apply.
pub fn is_apply(content_type: &str) -> bool {
    content_type.starts_with("application/apply-patch+yaml")
}

/// Parses an applied configuration from YAML or JSON.
///
/// # Errors
/// Returns an error if the body is malformed, is of another kind, or has `managedFields`.
pub fn parse_apply_configuration(kind: &ResourceKind, body: &[u8]) -> Result<Value, StatusError> {
    let unreadable = |error: String| StatusError::bad_request(format!("error decoding YAML: {error}"));
    let wanted: Value = match serde_json::from_slice(body) {
        Ok(wanted) => wanted,
        Err(_) => {
            let text = std::str::from_utf8(body).map_err(|error| unreadable(error.to_string()))?;
            serde_saphyr::from_str(text).map_err(|error| unreadable(error.to_string()))?
        }
    };
    let text = |field: &str| wanted.get(field).and_then(Value::as_str).unwrap_or_default();
    if text("apiVersion") != kind.api_version() || text("kind") != kind.kind {
        let message = format!(
            "invalid object type: {}, Kind={}: it has to be {}, Kind={}",
            text("apiVersion"),
            text("kind"),
            kind.api_version(),
            kind.kind
        );
        return Err(StatusError::bad_request(message));
    }
    if object_meta::metadata(&wanted)
        .is_some_and(|metadata| metadata.get("managedFields").is_some_and(|fields| !fields.is_null()))
    {
        return Err(StatusError::bad_request("metadata.managedFields must be nil"));
    }
    Ok(wanted)
}

/// Checks that the schema declares all fields of a configuration applied to a custom resource.
///
/// # Errors
/// Returns an error for the first field that is undeclared, mistyped or duplicate.
pub fn check_declared_types(
    kind: &ResourceKind,
    namespace: &str,
    name: &str,
    wanted: &Value,
) -> Result<(), StatusError> {
    let Some(schema) = &kind.schema else { return Ok(()) };
    let unknown = schema.prune_and_default(&mut wanted.clone(), None);
    let unknown = unknown.iter().map(|field| format!(".{field}: field not declared in schema"));
    let errors = schema.validate(wanted, None);
    let mistyped =
        errors.iter().filter(|error| ["FieldValueTypeInvalid", "FieldValueDuplicate"].contains(&error.cause_type));
    let Some(why) = unknown.chain(mistyped.map(|error| format!(".{}: {}", error.field, error.message))).next() else {
        return Ok(());
    };
    let object = format!("{namespace}/{name}; {}, Kind={}", kind.api_version(), kind.kind);
    Err(StatusError::internal_error(format!("failed to create typed patch object ({object}): {why}")))
}
