//! The usage of a child of a Cohort with its first workload added, by which it is ordered among its
//! siblings (kueue v0.19.2 `pkg/scheduler/fair_sharing_iterator.go`).

use std::cmp::{Ordering, Reverse};
use std::collections::BTreeMap;

use crate::cluster_queue_config::ClusterQueueConfig;
use crate::ledger::{FlavorResourceQuantities, add_to, to_i128};
use crate::pending_queue::{EquivalenceKey, QueueOrder};
use crate::scheduler::Scheduler;
use crate::tree::{CohortTree, DominantShare, FlavorResourceId, NodeId, UsageView};

/// Additional usage of a node by flavor resource. Contains zero for a requested resource that does
/// not reach the node because quota below it is not lent.
pub(super) type UsageDelta = Vec<(FlavorResourceId, i128)>;

/// Position of a child among its siblings: reservations first, then children that would not borrow,
/// then by share.
#[derive(Debug, Clone)]
pub(super) struct EntryOrder {
    pub(super) has_reservation: Reverse<bool>,
    borrows: bool,
    share: DominantShare,
    pub(super) workload_order: QueueOrder,
    pub(super) node: NodeId,
}

impl EntryOrder {
    /// Compares two children; the lesser is scheduled first.
    pub(super) fn compare(&self, other: &Self) -> Ordering {
        let by_share = || self.borrows.cmp(&other.borrows).then(self.share.compare(other.share));
        // The positions are in different queues, and reservations were compared already.
        let place = |rank: &QueueOrder| (rank.priority, rank.queue_order_timestamp);
        let by_rank = || {
            place(&self.workload_order)
                .cmp(&place(&other.workload_order))
                .then_with(|| self.workload_order.uid.cmp(&other.workload_order.uid))
        };
        self.has_reservation.cmp(&other.has_reservation).then_with(by_share).then_with(by_rank)
    }
}

impl PartialEq for EntryOrder {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for EntryOrder {}

impl PartialOrd for EntryOrder {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for EntryOrder {
    fn cmp(&self, other: &Self) -> Ordering {
        self.compare(other).then(self.node.cmp(&other.node))
    }
}

/// A child of a Cohort with additional usage; or a lower bound of its position if the usage is a
/// lower bound.
#[derive(Debug, Clone)]
pub(super) struct FairShareEntry {
    pub(super) order: EntryOrder,
    /// Additional usage of the Cohort.
    pub(super) borrowed_from_parent: UsageDelta,
}

impl FairShareEntry {
    /// Creates an entry for a node with this additional usage.
    pub(super) fn new(
        tree: &CohortTree,
        node: NodeId,
        waits: Reverse<bool>,
        rank: QueueOrder,
        asked: &UsageDelta,
    ) -> Self {
        let borrows = asked.iter().any(|(fr, amount)| tree.would_borrow(node, *fr, *amount, UsageView::Planned));
        let key = EntryOrder {
            has_reservation: waits,
            borrows,
            share: tree.share_with(node, asked),
            workload_order: rank,
            node,
        };
        Self { order: key, borrowed_from_parent: borrowed_from_parent(tree, node, asked) }
    }

    /// Returns a lower bound for a Cohort: none of its children requests less than the common
    /// minimum, and none precedes the minimum of their positions.
    pub(super) fn lower_bound(
        tree: &CohortTree,
        cohort: NodeId,
        children: &BTreeMap<EntryOrder, UsageDelta>,
    ) -> Option<Self> {
        let waits = children.keys().map(|key| key.has_reservation).min()?;
        let rank = children
            .keys()
            .map(|key| &key.workload_order)
            .min_by_key(|rank| (rank.priority, rank.queue_order_timestamp, &rank.uid))?;
        let asked = children.values().fold(None, |least, asked| Some(element_wise_min(least, asked)));
        Some(Self::new(tree, cohort, waits, rank.clone(), &asked.unwrap_or_default()))
    }
}

/// Computes the position of a child with each of the workloads below it.
pub(super) struct EntryOrderCache {
    child: NodeId,
    /// The child, or a Cohort below it.
    below: NodeId,
    /// Results by usage. The distinct usages are few, however many workloads are queued.
    computed: Vec<(UsageDelta, bool, DominantShare)>,
}

impl EntryOrderCache {
    /// Creates an empty cache.
    pub(super) fn new(child: NodeId, below: NodeId) -> Self {
        Self { child, below, computed: Vec::new() }
    }

