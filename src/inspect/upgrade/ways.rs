//! The ways to go from what a service is to what it is to be.

use kube_core::ResourceExt;
use serde::Serialize;

use super::timeline::Course;
use sluice_api::ray::step_choices;
use sluice_api::ray::upgrade_choices::{WHEN_EXCEEDS_ANNOTATION, WhenExceeds};
use sluice_api::ray::{ClusterUpgradeOptions, RayService, UpgradeType};
use sluice_rayservice::incremental::machine::Percent;

/// How a service goes from what it is to what it is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "strategy", rename_all_fields = "camelCase")]
pub enum Strategy {
    /// It has no cluster yet, and gets its first.
    Create,
    /// Its cluster becomes what it is to be.
    InPlace,
    /// A second cluster is made whole beside the one that serves.
    NewCluster,
    /// A second cluster grows beside the one that serves, as that one shrinks. Its head and the least replicas of its groups are there
    /// from the beginning (see `docs/upgrades.md`).
    Incremental {
        /// How much capacity there may be above that of one cluster, in percent.
        surge_percent: Percent,
        /// How much traffic moves in a step, in percent.
        step_percent: Percent,
    },
    /// What serves stops, and then the new cluster starts: requests fail in between.
    Recreate,
}

/// The way that the manifest of a service asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    NewCluster { or_recreate: bool },
    Incremental,
    Nothing,
}

pub(super) fn asked(service: &RayService) -> Asked {
    let strategy = service.spec.upgrade_strategy.as_ref().and_then(|strategy| strategy.type_.as_ref());
    match strategy.unwrap_or(&UpgradeType::NewCluster) {
        UpgradeType::NewClusterWithIncrementalUpgrade => Asked::Incremental,
        UpgradeType::None => Asked::Nothing,
        UpgradeType::NewCluster | UpgradeType::Other(_) => {
            Asked::NewCluster { or_recreate: WhenExceeds::of(&service.metadata) == Ok(WhenExceeds::Recreate) }
        }
    }
}

/// How much capacity its manifest allows above that of one cluster, in percent, if it asks for an incremental upgrade.
pub(super) fn surge(service: &RayService) -> Option<Percent> {
    // KubeRay's default (v1.7.0 `ray-operator/apis/ray/v1/rayservice_types.go`, ClusterUpgradeOptions).
    let percent = options(service).map(|options| options.max_surge_percent.unwrap_or(100));
    percent.filter(|_| asked(service) == Asked::Incremental).and_then(|percent| Percent::try_from(percent).ok())
}

/// How much traffic moves in a step, in percent: what the manifest says, as far as a step is no larger than the surge.
pub(super) fn step(service: &RayService, surge: Percent) -> Percent {
    let percent = options(service).and_then(|options| options.step_size_percent);
    percent
        .and_then(|percent| Percent::try_from(percent).ok())
        .filter(|step| (1..=surge).contains(step))
        .unwrap_or(surge)
}

fn options(service: &RayService) -> Option<&ClusterUpgradeOptions> {
    service.spec.upgrade_strategy.as_ref()?.cluster_upgrade_options.as_ref()
}

/// The service, to be upgraded by a second cluster and no other way.
pub(super) fn by_new_cluster(service: &RayService) -> RayService {
    let mut service = service.clone();
    service.spec.upgrade_strategy.get_or_insert_default().type_ = Some(UpgradeType::NewCluster);
    service.annotations_mut().remove(WHEN_EXCEEDS_ANNOTATION);
    service
}

/// The service, to be made anew if there will never be room for two clusters.
pub(super) fn or_recreate(service: &RayService) -> RayService {
    let mut service = by_new_cluster(service);
    service.annotations_mut().insert(WHEN_EXCEEDS_ANNOTATION.to_owned(), "Recreate".to_owned());
    service
}

/// The service, to be upgraded by a second cluster that is no larger than an upgrade in steps needs at its peak.
pub(super) fn at_peak(service: &RayService, course: &Course) -> RayService {
    let mut service = by_new_cluster(service);
    service.spec.ray_cluster_config = course.at_peak().spec;
    service
}

/// Whether somebody makes the number of workers follow the capacity of their cluster.
pub(super) fn can_go_in_steps(service: &RayService) -> bool {
    let autoscaled = service.spec.ray_cluster_config.enable_in_tree_autoscaling == Some(true);
    autoscaled || step_choices::scales_workers(&service.metadata).unwrap_or(true)
}
