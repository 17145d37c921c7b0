//! The dominant resource share: borrowed quota relative to lendable quota (kueue v0.19.2
//! `pkg/cache/scheduler/fair_sharing.go`).

use std::cmp::Ordering;

use super::{CohortTree, FlavorResourceId, NodeId, UsageView};

/// Fair sharing weight of a node. A borrower with weight zero comes after all others.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub(crate) struct FairWeight(pub(crate) f64);

impl Default for FairWeight {
    fn default() -> Self {
        Self(1.0)
    }
}

/// The dominant resource share of a node. A smaller share is admitted first, a larger one is
/// preempted first.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct DominantShare {
    weight: FairWeight,
    /// Largest ratio of borrowed to lendable quota over all resources, in thousandths, before
    /// weighting.
    ratio: f64,
    borrows: bool,
    /// The only flavor resource that it borrows; `None` if there are none or several.
    only_borrowed: Option<FlavorResourceId>,
}

/// The largest share of the borrowing children of a Cohort.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LargestShare {
    share: DominantShare,
    /// The only flavor resource that all children with this share borrow, if they are
    /// ClusterQueues.
    only_borrowed: Option<FlavorResourceId>,
}

impl LargestShare {
    /// Reports whether this share is smaller than `share`.
    pub(crate) fn is_less_than(self, share: DominantShare) -> bool {
        self.share.compare(share) == Ordering::Less
    }

    /// Reports whether any of the children, or a node below them, may be preempted for `fr` by a
    /// sibling with the share `ours`. A child that releases some of the only resource that it
    /// borrows has a smaller share afterwards, so an equal share is not sufficient.
    pub(crate) fn may_be_preempted(self, fr: FlavorResourceId, ours: DominantShare) -> bool {
        match self.share.compare(ours) {
            Ordering::Less => false,
            Ordering::Equal => self.only_borrowed != Some(fr),
            Ordering::Greater => true,
        }
    }
}

impl DominantShare {
    /// Reports whether the node exceeds its quota of any flavor resource.
    pub(crate) fn borrows(self) -> bool {
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

    /// Returns the value for the status, in thousandths: rounded up, and `i64::MAX` for a borrower
    /// with weight zero.
    pub(crate) fn to_status_value(self) -> i64 {
        // Conversion of a larger float saturates.
        if self.borrows_without_weight() { i64::MAX } else { self.weighted().ceil() as i64 }
    }

    /// Compares two shares, by unweighted ratio between borrowers with weight zero.
    pub(crate) fn compare(self, other: Self) -> Ordering {
        match (self.borrows_without_weight(), other.borrows_without_weight()) {
            (true, true) => self.ratio.total_cmp(&other.ratio),
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) => self.weighted().total_cmp(&other.weighted()),
        }
    }
}

impl CohortTree {
    /// Returns the share of a node by planned usage.
    pub(crate) fn share(&self, node: NodeId) -> DominantShare {
        *self.node(node).share.get_or_init(|| self.share_by_view(node, UsageView::Planned))
    }

    /// Returns the share of a node by the given usage.
    pub(crate) fn share_by_view(&self, node: NodeId, view: UsageView) -> DominantShare {
        self.compute_share(node, view, &[])
    }

    /// Returns the planned share that a node would have with this additional usage.
    pub(crate) fn share_with(&self, node: NodeId, more: &[(FlavorResourceId, i128)]) -> DominantShare {
        self.compute_share(node, UsageView::Planned, more)
    }

    fn compute_share(&self, node: NodeId, view: UsageView, more: &[(FlavorResourceId, i128)]) -> DominantShare {
        let weight = self.node(node).spec.as_ref().map_or(FairWeight::default(), |spec| spec.weight);
        let mut share = DominantShare { weight, ratio: 0.0, borrows: false, only_borrowed: None };
        let Some(parent) = self.parent(node) else { return share };
        let cells = &self.node(node).cells;
        let mut borrowed: Vec<(&str, i128)> = Vec::new();
        let mut borrow = |fr: FlavorResourceId, above: i128| {
            if above > 0 {
                share.only_borrowed = (!share.borrows).then_some(fr);
                share.borrows = true;
                let resource = self.flavor_resource(fr).resource.as_str();
                match borrowed.iter_mut().find(|(known, _)| *known == resource) {
                    Some((_, amount)) => *amount += above,
                    None => borrowed.push((resource, above)),
                }
            }
        };
        for (fr, cell) in cells {
            let more = more.iter().find(|(more, _)| more == fr).map_or(0, |(_, amount)| *amount);
            borrow(*fr, cell.usage[view as usize] + more - cell.subtree_quota);
        }
        let without_cell = more.iter().filter(|(fr, _)| cells.binary_search_by_key(fr, |(fr, _)| *fr).is_err());
        without_cell.for_each(|(fr, amount)| borrow(*fr, *amount));
        for (resource, amount) in borrowed {
            let lendable = self.lendable(parent, resource);
            if lendable > 0 {
                share.ratio = share.ratio.max(amount as f64 * 1000.0 / lendable as f64);
            }
        }
        share
    }

    /// Returns the largest planned share of the borrowing children of a Cohort. `None` if no child
    /// borrows. Cached until the next tree state, so it must not be called during a simulation.
    pub(crate) fn largest_share(&self, cohort: NodeId) -> Option<LargestShare> {
        let kept = &self.node(cohort).largest;
        if let Some((_, largest)) = kept.get().filter(|(state, _)| *state == self.state) {
            return largest;
        }
        let mut largest: Option<LargestShare> = None;
        for child in self.children(cohort) {
            let share = self.share(*child);
            let only = share.only_borrowed.filter(|_| self.is_cluster_queue(*child) && share.ratio > 0.0);
            let order = largest.map_or(Ordering::Greater, |largest| share.compare(largest.share));
            match &mut largest {
                _ if !share.borrows || order == Ordering::Less => {}
                Some(largest) if order == Ordering::Equal => {
                    largest.only_borrowed = largest.only_borrowed.filter(|_| largest.only_borrowed == only);
                }
                largest => *largest = Some(LargestShare { share, only_borrowed: only }),
            }
        }
        kept.set(Some((self.state, largest)));
        largest
    }

    /// Returns the potentially available quota of a resource at a node, over all flavors in the
    /// tree.
    fn lendable(&self, node: NodeId, resource: &str) -> i128 {
        let all = self.node(node).lendable.get_or_init(|| {
            let mut all: Vec<(String, i128)> = Vec::new();
            for (fr, _) in &self.node(self.root(node)).cells {
                let resource = &self.flavor_resource(*fr).resource;
                let potential = self.potential_available(node, *fr);
                match all.iter_mut().find(|(known, _)| known == resource) {
                    Some((_, sum)) => *sum += potential,
                    None => all.push((resource.clone(), potential)),
                }
            }
            all
        });
        all.iter().find(|(known, _)| known == resource).map_or(0, |(_, sum)| *sum)
    }
}
