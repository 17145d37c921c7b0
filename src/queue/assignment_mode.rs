//! Modes in which a request can be assigned, and their order by the fungibility rules of a
//! ClusterQueue (granularMode in kueue v0.19.2 `pkg/scheduler/flavorassigner`).

use super::cluster_queue_config::FungibilityPolicy;
use super::tree::{CohortTree, FlavorResourceId};

/// Preemption that a request needs, ordered from worst to best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PreemptionMode {
    /// Does not fit and cannot preempt.
    NoFit,
    /// Needs preemption, but there are no candidates.
    NoPreemptionCandidates,
    /// Fits after preemptions, some of them within its own ClusterQueue.
    Preempt,
    /// Fits after preemptions in other ClusterQueues only.
    Reclaim,
    /// Fits once workloads that are already evicted have released their quota.
    FitAfterEvictions,
    /// Fits.
    Fit,
}

/// A preemption mode and the borrowing level: the height in the cohort tree of the lowest subtree
/// with enough quota. Level 0 borrows nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AssignmentMode {
    pub(super) preemption: PreemptionMode,
    pub(super) borrowing_level: u32,
}

impl AssignmentMode {
    /// Fits without borrowing.
    pub(super) const BEST: Self = Self { preemption: PreemptionMode::Fit, borrowing_level: 0 };
    /// Does not fit.
    pub(super) const WORST: Self = Self { preemption: PreemptionMode::NoFit, borrowing_level: u32::MAX };

    /// Reports whether the fungibility rules prefer this mode over `other`.
    pub(super) fn is_preferred_over(self, other: Self, rules: FungibilityPolicy) -> bool {
        if self.preemption == PreemptionMode::NoFit || other.preemption == PreemptionMode::NoFit {
            return self.preemption != PreemptionMode::NoFit;
        }
        let has_no_candidates = |means: Self| means.preemption == PreemptionMode::NoPreemptionCandidates;
        if has_no_candidates(self) != has_no_candidates(other) {
            return !has_no_candidates(self);
        }
        let (mode, level) = (self.preemption.cmp(&other.preemption), other.borrowing_level.cmp(&self.borrowing_level));
        let order = if rules.prefer_preemption_over_borrowing { level.then(mode) } else { mode.then(level) };
        order.is_gt()
    }

    /// Reports whether the fungibility rules continue with the next flavor.
    pub(super) fn should_try_next_flavor(self, rules: FungibilityPolicy) -> bool {
        match self.preemption {
            PreemptionMode::NoFit | PreemptionMode::NoPreemptionCandidates => true,
            PreemptionMode::Preempt | PreemptionMode::Reclaim | PreemptionMode::FitAfterEvictions
                if !rules.may_stop_at_preemption =>
            {
                true
            }
            PreemptionMode::Preempt
            | PreemptionMode::Reclaim
            | PreemptionMode::FitAfterEvictions
            | PreemptionMode::Fit => self.borrowing_level > 0 && rules.try_next_before_borrowing,
        }
    }
}

/// Access to the cohort tree and to simulated preemption.
pub(super) trait PreemptionOracle {
    /// Returns the cohort tree.
    fn tree(&self) -> &CohortTree;
    /// Simulates preemption for `amount` of `fr` and returns the resulting mode.
    fn simulate_preemption(&mut self, fr: FlavorResourceId, amount: i128) -> AssignmentMode;
}
