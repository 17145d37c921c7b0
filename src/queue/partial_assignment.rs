//! Flavors of the units that a search has assigned so far.

use super::cached_workload::UnitPosition;
use super::ledger::{FlavorResourceQuantities, add_to};
use super::tree::FlavorResourceId;

/// Flavor that is assigned to one unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AssignedFlavor {
    pub(super) unit: UnitPosition,
    /// Index of the flavor in the group.
    pub(super) flavor: usize,
}

/// Flavors that the first units of an assignment have, and what they request there.
#[derive(Debug, Default)]
pub(super) struct PartialAssignment {
    pub(super) usage: FlavorResourceQuantities,
    pub(super) flavors: Vec<AssignedFlavor>,
}

impl PartialAssignment {
    /// Assigns a flavor to the next unit.
    pub(super) fn push(&mut self, assigned: AssignedFlavor, requests: impl Iterator<Item = (FlavorResourceId, i128)>) {
        requests.for_each(|(fr, amount)| add_to(&mut self.usage, fr, amount));
        self.flavors.push(assigned);
    }

    /// Takes back the last flavor, which was assigned with the same requests.
    pub(super) fn pop(&mut self, requests: impl Iterator<Item = (FlavorResourceId, i128)>) {
        requests.for_each(|(fr, amount)| add_to(&mut self.usage, fr, -amount));
        self.flavors.pop();
    }
}
