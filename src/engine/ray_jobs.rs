//! Objects that KubeRay creates for RayJobs: RayClusters, submitter Jobs, and the pods of both.

use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::api::core::v1::Pod;

use super::Engine;
use super::cluster_state::{PodOwnerId, PodOwnerKind, owner_key};
use super::owners::{controller_key, existing_cluster};
use sluice_api::ray::RayJob;
use sluice_jobframework::members::MemberPods;
use sluice_jobframework::{PodGroupDemands, batch_job};
use sluice_plan::ObjectKey;

/// Role of a batch/v1 Job as the submitter of a RayJob.
pub(super) enum SubmitterOf<'a> {
    /// The Job does not belong to Ray.
    Nothing,
    /// The Job submits this RayJob to an existing cluster; its pods are all that needs quota.
    ExistingCluster(&'a RayJob),
    /// The Job belongs to a Ray object whose quota covers it.
    OwnCluster,
}

impl Engine {
    /// Returns the role of a batch/v1 Job as a submitter.
    pub(super) fn submitter_of(&self, job: &BatchJob) -> SubmitterOf<'_> {
        if !batch_job::is_owned_by_ray(job) {
            return SubmitterOf::Nothing;
        }
        let ray_job = controller_key(job, "RayJob").and_then(|key| self.cluster_state.ray_jobs.get(&key));
        ray_job
            .filter(|ray_job| ray_job.spec.uses_existing_cluster())
            .map_or(SubmitterOf::OwnCluster, |ray_job| SubmitterOf::ExistingCluster(ray_job))
    }

    /// Returns the pod groups of the cluster created for the RayJob with this uid; `None` if there
    /// is none, or it is terminating.
    pub(super) fn groups_of_ray_job_cluster(&self, job: &str) -> Option<Arc<PodGroupDemands>> {
        let mut clusters = self.cluster_state.ray_clusters.by_index(&owner_key(job));
        clusters.find(|cluster| cluster.metadata.deletion_timestamp.is_none()).map(|cluster| self.spec_groups(cluster))
    }

    /// Returns the submitter Job of the RayJob with this uid; `None` if there is none, or it is
    /// terminating.
    pub(super) fn submitter_job(&self, job: &str) -> Option<&BatchJob> {
        let mut jobs = self.cluster_state.batch_jobs.by_index(&owner_key(job));
        jobs.find(|job| job.metadata.deletion_timestamp.is_none()).map(AsRef::as_ref)
    }

    /// Returns the pods of the RayJob with this uid: those of the clusters and Jobs that it owns,
    /// and those ungated for it whose cluster or Job is deleted.
    pub(super) fn pods_of_ray_job(&self, job: &str) -> MemberPods<'_> {
        let mut pods = self.observed_and_expected_pods(job);
        pods.observed.retain(|pod| !self.has_existing_owner(pod));
        for owned in self.pod_owner_uids(&owner_key(job)).map(|owner| self.observed_and_expected_pods(owner)) {
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
