//! Resource transformations: turns requests into quota usage by excluding and replacing resources
//! (kueue v0.19.2 `pkg/workload/workload.go`, `dropExcludedResources` and
//! `applyResourceTransformations`).

use std::collections::BTreeMap;

use super::requests::Requests;
use super::settings::{ResourceRules, TransformationStrategy};
use sluice_api::quantity::Amount;

/// Returns the quota usage of one pod with these requests.
pub(super) fn apply_transformations(requests: Requests, rules: &ResourceRules) -> Requests {
    if rules.exclude_prefixes.is_empty() && rules.transformations.is_empty() {
        return requests;
    }
    let excluded = |resource: &str| rules.exclude_prefixes.iter().any(|prefix| resource.starts_with(prefix.as_str()));
    let kept: Vec<(&str, Amount)> = requests.iter().filter(|(resource, _)| !excluded(resource)).collect();
    let amount_of =
        |name: &str| kept.iter().find(|(resource, _)| *resource == name).map_or(Amount::ZERO, |(_, amount)| *amount);
    let mut charged: BTreeMap<String, Amount> = BTreeMap::new();
    let mut add = |resource: &str, amount: Amount| {
        let sum = charged.entry(resource.to_owned()).or_default();
        *sum = sum.plus(amount);
    };
    for (resource, amount) in &kept {
        let Some(rule) = rules.transformations.iter().find(|rule| rule.input == *resource) else {
            add(resource, *amount);
            continue;
        };
        let mut units = whole_units(resource, *amount);
        if let Some(by) = &rule.multiply_by {
            units = units.saturating_mul(whole_units(by, amount_of(by)));
        }
        for (output, quantity) in &rule.outputs {
            // The quantity was validated when the configuration was read.
            let each = Amount::from_quantity(output, quantity).unwrap_or(Amount::MAX);
            add(output, each.times(units));
        }
        if rule.strategy == TransformationStrategy::Retain {
            add(resource, *amount);
        }
    }
    charged.into_iter().collect()
}

/// Returns the amount in whole units, rounded up: CPUs rather than milli-CPU.
fn whole_units(resource: &str, amount: Amount) -> i64 {
    let milli = if resource == "cpu" { 1000 } else { 1 };
    amount.get().div_euclid(milli) + i64::from(amount.get().rem_euclid(milli) != 0)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::settings::Transformation;
    use sluice_api::quantity::Quantity;

    fn rules(strategy: TransformationStrategy, multiply_by: Option<&str>) -> ResourceRules {
        let outputs =
            [("credits".to_owned(), Quantity("2".to_owned())), ("memory".to_owned(), Quantity("5Gi".to_owned()))];
        ResourceRules {
            exclude_prefixes: vec!["example.com/".to_owned()],
            transformations: vec![Transformation {
                input: "mig".to_owned(),
                strategy,
                multiply_by: multiply_by.map(str::to_owned),
                outputs: outputs.into_iter().collect(),
            }],
            ..ResourceRules::default()
        }
    }

    const GI: i64 = 1 << 30;

    #[rstest]
    #[case::replaced(TransformationStrategy::Replace, None, &[("cpu", 1500), ("credits", 6), ("memory", 16 * GI)])]
    #[case::retained(TransformationStrategy::Retain, None, &[("cpu", 1500), ("credits", 6), ("memory", 16 * GI), ("mig", 3)])]
    #[case::multiplied(TransformationStrategy::Replace, Some("cpu"), &[("cpu", 1500), ("credits", 12), ("memory", 31 * GI)])]
    #[case::multiplied_by_nothing(TransformationStrategy::Replace, Some("gpu"), &[("cpu", 1500), ("memory", GI)])]
    fn resource_is_transformed_into_its_outputs(
        #[case] strategy: TransformationStrategy,
        #[case] multiply_by: Option<&str>,
        #[case] expected: &[(&str, i64)],
    ) {
        let list = |list: &[(&str, i64)]| -> Requests {
            list.iter().map(|(name, units)| ((*name).to_owned(), Amount::new(*units))).collect()
        };
        let asked = list(&[("cpu", 1500), ("memory", GI), ("mig", 3), ("example.com/nic", 1)]);
        assert_eq!(apply_transformations(asked, &rules(strategy, multiply_by)), list(expected));
    }
}
