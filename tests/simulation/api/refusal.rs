//! Why a request was refused, in the codes, reasons and words of the API server.

use serde_json::{Value, json};

use super::kinds::{Kind, qualified};

/// A request that was refused.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    /// The HTTP status.
    pub code: u16,
    /// The machine's word for it, like `NotFound`; empty when there is none.
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

impl Flaw {
    /// Whether the rules of a definition are not even looked at when a field has such a flaw.
    pub fn hides_others(&self) -> bool {
        let hiding = [
            "FieldValueNotSupported",
            "FieldValueRequired",
            "FieldValueTooLong",
            "FieldValueTooMany",
            "FieldValueTypeInvalid",
        ];
        hiding.contains(&self.cause)
    }

    /// Says that the rules of the definition were not looked at.
    pub fn unchecked_rules() -> Self {
        let why = "some validation rules were not checked because the object was invalid; correct the existing errors to \
            complete validation";
        Self::invalid("<nil>", &Value::Null, why)
    }
}

impl Refusal {
    fn about(code: u16, reason: &'static str, kind: &Kind, name: &str, message: String) -> Self {
        Self { code, reason, message, details: details(name, &kind.group, &kind.plural), continued: None }
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
        Self::invalid_as(&kind.kind, &kind.group, name, flaws)
    }

    /// A field has a value that is not allowed, in an object of what calls itself this kind.
    pub fn invalid_as(kind: &str, group: &str, name: &str, flaws: &[Flaw]) -> Self {
        let texts: Vec<String> = flaws.iter().map(|flaw| format!("{}: {}", flaw.field, flaw.text)).collect();
        let text = match texts.as_slice() {
            [only] => only.clone(),
            all => format!("[{}]", all.join(", ")),
        };
        let causes: Vec<Value> =
            flaws.iter().map(|flaw| json!({"reason": flaw.cause, "message": flaw.text, "field": flaw.field})).collect();
        let mut details = details(name, group, kind);
        details["causes"] = causes.into();
        let message = format!("{} \"{name}\" is invalid: {text}", qualified(kind, group));
        Self { code: 422, reason: "Invalid", message, details, continued: None }
    }

    /// A deletion that is meant for another object, or another version of it.
    pub fn precondition(kind: &Kind, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} \"{name}\": {why}", kind.qualified_kind());
        let details = details(name, &kind.group, &kind.kind);
        Self { code: 409, reason: "Conflict", message, details, continued: None }
    }

    /// A body that is not of the kind's type.
    pub fn unreadable(kind: &Kind, why: &str) -> Self {
        let Kind { kind, version, .. } = kind;
        Self::bad_request(format!("{kind} in version \"{version}\" cannot be handled as a {kind}: {why}"))
    }

    /// A patch that would leave something that is not of the kind's type.
    pub fn unpatchable(why: &str) -> Self {
        let flaw = Flaw::invalid("patch", &Value::Null, why);
        Self::invalid_as("", "", "", &[flaw])
    }

    /// A patch that can't be done.
    pub fn impossible_patch() -> Self {
        let message = "the server rejected our request due to an error in our request".to_owned();
        Self { code: 422, reason: "Invalid", message, details: json!({}), continued: None }
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
    pub fn broken(message: impl Into<String>) -> Self {
        Self { code: 500, reason: "", message: message.into(), details: Value::Null, continued: None }
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
        Self { code: 415, reason: "UnsupportedMediaType", message, details: Value::Null, continued: None }
    }

    /// The Status object that says so.
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
        if let Some(token) = &self.continued {
            status["metadata"]["continue"] = token.clone().into();
        }
        if !self.details.is_null() {
            status["details"] = self.details.clone();
        }
        status
    }
}

/// What a Status says of the object that it is about.
fn details(name: &str, group: &str, kind: &str) -> Value {
    let parts = [("name", name), ("group", group), ("kind", kind)];
    let said = parts.into_iter().filter(|(_, text)| !text.is_empty());
    Value::Object(said.map(|(field, text)| (field.to_owned(), text.into())).collect())
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}: {}", self.code, self.reason, self.message)
    }
}

impl std::error::Error for Refusal {}
