//! The usage of a child of a Cohort with its first workload added, by which it is ordered among its
//! siblings (kueue v0.19.2 `pkg/scheduler/fair_sharing_iterator.go`).

use std::cmp::{Ordering, Reverse};
use std::collections::BTreeMap;

use crate::engine::Engine;
use crate::ledger::{Charge, add_to, wide};
use crate::line::{Rank, Shape};
use crate::quota::Quota;
use crate::tree::{Fr, NodeId, Share, Tree, View};

/// Additional usage of a node by flavor resource. Contains zero for a requested resource that does
/// not reach the node because quota below it is not lent.
pub(super) type Asked = Vec<(Fr, i128)>;

/// Position of a child among its siblings: reservations first, then children that would not borrow,
/// then by share.
#[derive(Debug, Clone)]
pub(super) struct Key {
    pub(super) waits: Reverse<bool>,
    borrows: bool,
    share: Share,
    pub(super) rank: Rank,
    pub(super) node: NodeId,
}

impl Key {
    /// Compares two children; the lesser is scheduled first.
    pub(super) fn compare(&self, other: &Self) -> Ordering {
        let by_share = || self.borrows.cmp(&other.borrows).then(self.share.compare(other.share));
        // The positions are in different queues, and reservations were compared already.
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

/// A child of a Cohort with additional usage; or a lower bound of its position if the usage is a
/// lower bound.
#[derive(Debug, Clone)]
pub(super) struct Side {
    pub(super) key: Key,
    /// Additional usage of the Cohort.
    pub(super) passes: Asked,
}

impl Side {
    /// Creates an entry for a node with this additional usage.
    pub(super) fn of(tree: &Tree, node: NodeId, waits: Reverse<bool>, rank: Rank, asked: &Asked) -> Self {
        let borrows = asked.iter().any(|(fr, amount)| tree.would_borrow(node, *fr, *amount, View::Planned));
        let key = Key { waits, borrows, share: tree.share_with(node, asked), rank, node };
        Self { key, passes: passed_on(tree, node, asked) }
    }

    /// Returns a lower bound for a Cohort: none of its children requests less than the common
    /// minimum, and none precedes the minimum of their positions.
    pub(super) fn least(tree: &Tree, cohort: NodeId, children: &BTreeMap<Key, Asked>) -> Option<Self> {
        let waits = children.keys().map(|key| key.waits).min()?;
        let rank = children.keys().map(|key| &key.rank).min_by_key(|rank| (rank.priority, rank.since, &rank.uid))?;
        let asked = children.values().fold(None, |least, asked| Some(least_of_both(least, asked)));
        Some(Self::of(tree, cohort, waits, rank.clone(), &asked.unwrap_or_default()))
    }
}

/// Computes the position of a child with each of the workloads below it.
pub(super) struct Sides {
    child: NodeId,
    /// The child, or a Cohort below it.
    below: NodeId,
    /// Results by usage. The distinct usages are few, however many workloads are queued.
    known: Vec<(Asked, bool, Share)>,
}

impl Sides {
    /// Creates an empty cache.
    pub(super) fn of(child: NodeId, below: NodeId) -> Self {
        Self { child, below, known: Vec::new() }
    }

    /// Returns the position of the child if `below` had this additional usage.
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

/// Returns the additional usage of the parent if the node had this additional usage.
pub(super) fn passed_on(tree: &Tree, node: NodeId, asked: &Asked) -> Asked {
    asked.iter().map(|(fr, amount)| (*fr, tree.passed_on(node, *fr, *amount, View::Planned))).collect()
}

/// Returns the positive amounts of a usage.
pub(super) fn asked_for(usage: &Charge) -> Asked {
    usage.iter().filter(|(_, amount)| **amount > 0).map(|(fr, amount)| (*fr, *amount)).collect()
}

/// Returns the resources in both usages with the smaller amount.
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
    /// Returns a lower bound of the additional usage that any workload of a ClusterQueue requests.
    pub(super) fn least_asked(&self, node: NodeId) -> Asked {
        let Some(state) = self.cluster_queue(node) else { return Asked::new() };
        // The capacity reserved for a StrictFIFO head may be any part of its requests.
        let Some(quota) = state.quota.as_ref().filter(|quota| !quota.strict) else { return Asked::new() };
        let least = state.line.shapes().try_fold(None, |least, shape| {
            let both = least_of_both(least, &least_of(shape, quota));
            (!both.is_empty()).then_some(Some(both))
        });
        least.flatten().unwrap_or_default()
    }
}

/// Returns a lower bound of the usage of a class, for resources with a single flavor.
fn least_of(shape: &Shape, quota: &Quota) -> Asked {
    let mut asked = Charge::new();
    // A replacement requests only the difference to its predecessor.
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
