//! What can be wrong with a field.

use std::fmt;

use serde_json::Value;

/// A field that can't be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The field's path, like `resources.transformations[0].strategy`; empty for the whole file.
    pub field: String,
    /// What is wrong with it.
    pub wrong: Wrong,
    /// What is allowed.
    pub allowed: String,
}

/// What is wrong with a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wrong {
    /// It isn't known.
    Unknown,
    /// It isn't there and has to be.
    Missing,
    /// Its value, here as JSON, isn't allowed.
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
            Wrong::Unknown => write!(f, "{field}: unknown field: allowed are {}", self.allowed),
            Wrong::Missing => write!(f, "{field}: missing: allowed is {}", self.allowed),
            Wrong::Value(value) => write!(f, "{field}: {value}: allowed is {}", self.allowed),
        }
    }
}

/// The path of a member of a mapping.
pub(super) fn child(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// The path of an item of a list.
pub(super) fn item(path: &str, index: usize) -> String {
    format!("{path}[{index}]")
}
