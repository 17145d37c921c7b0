//! Naive scheduler with which the real one is compared.
//!
//! It implements the same rules and is written to be verified by reading: plain values, every query
//! computed from scratch, no state between queries.

mod flavor_assignment;
mod preemption;
mod quota_tree;
mod scheduling;
mod snapshot;
mod snapshot_queries;

use std::collections::{BTreeMap, BTreeSet};

pub(super) use scheduling::run_cycle;
pub(super) use snapshot::Snapshot;

use crate::PreemptionReason;
use crate::partial_preemption::PreemptionScope;
use sluice_plan::ObjectKey;

/// Decisions of one cycle.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Decision {
    /// Admissions, in scheduling order within each tree.
    pub(super) admitted: Vec<Admitted>,
    /// Preemption targets: scope, preemptor and reason.
    pub(super) evicted: BTreeMap<ObjectKey, (PreemptionScope, ObjectKey, PreemptionReason)>,
    /// Preemptors that wait for evictions.
    pub(super) deferred: BTreeSet<ObjectKey>,
}

/// An admission.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Admitted {
    pub(super) workload: ObjectKey,
    /// Name, pod count, and flavor by resource of each pod set.
    pub(super) pod_sets: Vec<(String, i32, BTreeMap<String, String>)>,
}
