//! Patches: what a body makes of an object.

use serde_json::{Value, json};

use super::fields;
use super::kinds::Kind;
use super::refusal::{Flaw, Refusal};

/// A patch.
#[derive(Debug, Clone, PartialEq)]
pub enum Patch {
    /// A JSON merge patch (RFC 7386).
    Merge(Value),
    /// A JSON patch (RFC 6902).
    Json(json_patch::Patch),
}

/// The types of bodies that can be read.
const ACCEPTED: [&str; 3] =
    ["application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"];

impl Patch {
    /// Reads a patch.
    ///
    /// # Errors
    /// When the type is unknown, or the body is not of it.
    pub fn parse(content_type: &str, body: &[u8]) -> Result<Self, Refusal> {
        let unreadable = |error: serde_json::Error| Refusal::bad_request(format!("error decoding patch: {error}"));
        match content_type.split(';').next().unwrap_or_default().trim() {
            "application/merge-patch+json" => Ok(Self::Merge(serde_json::from_slice(body).map_err(unreadable)?)),
            "application/json-patch+json" => Ok(Self::Json(serde_json::from_slice(body).map_err(unreadable)?)),
            _ => Err(Refusal::unsupported_media_type(&ACCEPTED)),
        }
    }

    /// What the patch makes of an object.
    ///
    /// # Errors
    /// When an operation of a JSON patch can't be done.
    pub fn applied_to(&self, object: &Value) -> Result<Value, Refusal> {
        let mut object = object.clone();
        match self {
            Self::Merge(patch) => json_patch::merge(&mut object, patch),
            Self::Json(patch) => json_patch::patch(&mut object, patch).map_err(|error| Refusal {
                code: 422,
                reason: "Invalid",
                message: format!("the server rejected our request due to an error in our request: {error}"),
                details: json!({}),
                continued: None,
            })?,
        }
        Ok(object)
    }
}

/// Custom objects can't be replaced without saying which version of them.
///
/// # Errors
/// When the version is missing.
pub fn check_update(kind: &Kind, name: &str, object: &Value) -> Result<(), Refusal> {
    if !kind.is_custom() || !fields::text(object, "resourceVersion").is_empty() {
        return Ok(());
    }
    let flaw = Flaw {
        field: "metadata.resourceVersion".into(),
        cause: "FieldValueInvalid",
        text: "Invalid value: 0x0: must be specified for an update".into(),
    };
    Err(Refusal::invalid(kind, name, &[flaw]))
}
