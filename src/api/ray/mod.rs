//! Kinds of `ray.io/v1` with the fields, defaults and validation of KubeRay 1.7 (kuberay v1.7.0
//! `ray-operator/apis/ray/v1`), and their labels, annotations and conditions.

pub mod admission_annotations;
mod annotations;
pub mod core_defaults;
pub mod incremental_annotations;
pub mod names;
pub mod options;
pub mod pod_template;
pub mod ray_cluster;
pub mod ray_job;
pub mod ray_service;
pub mod routing_annotations;
mod schema;
#[cfg(test)]
mod tests;

/// Returns whether `spec.managedBy` assigns the object to a controller other than the Ray operator
/// of this cluster.
pub fn is_managed_elsewhere(managed_by: Option<&str>) -> bool {
    managed_by.is_some_and(|manager| manager != names::MANAGED_BY_OPERATOR)
}

pub use annotations::{AllowedValues, AnnotationError};
pub use pod_template::PodTemplate;
pub use ray_cluster::{
    HeadGroupSpec, HeadInfo, RayCluster, RayClusterSpec, RayClusterStatus, ScaleStrategy, WorkerGroupSpec,
};
pub use ray_job::{RayJob, RayJobSpec, SubmitterKind};
pub use ray_service::{
    AppStatus, ClusterUpgradeOptions, RayService, RayServiceSpec, RayServiceStatus, RayServiceStatuses,
    ServeDeploymentStatus, UpgradeType,
};
