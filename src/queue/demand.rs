//! What a workload asks for.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::Arc;

use super::entry::{PodCount, count_of};
use super::placement::Placement;
use super::requests::{Requests, template_requests};
use super::settings::Settings;
use super::shaping::shaped;
use crate::api::kueue::{PodSet, Workload};

/// What a workload asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Demand {
    pub(super) pod_sets: Vec<PodSetDemand>,
}

/// What one pod set asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PodSetDemand {
    pub(super) name: String,
    /// Pods that still need quota.
    pub(super) count: i32,
    /// The fewest pods that it can do with.
    pub(super) min_count: i32,
    pub(super) per_pod: Requests,
    pub(super) placement: Placement,
}

impl PodSetDemand {
    /// How many of `count` pods it could do without.
    pub(super) fn spare(&self, count: i32) -> i32 {
        (count - self.min_count).max(0)
    }

    /// What is left of `count` pods when all pod sets together do without `by` of the `most` pods that they could (kueue
    /// v0.19.2 `pkg/scheduler/flavorassigner/podset_reducer.go`).
    pub(super) fn reduced(&self, count: i32, by: i32, most: i32) -> i32 {
        let share = i64::from(self.spare(count)) * i64::from(by) / i64::from(most.max(1));
        count - i32::try_from(share).unwrap_or(self.spare(count))
    }
}

/// A demand that all workloads share that ask for the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SharedDemand(Arc<Demand>);

impl Deref for SharedDemand {
    type Target = Demand;

    fn deref(&self) -> &Demand {
        &self.0
    }
}

impl PartialOrd for SharedDemand {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for SharedDemand {
    fn cmp(&self, other: &Self) -> Ordering {
        if Arc::ptr_eq(&self.0, &other.0) { Ordering::Equal } else { self.0.cmp(&other.0) }
    }
}

/// The demands that are shared.
#[derive(Debug, Clone, Default)]
pub(super) struct Demands {
    known: BTreeSet<SharedDemand>,
    /// How many there may be before those that nobody has any more are let go.
    limit: usize,
}

impl Demands {
    /// The one that is equal to this, if there is one.
    pub(super) fn shared(&mut self, demand: Demand) -> SharedDemand {
        let demand = SharedDemand(Arc::new(demand));
        if let Some(known) = self.known.get(&demand) {
            return known.clone();
        }
        if self.known.len() >= self.limit {
            self.known.retain(|demand| Arc::strong_count(&demand.0) > 1);
            self.limit = self.known.len() * 2 + 64;
        }
        self.known.insert(demand.clone());
        demand
    }
}

/// What a workload asks for.
///
/// # Errors
/// When its pod sets can't be understood or ask for what is not supported.
pub(super) fn demand_of(
    workload: &Workload,
    counts: &[(String, PodCount)],
    settings: &Settings,
) -> Result<Demand, String> {
    let pod_sets = workload.spec.pod_sets.iter().map(|set| {
        supported(set)?;
        let per_pod = template_requests(&set.template).map_err(|error| format!("pod set {}: {error}", set.name))?;
        let placement = Placement::of(&set.template).map_err(|error| format!("pod set {}: {error}", set.name))?;
        let count = count_of(counts, &set.name).unwrap_or_default();
        let (reclaimable, count) = (count.reclaimable, count.needed());
        let min_count = set.min_count.map_or(count, |least| least.saturating_sub(reclaimable).clamp(0, count));
        let per_pod = shaped(per_pod, &settings.resources);
        Ok(PodSetDemand { name: set.name.clone(), count, min_count, per_pod, placement })
    });
    Ok(Demand { pod_sets: pod_sets.collect::<Result<_, String>>()? })
}

/// A pod set that must be within one part of the topology can't be admitted without looking at the topology.
fn supported(set: &PodSet) -> Result<(), String> {
    let required = set.topology_request.as_ref().is_some_and(|request| {
        request.required.is_some()
            || request.pod_set_slice_required_topology.is_some()
            || !request.podset_slice_required_topology_constraints.is_empty()
    });
    if required {
        return Err(format!("pod set {} requires a topology, which Sluice does not support yet", set.name));
    }
    Ok(())
}
