//! Objects that KubeRay creates for RayJobs: RayClusters, submitter Jobs, and the pods of both.

use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::api::core::v1::Pod;

use super::Engine;
use super::cluster_state::{PodOwnerId, PodOwnerKind};
use super::owners::existing_cluster;
use sluice_api::ray::RayJob;
use sluice_jobframework::PodGroupDemands;
use sluice_jobframework::members::MemberPods;
use sluice_plan::ObjectKey;

impl Engine {
    /// Returns the pod groups of the cluster created for a RayJob; `None` if there is none, or it is
    /// terminating.
    pub(super) fn groups_of_ray_job_cluster(&self, job: &RayJob) -> Option<Arc<PodGroupDemands>> {
        let mut clusters = self.clusters_of_ray_job(job);
        clusters.find(|cluster| cluster.metadata.deletion_timestamp.is_none()).map(|cluster| self.spec_groups(cluster))
    }

    /// Returns the submitter Job of a RayJob; `None` if there is none, or it is terminating.
    pub(super) fn submitter_job<'a>(&'a self, job: &'a RayJob) -> Option<&'a BatchJob> {
        self.submitters_of_ray_job(job).find(|submitter| submitter.metadata.deletion_timestamp.is_none())
    }

    /// Returns the pods of a RayJob: those of the clusters and Jobs that its slices cover, and those
    /// ungated for it whose cluster or Job is deleted.
    pub(super) fn pods_of_ray_job<'a>(&'a self, job: &'a RayJob) -> MemberPods<'a> {
        let mut pods = self.observed_and_expected_pods(job.metadata.uid.as_deref().unwrap_or_default());
        pods.observed.retain(|pod| !self.has_existing_owner(pod));
        let clusters = self.clusters_of_ray_job(job).filter_map(|cluster| cluster.metadata.uid.as_deref());
        let submitters = self.submitters_of_ray_job(job).filter_map(|submitter| submitter.metadata.uid.as_deref());
        for owned in clusters.chain(submitters).map(|owner| self.observed_and_expected_pods(owner)) {
            pods.observed.extend(owned.observed);
            pods.expected.extend(owned.expected);
        }
        pods
    }

    /// Iterates over the uids of the clusters and Jobs owned by `owner`.
    pub(super) fn pod_owner_uids(&self, owner: &ObjectKey) -> impl Iterator<Item = &str> {
        let clusters =
            self.cluster_state.ray_clusters.by_index(owner).filter_map(|cluster| cluster.metadata.uid.as_deref());
        clusters.chain(self.cluster_state.batch_jobs.by_index(owner).filter_map(|job| job.metadata.uid.as_deref()))
    }

    /// Reports whether the RayCluster or Job that owns a pod exists, so that the pod is found
    /// through it.
    fn has_existing_owner(&self, pod: &Pod) -> bool {
        let Some(owner) = PodOwnerId::of_pod(pod) else { return false };
        match owner.owner_kind {
            PodOwnerKind::RayCluster => existing_cluster(&self.cluster_state, &owner).is_some(),
            PodOwnerKind::BatchJob => {
                let job = self.cluster_state.batch_jobs.get(&owner.key);
                job.is_some_and(|job| job.metadata.uid.as_ref() == Some(&owner.uid))
            }
            PodOwnerKind::RayJob => false,
        }
    }
}
