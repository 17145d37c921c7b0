//! Parks inadmissible workloads and retries them when they may have become admissible.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::engine::{ClusterQueueState, Engine};
use crate::line::{ClassId, Need, Rank, Tried};
use crate::tree::{Fr, NodeId, Share, View};
use sluice_api::kueue::cluster_queue::{ReclaimPolicy, WithinClusterQueuePolicy};

/// The change after which a workload without preemption targets is retried: enough available quota,
/// or a sibling with a share as large as its own would be.
#[derive(Debug)]
pub(crate) struct Watch {
    /// The amounts that were not available.
    needs: Vec<Need>,
    priority: i32,
}

/// A share at which a sibling below the Cohort may be preempted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Alarm {
    pub(super) cohort: NodeId,
    pub(super) fr: Fr,
    pub(super) share: Share,
}

impl Engine {
    /// Parks the class of a workload until its needs may be reachable; if they are already, until
    /// its retry condition is met.
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

    /// Activates the parked classes of a ClusterQueue that a change may have made admissible.
    /// Returns whether there were any.
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

    /// Returns the retry condition under fair sharing; `None` if any change may help.
    fn watch(&self, node: NodeId, priority: i32, needs: Vec<Need>) -> Option<Watch> {
        self.settings.fair_sharing.as_ref()?;
        let watch = Watch { needs, priority };
        (!self.may_be_over(node, &watch)).then_some(watch)
    }

    /// Reports whether the retry condition may be met. Other ClusterQueues are preempted only if a
    /// borrowing sibling, at some level of the tree, has a share at least as large as that of the
    /// workload, or if its ClusterQueue would not borrow. Each need is a lower bound of the
    /// request, so the actual share may be larger, never smaller.
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

    /// Returns the share thresholds at each level of the tree above. A share never decreases when
    /// usage increases.
    pub(super) fn alarms(&self, node: NodeId, watch: &Watch) -> impl Iterator<Item = Alarm> {
        watch.needs.iter().flat_map(move |need| self.levels(node, *need))
    }

    /// Returns the Cohorts above, each with the share that its child would have with the need
    /// added.
    fn levels(&self, node: NodeId, need: Need) -> impl Iterator<Item = Alarm> {
        let mut at = (node, need.amount);
        std::iter::from_fn(move || {
            let (child, amount) = at;
            let cohort = self.tree.parent(child)?;
            at = (cohort, self.tree.passed_on(child, need.fr, amount, View::Planned));
            Some(Alarm { cohort, fr: need.fr, share: self.tree.share_with(child, &[(need.fr, amount)]) })
        })
    }

    /// Returns an upper bound of the amount of a resource that a workload of this priority can get
    /// in any mode.
    pub(super) fn reach(&self, state: &ClusterQueueState, node: NodeId, fr: Fr, priority: i32) -> i128 {
        let tree = &self.tree;
        let free = tree.available(node, fr, View::Planned, 0);
        let Some(rules) = state.quota.as_ref().map(|quota| quota.preemption) else { return free };
        let own = own_reach(state, fr, priority);
        if rules.reclaim == ReclaimPolicy::Never {
            return free + own;
        }
        let used = tree.used(node, fr, View::Planned);
        // Without borrowing preemption and nested Cohorts, reclaiming is limited to the nominal quota.
        let flat = tree.parent(node).is_none_or(|parent| tree.parent(parent).is_none());
        if flat && !rules.while_borrowing && self.settings.fair_sharing.is_none() {
            return (free + own).max(tree.nominal(node, fr) - used + own);
        }
        (free + own).max(tree.potential(node, fr) - used + own)
    }
}

/// Returns an upper bound of the usage that a workload of this priority can preempt within its
/// ClusterQueue.
fn own_reach(state: &ClusterQueueState, fr: Fr, priority: i32) -> i128 {
    match state.quota.as_ref().map(|quota| quota.preemption.within).unwrap_or_default() {
        WithinClusterQueuePolicy::Never => 0,
        WithinClusterQueuePolicy::LowerPriority => state.ledger.held_up_to(fr, priority.saturating_sub(1)),
        WithinClusterQueuePolicy::LowerOrNewerEqualPriority => state.ledger.held_up_to(fr, priority),
    }
}

/// Keeps the smallest need of each flavor resource.
fn least_of_each(needs: Vec<Need>) -> Vec<Need> {
    let mut least: BTreeMap<Fr, i128> = BTreeMap::new();
    for need in needs {
        let amount = least.entry(need.fr).or_insert(need.amount);
        *amount = need.amount.min(*amount);
    }
    least.into_iter().map(|(fr, amount)| Need { fr, amount }).collect()
}
