//! Preemption targets with fair sharing, and the orders in which they may be evicted.

use std::collections::{BTreeMap, BTreeSet};

use super::super::quota_tree::{Node, QuotaTree};
use super::{Target, TargetSearch};
use crate::PreemptionReason;
use crate::settings::PreemptionStrategy;

impl TargetSearch<'_> {
    pub(super) fn fair_preemption(&self, strategies: &[PreemptionStrategy]) -> Vec<Target> {
        let mut left: BTreeMap<String, Vec<Target>> = BTreeMap::new();
        let (tree, root) = (&self.input.planned, self.input.planned.root(&self.node));
        for queue in &self.input.snapshot.queues {
            let same_tree = tree.root(&queue.node()) == root;
            let borrows =
                tree.parent(&queue.node()).is_some() && tree.exceeds_quota_of_any(&queue.node(), self.needs_preemption);
            if queue.name == self.input.queue.name || (same_tree && borrows) {
                left.insert(queue.name.clone(), self.candidates(&queue.name));
            }
        }
        let mut pass =
            FairSharingPass { search: self, candidates: left, exhausted_nodes: BTreeSet::new(), targets: Vec::new() };
        let entitled = !self.needs_preemption.iter().any(|fr| {
            let tree = pass.quota_tree();
            tree.parent(&self.node).is_some() && tree.exceeds_quota(&self.node, fr)
        });
        let mut spared = pass.run_first_strategy(strategies[0], entitled);
        // The candidates that it did not allow are tried again as long as that adds targets.
        while !pass.fits() {
            let before = pass.targets.len();
            for (queue, again) in spared {
                let left = pass.candidates.remove(&queue).unwrap_or_default();
                pass.candidates.insert(queue, [again, left].concat());
            }
            pass.exhausted_nodes.clear();
            spared = pass.run_first_strategy(strategies[0], entitled);
            if pass.targets.len() == before {
                break;
            }
        }
        let mut targets = pass.targets;
        if !self.fits(&targets, true) && strategies.len() > 1 {
            let mut pass =
                FairSharingPass { search: self, candidates: spared, exhausted_nodes: BTreeSet::new(), targets };
            pass.run_second_strategy();
            targets = pass.targets;
        }
        if targets.is_empty() || !self.fits(&targets, true) {
            return Vec::new();
        }
        let own = targets.iter().all(|target| target.queue == self.input.queue.name);
        let may_borrow = own || !self.fits(&targets, false);
        let suffices = |fewer: &[Target]| self.fits(fewer, may_borrow) && self.is_legal(fewer, strategies);
        let targets = self.fill_back(targets, suffices);
        assert!(self.is_legal(&targets, strategies), "no order of {targets:?} is allowed by {strategies:?}");
        targets
    }

    /// Reports whether the targets can be evicted in some order in which a strategy allows each one:
    /// tries all orders.
    fn is_legal(&self, targets: &[Target], strategies: &[PreemptionStrategy]) -> bool {
        let by_share = |target: &&Target| target.reason == PreemptionReason::InCohortFairSharing;
        let (shared, others): (Vec<&Target>, Vec<&Target>) = targets.iter().partition(by_share);
        // Evicting the others first only lowers the share of the preemptor.
        let evicted = others.into_iter().cloned().collect();
        self.has_legal_order(evicted, &shared, strategies)
    }

    fn has_legal_order(&self, evicted: Vec<Target>, left: &[&Target], strategies: &[PreemptionStrategy]) -> bool {
        if left.is_empty() {
            return true;
        }
        let pass = |targets: Vec<Target>| FairSharingPass {
            search: self,
            candidates: BTreeMap::new(),
            exhausted_nodes: BTreeSet::new(),
            targets,
        };
        (0..left.len()).any(|index| {
            let next = left[index];
            let (before, after) = (pass(evicted.clone()), pass([evicted.clone(), vec![next.clone()]].concat()));
            let (ours, theirs) = before.nodes_below_common_cohort(&next.queue);
            let share = |pass: &FairSharingPass<'_>, node: &Node| pass.quota_tree().dominant_share(node);
            let allowed = strategies.iter().any(|rule| {
                let ours = share(&before, &ours);
                match rule {
                    PreemptionStrategy::LessThanOrEqualToFinalShare => ours.compare(share(&after, &theirs)).is_le(),
                    PreemptionStrategy::LessThanInitialShare => ours.compare(share(&before, &theirs)).is_lt(),
                }
            });
            let rest: Vec<&Target> = [&left[..index], &left[index + 1..]].concat();
            allowed && self.has_legal_order(after.targets, &rest, strategies)
        })
    }
}

/// One pass over the remaining candidates, the largest share first.
struct FairSharingPass<'a> {
    search: &'a TargetSearch<'a>,
    candidates: BTreeMap<String, Vec<Target>>,
    /// Nodes without further candidates.
    exhausted_nodes: BTreeSet<Node>,
    targets: Vec<Target>,
}

