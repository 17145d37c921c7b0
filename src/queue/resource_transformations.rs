//! Resource transformations: turns requests into quota usage by excluding and replacing resources
//! (kueue v0.19.2 `pkg/workload/workload.go`, `dropExcludedResources` and
//! `applyResourceTransformations`).
//!
//! Two rules differ, so that no request makes a pod cheaper than its devices: a resource that is
//! excluded is not charged, but is still transformed and still multiplies others
//! (kubernetes-sigs/kueue#15954); and amounts are multiplied exactly, and rounded up once, at the
//! end.

use std::collections::BTreeMap;

use super::requests::Requests;
use super::settings::{ResourceRules, Transformation, TransformationStrategy};
use sluice_api::quantity::{Amount, Exact, Quantity};

/// Quotient of a unit of most resources and the unit in which a product of an input, a multiplier and
/// an output is exact: the first two are multiples of a thousandth, and the third of a billionth.
const SCALE: i128 = 1_000 * 1_000 * 1_000_000_000;

/// Returns the quota usage of one pod with these requests.
pub(super) fn apply_transformations(requests: Requests, rules: &ResourceRules) -> Requests {
    if rules.exclude_prefixes.is_empty() && rules.transformations.is_empty() {
        return requests;
    }
    let is_excluded = |resource: &str| rules.exclude_prefixes.iter().any(|prefix| resource.starts_with(prefix));
    let mut charged = ExactUsage::default();
    for (resource, amount) in requests.iter() {
        let rule = rules.transformations.iter().find(|rule| rule.input == resource);
        if let Some(rule) = rule {
            charged.add_outputs(rule, amount, &requests);
        }
        let is_kept = rule.is_none_or(|rule| rule.strategy == TransformationStrategy::Retain);
        if is_kept && !is_excluded(resource) {
            charged.add(resource, thousandths(resource, amount).saturating_mul(SCALE / 1_000));
        }
    }
    charged.into_requests()
}

/// Exact usage by resource, in units divided by [`SCALE`], saturating.
#[derive(Default)]
struct ExactUsage(BTreeMap<String, i128>);

impl ExactUsage {
    /// Adds what `amount` of the input of `rule` is transformed into. A multiplier that the pod does
    /// not request multiplies by one.
    fn add_outputs(&mut self, rule: &Transformation, amount: Amount, requests: &Requests) {
        let multiplier = rule.multiply_by.as_ref().map(|by| thousandths(by, requests.get(by)));
        let multiplier = multiplier.filter(|multiplier| *multiplier != 0).unwrap_or(1_000);
        let factor = thousandths(&rule.input, amount).saturating_mul(multiplier);
        for (output, each) in &rule.outputs {
            self.add(output, factor.saturating_mul(billionths(each)));
        }
    }

    fn add(&mut self, resource: &str, exact: i128) {
        let sum = self.0.entry(resource.to_owned()).or_default();
        *sum = sum.saturating_add(exact);
    }

    /// Returns the usage, each amount rounded up.
    fn into_requests(self) -> Requests {
        let round_up = |(resource, exact): (String, i128)| {
            let step = SCALE / 1_000 * thousandths_per_unit(&resource);
            let steps = exact.div_euclid(step) + i128::from(exact.rem_euclid(step) != 0);
            (resource, i64::try_from(steps).map_or(Amount::MAX, Amount::new))
        };
        self.0.into_iter().map(round_up).collect()
    }
}

/// Returns the number of thousandths in the unit of an [`Amount`] of a resource.
fn thousandths_per_unit(resource: &str) -> i128 {
    if resource == "cpu" { 1 } else { 1_000 }
}

fn thousandths(resource: &str, amount: Amount) -> i128 {
    i128::from(amount.get()) * thousandths_per_unit(resource)
}

