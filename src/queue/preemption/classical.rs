//! Classical preemption: by priority and position in the cohort tree (kueue v0.19.2
//! `pkg/scheduler/preemption/preemption.go`, `classicalPreemptions`, and
//! `pkg/scheduler/preemption/classical`).

use super::{Borrowing, PreemptionRequest, Target, TargetSearch};
use crate::PreemptionReason;
use crate::ledger::FlavorResourceQuantities;
use crate::tree::{FlavorResourceId, NodeId, UsageView};
use sluice_api::kueue::cluster_queue::ReclaimPolicy;

/// A candidate with the lowest Cohort that it shares with the preemptor.
struct CohortCandidate {
    target: Target,
    lowest_common_cohort: NodeId,
    /// May be preempted only if the preemptor does not borrow.
    only_without_borrowing: bool,
}

/// Candidates in other ClusterQueues.
#[derive(Default)]
struct CohortCandidates {
    /// They use quota that the preemptor's subtree is entitled to.
    hierarchical: Vec<CohortCandidate>,
    /// They may be preempted by priority.
    by_priority: Vec<CohortCandidate>,
}

impl TargetSearch<'_> {
    /// Returns the targets by the classical algorithm; empty if it finds none.
    pub(super) fn classical_targets(&mut self, want: &PreemptionRequest<'_>) -> Vec<Target> {
        let cohort_candidates = self.cohort_candidates(want);
        let own: Vec<Target> = self.candidate_filter().within_cluster_queue(self.node, *want).collect();
        let no_hierarchical = cohort_candidates.hierarchical.is_empty();
        let no_cohort_candidates = no_hierarchical && cohort_candidates.by_priority.is_empty();
        let candidates: Vec<CohortCandidate> = cohort_candidates
            .hierarchical
            .into_iter()
            .chain(cohort_candidates.by_priority)
            .chain(own.into_iter().map(|target| CohortCandidate {
                target,
                lowest_common_cohort: self.node,
                only_without_borrowing: false,
            }))
            .collect();
        // Kueue's order of attempts: with borrowing only, without borrowing first, or with
        // borrowing first.
        let forbidden = !self.policy.borrow_within_cohort;
        let below_nominal = |fr: &FlavorResourceId| {
            self.tree.nominal_quota(self.node, *fr) > self.tree.usage(self.node, *fr, UsageView::Planned)
        };
        let attempts: &[Borrowing] =
            if no_cohort_candidates || (forbidden && !want.needs_preemption.iter().all(below_nominal)) {
                &[Borrowing::Allowed]
            } else if forbidden && no_hierarchical {
                &[Borrowing::Forbidden, Borrowing::Allowed]
            } else {
                &[Borrowing::Allowed, Borrowing::Forbidden]
            };
        let found = attempts.iter().map(|borrowing| self.remove_until_fits(want, &candidates, *borrowing));
        found.into_iter().find(|targets| !targets.is_empty()).unwrap_or_default()
    }

    /// Simulates preemption of the candidates in order until the workload fits. Returns the fewest
    /// of them, or none if it does not fit.
    fn remove_until_fits(
        &mut self,
        want: &PreemptionRequest<'_>,
        candidates: &[CohortCandidate],
        borrowing: Borrowing,
    ) -> Vec<Target> {
        let mut targets = Vec::new();
        for candidate in candidates {
            if !self.still_valid(candidate, want, borrowing) {
                continue;
            }
            self.evict(&candidate.target);
            targets.push(candidate.target.clone());
            if self.fits(want, borrowing) {
                return self.fill_back(targets, |search, _| search.fits(want, borrowing));
            }
        }
        self.restore_all(&targets);
        Vec::new()
    }

    /// Reports whether a candidate, and each Cohort below the common one, still exceeds its quota
    /// after the earlier targets.
    fn still_valid(&self, candidate: &CohortCandidate, want: &PreemptionRequest<'_>, borrowing: Borrowing) -> bool {
        let node = candidate.target.cluster_queue;
        if node == self.node {
            return true;
        }
        if borrowing == Borrowing::Allowed && candidate.only_without_borrowing {
            return false;
        }
        let below_common = self.tree.ancestors(node).take_while(|above| *above != candidate.lowest_common_cohort);
        std::iter::once(node)
            .chain(below_common)
            .all(|node| !self.tree.within_quota(node, want.needs_preemption, UsageView::Planned))
    }

    /// Returns the candidates in other ClusterQueues, in the order of preemption.
    fn cohort_candidates(&self, want: &PreemptionRequest<'_>) -> CohortCandidates {
        let mut cohort_candidates = CohortCandidates::default();
        if self.policy.reclaim_within_cohort == ReclaimPolicy::Never {
            return cohort_candidates;
        }
        let (mut by_right, mut remaining) = self.fits_in_quota(self.node, want.usage);
        // Each level adds the candidates whose lowest common Cohort it is, so the child that the
        // previous level covered is skipped.
        let mut seen = None;
        for common in self.tree.ancestors(self.node) {
            let mut nodes = Vec::new();
            self.collect_borrowing(common, seen, want, &mut nodes);
            let list = if by_right { &mut cohort_candidates.hierarchical } else { &mut cohort_candidates.by_priority };
            list.extend(nodes.into_iter().flat_map(|node| self.cohort_candidates_in(node, common, by_right, want)));
            let (fits, rest) = self.fits_in_quota(common, &remaining);
            (by_right, remaining) = (by_right || fits, rest);
            seen = Some(common);
        }
        for list in [&mut cohort_candidates.hierarchical, &mut cohort_candidates.by_priority] {
            list.sort_by(|a, b| a.target.order.cmp(&b.target.order));
        }
        cohort_candidates
    }

    /// Returns the candidates in one other ClusterQueue.
    fn cohort_candidates_in(
        &self,
        node: NodeId,
        common: NodeId,
        by_right: bool,
        want: &PreemptionRequest<'_>,
    ) -> Vec<CohortCandidate> {
        let candidates = self.candidate_filter().reclaimable(node, *want, PreemptionReason::InCohortReclamation);
        let cohort_candidates = candidates.map(|mut target| {
            let above_threshold = target.order.priority >= self.priority
                || self.policy.max_priority_threshold.is_some_and(|threshold| target.order.priority > threshold);
            let unless_borrowing = !by_right && (!self.policy.borrow_within_cohort || above_threshold);
            if !by_right && !unless_borrowing {
                target.reason = PreemptionReason::InCohortReclaimWhileBorrowing;
            }
            CohortCandidate { target, lowest_common_cohort: common, only_without_borrowing: unless_borrowing }
        });
        cohort_candidates.collect()
    }

    /// Collects the ClusterQueues below a Cohort that exceed their quota, as do all Cohorts in
    /// between.
    fn collect_borrowing(
        &self,
        cohort: NodeId,
        seen: Option<NodeId>,
        want: &PreemptionRequest<'_>,
        found: &mut Vec<NodeId>,
    ) {
        for child in self.tree.children(cohort) {
            if Some(*child) == seen
                || *child == self.node
                || self.tree.within_quota(*child, want.needs_preemption, UsageView::Planned)
            {
                continue;
            }
            if self.tree.is_cluster_queue(*child) {
                found.push(*child);
            } else {
                self.collect_borrowing(*child, seen, want, found);
            }
        }
    }

    /// Reports whether a node has the quota for all requests, and returns the remainder to request
    /// from its parent.
    fn fits_in_quota(&self, node: NodeId, requests: &FlavorResourceQuantities) -> (bool, FlavorResourceQuantities) {
        let mut fits = true;
        let remaining = requests.iter().map(|(fr, amount)| {
            let used = self.tree.usage(node, *fr, UsageView::Planned);
            fits &= used + amount <= self.tree.subtree_quota(node, *fr);
            (*fr, (amount - self.tree.local_available(node, *fr, UsageView::Planned)).max(0))
        });
        let remaining = remaining.collect();
        (fits, remaining)
    }
}
