//! The workloads that are queued in one ClusterQueue, in order.
//!
//! Workloads with equal requests and priority form an equivalence class (EquivalenceHash in Kueue):
//! if the first one cannot be admitted, none of the class can. Such a class is parked until the
//! quota that it needs may be reachable. So only few classes are examined when quota is released,
//! however many workloads are queued.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use super::index_update::IndexUpdate;
use super::interner::Interned;
use super::scheduler::WorkloadId;
use super::scheduling::RetryCondition;
use super::tree::FlavorResourceId;
use super::workload_requests::WorkloadRequests;

/// Position in the queue: workloads with issued evictions first, then by descending priority, queue
/// order timestamp and UID (kueue v0.19.2 `pkg/cache/queue/cluster_queue.go`, `baseCompareFunc`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct QueueOrder {
    pub(super) preempting: Reverse<bool>,
    pub(super) priority: Reverse<i32>,
    pub(super) queue_order_timestamp: Timestamp,
    pub(super) uid: Arc<str>,
    pub(super) workload: WorkloadId,
}

/// The properties of a workload that decide whether it can be admitted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EquivalenceKey {
    pub(super) priority: Reverse<i32>,
    pub(super) requests: Interned<WorkloadRequests>,
    /// The workload itself if it replaces a slice: it is then in a class on its own.
    pub(super) replacing_workload: Option<WorkloadId>,
}

/// An amount that a class needs. Retrying is worthwhile once one of its needs is reachable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct QuotaNeed {
    pub(super) fr: FlavorResourceId,
    pub(super) amount: i128,
}

/// Identifies a class while it has members.
pub(super) type EquivalenceClassId = u64;

type ClassHead = (QueueOrder, EquivalenceClassId);

/// The queued workloads with the same equivalence key.
#[derive(Debug, Clone, Copy)]
pub(super) struct EquivalenceClass<'a> {
    pub(super) key: &'a EquivalenceKey,
    pub(super) head: &'a QueueOrder,
    pub(super) count: usize,
}

#[derive(Debug, Clone)]
struct ClassMembers {
    key: EquivalenceKey,
    order: BTreeSet<QueueOrder>,
    state: ClassState,
}

#[derive(Debug, Clone)]
enum ClassState {
    /// Will be nominated.
    Active,
    /// Its first workload could not be admitted.
    Parked(Parked),
}

/// The change that is required before a parked class is retried.
#[derive(Debug, Clone)]
pub(super) enum Parked {
    /// One of these needs must be reachable.
    UntilReachable(Vec<QuotaNeed>),
    /// The condition must be met. Any change counts if it is `None`.
    UntilChanged(Option<Arc<RetryCondition>>),
}

/// The pending queue of one ClusterQueue.
#[derive(Debug, Clone, Default)]
pub(super) struct PendingQueue {
    last_id: EquivalenceClassId,
    class_ids: BTreeMap<EquivalenceKey, EquivalenceClassId>,
    classes: BTreeMap<EquivalenceClassId, ClassMembers>,
    /// All workloads.
    order: BTreeSet<QueueOrder>,
    /// The first workload of each active class.
    active_heads: BTreeSet<ClassHead>,
    /// The first workload of each class parked until reachable, by flavor resource and priority,
    /// then by amount.
    parked_by_need: BTreeMap<(FlavorResourceId, i32), BTreeMap<i128, BTreeSet<ClassHead>>>,
    parked_until_changed: BTreeMap<EquivalenceClassId, Option<Arc<RetryCondition>>>,
}

impl PendingQueue {
    /// Enqueues a workload.
    pub(super) fn insert(&mut self, shape: &EquivalenceKey, rank: QueueOrder) {
        let id = match self.class_ids.get(shape) {
            Some(id) => *id,
            None => {
                self.last_id += 1;
                self.class_ids.insert(shape.clone(), self.last_id);
                let class = ClassMembers { key: shape.clone(), order: BTreeSet::new(), state: ClassState::Active };
                self.classes.insert(self.last_id, class);
                self.last_id
            }
        };
        self.order.insert(rank.clone());
        self.update_members(id, |ranks| ranks.insert(rank));
    }

    /// Removes a workload.
    pub(super) fn remove(&mut self, shape: &EquivalenceKey, rank: &QueueOrder) {
        if let Some(id) = self.class_ids.get(shape).copied() {
            self.order.remove(rank);
            self.update_members(id, |ranks| ranks.remove(rank));
        }
    }

    /// Activates all classes, after a change of quota or configuration.
    pub(super) fn activate_all(&mut self) {
        self.parked_by_need.clear();
        self.parked_until_changed.clear();
        self.active_heads.clear();
        for (id, class) in &mut self.classes {
            class.state = ClassState::Active;
            self.active_heads.extend(class.order.first().map(|rank| (rank.clone(), *id)));
        }
    }

