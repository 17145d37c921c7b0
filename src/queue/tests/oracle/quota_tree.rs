//! Quota arithmetic of the cohort tree, computed from the usage of each workload.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use crate::partial_preemption::PreemptionScope;
use sluice_plan::ObjectKey;

/// Flavor and resource.
pub(crate) type FlavorResource = (String, String);
/// Amounts by flavor and resource.
pub(crate) type Usage = BTreeMap<FlavorResource, i128>;

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Limits {
    pub(super) nominal: i128,
    pub(super) borrowing: Option<i128>,
    pub(super) lending: Option<i128>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Node {
    Cohort(String),
    Queue(String),
}

#[derive(Debug, Clone, Default)]
pub(super) struct NodeSpec {
    /// Name of the parent Cohort.
    pub(super) parent: Option<String>,
    pub(super) limits: BTreeMap<FlavorResource, Limits>,
    pub(super) weight: f64,
}

pub(super) type Tree = BTreeMap<Node, NodeSpec>;

#[derive(Debug, Clone)]
pub(super) struct WorkloadUsage {
    pub(super) queue: String,
    pub(super) workload: ObjectKey,
    /// Smallest preemption scope with which this usage is lost.
    pub(super) scope: PreemptionScope,
    pub(super) usage: Usage,
}

/// A cohort tree and the usage in it.
#[derive(Debug, Clone)]
pub(super) struct QuotaTree<'w> {
    pub(super) tree: &'w Tree,
    pub(super) usages: Vec<WorkloadUsage>,
}

/// The dominant resource share of a node.
#[derive(Debug, Clone, Copy)]
pub(super) struct DominantShare {
    pub(super) borrows: bool,
    ratio: f64,
    weight: f64,
}

impl DominantShare {
    fn is_infinite(self) -> bool {
        self.weight == 0.0 && self.ratio > 0.0
    }

    pub(super) fn compare(self, other: Self) -> Ordering {
        match (self.is_infinite(), other.is_infinite()) {
            (true, true) => self.ratio.total_cmp(&other.ratio),
            (false, false) => {
                let weighted = |share: Self| if share.ratio == 0.0 { 0.0 } else { share.ratio / share.weight };
                weighted(self).total_cmp(&weighted(other))
            }
            (infinite, _) => infinite.cmp(&!infinite),
        }
    }
}

