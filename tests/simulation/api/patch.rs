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

/// Whether a body is to be applied by the server.
pub fn is_apply(content_type: &str) -> bool {
    content_type.starts_with("application/apply-patch+yaml")
}

/// What somebody wants to apply to an object: YAML, which JSON is too.
///
/// # Errors
/// When it is neither, is not about that object, or brings its own managed fields.
pub fn wanted(kind: &Kind, name: &str, body: &[u8]) -> Result<Value, Refusal> {
    let unreadable = |error: String| Refusal::bad_request(format!("error decoding YAML: {error}"));
    let mut wanted: Value = match serde_json::from_slice(body) {
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
        return Err(Refusal::bad_request(message));
    }
    if fields::metadata(&wanted).is_some_and(|metadata| metadata.get("managedFields").is_some_and(|own| !own.is_null()))
    {
        return Err(Refusal::bad_request("metadata.managedFields must be nil"));
    }
    if fields::name(&wanted).is_empty() {
        fields::set_metadata(&mut wanted, "name", name);
    }
    Ok(wanted)
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