    /// Returns the classes that are parked although their needs are reachable, and their retry
    /// conditions.
    pub(super) fn parked_until_changed(&self) -> impl Iterator<Item = (EquivalenceClassId, Option<&RetryCondition>)> {
        self.parked_until_changed.iter().map(|(class, watch)| (*class, watch.as_deref()))
    }

    /// Activates a class.
    pub(super) fn activate(&mut self, class: EquivalenceClassId) {
        self.set_state(class, ClassState::Active);
    }

    /// Reports whether any class is parked until a change.
    pub(super) fn has_parked_until_changed(&self) -> bool {
        !self.parked_until_changed.is_empty()
    }

    /// Returns the first workload.
    pub(super) fn head(&self) -> Option<&QueueOrder> {
        self.order.first()
    }

    /// Returns the first workload that is active or reachable. `reach` returns the reachable amount
    /// of a flavor resource for a priority.
    pub(super) fn next_reachable(
        &self,
        mut reachable_quota: impl FnMut(FlavorResourceId, i32) -> i128,
    ) -> Option<&QueueOrder> {
        let mut first = self.active_heads.first().map(|(rank, _)| rank);
        for ((fr, priority), needs) in &self.parked_by_need {
            if first.is_some_and(|first| first.priority.0 > *priority) {
                continue;
            }
            let within = reachable_quota(*fr, *priority);
            for (rank, _) in needs.range(..=within).filter_map(|(_, places)| places.first()) {
                if first.is_none_or(|first| rank < first) {
                    first = Some(rank);
                }
            }
        }
        first
    }

    /// Parks the class of a workload that is its first and could not be admitted.
    pub(super) fn park(&mut self, shape: &EquivalenceKey, tried: Parked) {
        if let Some(id) = self.class_ids.get(shape).copied() {
            self.set_state(id, ClassState::Parked(tried));
        }
    }

    /// Returns all workloads in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &QueueOrder> {
        self.order.iter()
    }

    /// Returns the equivalence keys of the queued workloads.
    pub(super) fn equivalence_keys(&self) -> impl Iterator<Item = &EquivalenceKey> {
        self.class_ids.keys()
    }

    /// Returns all classes.
    pub(super) fn classes(&self) -> impl Iterator<Item = EquivalenceClass<'_>> {
        self.classes.values().filter_map(|ClassMembers { key: shape, order: ranks, .. }| {
            Some(EquivalenceClass { key: shape, head: ranks.first()?, count: ranks.len() })
        })
    }

    /// Reports whether no workload is queued.
    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    fn set_state(&mut self, id: EquivalenceClassId, state: ClassState) {
        let Some(class) = self.classes.get_mut(&id) else { return };
        let before = std::mem::replace(&mut class.state, state);
        if let Some(first) = class.order.first().cloned() {
            self.index_head(&(first.clone(), id), &before, IndexUpdate::Remove);
            if let Some(class) = self.classes.get(&id) {
                let state = class.state.clone();
                self.index_head(&(first, id), &state, IndexUpdate::Insert);
            }
        }
    }

    /// Inserts the first workload of a class into the index of its state, or removes it.
    fn index_head(&mut self, place: &ClassHead, state: &ClassState, update: IndexUpdate) {
        match state {
            ClassState::Active => update.apply_to(&mut self.active_heads, place.clone()),
            ClassState::Parked(Parked::UntilChanged(watch)) => match update {
                IndexUpdate::Insert => drop(self.parked_until_changed.insert(place.1, watch.clone())),
                IndexUpdate::Remove => drop(self.parked_until_changed.remove(&place.1)),
            },
            ClassState::Parked(Parked::UntilReachable(needs)) => {
                for need in needs {
                    let group = (need.fr, place.0.priority.0);
                    let by_amount = self.parked_by_need.entry(group).or_default();
                    let places = by_amount.entry(need.amount).or_default();
                    update.apply_to(places, place.clone());
                    if places.is_empty() {
                        by_amount.remove(&need.amount);
                    }
                    if by_amount.is_empty() {
                        self.parked_by_need.remove(&group);
                    }
                }
            }
        }
    }

    fn update_members(&mut self, id: EquivalenceClassId, change: impl FnOnce(&mut BTreeSet<QueueOrder>) -> bool) {
        let Some(class) = self.classes.get_mut(&id) else { return };
        let before = class.order.first().cloned();
        change(&mut class.order);
        let after = class.order.first().cloned();
        if before == after {
            return;
        }
        let state = class.state.clone();
        // A new first workload has not been nominated yet.
        let next = match (&before, &after) {
            (Some(before), Some(after)) if after < before => ClassState::Active,
            _ => state.clone(),
        };
        class.state = next.clone();
        if let Some(rank) = before {
            self.index_head(&(rank, id), &state, IndexUpdate::Remove);
        }
        match after {
            Some(rank) => self.index_head(&(rank, id), &next, IndexUpdate::Insert),
            None => {
                if let Some(class) = self.classes.remove(&id) {
                    self.class_ids.remove(&class.key);
                }
            }
        }
    }
}
