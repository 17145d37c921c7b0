//! Reading of annotations that users set.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Returns the value of an annotation. None if it is absent.
pub(super) fn annotation_value<'a>(meta: &'a ObjectMeta, name: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(name).map(String::as_str)
}

/// Formats the error for an annotation that is ignored: its name, its value, and what is wrong with
/// it.
pub(super) fn invalid_annotation(name: &str, value: &str, wrong: &str) -> String {
    format!("annotation {name}: {value:?} is {wrong}; the annotation is ignored")
}
