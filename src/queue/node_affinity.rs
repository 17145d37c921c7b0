//! Matches the node constraints of pods against the nodes of a ResourceFlavor.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Taint, Toleration};
use serde::Deserialize;

use super::requests::null_is_default;
use sluice_api::kueue::{PodTemplate, ResourceFlavorSpec};

/// The node selector, tolerations and required node affinity of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct NodeRequirements {
    #[serde(deserialize_with = "null_is_default")]
    node_selector: BTreeMap<String, String>,
    #[serde(deserialize_with = "null_is_default")]
    tolerations: Vec<ParsedToleration>,
    #[serde(deserialize_with = "null_is_default")]
    affinity: Affinity,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(default)]
struct ParsedToleration {
    key: Option<String>,
    operator: Option<String>,
    value: Option<String>,
    effect: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Affinity {
    #[serde(deserialize_with = "null_is_default")]
    node_affinity: NodeAffinity,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeAffinity {
    required_during_scheduling_ignored_during_execution: Option<NodeSelectorTerms>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeSelectorTerms {
    node_selector_terms: Vec<NodeSelectorTerm>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeSelectorTerm {
    #[serde(deserialize_with = "null_is_default")]
    match_expressions: Vec<NodeSelectorRequirement>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(default)]
struct NodeSelectorRequirement {
    key: String,
    operator: String,
    #[serde(deserialize_with = "null_is_default")]
    values: Vec<String>,
}

impl NodeRequirements {
    /// Parses the node constraints of a pod template.
    ///
    /// # Errors
    /// The template does not have the schema of a pod template.
    pub(super) fn from_template(template: &PodTemplate) -> Result<Self, serde_json::Error> {
        template.decode_spec()
    }

    /// Returns the reason that the nodes of `flavor` do not match, or `None` if they match. Only the
    /// label keys of the flavor itself are compared: its nodes may have any other label (kueue v0.19.0
    /// `pkg/scheduler/flavorassigner`, kubernetes-sigs/kueue#12449).
    pub(super) fn mismatch(&self, flavor: &ResourceFlavorSpec) -> Option<String> {
        let untolerated = flavor.node_taints.iter().find(|taint| !self.tolerates(taint, flavor));
        if let Some(taint) = untolerated {
            let value = taint.value.as_deref().map(|value| format!("={value}")).unwrap_or_default();
            return Some(format!("untolerated taint {}{value}:{}", taint.key, taint.effect));
        }
        let required = &self.affinity.node_affinity.required_during_scheduling_ignored_during_execution;
        let differs = |key: &String, value: &String| flavor.node_labels.get(key).is_some_and(|label| label != value);
        let mismatched = self.node_selector.iter().find(|(key, value)| differs(key, value));
        if let Some((key, value)) = mismatched {
            return Some(format!("its nodes lack the label {key}={value} that nodeSelector requires"));
        }
        let terms = required.as_ref()?;
        let matching = |term: &NodeSelectorTerm| {
            let known = |expression: &&NodeSelectorRequirement| flavor.node_labels.contains_key(&expression.key);
            let mut known = term.match_expressions.iter().filter(known);
            known.all(|expression| expression.matches(&flavor.node_labels))
        };
        (!terms.node_selector_terms.iter().any(matching))
            .then(|| "its nodes don't match the required node affinity".to_owned())
    }

    fn tolerates(&self, taint: &Taint, flavor: &ResourceFlavorSpec) -> bool {
        taint.effect == "PreferNoSchedule"
            || self.tolerations.iter().any(|toleration| toleration.tolerates(taint))
            || flavor.tolerations.iter().any(|toleration| ParsedToleration::from_api(toleration).tolerates(taint))
    }
}

impl ParsedToleration {
    fn from_api(toleration: &Toleration) -> Self {
        Self {
            key: toleration.key.clone(),
            operator: toleration.operator.clone(),
            value: toleration.value.clone(),
            effect: toleration.effect.clone(),
        }
    }

    /// Matches as in Kubernetes: an empty key with Exists tolerates every taint, an empty effect
    /// matches every effect.
    fn tolerates(&self, taint: &Taint) -> bool {
        let non_empty = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let same_effect = non_empty(&self.effect).is_none_or(|effect| effect == taint.effect);
        let same_key = non_empty(&self.key).is_none_or(|key| key == taint.key);
        let same_value = match non_empty(&self.operator).as_deref() {
            Some("Exists") => true,
            None | Some("Equal") => non_empty(&self.key).is_some() && non_empty(&self.value) == non_empty(&taint.value),
            Some(_) => false,
        };
        same_effect && same_key && same_value
    }
}

impl NodeSelectorRequirement {
    fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key);
        let listed = value.is_some_and(|value| self.values.contains(value));
        let number = value.and_then(|value| value.parse::<i64>().ok());
        let bound = self.values.first().and_then(|bound| bound.parse::<i64>().ok());
        match self.operator.as_str() {
            "In" => listed,
            "NotIn" => !listed,
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            "Gt" => number.zip(bound).is_some_and(|(number, bound)| number > bound),
            "Lt" => number.zip(bound).is_some_and(|(number, bound)| number < bound),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    const TAINT: &str = "untolerated taint gpu=yes:NoSchedule";
    const AFFINITY: &str = "its nodes don't match the required node affinity";

    fn required(expressions: &Value) -> Value {
        let terms = json!({"nodeSelectorTerms": [{"matchExpressions": expressions}]});
        let node_affinity = json!({"requiredDuringSchedulingIgnoredDuringExecution": terms});
        json!({"tolerations": [{"operator": "Exists"}], "affinity": {"nodeAffinity": node_affinity}})
    }

    #[rstest]
    #[case::no_tolerations(json!({}), Some(TAINT))]
    #[case::explicit_nulls(json!({"tolerations": null, "nodeSelector": null, "affinity": null}), Some(TAINT))]
    #[case::tolerated(json!({"tolerations": [{"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}]}), None)]
    #[case::tolerated_by_key(json!({"tolerations": [{"key": "gpu", "operator": "Exists"}]}), None)]
    #[case::tolerates_everything(json!({"tolerations": [{"operator": "Exists"}]}), None)]
    #[case::different_value(json!({"tolerations": [{"key": "gpu", "value": "no"}]}), Some(TAINT))]
    #[case::different_effect(json!({"tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoExecute"}]}), Some(TAINT))]
    #[case::selects_matching_label(json!({"tolerations": [{"operator": "Exists"}], "nodeSelector": {"pool": "a100", "zone": "x"}}), None)]
    #[case::selects_different_value(
        json!({"tolerations": [{"operator": "Exists"}], "nodeSelector": {"pool": "t4"}}),
        Some("its nodes lack the label pool=t4 that nodeSelector requires")
    )]
    #[case::in_affinity(required(&json!([{"key": "pool", "operator": "In", "values": ["a100"]}])), None)]
    #[case::not_in_affinity(required(&json!([{"key": "pool", "operator": "NotIn", "values": ["a100"]}])), Some(AFFINITY))]
    #[case::selects_key_of_another_flavor(json!({"tolerations": [{"operator": "Exists"}], "nodeSelector": {"tier": "premium"}}), None)]
    #[case::key_of_another_flavor(required(&json!([{"key": "tier", "operator": "In", "values": ["premium"]}])), None)]
    #[case::key_that_must_exist_of_another_flavor(required(&json!([{"key": "spot", "operator": "Exists"}])), None)]
    #[case::key_of_another_flavor_and_wrong_pool(
        required(&json!([{"key": "tier", "operator": "Exists"}, {"key": "pool", "operator": "In", "values": ["t4"]}])),
        Some(AFFINITY)
    )]
    #[case::greater(required(&json!([{"key": "generation", "operator": "Gt", "values": ["7"]}])), None)]
    #[case::less(required(&json!([{"key": "generation", "operator": "Lt", "values": ["7"]}])), Some(AFFINITY))]
    fn node_requirements_match_flavor(#[case] spec: Value, #[case] expected: Option<&str>) {
        let flavor: ResourceFlavorSpec = serde_json::from_value(json!({
            "nodeLabels": {"pool": "a100", "generation": "8"},
            "nodeTaints": [
                {"key": "gpu", "value": "yes", "effect": "NoSchedule"},
                {"key": "slow", "effect": "PreferNoSchedule"},
                {"key": "own", "effect": "NoExecute"},
            ],
            "tolerations": [{"key": "own", "operator": "Exists"}],
        }))
        .expect("a flavor");
        let placement = NodeRequirements::from_template(&PodTemplate::from(json!({"spec": spec}))).expect("a pod spec");
        assert_eq!(placement.mismatch(&flavor).as_deref(), expected);
    }
}
