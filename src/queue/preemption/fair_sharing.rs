//! Preemption with fair sharing: the largest dominant resource share is preempted first (kueue
//! v0.19.2 `pkg/scheduler/preemption/preemption.go`, `fairPreemptions`, and
//! `pkg/scheduler/preemption/fairsharing`).

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::iter::Peekable;

use super::{Borrowing, PreemptionRequest, Target, TargetSearch};
use crate::PreemptionReason;
use crate::settings::PreemptionStrategy;
use crate::tree::{CohortTree, DominantShare, LargestShare, NodeId, UsageView};

/// Candidates by ClusterQueue, collected on demand, and the subtrees without remaining candidates.
struct CandidateQueues<'a> {
    by_cluster_queue: BTreeMap<NodeId, Peekable<CandidateIterator<'a>>>,
    /// Returns the candidates of a ClusterQueue.
    make_candidates: CandidateSource<'a>,
    exhausted: BTreeSet<NodeId>,
}

type CandidateIterator<'a> = Box<dyn Iterator<Item = Target> + 'a>;

type CandidateSource<'a> = Box<dyn Fn(&CohortTree, NodeId) -> CandidateIterator<'a> + 'a>;

impl<'a> CandidateQueues<'a> {
    fn new(line_up: impl Fn(&CohortTree, NodeId) -> CandidateIterator<'a> + 'a) -> Self {
        Self { by_cluster_queue: BTreeMap::new(), make_candidates: Box::new(line_up), exhausted: BTreeSet::new() }
    }

    /// Restores the skipped candidates for a second pass, ahead of those that were not examined.
    fn retry_with(mut self, spared: Vec<Target>) -> Self {
        let mut of: BTreeMap<NodeId, Vec<Target>> = BTreeMap::new();
        for target in spared {
            of.entry(target.cluster_queue).or_default().push(target);
        }
        for (node, spared) in of {
            let rest = self.by_cluster_queue.remove(&node).into_iter().flatten();
            self.by_cluster_queue
                .insert(node, (Box::new(spared.into_iter().chain(rest)) as CandidateIterator<'a>).peekable());
        }
        self.exhausted.clear();
        self
    }

    /// Returns the remaining candidates of a ClusterQueue. The first call must precede any change
    /// of its usage.
    fn candidates_in(&mut self, tree: &CohortTree, node: NodeId) -> &mut Peekable<CandidateIterator<'a>> {
        self.by_cluster_queue.entry(node).or_insert_with(|| (self.make_candidates)(tree, node).peekable())
    }

    fn first(&mut self, tree: &CohortTree, node: NodeId) -> Option<&Target> {
        self.candidates_in(tree, node).peek()
    }

    fn pop(&mut self, tree: &CohortTree, node: NodeId) -> Option<Target> {
        self.candidates_in(tree, node).next()
    }
}

/// Result of one pass.
struct PassResult {
    targets: Vec<Target>,
    fits: bool,
    /// Candidates that the strategy did not permit.
    skipped: Vec<Target>,
    /// True if a candidate was evicted after one was skipped. It may have lowered the share of the
    /// preemptor, so that the skipped ones are permitted now.
    evicts_after_skip: bool,
}

impl TargetSearch<'_> {
    /// Returns the targets by fair sharing; empty if it finds none.
    pub(super) fn fair_sharing_targets(
        &mut self,
        want: &PreemptionRequest<'_>,
        strategies: &[PreemptionStrategy],
    ) -> Vec<Target> {
        let (preemptor, node) = (self.candidate_filter(), self.node);
        if preemptor.within_cluster_queue(node, *want).next().is_none() && !self.may_preempt_others(want) {
            return Vec::new();
        }
        let mut candidates = CandidateQueues::new(move |tree, of| match of == node {
            true => Box::new(preemptor.within_cluster_queue(node, *want)),
            false if want.needs_preemption.iter().any(|fr| tree.borrows(of, *fr, UsageView::Planned)) => {
                Box::new(preemptor.reclaimable(of, *want, PreemptionReason::InCohortFairSharing))
            }
            false => Box::new(std::iter::empty()),
        });
        // Shares are compared with the workload added.
        self.add_usage(self.node, want.usage, 1);
        // Own targets don't entitle the workload: they may turn out not to be needed.
        let entitled = !want.needs_preemption.iter().any(|fr| self.tree.borrows(self.node, *fr, UsageView::Planned));
        let rule = strategies.first().copied().unwrap_or(PreemptionStrategy::LessThanOrEqualToFinalShare);
        let mut pass = self.first_pass(want, &mut candidates, rule, entitled, Vec::new());
        while !pass.fits && pass.evicts_after_skip {
            candidates = candidates.retry_with(pass.skipped);
            pass = self.first_pass(want, &mut candidates, rule, entitled, pass.targets);
        }
        if !pass.fits && strategies.len() > 1 {
            pass = self.second_pass(want, pass, candidates);
        }
        self.add_usage(self.node, want.usage, -1);
        if !pass.fits {
            self.restore_all(&pass.targets);
            return Vec::new();
        }
        // If the workload does not borrow without its own targets, dropping one of them must not
        // make it borrow: it would be preempted in turn.
        let may_borrow = pass.targets.iter().all(|target| target.cluster_queue == self.node)
            || !self.fits(want, Borrowing::Forbidden);
        let borrowing = if may_borrow { Borrowing::Allowed } else { Borrowing::Forbidden };
        self.fill_back(pass.targets, |search, targets| {
            search.fits(want, borrowing) && search.permits(want, targets, strategies)
        })
    }

