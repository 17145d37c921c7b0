//! How much of the quota is free for a node, and how usage bubbles up (kueue v0.19.2
//! `pkg/cache/scheduler/resource_node.go`).

use std::cell::OnceCell;

use super::{Cell, Fr, NodeId, Tree};

/// Which usage counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum View {
    /// What is held.
    Actual = 0,
    /// What is held by those that stay, and what was promised in this cycle.
    Planned = 1,
}

/// The lowest part of the tree that has the quota for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fit {
    /// Its height: 0 for the ClusterQueue itself, which then borrows nothing.
    pub(crate) height: u32,
    /// Whether it is only a part of the tree, so that others can be made to give back what they borrow of it.
    pub(crate) reclaimable: bool,
}

impl Cell {
    /// Quota that is never lent to the parent.
    pub(super) fn local(&self) -> i128 {
        self.lending_limit.map_or(0, |limit| (self.subtree - limit).max(0))
    }

    /// What is left of it.
    fn local_available(&self, used: i128) -> i128 {
        (self.local() - used).max(0)
    }

    /// What is used of the parent's.
    fn used_of_parent(&self, used: i128) -> i128 {
        (used - self.local()).max(0)
    }
}

impl Tree {
    /// Adds to the usage of a ClusterQueue, or takes off when `amount` is negative.
    pub(crate) fn add(&mut self, cluster_queue: NodeId, fr: Fr, amount: i128, view: View) {
        let (mut at, mut amount) = (cluster_queue, amount);
        while amount != 0 {
            let stale = self.stale;
            let cell = self.cell_mut(at, fr);
            let used = cell.used[view as usize];
            cell.used[view as usize] = used + amount;
            amount = cell.used_of_parent(used + amount) - cell.used_of_parent(used);
            if view == View::Planned {
                self.node_mut(at).share = OnceCell::new();
            }
            match self.parent(at) {
                // A stale tree is summed up anew before it is looked at.
                Some(parent) if !stale => at = parent,
                _ => break,
            }
        }
    }

    /// What a ClusterQueue or Cohort uses.
    pub(crate) fn used(&self, node: NodeId, fr: Fr, view: View) -> i128 {
        self.cell(node, fr).used[view as usize]
    }

    /// The node's own nominal quota.
    pub(crate) fn nominal(&self, node: NodeId, fr: Fr) -> i128 {
        self.cell(node, fr).nominal
    }

    pub(crate) fn borrowing_limit(&self, node: NodeId, fr: Fr) -> Option<i128> {
        self.cell(node, fr).borrowing_limit
    }

    /// Quota of the node and of all below it that it can get at.
    pub(crate) fn subtree_quota(&self, node: NodeId, fr: Fr) -> i128 {
        self.cell(node, fr).subtree
    }

    /// What a node can still get. Below zero when more is used than there is. `less` is taken off the node's usage first.
    pub(crate) fn available(&self, node: NodeId, fr: Fr, view: View, less: i128) -> i128 {
        let cell = self.cell(node, fr);
        let used = cell.used[view as usize];
        let kept = used - less;
        let Some(parent) = self.parent(node) else { return cell.subtree - kept };
        let passed_on = cell.used_of_parent(used) - cell.used_of_parent(kept);
        let mut of_parent = self.available(parent, fr, view, passed_on);
        if let Some(headroom) = cell.headroom(kept) {
            of_parent = of_parent.min(headroom);
        }
        cell.local_available(kept) + of_parent
    }

    /// The most that a node could ever get, if nobody used anything.
    pub(crate) fn potential(&self, node: NodeId, fr: Fr) -> i128 {
        let cell = self.cell(node, fr);
        let Some(parent) = self.parent(node) else { return cell.subtree };
        let most = cell.local() + self.potential(parent, fr);
        cell.borrowing_limit.map_or(most, |limit| most.min(cell.subtree + limit))
    }

    /// Whether a node uses more than its part of the quota.
    pub(crate) fn borrows(&self, node: NodeId, fr: Fr, view: View) -> bool {
        let cell = self.cell(node, fr);
        self.parent(node).is_some() && cell.used[view as usize] > cell.subtree
    }

    /// Whether a node is within its part of the quota of all of these.
    pub(crate) fn within_quota(&self, node: NodeId, frs: &[Fr], view: View) -> bool {
        frs.iter().all(|fr| {
            let cell = self.cell(node, *fr);
            cell.used[view as usize] <= cell.subtree
        })
    }

