//! The steps of an upgrade in steps, as they come if replicas start, and pods go, as fast as can be.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use kube_core::ResourceExt;
use serde::Serialize;

use super::outcome::{PerPod, Use, uses};
use sluice_api::ray::step_choices;
use sluice_api::ray::{RayCluster, RayService};
use sluice_plan::ServeConfig;
use sluice_queue::requests::{Requests, pod_requests};
use sluice_raycluster::groups::{PodGroup, Role};
use sluice_raycluster::pod_groups;
use sluice_rayservice::incremental::machine::{self, Pace, Percent, Position, Side, WHOLE};
use sluice_rayservice::incremental::options::Options;
use sluice_rayservice::incremental::workers;

/// The steps of an upgrade.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Timeline {
    /// How long it takes at least, in seconds.
    pub at_least_seconds: i64,
    /// The steps, the first as it begins.
    pub steps: Vec<Step>,
}

/// What there is after a step.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// How long after the beginning at the earliest, in seconds.
    pub after_seconds: i64,
    /// The cluster that serves when the upgrade begins.
    pub serving: Part,
    /// The one that serves in the end.
    pub next: Part,
    /// What their pods use, if quota is asked for them and it is known where it is.
    pub uses: Vec<Use>,
}

/// What one of the two clusters has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Part {
    /// How much of its replicas it is to have, in percent.
    pub capacity_percent: Percent,
    /// How much of the traffic it gets, in percent.
    pub traffic_percent: Percent,
    /// How many pods it has, its head included.
    pub pods: u32,
}

/// How many pods of each group there are.
type Pods = BTreeMap<String, u32>;

/// A cluster of the upgrade.
#[derive(Debug, Clone)]
pub(super) struct Cluster {
    object: RayCluster,
    /// Its groups at full capacity.
    groups: Vec<PodGroup>,
    /// How many replicas each deployment on it has at full capacity.
    deployments: Vec<u32>,
}

impl Cluster {
    /// That of a service; with an object of its own once there is one.
    pub(super) fn of(service: &RayService, object: Option<RayCluster>) -> Self {
        let config = ServeConfig::from_yaml(service.spec.serve_config_v2.as_deref().unwrap_or_default());
        let deployments = config.map(|config| config.replicas()).unwrap_or_default();
        let mut object = object.unwrap_or_else(|| RayCluster::new("", service.spec.ray_cluster_config.clone()));
        workers::scale(&mut object, &deployments, WHOLE);
        // A spec that makes no sense has been refused before.
        let groups = pod_groups(&object).unwrap_or_default();
        Self { object, groups, deployments }
    }

    fn group(&self, name: &str) -> Option<&PodGroup> {
        self.groups.iter().find(|group| group.name == name)
    }

    fn pods(&self, capacity: Percent) -> Pods {
        let replicas = workers::at_capacity(&self.object, &self.deployments, capacity);
        let count = |group: &PodGroup| match replicas.get(&group.name) {
            Some(replicas) => group.hosts.saturating_mul(u32::try_from(*replicas).unwrap_or(0)).min(group.count),
            None => group.count,
        };
        self.groups.iter().map(|group| (group.name.clone(), count(group))).collect()
    }
}

/// The course of an upgrade with such a surge and step, in percent.
#[derive(Debug, Clone)]
pub(super) struct Course {
    serving: Cluster,
    next: Cluster,
    surge: Percent,
    positions: Vec<(SignedDuration, Position)>,
    /// Whether it is known how long the steps take.
    is_timed: bool,
}

impl Course {
    pub(super) fn of(service: &RayService, serving: Cluster, surge: Percent, step: Percent) -> Self {
        let options = Options::of(service).ok().flatten();
        let pace = Pace {
            surge,
            step,
            interval: options.as_ref().map_or(SignedDuration::ZERO, |options| options.interval),
            bake: step_choices::bake(&service.metadata).unwrap_or_default(),
            at_once: false,
            leaves_capacity: false,
        };
        let until_gone = match workers::is_autoscaled(&serving.object) {
            true => workers::until_gone(&serving.object),
            false => SignedDuration::ZERO,
        };
        let positions = machine::fastest(Position::START, &pace, until_gone);
        Self { serving, next: Cluster::of(service, None), surge, positions, is_timed: options.is_some() }
    }

    /// The pods of both after each step. The surge is there from the beginning, and a cluster without capacity is about to go.
    fn pods(&self) -> impl Iterator<Item = (Pods, Pods)> + '_ {
        self.positions.iter().map(|(_, Position { to, from })| {
            let serving = if from.capacity == 0 { Pods::new() } else { self.serving.pods(from.capacity) };
            (serving, self.next.pods(to.capacity.max(self.surge)))
        })
    }

    /// How many workers of each group the next cluster would have to have beside the whole of what serves to use the most that the
    /// upgrade uses at any time.
    pub(super) fn workers_at_peak(&self) -> Pods {
        let mut most = Pods::new();
        for (serving, next) in self.pods() {
            for group in self.next.groups.iter().filter(|group| group.role() == Role::Worker) {
                let given = self.serving.group(&group.name);
                let left = given.map_or(0, |given| made_room(given, &serving, group));
                let needed = next.get(&group.name).copied().unwrap_or(0).saturating_sub(left);
                let entry = most.entry(group.name.clone()).or_default();
                *entry = needed.max(*entry);
            }
        }
        most
    }

    /// The next cluster with that many workers.
    pub(super) fn at_peak(&self) -> RayCluster {
        let pods = self.workers_at_peak();
        let mut cluster = self.next.object.clone();
        for group in &mut cluster.spec.worker_group_specs {
            let hosts = self.next.group(&group.group_name).map_or(1, |group| group.hosts.max(1));
            let pods = pods.get(&group.group_name).copied().unwrap_or(0);
            group.replicas = Some(i32::try_from(pods.div_ceil(hosts)).unwrap_or(i32::MAX));
        }
        cluster
    }

    /// What there is after each step; `None` if its manifest doesn't say how long a step takes.
    pub(super) fn timeline(&self, per_pod: &PerPod) -> Option<Timeline> {
        let last = self.positions.last().filter(|_| self.is_timed)?;
        let steps = self.positions.iter().zip(self.pods()).map(|((after, position), (serving, next))| Step {
            after_seconds: after.as_secs(),
            serving: part(position.from, &serving),
            next: part(position.to, &next),
            uses: uses(&per_pod.used(self.serving.object.uid().as_deref(), &serving, &next)),
        });
        Some(Timeline { at_least_seconds: last.0.as_secs(), steps: steps.collect() })
    }
}

fn part(side: Side, pods: &Pods) -> Part {
    Part { capacity_percent: side.capacity, traffic_percent: side.traffic, pods: pods.values().sum() }
}

/// How many pods of a group fit in what is free since there are only these pods of a group that was `whole`.
fn made_room(whole: &PodGroup, now: &Pods, group: &PodGroup) -> u32 {
    let gone = whole.count.saturating_sub(now.get(&whole.name).copied().unwrap_or(0));
    let (had, needs) = (requests(whole), requests(group));
    let fits = needs.iter().map(|(resource, needed)| {
        let free = i128::from(had.get(resource).get()) * i128::from(gone);
        u32::try_from(free / i128::from(needed.get().max(1))).unwrap_or(u32::MAX)
    });
    fits.min().unwrap_or(gone)
}

fn requests(group: &PodGroup) -> Requests {
    group.template.spec.as_ref().and_then(|spec| pod_requests(spec).ok()).unwrap_or_default()
}
