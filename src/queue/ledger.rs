//! What of a ClusterQueue's quota is held, and by whom.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::quantity::Amount;
use crate::engine::store::Key;

/// One resource of one flavor: what quota is counted in.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FlavorResource {
    pub(super) flavor: String,
    pub(super) resource: String,
}

impl FlavorResource {
    pub(super) fn new(flavor: &str, resource: &str) -> Self {
        Self { flavor: flavor.to_owned(), resource: resource.to_owned() }
    }
}

/// What one workload holds.
pub(super) type Charge = BTreeMap<FlavorResource, Amount>;

/// Adds to a charge.
pub(super) fn add_to(charge: &mut Charge, at: FlavorResource, amount: Amount) {
    if amount != Amount::ZERO {
        let sum = charge.entry(at).or_default();
        *sum = sum.plus(amount);
    }
}

/// The sum of all charges, by flavor and resource. Sums are wide enough to never saturate, so what is released is exactly
/// what was booked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Ledger {
    lines: BTreeMap<FlavorResource, Line>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Line {
    reserved: i128,
    admitted: i128,
    holders: BTreeSet<(Amount, Key)>,
}

impl Ledger {
    /// Adds what `holder` holds.
    pub(super) fn book(&mut self, holder: &Key, charge: &Charge, admitted: bool) {
        for (at, amount) in charge {
            let line = self.lines.entry(at.clone()).or_default();
            line.reserved += i128::from(amount.get());
            line.admitted += if admitted { i128::from(amount.get()) } else { 0 };
            line.holders.insert((*amount, holder.clone()));
        }
    }

    /// Takes out what was booked.
    pub(super) fn release(&mut self, holder: &Key, charge: &Charge, admitted: bool) {
        for (at, amount) in charge {
            let Some(line) = self.lines.get_mut(at) else { continue };
            line.reserved -= i128::from(amount.get());
            line.admitted -= if admitted { i128::from(amount.get()) } else { 0 };
            line.holders.remove(&(*amount, holder.clone()));
            if line.holders.is_empty() {
                self.lines.remove(at);
            }
        }
    }

    /// What is reserved, in the resource's units.
    pub(super) fn reserved(&self, at: &FlavorResource) -> i128 {
        self.lines.get(at).map_or(0, |line| line.reserved)
    }

    /// What admitted workloads use, in the resource's units.
    pub(super) fn admitted(&self, at: &FlavorResource) -> i128 {
        self.lines.get(at).map_or(0, |line| line.admitted)
    }

    /// Who holds some, the largest first.
    pub(super) fn holders(&self, at: &FlavorResource) -> impl DoubleEndedIterator<Item = (&Key, Amount)> {
        let holders = self.lines.get(at).into_iter().flat_map(|line| &line.holders);
        holders.rev().map(|(amount, key)| (key, *amount))
    }

    /// How many hold some.
    pub(super) fn holder_count(&self, at: &FlavorResource) -> usize {
        self.lines.get(at).map_or(0, |line| line.holders.len())
    }

    /// Whether nothing is held.
    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }
}

/// A wide sum as an amount; what does not fit stays at the limit.
pub(super) fn clamped(sum: i128) -> Amount {
    Amount::new(i64::try_from(sum).unwrap_or(if sum < 0 { i64::MIN } else { i64::MAX }))
}
