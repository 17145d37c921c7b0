//! Upgrade strategies of a RayService, and the specs that request them.

use kube_core::ResourceExt;
use serde::Serialize;

use super::timeline::RolloutSchedule;
use sluice_api::ray::admission_annotations::{EXCEEDS_QUOTA_ANNOTATION, ExceedsQuotaPolicy};
use sluice_api::ray::incremental_annotations;
use sluice_api::ray::{ClusterUpgradeOptions, RayService, UpgradeType};
use sluice_rayservice::incremental::state_machine::Percent;

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
    /// groups exist from the start (see `docs/guides/upgrade.md`).
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
pub(super) enum RequestedStrategy {
    NewCluster { or_recreate: bool },
    Incremental,
    None,
}

pub(super) fn requested_strategy(service: &RayService) -> RequestedStrategy {
    let strategy = service.spec.upgrade_strategy.as_ref().and_then(|strategy| strategy.type_.as_ref());
    match strategy.unwrap_or(&UpgradeType::NewCluster) {
        UpgradeType::NewClusterWithIncrementalUpgrade => RequestedStrategy::Incremental,
        UpgradeType::None => RequestedStrategy::None,
        UpgradeType::NewCluster | UpgradeType::Unknown(_) => RequestedStrategy::NewCluster {
            or_recreate: ExceedsQuotaPolicy::from_annotations(&service.metadata) == Ok(ExceedsQuotaPolicy::Recreate),
        },
    }
}

/// Returns maxSurgePercent of the manifest; None if it doesn't request an incremental upgrade.
pub(super) fn max_surge(service: &RayService) -> Option<Percent> {
    // KubeRay's default (v1.7.0 `ray-operator/apis/ray/v1/rayservice_types.go`,
    // ClusterUpgradeOptions).
    if requested_strategy(service) != RequestedStrategy::Incremental {
        return None;
    }
    let percent = options(service)?.max_surge_percent.unwrap_or(100);
    Percent::try_from(percent).ok()
}

/// Returns the traffic moved per step, in percent: stepSizePercent of the manifest, or `surge` if
/// it is unset or larger than that.
pub(super) fn step_size(service: &RayService, surge: Percent) -> Percent {
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
pub(super) fn with_new_cluster(service: &RayService) -> RayService {
    let mut service = service.clone();
    service.spec.upgrade_strategy.get_or_insert_default().type_ = Some(UpgradeType::NewCluster);
    service.annotations_mut().remove(EXCEEDS_QUOTA_ANNOTATION);
    service
}

/// Returns the RayService with the NewCluster strategy that falls back to Recreate if two clusters
/// can never fit.
pub(super) fn with_recreate_fallback(service: &RayService) -> RayService {
    let mut service = with_new_cluster(service);
    service.annotations_mut().insert(EXCEEDS_QUOTA_ANNOTATION.to_owned(), "Recreate".to_owned());
    service
}

/// Returns the RayService with the NewCluster strategy, and a cluster of the size that the
/// incremental upgrade needs at its peak.
pub(super) fn with_peak_cluster(service: &RayService, course: &RolloutSchedule) -> RayService {
    let mut service = with_new_cluster(service);
    service.spec.ray_cluster_config = course.pending_cluster_at_peak().spec;
    service
}

/// Returns true if the number of workers can follow the capacity: with the Ray autoscaler, or
/// scaled by Sluice.
pub(super) fn supports_incremental(service: &RayService) -> bool {
    let autoscaled = service.spec.ray_cluster_config.enable_in_tree_autoscaling == Some(true);
    autoscaled || incremental_annotations::scale_workers_enabled(&service.metadata).unwrap_or(true)
}
