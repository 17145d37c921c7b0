//! Available quota of a node, and propagation of usage to its parents (kueue v0.19.2
//! `pkg/cache/scheduler/resource_node.go`).

use std::cell::OnceCell;

use super::{CohortTree, FlavorResourceId, NodeId, QuotaCell};

/// Selects the usage to consider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UsageView {
    /// Quota held by all workloads.
    Actual = 0,
    /// Quota held by workloads that are not being evicted, and capacity reserved in this cycle.
    Planned = 1,
}

/// The lowest subtree that has the quota for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LowestFit {
    /// Height of the subtree: 0 for the ClusterQueue itself, which then does not borrow.
    pub(crate) height: u32,
    /// True if the subtree has a parent, so that quota borrowed from it can be reclaimed.
    pub(crate) reclaimable: bool,
}

impl QuotaCell {
    /// Returns the quota that is not lent to the parent.
    pub(super) fn local_quota(&self) -> i128 {
        self.lending_limit.map_or(0, |limit| (self.subtree_quota - limit).max(0))
    }

    /// Returns the unused part of the local quota.
    fn local_available(&self, used: i128) -> i128 {
        (self.local_quota() - used).max(0)
    }

    /// Returns the usage that exceeds the local quota and counts at the parent.
    fn usage_from_parent(&self, used: i128) -> i128 {
        (used - self.local_quota()).max(0)
    }
}

impl CohortTree {
    /// Adds to the usage of a ClusterQueue and its Cohorts, or subtracts if `amount` is negative.
    pub(crate) fn add_usage(&mut self, cluster_queue: NodeId, fr: FlavorResourceId, amount: i128, view: UsageView) {
        let (mut at, mut amount) = (cluster_queue, amount);
        while amount != 0 {
            let stale = self.stale;
            let cell = self.cell_mut(at, fr);
            let used = cell.usage[view as usize];
            cell.usage[view as usize] = used + amount;
            amount = cell.usage_from_parent(used + amount) - cell.usage_from_parent(used);
            if view == UsageView::Planned {
                self.node_mut(at).share = OnceCell::new();
            }
            match self.parent(at) {
                // A stale tree is summed up again before it is used.
                Some(parent) if !stale => at = parent,
                _ => break,
            }
        }
    }

    /// Returns the usage of a ClusterQueue, or of the quota of a Cohort.
    pub(crate) fn usage(&self, node: NodeId, fr: FlavorResourceId, view: UsageView) -> i128 {
        self.cell(node, fr).usage[view as usize]
    }

    /// Returns the nominal quota of the node itself.
    pub(crate) fn nominal_quota(&self, node: NodeId, fr: FlavorResourceId) -> i128 {
        self.cell(node, fr).nominal_quota
    }

    /// Returns the borrowing limit of the node; `None` if it is unlimited.
    pub(crate) fn borrowing_limit(&self, node: NodeId, fr: FlavorResourceId) -> Option<i128> {
        self.cell(node, fr).borrowing_limit
    }

    /// Returns the quota of the node and of its subtree that it can use.
    pub(crate) fn subtree_quota(&self, node: NodeId, fr: FlavorResourceId) -> i128 {
        self.cell(node, fr).subtree_quota
    }

    /// Returns the available quota of a node; negative if usage exceeds the quota. `less` is
    /// subtracted from the usage of the node first.
    pub(crate) fn available(&self, node: NodeId, fr: FlavorResourceId, view: UsageView, less: i128) -> i128 {
        let cell = self.cell(node, fr);
        let used = cell.usage[view as usize];
        let kept = used - less;
        let Some(parent) = self.parent(node) else { return cell.subtree_quota - kept };
        let passed_on = cell.usage_from_parent(used) - cell.usage_from_parent(kept);
        let mut of_parent = self.available(parent, fr, view, passed_on);
        if let Some(headroom) = cell.borrowing_headroom(kept) {
            of_parent = of_parent.min(headroom);
        }
        cell.local_available(kept) + of_parent
    }

    /// Returns the most that a node can get if nothing is in use.
    pub(crate) fn potential_available(&self, node: NodeId, fr: FlavorResourceId) -> i128 {
        let cell = self.cell(node, fr);
        let Some(parent) = self.parent(node) else { return cell.subtree_quota };
        let most = cell.local_quota() + self.potential_available(parent, fr);
        cell.borrowing_limit.map_or(most, |limit| most.min(cell.subtree_quota + limit))
    }

    /// Reports whether a node exceeds its quota.
    pub(crate) fn borrows(&self, node: NodeId, fr: FlavorResourceId, view: UsageView) -> bool {
        let cell = self.cell(node, fr);
        self.parent(node).is_some() && cell.usage[view as usize] > cell.subtree_quota
    }

    /// Reports whether a node is within its quota of all these flavor resources.
    pub(crate) fn within_quota(&self, node: NodeId, frs: &[FlavorResourceId], view: UsageView) -> bool {
        frs.iter().all(|fr| {
            let cell = self.cell(node, *fr);
            cell.usage[view as usize] <= cell.subtree_quota
        })
    }

