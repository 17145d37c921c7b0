//! Applies the managed-jobs policy to observed jobs and their namespaces.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_core::ResourceExt;

use super::Engine;
use super::cluster_state::owner_key;
use sluice_api::kueue::names::DEFAULT_LOCAL_QUEUE;
use sluice_api::ray::{RayCluster, RayJob, RayService, is_managed_elsewhere};
use sluice_jobframework::managed::{Framework, JobFacts, ManagementState, NamespaceFacts};
use sluice_jobframework::queue_name;
use sluice_jobframework::{batch_job, ray_job};
use sluice_plan::ObjectKey;

impl Engine {
    /// Decides whether a RayService is managed; the decision holds for its RayClusters too.
    pub(super) fn managed_service(&self, service: &RayService) -> ManagementState {
        let status = service.status.as_ref();
        let parts =
            status.into_iter().flat_map(|status| [&status.active_service_status, &status.pending_service_status]);
        let names = parts.flatten().filter_map(|part| part.ray_cluster_name.as_deref());
        let owned = owner_key(service.metadata.uid.as_deref().unwrap_or_default());
        let job = JobFacts {
            framework: Framework::RayService,
            queue_name: queue_name(&service.metadata),
            is_managed_elsewhere: is_managed_elsewhere(service.spec.managed_by.as_deref()),
            is_new: names.into_iter().all(str::is_empty)
                && self.cluster_state.ray_clusters.by_index(&owned).next().is_none(),
        };
        self.managed(job, &service.namespace().unwrap_or_default())
    }

    /// Decides whether a standalone RayCluster is managed.
    pub(super) fn managed_cluster(&self, cluster: &RayCluster) -> ManagementState {
        let job = JobFacts {
            framework: Framework::RayCluster,
            queue_name: queue_name(&cluster.metadata),
            is_managed_elsewhere: is_managed_elsewhere(cluster.spec.managed_by.as_deref()),
            is_new: cluster.status.is_none(),
        };
        self.managed(job, &cluster.namespace().unwrap_or_default())
    }

    /// Decides whether a RayJob with its own cluster is managed.
    pub(super) fn managed_ray_job(&self, job: &RayJob) -> ManagementState {
        let facts = JobFacts {
            framework: Framework::RayJob,
            queue_name: queue_name(&job.metadata),
            is_managed_elsewhere: is_managed_elsewhere(job.spec.managed_by.as_deref()),
            is_new: !ray_job::has_started(job),
        };
        self.managed(facts, &job.namespace().unwrap_or_default())
    }

    /// Decides whether a batch/v1 Job is managed. `meta` carries the queue name: that of the Job,
    /// or of the RayJob that it submits to an existing cluster.
    pub(super) fn managed_batch_job(&self, job: &BatchJob, meta: &ObjectMeta) -> ManagementState {
        let begun =
            job.status.as_ref().is_some_and(|status| status.start_time.is_some() || status.conditions.is_some());
        let manager = job.spec.as_ref().and_then(|spec| spec.managed_by.as_deref());
        let facts = JobFacts {
            framework: if batch_job::is_owned_by_ray(job) { Framework::RayJob } else { Framework::BatchJob },
            queue_name: queue_name(meta),
            is_managed_elsewhere: batch_job::is_managed_elsewhere(manager),
            is_new: !begun,
        };
        self.managed(facts, &job.namespace().unwrap_or_default())
    }

    fn managed(&self, job: JobFacts<'_>, namespace: &str) -> ManagementState {
        if !self.components.queue_manager {
            return ManagementState::Unmanaged;
        }
        let unlabeled = BTreeMap::new();
        let seen = self.cluster_state.namespaces.get(&ObjectKey::global(namespace));
        let place = NamespaceFacts {
            namespace,
            labels: seen.map(|seen| seen.metadata.labels.as_ref().unwrap_or(&unlabeled)),
            has_default_queue: self
                .cluster_state
                .local_queues
                .get(&ObjectKey::new(namespace, DEFAULT_LOCAL_QUEUE))
                .is_some(),
        };
        ManagementState::classify(job, place, &self.managed_jobs_policy)
    }
}
