//! What a child of a Cohort would use, with the workload below it that comes first: by that it is compared with the other
//! children (kueue v0.19.2 `pkg/scheduler/fair_sharing_iterator.go`).

use std::cmp::{Ordering, Reverse};
use std::collections::BTreeMap;

use crate::engine::Engine;
use crate::ledger::{Charge, add_to, wide};
use crate::line::{Rank, Shape};
use crate::quota::Quota;
use crate::tree::{Fr, NodeId, Share, Tree, View};

/// How much more of everything that is asked for a node would use. What is asked for and does not reach the node, because
/// those below have as much left that they don't lend, is in it with zero.
pub(super) type Asked = Vec<(Fr, i128)>;

/// The place of a child among its siblings: those for whom room was made first, then who would not borrow what it asks for,
/// then who would have the smaller share.
#[derive(Debug, Clone)]
pub(super) struct Key {
    pub(super) waits: Reverse<bool>,
    borrows: bool,
    share: Share,
    pub(super) rank: Rank,
    pub(super) node: NodeId,
}

impl Key {
    /// Which of two children comes first.
    pub(super) fn compare(&self, other: &Self) -> Ordering {
        let by_share = || self.borrows.cmp(&other.borrows).then(self.share.compare(other.share));
        // Places in different lines: that someone waits was compared already.
        let place = |rank: &Rank| (rank.priority, rank.since);
        let by_rank = || place(&self.rank).cmp(&place(&other.rank)).then_with(|| self.rank.uid.cmp(&other.rank.uid));
        self.waits.cmp(&other.waits).then_with(by_share).then_with(by_rank)
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Key {}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        self.compare(other).then(self.node.cmp(&other.node))
    }
}

/// A child of a Cohort with what is asked below it; or a bound of that, if less may be asked here than will be.
#[derive(Debug, Clone)]
pub(super) struct Side {
    pub(super) key: Key,
    /// What the Cohort would use more.
    pub(super) passes: Asked,
}

impl Side {
    pub(super) fn of(tree: &Tree, node: NodeId, waits: Reverse<bool>, rank: Rank, asked: &Asked) -> Self {
        let borrows = asked.iter().any(|(fr, amount)| tree.would_borrow(node, *fr, *amount, View::Planned));
        let key = Key { waits, borrows, share: tree.share_with(node, asked), rank, node };
        Self { key, passes: passed_on(tree, node, asked) }
    }

    /// A bound for a Cohort: no child of it asks for less than all of them do, nor comes before the first of each.
    pub(super) fn least(tree: &Tree, cohort: NodeId, children: &BTreeMap<Key, Asked>) -> Option<Self> {
        let waits = children.keys().map(|key| key.waits).min()?;
        let rank = children.keys().map(|key| &key.rank).min_by_key(|rank| (rank.priority, rank.since, &rank.uid))?;
        let asked = children.values().fold(None, |least, asked| Some(least_of_both(least, asked)));
        Some(Self::of(tree, cohort, waits, rank.clone(), &asked.unwrap_or_default()))
    }
}

/// What a child of a Cohort would be with each of those below it.
pub(super) struct Sides {
    child: NodeId,
    /// A Cohort below the child, or the child itself.
    below: NodeId,
    /// Few things are asked for, however many ask.
    known: Vec<(Asked, bool, Share)>,
}

impl Sides {
    pub(super) fn of(child: NodeId, below: NodeId) -> Self {
        Self { child, below, known: Vec::new() }
    }

    /// The place of the child, if the Cohort below it used so much more.
    pub(super) fn key(&mut self, tree: &Tree, waits: Reverse<bool>, rank: &Rank, asked: &Asked) -> Key {
        let known = self.known.iter().find(|(known, ..)| known == asked).map(|(_, borrows, share)| (*borrows, *share));
        let (borrows, share) = known.unwrap_or_else(|| {
            let (mut node, mut more) = (self.below, asked.clone());
            while let Some(parent) = tree.parent(node).filter(|_| node != self.child) {
                (more, node) = (passed_on(tree, node, &more), parent);
            }
            let key = Side::of(tree, node, waits, rank.clone(), &more).key;
            self.known.push((asked.clone(), key.borrows, key.share));
            (key.borrows, key.share)
        });
        Key { waits, borrows, share, rank: rank.clone(), node: self.child }
    }
}

/// What a node's parent would use more, if the node used so much more.
pub(super) fn passed_on(tree: &Tree, node: NodeId, asked: &Asked) -> Asked {
    asked.iter().map(|(fr, amount)| (*fr, tree.passed_on(node, *fr, *amount, View::Planned))).collect()
}

/// What a workload asks for, if it gets this.
pub(super) fn asked_for(usage: &Charge) -> Asked {
    usage.iter().filter(|(_, amount)| **amount > 0).map(|(fr, amount)| (*fr, *amount)).collect()
}

/// What both ask for.
fn least_of_both(a: Option<Asked>, b: &Asked) -> Asked {
    let Some(mut least) = a else { return b.clone() };
    least.retain_mut(|(fr, amount)| {
        let other = b.iter().find(|(other, _)| other == fr);
        *amount = other.map_or(0, |(_, other)| (*amount).min(*other));
        other.is_some()
    });
    least
}

impl Engine {
    /// No workload of a ClusterQueue asks for less than this when it gets something.
    pub(super) fn least_asked(&self, node: NodeId) -> Asked {
        let Some(state) = self.cluster_queue(node) else { return Asked::new() };
        // What is kept back for the first of a strict one is what there is.
        let Some(quota) = state.quota.as_ref().filter(|quota| !quota.strict) else { return Asked::new() };
        let least = state.line.shapes().try_fold(None, |least, shape| {
            let both = least_of_both(least, &least_of(shape, quota));
            (!both.is_empty()).then_some(Some(both))
        });
        least.flatten().unwrap_or_default()
    }
}

/// The least that one of a class asks for, of what can come from one flavor only.
fn least_of(shape: &Shape, quota: &Quota) -> Asked {
    let mut asked = Charge::new();
    // Who takes over another's quota asks for what is missing only.
    for set in shape.demand.pod_sets.iter().filter(|_| shape.alone.is_none()) {
        for (resource, amount) in quota.requests(set, set.min_count.min(set.count)) {
            for group in quota.groups.iter().filter(|group| group.flavors.len() == 1) {
                if let Some(fr) = group.flavors[0].fr(resource) {
                    add_to(&mut asked, fr, wide(amount));
                }
            }
        }
    }
    asked_for(&asked)
}
