//! Why a request was refused, in the codes, reasons and words of the API server.

use serde_json::{Value, json};

use super::kinds::Kind;

/// A request that was refused.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    /// The HTTP status.
    pub code: u16,
    /// The machine's word for it, like `NotFound`.
    pub reason: &'static str,
    /// The sentence for people.
    pub message: String,
    /// What it is about; null when there is nothing to say.
    pub details: Value,
    /// Where a list that was cut short can be gone on with.
    pub continued: Option<String>,
}

/// What is wrong with one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flaw {
    /// Path of the field, like `spec.workerGroupSpecs[0].replicas`.
    pub field: String,
    /// The cause as Status objects have it, like `FieldValueInvalid`.
    pub cause: &'static str,
    /// What is wrong, like `Invalid value: -1: should be greater than or equal to 0`.
    pub text: String,
}

impl Flaw {
    /// A field that has to be there.
    pub fn required(field: impl Into<String>, why: &str) -> Self {
        let text = if why.is_empty() { "Required value".to_owned() } else { format!("Required value: {why}") };
        Self { field: field.into(), cause: "FieldValueRequired", text }
    }

    /// A value that is not allowed.
    pub fn invalid(field: impl Into<String>, value: &Value, why: &str) -> Self {
        Self { field: field.into(), cause: "FieldValueInvalid", text: format!("Invalid value: {value}: {why}") }
    }

    /// A value of the wrong type.
    pub fn wrong_type(field: impl Into<String>, value: &Value, why: &str) -> Self {
        Self { field: field.into(), cause: "FieldValueTypeInvalid", text: format!("Invalid value: {value}: {why}") }
    }

    /// Something that may not be done to this field.
    pub fn forbidden(field: impl Into<String>, why: &str) -> Self {
        Self { field: field.into(), cause: "FieldValueForbidden", text: format!("Forbidden: {why}") }
    }
}

impl Refusal {
    fn about(code: u16, reason: &'static str, kind: &Kind, name: &str, message: String) -> Self {
        Self {
            code,
            reason,
            message,
            details: json!({"name": name, "group": kind.group, "kind": kind.plural}),
            continued: None,
        }
    }

    /// The object is not there.
    pub fn not_found(kind: &Kind, name: &str) -> Self {
        Self::about(404, "NotFound", kind, name, format!("{} \"{name}\" not found", kind.resource()))
    }

    /// Nothing is served at this path.
    pub fn no_such_path() -> Self {
        let message = "the server could not find the requested resource".to_owned();
        Self { code: 404, reason: "NotFound", message, details: json!({}), continued: None }
    }

    /// The resource does not take this verb.
    pub fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource".to_owned();
        Self { code: 405, reason: "MethodNotAllowed", message, details: json!({}), continued: None }
    }

    /// An object of that name is there.
    pub fn already_exists(kind: &Kind, name: &str) -> Self {
        Self::about(409, "AlreadyExists", kind, name, format!("{} \"{name}\" already exists", kind.resource()))
    }

    /// The object is not what the request expects it to be.
    pub fn conflict(kind: &Kind, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} \"{name}\": {why}", kind.resource());
        Self::about(409, "Conflict", kind, name, message)
    }

    /// The request was made for another version of the object.
    pub fn stale(kind: &Kind, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(kind, name, why)
    }

    /// A field has a value that is not allowed.
    pub fn invalid(kind: &Kind, name: &str, flaws: &[Flaw]) -> Self {
        let texts: Vec<String> = flaws.iter().map(|flaw| format!("{}: {}", flaw.field, flaw.text)).collect();
        let text = match texts.as_slice() {
            [only] => only.clone(),
            all => format!("[{}]", all.join(", ")),
        };
        let causes: Vec<Value> =
            flaws.iter().map(|flaw| json!({"reason": flaw.cause, "message": flaw.text, "field": flaw.field})).collect();
        Self {
            code: 422,
            reason: "Invalid",
            message: format!("{} \"{name}\" is invalid: {text}", kind.qualified_kind()),
            details: json!({"name": name, "group": kind.group, "kind": kind.kind, "causes": causes}),
            continued: None,
        }
    }

    /// The request itself makes no sense.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self { code: 400, reason: "BadRequest", message: message.into(), details: Value::Null, continued: None }
    }

    /// It may not be done now.
    pub fn forbidden(kind: &Kind, name: &str, why: &str) -> Self {
        let message = format!("{} \"{name}\" is forbidden: {why}", kind.resource());
        Self::about(403, "Forbidden", kind, name, message)
    }

    /// What the API server answers when it trips over itself.
    pub fn internal(message: &str) -> Self {
        let message = format!("Internal error occurred: {message}");
        Self { code: 500, reason: "InternalError", message, details: json!({}), continued: None }
    }

    /// The version that was asked for is no longer remembered.
    pub fn expired(message: impl Into<String>) -> Self {
        Self { code: 410, reason: "Expired", message: message.into(), details: Value::Null, continued: None }
    }

    /// The body is of a type that can't be read here.
    pub fn unsupported_media_type(accepted: &[&str]) -> Self {
        let accepted = accepted.join(", ");
        let message =
            format!("the body of the request was in an unknown format - accepted media types include: {accepted}");
        Self { code: 415, reason: "UnsupportedMediaType", message, details: json!({}), continued: None }
    }

    /// The Status object that says so.
    pub fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        });
        if let Some(token) = &self.continued {
            status["metadata"]["continue"] = token.clone().into();
        }
        if !self.details.is_null() {
            status["details"] = self.details.clone();
        }
        status
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}: {}", self.code, self.reason, self.message)
    }
}

impl std::error::Error for Refusal {}
