//! How much of what can be lent a node takes: the dominant resource share (kueue v0.19.2
//! `pkg/cache/scheduler/fair_sharing.go`).

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::{Fr, NodeId, Tree, View};

/// How much a node counts beside its siblings; zero comes last.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub(in crate::queue) struct Weight(pub(in crate::queue) f64);

impl Default for Weight {
    fn default() -> Self {
        Self(1.0)
    }
}

/// The share of a node. Shares are ordered: who has less comes first, and who has more is preempted first.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::queue) struct Share {
    weight: Weight,
    /// Largest ratio over all resources of what is borrowed to what can be lent, in thousandths.
    ratio: f64,
    borrows: bool,
}

impl Share {
    /// Whether the node uses more than its part of any quota.
    pub(in crate::queue) fn borrows(self) -> bool {
        self.borrows
    }

    fn weighted(self) -> f64 {
        if self.ratio == 0.0 {
            0.0
        } else if self.weight.0 == 0.0 {
            f64::INFINITY
        } else {
            self.ratio / self.weight.0
        }
    }

    fn borrows_without_weight(self) -> bool {
        self.weight.0 == 0.0 && self.ratio != 0.0
    }

    /// As the status says it, in thousandths: rounded up, and the largest number for a borrower without weight.
    pub(in crate::queue) fn published(self) -> i64 {
        // A float beyond the integers saturates.
        if self.borrows_without_weight() { i64::MAX } else { self.weighted().ceil() as i64 }
    }

    pub(in crate::queue) fn compare(self, other: Self) -> Ordering {
        match (self.borrows_without_weight(), other.borrows_without_weight()) {
            (true, true) => self.ratio.total_cmp(&other.ratio),
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) => self.weighted().total_cmp(&other.weighted()),
        }
    }
}

impl Tree {
    /// The share that a node takes of what its parent can lend, by what is planned.
    pub(in crate::queue) fn share(&self, node: NodeId) -> Share {
        *self.node(node).share.get_or_init(|| self.share_in(node, View::Planned))
    }

    /// The share that a node takes of what its parent can lend.
    pub(in crate::queue) fn share_in(&self, node: NodeId, view: View) -> Share {
        let weight = self.node(node).spec.as_ref().map_or(Weight::default(), |spec| spec.weight);
        let mut share = Share { weight, ratio: 0.0, borrows: false };
        let Some(parent) = self.parent(node) else { return share };
        let mut borrowed: BTreeMap<&str, i128> = BTreeMap::new();
        for (fr, cell) in &self.node(node).cells {
            let above = cell.used[view as usize] - cell.subtree;
            if above > 0 {
                *borrowed.entry(&self.flavor_resource(*fr).resource).or_default() += above;
            }
        }
        share.borrows = !borrowed.is_empty();
        for (resource, amount) in borrowed {
            let lendable = self.lendable(parent, resource);
            if lendable > 0 {
                share.ratio = share.ratio.max(amount as f64 * 1000.0 / lendable as f64);
            }
        }
        share
    }

    /// The largest planned share of a Cohort's children. It is kept until the tree's next state, so ask only while nothing is
    /// tried out.
    pub(in crate::queue) fn largest_share(&self, cohort: NodeId) -> Option<Share> {
        let kept = &self.node(cohort).largest;
        if let Some((_, share)) = kept.get().filter(|(state, _)| *state == self.state) {
            return Some(share);
        }
        let shares = self.children(cohort).iter().map(|child| self.share(*child));
        let largest = shares.max_by(|a, b| a.compare(*b))?;
        kept.set(Some((self.state, largest)));
        Some(largest)
    }

    /// Whether a node uses more than its part of the quota of any of these of which something is asked.
    pub(in crate::queue) fn borrows_any(&self, node: NodeId, asked: &[(Fr, i128)], view: View) -> bool {
        asked.iter().any(|(fr, amount)| *amount > 0 && self.borrows(node, *fr, view))
    }

    /// All that a node could ever get of a resource, over all flavors that the tree knows.
    fn lendable(&self, node: NodeId, resource: &str) -> i128 {
        let all = self.node(self.root(node)).cells.iter().map(|(fr, _)| *fr);
        all.filter(|fr| self.flavor_resource(*fr).resource == resource).map(|fr| self.potential(node, fr)).sum()
    }
}
