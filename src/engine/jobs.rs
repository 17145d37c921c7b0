//! Builds the context of a job, by kind, from the observed state.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use kube_core::ResourceExt;

use super::planners::{JobKey, Planner, existing_cluster, is_standalone};
use super::ray_jobs::Submits;
use super::renewals::share_of_pod;
use super::world::{MemberId, Runner, owned_by};
use super::{Engine, priorities};
use sluice_api::kueue::Workload;
use sluice_api::ray::{RayCluster, RayService};
use sluice_jobframework::batch_job::{self, BatchJobJob};
use sluice_jobframework::census::Molds;
use sluice_jobframework::managed::Managed;
use sluice_jobframework::members::{Pods, outlived};
use sluice_jobframework::ray_cluster::RayClusterJob;
use sluice_jobframework::ray_job::RayJobJob;
use sluice_jobframework::ray_service::RayServiceJob;
use sluice_jobframework::record::{MemberShare, Record};
use sluice_jobframework::{self as jobframework, Job, JobView, Member};
use sluice_plan::ObjectKey;
use sluice_plan::{ObjectRef, Plan};
use sluice_raycluster::revision;
use sluice_rayservice::services::{leads_to, serve_service_name};

/// Inputs for planning a job of any kind.
struct Known<'a> {
    job: &'a dyn Job,
    managed: Managed,
    workloads: Vec<&'a Workload>,
    /// Deleted members that still have pods.
    outlived: Vec<Member>,
    /// PriorityClass of the pods; `None` if they name none.
    pod_class: Option<&'a str>,
    /// The Ray operator of this process creates the pods.
    makes_pods: bool,
}

/// A job as the engine observes it, for read-only queries.
pub struct Sight<'a> {
    /// The job, behind the interface common to all kinds.
    pub job: &'a dyn Job,
    /// Decision of the managed-jobs policy.
    pub managed: Managed,
    /// All Workloads owned by the job.
    pub workloads: Vec<&'a Workload>,
}

impl Engine {
    /// Plans a job; the plan is empty if the job does not exist or belongs to another job.
    pub(super) fn plan_job(&self, job: &JobKey, now: Timestamp) -> Plan {
        let failures = self.pace.failures(&Planner::Job(job.clone()));
        self.with(job, |known| self.plan_any_job(known, failures, now)).unwrap_or_default()
    }

