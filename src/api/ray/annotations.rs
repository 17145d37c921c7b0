//! How annotations are read that owners set.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// What an annotation says, if it is there.
pub(super) fn annotation<'a>(meta: &'a ObjectMeta, name: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(name).map(String::as_str)
}

/// The sentence that names an annotation, its value, and what is wrong with that.
pub(super) fn misread_as(name: &str, value: &str, wrong: &str) -> String {
    format!("annotation {name}: {value:?} is {wrong}, and counts as nothing")
}
