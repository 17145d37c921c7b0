//! Validation errors of a spec.

/// Validation error of one field (apimachinery `field.Error`).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct FieldError {
    /// Path of the field, like `spec.rayVersion`.
    pub field: String,
    /// Invalid value, and what is allowed.
    pub message: String,
}

/// Error of decoding a field of free form.
#[derive(Debug, thiserror::Error)]
#[error("{field} can't be parsed: {source}")]
pub(super) struct UnparsableField {
    /// Path of the field.
    pub(super) field: &'static str,
    /// Cause.
    pub(super) source: serde_json::Error,
}

impl FieldError {
    pub(super) fn new(field: impl Into<String>, message: impl ToString) -> Self {
        Self { field: field.into(), message: message.to_string() }
    }
}
