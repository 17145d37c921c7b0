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

use super::demand::Demand;
use super::engine::WorkloadId;
use super::shared::Shared;
use super::tree::Fr;
use super::turns::Watch;

/// Position in the queue: workloads with issued evictions first, then by descending priority, queue
/// order timestamp and UID (kueue v0.19.2 `pkg/cache/queue/cluster_queue.go`, `baseCompareFunc`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    pub(super) preempts: Reverse<bool>,
    pub(super) priority: Reverse<i32>,
    pub(super) since: Timestamp,
    pub(super) uid: Arc<str>,
    pub(super) workload: WorkloadId,
}

/// The properties of a workload that decide whether it can be admitted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Shape {
    pub(super) priority: Reverse<i32>,
    pub(super) demand: Shared<Demand>,
    /// The workload itself if it replaces a slice: it is then in a class on its own.
    pub(super) alone: Option<WorkloadId>,
}

/// An amount that a class needs. Retrying is worthwhile once one of its needs is reachable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Need {
    pub(super) fr: Fr,
    pub(super) amount: i128,
}

/// Identifies a class while it has members.
pub(super) type ClassId = u64;

type Place = (Rank, ClassId);

/// The queued workloads with the same equivalence key.
#[derive(Debug, Clone, Copy)]
pub(super) struct Class<'a> {
    pub(super) shape: &'a Shape,
    pub(super) first: &'a Rank,
    pub(super) count: usize,
}

#[derive(Debug, Clone)]
struct Members {
    shape: Shape,
    ranks: BTreeSet<Rank>,
    state: State,
}

#[derive(Debug, Clone)]
enum State {
    /// Will be nominated.
    Awake,
    /// Its first workload could not be admitted.
    Tried(Tried),
}

/// The change that is required before a parked class is retried.
#[derive(Debug, Clone)]
pub(super) enum Tried {
    /// One of these needs must be reachable.
    Aside(Vec<Need>),
    /// The condition must be met. Any change counts if it is `None`.
    Restless(Option<Arc<Watch>>),
}

/// The pending queue of one ClusterQueue.
#[derive(Debug, Clone, Default)]
pub(super) struct Line {
    last_id: ClassId,
    ids: BTreeMap<Shape, ClassId>,
    classes: BTreeMap<ClassId, Members>,
    /// All workloads.
    all: BTreeSet<Rank>,
    /// The first workload of each active class.
    awake: BTreeSet<Place>,
    /// The first workload of each class parked until reachable, by flavor resource and priority,
    /// then by amount.
    aside: BTreeMap<(Fr, i32), BTreeMap<i128, BTreeSet<Place>>>,
    restless: BTreeMap<ClassId, Option<Arc<Watch>>>,
}

impl Line {
    /// Enqueues a workload.
    pub(super) fn insert(&mut self, shape: &Shape, rank: Rank) {
        let id = match self.ids.get(shape) {
            Some(id) => *id,
            None => {
                self.last_id += 1;
                self.ids.insert(shape.clone(), self.last_id);
                let class = Members { shape: shape.clone(), ranks: BTreeSet::new(), state: State::Awake };
                self.classes.insert(self.last_id, class);
                self.last_id
            }
        };
        self.all.insert(rank.clone());
        self.change(id, |ranks| ranks.insert(rank));
    }

    /// Removes a workload.
    pub(super) fn remove(&mut self, shape: &Shape, rank: &Rank) {
        if let Some(id) = self.ids.get(shape).copied() {
            self.all.remove(rank);
            self.change(id, |ranks| ranks.remove(rank));
        }
    }

    /// Activates all classes, after a change of quota or configuration.
    pub(super) fn retry_all(&mut self) {
        self.aside.clear();
        self.restless.clear();
        self.awake.clear();
        for (id, class) in &mut self.classes {
            class.state = State::Awake;
            self.awake.extend(class.ranks.first().map(|rank| (rank.clone(), *id)));
        }
    }

    /// Returns the classes that are parked although their needs are reachable, and their retry
    /// conditions.
    pub(super) fn restless(&self) -> impl Iterator<Item = (ClassId, Option<&Watch>)> {
        self.restless.iter().map(|(class, watch)| (*class, watch.as_deref()))
    }

    /// Activates a class.
    pub(super) fn wake(&mut self, class: ClassId) {
        self.set_state(class, State::Awake);
    }

