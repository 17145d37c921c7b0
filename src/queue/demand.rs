//! Resource requests of a workload.

use super::additions::Additions;
use super::entry::{PodCount, count_of};
use super::placement::Placement;
use super::pod::Pod;
use super::requests::{Requests, pod_of};
use super::settings::ResourceRules;
use super::shaping::shaped;
use super::shared::{Pool, Shared};
use super::steps::{Ladder, Step};
use sluice_api::kueue::{PodSet, Workload};

/// Resource requests of a workload.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Demand {
    pub(super) pod_sets: Vec<PodSetDemand>,
    /// Order of partial admission; `None` if the workload is admitted in full or not at all.
    pub(super) ladder: Option<Ladder>,
}

impl Demand {
    /// Returns the number of pods that can be removed from `whole`, the pod counts by pod set.
    pub(super) fn spare(&self, whole: &[i32]) -> i32 {
        self.pod_sets.iter().zip(whole).map(|(set, count)| set.spare(*count)).sum()
    }

    /// Returns the pod counts left of `whole` when `by` of the `most` removable pods are removed
    /// across all pod sets (kueue v0.19.2 `pkg/scheduler/flavorassigner/podset_reducer.go`).
    pub(super) fn reduced(&self, whole: &[i32], by: i32, most: i32) -> Vec<i32> {
        self.pod_sets.iter().zip(whole).map(|(set, count)| set.reduced(*count, by, most)).collect()
    }
}

/// Resource requests of one pod set.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PodSetDemand {
    pub(super) name: String,
    /// Pods that still need quota.
    pub(super) count: i32,
    /// The fewest pods with which it can be admitted.
    pub(super) min_count: i32,
    pub(super) per_pod: Requests,
    pub(super) placement: Placement,
    /// Messages about the LimitRange constraints that its pods violate.
    pub(super) breaches: Vec<String>,
}

impl PodSetDemand {
    /// Returns the number of pods that can be removed from `count`.
    pub(super) fn spare(&self, count: i32) -> i32 {
        (count - self.min_count).max(0)
    }

    fn reduced(&self, count: i32, by: i32, most: i32) -> i32 {
        let share = i64::from(self.spare(count)) * i64::from(by) / i64::from(most.max(1));
        count - i32::try_from(share).unwrap_or(self.spare(count))
    }
}

/// Parsed pod sets of a Workload: all that its requests are computed from, except LimitRanges and
/// RuntimeClasses.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ask {
    pod_sets: Vec<PodSetAsk>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct PodSetAsk {
    name: String,
    min_count: Option<i32>,
    pod: Pod,
    /// Requests of one pod without LimitRange defaults and RuntimeClass overhead.
    as_written: Requests,
    placement: Placement,
}

impl Ask {
    /// Reads the pod sets of a Workload.
    ///
    /// # Errors
    /// If a pod set is invalid or uses an unsupported feature.
    pub(super) fn of(workload: &Workload, rules: &ResourceRules) -> Result<Self, String> {
        let pod_sets = workload.spec.pod_sets.iter().map(|set| {
            supported(set)?;
            let pod = pod_of(&set.template).map_err(|error| format!("pod set {}: {error}", set.name))?;
            let placement = Placement::of(&set.template).map_err(|error| format!("pod set {}: {error}", set.name))?;
            let as_written = shaped(pod.requests(None), rules);
            Ok(PodSetAsk { name: set.name.clone(), min_count: set.min_count, pod, as_written, placement })
        });
        Ok(Self { pod_sets: pod_sets.collect::<Result<_, String>>()? })
    }

    /// Returns the requests of one pod of a pod set, without LimitRange defaults and RuntimeClass
    /// overhead; `None` if there is no such pod set.
    pub(super) fn as_written(&self, pod_set: &str) -> Option<&Requests> {
        self.pod_sets.iter().find(|set| set.name == pod_set).map(|set| &set.as_written)
    }

    /// Returns true if any of its pods names this RuntimeClass.
    pub(super) fn names_class(&self, class: &str) -> bool {
        self.pod_sets.iter().any(|set| set.pod.runtime_class.as_deref() == Some(class))
    }
}

impl PodSetAsk {
    fn demand(&self, count: PodCount, added: &Additions, namespace: &str, rules: &ResourceRules) -> PodSetDemand {
        let overhead = self.pod.runtime_class.as_deref().and_then(|class| added.overhead(class));
        let limits = added.limits(namespace);
        let (per_pod, breaches) = match limits {
            None if overhead.is_none() => (self.as_written.clone(), Vec::new()),
            None => (shaped(self.pod.requests(overhead), rules), Vec::new()),
            Some(limits) => {
                let pod = self.pod.completed(limits);
                (shaped(pod.requests(overhead), rules), limits.breaches(&pod))
            }
        };
        let (reclaimable, count) = (count.reclaimable, count.needed());
        let min_count = self.min_count.map_or(count, |least| least.saturating_sub(reclaimable).clamp(0, count));
        let (name, placement) = (self.name.clone(), self.placement.clone());
        PodSetDemand { name, count, min_count, per_pod, placement, breaches }
    }
}

/// Interned pod sets and requests of all workloads, and the cluster's adjustments to pods.
#[derive(Debug, Clone, Default)]
pub(super) struct Demands {
    asks: Pool<Ask>,
    demands: Pool<Demand>,
    pub(super) added: Additions,
}

impl Demands {
    /// Parses the pod sets of a Workload.
    ///
    /// # Errors
    /// If a pod set is invalid or uses an unsupported feature.
    pub(super) fn ask(&mut self, workload: &Workload, rules: &ResourceRules) -> Result<Shared<Ask>, String> {
        Ask::of(workload, rules).map(|ask| self.asks.shared(ask))
    }

    /// Returns the requests of a workload without partial admission.
    pub(super) fn hypothetical(
        &self,
        ask: &Ask,
        namespace: &str,
        counts: &[(String, PodCount)],
        rules: &ResourceRules,
    ) -> Demand {
        let count = |set: &PodSetAsk| count_of(counts, &set.name).unwrap_or_default();
        let pod_sets = ask.pod_sets.iter().map(|set| set.demand(count(set), &self.added, namespace, rules)).collect();
        Demand { pod_sets, ladder: None }
    }

    /// Returns the requests under the current LimitRanges and RuntimeClasses.
    pub(super) fn demand(
        &mut self,
        ask: &Ask,
        namespace: &str,
        counts: &[(String, PodCount)],
        steps: &[Step],
        rules: &ResourceRules,
    ) -> Shared<Demand> {
        let count = |set: &PodSetAsk| count_of(counts, &set.name).unwrap_or_default();
        let mut pod_sets: Vec<PodSetDemand> =
            ask.pod_sets.iter().map(|set| set.demand(count(set), &self.added, namespace, rules)).collect();
        let ladder = Ladder::of(steps, counts);
        let least = ladder.iter().flat_map(Ladder::least);
        pod_sets.iter_mut().zip(least).for_each(|(set, least)| set.min_count = least);
        self.demands.shared(Demand { pod_sets, ladder })
    }
}

/// Rejects a pod set with a required topology: it cannot be admitted without topology-aware
/// scheduling.
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
