//! Preemption with fair sharing: the largest dominant resource share is preempted first (kueue
//! v0.19.2 `pkg/scheduler/preemption/preemption.go`, `fairPreemptions`, and
//! `pkg/scheduler/preemption/fairsharing`).

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::iter::Peekable;

use super::{Search, Victim, Want};
use crate::PreemptionRight;
use crate::settings::PreemptionStrategy;
use crate::tree::{Largest, NodeId, Share, Tree, View};

/// Candidates by ClusterQueue, collected on demand, and the subtrees without remaining candidates.
struct Candidates<'a> {
    of: BTreeMap<NodeId, Peekable<Line<'a>>>,
    /// Returns the candidates of a ClusterQueue.
    line_up: LineUp<'a>,
    done: BTreeSet<NodeId>,
}

type Line<'a> = Box<dyn Iterator<Item = Victim> + 'a>;

type LineUp<'a> = Box<dyn Fn(&Tree, NodeId) -> Line<'a> + 'a>;

impl<'a> Candidates<'a> {
    fn of(line_up: impl Fn(&Tree, NodeId) -> Line<'a> + 'a) -> Self {
        Self { of: BTreeMap::new(), line_up: Box::new(line_up), done: BTreeSet::new() }
    }

    /// Restores the skipped candidates for a second pass, ahead of those that were not examined.
    fn once_more(mut self, spared: Vec<Victim>) -> Self {
        let mut of: BTreeMap<NodeId, Vec<Victim>> = BTreeMap::new();
        for victim in spared {
            of.entry(victim.cluster_queue).or_default().push(victim);
        }
        for (node, spared) in of {
            let rest = self.of.remove(&node).into_iter().flatten();
            self.of.insert(node, (Box::new(spared.into_iter().chain(rest)) as Line<'a>).peekable());
        }
        self.done.clear();
        self
    }

    /// Returns the remaining candidates of a ClusterQueue. The first call must precede any change
    /// of its usage.
    fn line(&mut self, tree: &Tree, node: NodeId) -> &mut Peekable<Line<'a>> {
        self.of.entry(node).or_insert_with(|| (self.line_up)(tree, node).peekable())
    }

    fn first(&mut self, tree: &Tree, node: NodeId) -> Option<&Victim> {
        self.line(tree, node).peek()
    }

    fn pop(&mut self, tree: &Tree, node: NodeId) -> Option<Victim> {
        self.line(tree, node).next()
    }
}

/// Result of one pass.
struct Pass {
    victims: Vec<Victim>,
    fits: bool,
    /// Candidates that the strategy did not permit.
    spared: Vec<Victim>,
}

impl Search<'_> {
    /// Returns the targets by fair sharing; empty if it finds none.
    pub(super) fn fair(&mut self, want: &Want<'_>, strategies: &[PreemptionStrategy]) -> Vec<Victim> {
        let (preemptor, node) = (self.preemptor(), self.node);
        if preemptor.own(node, *want).next().is_none() && !self.others_may_give(want) {
            return Vec::new();
        }
        let mut candidates = Candidates::of(move |tree, of| match of == node {
            true => Box::new(preemptor.own(node, *want)),
            false if want.short.iter().any(|fr| tree.borrows(of, *fr, View::Planned)) => {
                Box::new(preemptor.reclaimable(of, *want, PreemptionRight::InCohortFairSharing))
            }
            false => Box::new(std::iter::empty()),
        });
        // Shares are compared with the workload added.
        self.add(self.node, want.usage, 1);
        let mut pass = self.first_pass(want, &mut candidates, strategies);
        if !pass.fits && strategies.len() > 1 {
            pass = self.second_pass(want, pass, candidates);
        }
        self.add(self.node, want.usage, -1);
        if !pass.fits {
            self.take(&pass.victims, false);
            return Vec::new();
        }
        // If the workload does not borrow without its own targets, dropping one of them must not
        // make it borrow: it would be preempted in turn.
        let may_borrow = pass.victims.iter().all(|victim| victim.cluster_queue == self.node) || !self.fits(want, false);
        self.fewest(pass.victims, |search| search.fits(want, may_borrow))
    }

