//! Applies the managed-jobs policy to observed jobs and their namespaces.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_core::ResourceExt;

use super::Engine;
use super::cluster_state::owner_key;
use sluice_api::condition;
use sluice_api::kueue::LocalQueue;
use sluice_api::kueue::names::{DEFAULT_LOCAL_QUEUE, FINISHED};
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
        let mut names = parts.flatten().filter_map(|part| part.ray_cluster_name.as_deref());
        let is_idle = names.all(str::is_empty) && self.children_of_service(service).next().is_none();
        let job = JobFacts {
            framework: Framework::RayService,
            queue_name: queue_name(&service.metadata),
            is_managed_elsewhere: is_managed_elsewhere(service.spec.managed_by.as_deref()),
            may_join_default_queue: is_idle || self.belongs_to_default_queue(&service.metadata),
        };
        self.managed(job, &service.namespace().unwrap_or_default())
    }

    /// Decides whether a RayCluster that is a job of its own is managed.
    pub(super) fn managed_cluster(&self, cluster: &RayCluster) -> ManagementState {
        let has_own_queue = !self.has_ray_owner(cluster);
        let is_idle =
            cluster.status.is_none() || cluster.spec.suspend == Some(true) && !self.has_pods(&cluster.metadata);
        let job = JobFacts {
            framework: Framework::RayCluster,
            queue_name: queue_name(&cluster.metadata),
            is_managed_elsewhere: is_managed_elsewhere(cluster.spec.managed_by.as_deref()),
            may_join_default_queue: self.was_queued(&cluster.metadata)
                || has_own_queue && (is_idle || self.is_newer_than_default_queue(&cluster.metadata)),
        };
        self.managed(job, &cluster.namespace().unwrap_or_default())
    }

    /// Decides whether a RayJob with its own cluster is managed.
    pub(super) fn managed_ray_job(&self, job: &RayJob) -> ManagementState {
        let is_idle = !ray_job::has_started(job) || ray_job::is_suspended(job) && !self.has_pods(&job.metadata);
        let facts = JobFacts {
            framework: Framework::RayJob,
            queue_name: queue_name(&job.metadata),
            is_managed_elsewhere: is_managed_elsewhere(job.spec.managed_by.as_deref()),
            may_join_default_queue: is_idle || self.belongs_to_default_queue(&job.metadata),
        };
        self.managed(facts, &job.namespace().unwrap_or_default())
    }

    /// Decides whether a batch/v1 Job is managed. `framework` and the queue name in `meta` are those
    /// of the Job, or of the RayJob that it submits to an existing cluster.
    pub(super) fn managed_batch_job(&self, job: &BatchJob, framework: Framework, meta: &ObjectMeta) -> ManagementState {
        let begun =
            job.status.as_ref().is_some_and(|status| status.start_time.is_some() || status.conditions.is_some());
        let is_idle = !begun || batch_job::is_suspended(job) && !self.has_pods(&job.metadata);
        let manager = job.spec.as_ref().and_then(|spec| spec.managed_by.as_deref());
        let facts = JobFacts {
            framework,
            queue_name: queue_name(meta),
            is_managed_elsewhere: batch_job::is_managed_elsewhere(manager),
            may_join_default_queue: is_idle || self.belongs_to_default_queue(&job.metadata),
        };
        self.managed(facts, &job.namespace().unwrap_or_default())
    }

    /// Reports whether a job that runs without a queue name belongs to the default LocalQueue
    /// nevertheless: it lost its label, or has started before it was given one.
    fn belongs_to_default_queue(&self, job: &ObjectMeta) -> bool {
        self.was_queued(job) || self.is_newer_than_default_queue(job)
    }

    /// Reports whether a job was created after the default LocalQueue of its namespace, or in the same
    /// second.
    fn is_newer_than_default_queue(&self, job: &ObjectMeta) -> bool {
        let queue = self.default_queue(job.namespace.as_deref().unwrap_or_default());
        queue.is_some_and(|queue| job.creation_timestamp >= queue.metadata.creation_timestamp)
    }

    fn default_queue(&self, namespace: &str) -> Option<&LocalQueue> {
        self.cluster_state.local_queues.get(&ObjectKey::new(namespace, DEFAULT_LOCAL_QUEUE)).map(AsRef::as_ref)
    }

    /// Reports whether a job has a Workload: it was in a queue, and has lost its label.
    fn was_queued(&self, job: &ObjectMeta) -> bool {
        let workloads = self.cluster_state.workloads.by_index(&owner_key(job.uid.as_deref().unwrap_or_default()));
        workloads.into_iter().any(|workload| !condition::is_true(workload.conditions(), FINISHED))
    }

    fn has_pods(&self, job: &ObjectMeta) -> bool {
        self.may_run_pods(job.uid.as_deref().unwrap_or_default())
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
            has_default_queue: self.default_queue(namespace).is_some(),
        };
        ManagementState::classify(job, place, &self.managed_jobs_policy)
    }
}
