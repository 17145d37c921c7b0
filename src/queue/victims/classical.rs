//! Classical preemption: by priority and position in the cohort tree (kueue v0.19.2
//! `pkg/scheduler/preemption/preemption.go`, `classicalPreemptions`, and
//! `pkg/scheduler/preemption/classical`).

use super::{Search, Victim, Want};
use crate::PreemptionRight;
use crate::ledger::Charge;
use crate::tree::{Fr, NodeId, View};
use sluice_api::kueue::cluster_queue::ReclaimPolicy;

/// A candidate with the lowest Cohort that it shares with the preemptor.
struct Outsider {
    victim: Victim,
    common: NodeId,
    /// May be preempted only if the preemptor does not borrow.
    unless_borrowing: bool,
}

/// Candidates in other ClusterQueues.
#[derive(Default)]
struct Outsiders {
    /// They use quota that the preemptor's subtree is entitled to.
    by_right: Vec<Outsider>,
    /// They may be preempted by priority.
    by_priority: Vec<Outsider>,
}

impl Search<'_> {
    /// Returns the targets by the classical algorithm; empty if it finds none.
    pub(super) fn classical(&mut self, want: &Want<'_>) -> Vec<Victim> {
        let outsiders = self.outsiders(want);
        let own: Vec<Victim> = self.preemptor().own(self.node, *want).collect();
        let no_hierarchical = outsiders.by_right.is_empty();
        let no_cohort_candidates = no_hierarchical && outsiders.by_priority.is_empty();
        let candidates: Vec<Outsider> = outsiders
            .by_right
            .into_iter()
            .chain(outsiders.by_priority)
            .chain(own.into_iter().map(|victim| Outsider { victim, common: self.node, unless_borrowing: false }))
            .collect();
        // Kueue's order of attempts: with borrowing only, without borrowing first, or with
        // borrowing first.
        let forbidden = !self.rules.while_borrowing;
        let below_nominal = |fr: &Fr| self.tree.nominal(self.node, *fr) > self.tree.used(self.node, *fr, View::Planned);
        let attempts: &[bool] = if no_cohort_candidates || (forbidden && !want.short.iter().all(below_nominal)) {
            &[true]
        } else if forbidden && no_hierarchical {
            &[false, true]
        } else {
            &[true, false]
        };
        let found = attempts.iter().map(|may_borrow| self.remove_until_it_fits(want, &candidates, *may_borrow));
        found.into_iter().find(|victims| !victims.is_empty()).unwrap_or_default()
    }

    /// Simulates preemption of the candidates in order until the workload fits. Returns the fewest
    /// of them, or none if it does not fit.
    fn remove_until_it_fits(&mut self, want: &Want<'_>, candidates: &[Outsider], may_borrow: bool) -> Vec<Victim> {
        let mut victims = Vec::new();
        for candidate in candidates {
            if !self.still_valid(candidate, want, may_borrow) {
                continue;
            }
            self.take_one(&candidate.victim, true);
            victims.push(candidate.victim.clone());
            if self.fits(want, may_borrow) {
                return self.fewest(victims, |search| search.fits(want, may_borrow));
            }
        }
        self.take(&victims, false);
        Vec::new()
    }

    /// Reports whether a candidate, and each Cohort below the common one, still exceeds its quota
    /// after the earlier targets.
    fn still_valid(&self, candidate: &Outsider, want: &Want<'_>, may_borrow: bool) -> bool {
        let node = candidate.victim.cluster_queue;
        if node == self.node {
            return true;
        }
        if may_borrow && candidate.unless_borrowing {
            return false;
        }
        let below_common = self.tree.above(node).take_while(|above| *above != candidate.common);
        std::iter::once(node).chain(below_common).all(|node| !self.tree.within_quota(node, want.short, View::Planned))
    }

    /// Returns the candidates in other ClusterQueues, in the order of preemption.
    fn outsiders(&self, want: &Want<'_>) -> Outsiders {
        let mut outsiders = Outsiders::default();
        if self.rules.reclaim == ReclaimPolicy::Never {
            return outsiders;
        }
        let (mut by_right, mut remaining) = self.fits_in_quota(self.node, want.usage);
        // Each level adds the candidates whose lowest common Cohort it is, so the child that the
        // previous level covered is skipped.
        let mut seen = None;
        for common in self.tree.above(self.node) {
            let mut nodes = Vec::new();
            self.collect_exceeding(common, seen, want, &mut nodes);
            let list = if by_right { &mut outsiders.by_right } else { &mut outsiders.by_priority };
            list.extend(nodes.into_iter().flat_map(|node| self.outsiders_of(node, common, by_right, want)));
            let (fits, rest) = self.fits_in_quota(common, &remaining);
            (by_right, remaining) = (by_right || fits, rest);
            seen = Some(common);
        }
        for list in [&mut outsiders.by_right, &mut outsiders.by_priority] {
            list.sort_by(|a, b| a.victim.rank.cmp(&b.victim.rank));
        }
        outsiders
    }

    /// Returns the candidates in one other ClusterQueue.
    fn outsiders_of(&self, node: NodeId, common: NodeId, by_right: bool, want: &Want<'_>) -> Vec<Outsider> {
        let candidates = self.preemptor().reclaimable(node, *want, PreemptionRight::InCohortReclamation);
        let outsiders = candidates.map(|mut victim| {
            let above_threshold = victim.rank.priority >= self.priority
                || self.rules.threshold.is_some_and(|threshold| victim.rank.priority > threshold);
            let unless_borrowing = !by_right && (!self.rules.while_borrowing || above_threshold);
            if !by_right && !unless_borrowing {
                victim.right = PreemptionRight::InCohortReclaimWhileBorrowing;
            }
            Outsider { victim, common, unless_borrowing }
        });
        outsiders.collect()
    }

    /// Collects the ClusterQueues below a Cohort that exceed their quota, as do all Cohorts in
    /// between.
    fn collect_exceeding(&self, cohort: NodeId, seen: Option<NodeId>, want: &Want<'_>, found: &mut Vec<NodeId>) {
        for child in self.tree.children(cohort) {
            if Some(*child) == seen || *child == self.node || self.tree.within_quota(*child, want.short, View::Planned)
            {
                continue;
            }
            if self.tree.is_cluster_queue(*child) {
                found.push(*child);
            } else {
                self.collect_exceeding(*child, seen, want, found);
            }
        }
    }

    /// Reports whether a node has the quota for all requests, and returns the remainder to request
    /// from its parent.
    fn fits_in_quota(&self, node: NodeId, requests: &Charge) -> (bool, Charge) {
        let mut fits = true;
        let remaining = requests.iter().map(|(fr, amount)| {
            let used = self.tree.used(node, *fr, View::Planned);
            fits &= used + amount <= self.tree.subtree_quota(node, *fr);
            (*fr, (amount - self.tree.local_available(node, *fr, View::Planned)).max(0))
        });
        let remaining = remaining.collect();
        (fits, remaining)
    }
}