    /// Reports whether any other ClusterQueue may have to be preempted: the preemptor does not
    /// borrow, or a borrowing sibling has a share at least as large. A necessary condition that is
    /// much cheaper than the search.
    fn others_may_give(&mut self, want: &Want<'_>) -> bool {
        if self.predecessor.is_some() {
            return true;
        }
        let ours: Vec<NodeId> = std::iter::once(self.node).chain(self.tree.above(self.node)).collect();
        let largest: Vec<Option<Largest>> = ours
            .iter()
            .map(|node| self.tree.parent(*node).and_then(|parent| self.tree.largest_share(parent)))
            .collect();
        self.add(self.node, want.usage, 1);
        let entitled = !want.short.iter().any(|fr| self.tree.borrows(self.node, *fr, View::Planned));
        let mut levels = ours.iter().zip(largest);
        let gives = |largest: Largest, ours: Share| want.short.iter().any(|fr| largest.may_give(*fr, ours));
        let may_give = entitled
            || want.short.len() != 1
            || levels.any(|(node, largest)| largest.is_some_and(|largest| gives(largest, self.share(*node))));
        self.add(self.node, want.usage, -1);
        may_give
    }

    /// Reports whether the usage fits while it is added to the tree.
    fn fits_with_usage_counted(&mut self, want: &Want<'_>) -> bool {
        self.add(self.node, want.usage, -1);
        let fits = self.fits(want, true);
        self.add(self.node, want.usage, 1);
        fits
    }

    /// Preempts by the first strategy until the workload fits.
    fn first_pass(
        &mut self,
        want: &Want<'_>,
        candidates: &mut Candidates<'_>,
        strategies: &[PreemptionStrategy],
    ) -> Pass {
        let mut pass = Pass { victims: Vec::new(), fits: false, spared: Vec::new() };
        let entitled = !want.short.iter().any(|fr| self.tree.borrows(self.node, *fr, View::Planned));
        let rule = strategies.first().copied().unwrap_or(PreemptionStrategy::LessThanOrEqualToFinalShare);
        while let Some(node) = self.next_target(candidates, entitled) {
            let victim = if node == self.node {
                candidates.pop(self.tree, node)
            } else if entitled {
                let victim = candidates.pop(self.tree, node);
                victim.map(|victim| Victim { right: PreemptionRight::InCohortReclamation, ..victim })
            } else {
                self.first_that_the_rule_allows(node, rule, candidates, &mut pass.spared)
            };
            let Some(victim) = victim else { continue };
            self.take_one(&victim, true);
            pass.victims.push(victim);
            if self.fits_with_usage_counted(want) {
                pass.fits = true;
                return pass;
            }
        }
        pass
    }

    /// Returns the first candidate of a ClusterQueue that the strategy permits, and records the skipped
    /// ones.
    fn first_that_the_rule_allows(
        &mut self,
        node: NodeId,
        rule: PreemptionStrategy,
        candidates: &mut Candidates<'_>,
        spared: &mut Vec<Victim>,
    ) -> Option<Victim> {
        let (ours, theirs) = self.sides(node)?;
        let (our_share, their_share) = (self.share(ours), self.share(theirs));
        while let Some(victim) = candidates.pop(self.tree, node) {
            let allowed = match rule {
                PreemptionStrategy::LessThanOrEqualToFinalShare => {
                    self.take_one(&victim, true);
                    let left = self.share(theirs);
                    self.take_one(&victim, false);
                    our_share.compare(left).is_le()
                }
                PreemptionStrategy::LessThanInitialShare => our_share.compare(their_share).is_lt(),
            };
            // If a part is skipped, the parts that depend on it are skipped too.
            if allowed && !spared.iter().any(|kept| victim.goes_after(kept)) {
                return Some(victim);
            }
            spared.push(victim);
        }
        None
    }

