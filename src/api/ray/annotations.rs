//! Reading of annotations that users set.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Returns the value of an annotation. None if it is absent.
pub(super) fn annotation_value<'a>(meta: &'a ObjectMeta, name: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(name).map(String::as_str)
}

/// Error in the value of an annotation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("annotation {annotation}: {value:?} is {}; {fallback}", allowed.violation())]
pub struct AnnotationError {
    /// Name of the annotation.
    pub annotation: &'static str,
    /// Value as written.
    pub value: String,
    /// Values that are allowed.
    pub allowed: AllowedValues,
    /// Clause that says what applies instead.
    pub fallback: &'static str,
}

/// Values that an annotation may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllowedValues {
    /// One of these two.
    Either(&'static str, &'static str),
    /// Any value of this kind, like `a positive duration like 10m`.
    Any(&'static str),
}

impl AllowedValues {
    fn violation(self) -> String {
        match self {
            Self::Either(one, other) => format!("neither {one} nor {other}"),
            Self::Any(kind) => format!("not {kind}"),
        }
    }
}

impl AnnotationError {
    /// Creates the error for an annotation that is ignored because of its value.
    pub(super) fn ignored(annotation: &'static str, value: &str, allowed: AllowedValues) -> Self {
        Self { annotation, value: value.to_owned(), allowed, fallback: "the annotation is ignored" }
    }
}
