//! The workloads that wait for one ClusterQueue, in order.
//!
//! Those that ask for the same are one class: when the first of a class does not fit, no other of it does. So what has to
//! be tried after quota was released is one workload a class, however many wait.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use super::entry::Demand;
use crate::engine::store::Key;

/// Place in the order: higher priority first, then who has waited longer, then the uid.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    pub(super) priority: Reverse<i32>,
    pub(super) since: Timestamp,
    pub(super) uid: Arc<str>,
    pub(super) workload: Key,
}

/// What a workload asks for, as far as it decides whether it fits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Shape {
    pub(super) demand: Arc<Demand>,
    /// The workload itself, if it takes over another's quota: then it is like no other.
    pub(super) alone: Option<Key>,
}

type ClassId = u64;

#[derive(Debug, Clone)]
struct Class {
    shape: Shape,
    ranks: BTreeSet<Rank>,
    /// Whether the first of the class was tried, and did not fit, since quota was last released.
    tried: bool,
}

/// See the module.
#[derive(Debug, Clone, Default)]
pub(super) struct Line {
    last_id: ClassId,
    ids: BTreeMap<Shape, ClassId>,
    classes: BTreeMap<ClassId, Class>,
    /// Everyone.
    all: BTreeSet<Rank>,
    /// The first of each class.
    heads: BTreeSet<(Rank, ClassId)>,
    /// Those of `heads` whose class is not tried.
    untried: BTreeSet<(Rank, ClassId)>,
}

impl Line {
    /// Lines a workload up.
    pub(super) fn insert(&mut self, shape: &Shape, rank: Rank) {
        let id = match self.ids.get(shape) {
            Some(id) => *id,
            None => {
                self.last_id += 1;
                self.ids.insert(shape.clone(), self.last_id);
                let class = Class { shape: shape.clone(), ranks: BTreeSet::new(), tried: false };
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

    /// Quota was released, or the rules changed: everything is to be tried again.
    pub(super) fn retry_all(&mut self) {
        for class in self.classes.values_mut() {
            class.tried = false;
        }
        self.untried.clone_from(&self.heads);
    }

    /// The first workload of all, and whether it is still to be tried.
    pub(super) fn head(&self) -> Option<(&Rank, bool)> {
        self.heads.first().map(|head| (&head.0, self.untried.contains(head)))
    }

    /// The first workload that is still to be tried.
    pub(super) fn next_untried(&self) -> Option<&Rank> {
        self.untried.first().map(|(rank, _)| rank)
    }

    /// The class of this head was tried, and does not fit.
    pub(super) fn mark_tried(&mut self, head: &Rank) {
        let first_with_rank = self.untried.range((head.clone(), ClassId::MIN)..).next().cloned();
        if let Some(entry) = first_with_rank.filter(|(rank, _)| rank == head) {
            self.untried.remove(&entry);
            if let Some(class) = self.classes.get_mut(&entry.1) {
                class.tried = true;
            }
        }
    }

    /// Everyone, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Rank> {
        self.all.iter()
    }

    /// Whether nobody waits.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    fn change(&mut self, id: ClassId, change: impl FnOnce(&mut BTreeSet<Rank>) -> bool) {
        let Some(class) = self.classes.get_mut(&id) else { return };
        let before = class.ranks.first().cloned();
        change(&mut class.ranks);
        let after = class.ranks.first().cloned();
        if before == after {
            return;
        }
        if let Some(rank) = before {
            let entry = (rank, id);
            self.heads.remove(&entry);
            self.untried.remove(&entry);
        }
        match after {
            Some(rank) => {
                if !class.tried {
                    self.untried.insert((rank.clone(), id));
                }
                self.heads.insert((rank, id));
            }
            None => {
                if let Some(class) = self.classes.remove(&id) {
                    self.ids.remove(&class.shape);
                }
            }
        }
    }
}