    /// Reports whether the strategies permit the preemption of these targets together, while they are
    /// evicted: those of each subtree, by the last of them. An own target that is dropped raises the
    /// share of the preemptor, so that others may no longer be permitted.
    fn permits(&mut self, want: &PreemptionRequest<'_>, targets: &[Target], strategies: &[PreemptionStrategy]) -> bool {
        let by_share = targets.iter().filter(|target| target.reason == PreemptionReason::InCohortFairSharing);
        let mut last: BTreeMap<NodeId, (NodeId, &Target)> = BTreeMap::new();
        for target in by_share {
            if let Some((ours, theirs)) = self.subtrees_below_common(target.cluster_queue) {
                last.insert(theirs, (ours, target));
            }
        }
        self.add_usage(self.node, want.usage, 1);
        let permitted = last.into_iter().all(|(theirs, (ours, target))| {
            let (our_share, final_share) = (self.share(ours), self.share(theirs));
            self.restore(target);
            let initial_share = self.share(theirs);
            self.evict(target);
            strategies.iter().any(|rule| match rule {
                PreemptionStrategy::LessThanOrEqualToFinalShare => our_share.compare(final_share).is_le(),
                PreemptionStrategy::LessThanInitialShare => our_share.compare(initial_share).is_lt(),
            })
        });
        self.add_usage(self.node, want.usage, -1);
        permitted
    }

    /// Reports whether any other ClusterQueue may have to be preempted: the preemptor does not
    /// borrow, or a borrowing sibling has a share at least as large. A necessary condition that is
    /// much cheaper than the search.
    fn may_preempt_others(&mut self, want: &PreemptionRequest<'_>) -> bool {
        if self.predecessor.is_some() {
            return true;
        }
        let ours: Vec<NodeId> = std::iter::once(self.node).chain(self.tree.ancestors(self.node)).collect();
        let largest: Vec<Option<LargestShare>> = ours
            .iter()
            .map(|node| self.tree.parent(*node).and_then(|parent| self.tree.largest_share(parent)))
            .collect();
        self.add_usage(self.node, want.usage, 1);
        let entitled = !want.needs_preemption.iter().any(|fr| self.tree.borrows(self.node, *fr, UsageView::Planned));
        let mut levels = ours.iter().zip(largest);
        let gives = |largest: LargestShare, ours: DominantShare| {
            want.needs_preemption.iter().any(|fr| largest.may_be_preempted(*fr, ours))
        };
        let may_give = entitled
            || want.needs_preemption.len() != 1
            || levels.any(|(node, largest)| largest.is_some_and(|largest| gives(largest, self.share(*node))));
        self.add_usage(self.node, want.usage, -1);
        may_give
    }

