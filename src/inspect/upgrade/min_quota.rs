//! Search for the minimum quota with which an attempt succeeds.

use std::collections::{BTreeMap, BTreeSet};

use sluice_api::quantity::Amount;

/// Number of suggestions that are followed before each amount is searched by itself.
const MAX_SUGGESTIONS: usize = 8;
/// Number of doublings after which more quota is assumed not to help.
const MAX_DOUBLINGS: usize = 40;

/// Flavor and resource of a ClusterQueue.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FlavorResource {
    /// Name of the flavor.
    pub flavor: String,
    /// Name of the resource.
    pub resource: String,
}

/// Amounts by flavor and resource: nominal quota or usage.
pub(super) type FlavorResourceAmounts = BTreeMap<FlavorResource, Amount>;

/// Result of an attempt with some quota.
#[derive(Debug, Clone, Default)]
pub(super) struct Trial {
    /// True if the attempt succeeds.
    pub succeeds: bool,
    /// Quota that it holds after success.
    pub used: FlavorResourceAmounts,
    /// Quota that the pending reason suggests; empty if it isn't pending for quota. An attempt that
    /// succeeds may still suggest quota for further growth.
    pub suggested: FlavorResourceAmounts,
}

/// Returns the minimum quota with which `attempt` succeeds, without the flavors and resources that
/// it doesn't use; None if no quota is sufficient. With one unit less of any amount it fails.
///
/// # Errors
/// Returns the error of `attempt`.
pub(super) fn min_quota<E>(
    given: &FlavorResourceAmounts,
    mut attempt: impl FnMut(&FlavorResourceAmounts) -> Result<Trial, E>,
) -> Result<Option<FlavorResourceAmounts>, E> {
    let mut known: BTreeMap<FlavorResourceAmounts, Trial> = BTreeMap::new();
    let mut attempt = |quota: &FlavorResourceAmounts| match known.get(quota) {
        Some(tried) => Ok(tried.clone()),
        None => attempt(quota).inspect(|tried| drop(known.insert(quota.clone(), tried.clone()))),
    };
    let Some((mut quota, used)) = sufficient_quota(given, &mut attempt)? else { return Ok(None) };
    let places: BTreeSet<FlavorResource> = used.keys().cloned().collect();
    let suggested = suggested_quota(&quota, used, &mut attempt)?;
    let mut with = |quota: &FlavorResourceAmounts, place: &FlavorResource, amount: Amount| {
        let mut quota = quota.clone();
        quota.insert(place.clone(), amount);
        attempt(&quota)
    };
    if let Some(suggested) = suggested {
        quota = suggested;
    } else {
        for place in &places {
            let needed = min_amount(place, amount_of(&quota, place), |amount| with(&quota, place, amount))?;
            quota.insert(place.clone(), needed);
        }
    }
    // Less of one amount may reduce the need for another: a growing workload takes all it can get
    // of both. Repeat until no amount can be reduced by one unit.
    let mut is_least = false;
    while !is_least {
        is_least = true;
        for place in &places {
            let one_less = amount_of(&quota, place).minus(Amount::new(1));
            if one_less >= Amount::ZERO && with(&quota, place, one_less)?.succeeds {
                let needed = min_amount(place, one_less, |amount| with(&quota, place, amount))?;
                quota.insert(place.clone(), needed);
                is_least = false;
            }
        }
    }
    quota.retain(|place, _| places.contains(place));
    Ok(Some(quota))
}

fn amount_of(quota: &FlavorResourceAmounts, place: &FlavorResource) -> Amount {
    quota.get(place).copied().unwrap_or(Amount::ZERO)
}

/// Returns a sufficient quota, at most `most`: what the attempt uses, and what the pending reasons
/// suggest for other jobs. None if these don't lead to one. Each attempt lowers all amounts, so far
/// fewer are needed than for one amount after the other.
fn suggested_quota<E>(
    most: &FlavorResourceAmounts,
    used: FlavorResourceAmounts,
    attempt: &mut impl FnMut(&FlavorResourceAmounts) -> Result<Trial, E>,
) -> Result<Option<FlavorResourceAmounts>, E> {
    let mut quota = most.clone();
    quota.extend(used.into_iter().map(|(place, used)| (place.clone(), used.min(amount_of(most, &place)))));
    for _ in 0..MAX_SUGGESTIONS {
        let tried = attempt(&quota)?;
        if tried.succeeds {
            return Ok(Some(quota));
        }
        let allowed = |place: &FlavorResource, amount: Amount| amount.min(amount_of(most, place));
        let raised = tried.suggested.iter().map(|(place, amount)| (place.clone(), allowed(place, *amount)));
        let raised: FlavorResourceAmounts =
            raised.filter(|(place, amount)| amount_of(&quota, place) < *amount).collect();
        if raised.is_empty() {
            return Ok(None);
        }
        quota.extend(raised);
    }
    Ok(None)
}

