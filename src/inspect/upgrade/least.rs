//! The least quota with which something goes through, found by trying.

use std::collections::{BTreeMap, BTreeSet};

use sluice_api::quantity::Amount;

/// As often quota is doubled before more of it is taken to be of no help.
const DOUBLINGS: usize = 40;

/// Where in a ClusterQueue quota is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// The flavor.
    pub flavor: String,
    /// The resource.
    pub resource: String,
}

/// So much by place: nominal quota, or what is used.
pub(super) type Amounts = BTreeMap<Place, Amount>;

/// What came of trying it with some quota.
#[derive(Debug, Clone, Default)]
pub(super) struct Tried {
    /// Whether it goes through.
    pub through: bool,
    /// Where it has quota, once it goes through.
    pub places: BTreeSet<Place>,
    /// What would be enough by what is said of its waiting; empty if quota isn't what it waits for. What goes through may wait
    /// all the same: to grow.
    pub suggested: Amounts,
}

/// The least quota, place by place, with which it goes through; of places that it has no use for nothing is said. With a unit
/// less of any it doesn't go through. `None` if no quota is enough.
///
/// # Errors
/// When it can't be tried.
pub(super) fn least<E>(
    given: &Amounts,
    mut attempt: impl FnMut(&Amounts) -> Result<Tried, E>,
) -> Result<Option<Amounts>, E> {
    let Some((mut quota, places)) = enough(given, &mut attempt)? else { return Ok(None) };
    let mut with = |quota: &Amounts, place: &Place, amount: Amount| {
        let mut quota = quota.clone();
        quota.insert(place.clone(), amount);
        attempt(&quota)
    };
    for place in &places {
        let needed = least_of(place, amount_of(&quota, place), |amount| with(&quota, place, amount))?;
        quota.insert(place.clone(), needed);
    }
    // With less of one it may do with less of another: what grows takes as much as it can get of both.
    let mut is_least = false;
    while !is_least {
        is_least = true;
        for place in &places {
            let one_less = amount_of(&quota, place).minus(Amount::new(1));
            if one_less >= Amount::ZERO && with(&quota, place, one_less)?.through {
                let needed = least_of(place, one_less, |amount| with(&quota, place, amount))?;
                quota.insert(place.clone(), needed);
                is_least = false;
            }
        }
    }
    quota.retain(|place, _| places.contains(place));
    Ok(Some(quota))
}

fn amount_of(quota: &Amounts, place: &Place) -> Amount {
    quota.get(place).copied().unwrap_or(Amount::ZERO)
}

/// Some quota that is enough, and where it is used.
fn enough<E>(
    given: &Amounts,
    attempt: &mut impl FnMut(&Amounts) -> Result<Tried, E>,
) -> Result<Option<(Amounts, BTreeSet<Place>)>, E> {
    let mut quota = given.clone();
    for _ in 0..DOUBLINGS {
        let tried = attempt(&quota)?;
        if tried.through {
            return Ok(Some((quota, tried.places)));
        }
        let raised = tried.suggested.iter().filter(|(place, amount)| quota.get(place).is_some_and(|has| has < amount));
        let raised: Amounts = raised.map(|(place, amount)| (place.clone(), *amount)).collect();
        if raised.is_empty() {
            // It may be that others come first.
            quota.values_mut().for_each(|amount| *amount = amount.plus(*amount).max(Amount::new(1)));
        } else {
            quota.extend(raised);
        }
    }
    Ok(None)
}

/// The least of one place, up to `most`, which is enough.
fn least_of<E>(place: &Place, most: Amount, mut attempt: impl FnMut(Amount) -> Result<Tried, E>) -> Result<Amount, E> {
    let (mut too_little, mut enough) = (-1, most.get());
    let (mut next, mut is_suggested) = (0, false);
    while too_little + 1 < enough {
        let tried = attempt(Amount::new(next))?;
        let was_suggested = is_suggested;
        is_suggested = false;
        if tried.through {
            enough = next;
        } else {
            too_little = next;
        }
        let middle = too_little + (enough - too_little) / 2;
        let suggested = tried.suggested.get(place).map(|amount| amount.get());
        // A suggestion is the least, as a rule; one that is wrong is not followed again.
        next = match suggested.filter(|amount| !tried.through && !was_suggested && *amount > too_little) {
            Some(suggested) => {
                is_suggested = true;
                suggested.min(enough - 1)
            }
            None if tried.through && was_suggested => enough - 1,
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

    fn place(flavor: &str) -> Place {
        Place { flavor: flavor.to_owned(), resource: "nvidia.com/gpu".to_owned() }
    }

    fn quota<const N: usize>(amounts: [(&str, i64); N]) -> Amounts {
        amounts.into_iter().map(|(flavor, amount)| (place(flavor), Amount::new(amount))).collect()
    }

    /// What goes through with this much, and says what it lacks as truly as `says` makes it.
    fn needing(
        needed: &Amounts,
        says: impl Fn(Amount) -> Option<Amount>,
    ) -> impl FnMut(&Amounts) -> Result<Tried, Infallible> {
        move |quota| {
            let lacks = needed.iter().filter(|(place, amount)| quota.get(place).is_none_or(|has| has < amount));
            let suggested = lacks.clone().filter_map(|(place, amount)| Some((place.clone(), says(*amount)?)));
            Ok(Tried {
                through: lacks.clone().count() == 0,
                suggested: suggested.collect(),
                places: needed.keys().cloned().collect(),
            })
        }
    }

    proptest! {
        #[test]
        fn the_least_is_found_from_any_quota_whatever_is_suggested(
            a in 0_i64..1 << 40, b in 0_i64..100, has_a in 0_i64..1 << 41, has_b in 0_i64..200, off in -3_i64..3, mute: bool
        ) {
            let needed = quota([("a", a), ("b", b)]);
            let says = |amount: Amount| (!mute).then(|| amount.plus(Amount::new(off)));
            let found = least(&quota([("a", has_a), ("b", has_b), ("c", 7)]), needing(&needed, says)).expect("tried");
            prop_assert_eq!(found, Some(needed));
        }
    }

    #[test]
    fn a_true_suggestion_is_all_that_it_takes() {
        let needed = quota([("a", 1 << 38)]);
        let mut tries = 0;
        let mut attempt = needing(&needed, Some);
        let found = least(&quota([("a", 0)]), |quota| {
            tries += 1;
            attempt(quota)
        });
        assert_eq!((found.expect("tried"), tries), (Some(needed.clone()), 5));
    }

    #[test]
    fn what_it_would_take_to_grow_is_not_what_it_takes_to_go_through() {
        let grown = Amount::new(1 << 40);
        let mut tries = 0;
        let found = least(&quota([("a", 1 << 30)]), |quota| {
            tries += 1;
            let through = quota[&place("a")] >= Amount::new(1 << 20);
            let suggested = Amounts::from([(place("a"), grown)]);
            Ok::<_, Infallible>(Tried { through, suggested, places: [place("a")].into() })
        });
        assert_eq!(found.expect("tried"), Some(quota([("a", 1 << 20)])));
        assert!(tries < 100, "{tries}");
    }

    #[test]
    fn what_no_quota_helps_has_no_least() {
        let found = least(&quota([("a", 5)]), |_: &Amounts| Ok::<_, Infallible>(Tried::default()));
        assert_eq!(found.expect("tried"), None);
    }
}
