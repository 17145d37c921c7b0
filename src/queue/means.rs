//! By which means a request can be met, and which of them a ClusterQueue's rules like better.

use super::quota::Fungibility;
use super::tree::{Fr, Tree};

/// By which means a request can be met, the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mode {
    /// By none.
    NoFit,
    /// Others would have to go, and there are none that must.
    NoCandidates,
    /// Others have to go, some of the same ClusterQueue among them.
    Preempt,
    /// Others have to go, all of other ClusterQueues.
    Reclaim,
    /// It fits once those that are evicted are gone.
    Deferred,
    /// It fits.
    Fit,
}

/// A mode, and how far up the tree the quota comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Means {
    pub(super) mode: Mode,
    pub(super) level: u32,
}

impl Means {
    pub(super) const BEST: Self = Self { mode: Mode::Fit, level: 0 };
    pub(super) const WORST: Self = Self { mode: Mode::NoFit, level: u32::MAX };

    /// Whether a ClusterQueue's rules like it better.
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

    /// Whether the next flavor is looked at too.
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

/// What the rules are asked on: the tree as it is, and who could be made to go.
pub(super) trait Ground {
    fn tree(&self) -> &Tree;
    /// Whether others can be made to go so that the workload gets `amount` of `fr`.
    fn make_room(&mut self, fr: Fr, amount: i128) -> Means;
}
