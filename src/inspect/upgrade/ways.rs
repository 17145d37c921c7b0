//! Upgrade strategies of a RayService, and the specs that request them.

use kube_core::ResourceExt;
use serde::Serialize;

use super::timeline::Course;
use sluice_api::ray::step_choices;
use sluice_api::ray::upgrade_choices::{WHEN_EXCEEDS_ANNOTATION, WhenExceeds};
use sluice_api::ray::{ClusterUpgradeOptions, RayService, UpgradeType};
use sluice_rayservice::incremental::machine::Percent;

/// Upgrade strategy of a RayService.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "strategy", rename_all_fields = "camelCase")]
pub enum Strategy {
    /// The first cluster is created.
    Create,
    /// The active cluster is updated in place.
    InPlace,
    /// A second cluster is created at full size while the active one keeps serving.
    NewCluster,
    /// A second cluster grows while the active one shrinks. Its head and the `minReplicas` of its
    /// groups exist from the start (see `docs/upgrades.md`).
    Incremental {
        /// Maximum capacity above that of one cluster, in percent.
        surge_percent: Percent,
        /// Traffic moved per step, in percent.
        step_percent: Percent,
    },
    /// The active cluster stops before the new one starts; requests fail in between.
    Recreate,
}

/// Strategy that the manifest of a RayService requests.
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

/// Returns maxSurgePercent of the manifest; None if it doesn't request an incremental upgrade.
pub(super) fn surge(service: &RayService) -> Option<Percent> {
    // KubeRay's default (v1.7.0 `ray-operator/apis/ray/v1/rayservice_types.go`,
    // ClusterUpgradeOptions).
    if asked(service) != Asked::Incremental {
        return None;
    }
    let percent = options(service)?.max_surge_percent.unwrap_or(100);
    Percent::try_from(percent).ok()
}

/// Returns the traffic moved per step, in percent: stepSizePercent of the manifest, or `surge` if
/// it is unset or larger than that.
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

/// Returns the RayService with the NewCluster strategy and no fallback.
pub(super) fn by_new_cluster(service: &RayService) -> RayService {
    let mut service = service.clone();
    service.spec.upgrade_strategy.get_or_insert_default().type_ = Some(UpgradeType::NewCluster);
    service.annotations_mut().remove(WHEN_EXCEEDS_ANNOTATION);
    service
}

/// Returns the RayService with the NewCluster strategy that falls back to Recreate if two clusters
/// can never fit.
pub(super) fn or_recreate(service: &RayService) -> RayService {
    let mut service = by_new_cluster(service);
    service.annotations_mut().insert(WHEN_EXCEEDS_ANNOTATION.to_owned(), "Recreate".to_owned());
    service
}

/// Returns the RayService with the NewCluster strategy, and a cluster of the size that the
/// incremental upgrade needs at its peak.
pub(super) fn at_peak(service: &RayService, course: &Course) -> RayService {
    let mut service = by_new_cluster(service);
    service.spec.ray_cluster_config = course.at_peak().spec;
    service
}

/// Returns true if the number of workers can follow the capacity: with the Ray autoscaler, or
/// scaled by Sluice.
pub(super) fn can_go_in_steps(service: &RayService) -> bool {
    let autoscaled = service.spec.ray_cluster_config.enable_in_tree_autoscaling == Some(true);
    autoscaled || step_choices::scales_workers(&service.metadata).unwrap_or(true)
}
