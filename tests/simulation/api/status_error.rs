//! API errors, with the codes, reasons and messages of the real API server.

use serde_json::{Value, json};

use super::kinds::{ResourceKind, qualified};

/// Error that a request failed with.
#[derive(Debug, Clone, PartialEq)]
pub struct StatusError {
    /// HTTP status code.
    pub code: u16,
    /// Machine-readable reason, like `NotFound`; empty if there is none.
    pub reason: &'static str,
    /// Human-readable message.
    pub message: String,
    /// `details` of the Status; null if there are none.
    pub details: Value,
    /// Token to continue an expired list from the current state.
    pub continue_token: Option<String>,
}

/// Validation error of one field (apimachinery `field.Error`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    /// Path of the field, like `spec.workerGroupSpecs[0].replicas`.
    pub field: String,
    /// Cause type as in Status objects, like `FieldValueInvalid`.
    pub cause_type: &'static str,
    /// Message, like `Invalid value: -1: should be greater than or equal to 0`.
    pub message: String,
}

impl FieldError {
    /// Returns the error of a missing required field.
    pub fn required(field: impl Into<String>, why: &str) -> Self {
        let text = if why.is_empty() { "Required value".to_owned() } else { format!("Required value: {why}") };
        Self { field: field.into(), cause_type: "FieldValueRequired", message: text }
    }

    /// Returns the error of a value that is not allowed.
    pub fn invalid(field: impl Into<String>, value: &Value, why: &str) -> Self {
        Self { field: field.into(), cause_type: "FieldValueInvalid", message: format!("Invalid value: {value}: {why}") }
    }

    /// Returns the error of a value of the wrong type.
    pub fn wrong_type(field: impl Into<String>, value: &Value, why: &str) -> Self {
        Self {
            field: field.into(),
            cause_type: "FieldValueTypeInvalid",
            message: format!("Invalid value: {value}: {why}"),
        }
    }

    /// Returns the error of a forbidden change of a field.
    pub fn forbidden(field: impl Into<String>, why: &str) -> Self {
        Self { field: field.into(), cause_type: "FieldValueForbidden", message: format!("Forbidden: {why}") }
    }
}

impl FieldError {
    /// Returns true if the API server skips the CEL rules of a CRD after an error of this type.
    pub fn skips_cel_rules(&self) -> bool {
        let hiding = [
            "FieldValueNotSupported",
            "FieldValueRequired",
            "FieldValueTooLong",
            "FieldValueTooMany",
            "FieldValueTypeInvalid",
        ];
        hiding.contains(&self.cause_type)
    }

    /// Returns the notice that the CEL rules of the CRD were not checked.
    pub fn rules_not_checked() -> Self {
        let why = "some validation rules were not checked because the object was invalid; correct the existing errors to \
            complete validation";
        Self::invalid("<nil>", &Value::Null, why)
    }
}

impl StatusError {
    fn for_object(code: u16, reason: &'static str, kind: &ResourceKind, name: &str, message: String) -> Self {
        Self { code, reason, message, details: status_details(name, &kind.group, &kind.plural), continue_token: None }
    }

    /// 404: the object does not exist.
    pub fn not_found(kind: &ResourceKind, name: &str) -> Self {
        Self::for_object(404, "NotFound", kind, name, format!("{} \"{name}\" not found", kind.resource()))
    }

    /// 404: nothing is served at this path.
    pub fn no_such_path() -> Self {
        let message = "the server could not find the requested resource".to_owned();
        Self { code: 404, reason: "NotFound", message, details: json!({}), continue_token: None }
    }

