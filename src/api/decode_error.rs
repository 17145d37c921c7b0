//! Error of decoding JSON that can be kept and compared.

use std::sync::Arc;

/// Error of decoding JSON. Two errors are equal if they have the same text.
#[derive(Debug, Clone, thiserror::Error)]
#[error(transparent)]
pub struct DecodeError(Arc<serde_json::Error>);

impl From<serde_json::Error> for DecodeError {
    fn from(error: serde_json::Error) -> Self {
        Self(Arc::new(error))
    }
}

impl PartialEq for DecodeError {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

impl Eq for DecodeError {}