impl FairSharingPass<'_> {
    /// Returns planned usage with the preemptor and without the targets.
    fn quota_tree(&self) -> QuotaTree<'_> {
        let TargetSearch { input: ask, usage, .. } = self.search;
        self.search.without(&self.targets).with_usage(&ask.queue.name, &ask.job.key, usage)
    }

    fn fits(&self) -> bool {
        !self.targets.is_empty() && self.search.fits(&self.targets, true)
    }

    /// Runs the first strategy; returns the candidates that it did not allow.
    fn run_first_strategy(&mut self, rule: PreemptionStrategy, entitled: bool) -> BTreeMap<String, Vec<Target>> {
        let mut spared: BTreeMap<String, Vec<Target>> = BTreeMap::new();
        while let Some(queue) = self.next_queue() {
            if queue == self.search.input.queue.name || entitled {
                let mut target = self.candidates.get_mut(&queue).expect("candidates").remove(0);
                if queue != self.search.input.queue.name {
                    target.reason = PreemptionReason::InCohortReclamation;
                }
                self.targets.push(target);
                if self.fits() {
                    break;
                }
                continue;
            }
            let (ours, theirs) = self.nodes_below_common_cohort(&queue);
            let (our_share, their_share) =
                (self.quota_tree().dominant_share(&ours), self.quota_tree().dominant_share(&theirs));
            while let Some(mut target) =
                self.candidates.get_mut(&queue).filter(|left| !left.is_empty()).map(|left| left.remove(0))
            {
                let kept = spared.values().flatten().any(|kept| target.requires(kept));
                let after = self.quota_tree().without(&[(target.key.clone(), target.scope)]).dominant_share(&theirs);
                let allowed = match rule {
                    PreemptionStrategy::LessThanOrEqualToFinalShare => our_share.compare(after).is_le(),
                    PreemptionStrategy::LessThanInitialShare => our_share.compare(their_share).is_lt(),
                };
                if allowed && !kept {
                    target.reason = PreemptionReason::InCohortFairSharing;
                    self.targets.push(target);
                    break;
                }
                spared.entry(queue.clone()).or_default().push(target);
            }
            if self.fits() {
                break;
            }
        }
        spared
    }

    /// Runs the second strategy: takes one candidate from each ClusterQueue with a larger share
    /// than the preemptor's.
    fn run_second_strategy(&mut self) {
        while let Some(queue) = self.next_queue() {
            let (ours, theirs) = self.nodes_below_common_cohort(&queue);
            if self.quota_tree().dominant_share(&ours).compare(self.quota_tree().dominant_share(&theirs)).is_lt() {
                let mut target = self.candidates.get_mut(&queue).expect("candidates").remove(0);
                target.reason = PreemptionReason::InCohortFairSharing;
                self.targets.push(target);
                if self.fits() {
                    return;
                }
            }
            self.exhausted_nodes.insert(Node::Queue(queue));
        }
    }

    /// Returns the preemptor's and the target's node directly below the lowest common Cohort.
    fn nodes_below_common_cohort(&self, target: &str) -> (Node, Node) {
        let tree = self.quota_tree();
        let path = |node: Node| [vec![node.clone()], tree.ancestors(&node)].concat();
        let (ours, theirs) = (path(self.search.node.clone()), path(Node::Queue(target.to_owned())));
        let below =
            |path: &[Node], other: &[Node]| path.iter().take_while(|node| !other.contains(node)).last().cloned();
        (below(&ours, &theirs).expect("a node"), below(&theirs, &ours).expect("a node"))
    }

    /// Returns the ClusterQueue of the next candidate; `None` if there is none.
    fn next_queue(&mut self) -> Option<String> {
        let root = self.search.input.planned.root(&self.search.node);
        if let Node::Queue(name) = &root {
            let more =
                self.candidates.get(name).is_some_and(|left| !left.is_empty()) && !self.exhausted_nodes.contains(&root);
            return more.then(|| name.clone());
        }
        while !self.exhausted_nodes.contains(&root) {
            if let Some(queue) = self.next_queue_below(&root) {
                return Some(queue);
            }
        }
        None
    }

    /// Returns the next ClusterQueue below a Cohort; `None` if a node was marked as done instead.
    fn next_queue_below(&mut self, cohort: &Node) -> Option<String> {
        let children = self.quota_tree().children(cohort);
        let preemptor = self.search.node.clone();
        let mut queue: Option<String> = None;
        let mut below: Option<Node> = None;
        for child in children {
            if self.exhausted_nodes.contains(&child) {
                continue;
            }
            let share = self.quota_tree().dominant_share(&child);
            match &child {
                Node::Queue(name) => {
                    let Some(first) = self.candidates.get(name).and_then(|left| left.first()) else {
                        self.exhausted_nodes.insert(child);
                        continue;
                    };
                    if !share.borrows && child != preemptor {
                        self.exhausted_nodes.insert(child);
                        continue;
                    }
                    let better = queue.as_ref().is_none_or(|best| {
                        let order = share.compare(self.quota_tree().dominant_share(&Node::Queue(best.clone())));
                        let other = &self.candidates[best][0];
                        let own = |target: &Target| target.queue == self.search.input.queue.name;
                        let before = (own(first), &first.order) < (own(other), &other.order);
                        order.is_gt() || (order.is_eq() && before)
                    });
                    queue = if better { Some(name.clone()) } else { queue };
                }
                Node::Cohort(_) => {
                    if !share.borrows && !self.quota_tree().ancestors(&preemptor).contains(&child) {
                        self.exhausted_nodes.insert(child);
                    } else if below
                        .as_ref()
                        .is_none_or(|best| share.compare(self.quota_tree().dominant_share(best)).is_ge())
                    {
                        below = Some(child);
                    }
                }
            }
        }
        match (below, queue) {
            (None, None) => {
                self.exhausted_nodes.insert(cohort.clone());
                None
            }
            (None, queue) => queue,
            (Some(below), None) => self.next_queue_below(&below),
            (Some(below), Some(queue)) => {
                let tree = self.quota_tree();
                if tree.dominant_share(&below).compare(tree.dominant_share(&Node::Queue(queue.clone()))).is_ge() {
                    self.next_queue_below(&below)
                } else {
                    Some(queue)
                }
            }
        }
    }
}
