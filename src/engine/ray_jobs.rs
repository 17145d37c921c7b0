//! Objects that KubeRay creates for RayJobs: RayClusters, submitter Jobs, and the pods of both.

use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::api::core::v1::Pod;

use super::Engine;
use super::planners::{controller, existing_cluster};
use super::world::{MemberId, Runner, owned_by};
use sluice_api::ray::RayJob;
use sluice_jobframework::members::Pods;
use sluice_jobframework::{Groups, batch_job};
use sluice_plan::ObjectKey;

/// Role of a batch/v1 Job as the submitter of a RayJob.
pub(super) enum Submits<'a> {
    /// The Job does not belong to Ray.
    Nothing,
    /// The Job submits this RayJob to an existing cluster; its pods are all that needs quota.
    To(&'a RayJob),
    /// The Job belongs to a Ray object whose quota covers it.
    ForItsOwn,
}

impl Engine {
    /// Returns the role of a batch/v1 Job as a submitter.
    pub(super) fn submits(&self, job: &BatchJob) -> Submits<'_> {
        if !batch_job::is_of_ray(job) {
            return Submits::Nothing;
        }
        let ray_job = controller(job, "RayJob").and_then(|key| self.world.ray_jobs.get(&key));
        ray_job.filter(|ray_job| ray_job.spec.attaches()).map_or(Submits::ForItsOwn, |ray_job| Submits::To(ray_job))
    }

    /// Returns the pod groups of the cluster created for the RayJob with this uid; `None` if there
    /// is none, or it is terminating.
    pub(super) fn wants_of_cluster_under(&self, job: &str) -> Option<Arc<Groups>> {
        let mut clusters = self.world.ray_clusters.under(&owned_by(job));
        clusters.find(|cluster| cluster.metadata.deletion_timestamp.is_none()).map(|cluster| self.wants(cluster))
    }

    /// Returns the submitter Job of the RayJob with this uid; `None` if there is none, or it is
    /// terminating.
    pub(super) fn submitter_under(&self, job: &str) -> Option<&BatchJob> {
        let mut jobs = self.world.batch_jobs.under(&owned_by(job));
        jobs.find(|job| job.metadata.deletion_timestamp.is_none()).map(AsRef::as_ref)
    }

    /// Returns the pods of the RayJob with this uid: those of the clusters and Jobs that it owns,
    /// and those ungated for it whose cluster or Job is deleted.
    pub(super) fn pods_of_ray_job(&self, job: &str) -> Pods<'_> {
        let mut pods = self.all_pods(job);
        pods.seen.retain(|pod| !self.is_made_by_a_known_one(pod));
        for owned in self.makers_under(&owned_by(job)).map(|owner| self.all_pods(owner)) {
            pods.seen.extend(owned.seen);
            pods.arriving.extend(owned.arriving);
        }
        pods
    }

    /// Iterates over the uids of the clusters and Jobs owned by `owner`.
    pub(super) fn makers_under(&self, owner: &ObjectKey) -> impl Iterator<Item = &str> {
        let clusters = self.world.ray_clusters.under(owner).filter_map(|cluster| cluster.metadata.uid.as_deref());
        clusters.chain(self.world.batch_jobs.under(owner).filter_map(|job| job.metadata.uid.as_deref()))
    }

    /// Reports whether the RayCluster or Job that owns a pod exists, so that the pod is found
    /// through it.
    fn is_made_by_a_known_one(&self, pod: &Pod) -> bool {
        let Some(owner) = MemberId::of_pod(pod) else { return false };
        match owner.runner {
            Runner::RayCluster => existing_cluster(&self.world, &owner).is_some(),
            Runner::BatchJob => {
                let job = self.world.batch_jobs.get(&owner.key);
                job.is_some_and(|job| job.metadata.uid.as_ref() == Some(&owner.uid))
            }
            Runner::RayJob => false,
        }
    }
}
