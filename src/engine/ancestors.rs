//! Ancestors of an object whose quota covers it.
//!
//! An owner reference is only a claim: any user can write one when creating an object. So an object
//! is covered by its owner only if the owner is of a kind whose slices include it, exists with this
//! uid in the same namespace, and is queued itself. Otherwise the object is a job of its own, in the
//! queue that its label names. (Kueue 0.20 `pkg/controller/jobframework/reconciler.go`,
//! `FindAncestorJobManagedByKueue`, checks kind, uid and queue as well; it trusts a cluster or Job
//! that names a queued RayJob as its owner but was not created for it.)

use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube_core::{Resource, ResourceExt};

use super::Engine;
use super::cluster_state::owner_key;
use super::owners::is_controlled_by;
use super::store::Store;
use sluice_api::condition;
use sluice_api::kueue::Workload;
use sluice_api::kueue::names::{EVICTED, FINISHED};
use sluice_api::ray::{RayCluster, RayJob, RayService};
use sluice_jobframework::queue_name;
use sluice_jobframework::ray_job::is_suspended;
use sluice_jobframework::slice_record::SliceRecord;
use sluice_plan::ObjectKey;
use sluice_raycluster::names::redis_cleanup;

/// Job whose slices cover a RayCluster.
#[derive(Debug, Clone, Copy)]
pub(super) enum JobOfCluster<'a> {
    /// The RayCluster itself.
    Itself,
    /// The RayService that controls it.
    RayService(&'a RayService),
    /// The RayJob that KubeRay created it for.
    RayJob(&'a RayJob),
    /// A job that is deleted or has left its queue, while its slices still cover the cluster; holds its
    /// uid.
    Former(&'a str),
}

/// Job whose slices cover a batch/v1 Job.
#[derive(Debug, Clone, Copy)]
pub(super) enum JobOfBatchJob<'a> {
    /// The Job itself.
    Itself,
    /// The Job itself, queued with the labels of the RayJob that it submits to an existing cluster.
    SubmitterFor(&'a RayJob),
    /// The RayJob that it submits to a cluster of its own.
    RayJob,
    /// None: it deletes the state of a terminating RayCluster from Redis.
    RedisCleanup,
}

impl Engine {
    /// Returns the job whose slices cover a RayCluster.
    pub(super) fn job_of_cluster<'a>(&'a self, cluster: &'a RayCluster) -> JobOfCluster<'a> {
        if let Some(service) = self.queued_service(cluster) {
            return JobOfCluster::RayService(service);
        }
        let ray_job = self.queued_ray_job(cluster).filter(|job| self.may_have_created(job, cluster));
        match (ray_job, self.former_job(cluster)) {
            (Some(ray_job), _) => JobOfCluster::RayJob(ray_job),
            (None, Some(uid)) => JobOfCluster::Former(uid),
            (None, None) => JobOfCluster::Itself,
        }
    }

    /// Returns the job whose slices cover a batch/v1 Job.
    pub(super) fn job_of_batch_job(&self, job: &BatchJob) -> JobOfBatchJob<'_> {
        // KubeRay 1.7 `ray-operator/controllers/ray/rayjob_controller.go`,
        // `createK8sJobIfNeed`: the submitter has the name of its RayJob.
        let submitted = self.controlling_ray_job(job).filter(|ray_job| ray_job.name_any() == job.name_any());
        match submitted {
            Some(ray_job) if ray_job.spec.uses_existing_cluster() => return JobOfBatchJob::SubmitterFor(ray_job),
            Some(ray_job) if self.is_queued(ray_job) => return JobOfBatchJob::RayJob,
            _ => {}
        }
        if queue_name(&job.metadata).is_none() && self.is_redis_cleanup(job) {
            return JobOfBatchJob::RedisCleanup;
        }
        JobOfBatchJob::Itself
    }

    /// Iterates over the RayClusters of a RayService.
    pub(super) fn children_of_service<'a>(&'a self, service: &'a RayService) -> impl Iterator<Item = &'a RayCluster> {
        controlled_by(&self.cluster_state.ray_clusters, service)
    }

    /// Iterates over the RayClusters that the slices of a RayJob cover.
    pub(super) fn clusters_of_ray_job<'a>(&'a self, job: &'a RayJob) -> impl Iterator<Item = &'a RayCluster> {
        controlled_by(&self.cluster_state.ray_clusters, job).filter(|cluster| self.may_have_created(job, cluster))
    }

    /// Iterates over the submitter Jobs that the slices of a RayJob cover: one at most, unless the
    /// last one is terminating.
    pub(super) fn submitters_of_ray_job<'a>(&'a self, job: &'a RayJob) -> impl Iterator<Item = &'a BatchJob> {
        let owned = controlled_by(&self.cluster_state.batch_jobs, job);
        owned.filter(|submitter| submitter.name_any() == job.name_any())
    }

    /// Reports whether a RayService or RayJob controls a cluster, queued or not.
    pub(super) fn has_ray_owner(&self, cluster: &RayCluster) -> bool {
        let service = key_of_ray_owner(cluster, "RayService").and_then(|key| self.cluster_state.ray_services.get(&key));
        service.is_some_and(|service| is_controlled_by(cluster, service.as_ref()))
            || self.controlling_ray_job(cluster).is_some()
    }

    /// Returns the uid of the job that controls a cluster or did so, if one of its slices covers the
    /// cluster. Called once that job is deleted or not queued. The queue may still evict the slice: then
    /// the queue name of the cluster itself counts, which stops it.
    fn former_job<'a>(&self, cluster: &'a RayCluster) -> Option<&'a str> {
        let owner = controlling_ray_owner(cluster)?;
        let uid = cluster.metadata.uid.as_deref()?;
        let covers = |slice: &Workload| {
            let is_over = [EVICTED, FINISHED].iter().any(|kind| condition::is_true(slice.conditions(), kind));
            !is_over && SliceRecord::from_workload(slice).is_some_and(|record| record.member_of_cluster(uid).is_some())
        };
        let mut slices = self.cluster_state.workloads.by_index(&owner_key(&owner.uid));
        slices.any(|slice| covers(slice)).then_some(owner.uid.as_str())
    }

    fn queued_service(&self, cluster: &RayCluster) -> Option<&RayService> {
        let key = key_of_ray_owner(cluster, "RayService")?;
        let service = self.cluster_state.ray_services.get(&key)?;
        (is_controlled_by(cluster, service.as_ref()) && self.managed_service(service).needs_quota()).then_some(service)
    }

    fn queued_ray_job(&self, cluster: &RayCluster) -> Option<&RayJob> {
        self.controlling_ray_job(cluster).filter(|job| self.is_queued(job) && !job.spec.uses_existing_cluster())
    }

    fn controlling_ray_job<K: Resource>(&self, object: &K) -> Option<&RayJob> {
        let key = key_of_ray_owner(object, "RayJob")?;
        self.cluster_state.ray_jobs.get(&key).map(AsRef::as_ref).filter(|job| is_controlled_by(object, *job))
    }

    /// Reports whether the slices of a RayJob cover what KubeRay creates for it. The operator of
    /// this process runs no RayJobs.
    fn is_queued(&self, job: &RayJob) -> bool {
        !self.components.ray_operator && self.managed_ray_job(job).needs_quota()
    }

    /// Reports whether KubeRay may have created a cluster for the RayJob that controls it. It has one
    /// cluster at a time, which its status names before the cluster is created, and deletes it before
    /// it creates another; the status may be observed later than the cluster.
    fn may_have_created(&self, job: &RayJob, cluster: &RayCluster) -> bool {
        let named = job.status.as_ref().and_then(|status| status.ray_cluster_name.as_deref()).unwrap_or_default();
        if named == cluster.name_any() {
            return true;
        }
        let key = ObjectKey::new(job.namespace().unwrap_or_default(), named);
        let has_another =
            self.cluster_state.ray_clusters.get(&key).is_some_and(|other| {
                other.metadata.deletion_timestamp.is_none() && is_controlled_by(other.as_ref(), job)
            });
        !is_suspended(job) && !has_another
    }

    /// Reports whether a Job deletes the state of a terminating RayCluster from Redis.
    fn is_redis_cleanup(&self, job: &BatchJob) -> bool {
        let cluster = key_of_ray_owner(job, "RayCluster").and_then(|key| self.cluster_state.ray_clusters.get(&key));
        cluster.is_some_and(|cluster| {
            is_controlled_by(job, cluster.as_ref())
                && cluster.metadata.deletion_timestamp.is_some()
                && job.name_any() == redis_cleanup(cluster)
        })
    }
}

/// Iterates over the objects of a store, indexed by their owner, that `owner` controls.
fn controlled_by<'a, K: Resource, O: Resource<DynamicType = ()>>(
    store: &'a Store<K>,
    owner: &'a O,
) -> impl Iterator<Item = &'a K> {
    let indexed = store.by_index(&owner_key(owner.meta().uid.as_deref().unwrap_or_default()));
    indexed.map(AsRef::as_ref).filter(|object| is_controlled_by(*object, owner))
}

/// Returns the key of the controlling owner if it is of this kind of the Ray API.
fn key_of_ray_owner<K: Resource>(object: &K, kind: &str) -> Option<ObjectKey> {
    let owner = controlling_ray_owner(object).filter(|owner| owner.kind == kind)?;
    Some(ObjectKey::new(object.meta().namespace.clone().unwrap_or_default(), owner.name.clone()))
}

/// Returns the controlling owner if it is an object of the Ray API.
fn controlling_ray_owner<K: Resource>(object: &K) -> Option<&OwnerReference> {
    let owners = object.meta().owner_references.as_deref().unwrap_or_default();
    owners.iter().find(|owner| owner.controller == Some(true) && owner.api_version.starts_with("ray.io/"))
}
