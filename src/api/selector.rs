//! Label selectors, parsed once.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube_core::{Expression, SelectorExt};
use serde::Deserialize;

/// A valid label selector. An empty one matches everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "LabelSelector")]
pub struct Selector(Vec<Expression>);

/// Error for a requirement whose operator does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("operator {operator:?} is not one of In, NotIn, Exists and DoesNotExist")]
pub struct UnknownOperator {
    /// The operator as written.
    pub operator: String,
}

impl Selector {
    /// Returns true if the labels match.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.0.iter().all(|requirement| requirement.matches(labels))
    }

    /// Iterates over the keys of the labels that the selector depends on, with repetitions.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|requirement| match requirement {
            Expression::In(key, _)
            | Expression::NotIn(key, _)
            | Expression::Equal(key, _)
            | Expression::NotEqual(key, _)
            | Expression::Exists(key)
            | Expression::DoesNotExist(key) => key.as_str(),
        })
    }
}

impl FromIterator<Expression> for Selector {
    fn from_iter<I: IntoIterator<Item = Expression>>(requirements: I) -> Self {
        Self(requirements.into_iter().collect())
    }
}

impl TryFrom<LabelSelector> for Selector {
    type Error = UnknownOperator;

    fn try_from(selector: LabelSelector) -> Result<Self, UnknownOperator> {
        let equal = selector.match_labels.into_iter().flatten().map(|(key, value)| Ok(Expression::Equal(key, value)));
        equal.chain(selector.match_expressions.into_iter().flatten().map(parse_requirement)).collect()
    }
}

/// Parses a requirement. Unlike the conversion in kube, takes absent values for an empty list, and names
/// an operator that does not exist.
fn parse_requirement(requirement: LabelSelectorRequirement) -> Result<Expression, UnknownOperator> {
    let LabelSelectorRequirement { key, operator, values } = requirement;
    let values = values.into_iter().flatten().collect();
    match operator.as_str() {
        "In" => Ok(Expression::In(key, values)),
        "NotIn" => Ok(Expression::NotIn(key, values)),
        "Exists" => Ok(Expression::Exists(key)),
        "DoesNotExist" => Ok(Expression::DoesNotExist(key)),
        _ => Err(UnknownOperator { operator }),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case::empty(json!({}), true)]
    #[case::equal(json!({"matchLabels": {"team": "a"}}), true)]
    #[case::unequal(json!({"matchLabels": {"team": "b"}}), false)]
    #[case::within(json!({"matchExpressions": [{"key": "team", "operator": "In", "values": ["a", "b"]}]}), true)]
    #[case::not_within(json!({"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["a"]}]}), false)]
    #[case::absent_is_not_within(json!({"matchExpressions": [{"key": "env", "operator": "NotIn", "values": ["a"]}]}), true)]
    #[case::within_nothing(json!({"matchExpressions": [{"key": "team", "operator": "In"}]}), false)]
    #[case::not_within_nothing(json!({"matchExpressions": [{"key": "team", "operator": "NotIn"}]}), true)]
    #[case::exists(json!({"matchExpressions": [{"key": "team", "operator": "Exists"}]}), true)]
    #[case::does_not_exist(json!({"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}), false)]
    #[case::all_must_hold(json!({"matchLabels": {"team": "a"}, "matchExpressions": [{"key": "env", "operator": "Exists"}]}), false)]
    fn selector_matches_labels(#[case] selector: Value, #[case] expected: bool) {
        let selector: Selector = serde_json::from_value(selector).expect("a selector");
        let labels = BTreeMap::from([("team".to_owned(), "a".to_owned())]);
        assert_eq!(selector.matches(&labels), expected);
    }

    #[test]
    fn unknown_operator_is_named() {
        let selector = json!({"matchLabels": {"team": "a"}, "matchExpressions": [{"key": "a", "operator": "Like"}]});
        let error = serde_json::from_value::<Selector>(selector).expect_err("an unknown operator").to_string();
        assert_eq!(error, "operator \"Like\" is not one of In, NotIn, Exists and DoesNotExist");
    }

    #[test]
    fn keys_are_those_of_labels_and_requirements() {
        let selector =
            json!({"matchLabels": {"team": "a"}, "matchExpressions": [{"key": "env", "operator": "Exists"}]});
        let selector: Selector = serde_json::from_value(selector).expect("a selector");
        assert_eq!(selector.keys().collect::<Vec<_>>(), ["team", "env"]);
    }
}
