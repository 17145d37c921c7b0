//! Validation errors of configuration fields.

use std::fmt;

use serde_json::Value;

/// Validation error of one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Path of the field, like `resources.transformations[0].strategy`. Empty for the whole file.
    pub field: String,
    /// Kind of the error.
    pub wrong: Wrong,
    /// Allowed values, worded to follow "must be".
    pub allowed: String,
}

/// Kind of a validation error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wrong {
    /// The field is unknown.
    Unknown,
    /// The field is required, but absent.
    Missing,
    /// The value, here as JSON, is not allowed.
    Value(String),
}

impl Problem {
    pub(super) fn new(field: &str, value: &Value, allowed: impl Into<String>) -> Self {
        let wrong = if value.is_null() { Wrong::Missing } else { Wrong::Value(value.to_string()) };
        Self { field: field.to_owned(), wrong, allowed: allowed.into() }
    }

    pub(super) fn unknown<'a>(field: String, known: impl Iterator<Item = &'a str>) -> Self {
        Self { field, wrong: Wrong::Unknown, allowed: known.collect::<Vec<_>>().join(", ") }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let field = if self.field.is_empty() { "the file" } else { &self.field };
        match &self.wrong {
            Wrong::Unknown => write!(f, "{field}: unknown field, must be one of {}", self.allowed),
            Wrong::Missing => write!(f, "{field}: required, must be {}", self.allowed),
            Wrong::Value(value) => write!(f, "{field}: {value}: must be {}", self.allowed),
        }
    }
}

/// Returns the path of a field of a mapping.
pub(super) fn child(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// Returns the path of an item of a list.
pub(super) fn item(path: &str, index: usize) -> String {
    format!("{path}[{index}]")
}
