//! Steps of an incremental upgrade, if replicas start and pods terminate as fast as possible.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use kube_core::ResourceExt;
use serde::Serialize;

use super::outcome::{PerPodUsage, ResourceUsage, resource_usages};
use sluice_api::ray::incremental_annotations;
use sluice_api::ray::{RayCluster, RayService};
use sluice_plan::ServeConfig;
use sluice_queue::requests::{Requests, pod_requests};
use sluice_raycluster::groups::{PodGroup, RayNodeType};
use sluice_raycluster::pod_groups;
use sluice_rayservice::incremental::options::IncrementalOptions;
use sluice_rayservice::incremental::state_machine::{
    self, ClusterShare, FULL, Percent, RolloutConfig, RolloutPosition,
};
use sluice_rayservice::incremental::workers;

/// Steps of an incremental upgrade.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Timeline {
    /// Minimum duration of the upgrade, in seconds.
    pub at_least_seconds: i64,
    /// Steps; the first is the start of the upgrade.
    pub steps: Vec<TimelineStep>,
}

/// State after a step.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TimelineStep {
    /// Earliest time since the start of the upgrade, in seconds.
    pub after_seconds: i64,
    /// Cluster that is active at the start.
    pub active: ClusterShareAtStep,
    /// Cluster that is active at the end.
    pub pending: ClusterShareAtStep,
    /// Quota used by the pods of both; empty if the RayService isn't queued, or the flavors aren't
    /// known.
    pub usage: Vec<ResourceUsage>,
}

/// State of one of the two clusters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterShareAtStep {
    /// Share of its Serve replicas that it should run, in percent.
    pub capacity_percent: Percent,
    /// Share of the traffic that it receives, in percent.
    pub traffic_percent: Percent,
    /// Number of pods, including the head.
    pub pods: u32,
}

/// Number of pods by group.
type PodCounts = BTreeMap<String, u32>;

/// RayCluster of the upgrade.
#[derive(Debug, Clone)]
pub(super) struct PlannedCluster {
    object: RayCluster,
    /// Groups at full capacity.
    groups: Vec<PodGroup>,
    /// Number of Serve replicas of each deployment at full capacity.
    deployments: Vec<u32>,
}

impl PlannedCluster {
    /// Creates the cluster of a RayService from `object`, or from the spec if there is no object
    /// yet.
    pub(super) fn new(service: &RayService, object: Option<RayCluster>) -> Self {
        let config = ServeConfig::from_yaml(service.spec.serve_config_v2.as_deref().unwrap_or_default());
        let deployments = config.map(|config| config.replicas()).unwrap_or_default();
        let mut object = object.unwrap_or_else(|| RayCluster::new("", service.spec.ray_cluster_config.clone()));
        workers::scale_to_capacity(&mut object, &deployments, FULL);
        // An invalid spec has been rejected before.
        let groups = pod_groups(&object).unwrap_or_default();
        Self { object, groups, deployments }
    }

    fn group(&self, name: &str) -> Option<&PodGroup> {
        self.groups.iter().find(|group| group.name == name)
    }

    fn pods(&self, capacity: Percent) -> PodCounts {
        let replicas = workers::replicas_by_group(&self.object, &self.deployments, capacity);
        let count = |group: &PodGroup| match replicas.get(&group.name) {
            Some(replicas) => {
                group.hosts_per_replica.saturating_mul(u32::try_from(*replicas).unwrap_or(0)).min(group.count)
            }
            None => group.count,
        };
        self.groups.iter().map(|group| (group.name.clone(), count(group))).collect()
    }
}

/// Schedule of an incremental upgrade with a given surge and step.
#[derive(Debug, Clone)]
pub(super) struct RolloutSchedule {
    active: PlannedCluster,
    pending: PlannedCluster,
    surge: Percent,
    positions: Vec<(SignedDuration, RolloutPosition)>,
    /// True if the manifest sets the interval, so that the duration of the steps is known.
    is_timed: bool,
}

