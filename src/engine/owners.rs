//! Owner relations between observed objects.

use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube_core::{Resource, ResourceExt};
use sluice_api::kueue::Workload;
use sluice_api::ray::{RayCluster, RayJob};
use sluice_jobframework::slice_record::SliceRecord;
use sluice_plan::{ObjectKey, ObjectRef};

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

/// Returns the objects whose gates a slice opens: the RayClusters that it covers, or the job itself.
pub(super) fn gated_objects(slice: &Workload) -> Vec<ObjectRef> {
    match owning_job_key(slice) {
        Some(JobKey::BatchJob(job)) => vec![ObjectRef::named::<BatchJob>(slice.namespace(), job.name)],
        Some(JobKey::RayJob(job)) => vec![ObjectRef::named::<RayJob>(slice.namespace(), job.name)],
        _ => {
            let members = SliceRecord::from_workload(slice).unwrap_or_default().members.into_iter();
            members.map(|member| ObjectRef::named::<RayCluster>(slice.namespace(), member.name)).collect()
        }
    }
}

/// Reports whether the job that controls a Workload exists.
pub(super) fn owning_job_exists(state: &ClusterState, workload: &Workload) -> bool {
    match owning_job_key(workload) {
        Some(JobKey::RayService(key)) => controls(state.ray_services.get(&key), workload),
        Some(JobKey::RayCluster(key)) => controls(state.ray_clusters.get(&key), workload),
        Some(JobKey::RayJob(key)) => controls(state.ray_jobs.get(&key), workload),
        Some(JobKey::BatchJob(key)) => controls(state.batch_jobs.get(&key), workload),
        None => false,
    }
}

fn controls<O: Resource<DynamicType = ()>>(owner: Option<&Arc<O>>, workload: &Workload) -> bool {
    owner.is_some_and(|owner| is_controlled_by(workload, owner.as_ref()))
}

/// Returns the key of the controlling owner of this kind.
pub(super) fn controller_key<K: Resource>(object: &K, kind: &str) -> Option<ObjectKey> {
    let owner = cluster_state::controller_reference(object, kind)?;
    Some(ObjectKey::new(object.meta().namespace.clone().unwrap_or_default(), owner.name.clone()))
}

/// Reports whether `owner` controls an object: an object of another namespace, or of another kind or
/// uid, does not, whatever the owner reference says.
pub(super) fn is_controlled_by<K: Resource, O: Resource<DynamicType = ()>>(object: &K, owner: &O) -> bool {
    let is_owner = |reference: &OwnerReference| {
        reference.controller == Some(true)
            && Some(&reference.uid) == owner.meta().uid.as_ref()
            && reference.kind == O::kind(&())
            && reference.api_version.split_once('/').map_or("", |(group, _)| group) == O::group(&())
    };
    object.meta().namespace == owner.meta().namespace && object.meta().owner_references.iter().flatten().any(is_owner)
}

/// Reports whether no other Ray object controls a RayCluster, so that its own upgrade strategy applies
/// (KubeRay 1.7.0 `ray-operator/controllers/ray/utils/validation.go`,
/// `ValidateRayClusterUpgradeOptions`).
pub(super) fn is_standalone(cluster: &RayCluster) -> bool {
    let is_ray = |owner: &OwnerReference| owner.controller == Some(true) && owner.api_version.starts_with("ray.io/");
    !cluster.owner_references().iter().any(is_ray)
}
