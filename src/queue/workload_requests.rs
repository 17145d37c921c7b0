//! Resource requests of a workload.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::adjust_resources::ResourceAdjustments;
use super::interner::{Interned, Interner};
use super::node_affinity::NodeRequirements;
use super::partial_admission::{GrowthPlan, GrowthStep};
use super::pod_resources::PodResources;
use super::requests::{Requests, RequestsError, parse_pod};
use super::resource_transformations::apply_transformations;
use super::settings::ResourceRules;
use super::workload_info::{PodCount, pod_count};
use sluice_api::DecodeError;
use sluice_api::kueue::{PodSet, Workload};

/// Resource requests of a workload.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WorkloadRequests {
    pub(super) pod_sets: Vec<PodSetRequests>,
    /// Order of partial admission; `None` if the workload is admitted in full or not at all.
    pub(super) growth_plan: Option<GrowthPlan>,
}

impl WorkloadRequests {
    /// Returns the number of pods that can be removed from `whole`, the pod counts by pod set.
    pub(super) fn reducible(&self, whole: &[i32]) -> i32 {
        self.pod_sets.iter().zip(whole).map(|(set, count)| set.reducible(*count)).sum()
    }

    /// Returns the pod counts left of `whole` when `by` of the `most` removable pods are removed
    /// across all pod sets (kueue v0.19.2 `pkg/scheduler/flavorassigner/podset_reducer.go`).
    pub(super) fn reduced(&self, whole: &[i32], by: i32, most: i32) -> Vec<i32> {
        self.pod_sets.iter().zip(whole).map(|(set, count)| set.reduced(*count, by, most)).collect()
    }
}

/// Resource requests of one pod set.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PodSetRequests {
    pub(super) name: String,
    /// Pods that still need quota.
    pub(super) count: i32,
    /// The fewest pods with which it can be admitted.
    pub(super) min_count: i32,
    pub(super) per_pod: Requests,
    /// Resources that only a container of KubeRay requests. A ClusterQueue need not cover them.
    pub(super) injected_only: BTreeSet<String>,
    pub(super) node_requirements: NodeRequirements,
    /// Messages about the LimitRange constraints that its pods violate.
    pub(super) limit_range_violations: Vec<String>,
}

impl PodSetRequests {
    /// Returns the number of pods that can be removed from `count`.
    pub(super) fn reducible(&self, count: i32) -> i32 {
        (count - self.min_count).max(0)
    }

    fn reduced(&self, count: i32, by: i32, most: i32) -> i32 {
        let share = i64::from(self.reducible(count)) * i64::from(by) / i64::from(most.max(1));
        count - i32::try_from(share).unwrap_or(self.reducible(count))
    }
}

/// Parsed pod sets of a Workload: all that its requests are computed from, except LimitRanges and
/// RuntimeClasses.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ParsedPodSets {
    pod_sets: Vec<ParsedPodSet>,
}