    /// Reports whether any class is parked until a change.
    pub(super) fn is_restless(&self) -> bool {
        !self.restless.is_empty()
    }

    /// Returns the first workload.
    pub(super) fn head(&self) -> Option<&Rank> {
        self.all.first()
    }

    /// Returns the first workload that is active or reachable. `reach` returns the reachable amount
    /// of a flavor resource for a priority.
    pub(super) fn next(&self, mut reach: impl FnMut(Fr, i32) -> i128) -> Option<&Rank> {
        let mut first = self.awake.first().map(|(rank, _)| rank);
        for ((fr, priority), needs) in &self.aside {
            if first.is_some_and(|first| first.priority.0 > *priority) {
                continue;
            }
            let within = reach(*fr, *priority);
            for (rank, _) in needs.range(..=within).filter_map(|(_, places)| places.first()) {
                if first.is_none_or(|first| rank < first) {
                    first = Some(rank);
                }
            }
        }
        first
    }

    /// Parks the class of a workload that is its first and could not be admitted.
    pub(super) fn set_aside(&mut self, shape: &Shape, tried: Tried) {
        if let Some(id) = self.ids.get(shape).copied() {
            self.set_state(id, State::Tried(tried));
        }
    }

    /// Returns all workloads in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Rank> {
        self.all.iter()
    }

    /// Returns the equivalence keys of the queued workloads.
    pub(super) fn shapes(&self) -> impl Iterator<Item = &Shape> {
        self.ids.keys()
    }

    /// Returns all classes.
    pub(super) fn classes(&self) -> impl Iterator<Item = Class<'_>> {
        self.classes
            .values()
            .filter_map(|Members { shape, ranks, .. }| Some(Class { shape, first: ranks.first()?, count: ranks.len() }))
    }

    /// Reports whether no workload is queued.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    fn set_state(&mut self, id: ClassId, state: State) {
        let Some(class) = self.classes.get_mut(&id) else { return };
        let before = std::mem::replace(&mut class.state, state);
        if let Some(first) = class.ranks.first().cloned() {
            self.list(&(first.clone(), id), &before, false);
            if let Some(class) = self.classes.get(&id) {
                let state = class.state.clone();
                self.list(&(first, id), &state, true);
            }
        }
    }

    /// Adds the first workload of a class to the index of its state, or removes it if `present` is
    /// false.
    fn list(&mut self, place: &Place, state: &State, present: bool) {
        match state {
            State::Awake => set_member(&mut self.awake, place, present),
            State::Tried(Tried::Restless(watch)) => {
                if present {
                    self.restless.insert(place.1, watch.clone());
                } else {
                    self.restless.remove(&place.1);
                }
            }
            State::Tried(Tried::Aside(needs)) => {
                for need in needs {
                    let group = (need.fr, place.0.priority.0);
                    let by_amount = self.aside.entry(group).or_default();
                    let places = by_amount.entry(need.amount).or_default();
                    set_member(places, place, present);
                    if places.is_empty() {
                        by_amount.remove(&need.amount);
                    }
                    if by_amount.is_empty() {
                        self.aside.remove(&group);
                    }
                }
            }
        }
    }

    fn change(&mut self, id: ClassId, change: impl FnOnce(&mut BTreeSet<Rank>) -> bool) {
        let Some(class) = self.classes.get_mut(&id) else { return };
        let before = class.ranks.first().cloned();
        change(&mut class.ranks);
        let after = class.ranks.first().cloned();
        if before == after {
            return;
        }
        let state = class.state.clone();
        // A new first workload has not been nominated yet.
        let next = match (&before, &after) {
            (Some(before), Some(after)) if after < before => State::Awake,
            _ => state.clone(),
        };
        class.state = next.clone();
        if let Some(rank) = before {
            self.list(&(rank, id), &state, false);
        }
        match after {
            Some(rank) => self.list(&(rank, id), &next, true),
            None => {
                if let Some(class) = self.classes.remove(&id) {
                    self.ids.remove(&class.shape);
                }
            }
        }
    }
}

fn set_member<T: Ord + Clone>(set: &mut BTreeSet<T>, member: &T, present: bool) {
    if present {
        set.insert(member.clone());
    } else {
        set.remove(member);
    }
}