impl QuotaTree<'_> {
    /// Returns the tree without the usage that these workloads lose.
    pub(super) fn without(&self, losses: &[(ObjectKey, PreemptionScope)]) -> Self {
        let lost = |held: &WorkloadUsage| losses.iter().any(|(who, loss)| *who == held.workload && held.scope <= *loss);
        Self { tree: self.tree, usages: self.usages.iter().filter(|held| !lost(held)).cloned().collect() }
    }

    /// Returns the tree with additional usage of a workload.
    pub(super) fn with_usage(&self, queue: &str, who: &ObjectKey, usage: &Usage) -> Self {
        let mut tree = self.clone();
        tree.usages.push(WorkloadUsage {
            queue: queue.to_owned(),
            workload: who.clone(),
            scope: PreemptionScope::Whole,
            usage: usage.clone(),
        });
        tree
    }

    /// Returns the parent Cohort, which may have no object; `None` for a root.
    pub(super) fn parent(&self, node: &Node) -> Option<Node> {
        self.tree.get(node)?.parent.clone().map(Node::Cohort)
    }

    /// Returns all ancestor Cohorts, the parent first.
    pub(super) fn ancestors(&self, node: &Node) -> Vec<Node> {
        std::iter::successors(self.parent(node), |node| self.parent(node)).collect()
    }

    pub(super) fn root(&self, node: &Node) -> Node {
        self.ancestors(node).last().unwrap_or(node).clone()
    }

    pub(super) fn children(&self, node: &Node) -> Vec<Node> {
        self.tree.keys().filter(|child| self.parent(child).as_ref() == Some(node)).cloned().collect()
    }

    pub(super) fn limits(&self, node: &Node, fr: &FlavorResource) -> Limits {
        self.tree.get(node).and_then(|spec| spec.limits.get(fr)).copied().unwrap_or_default()
    }

    /// Returns the nominal quota of the node plus what its children lend.
    pub(super) fn subtree_quota(&self, node: &Node, fr: &FlavorResource) -> i128 {
        let lent = |child: &Node| self.subtree_quota(child, fr) - self.local_quota(child, fr);
        self.limits(node, fr).nominal + self.children(node).iter().map(lent).sum::<i128>()
    }

    /// Returns the quota that the node does not lend, because of its lending limit.
    fn local_quota(&self, node: &Node, fr: &FlavorResource) -> i128 {
        self.limits(node, fr).lending.map_or(0, |lending| (self.subtree_quota(node, fr) - lending).max(0))
    }

    /// Returns the usage of a ClusterQueue, or the usage that children take from a Cohort.
    pub(super) fn usage(&self, node: &Node, fr: &FlavorResource) -> i128 {
        match node {
            Node::Queue(name) => {
                let in_queue = self.usages.iter().filter(|held| held.queue == *name);
                in_queue.filter_map(|held| held.usage.get(fr)).sum()
            }
            Node::Cohort(_) => {
                let taken = |child: &Node| (self.usage(child, fr) - self.local_quota(child, fr)).max(0);
                self.children(node).iter().map(taken).sum()
            }
        }
    }

    /// Returns the available part of [`Self::local`].
    pub(super) fn local_available(&self, node: &Node, fr: &FlavorResource) -> i128 {
        (self.local_quota(node, fr) - self.usage(node, fr)).max(0)
    }

    /// Returns the quota that the node can still use, with borrowing; negative if overcommitted.
    pub(super) fn available(&self, node: &Node, fr: &FlavorResource) -> i128 {
        let Some(parent) = self.parent(node) else { return self.subtree_quota(node, fr) - self.usage(node, fr) };
        let mut from_parent = self.available(&parent, fr);
        if let Some(borrowing) = self.limits(node, fr).borrowing {
            let stored = self.subtree_quota(node, fr) - self.local_quota(node, fr);
            let taken = (self.usage(node, fr) - self.local_quota(node, fr)).max(0);
            from_parent = from_parent.min(stored - taken + borrowing);
        }
        self.local_available(node, fr) + from_parent
    }

    /// Returns the quota that the node can use in an empty tree.
    pub(super) fn potential_available(&self, node: &Node, fr: &FlavorResource) -> i128 {
        let Some(parent) = self.parent(node) else { return self.subtree_quota(node, fr) };
        let most = self.local_quota(node, fr) + self.potential_available(&parent, fr);
        self.limits(node, fr).borrowing.map_or(most, |borrowing| most.min(self.subtree_quota(node, fr) + borrowing))
    }

    /// Reports whether the node uses more than its subtree quota.
    pub(super) fn exceeds_quota(&self, node: &Node, fr: &FlavorResource) -> bool {
        self.usage(node, fr) > self.subtree_quota(node, fr)
    }

    pub(super) fn exceeds_quota_of_any(&self, node: &Node, frs: &BTreeSet<FlavorResource>) -> bool {
        frs.iter().any(|fr| self.exceeds_quota(node, fr))
    }

    fn would_exceed_quota(&self, node: &Node, fr: &FlavorResource, amount: i128) -> bool {
        self.usage(node, fr) + amount > self.subtree_quota(node, fr)
    }

    /// Reports whether a ClusterQueue would borrow with this additional usage.
    pub(super) fn would_borrow(&self, node: &Node, fr: &FlavorResource, amount: i128) -> bool {
        self.parent(node).is_some() && self.would_exceed_quota(node, fr, amount)
    }

    pub(super) fn fits(&self, node: &Node, usage: &Usage) -> bool {
        usage.iter().all(|(fr, amount)| *amount <= self.available(node, fr))
    }

    fn height(&self, node: &Node) -> u32 {
        self.children(node).iter().map(|child| self.height(child) + 1).max().unwrap_or(0)
    }

    /// Returns the height of the lowest subtree whose quota covers the additional amount, and
    /// whether that is less than the whole tree.
    pub(super) fn borrowing_level(&self, queue: &Node, fr: &FlavorResource, amount: i128) -> (u32, bool) {
        if !self.would_borrow(queue, fr, amount) {
            return (0, self.parent(queue).is_some());
        }
        let mut remaining = amount - self.local_available(queue, fr);
        for node in self.ancestors(queue) {
            if !self.would_exceed_quota(&node, fr, remaining) {
                return (self.height(&node), self.parent(&node).is_some());
            }
            remaining -= self.local_available(&node, fr);
        }
        (self.height(&self.root(queue)), false)
    }

    /// Returns all flavors and resources for which a node has quota.
    pub(super) fn flavor_resources(&self) -> BTreeSet<FlavorResource> {
        self.tree.values().flat_map(|spec| spec.limits.keys().cloned()).collect()
    }

    /// Returns the dominant resource share of a node, in thousandths of the lendable quota.
    pub(super) fn dominant_share(&self, node: &Node) -> DominantShare {
        let weight = self.tree.get(node).map_or(1.0, |spec| spec.weight);
        let mut share = DominantShare { borrows: false, ratio: 0.0, weight };
        let Some(parent) = self.parent(node) else { return share };
        let frs = self.flavor_resources();
        for resource in frs.iter().map(|(_, resource)| resource).collect::<BTreeSet<_>>() {
            let of_resource = || frs.iter().filter(|(_, other)| other == resource);
            let above = |fr: &FlavorResource| (self.usage(node, fr) - self.subtree_quota(node, fr)).max(0);
            let borrowed: i128 = of_resource().map(above).sum();
            let lendable: i128 = of_resource().map(|fr| self.potential_available(&parent, fr)).sum();
            share.borrows |= borrowed > 0;
            if borrowed > 0 && lendable > 0 {
                share.ratio = share.ratio.max(borrowed as f64 * 1000.0 / lendable as f64);
            }
        }
        share
    }
}