    /// Runs the second pass over the skipped candidates: one of each ClusterQueue whose current
    /// share is larger.
    fn second_pass(&mut self, want: &Want<'_>, first: Pass, candidates: Candidates<'_>) -> Pass {
        let mut candidates = candidates.once_more(first.spared);
        let mut pass = Pass { victims: first.victims, fits: false, spared: Vec::new() };
        while let Some(node) = self.next_target(&mut candidates, false) {
            let allowed =
                self.sides(node).is_some_and(|(ours, theirs)| self.share(ours).compare(self.share(theirs)).is_lt());
            if let Some(victim) = candidates.pop(self.tree, node).filter(|_| allowed) {
                self.take_one(&victim, true);
                pass.victims.push(victim);
                if self.fits_with_usage_counted(want) {
                    pass.fits = true;
                    return pass;
                }
            }
            candidates.done.insert(node);
        }
        pass
    }

    fn share(&self, node: NodeId) -> Share {
        self.tree.share(node)
    }

    /// Returns the subtrees of the preemptor and of a target below their lowest common Cohort.
    /// `None` if they have none.
    fn sides(&self, target: NodeId) -> Option<(NodeId, NodeId)> {
        let ours: Vec<NodeId> = std::iter::once(self.node).chain(self.tree.above(self.node)).collect();
        let theirs: Vec<NodeId> = std::iter::once(target).chain(self.tree.above(target)).collect();
        let place = theirs.iter().position(|node| ours.contains(node))?;
        let common = ours.iter().position(|node| *node == theirs[place])?;
        Some((*ours.get(common.checked_sub(1)?)?, *theirs.get(place.checked_sub(1)?)?))
    }

    /// Returns the child of a Cohort that is or contains the preemptor.
    fn side_below(&self, cohort: NodeId) -> Option<NodeId> {
        let mut sides = std::iter::once(self.node).chain(self.tree.above(self.node));
        sides.find(|side| self.tree.parent(*side) == Some(cohort))
    }

    /// Returns the next ClusterQueue to preempt in: from the root down, the child with the largest
    /// share that has candidates.
    fn next_target(&self, candidates: &mut Candidates<'_>, entitled: bool) -> Option<NodeId> {
        let root = self.tree.root(self.node);
        if root == self.node {
            let more = !candidates.done.contains(&root) && candidates.first(self.tree, root).is_some();
            return more.then_some(root);
        }
        while !candidates.done.contains(&root) {
            if let Some(target) = self.descend(root, candidates, entitled) {
                return Some(target);
            }
        }
        None
    }

    /// Returns `None` if a subtree turned out to have no candidates: then it must be called again.
    fn descend(&self, cohort: NodeId, candidates: &mut Candidates<'_>, entitled: bool) -> Option<NodeId> {
        // No rule permits preemption in a subtree with a smaller share than the preemptor's, unless
        // that one is preempted first; and it is examined first, because its share is larger.
        let ours = self.side_below(cohort).filter(|_| !entitled).map(|ours| (ours, self.share(ours)));
        let mut queue: Option<(NodeId, Share)> = None;
        let mut below: Option<(NodeId, Share)> = None;
        for child in self.tree.children(cohort).iter().copied() {
            if candidates.done.contains(&child) {
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
                    candidates.done.insert(child);
                } else if queue.is_none_or(|(best, largest)| self.gives_before(child, share, best, largest, candidates))
                {
                    queue = Some((child, share));
                }
            } else if !share.borrows() && !self.tree.above(self.node).any(|above| above == child) {
                candidates.done.insert(child);
            } else if below.is_none_or(|(_, largest)| share.compare(largest).is_ge()) {
                below = Some((child, share));
            }
        }
        match (below, queue) {
            (None, None) => {
                candidates.done.insert(cohort);
                None
            }
            (Some((below, share)), queue) if queue.is_none_or(|(_, queue)| share.compare(queue).is_ge()) => {
                self.descend(below, candidates, entitled)
            }
            (_, queue) => queue.map(|(node, _)| node),
        }
    }

    /// Reports whether ClusterQueue `a` is preempted before `b`.
    fn gives_before(
        &self,
        a: NodeId,
        a_share: Share,
        b: NodeId,
        b_share: Share,
        candidates: &mut Candidates<'_>,
    ) -> bool {
        let by_first = || {
            let mut key = |node: NodeId| {
                let first = candidates.first(self.tree, node);
                first.map(|victim| (node == self.node, victim.rank.clone()))
            };
            key(b).cmp(&key(a))
        };
        a_share.compare(b_share).then_with(by_first) == Ordering::Greater
    }
}
