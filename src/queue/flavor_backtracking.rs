//! Searches for a combination of flavors where the choice for an earlier unit leaves a later one
//! without a flavor.

use super::assignment_mode::PreemptionOracle;
use super::flavor_assigner::{AssignmentUnit, Diagnosis, FlavorAssigner, FlavorChoice};
use super::ledger::FlavorResourceQuantities;
use super::partial_assignment::PartialAssignment;
use super::pending_queue::QuotaNeed;
use super::tree::{CohortTree, UsageView};

/// Maximum number of flavor combinations to try before a workload is considered not to fit.
pub(super) const MAX_COMBINATIONS: usize = 512;

/// Combinations that a search accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Accepted {
    /// All units fit without preemption.
    Fitting,
    /// All units fit, some of them after evictions.
    Preempting,
}

/// State of a search.
struct Search<'a, O> {
    ground: &'a mut O,
    found: &'a mut Diagnosis,
    accepted: Accepted,
    taken: PartialAssignment,
    choices: Vec<FlavorChoice>,
    tries: usize,
}

impl FlavorAssigner<'_> {
    /// Searches for a combination of flavors that all fit without preemption, and then, if flavors
    /// contradict each other, for one that fits after evictions: the greedy assignment may have
    /// chosen a flavor with which no other goes. Returns `None` if there is no alternative to the
    /// greedy assignment, or if explanations are requested.
    pub(super) fn assign_backtracking(
        &self,
        slots: &[AssignmentUnit<'_>],
        ground: &mut impl PreemptionOracle,
        found: &mut Diagnosis,
    ) -> Option<Vec<FlavorChoice>> {
        let contested = slots.len() > 1 && slots.iter().any(|slot| slot.group.flavors.len() > 1);
        if !contested || found.rejections.is_some() {
            return None;
        }
        let fitting = self.search(slots, ground, found, Accepted::Fitting);
        if fitting.is_some() || !slots.iter().any(|slot| slot.may_contradict) {
            return fitting;
        }
        self.search(slots, ground, found, Accepted::Preempting)
    }

    fn search(
        &self,
        slots: &[AssignmentUnit<'_>],
        ground: &mut impl PreemptionOracle,
        found: &mut Diagnosis,
        accepted: Accepted,
    ) -> Option<Vec<FlavorChoice>> {
        let (taken, choices) = (PartialAssignment::default(), Vec::new());
        let mut search = Search { ground, found, accepted, taken, choices, tries: 0 };
        let fits = self.backtrack(slots, &mut search);
        if search.tries >= MAX_COMBINATIONS {
            // The search is incomplete, so the collected needs are no lower bound.
            search.found.quota_needs.clear();
        }
        fits.then_some(search.choices)
    }

    fn backtrack(&self, slots: &[AssignmentUnit<'_>], search: &mut Search<'_, impl PreemptionOracle>) -> bool {
        let Some((slot, rest)) = slots.split_first() else { return true };
        for (index, flavor) in slot.group.flavors.iter().enumerate() {
            search.tries += 1;
            if search.tries >= MAX_COMBINATIONS {
                return false;
            }
            if self.ineligibility(slot, flavor, &search.taken.flavors).is_some() {
                continue;
            }
            let Some(choice) = self.accepted_choice(slot, index, search) else { continue };
            search.taken.push(choice.assigned, choice.requests());
            search.choices.push(choice);
            if self.backtrack(rest, search) {
                return true;
            }
            if let Some(choice) = search.choices.pop() {
                search.taken.pop(choice.requests());
            }
        }
        false
    }

    fn accepted_choice(
        &self,
        slot: &AssignmentUnit<'_>,
        flavor: usize,
        search: &mut Search<'_, impl PreemptionOracle>,
    ) -> Option<FlavorChoice> {
        let taken = &search.taken.usage;
        match search.accepted {
            Accepted::Fitting => self.free_flavor(slot, flavor, taken, search.ground.tree(), search.found),
            Accepted::Preempting => {
                let choice = self.flavor_choice(slot, flavor, taken, search.ground, search.found);
                Some(choice).filter(FlavorChoice::can_be_admitted)
            }
        }
    }

    /// Returns a flavor for a unit if all of its requests are available there, now and as planned.
    fn free_flavor(
        &self,
        slot: &AssignmentUnit<'_>,
        flavor: usize,
        taken: &FlavorResourceQuantities,
        tree: &CohortTree,
        found: &mut Diagnosis,
    ) -> Option<FlavorChoice> {
        let mut choice = FlavorChoice::new(slot, flavor);
        for (resource, requested) in &slot.requests {
            let fr = slot.group.flavors[flavor].flavor_resource(resource)?;
            let wanted = requested + taken.get(&fr).copied().unwrap_or_default();
            let held = self.predecessor.as_ref().map_or(0, |predecessor| predecessor.usage_of(fr));
            let free = |view| tree.available(self.node, fr, view, held);
            if wanted > free(UsageView::Planned) || wanted > free(UsageView::Actual) {
                found.quota_needs.push(QuotaNeed { fr, amount: wanted });
                return None;
            }
            let level = tree.lowest_fit(self.node, fr, wanted, UsageView::Planned, held).height;
            choice.borrowing_level = choice.borrowing_level.max(level);
            choice.resources.push((fr, *requested, false));
        }
        Some(choice)
    }
}