/// Returns some sufficient quota, and what is used of it; None if no quota helps.
fn sufficient_quota<E>(
    given: &FlavorResourceAmounts,
    attempt: &mut impl FnMut(&FlavorResourceAmounts) -> Result<Trial, E>,
) -> Result<Option<(FlavorResourceAmounts, FlavorResourceAmounts)>, E> {
    let mut quota = given.clone();
    for _ in 0..MAX_DOUBLINGS {
        let tried = attempt(&quota)?;
        if tried.succeeds {
            return Ok(Some((quota, tried.used)));
        }
        let raised = tried.suggested.iter().filter(|(place, amount)| quota.get(place).is_some_and(|has| has < amount));
        let raised: FlavorResourceAmounts = raised.map(|(place, amount)| (place.clone(), *amount)).collect();
        if raised.is_empty() {
            // Other workloads may be ahead in the queue and take what is added.
            for amount in quota.values_mut() {
                *amount = amount.plus(*amount).max(Amount::new(1));
            }
        } else {
            quota.extend(raised);
        }
    }
    Ok(None)
}

/// Returns the minimum amount of one flavor and resource, at most `most`, which is sufficient.
/// Binary search that first probes suggested amounts.
fn min_amount<E>(
    place: &FlavorResource,
    most: Amount,
    mut attempt: impl FnMut(Amount) -> Result<Trial, E>,
) -> Result<Amount, E> {
    let (mut too_little, mut enough) = (-1, most.get());
    let (mut next, mut is_suggested) = (0, false);
    while too_little + 1 < enough {
        let tried = attempt(Amount::new(next))?;
        let was_suggested = is_suggested;
        is_suggested = false;
        if tried.succeeds {
            enough = next;
        } else {
            too_little = next;
        }
        let middle = too_little + (enough - too_little) / 2;
        let suggested = tried.suggested.get(place).map(|amount| amount.get());
        let is_possible = |amount: &i64| (too_little + 1..enough).contains(amount);
        // A suggestion is usually the minimum. After a wrong one, bisect before following another.
        next = match suggested.filter(|amount| !tried.succeeds && !was_suggested && is_possible(amount)) {
            Some(suggested) => {
                is_suggested = true;
                suggested
            }
            None if tried.succeeds && was_suggested => enough - 1,
            None => middle,
        };
        next = next.max(too_little + 1);
    }
    Ok(Amount::new(enough))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    fn place(flavor: &str) -> FlavorResource {
        FlavorResource { flavor: flavor.to_owned(), resource: "nvidia.com/gpu".to_owned() }
    }

    fn quota<const N: usize>(amounts: [(&str, i64); N]) -> FlavorResourceAmounts {
        amounts.into_iter().map(|(flavor, amount)| (place(flavor), Amount::new(amount))).collect()
    }

    /// Returns an attempt that succeeds with `needed`, of which it uses all but `others` of each, and
    /// suggests `suggest(needed)` otherwise.
    fn needing(
        needed: &FlavorResourceAmounts,
        others: i64,
        suggest: impl Fn(Amount) -> Option<Amount>,
    ) -> impl FnMut(&FlavorResourceAmounts) -> Result<Trial, Infallible> {
        let used = |amount: &Amount| amount.minus(Amount::new(others)).max(Amount::ZERO);
        let used: FlavorResourceAmounts = needed.iter().map(|(place, amount)| (place.clone(), used(amount))).collect();
        move |quota| {
            let deficits = needed.iter().filter(|(place, amount)| quota.get(place).is_none_or(|has| has < amount));
            let suggested = deficits.clone().filter_map(|(place, amount)| Some((place.clone(), suggest(*amount)?)));
            Ok(Trial { succeeds: deficits.clone().count() == 0, suggested: suggested.collect(), used: used.clone() })
        }
    }

    proptest! {
        #[test]
        fn minimum_is_found_from_any_quota_and_any_suggestion(
            a in 0_i64..1 << 40, b in 0_i64..100, has_a in 0_i64..1 << 41, has_b in 0_i64..200, off in -3_i64..3, silent: bool,
            // Negative if the attempt borrows.
            others in -50_i64..50,
        ) {
            let needed = quota([("a", a), ("b", b)]);
            let suggest = |amount: Amount| (!silent).then(|| amount.plus(Amount::new(off)));
            let found = min_quota(&quota([("a", has_a), ("b", has_b), ("c", 7)]), needing(&needed, others, suggest)).expect("tried");
            prop_assert_eq!(found, Some(needed));
        }
    }

    #[test]
    fn correct_suggestion_needs_three_attempts() {
        let needed = quota([("a", 1 << 38)]);
        let mut tries = 0;
        let mut attempt = needing(&needed, 0, Some);
        let found = min_quota(&quota([("a", 0)]), |quota| {
            tries += 1;
            attempt(quota)
        });
        assert_eq!((found.expect("tried"), tries), (Some(needed.clone()), 3));
    }

    #[test]
    fn suggestion_to_grow_does_not_raise_the_minimum() {
        let grown = Amount::new(1 << 40);
        let mut tries = 0;
        let found = min_quota(&quota([("a", 1 << 30)]), |quota| {
            tries += 1;
            let through = quota[&place("a")] >= Amount::new(1 << 20);
            let suggested = FlavorResourceAmounts::from([(place("a"), grown)]);
            Ok::<_, Infallible>(Trial {
                succeeds: through,
                suggested,
                used: FlavorResourceAmounts::from([(place("a"), Amount::new(1))]),
            })
        });
        assert_eq!(found.expect("tried"), Some(quota([("a", 1 << 20)])));
        assert!(tries < 100, "{tries}");
    }

    #[test]
    fn no_minimum_if_no_quota_helps() {
        let found = min_quota(&quota([("a", 5)]), |_: &FlavorResourceAmounts| Ok::<_, Infallible>(Trial::default()));
        assert_eq!(found.expect("tried"), None);
    }
}