    /// Reports whether the usage fits while it is added to the tree.
    fn fits_with_usage_added(&mut self, want: &PreemptionRequest<'_>) -> bool {
        self.add_usage(self.node, want.usage, -1);
        let fits = self.fits(want, Borrowing::Allowed);
        self.add_usage(self.node, want.usage, 1);
        fits
    }

    /// Preempts by the first strategy until the workload fits, beyond the `targets` of an earlier pass. An
    /// `entitled` workload fits into the nominal quota of its ClusterQueue, and reclaims what others borrow.
    fn first_pass(
        &mut self,
        want: &PreemptionRequest<'_>,
        candidates: &mut CandidateQueues<'_>,
        rule: PreemptionStrategy,
        entitled: bool,
        targets: Vec<Target>,
    ) -> PassResult {
        let mut pass = PassResult { targets, fits: false, skipped: Vec::new(), evicts_after_skip: false };
        while let Some(node) = self.next_cluster_queue(candidates, entitled) {
            let target = if node == self.node {
                candidates.pop(self.tree, node)
            } else if entitled {
                let target = candidates.pop(self.tree, node);
                target.map(|target| Target { reason: PreemptionReason::InCohortReclamation, ..target })
            } else {
                self.first_allowed_by_strategy(node, rule, candidates, &mut pass.skipped)
            };
            let Some(target) = target else { continue };
            pass.evicts_after_skip |= !pass.skipped.is_empty();
            self.evict(&target);
            pass.targets.push(target);
            if self.fits_with_usage_added(want) {
                pass.fits = true;
                return pass;
            }
        }
        pass
    }

    /// Returns the first candidate of a ClusterQueue that the strategy permits, and records the skipped
    /// ones.
    fn first_allowed_by_strategy(
        &mut self,
        node: NodeId,
        rule: PreemptionStrategy,
        candidates: &mut CandidateQueues<'_>,
        spared: &mut Vec<Target>,
    ) -> Option<Target> {
        let (ours, theirs) = self.subtrees_below_common(node)?;
        let (our_share, their_share) = (self.share(ours), self.share(theirs));
        while let Some(target) = candidates.pop(self.tree, node) {
            let allowed = match rule {
                PreemptionStrategy::LessThanOrEqualToFinalShare => {
                    self.evict(&target);
                    let left = self.share(theirs);
                    self.restore(&target);
                    our_share.compare(left).is_le()
                }
                PreemptionStrategy::LessThanInitialShare => our_share.compare(their_share).is_lt(),
            };
            // If a part is skipped, the parts that depend on it are skipped too.
            if allowed && !spared.iter().any(|kept| target.depends_on(kept)) {
                return Some(target);
            }
            spared.push(target);
        }
        None
    }

    /// Runs the second pass over the skipped candidates: one of each ClusterQueue whose current
    /// share is larger.
    fn second_pass(
        &mut self,
        want: &PreemptionRequest<'_>,
        first: PassResult,
        candidates: CandidateQueues<'_>,
    ) -> PassResult {
        let mut candidates = candidates.retry_with(first.skipped);
        let mut pass =
            PassResult { targets: first.targets, fits: false, skipped: Vec::new(), evicts_after_skip: false };
        while let Some(node) = self.next_cluster_queue(&mut candidates, false) {
            let allowed = self
                .subtrees_below_common(node)
                .is_some_and(|(ours, theirs)| self.share(ours).compare(self.share(theirs)).is_lt());
            if let Some(target) = candidates.pop(self.tree, node).filter(|_| allowed) {
                self.evict(&target);
                pass.targets.push(target);
                if self.fits_with_usage_added(want) {
                    pass.fits = true;
                    return pass;
                }
            }
            candidates.exhausted.insert(node);
        }
        pass
    }

    fn share(&self, node: NodeId) -> DominantShare {
        self.tree.share(node)
    }

