//! Applies the managed-jobs policy to observed jobs and their namespaces.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_core::ResourceExt;

use super::Engine;
use super::world::owned_by;
use sluice_api::kueue::names::DEFAULT_LOCAL_QUEUE;
use sluice_api::ray::{RayCluster, RayJob, RayService, is_managed_elsewhere};
use sluice_jobframework::managed::{Candidate, Framework, Managed, Place};
use sluice_jobframework::queue_name;
use sluice_jobframework::{batch_job, ray_job};
use sluice_plan::ObjectKey;

impl Engine {
    /// Decides whether a RayService is managed; the decision holds for its RayClusters too.
    pub(super) fn managed_service(&self, service: &RayService) -> Managed {
        let status = service.status.as_ref();
        let parts =
            status.into_iter().flat_map(|status| [&status.active_service_status, &status.pending_service_status]);
        let names = parts.flatten().filter_map(|part| part.ray_cluster_name.as_deref());
        let owned = owned_by(service.metadata.uid.as_deref().unwrap_or_default());
        let job = Candidate {
            framework: Framework::RayService,
            queue_name: queue_name(&service.metadata),
            is_managed_elsewhere: is_managed_elsewhere(service.spec.managed_by.as_deref()),
            is_new: names.into_iter().all(str::is_empty) && self.world.ray_clusters.under(&owned).next().is_none(),
        };
        self.managed(job, &service.namespace().unwrap_or_default())
    }

    /// Decides whether a standalone RayCluster is managed.
    pub(super) fn managed_cluster(&self, cluster: &RayCluster) -> Managed {
        let job = Candidate {
            framework: Framework::RayCluster,
            queue_name: queue_name(&cluster.metadata),
            is_managed_elsewhere: is_managed_elsewhere(cluster.spec.managed_by.as_deref()),
            is_new: cluster.status.is_none(),
        };
        self.managed(job, &cluster.namespace().unwrap_or_default())
    }

    /// Decides whether a RayJob with its own cluster is managed.
    pub(super) fn managed_ray_job(&self, job: &RayJob) -> Managed {
        let facts = Candidate {
            framework: Framework::RayJob,
            queue_name: queue_name(&job.metadata),
            is_managed_elsewhere: is_managed_elsewhere(job.spec.managed_by.as_deref()),
            is_new: !ray_job::has_begun(job),
        };
        self.managed(facts, &job.namespace().unwrap_or_default())
    }

    /// Decides whether a batch/v1 Job is managed. `meta` carries the queue name: that of the Job,
    /// or of the RayJob that it submits to an existing cluster.
    pub(super) fn managed_batch_job(&self, job: &BatchJob, meta: &ObjectMeta) -> Managed {
        let begun =
            job.status.as_ref().is_some_and(|status| status.start_time.is_some() || status.conditions.is_some());
        let manager = job.spec.as_ref().and_then(|spec| spec.managed_by.as_deref());
        let facts = Candidate {
            framework: if batch_job::is_of_ray(job) { Framework::RayJob } else { Framework::BatchJob },
            queue_name: queue_name(meta),
            is_managed_elsewhere: batch_job::is_managed_elsewhere(manager),
            is_new: !begun,
        };
        self.managed(facts, &job.namespace().unwrap_or_default())
    }

    fn managed(&self, job: Candidate<'_>, namespace: &str) -> Managed {
        if !self.halves.queue_manager {
            return Managed::No;
        }
        let unlabeled = BTreeMap::new();
        let seen = self.world.namespaces.get(&ObjectKey::global(namespace));
        let place = Place {
            namespace,
            labels: seen.map(|seen| seen.metadata.labels.as_ref().unwrap_or(&unlabeled)),
            has_default_queue: self.world.local_queues.get(&ObjectKey::new(namespace, DEFAULT_LOCAL_QUEUE)).is_some(),
        };
        Managed::of(job, place, &self.rules)
    }
}