impl RolloutSchedule {
    pub(super) fn new(service: &RayService, serving: PlannedCluster, surge: Percent, step: Percent) -> Self {
        let options = IncrementalOptions::from_service(service).ok().flatten();
        let pace = RolloutConfig {
            max_surge: surge,
            step_size: step,
            interval: options.as_ref().map_or(SignedDuration::ZERO, |options| options.interval),
            bake: incremental_annotations::bake_duration(&service.metadata).unwrap_or_default(),
            is_immediate: false,
            keeps_losing_capacity: false,
        };
        let until_gone = match workers::is_autoscaled(&serving.object) {
            true => workers::removal_delay(&serving.object),
            false => SignedDuration::ZERO,
        };
        let positions = state_machine::fastest_schedule(RolloutPosition::START, &pace, until_gone);
        Self {
            active: serving,
            pending: PlannedCluster::new(service, None),
            surge,
            positions,
            is_timed: options.is_some(),
        }
    }

    /// Returns the pods of the active and the pending cluster after each step. The surge exists
    /// from the start, and a cluster with no capacity is about to be deleted.
    fn pods(&self) -> impl Iterator<Item = (PodCounts, PodCounts)> + '_ {
        self.positions.iter().map(|(_, RolloutPosition { gaining: to, losing: from })| {
            let serving = if from.capacity == 0 { PodCounts::new() } else { self.active.pods(from.capacity) };
            (serving, self.pending.pods(to.capacity.max(self.surge)))
        })
    }

    /// Returns the number of workers by group with which a pending cluster, in addition to the
    /// whole active one, would use as much as the upgrade does at its peak.
    pub(super) fn workers_at_peak(&self) -> PodCounts {
        let mut peak = PodCounts::new();
        for (serving, next) in self.pods() {
            for group in self.pending.groups.iter().filter(|group| group.node_type() == RayNodeType::Worker) {
                let active = self.active.group(&group.name);
                let freed = active.map_or(0, |active| pods_fitting_into_freed(active, &serving, group));
                let needed = next.get(&group.name).copied().unwrap_or(0).saturating_sub(freed);
                let entry = peak.entry(group.name.clone()).or_default();
                *entry = needed.max(*entry);
            }
        }
        peak
    }

    /// Returns the pending cluster with [`Self::workers_at_peak`].
    pub(super) fn pending_cluster_at_peak(&self) -> RayCluster {
        let pods = self.workers_at_peak();
        let mut cluster = self.pending.object.clone();
        for group in &mut cluster.spec.worker_group_specs {
            let hosts = self.pending.group(&group.group_name).map_or(1, |group| group.hosts_per_replica.max(1));
            let pods = pods.get(&group.group_name).copied().unwrap_or(0);
            group.replicas = Some(i32::try_from(pods.div_ceil(hosts)).unwrap_or(i32::MAX));
        }
        cluster
    }

    /// Returns the state after each step; None if the manifest sets no interval.
    pub(super) fn timeline(&self, per_pod: &PerPodUsage) -> Option<Timeline> {
        if !self.is_timed {
            return None;
        }
        let last = self.positions.last()?;
        let steps = self.positions.iter().zip(self.pods()).map(|((after, position), (serving, next))| TimelineStep {
            after_seconds: after.as_secs(),
            active: cluster_share(position.losing, &serving),
            pending: cluster_share(position.gaining, &next),
            usage: resource_usages(&per_pod.usage_of(self.active.object.uid().as_deref(), &serving, &next)),
        });
        Some(Timeline { at_least_seconds: last.0.as_secs(), steps: steps.collect() })
    }
}

fn cluster_share(side: ClusterShare, pods: &PodCounts) -> ClusterShareAtStep {
    ClusterShareAtStep { capacity_percent: side.capacity, traffic_percent: side.traffic, pods: pods.values().sum() }
}

/// Returns the number of pods of `group` that fit into what `whole` has freed by shrinking to the
/// pods in `now`.
fn pods_fitting_into_freed(whole: &PodGroup, now: &PodCounts, group: &PodGroup) -> u32 {
    let removed = whole.count.saturating_sub(now.get(&whole.name).copied().unwrap_or(0));
    let (had, needs) = (requests(whole), requests(group));
    let fits = needs.iter().map(|(resource, needed)| {
        let free = i128::from(had.get(resource).get()) * i128::from(removed);
        u32::try_from(free / i128::from(needed.get().max(1))).unwrap_or(u32::MAX)
    });
    fits.min().unwrap_or(removed)
}

fn requests(group: &PodGroup) -> Requests {
    group.template.spec.as_ref().and_then(|spec| pod_requests(spec).ok()).unwrap_or_default()
}