    /// Returns the subtrees of the preemptor and of a target below their lowest common Cohort.
    /// `None` if they have none.
    fn subtrees_below_common(&self, target: NodeId) -> Option<(NodeId, NodeId)> {
        let ours: Vec<NodeId> = std::iter::once(self.node).chain(self.tree.ancestors(self.node)).collect();
        let theirs: Vec<NodeId> = std::iter::once(target).chain(self.tree.ancestors(target)).collect();
        let place = theirs.iter().position(|node| ours.contains(node))?;
        let common = ours.iter().position(|node| *node == theirs[place])?;
        Some((*ours.get(common.checked_sub(1)?)?, *theirs.get(place.checked_sub(1)?)?))
    }

    /// Returns the child of a Cohort that is or contains the preemptor.
    fn preemptor_subtree_below(&self, cohort: NodeId) -> Option<NodeId> {
        let mut sides = std::iter::once(self.node).chain(self.tree.ancestors(self.node));
        sides.find(|side| self.tree.parent(*side) == Some(cohort))
    }

    /// Returns the next ClusterQueue to preempt in: from the root down, the child with the largest
    /// share that has candidates.
    fn next_cluster_queue(&self, candidates: &mut CandidateQueues<'_>, entitled: bool) -> Option<NodeId> {
        let root = self.tree.root(self.node);
        if root == self.node {
            let more = !candidates.exhausted.contains(&root) && candidates.first(self.tree, root).is_some();
            return more.then_some(root);
        }
        while !candidates.exhausted.contains(&root) {
            if let Some(target) = self.descend(root, candidates, entitled) {
                return Some(target);
            }
        }
        None
    }

    /// Returns `None` if a subtree turned out to have no candidates: then it must be called again.
    fn descend(&self, cohort: NodeId, candidates: &mut CandidateQueues<'_>, entitled: bool) -> Option<NodeId> {
        // No rule permits preemption in a subtree with a smaller share than the preemptor's, unless
        // that one is preempted first; and it is examined first, because its share is larger.
        let ours = self.preemptor_subtree_below(cohort).filter(|_| !entitled).map(|ours| (ours, self.share(ours)));
        let mut queue: Option<(NodeId, DominantShare)> = None;
        let mut below: Option<(NodeId, DominantShare)> = None;
        for child in self.tree.children(cohort).iter().copied() {
            if candidates.exhausted.contains(&child) {
                continue;
            }
            let share = self.share(child);
            if ours.is_some_and(|(ours, least)| child != ours && share.compare(least).is_lt()) {
                continue;
            }
            if self.tree.is_cluster_queue(child) {
                // Most are ruled out without collecting their candidates.
                if queue.is_some_and(|(_, largest)| share.compare(largest).is_lt()) {
                    continue;
                }
                if (!share.borrows() && child != self.node) || candidates.first(self.tree, child).is_none() {
                    candidates.exhausted.insert(child);
                } else if queue
                    .is_none_or(|(best, largest)| self.is_preempted_before(child, share, best, largest, candidates))
                {
                    queue = Some((child, share));
                }
            } else if !share.borrows() && !self.tree.ancestors(self.node).any(|above| above == child) {
                candidates.exhausted.insert(child);
            } else if below.is_none_or(|(_, largest)| share.compare(largest).is_ge()) {
                below = Some((child, share));
            }
        }
        match (below, queue) {
            (None, None) => {
                candidates.exhausted.insert(cohort);
                None
            }
            (Some((below, share)), queue) if queue.is_none_or(|(_, queue)| share.compare(queue).is_ge()) => {
                self.descend(below, candidates, entitled)
            }
            (_, queue) => queue.map(|(node, _)| node),
        }
    }

    /// Reports whether ClusterQueue `a` is preempted before `b`.
    fn is_preempted_before(
        &self,
        a: NodeId,
        a_share: DominantShare,
        b: NodeId,
        b_share: DominantShare,
        candidates: &mut CandidateQueues<'_>,
    ) -> bool {
        let by_first = || {
            let mut key = |node: NodeId| {
                let first = candidates.first(self.tree, node);
                first.map(|target| (node == self.node, target.order.clone()))
            };
            key(b).cmp(&key(a))
        };
        a_share.compare(b_share).then_with(by_first) == Ordering::Greater
    }
}
