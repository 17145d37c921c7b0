//! What is set aside after it was tried in vain, and what would make it worth trying again.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::engine::{ClusterQueueState, Engine};
use crate::line::{ClassId, Need, Rank, Tried};
use crate::tree::{Fr, NodeId, Share, View};
use sluice_api::kueue::cluster_queue::{ReclaimPolicy, WithinClusterQueuePolicy};

/// What has to change before one that nobody had to make room for is worth trying again: it needs room of its own, or that
/// someone beside it takes as large a share as it would have itself.
#[derive(Debug)]
pub(crate) struct Watch {
    /// What there was not enough of.
    needs: Vec<Need>,
    priority: i32,
}

/// Once another child of the Cohort has such a share, someone below it may have to give.
#[derive(Debug, Clone, Copy)]
pub(super) struct Alarm {
    pub(super) cohort: NodeId,
    pub(super) fr: Fr,
    pub(super) share: Share,
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
            Tried::Restless(self.watch(node, rank.priority.0, least_of_each(needs)).map(Arc::new))
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
        let helped = |watch: Option<&Watch>| watch.is_none_or(|watch| self.may_be_over(node, watch));
        let helped: Vec<ClassId> =
            state.line.restless().filter(|(_, watch)| helped(*watch)).map(|(class, _)| class).collect();
        if helped.is_empty() {
            return false;
        }
        if let Some(state) = self.cluster_queue_mut(node) {
            helped.iter().for_each(|class| state.line.wake(*class));
        }
        true
    }

    /// What would make it worth trying again under fair sharing; `None` if anything could.
    fn watch(&self, node: NodeId, priority: i32, needs: Vec<Need>) -> Option<Watch> {
        self.settings.fair_sharing.as_ref()?;
        let watch = Watch { needs, priority };
        (!self.may_be_over(node, &watch)).then_some(watch)
    }

    /// Nobody else has to give before the share of someone beside the workload who borrows, at some level of the tree, is as
    /// large as its own with the workload; or before its ClusterQueue borrows nothing of what is short. What is needed of one
    /// resource is no more than the workload asks for, so its share may be larger, never smaller.
    fn may_be_over(&self, node: NodeId, watch: &Watch) -> bool {
        let Some(state) = self.cluster_queue(node) else { return true };
        let room = |need: &Need| {
            own_reach(state, need.fr, watch.priority) > 0
                || !self.tree.would_borrow(node, need.fr, need.amount, View::Planned)
                || self.tree.available(node, need.fr, View::Planned, 0) >= need.amount
        };
        let gives = |alarm: Alarm| {
            self.tree.largest_share(alarm.cohort).is_some_and(|largest| largest.may_give(alarm.fr, alarm.share))
        };
        watch.needs.iter().any(room) || self.alarms(node, watch).any(gives)
    }

    /// When someone may have to give for what is watched, at each level of the tree above. It takes a larger share, never a
    /// smaller one, when more is used.
    pub(super) fn alarms(&self, node: NodeId, watch: &Watch) -> impl Iterator<Item = Alarm> {
        watch.needs.iter().flat_map(move |need| self.levels(node, *need))
    }

    /// The Cohorts above, each with the share that its child would have with what is needed.
    fn levels(&self, node: NodeId, need: Need) -> impl Iterator<Item = Alarm> {
        let mut at = (node, need.amount);
        std::iter::from_fn(move || {
            let (child, amount) = at;
            let cohort = self.tree.parent(child)?;
            at = (cohort, self.tree.passed_on(child, need.fr, amount, View::Planned));
            Some(Alarm { cohort, fr: need.fr, share: self.tree.share_with(child, &[(need.fr, amount)]) })
        })
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