    /// Reports whether a node would exceed its quota with `amount` more.
    pub(crate) fn would_borrow(&self, node: NodeId, fr: FlavorResourceId, amount: i128, view: UsageView) -> bool {
        let cell = self.cell(node, fr);
        self.parent(node).is_some() && cell.usage[view as usize] + amount > cell.subtree_quota
    }

    /// Returns the additional usage of the parent if the node used `amount` more.
    pub(crate) fn borrowed_from_parent(
        &self,
        node: NodeId,
        fr: FlavorResourceId,
        amount: i128,
        view: UsageView,
    ) -> i128 {
        let cell = self.cell(node, fr);
        let used = cell.usage[view as usize];
        cell.usage_from_parent(used + amount) - cell.usage_from_parent(used)
    }

    /// Returns the unused local quota of a node, which its parent cannot use.
    pub(crate) fn local_available(&self, node: NodeId, fr: FlavorResourceId, view: UsageView) -> i128 {
        let cell = self.cell(node, fr);
        cell.local_available(cell.usage[view as usize])
    }

    /// Returns the lowest subtree that has the quota for `amount` more (kueue v0.19.2
    /// `pkg/scheduler/preemption/classical/hierarchical_preemption.go`,
    /// `FindHeightOfLowestSubtreeThatFits`). `less` is subtracted from the usage of the
    /// ClusterQueue first.
    pub(crate) fn lowest_fit(
        &self,
        cluster_queue: NodeId,
        fr: FlavorResourceId,
        amount: i128,
        view: UsageView,
        less: i128,
    ) -> LowestFit {
        let (mut node, mut amount, mut less) = (cluster_queue, amount, less);
        loop {
            let cell = self.cell(node, fr);
            let used = cell.usage[view as usize];
            let kept = used - less;
            let parent = self.parent(node);
            let fits = kept + amount <= cell.subtree_quota;
            // The root never borrows: a request that gets this far uses the whole tree.
            let Some(parent) = parent.filter(|_| !fits) else {
                let height = self.node(node).height;
                return LowestFit {
                    height: if node == cluster_queue { 0 } else { height },
                    reclaimable: parent.is_some(),
                };
            };
            less = cell.usage_from_parent(used) - cell.usage_from_parent(kept);
            amount -= cell.local_available(kept);
            node = parent;
        }
    }

    /// Returns the first node, from the ClusterQueue up, whose borrowing limit leaves less than
    /// `amount`, and true; otherwise the root and false. `less` is subtracted from the usage of the
    /// ClusterQueue first.
    pub(crate) fn binding_limit(
        &self,
        cluster_queue: NodeId,
        fr: FlavorResourceId,
        amount: i128,
        view: UsageView,
        less: i128,
    ) -> (NodeId, bool) {
        let (mut node, mut amount, mut less) = (cluster_queue, amount, less);
        loop {
            let cell = self.cell(node, fr);
            let used = cell.usage[view as usize];
            let kept = used - less;
            let Some(parent) = self.parent(node) else { return (node, false) };
            amount -= cell.local_available(kept);
            if cell.borrowing_headroom(kept).is_some_and(|headroom| headroom < amount) {
                return (node, true);
            }
            less = cell.usage_from_parent(used) - cell.usage_from_parent(kept);
            node = parent;
        }
    }
}

impl CohortTree {
    /// Returns the same as [`binding_limit`](Self::binding_limit) if nothing is in use.
    pub(crate) fn binding_limit_when_idle(
        &self,
        cluster_queue: NodeId,
        fr: FlavorResourceId,
        amount: i128,
    ) -> (NodeId, bool) {
        let (mut node, mut amount) = (cluster_queue, amount);
        loop {
            let cell = self.cell(node, fr);
            let Some(parent) = self.parent(node) else { return (node, false) };
            if cell.borrowing_limit.is_some_and(|limit| cell.subtree_quota + limit < amount) {
                return (node, true);
            }
            amount -= cell.local_quota();
            node = parent;
        }
    }
}

impl CohortTree {
    /// Returns the value of the limit found by [`binding_limit_when_idle`](Self::binding_limit_when_idle) that permits `amount`: a
    /// borrowing limit or the nominal quota of the root. `None` if another limit is exceeded as
    /// well.
    pub(crate) fn required_limit(&self, cluster_queue: NodeId, fr: FlavorResourceId, amount: i128) -> Option<i128> {
        let (mut node, mut amount, mut limit) = (cluster_queue, amount, None);
        loop {
            let cell = self.cell(node, fr);
            let Some(parent) = self.parent(node) else {
                let missing = amount - cell.subtree_quota;
                return if missing > 0 { limit.is_none().then_some(cell.nominal_quota + missing) } else { limit };
            };
            if cell.borrowing_limit.is_some_and(|limit| cell.subtree_quota + limit < amount) {
                if limit.is_some() {
                    return None;
                }
                limit = Some(amount - cell.subtree_quota);
            }
            amount -= cell.local_quota();
            node = parent;
        }
    }
}

impl QuotaCell {
    /// Returns the amount that the borrowing limit still permits from the parent; `None` without a
    /// limit.
    fn borrowing_headroom(&self, used: i128) -> Option<i128> {
        let limit = self.borrowing_limit?;
        Some(self.subtree_quota - self.local_quota() - self.usage_from_parent(used) + limit)
    }
}
