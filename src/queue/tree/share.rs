//! How much of what can be lent a node takes: the dominant resource share (kueue v0.19.2
//! `pkg/cache/scheduler/fair_sharing.go`).

use std::cmp::Ordering;

use super::{Fr, NodeId, Tree, View};

/// How much a node counts beside its siblings; zero comes last.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub(crate) struct Weight(pub(crate) f64);

impl Default for Weight {
    fn default() -> Self {
        Self(1.0)
    }
}

/// The share of a node. Shares are ordered: who has less comes first, and who has more is preempted first.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Share {
    weight: Weight,
    /// Largest ratio over all resources of what is borrowed to what can be lent, in thousandths.
    ratio: f64,
    borrows: bool,
    /// All that it borrows, if that is one thing.
    only: Option<Fr>,
}

/// The largest share of those of a Cohort's children that borrow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Largest {
    share: Share,
    /// Those that have it are ClusterQueues that borrow nothing but this.
    only: Option<Fr>,
}

impl Largest {
    pub(crate) fn is_less_than(self, share: Share) -> bool {
        self.share.compare(share) == Ordering::Less
    }

    /// Whether any of those children, or someone below, may have to give some of `fr` for one that has the share `ours` beside
    /// them. Who gives some of all that it borrows has a smaller share then, so one as large as ours is not enough.
    pub(crate) fn may_give(self, fr: Fr, ours: Share) -> bool {
        match self.share.compare(ours) {
            Ordering::Less => false,
            Ordering::Equal => self.only != Some(fr),
            Ordering::Greater => true,
        }
    }
}

impl Share {
    /// Whether the node uses more than its part of any quota.
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

    /// As the status says it, in thousandths: rounded up, and the largest number for a borrower without weight.
    pub(crate) fn published(self) -> i64 {
        // A float beyond the integers saturates.
        if self.borrows_without_weight() { i64::MAX } else { self.weighted().ceil() as i64 }
    }

    pub(crate) fn compare(self, other: Self) -> Ordering {
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
    pub(crate) fn share(&self, node: NodeId) -> Share {
        *self.node(node).share.get_or_init(|| self.share_in(node, View::Planned))
    }

    /// The share that a node takes of what its parent can lend.
    pub(crate) fn share_in(&self, node: NodeId, view: View) -> Share {
        self.share_of(node, view, &[])
    }

    /// The planned share that a node would have if it used so much more.
    pub(crate) fn share_with(&self, node: NodeId, more: &[(Fr, i128)]) -> Share {
        self.share_of(node, View::Planned, more)
    }

    fn share_of(&self, node: NodeId, view: View, more: &[(Fr, i128)]) -> Share {
        let weight = self.node(node).spec.as_ref().map_or(Weight::default(), |spec| spec.weight);
        let mut share = Share { weight, ratio: 0.0, borrows: false, only: None };
        let Some(parent) = self.parent(node) else { return share };
        let cells = &self.node(node).cells;
        let mut borrowed: Vec<(&str, i128)> = Vec::new();
        let mut borrow = |fr: Fr, above: i128| {
            if above > 0 {
                share.only = (!share.borrows).then_some(fr);
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
            borrow(*fr, cell.used[view as usize] + more - cell.subtree);
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

    /// The largest planned share of those of a Cohort's children that borrow. It is kept until the tree's next state, so ask
    /// only while nothing is tried out.
    pub(crate) fn largest_share(&self, cohort: NodeId) -> Option<Largest> {
        let kept = &self.node(cohort).largest;
        if let Some((_, largest)) = kept.get().filter(|(state, _)| *state == self.state) {
            return largest;
        }
        let mut largest: Option<Largest> = None;
        for child in self.children(cohort) {
            let share = self.share(*child);
            let only = share.only.filter(|_| self.is_cluster_queue(*child) && share.ratio > 0.0);
            let order = largest.map_or(Ordering::Greater, |largest| share.compare(largest.share));
            match &mut largest {
                _ if !share.borrows || order == Ordering::Less => {}
                Some(largest) if order == Ordering::Equal => {
                    largest.only = largest.only.filter(|_| largest.only == only)
                }
                largest => *largest = Some(Largest { share, only }),
            }
        }
        kept.set(Some((self.state, largest)));
        largest
    }

    /// All that a node could ever get of a resource, over all flavors that the tree knows.
    fn lendable(&self, node: NodeId, resource: &str) -> i128 {
        let all = self.node(node).lendable.get_or_init(|| {
            let mut all: Vec<(String, i128)> = Vec::new();
            for (fr, _) in &self.node(self.root(node)).cells {
                let resource = &self.flavor_resource(*fr).resource;
                let potential = self.potential(node, *fr);
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
