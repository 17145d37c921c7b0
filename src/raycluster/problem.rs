//! What is wrong with a spec.

/// One thing that is wrong with a spec.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct Problem {
    /// Path of the field.
    pub field: String,
    /// What is wrong with it, and what is allowed.
    pub message: String,
}

impl Problem {
    pub(super) fn new(field: impl Into<String>, message: impl ToString) -> Self {
        Self { field: field.into(), message: message.to_string() }
    }
}
