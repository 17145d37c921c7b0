//! The workloads that wait for one ClusterQueue, in order.
//!
//! Those that ask for the same with the same priority are one class: when the first of a class gets nothing, no other of it
//! does. A class that was tried in vain is set aside until what it needs may be there, so that what has to be looked at
//! after quota was released is few classes, however many wait.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use super::demand::Demand;
use super::engine::WorkloadId;
use super::shared::Shared;
use super::tree::Fr;
use super::turns::Watch;

/// Place in the order: those for whom others were evicted first, then higher priority, then who has waited longer, then the
/// uid (kueue v0.19.2 `pkg/cache/queue/cluster_queue.go`, `baseCompareFunc`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    pub(super) preempts: Reverse<bool>,
    pub(super) priority: Reverse<i32>,
    pub(super) since: Timestamp,
    pub(super) uid: Arc<str>,
    pub(super) workload: WorkloadId,
}

/// What a workload asks for, as far as it decides what it gets.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Shape {
    pub(super) priority: Reverse<i32>,
    pub(super) demand: Shared<Demand>,
    /// The workload itself, if it takes over another's quota: then it is like no other.
    pub(super) alone: Option<WorkloadId>,
}

/// What must be within a class's reach before trying it again makes sense: this much, of one of several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Need {
    pub(super) fr: Fr,
    pub(super) amount: i128,
}

/// Stands for a class while someone of it is in line.
pub(super) type ClassId = u64;

type Place = (Rank, ClassId);

/// Those in line that ask for the same.
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
    /// It is to be tried.
    Awake,
    /// Its first was tried in vain.
    Tried(Tried),
}

/// What could help a class whose first was tried in vain.
#[derive(Debug, Clone)]
pub(super) enum Tried {
    /// One of these has to be within reach.
    Aside(Vec<Need>),
    /// What is watched has to change; anything could help if nothing is watched.
    Restless(Option<Arc<Watch>>),
}

/// See the module.
#[derive(Debug, Clone, Default)]
pub(super) struct Line {
    last_id: ClassId,
    ids: BTreeMap<Shape, ClassId>,
    classes: BTreeMap<ClassId, Members>,
    /// Everyone.
    all: BTreeSet<Rank>,
    /// The first of each class that is to be tried.
    awake: BTreeSet<Place>,
    /// The first of each class that was set aside, by what it needs.
    aside: BTreeMap<(Fr, i32), BTreeMap<i128, BTreeSet<Place>>>,
    restless: BTreeMap<ClassId, Option<Arc<Watch>>>,
}

impl Line {
    /// Lines a workload up.
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

    /// Takes a workload out.
    pub(super) fn remove(&mut self, shape: &Shape, rank: &Rank) {
        if let Some(id) = self.ids.get(shape).copied() {
            self.all.remove(rank);
            self.change(id, |ranks| ranks.remove(rank));
        }
    }

    /// The rules changed: everything is to be tried again.
    pub(super) fn retry_all(&mut self) {
        self.aside.clear();
        self.restless.clear();
        self.awake.clear();
        for (id, class) in &mut self.classes {
            class.state = State::Awake;
            self.awake.extend(class.ranks.first().map(|rank| (rank.clone(), *id)));
        }
    }

    /// The classes that are within reach and were tried in vain all the same, and what is watched for them.
    pub(super) fn restless(&self) -> impl Iterator<Item = (ClassId, Option<&Watch>)> {
        self.restless.iter().map(|(class, watch)| (*class, watch.as_deref()))
    }

    /// A class is worth trying again.
    pub(super) fn wake(&mut self, class: ClassId) {
        self.set_state(class, State::Awake);
    }

    /// Whether there are any such classes.
    pub(super) fn is_restless(&self) -> bool {
        !self.restless.is_empty()
    }

    /// The first workload of all.
    pub(super) fn head(&self) -> Option<&Rank> {
        self.all.first()
    }

    /// The first workload that is worth trying, where `reach` says how much of a resource is within reach for a priority.
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

    /// The class of this workload, which is its first, was tried in vain.
    pub(super) fn set_aside(&mut self, shape: &Shape, tried: Tried) {
        if let Some(id) = self.ids.get(shape).copied() {
            self.set_state(id, State::Tried(tried));
        }
    }

    /// Everyone, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Rank> {
        self.all.iter()
    }

    /// What those that wait ask for.
    pub(super) fn shapes(&self) -> impl Iterator<Item = &Shape> {
        self.ids.keys()
    }

    /// All classes.
    pub(super) fn classes(&self) -> impl Iterator<Item = Class<'_>> {
        self.classes
            .values()
            .filter_map(|Members { shape, ranks, .. }| Some(Class { shape, first: ranks.first()?, count: ranks.len() }))
    }

    /// Whether nobody waits.
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

    /// Puts the first of a class where those in its state are found, or takes it off there.
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
        // Who comes before the one that was tried has not been tried.
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
