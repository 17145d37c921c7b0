//! Explains why a workload is pending.

use std::collections::{BTreeMap, BTreeSet};

use super::ObjectKey;
use super::assign::{Assignment, Attempt, Findings, Predecessor};
use super::engine::{ClusterQueueState, Engine, Promise, WorkloadId};
use super::ledger::{LargeHolder, clamped};
use super::means::{Ground, Means, Mode};
use super::pending::{Obstacle, PendingReason, Waiting};
use super::shortfall::{Binding, Kept};
use super::slot::{Slot, Standing};
use super::tree::{Fr, NodeId, Tree, View};
use sluice_api::quantity::Amount;

/// Maximum number of holders or evicted workloads that an explanation names.
const NAMED: usize = 3;

/// Preemption oracle for explanations: never finds candidates.
struct Onlooker<'a> {
    tree: &'a Tree,
    node: NodeId,
}

impl Ground for Onlooker<'_> {
    fn tree(&self) -> &Tree {
        self.tree
    }

    fn make_room(&mut self, fr: Fr, amount: i128) -> Means {
        Means { mode: Mode::NoCandidates, level: self.tree.lowest_fit(self.node, fr, amount, View::Planned, 0).height }
    }
}

impl Binding {
    /// Returns the exceeded limit at a node: its borrowing limit if `limited`, otherwise its total
    /// quota.
    pub(super) fn at(tree: &Tree, node: NodeId, limited: bool) -> Self {
        match (tree.is_cluster_queue(node), limited) {
            (true, false) => Self::NominalQuota,
            (true, true) => Self::BorrowingLimit,
            (false, false) => Self::Cohort(tree.name(node).to_owned()),
            (false, true) => Self::CohortBorrowingLimit(tree.name(node).to_owned()),
        }
    }
}

impl Engine {
    /// Returns the cause for which a workload is pending, with current numbers. `None` if it is not
    /// pending or not known.
    pub fn explain(&self, workload: &ObjectKey) -> Option<Waiting> {
        let id = self.workloads.id(workload)?;
        let slot = self.workloads.get(id)?;
        let mut why = self.waiting(id, slot)?;
        self.name_holders(&mut why, slot, &mut Holders::default());
        Some(why)
    }

    /// Returns all queued workloads, by ClusterQueue and in order.
    #[cfg(test)]
    pub(super) fn in_line(&self) -> Vec<ObjectKey> {
        self.cluster_queues
            .iter()
            .flat_map(|state| state.line.iter())
            .filter_map(|rank| self.key(rank.workload))
            .collect()
    }

    /// Reports whether a queued workload fits without preemption.
    #[cfg(test)]
    pub(super) fn would_fit(&self, key: &ObjectKey) -> bool {
        let look = self.workloads.id(key).and_then(|id| self.look(id));
        matches!(look, Some(Ok(assignment)) if assignment.means.mode == Mode::Fit)
    }

    /// Returns the cause for which a workload is pending, without the holders of the quota.
    pub(super) fn waiting(&self, id: WorkloadId, slot: &Slot) -> Option<Waiting> {
        match &slot.standing {
            Standing::Held(why, _) => Some(why.clone()),
            Standing::InLine(node) => self.waiting_in_line(id, *node),
            Standing::Out | Standing::Holds(_) | Standing::Superseded(_) => None,
        }
    }

    /// Returns the pod sets of a pending slice that lack quota in the flavor that their pods run
    /// in, and might have it in another flavor.
    pub fn pinned(&self, slice: &ObjectKey) -> BTreeSet<String> {
        let id = self.workloads.id(slice);
        let slot = id.and_then(|id| Some((id, self.workloads.get(id).filter(|slot| slot.entry.replaces.is_some())?)));
        let Some(Waiting::Quota(obstacles)) = slot.and_then(|(id, slot)| self.waiting(id, slot)) else {
            return BTreeSet::new();
        };
        let is_short = |name: &String| {
            let shortfalls = obstacles.iter().filter(|obstacle| obstacle.pod_set() == name);
            shortfalls.into_iter().any(|obstacle| matches!(obstacle, Obstacle::Short(_) | Obstacle::Exceeds(_)))
        };
        let pinned = obstacles.iter().filter_map(|obstacle| match obstacle {
            Obstacle::Pinned { pod_set, .. } => Some(pod_set),
            _ => None,
        });
        pinned.filter(|name| is_short(name)).cloned().collect()
    }

