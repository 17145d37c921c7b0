//! Owner relations between observed objects.

use std::sync::Arc;

use kube_core::{Resource, ResourceExt};
use sluice_api::kueue::Workload;
use sluice_api::ray::RayCluster;
use sluice_plan::ObjectKey;

use super::cluster_state::{self, ClusterState, PodOwnerId};
use super::planner_key::JobKey;

/// Returns the RayService that owns a RayCluster.
pub(super) fn service_of_cluster(state: &ClusterState, cluster: &ObjectKey) -> Option<ObjectKey> {
    state.ray_clusters.get(cluster).and_then(|cluster| controller_key(cluster.as_ref(), "RayService"))
}

/// Returns the RayCluster with this identity; `None` if it is deleted.
pub(super) fn existing_cluster<'a>(state: &'a ClusterState, cluster: &PodOwnerId) -> Option<&'a Arc<RayCluster>> {
    state.ray_clusters.get(&cluster.key).filter(|known| known.metadata.uid.as_ref() == Some(&cluster.uid))
}

/// Returns the job that owns a Workload; `None` if its controller is of an unsupported kind.
pub(super) fn owning_job_key(workload: &Workload) -> Option<JobKey> {
    let owner = workload.owner_references().iter().find(|owner| owner.controller == Some(true))?;
    JobKey::of_kind(&owner.kind, ObjectKey::new(workload.namespace().unwrap_or_default(), owner.name.clone()))
}

/// Returns the key of the controlling owner of this kind.
pub(super) fn controller_key<K: Resource>(object: &K, kind: &str) -> Option<ObjectKey> {
    let owner = cluster_state::controller_reference(object, kind)?;
    Some(ObjectKey::new(object.meta().namespace.clone().unwrap_or_default(), owner.name.clone()))
}

/// Reports whether a RayCluster has no controlling owner.
pub(super) fn is_standalone(cluster: &RayCluster) -> bool {
    !cluster.owner_references().iter().any(|owner| owner.controller == Some(true))
}
