//! A second queue, slow and plain, that the engine is held against.
//!
//! It is written from the same rules, and to be checked by eye: plain values, everything summed up from scratch at every
//! question, nothing kept from one question to the next.

mod book;
mod checks;
mod flavors;
mod turns;
mod victims;
mod world;

use std::collections::{BTreeMap, BTreeSet};

pub(super) use turns::decide;
pub(super) use world::World;

use crate::PreemptionReason;
use crate::partial_preemption::PreemptionScope;
use sluice_plan::ObjectKey;

/// What one cycle decides.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Decision {
    /// In the order of the turns within each tree.
    pub(super) admitted: Vec<Admitted>,
    /// Victims, what they lose, for whom, and why.
    pub(super) evicted: BTreeMap<ObjectKey, (PreemptionScope, ObjectKey, PreemptionReason)>,
    /// Those for whom room is being made.
    pub(super) deferred: BTreeSet<ObjectKey>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Admitted {
    pub(super) workload: ObjectKey,
    /// Pods, and flavor by resource, of each pod set.
    pub(super) pod_sets: Vec<(String, i32, BTreeMap<String, String>)>,
}
