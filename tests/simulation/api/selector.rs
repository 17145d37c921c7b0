//! Label and field selectors of lists and watches.

use serde_json::Value;

use super::kinds::ResourceKind;
use super::object_meta;
use super::status_error::StatusError;

/// Parsed label and field selector; the default selects everything.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Selector {
    labels: Vec<LabelRequirement>,
    fields: Vec<FieldRequirement>,
}

/// Requirement of a label selector.
#[derive(Debug, Clone, PartialEq)]
enum LabelRequirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    DoesNotExist(String),
}

/// Requirement of a field selector: JSON pointer, value, and whether the field must equal it or
/// differ.
#[derive(Debug, Clone, PartialEq)]
struct FieldRequirement {
    pointer: String,
    value: String,
    is_equal: bool,
}

/// Selectable fields of pods in addition to name and namespace.
const SELECTABLE_POD_FIELDS: [&str; 6] = [
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "status.phase",
    "status.podIP",
];

impl Selector {
    /// Parses both selectors of a request; an empty string selects everything.
    ///
    /// # Errors
    /// Returns an error if a selector is malformed or names a field that is not selectable for the
    /// kind.
    pub fn parse(kind: &ResourceKind, labels: &str, fields: &str) -> Result<Self, StatusError> {
        let labels = split_requirements(labels).into_iter().map(parse_label_requirement).collect::<Result<_, _>>()?;
        let fields = fields.split(',').filter(|term| !term.is_empty());
        Ok(Self { labels, fields: fields.map(|term| parse_field_requirement(kind, term)).collect::<Result<_, _>>()? })
    }

    /// Returns true if an object is selected.
    pub fn matches(&self, object: &Value) -> bool {
        let labels = object_meta::metadata(object).and_then(|metadata| metadata.get("labels"));
        let label = |key: &str| labels.and_then(|labels| labels.get(key)).and_then(Value::as_str);
        let by_label = self.labels.iter().all(|requirement| match requirement {
            LabelRequirement::In(key, values) => {
                label(key).is_some_and(|value| values.iter().any(|allowed| allowed == value))
            }
            LabelRequirement::NotIn(key, values) => {
                !label(key).is_some_and(|value| values.iter().any(|allowed| allowed == value))
            }
            LabelRequirement::Exists(key) => label(key).is_some(),
            LabelRequirement::DoesNotExist(key) => label(key).is_none(),
        });
        let field = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        by_label && self.fields.iter().all(|term| (field(&term.pointer) == term.value) == term.is_equal)
    }
}

/// Splits a label selector at the commas outside of parentheses.
fn split_requirements(text: &str) -> Vec<&str> {
    let mut depth = 0;
    let parts = text.split(|character| {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        character == ',' && depth == 0
    });
    parts.map(str::trim).filter(|term| !term.is_empty()).collect()
}

fn parse_label_requirement(term: &str) -> Result<LabelRequirement, StatusError> {
    let unreadable = || StatusError::bad_request(format!("unable to parse requirement: {term}"));
    if let Some(key) = term.strip_prefix('!') {
        return Ok(LabelRequirement::DoesNotExist(key.trim().to_owned()));
    }
    if let Some(list) = term.strip_suffix(')') {
        let (head, values) = list.split_once('(').ok_or_else(unreadable)?;
        let values = values.split(',').map(|value| value.trim().to_owned()).collect();
        return match head.split_whitespace().collect::<Vec<_>>().as_slice() {
            [key, "in"] => Ok(LabelRequirement::In((*key).to_owned(), values)),
            [key, "notin"] => Ok(LabelRequirement::NotIn((*key).to_owned(), values)),
            _ => Err(unreadable()),
        };
    }
    let (key, value, equal) = match term.split_once('=') {
        None if term.contains(char::is_whitespace) => return Err(unreadable()),
        None => return Ok(LabelRequirement::Exists(term.to_owned())),
        Some((key, value)) => (key.trim_end_matches('!'), value.trim_start_matches('='), !key.ends_with('!')),
    };
    let (key, values) = (key.trim().to_owned(), vec![value.trim().to_owned()]);
    Ok(if equal { LabelRequirement::In(key, values) } else { LabelRequirement::NotIn(key, values) })
}

fn parse_field_requirement(kind: &ResourceKind, term: &str) -> Result<FieldRequirement, StatusError> {
    let (field, value) = term
        .split_once('=')
        .ok_or_else(|| StatusError::bad_request(format!("invalid selector: '{term}'; can't understand '{term}'")))?;
    let (field, equal) = (field.trim_end_matches('!'), !field.ends_with('!'));
    let known = field == "metadata.name"
        || (field == "metadata.namespace" && kind.namespaced)
        || (kind.kind == "Pod" && SELECTABLE_POD_FIELDS.contains(&field));
    if !known {
        let message = if kind.is_custom() {
            format!("field label not supported: {field}")
        } else {
            format!("\"{field}\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
        };
        return Err(StatusError::bad_request(message));
    }
    let pointer = format!("/{}", field.replace('.', "/"));
    Ok(FieldRequirement { pointer, value: value.trim_start_matches('=').to_owned(), is_equal: equal })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::super::kinds;
    use super::*;

    #[rstest]
    #[case::everything("", true)]
    #[case::exists("ray.io/cluster", true)]
    #[case::does_not_exist("!ray.io/cluster", false)]
    #[case::equal("ray.io/cluster=a", true)]
    #[case::double_equals("ray.io/cluster==a", true)]
    #[case::different_value("ray.io/cluster=b", false)]
    #[case::unequal("ray.io/cluster!=b", true)]
    #[case::unequal_and_label_missing("other!=b", true)]
    #[case::one_of("ray.io/cluster in (a, b),app", true)]
    #[case::none_of("ray.io/cluster notin (a,b)", false)]
    #[case::all_terms("ray.io/cluster=a,app=y", false)]
    fn label_selector_matches(#[case] text: &str, #[case] expected: bool) {
        let pod = json!({"metadata": {"name": "p", "labels": {"ray.io/cluster": "a", "app": "x"}}});
        let selector = Selector::parse(kinds::by_name("Pod"), text, "").expect("a selector");
        assert_eq!(selector.matches(&pod), expected);
    }

    #[rstest]
    #[case::by_name("metadata.name=p", true)]
    #[case::by_another_name("metadata.name=q", false)]
    #[case::by_phase("status.phase!=Running,metadata.namespace=ns", true)]
    fn field_selector_matches(#[case] text: &str, #[case] expected: bool) {
        let pod = json!({"metadata": {"name": "p", "namespace": "ns"}, "status": {"phase": "Pending"}});
        assert_eq!(Selector::parse(kinds::by_name("Pod"), "", text).expect("a selector").matches(&pod), expected);
    }

    #[test]
    fn custom_kind_is_selectable_by_metadata_only() {
        let error = Selector::parse(kinds::by_name("RayCluster"), "", "status.state=ready").expect_err("an error");
        assert_eq!((error.code, error.message.as_str()), (400, "field label not supported: status.state"));
    }
}