    fn waiting_in_line(&self, id: WorkloadId, node: NodeId) -> Option<Waiting> {
        let state = self.cluster_queues.get(node)?;
        if let Some(room) = self.room(id, state) {
            return Some(room);
        }
        let strict = state.quota.as_ref()?.strict;
        let ahead = state.line.head().map(|rank| rank.workload).filter(|head| strict && *head != id);
        let behind = ahead
            .and_then(|head| self.key(head))
            .map(|head| Waiting::Behind { head, cluster_queue: state.name.clone() });
        match (self.look(id)?, behind) {
            (Err(obstacles), behind) => {
                let why = Waiting::Quota(obstacles);
                // With StrictFIFO, a shortage of unused quota is secondary: the head must be
                // admitted first.
                Some(behind.filter(|_| why.reason() == PendingReason::WaitingForQuota).unwrap_or(why))
            }
            (Ok(_), Some(behind)) => Some(behind),
            (Ok(_), None) => match self.first_unready().filter(|_| self.admission_blocked()) {
                Some(unready) => Some(Waiting::Unready(unready)),
                None => Some(Waiting::Turn),
            },
        }
    }

    /// Returns the evicted workloads that a workload with a reservation waits for. `None` without a
    /// reservation for evictions.
    fn room(&self, id: WorkloadId, state: &ClusterQueueState) -> Option<Waiting> {
        let node = state.node;
        let promise = self.promise_to(node, id).filter(|promise| promise.place.is_some())?;
        let queues = self.tree.cluster_queues_below(self.tree.root(node)).into_iter();
        let states = queues.filter_map(|node| self.cluster_queue(node));
        let going = states
            .flat_map(|state| &state.ledger.going)
            .filter(|(_, charge)| charge.keys().any(|fr| promise.usage.contains_key(fr)));
        let mut going: Vec<ObjectKey> = going.filter_map(|(id, _)| self.key(*id)).collect();
        going.sort();
        let more = going.len().saturating_sub(NAMED);
        going.truncate(NAMED);
        Some(Waiting::Room { going, more })
    }

    fn promise_to(&self, node: NodeId, id: WorkloadId) -> Option<&Promise> {
        self.promises.get(&self.tree.root(node))?.iter().find(|promise| promise.workload == id)
    }

    /// Returns the first admitted workload that is not ready, by key.
    fn first_unready(&self) -> Option<ObjectKey> {
        self.unready.iter().filter_map(|id| self.key(*id)).min()
    }

    fn key(&self, id: WorkloadId) -> Option<ObjectKey> {
        Some(self.workloads.get(id)?.entry.key.clone())
    }

    /// Assigns flavors to a queued workload without preemption. Returns the rejections if it does
    /// not fit, and `None` if the workload is not queued.
    fn look(&self, id: WorkloadId) -> Option<Result<Assignment, Vec<Obstacle>>> {
        let slot = self.workloads.get(id)?;
        let Standing::InLine(node) = slot.standing else { return None };
        let state = self.cluster_queues.get(node)?;
        let demand = slot.entry.demand.as_ref().ok()?;
        let attempt = Attempt {
            cluster_queue: &state.name,
            node,
            quota: state.quota.as_ref()?,
            flavors: &self.flavors,
            undeclared: self.settings.resources.undeclared,
            fair_sharing: self.settings.fair_sharing.is_some(),
            predecessor: self.predecessor(slot, node).and_then(predecessor_of),
            room: None,
            kept_back: self.promise_to(node, id).map(|promise| &promise.usage),
            demand,
        };
        let counts: Vec<i32> = demand.pod_sets.iter().map(|set| set.count).collect();
        let mut found = Findings { obstacles: Some(Vec::new()), ..Findings::default() };
        let assignment = attempt.assign(&counts, &mut Onlooker { tree: &self.tree, node }, &mut found);
        let fits = assignment.filter(|assignment| assignment.means.mode > Mode::NoCandidates);
        Some(fits.ok_or(found.obstacles.unwrap_or_default()))
    }

