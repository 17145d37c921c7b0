//! Comparison of tolerations by meaning.

use k8s_openapi::api::core::v1::Toleration;

/// Operator of a toleration without one (Kubernetes 1.36 `api/core/v1/types.go`, `Toleration`).
const DEFAULT_OPERATOR: &str = "Equal";

/// Reports whether two tolerations tolerate the same taints, in whatever notation (kueue v0.19.2
/// `pkg/util/tolerations/tolerations.go`, `Equal`). Like there, `tolerationSeconds` is not compared:
/// it limits how long a taint is tolerated.
pub fn is_same(one: &Toleration, other: &Toleration) -> bool {
    normalized(one) == normalized(other)
}

/// Returns key, operator, value and effect. An empty string is an absent field.
fn normalized(toleration: &Toleration) -> [&str; 4] {
    let Toleration { key, operator, value, effect, toleration_seconds: _ } = toleration;
    let [key, operator, value, effect] =
        [key, operator, value, effect].map(|field| field.as_deref().unwrap_or_default());
    [key, if operator.is_empty() { DEFAULT_OPERATOR } else { operator }, value, effect]
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case::explicit_operator(json!({"key": "gpu", "operator": "Equal", "value": "a"}), true)]
    #[case::empty_operator(json!({"key": "gpu", "operator": "", "value": "a"}), true)]
    #[case::empty_effect(json!({"key": "gpu", "value": "a", "effect": ""}), true)]
    #[case::limited_time(json!({"key": "gpu", "value": "a", "tolerationSeconds": 300}), true)]
    #[case::any_value(json!({"key": "gpu", "operator": "Exists"}), false)]
    #[case::another_operator(json!({"key": "gpu", "operator": "Lt", "value": "a"}), false)]
    #[case::another_key(json!({"key": "tpu", "value": "a"}), false)]
    #[case::another_value(json!({"key": "gpu", "value": "b"}), false)]
    #[case::one_effect(json!({"key": "gpu", "value": "a", "effect": "NoSchedule"}), false)]
    fn tolerations_are_compared_by_meaning(#[case] other: Value, #[case] expected: bool) {
        let parse = |value: Value| serde_json::from_value::<Toleration>(value).expect("a toleration");
        let (one, other) = (parse(json!({"key": "gpu", "value": "a"})), parse(other));

        assert_eq!((is_same(&one, &other), is_same(&other, &one)), (expected, expected));
    }
}
