//! Modes in which a request can be assigned, and their order by the fungibility rules of a
//! ClusterQueue (granularMode in kueue v0.19.2 `pkg/scheduler/flavorassigner`).

use super::quota::Fungibility;
use super::tree::{Fr, Tree};

/// Preemption that a request needs, ordered from worst to best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mode {
    /// Does not fit and cannot preempt.
    NoFit,
    /// Needs preemption, but there are no candidates.
    NoCandidates,
    /// Fits after preemptions, some of them within its own ClusterQueue.
    Preempt,
    /// Fits after preemptions in other ClusterQueues only.
    Reclaim,
    /// Fits once workloads that are already evicted have released their quota.
    Deferred,
    /// Fits.
    Fit,
}

/// A preemption mode and the borrowing level: the height in the cohort tree of the lowest subtree
/// with enough quota. Level 0 borrows nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Means {
    pub(super) mode: Mode,
    pub(super) level: u32,
}

impl Means {
    /// Fits without borrowing.
    pub(super) const BEST: Self = Self { mode: Mode::Fit, level: 0 };
    /// Does not fit.
    pub(super) const WORST: Self = Self { mode: Mode::NoFit, level: u32::MAX };

    /// Reports whether the fungibility rules prefer this mode over `other`.
    pub(super) fn better_than(self, other: Self, rules: Fungibility) -> bool {
        if self.mode == Mode::NoFit || other.mode == Mode::NoFit {
            return self.mode != Mode::NoFit;
        }
        let hopeless = |means: Self| means.mode == Mode::NoCandidates;
        if hopeless(self) != hopeless(other) {
            return !hopeless(self);
        }
        let (mode, level) = (self.mode.cmp(&other.mode), other.level.cmp(&self.level));
        let order = if rules.preemption_over_borrowing { level.then(mode) } else { mode.then(level) };
        order.is_gt()
    }

    /// Reports whether the fungibility rules continue with the next flavor.
    pub(super) fn tries_next(self, rules: Fungibility) -> bool {
        match self.mode {
            Mode::NoFit | Mode::NoCandidates => true,
            Mode::Preempt | Mode::Reclaim | Mode::Deferred if !rules.stop_at_preemption => true,
            Mode::Preempt | Mode::Reclaim | Mode::Deferred | Mode::Fit => {
                self.level > 0 && rules.next_rather_than_borrow
            }
        }
    }
}

/// Access to the cohort tree and to simulated preemption.
pub(super) trait Ground {
    /// Returns the cohort tree.
    fn tree(&self) -> &Tree;
    /// Simulates preemption for `amount` of `fr` and returns the resulting mode.
    fn make_room(&mut self, fr: Fr, amount: i128) -> Means;
}
