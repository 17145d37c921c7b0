//! Matching of label selectors.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// Returns whether the labels match the selector. No selector matches nothing, an empty one matches
/// everything.
///
/// # Errors
/// Returns a message that names the operator, if it is not one of In, NotIn, Exists and
/// DoesNotExist.
pub fn matches(selector: Option<&LabelSelector>, labels: &BTreeMap<String, String>) -> Result<bool, String> {
    let Some(selector) = selector else { return Ok(false) };
    let equal = selector.match_labels.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    let mut all = equal;
    for requirement in selector.match_expressions.iter().flatten() {
        let value = labels.get(&requirement.key);
        let listed = value.is_some_and(|value| requirement.values.iter().flatten().any(|listed| listed == value));
        all &= match requirement.operator.as_str() {
            "In" => listed,
            "NotIn" => !listed,
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            other => return Err(format!("operator {other:?} is not one of In, NotIn, Exists and DoesNotExist")),
        };
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case::none(Value::Null, false)]
    #[case::empty(json!({}), true)]
    #[case::equal(json!({"matchLabels": {"team": "a"}}), true)]
    #[case::unequal(json!({"matchLabels": {"team": "b"}}), false)]
    #[case::within(json!({"matchExpressions": [{"key": "team", "operator": "In", "values": ["a", "b"]}]}), true)]
    #[case::not_within(json!({"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["a"]}]}), false)]
    #[case::absent_is_not_within(json!({"matchExpressions": [{"key": "env", "operator": "NotIn", "values": ["a"]}]}), true)]
    #[case::exists(json!({"matchExpressions": [{"key": "team", "operator": "Exists"}]}), true)]
    #[case::does_not_exist(json!({"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}), false)]
    #[case::all_must_hold(json!({"matchLabels": {"team": "a"}, "matchExpressions": [{"key": "env", "operator": "Exists"}]}), false)]
    fn selector_matches_labels(#[case] selector: Value, #[case] expected: bool) {
        let selector: Option<LabelSelector> = serde_json::from_value(selector).expect("a selector");
        let labels = BTreeMap::from([("team".to_owned(), "a".to_owned())]);
        assert_eq!(matches(selector.as_ref(), &labels), Ok(expected));
    }
}