    /// Whether a node would use more than its part of the quota with `amount` more.
    pub(crate) fn would_borrow(&self, node: NodeId, fr: Fr, amount: i128, view: View) -> bool {
        let cell = self.cell(node, fr);
        self.parent(node).is_some() && cell.used[view as usize] + amount > cell.subtree
    }

    /// How much more of its parent's quota a node would use with `amount` more.
    pub(crate) fn passed_on(&self, node: NodeId, fr: Fr, amount: i128, view: View) -> i128 {
        let cell = self.cell(node, fr);
        let used = cell.used[view as usize];
        cell.used_of_parent(used + amount) - cell.used_of_parent(used)
    }

    /// What of a node's own part is free and not visible to its parent.
    pub(crate) fn local_available(&self, node: NodeId, fr: Fr, view: View) -> i128 {
        let cell = self.cell(node, fr);
        cell.local_available(cell.used[view as usize])
    }

    /// The lowest part of the tree that has the quota for `amount` more (kueue v0.19.2
    /// `pkg/scheduler/preemption/classical/hierarchical_preemption.go`, `FindHeightOfLowestSubtreeThatFits`). `less` is taken
    /// off the usage of the ClusterQueue first.
    pub(crate) fn lowest_fit(&self, cluster_queue: NodeId, fr: Fr, amount: i128, view: View, less: i128) -> Fit {
        let (mut node, mut amount, mut less) = (cluster_queue, amount, less);
        loop {
            let cell = self.cell(node, fr);
            let used = cell.used[view as usize];
            let kept = used - less;
            let parent = self.parent(node);
            let fits = kept + amount <= cell.subtree;
            // The root never borrows: who gets that far uses all there is.
            let Some(parent) = parent.filter(|_| !fits) else {
                let height = self.node(node).height;
                return Fit { height: if node == cluster_queue { 0 } else { height }, reclaimable: parent.is_some() };
            };
            less = cell.used_of_parent(used) - cell.used_of_parent(kept);
            amount -= cell.local_available(kept);
            node = parent;
        }
    }

    /// The first node on the way up, the ClusterQueue included, at which the limit on borrowing leaves less than `amount`;
    /// else the root.
    pub(crate) fn binding(
        &self,
        cluster_queue: NodeId,
        fr: Fr,
        amount: i128,
        view: View,
        less: i128,
    ) -> (NodeId, bool) {
        let (mut node, mut amount, mut less) = (cluster_queue, amount, less);
        loop {
            let cell = self.cell(node, fr);
            let used = cell.used[view as usize];
            let kept = used - less;
            let Some(parent) = self.parent(node) else { return (node, false) };
            amount -= cell.local_available(kept);
            if cell.headroom(kept).is_some_and(|headroom| headroom < amount) {
                return (node, true);
            }
            less = cell.used_of_parent(used) - cell.used_of_parent(kept);
            node = parent;
        }
    }
}

impl Tree {
    /// As [`Tree::binding`], if nobody used anything.
    pub(crate) fn binding_ever(&self, cluster_queue: NodeId, fr: Fr, amount: i128) -> (NodeId, bool) {
        let (mut node, mut amount) = (cluster_queue, amount);
        loop {
            let cell = self.cell(node, fr);
            let Some(parent) = self.parent(node) else { return (node, false) };
            if cell.borrowing_limit.is_some_and(|limit| cell.subtree + limit < amount) {
                return (node, true);
            }
            amount -= cell.local();
            node = parent;
        }
    }
}

impl Tree {
    /// What [`Tree::binding_ever`] would have to be for there to be `amount`: the borrowing limit of that node, or the nominal
    /// quota of the root. `None` if another limit is in the way as well.
    pub(crate) fn enough_ever(&self, cluster_queue: NodeId, fr: Fr, amount: i128) -> Option<i128> {
        let (mut node, mut amount, mut limit) = (cluster_queue, amount, None);
        loop {
            let cell = self.cell(node, fr);
            let Some(parent) = self.parent(node) else {
                let missing = amount - cell.subtree;
                return if missing > 0 { limit.is_none().then_some(cell.nominal + missing) } else { limit };
            };
            if cell.borrowing_limit.is_some_and(|limit| cell.subtree + limit < amount) {
                if limit.is_some() {
                    return None;
                }
                limit = Some(amount - cell.subtree);
            }
            amount -= cell.local();
            node = parent;
        }
    }
}

impl Cell {
    /// What the borrowing limit still lets the node take of its parent's; `None` without a limit.
    fn headroom(&self, used: i128) -> Option<i128> {
        let limit = self.borrowing_limit?;
        Some(self.subtree - self.local() - self.used_of_parent(used) + limit)
    }
}
