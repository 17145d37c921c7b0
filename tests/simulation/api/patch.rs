//! Patches: what a body makes of an object.

use serde_json::Value;

use super::fields;
use super::kinds::Kind;
use super::refusal::Refusal;

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
            Self::Json(patch) => {
                json_patch::patch(&mut object, patch).map_err(|_| Refusal::impossible_patch())?;
            }
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
pub fn wanted(kind: &Kind, body: &[u8]) -> Result<Value, Refusal> {
    let unreadable = |error: String| Refusal::bad_request(format!("error decoding YAML: {error}"));
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
        return Err(Refusal::bad_request(message));
    }
    if fields::metadata(&wanted).is_some_and(|metadata| metadata.get("managedFields").is_some_and(|own| !own.is_null()))
    {
        return Err(Refusal::bad_request("metadata.managedFields must be nil"));
    }
    Ok(wanted)
}

/// Whether the server can tell what every field of what is applied to a custom object is.
///
/// # Errors
/// When there is one that the schema doesn't know or that is of another type.
pub fn check_types(kind: &Kind, namespace: &str, name: &str, wanted: &Value) -> Result<(), Refusal> {
    let Some(schema) = &kind.schema else { return Ok(()) };
    let unknown = schema.settle(&mut wanted.clone(), None);
    let unknown = unknown.iter().map(|field| format!(".{field}: field not declared in schema"));
    let flaws = schema.flaws(wanted, None);
    let mistyped = flaws.iter().filter(|flaw| ["FieldValueTypeInvalid", "FieldValueDuplicate"].contains(&flaw.cause));
    let Some(why) = unknown.chain(mistyped.map(|flaw| format!(".{}: {}", flaw.field, flaw.text))).next() else {
        return Ok(());
    };
    let of = format!("{namespace}/{name}; {}, Kind={}", kind.api_version(), kind.kind);
    Err(Refusal::broken(format!("failed to create typed patch object ({of}): {why}")))
}
