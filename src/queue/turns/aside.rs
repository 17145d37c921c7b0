//! What is set aside after it was tried in vain, and what would make it worth trying again.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::api::kueue::cluster_queue::{ReclaimPolicy, WithinClusterQueuePolicy};
use crate::queue::engine::{ClusterQueueState, Engine};
use crate::queue::line::{ClassId, Need, Rank, Tried};
use crate::queue::tree::{Fr, NodeId, Share, View};

/// What has to change before one that nobody had to make room for is worth trying again: it needs room of its own, or that
/// someone beside it takes as large a share as it would have itself.
#[derive(Debug)]
pub(in crate::queue) struct Watch {
    rooms: Vec<Room>,
    levels: Vec<Level>,
}

/// A resource of which there was not enough.
#[derive(Debug)]
struct Room {
    fr: Fr,
    amount: i128,
    priority: i32,
    /// What its ClusterQueue used of it.
    used: i128,
}

/// A Cohort above, whose other children could have to give.
#[derive(Debug)]
struct Level {
    cohort: NodeId,
    /// The child that the workload is below, and its share.
    side: NodeId,
    share: Share,
    /// The share that it would have with the workload.
    with_it: Share,
}

impl Engine {
    /// Sets a class aside until what it needs may be within its reach; if that is so already, until something that its
    /// watch names changes.
    pub(super) fn set_aside(&mut self, node: NodeId, rank: &Rank, needs: Vec<Need>) {
        let Some(place) = self.workloads.get(rank.workload).and_then(|slot| slot.booked.place.clone()) else { return };
        let Some(state) = self.cluster_queue(node) else { return };
        let alone = place.0.alone.is_some();
        let within = |need: &Need| self.reach(state, node, need.fr, rank.priority.0) >= need.amount;
        let tried = if alone || needs.is_empty() {
            Tried::Restless(None)
        } else if needs.iter().any(within) {
            Tried::Restless(self.watch(node, rank.priority.0, &least_of_each(needs)).map(Arc::new))
        } else {
            Tried::Aside(least_of_each(needs))
        };
        if let Some(state) = self.cluster_queue_mut(node) {
            state.line.set_aside(&place.0, tried);
        }
    }

    /// Wakes those of a ClusterQueue that something that changed may have helped. Returns whether there were any.
    pub(super) fn wake_restless(&mut self, node: NodeId) -> bool {
        let Some(state) = self.cluster_queue(node) else { return false };
        let restless: Vec<(ClassId, Option<Arc<Watch>>)> = state.line.restless().collect();
        let helped = |(_, watch): &(ClassId, Option<Arc<Watch>>)| {
            watch.as_ref().is_none_or(|watch| self.may_be_over(node, watch))
        };
        let helped: Vec<ClassId> = restless.into_iter().filter(helped).map(|(class, _)| class).collect();
        if let Some(state) = self.cluster_queue_mut(node) {
            helped.iter().for_each(|class| state.line.wake(*class));
        }
        !helped.is_empty()
    }

    /// What would make it worth trying again under fair sharing; `None` if anything could.
    ///
    /// Nobody else has to give before the share of someone beside the workload, at some level of the tree, is as large as
    /// its own with the workload; or before its ClusterQueue borrows nothing of what is short. What is needed of one
    /// resource is no more than the workload asks for, so its share may be larger, never smaller.
    fn watch(&mut self, node: NodeId, priority: i32, needs: &[Need]) -> Option<Watch> {
        self.settings.fair_sharing.as_ref()?;
        let mut watch = Watch { rooms: Vec::new(), levels: Vec::new() };
        for Need { fr, amount } in needs.iter().copied() {
            let used = self.tree.used(node, fr, View::Planned);
            watch.rooms.push(Room { fr, amount, priority, used });
            if !self.tree.would_borrow(node, fr, amount, View::Planned) {
                return None;
            }
            let sides: Vec<NodeId> = std::iter::once(node).chain(self.tree.above(node)).collect();
            let before: Vec<Share> = sides.iter().map(|side| self.tree.share(*side)).collect();
            self.tree.add(node, fr, amount, View::Planned);
            let level = |(side, share): (NodeId, Share)| {
                Some(Level { cohort: self.tree.parent(side)?, side, share, with_it: self.tree.share(side) })
            };
            let levels: Vec<Level> = sides.into_iter().zip(before).filter_map(level).collect();
            self.tree.add(node, fr, -amount, View::Planned);
            watch.levels.extend(levels);
        }
        (!self.may_be_over(node, &watch)).then_some(watch)
    }

    fn may_be_over(&self, node: NodeId, watch: &Watch) -> bool {
        let Some(state) = self.cluster_queue(node) else { return true };
        let room = |room: &Room| {
            let used = self.tree.used(node, room.fr, View::Planned);
            used < room.used
                || own_reach(state, room.fr, room.priority) > 0
                || self.tree.available(node, room.fr, View::Planned, 0) >= room.amount
        };
        let level = |level: &Level| {
            self.tree.share(level.side).compare(level.share).is_lt()
                || self.tree.largest_share(level.cohort).is_some_and(|largest| largest.compare(level.with_it).is_ge())
        };
        watch.rooms.iter().any(room) || watch.levels.iter().any(level)
    }

    /// The most that a workload of this priority could get of a resource, by any means. It may be less, never more.
    pub(super) fn reach(&self, state: &ClusterQueueState, node: NodeId, fr: Fr, priority: i32) -> i128 {
        let tree = &self.tree;
        let free = tree.available(node, fr, View::Planned, 0);
        let Some(rules) = state.quota.as_ref().map(|quota| quota.preemption) else { return free };
        let own = own_reach(state, fr, priority);
        if rules.reclaim == ReclaimPolicy::Never {
            return free + own;
        }
        let used = tree.used(node, fr, View::Planned);
        let flat = tree.parent(node).is_none_or(|parent| tree.parent(parent).is_none());
        if flat && !rules.while_borrowing && self.settings.fair_sharing.is_none() {
            return (free + own).max(tree.nominal(node, fr) - used + own);
        }
        (free + own).max(tree.potential(node, fr) - used + own)
    }
}

/// What those of its own ClusterQueue hold whom a workload of this priority could make go. It may be less, never more.
fn own_reach(state: &ClusterQueueState, fr: Fr, priority: i32) -> i128 {
    match state.quota.as_ref().map(|quota| quota.preemption.within).unwrap_or_default() {
        WithinClusterQueuePolicy::Never => 0,
        WithinClusterQueuePolicy::LowerPriority => state.ledger.held_up_to(fr, priority.saturating_sub(1)),
        WithinClusterQueuePolicy::LowerOrNewerEqualPriority => state.ledger.held_up_to(fr, priority),
    }
}

fn least_of_each(needs: Vec<Need>) -> Vec<Need> {
    let mut least: BTreeMap<Fr, i128> = BTreeMap::new();
    for need in needs {
        let amount = least.entry(need.fr).or_insert(need.amount);
        *amount = need.amount.min(*amount);
    }
    least.into_iter().map(|(fr, amount)| Need { fr, amount }).collect()
}
