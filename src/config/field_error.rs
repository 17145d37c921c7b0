//! Validation errors of configuration fields.

use std::fmt;

use serde_json::Value;

/// Validation error of one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    /// Path of the field, like `resources.transformations[0].strategy`. Empty for the whole file.
    pub field: String,
    /// Kind of the error.
    pub kind: FieldErrorKind,
    /// Allowed values, worded to follow "must be".
    pub allowed: String,
}

/// Kind of a validation error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FieldErrorKind {
    /// The field is unknown.
    Unknown,
    /// The field is required, but absent.
    Required,
    /// The value, here as JSON, is not allowed.
    Invalid(String),
}

impl FieldError {
    pub(super) fn new(field: &str, value: &Value, allowed: impl Into<String>) -> Self {
        let wrong = if value.is_null() { FieldErrorKind::Required } else { FieldErrorKind::Invalid(value.to_string()) };
        Self { field: field.to_owned(), kind: wrong, allowed: allowed.into() }
    }

    pub(super) fn unknown<'a>(field: String, known: impl Iterator<Item = &'a str>) -> Self {
        Self { field, kind: FieldErrorKind::Unknown, allowed: known.collect::<Vec<_>>().join(", ") }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let field = if self.field.is_empty() { "the file" } else { &self.field };
        match &self.kind {
            FieldErrorKind::Unknown => write!(f, "{field}: unknown field, must be one of {}", self.allowed),
            FieldErrorKind::Required => write!(f, "{field}: required, must be {}", self.allowed),
            FieldErrorKind::Invalid(value) => write!(f, "{field}: {value}: must be {}", self.allowed),
        }
    }
}

/// Returns the path of a field of a mapping.
pub(super) fn child_path(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// Returns the path of an item of a list.
pub(super) fn item_path(path: &str, index: usize) -> String {
    format!("{path}[{index}]")
}