    /// 405: the resource does not support this verb.
    pub fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource".to_owned();
        Self { code: 405, reason: "MethodNotAllowed", message, details: json!({}), continue_token: None }
    }

    /// 409: an object of that name exists.
    pub fn already_exists(kind: &ResourceKind, name: &str) -> Self {
        Self::for_object(409, "AlreadyExists", kind, name, format!("{} \"{name}\" already exists", kind.resource()))
    }

    /// 409: the object is not in the state that the request expects.
    pub fn conflict(kind: &ResourceKind, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} \"{name}\": {why}", kind.resource());
        Self::for_object(409, "Conflict", kind, name, message)
    }

    /// 409: the request has an outdated `resourceVersion`.
    pub fn outdated_version(kind: &ResourceKind, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(kind, name, why)
    }

    /// 422: fields of an object are invalid.
    pub fn invalid(kind: &ResourceKind, name: &str, errors: &[FieldError]) -> Self {
        Self::invalid_as(&kind.kind, &kind.group, name, errors)
    }

    /// 422: fields are invalid, in an object that names this kind and group.
    pub fn invalid_as(kind: &str, group: &str, name: &str, errors: &[FieldError]) -> Self {
        let texts: Vec<String> = errors.iter().map(|error| format!("{}: {}", error.field, error.message)).collect();
        let text = match texts.as_slice() {
            [only] => only.clone(),
            all => format!("[{}]", all.join(", ")),
        };
        let causes: Vec<Value> = errors
            .iter()
            .map(|error| json!({"reason": error.cause_type, "message": error.message, "field": error.field}))
            .collect();
        let mut details = status_details(name, group, kind);
        details["causes"] = causes.into();
        let message = format!("{} \"{name}\" is invalid: {text}", qualified(kind, group));
        Self { code: 422, reason: "Invalid", message, details, continue_token: None }
    }

    /// 409: a precondition of a deletion does not hold.
    pub fn precondition_failed(kind: &ResourceKind, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} \"{name}\": {why}", kind.qualified_kind());
        let details = status_details(name, &kind.group, &kind.kind);
        Self { code: 409, reason: "Conflict", message, details, continue_token: None }
    }

    /// 400: the body cannot be decoded into the type of the kind.
    pub fn undecodable_body(kind: &ResourceKind, why: &str) -> Self {
        let ResourceKind { kind, version, .. } = kind;
        Self::bad_request(format!("{kind} in version \"{version}\" cannot be handled as a {kind}: {why}"))
    }

    /// 422: the patched object cannot be decoded into the type of the kind.
    pub fn undecodable_patch(why: &str) -> Self {
        let error = FieldError::invalid("patch", &Value::Null, why);
        Self::invalid_as("", "", "", &[error])
    }

    /// 422: an operation of a JSON patch fails.
    pub fn unprocessable_patch() -> Self {
        let message = "the server rejected our request due to an error in our request".to_owned();
        Self { code: 422, reason: "Invalid", message, details: json!({}), continue_token: None }
    }

    /// 400: the request is malformed.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self { code: 400, reason: "BadRequest", message: message.into(), details: Value::Null, continue_token: None }
    }

    /// 403: the request is forbidden.
    pub fn forbidden(kind: &ResourceKind, name: &str, why: &str) -> Self {
        let message = format!("{} \"{name}\" is forbidden: {why}", kind.resource());
        Self::for_object(403, "Forbidden", kind, name, message)
    }

    /// 403 or 422: an admission policy denies the request.
    pub fn denied_by_admission(
        code: u16,
        reason: &'static str,
        kind: &ResourceKind,
        name: &str,
        message: &str,
    ) -> Self {
        let mut error = Self { code, reason, ..Self::forbidden(kind, name, message) };
        error.details["causes"] = json!([{"message": message}]);
        error
    }

    /// 500: an error that the real API server reports as internal.
    pub fn internal_error(message: impl Into<String>) -> Self {
        Self { code: 500, reason: "", message: message.into(), details: Value::Null, continue_token: None }
    }

    /// 410: the requested version has been compacted.
    pub fn expired(message: impl Into<String>) -> Self {
        Self { code: 410, reason: "Expired", message: message.into(), details: Value::Null, continue_token: None }
    }

    /// 415: the media type of the body is not supported.
    pub fn unsupported_media_type(accepted: &[&str]) -> Self {
        let accepted = accepted.join(", ");
        let message =
            format!("the body of the request was in an unknown format - accepted media types include: {accepted}");
        Self { code: 415, reason: "UnsupportedMediaType", message, details: Value::Null, continue_token: None }
    }

    /// Returns the error as a Status object.
    pub fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "code": self.code,
        });
        if !self.reason.is_empty() {
            status["reason"] = self.reason.into();
        }
        if let Some(token) = &self.continue_token {
            status["metadata"]["continue"] = token.clone().into();
        }
        if !self.details.is_null() {
            status["details"] = self.details.clone();
        }
        status
    }
}

/// Returns Status `details` of an object; empty parts are left out.
fn status_details(name: &str, group: &str, kind: &str) -> Value {
    let parts = [("name", name), ("group", group), ("kind", kind)];
    let present = parts.into_iter().filter(|(_, text)| !text.is_empty());
    Value::Object(present.map(|(field, text)| (field.to_owned(), text.into())).collect())
}

impl std::fmt::Display for StatusError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}: {}", self.code, self.reason, self.message)
    }
}

impl std::error::Error for StatusError {}