/// Returns an amount in billionths. It was validated when the configuration was read.
fn billionths(amount: &Quantity) -> i128 {
    Exact::parse_non_negative(&amount.0).map_or(i128::MAX, Exact::nano)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    const GI: i64 = 1 << 30;

    fn rule(strategy: TransformationStrategy, multiply_by: Option<&str>, outputs: &[(&str, &str)]) -> Transformation {
        let quantity = |(name, amount): &(&str, &str)| ((*name).to_owned(), Quantity((*amount).to_owned()));
        Transformation {
            input: "mig".to_owned(),
            strategy,
            multiply_by: multiply_by.map(str::to_owned),
            outputs: outputs.iter().map(quantity).collect(),
        }
    }

    fn rules(excluded: &[&str], rule: Transformation) -> ResourceRules {
        let exclude_prefixes = excluded.iter().map(|prefix| (*prefix).to_owned()).collect();
        ResourceRules { exclude_prefixes, transformations: vec![rule], ..ResourceRules::default() }
    }

    fn requests<'a>(amounts: impl IntoIterator<Item = &'a (&'a str, i64)>) -> Requests {
        amounts.into_iter().map(|(name, units)| ((*name).to_owned(), Amount::new(*units))).collect()
    }

    use TransformationStrategy::{Replace, Retain};

    #[rstest]
    #[case::replaced(Replace, None, &[("cpu", 1500), ("credits", 6), ("memory", 16 * GI)])]
    #[case::retained(Retain, None, &[("cpu", 1500), ("credits", 6), ("memory", 16 * GI), ("mig", 3)])]
    #[case::multiplied_exactly(Replace, Some("cpu"), &[("cpu", 1500), ("credits", 9), ("memory", 47 * GI / 2)])]
    #[case::multiplied_by_an_excluded_resource(Replace, Some("example.com/nic"), &[("cpu", 1500), ("credits", 24), ("memory", 61 * GI)])]
    #[case::multiplied_by_a_resource_that_is_not_requested(Replace, Some("gpu"), &[("cpu", 1500), ("credits", 6), ("memory", 16 * GI)])]
    fn resource_is_transformed_into_its_outputs(
        #[case] strategy: TransformationStrategy,
        #[case] multiply_by: Option<&str>,
        #[case] expected: &[(&str, i64)],
    ) {
        let outputs = [("credits", "2"), ("memory", "5Gi")];
        let asked = requests(&[("cpu", 1500), ("memory", GI), ("mig", 3), ("example.com/nic", 4)]);

        let charged = apply_transformations(asked, &rules(&["example.com/"], rule(strategy, multiply_by, &outputs)));

        assert_eq!(charged, requests(expected));
    }

    #[rstest]
    #[case::excluded_input(&["mig"], Retain, ("credits", "1"), ("credits", 3))]
    #[case::fraction_is_rounded_up_once(&[], Replace, ("credits", "500m"), ("credits", 2))]
    #[case::cpu_is_exact_to_a_milli(&[], Replace, ("cpu", "333m"), ("cpu", 999))]
    fn output_is_charged(
        #[case] excluded: &[&str],
        #[case] strategy: TransformationStrategy,
        #[case] output: (&str, &str),
        #[case] expected: (&str, i64),
    ) {
        let charged = apply_transformations(requests(&[("mig", 3)]), &rules(excluded, rule(strategy, None, &[output])));

        assert_eq!(charged, requests(&[expected]));
    }

    #[test]
    fn sum_of_fractions_is_rounded_up_once() {
        let half =
            |input: &str| Transformation { input: input.to_owned(), ..rule(Replace, None, &[("credits", "500m")]) };
        let rules = ResourceRules { transformations: vec![half("a"), half("b")], ..ResourceRules::default() };

        assert_eq!(apply_transformations(requests(&[("a", 1), ("b", 1)]), &rules), requests(&[("credits", 1)]));
    }

    #[test]
    fn product_beyond_64_bits_saturates() {
        let asked = requests(&[("mig", i64::MAX), ("gpu", i64::MAX)]);

        let charged = apply_transformations(asked, &rules(&[], rule(Replace, Some("gpu"), &[("credits", "1E")])));

        assert_eq!(charged.get("credits"), Amount::MAX);
    }

    proptest! {
        /// No resource that a pod leaves out, and no prefix that is excluded, makes its devices free.
        #[test]
        fn transformed_resource_is_never_free(
            devices in 1_i64..1000, factor in 0_i64..1000, cpu in 0_i64..10_000, each in 1_i64..5000,
            excludes_input: bool, excludes_multiplier: bool,
        ) {
            let excluded: Vec<&str> =
                [(excludes_input, "mig"), (excludes_multiplier, "gpu")].iter().filter(|(is, _)| *is).map(|(_, name)| *name).collect();
            let each = format!("{each}m");
            let asked = requests(&[("mig", devices), ("gpu", factor), ("cpu", cpu)]);

            let charged = apply_transformations(asked, &rules(&excluded, rule(Replace, Some("gpu"), &[("credits", &each)])));

            let without = apply_transformations(requests(&[("mig", devices)]), &rules(&excluded, rule(Replace, None, &[("credits", &each)])));
            prop_assert!(charged.get("credits") >= without.get("credits"));
            prop_assert!(without.get("credits") > Amount::ZERO);
            prop_assert_eq!(charged.get("cpu"), Amount::new(cpu));
        }
    }
}