    /// Returns the position of the child if `below` had this additional usage.
    pub(super) fn order(
        &mut self,
        tree: &CohortTree,
        waits: Reverse<bool>,
        rank: &QueueOrder,
        asked: &UsageDelta,
    ) -> EntryOrder {
        let known =
            self.computed.iter().find(|(known, ..)| known == asked).map(|(_, borrows, share)| (*borrows, *share));
        let (borrows, share) = known.unwrap_or_else(|| {
            let (mut node, mut more) = (self.below, asked.clone());
            while let Some(parent) = tree.parent(node).filter(|_| node != self.child) {
                (more, node) = (borrowed_from_parent(tree, node, &more), parent);
            }
            let key = FairShareEntry::new(tree, node, waits, rank.clone(), &more).order;
            self.computed.push((asked.clone(), key.borrows, key.share));
            (key.borrows, key.share)
        });
        EntryOrder { has_reservation: waits, borrows, share, workload_order: rank.clone(), node: self.child }
    }
}

/// Returns the additional usage of the parent if the node had this additional usage.
pub(super) fn borrowed_from_parent(tree: &CohortTree, node: NodeId, asked: &UsageDelta) -> UsageDelta {
    asked.iter().map(|(fr, amount)| (*fr, tree.borrowed_from_parent(node, *fr, *amount, UsageView::Planned))).collect()
}

/// Returns the positive amounts of a usage.
pub(super) fn usage_delta(usage: &FlavorResourceQuantities) -> UsageDelta {
    usage.iter().filter(|(_, amount)| **amount > 0).map(|(fr, amount)| (*fr, *amount)).collect()
}

/// Returns the resources in both usages with the smaller amount.
fn element_wise_min(a: Option<UsageDelta>, b: &UsageDelta) -> UsageDelta {
    let Some(mut least) = a else { return b.clone() };
    least.retain_mut(|(fr, amount)| {
        let other = b.iter().find(|(other, _)| other == fr);
        *amount = other.map_or(0, |(_, other)| (*amount).min(*other));
        other.is_some()
    });
    least
}

impl Scheduler {
    /// Returns a lower bound of the additional usage that any workload of a ClusterQueue requests.
    pub(super) fn least_usage_delta(&self, node: NodeId) -> UsageDelta {
        let Some(state) = self.cluster_queue(node) else { return UsageDelta::new() };
        // The capacity reserved for a StrictFIFO head may be any part of its requests.
        let Some(quota) = state.config.as_ref().filter(|quota| !quota.strict_fifo) else { return UsageDelta::new() };
        let least = state.pending_queue.equivalence_keys().try_fold(None, |least, shape| {
            let both = element_wise_min(least, &least_class_delta(shape, quota));
            (!both.is_empty()).then_some(Some(both))
        });
        least.flatten().unwrap_or_default()
    }
}

/// Returns a lower bound of the usage of a class, for resources with a single flavor.
fn least_class_delta(shape: &EquivalenceKey, quota: &ClusterQueueConfig) -> UsageDelta {
    let mut asked = FlavorResourceQuantities::new();
    // A replacement requests only the difference to its predecessor.
    for set in shape.requests.pod_sets.iter().filter(|_| shape.replacing_workload.is_none()) {
        for (resource, amount) in quota.requests(set, set.min_count.min(set.count)) {
            for group in quota.groups.iter().filter(|group| group.flavors.len() == 1) {
                if let Some(fr) = group.flavors[0].flavor_resource(resource) {
                    add_to(&mut asked, fr, to_i128(amount));
                }
            }
        }
    }
    usage_delta(&asked)
}