    /// Calls `see` with a snapshot of a job; `None` if the job does not exist or belongs to
    /// another.
    pub fn look<T>(&self, job: &ObjectRef, see: impl FnOnce(Sight<'_>) -> T) -> Option<T> {
        let key = ObjectKey::new(job.namespace.clone().unwrap_or_default(), job.name.clone());
        let key = JobKey::of_kind(&job.kind, key)?;
        self.with(&key, |known| see(Sight { job: known.job, managed: known.managed, workloads: known.workloads }))
    }

    fn with<T>(&self, job: &JobKey, see: impl FnOnce(Known<'_>) -> T) -> Option<T> {
        match job {
            JobKey::RayService(key) => self.with_ray_service(key, see),
            JobKey::RayCluster(key) => self.with_ray_cluster(key, see),
            JobKey::RayJob(key) => self.with_ray_job(key, see),
            JobKey::BatchJob(key) => self.with_batch_job(key, see),
        }
    }

    fn with_ray_service<T>(&self, key: &ObjectKey, see: impl FnOnce(Known<'_>) -> T) -> Option<T> {
        let service = self.world.ray_services.get(key)?;
        let uid = service.uid().unwrap_or_default();
        let workloads = self.workloads_of(&uid);
        let molds = Molds::of(workloads.iter().copied());
        let children = self.world.ray_clusters.under(&owned_by(&uid));
        let children = children.map(|child| self.cluster_job(child, &molds)).collect();
        Some(see(Known {
            job: &RayServiceJob { service, children, serving: self.serving(service) },
            managed: self.managed_service(service),
            outlived: self.outlived(&key.namespace, &workloads, &molds),
            workloads,
            pod_class: priorities::pod_class(&service.spec.ray_cluster_config),
            makes_pods: self.halves.ray_operator,
        }))
    }

    fn with_ray_cluster<T>(&self, key: &ObjectKey, see: impl FnOnce(Known<'_>) -> T) -> Option<T> {
        let cluster = self.world.ray_clusters.get(key).filter(|cluster| is_standalone(cluster))?;
        let workloads = self.workloads_of(&cluster.uid().unwrap_or_default());
        let molds = Molds::of(workloads.iter().copied());
        Some(see(Known {
            job: &self.cluster_job(cluster, &molds),
            managed: self.managed_cluster(cluster),
            outlived: self.outlived(&key.namespace, &workloads, &molds),
            workloads,
            pod_class: priorities::pod_class(&cluster.spec),
            makes_pods: self.halves.ray_operator,
        }))
    }

    fn with_ray_job<T>(&self, key: &ObjectKey, see: impl FnOnce(Known<'_>) -> T) -> Option<T> {
        let job = self.world.ray_jobs.get(key).filter(|job| !job.spec.attaches())?;
        let uid = job.uid().unwrap_or_default();
        let workloads = self.workloads_of(&uid);
        let molds = Molds::of(workloads.iter().copied());
        let groups = self.specs.needs(key)?.groups(job, self.wants_of_cluster_under(&uid), self.submitter_under(&uid));
        Some(see(Known {
            job: &RayJobJob::new(job, groups, self.pods_of_ray_job(&uid), &molds),
            managed: self.managed_ray_job(job),
            // `pods_of_ray_job` includes the pods of deleted clusters.
            outlived: Vec::new(),
            workloads,
            pod_class: job.spec.ray_cluster_spec.as_ref().and_then(priorities::pod_class),
            makes_pods: false,
        }))
    }

    fn with_batch_job<T>(&self, key: &ObjectKey, see: impl FnOnce(Known<'_>) -> T) -> Option<T> {
        let job = self.world.batch_jobs.get(key)?;
        let uid = job.uid().unwrap_or_default();
        let workloads = self.workloads_of(&uid);
        let molds = Molds::of(workloads.iter().copied());
        let queued = BatchJobJob::new(job, self.all_pods(&uid), &molds);
        let queued = match self.submits(job) {
            Submits::Nothing => queued,
            Submits::To(ray_job) => queued.queued_as(&ray_job.metadata),
            // The RayJob or RayCluster covers this submitter.
            Submits::ForItsOwn => return None,
        };
        Some(see(Known {
            managed: self.managed_batch_job(job, queued.meta()),
            job: &queued,
            // A batch/v1 Job is its only member.
            outlived: Vec::new(),
            workloads,
            pod_class: batch_job::pod_class(job),
            makes_pods: false,
        }))
    }

    fn plan_any_job(&self, known: Known<'_>, failures: u32, now: Timestamp) -> Plan {
        let Known { job, managed, workloads, outlived, pod_class, makes_pods } = known;
        jobframework::plan(&JobView {
            job,
            managed,
            workloads,
            outlived,
            queue: self.queueing.queue(),
            priority: priorities::of_job(&self.world, job, pod_class),
            placement: &|flavors: &BTreeSet<String>| self.placement(flavors),
            pinned: &|slice: &Workload| self.queueing.pinned(slice),
            makes_pods,
            failures,
            watches_readiness: self.queueing.watches_readiness(),
            now,
        })
    }

    /// Returns all Workloads owned by the job with this uid.
    pub(super) fn workloads_of(&self, job: &str) -> Vec<&Workload> {
        self.world.workloads.under(&owned_by(job)).map(AsRef::as_ref).collect()
    }

    fn cluster_job<'a>(&'a self, cluster: &'a RayCluster, molds: &'a Molds<'a>) -> RayClusterJob<'a> {
        let uid = cluster.metadata.uid.as_deref().unwrap_or_default();
        let footing = self.footing(cluster);
        RayClusterJob {
            cluster,
            pods: self.all_pods(uid),
            groups: self.wants_on(cluster, &footing),
            molds,
            share: revision::share(uid, &footing.wanted),
            renewal: self.renewal(cluster, &footing),
        }
    }

    /// Returns the names of the RayClusters that receive traffic of a RayService: the one selected
    /// by its serve Service and, in an incremental upgrade, those with a route weight above zero.
    fn serving(&self, service: &RayService) -> BTreeSet<String> {
        let serve_service = serve_service_name(service);
        let owned = owned_by(service.metadata.uid.as_deref().unwrap_or_default());
        let serve = self.world.services.under(&owned).find(|service| service.name_any() == serve_service);
        let children: Vec<&RayCluster> = self.world.ray_clusters.under(&owned).map(AsRef::as_ref).collect();
        let ways = self.ways(service, &children);
        let shares = children.iter().filter(|child| ways.share(child).is_some_and(|share| share > 0));
        let leads_to = serve.and_then(|serve| leads_to(serve)).map(str::to_owned);
        shares.map(|child| child.name_any()).chain(leads_to).collect()
    }

    /// Returns the deleted clusters that still have pods covered by a slice.
    fn outlived(&self, namespace: &str, workloads: &[&Workload], molds: &Molds<'_>) -> Vec<Member> {
        let records = workloads.iter().filter_map(|workload| Record::of(workload));
        let members = records.flat_map(|record| record.members);
        let clusters: BTreeSet<MemberId> = members.map(|member| cluster_of(namespace, &member)).collect();
        let gone = clusters.into_iter().filter(|cluster| existing_cluster(&self.world, cluster).is_none());
        let left = gone.flat_map(|cluster| self.left_of(&cluster, molds));
        left.filter(|member| !member.live_pods.is_empty()).collect()
    }

    /// Returns the remaining pods of a deleted cluster as one member per revision.
    fn left_of(&self, cluster: &MemberId, molds: &Molds<'_>) -> Vec<Member> {
        let mut by_share: BTreeMap<String, Pods<'_>> = BTreeMap::new();
        let pods = self.all_pods(&cluster.uid);
        for pod in pods.seen {
            by_share.entry(share_of_pod(&cluster.uid, pod)).or_default().seen.push(pod);
        }
        for pod in pods.arriving {
            by_share.entry(share_of_pod(&cluster.uid, pod)).or_default().arriving.push(pod);
        }
        by_share.iter().map(|(share, pods)| outlived(&cluster.key.name, share, pods, molds)).collect()
    }
}

/// Returns the identity of the RayCluster that a recorded member belongs to.
pub(super) fn cluster_of(namespace: &str, member: &MemberShare) -> MemberId {
    let (uid, _) = revision::of_share(&member.uid);
    MemberId { runner: Runner::RayCluster, key: ObjectKey::new(namespace, &member.name), uid: uid.to_owned() }
}