    /// Adds the largest holders of the missing quota, and the workloads that unused quota is
    /// reserved for.
    pub(super) fn name_holders(&self, why: &mut Waiting, slot: &Slot, holders: &mut Holders) {
        let Waiting::Quota(obstacles) = why else { return };
        let own = slot.entry.replaces.as_ref().and_then(|key| self.workloads.id(key));
        for obstacle in obstacles {
            let (Obstacle::Short(shortfall) | Obstacle::Exceeds(shortfall)) = obstacle else { continue };
            let Some((within, fr)) = shortfall.within else { continue };
            let most = holders.of.entry((within, fr)).or_insert_with(|| self.most(within, fr));
            let others = most.largest.iter().filter(|(.., id)| Some(*id) != own).take(NAMED);
            let named = others.filter_map(|(amount, _, id)| Some((self.key(*id)?, clamped(*amount))));
            shortfall.holders = named.collect();
            let all = most.count - usize::from(shortfall.held != Amount::ZERO).min(most.count);
            shortfall.more_holders = all.saturating_sub(shortfall.holders.len());
            shortfall.kept = most.kept_for_others(&slot.entry.key);
        }
    }

    fn most(&self, within: NodeId, fr: Fr) -> Most {
        let mut most = Most::default();
        for state in self.tree.cluster_queues_below(within).into_iter().filter_map(|node| self.cluster_queue(node)) {
            most.count += state.ledger.holder_count(fr);
            // One more than MAX_NAMED, because one of them may be the replaced slice.
            most.largest.extend(state.ledger.holders(fr).take(NAMED + 1).cloned());
        }
        most.largest.sort_by(|a, b| b.cmp(a));
        most.largest.truncate(NAMED + 1);
        most.kept = self.kept(within, fr);
        most
    }

    /// Returns the reservations within a subtree, largest first and then by key.
    fn kept(&self, within: NodeId, fr: Fr) -> Vec<(i128, ObjectKey)> {
        let is_within = |node: NodeId| node == within || self.tree.above(node).any(|above| above == within);
        let promises = self.promises.get(&self.tree.root(within)).into_iter().flatten();
        let kept = promises.filter(|promise| is_within(promise.node)).filter_map(|promise| {
            let amount = promise.usage.get(&fr).filter(|amount| **amount > 0)?;
            Some((*amount, self.key(promise.workload)?))
        });
        let mut kept: Vec<(i128, ObjectKey)> = kept.collect();
        kept.sort_by(|(a, first), (b, second)| b.cmp(a).then_with(|| first.cmp(second)));
        kept
    }
}

/// Largest holders by subtree and flavor resource, computed once for all explanations of a cycle.
#[derive(Default)]
pub(super) struct Holders {
    of: BTreeMap<(NodeId, Fr), Most>,
}

/// The largest holders of a flavor resource within a subtree.
#[derive(Default)]
struct Most {
    /// Largest holders, in descending order.
    largest: Vec<LargeHolder>,
    /// Number of all holders.
    count: usize,
    /// Reservations, largest first and then by key.
    kept: Vec<(i128, ObjectKey)>,
}

impl Most {
    /// Returns the reservations for workloads other than `workload`. `None` if there are none.
    fn kept_for_others(&self, workload: &ObjectKey) -> Option<Kept> {
        let others = || self.kept.iter().filter(|(_, key)| key != workload);
        let (_, first) = others().next()?;
        let amount = clamped(others().map(|(amount, _)| amount).sum());
        Some(Kept { amount, first: first.clone(), more: others().count() - 1 })
    }
}

pub(super) fn predecessor_of(slot: &Slot) -> Option<Predecessor<'_>> {
    let Standing::Holds(admission) = &slot.standing else { return None };
    Some(Predecessor { charge: &slot.booked.charge, demand: slot.entry.demand.as_deref().ok(), admission })
}
