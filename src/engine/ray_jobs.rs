//! What is made for RayJobs by others: their clusters, the Jobs that submit them, and the pods of both.

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

/// What a Job of Kubernetes has to do with Ray.
pub(super) enum Submits<'a> {
    /// It has nothing to do with it.
    Nothing,
    /// It hands a RayJob to a cluster that others have made, and is all of it that is to be paid for.
    To(&'a RayJob),
    /// It is a part of something of Ray that has its quota.
    ForItsOwn,
}

impl Engine {
    /// What a Job of Kubernetes has to do with Ray.
    pub(super) fn submits(&self, job: &BatchJob) -> Submits<'_> {
        if !batch_job::is_of_ray(job) {
            return Submits::Nothing;
        }
        let ray_job = controller(job, "RayJob").and_then(|key| self.world.ray_jobs.get(&key));
        ray_job.filter(|ray_job| ray_job.spec.attaches()).map_or(Submits::ForItsOwn, |ray_job| Submits::To(ray_job))
    }

    /// What the cluster wants that was made for the RayJob with this uid, unless that is about to go.
    pub(super) fn wants_of_cluster_under(&self, job: &str) -> Option<Arc<Groups>> {
        let mut clusters = self.world.ray_clusters.under(&owned_by(job));
        clusters.find(|cluster| cluster.metadata.deletion_timestamp.is_none()).map(|cluster| self.wants(cluster))
    }

    /// The Job that hands the RayJob with this uid to Ray.
    pub(super) fn submitter_under(&self, job: &str) -> Option<&BatchJob> {
        let mut jobs = self.world.batch_jobs.under(&owned_by(job));
        jobs.find(|job| job.metadata.deletion_timestamp.is_none()).map(AsRef::as_ref)
    }

    /// The pods of the RayJob with this uid, whoever has made them: those of clusters and Jobs that it owns; and those that were let
    /// go for it, when what has made them is gone.
    pub(super) fn pods_of_ray_job(&self, job: &str) -> Pods<'_> {
        let mut pods = self.all_pods(job);
        pods.seen.retain(|pod| !self.is_made_by_a_known_one(pod));
        for made in self.makers_under(&owned_by(job)).map(|maker| self.all_pods(maker)) {
            pods.seen.extend(made.seen);
            pods.arriving.extend(made.arriving);
        }
        pods
    }

    /// The uids of the clusters and Jobs under `owner`.
    pub(super) fn makers_under(&self, owner: &ObjectKey) -> impl Iterator<Item = &str> {
        let clusters = self.world.ray_clusters.under(owner).filter_map(|cluster| cluster.metadata.uid.as_deref());
        clusters.chain(self.world.batch_jobs.under(owner).filter_map(|job| job.metadata.uid.as_deref()))
    }

    /// Whether what has made a pod is there, and says whose it is.
    fn is_made_by_a_known_one(&self, pod: &Pod) -> bool {
        let Some(maker) = MemberId::of_pod(pod) else { return false };
        match maker.runner {
            Runner::RayCluster => existing_cluster(&self.world, &maker).is_some(),
            Runner::BatchJob => {
                let known = self.world.batch_jobs.get(&maker.key);
                known.is_some_and(|known| known.metadata.uid.as_ref() == Some(&maker.uid))
            }
            Runner::RayJob => false,
        }
    }
}