/// Reason why the pod sets of a Workload can't be scheduled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum PodSetError {
    /// The requests of its pods are invalid.
    #[error("resources validation failed: pod set {pod_set}: {source}")]
    Requests {
        /// Name of the pod set.
        pod_set: String,
        source: RequestsError,
    },
    /// The node constraints of its pods can't be decoded.
    #[error("pod set {pod_set}: {source}")]
    NodeRequirements {
        /// Name of the pod set.
        pod_set: String,
        source: DecodeError,
    },
    /// It requires a topology.
    #[error("pod set {pod_set} requires a topology, which Sluice does not support yet")]
    TopologyRequired {
        /// Name of the pod set.
        pod_set: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct ParsedPodSet {
    name: String,
    min_count: Option<i32>,
    pod: PodResources,
    /// Requests of one pod without LimitRange defaults and RuntimeClass overhead.
    unadjusted_requests: Requests,
    node_requirements: NodeRequirements,
}

impl ParsedPodSets {
    /// Reads the pod sets of a Workload.
    ///
    /// # Errors
    /// If a pod set is invalid or uses an unsupported feature.
    pub(super) fn parse(workload: &Workload, rules: &ResourceRules) -> Result<Self, PodSetError> {
        let pod_sets = workload.spec.pod_sets.iter().map(|set| {
            check_supported(set)?;
            let pod = parse_pod(&set.template)
                .map_err(|source| PodSetError::Requests { pod_set: set.name.clone(), source })?;
            let placement = NodeRequirements::from_template(&set.template)
                .map_err(|error| PodSetError::NodeRequirements { pod_set: set.name.clone(), source: error.into() })?;
            let as_written = apply_transformations(pod.requests(None), rules);
            Ok(ParsedPodSet {
                name: set.name.clone(),
                min_count: set.min_count,
                pod,
                unadjusted_requests: as_written,
                node_requirements: placement,
            })
        });
        Ok(Self { pod_sets: pod_sets.collect::<Result<_, PodSetError>>()? })
    }

    /// Returns the requests of one pod of a pod set, without LimitRange defaults and RuntimeClass
    /// overhead; `None` if there is no such pod set.
    pub(super) fn unadjusted_requests(&self, pod_set: &str) -> Option<&Requests> {
        self.pod_sets.iter().find(|set| set.name == pod_set).map(|set| &set.unadjusted_requests)
    }

    /// Returns true if any of its pods names this RuntimeClass.
    pub(super) fn names_runtime_class(&self, class: &str) -> bool {
        self.pod_sets.iter().any(|set| set.pod.runtime_class.as_deref() == Some(class))
    }
}

impl ParsedPodSet {
    fn requests(
        &self,
        count: PodCount,
        added: &ResourceAdjustments,
        namespace: &str,
        rules: &ResourceRules,
    ) -> PodSetRequests {
        let overhead = self.pod.runtime_class.as_deref().and_then(|class| added.overhead(class));
        let limits = added.limits(namespace);
        let pod = limits.map_or(Cow::Borrowed(&self.pod), |limits| Cow::Owned(self.pod.with_defaults(limits)));
        let per_pod = if limits.is_none() && overhead.is_none() {
            self.unadjusted_requests.clone()
        } else {
            apply_transformations(pod.requests(overhead), rules)
        };
        let (reclaimable, count) = (count.reclaimable, count.needed());
        let min_count = self.min_count.map_or(count, |least| least.saturating_sub(reclaimable).clamp(0, count));
        let (name, placement) = (self.name.clone(), self.node_requirements.clone());
        PodSetRequests {
            name,
            count,
            min_count,
            per_pod,
            injected_only: pod.injected_only(),
            node_requirements: placement,
            limit_range_violations: limits.map(|limits| limits.violations(&pod)).unwrap_or_default(),
        }
    }
}

/// Interned pod sets and requests of all workloads, and the cluster's adjustments to pods.
#[derive(Debug, Clone, Default)]
pub(super) struct RequestsCache {
    parsed_pod_sets: Interner<ParsedPodSets>,
    requests: Interner<WorkloadRequests>,
    pub(super) adjustments: ResourceAdjustments,
}

impl RequestsCache {
    /// Parses the pod sets of a Workload.
    ///
    /// # Errors
    /// If a pod set is invalid or uses an unsupported feature.
    pub(super) fn parse(
        &mut self,
        workload: &Workload,
        rules: &ResourceRules,
    ) -> Result<Interned<ParsedPodSets>, PodSetError> {
        ParsedPodSets::parse(workload, rules).map(|ask| self.parsed_pod_sets.intern(ask))
    }

    /// Returns the requests of a workload without partial admission.
    pub(super) fn requests_in_full(
        &self,
        ask: &ParsedPodSets,
        namespace: &str,
        counts: &[(String, PodCount)],
        rules: &ResourceRules,
    ) -> WorkloadRequests {
        let count = |set: &ParsedPodSet| pod_count(counts, &set.name).unwrap_or_default();
        let pod_sets =
            ask.pod_sets.iter().map(|set| set.requests(count(set), &self.adjustments, namespace, rules)).collect();
        WorkloadRequests { pod_sets, growth_plan: None }
    }

    /// Returns the requests under the current LimitRanges and RuntimeClasses.
    pub(super) fn current_requests(
        &mut self,
        ask: &ParsedPodSets,
        namespace: &str,
        counts: &[(String, PodCount)],
        steps: &[GrowthStep],
        rules: &ResourceRules,
    ) -> Interned<WorkloadRequests> {
        let count = |set: &ParsedPodSet| pod_count(counts, &set.name).unwrap_or_default();
        let mut pod_sets: Vec<PodSetRequests> =
            ask.pod_sets.iter().map(|set| set.requests(count(set), &self.adjustments, namespace, rules)).collect();
        let growth_plan = GrowthPlan::from_steps(steps, counts);
        let least = growth_plan.iter().flat_map(GrowthPlan::min_counts);
        pod_sets.iter_mut().zip(least).for_each(|(set, least)| set.min_count = least);
        self.requests.intern(WorkloadRequests { pod_sets, growth_plan })
    }
}

/// Rejects a pod set with a required topology: it cannot be admitted without topology-aware
/// scheduling.
fn check_supported(set: &PodSet) -> Result<(), PodSetError> {
    let required = set.topology_request.as_ref().is_some_and(|request| {
        request.required.is_some()
            || request.pod_set_slice_required_topology.is_some()
            || !request.podset_slice_required_topology_constraints.is_empty()
    });
    if required {
        return Err(PodSetError::TopologyRequired { pod_set: set.name.clone() });
    }
    Ok(())
}
