//! Builds the context of a job, by kind, from the observed state.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube_core::ResourceExt;

use super::ancestors::{JobOfBatchJob, JobOfCluster};
use super::cluster_state::{PodOwnerId, PodOwnerKind, has_controller, orphaned_pods_key, owner_key};
use super::owners::existing_cluster;
use super::planner_key::{JobKey, PlannerKey};
use super::recreate::member_uid_of_pod;
use super::{Engine, priorities};
use sluice_api::kueue::Workload;
use sluice_api::ray::{RayCluster, RayService};
use sluice_jobframework::batch_job::{self, BatchJobAdapter};
use sluice_jobframework::managed::{Framework, ManagementState};
use sluice_jobframework::members::{MemberPods, orphaned_member};
use sluice_jobframework::pod_classifier::KnownTemplates;
use sluice_jobframework::ray_cluster::RayClusterAdapter;
use sluice_jobframework::ray_job::RayJobAdapter;
use sluice_jobframework::ray_service::RayServiceAdapter;
use sluice_jobframework::slice_record::{MemberShare, SliceRecord};
use sluice_jobframework::{self as jobframework, GenericJob, Member, ReconcileContext};
use sluice_plan::ObjectKey;
use sluice_plan::{ObjectId, Plan};
use sluice_raycluster::revision;
use sluice_rayservice::services::{selected_cluster, serve_service_name};

/// Finalizer of an object that is deleted with the propagation policy Orphan, until its dependents have
/// lost their owner reference (Kubernetes 1.36 `apimachinery/pkg/apis/meta/v1/types.go`).
const ORPHAN_FINALIZER: &str = "orphan";

/// Inputs for planning a job of any kind.
struct JobContext<'a> {
    job: &'a dyn GenericJob,
    managed: ManagementState,
    workloads: Vec<&'a Workload>,
    /// Deleted members that still have pods.
    orphaned_members: Vec<Member>,
    /// PriorityClass of the pods; `None` if they name none.
    pod_priority_class: Option<&'a str>,
    /// The Ray operator of this process creates the pods.
    creates_pods: bool,
}

/// A job as the engine observes it, for read-only queries.
pub struct JobSnapshot<'a> {
    /// The job, behind the interface common to all kinds.
    pub job: &'a dyn GenericJob,
    /// Decision of the managed-jobs policy.
    pub managed: ManagementState,
    /// All Workloads owned by the job.
    pub workloads: Vec<&'a Workload>,
}

impl Engine {
    /// Plans a job; the plan is empty if the job does not exist. All that is planned for a RayCluster
    /// that belongs to another job is what its own queue name has to do with it.
    pub(super) fn plan_job(&self, job: &JobKey, now: Timestamp) -> Plan {
        let failures = self.writes.failures(&PlannerKey::Job(job.clone()));
        let plan = self.with_job_context(job, |context| self.plan_job_context(context, failures, now));
        match (plan, job) {
            (Some(mut plan), JobKey::RayCluster(cluster)) if plan.writes.is_empty() => {
                plan.writes = self.plan_ignored_queue_name(cluster, now).writes;
                plan
            }
            (Some(plan), _) => plan,
            (None, JobKey::RayCluster(cluster)) => self.plan_ignored_queue_name(cluster, now),
            (None, _) => Plan::default(),
        }
    }

    /// Calls `inspect` with a snapshot of a job; `None` if the job does not exist or belongs to
    /// another.
    pub fn with_job<T>(&self, job: impl Into<ObjectId>, inspect: impl FnOnce(JobSnapshot<'_>) -> T) -> Option<T> {
        let job = job.into();
        let key = ObjectKey::new(job.namespace.unwrap_or_default(), job.name);
        let key = JobKey::of_kind(&job.kind, key)?;
        self.with_job_context(&key, |context| {
            inspect(JobSnapshot { job: context.job, managed: context.managed, workloads: context.workloads })
        })
    }

    fn with_job_context<T>(&self, job: &JobKey, inspect: impl FnOnce(JobContext<'_>) -> T) -> Option<T> {
        match job {
            JobKey::RayService(key) => self.with_ray_service(key, inspect),
            JobKey::RayCluster(key) => self.with_ray_cluster(key, inspect),
            JobKey::RayJob(key) => self.with_ray_job(key, inspect),
            JobKey::BatchJob(key) => self.with_batch_job(key, inspect),
        }
    }

    fn with_ray_service<T>(&self, key: &ObjectKey, inspect: impl FnOnce(JobContext<'_>) -> T) -> Option<T> {
        let service = self.cluster_state.ray_services.get(key)?;
        let uid = service.uid().unwrap_or_default();
        let workloads = self.workloads_of(&uid);
        let templates = KnownTemplates::from_workloads(workloads.iter().copied());
        let children = self.children_of_service(service).map(|child| self.ray_cluster_job(child, &templates)).collect();
        Some(inspect(JobContext {
            job: &RayServiceAdapter { service, clusters: children, serving_clusters: self.serving_clusters(service) },
            managed: self.managed_service(service),
            orphaned_members: self.orphaned_members(&key.namespace, &workloads, &templates),
            workloads,
            pod_priority_class: priorities::pod_priority_class(&service.spec.ray_cluster_config),
            creates_pods: self.components.ray_operator,
        }))
    }

    fn with_ray_cluster<T>(&self, key: &ObjectKey, inspect: impl FnOnce(JobContext<'_>) -> T) -> Option<T> {
        let cluster = self.cluster_state.ray_clusters.get(key)?;
        let workloads = self.workloads_of(&cluster.uid().unwrap_or_default());
        let managed = match self.job_of_cluster(cluster) {
            JobOfCluster::Itself => self.managed_cluster(cluster),
            // It had a queue of its own before its owner was queued.
            _ if !workloads.is_empty() => ManagementState::Unmanaged,
            _ => return None,
        };
        let templates = KnownTemplates::from_workloads(workloads.iter().copied());
        Some(inspect(JobContext {
            job: &self.ray_cluster_job(cluster, &templates),
            managed,
            orphaned_members: self.orphaned_members(&key.namespace, &workloads, &templates),
            workloads,
            pod_priority_class: priorities::pod_priority_class(&cluster.spec),
            creates_pods: self.components.ray_operator,
        }))
    }

    fn with_ray_job<T>(&self, key: &ObjectKey, inspect: impl FnOnce(JobContext<'_>) -> T) -> Option<T> {
        let job = self.cluster_state.ray_jobs.get(key).filter(|job| !job.spec.uses_existing_cluster())?;
        let uid = job.uid().unwrap_or_default();
        let workloads = self.workloads_of(&uid);
        let templates = KnownTemplates::from_workloads(workloads.iter().copied());
        let groups = self.spec_cache.ray_job_requirements(key)?.groups(
            job,
            self.groups_of_ray_job_cluster(job),
            self.submitter_job(job),
        );
        Some(inspect(JobContext {
            job: &RayJobAdapter::new(job, groups, self.pods_of_ray_job(job), &templates),
            managed: self.managed_ray_job(job),
            // `pods_of_ray_job` includes the pods of deleted clusters.
            orphaned_members: Vec::new(),
            workloads,
            pod_priority_class: job.spec.ray_cluster_spec.as_ref().and_then(priorities::pod_priority_class),
            creates_pods: false,
        }))
    }

    fn with_batch_job<T>(&self, key: &ObjectKey, inspect: impl FnOnce(JobContext<'_>) -> T) -> Option<T> {
        let job = self.cluster_state.batch_jobs.get(key)?;
        let uid = job.uid().unwrap_or_default();
        let workloads = self.workloads_of(&uid);
        let templates = KnownTemplates::from_workloads(workloads.iter().copied());
        let queued = BatchJobAdapter::new(job, self.observed_and_expected_pods(&uid), &templates);
        let (queued, managed) = match self.job_of_batch_job(job) {
            JobOfBatchJob::Itself => {
                let managed = self.managed_batch_job(job, Framework::BatchJob, &job.metadata);
                (queued, managed)
            }
            JobOfBatchJob::SubmitterFor(ray_job) => {
                let queued = queued.inherit_queue_labels(&ray_job.metadata);
                let managed = self.managed_batch_job(job, Framework::RayJob, queued.meta());
                (queued, managed)
            }
            // It had a queue of its own before its owner was queued.
            _ if !workloads.is_empty() => (queued, ManagementState::Unmanaged),
            JobOfBatchJob::RayJob | JobOfBatchJob::RedisCleanup => return None,
        };
        Some(inspect(JobContext {
            managed,
            job: &queued,
            // A batch/v1 Job is its only member.
            orphaned_members: Vec::new(),
            workloads,
            pod_priority_class: batch_job::pod_priority_class(job),
            creates_pods: false,
        }))
    }

    fn plan_job_context(&self, context: JobContext<'_>, failures: u32, now: Timestamp) -> Plan {
        let JobContext { job, managed, workloads, orphaned_members, pod_priority_class, creates_pods } = context;
        jobframework::plan(&ReconcileContext {
            job,
            managed,
            workloads,
            orphaned_members,
            scheduler: self.queue_adapter.scheduler(),
            priority: priorities::job_priority(&self.cluster_state, job, pod_priority_class),
            placement: &|flavors: &BTreeSet<String>| self.pod_set_info(flavors),
            flavor_bound_pod_sets: &|slice: &Workload| self.queue_adapter.flavor_bound_pod_sets(slice),
            pod_verdict: &|dry_run| self.pod_dry_runs.verdict(dry_run, now),
            creates_pods,
            consecutive_failures: failures,
            pods_ready_reports: self.queue_adapter.pods_ready_reports(),
            retention: self.retention,
            now,
        })
    }

    /// Returns all Workloads of the job with this uid.
    pub(super) fn workloads_of(&self, job: &str) -> Vec<&Workload> {
        let indexed = self.cluster_state.workloads.by_index(&owner_key(job)).map(AsRef::as_ref);
        indexed.filter(|workload| has_controller(*workload) || self.is_adopted_by(workload, job)).collect()
    }

    fn ray_cluster_job<'a>(
        &'a self,
        cluster: &'a RayCluster,
        templates: &'a KnownTemplates<'a>,
    ) -> RayClusterAdapter<'a> {
        let uid = cluster.metadata.uid.as_deref().unwrap_or_default();
        let state = self.recreate_state(cluster);
        let mut pods = self.observed_and_expected_pods(uid);
        pods.observed.extend(self.pods_being_orphaned(cluster));
        RayClusterAdapter {
            cluster,
            pods,
            groups: self.desired_groups(cluster, &state),
            known_templates: templates,
            member_uid: revision::member_uid(uid, &state.desired_revision),
            recreation: self.recreation(cluster, &state),
        }
    }

    /// Iterates over the pods that have lost their owner reference to a cluster that is being deleted
    /// without them. The watch of RayClusters can be behind that of pods, and not show the deletion
    /// yet: pods as young as the cluster belonged to none of the same name before it.
    fn pods_being_orphaned<'a>(&'a self, cluster: &'a RayCluster) -> impl Iterator<Item = &'a Pod> {
        let orphans = cluster.finalizers().iter().any(|finalizer| finalizer == ORPHAN_FINALIZER);
        let key = orphaned_pods_key(&cluster.namespace().unwrap_or_default(), &cluster.name_any());
        let orphaned = self.cluster_state.pods.by_index(&key).map(AsRef::as_ref);
        orphaned.filter(move |pod| orphans || pod.creation_timestamp() >= cluster.creation_timestamp())
    }

    /// Returns the names of the RayClusters that receive traffic of a RayService: the one selected
    /// by its serve Service and, in an incremental upgrade, those with a route weight above zero.
    fn serving_clusters(&self, service: &RayService) -> BTreeSet<String> {
        let serve_service = serve_service_name(service);
        let owned = owner_key(service.metadata.uid.as_deref().unwrap_or_default());
        let serve = self.cluster_state.services.by_index(&owned).find(|service| service.name_any() == serve_service);
        let children: Vec<&RayCluster> = self.children_of_service(service).collect();
        let routing = self.traffic_routing(service, &children);
        let shares = children.iter().filter(|child| routing.traffic_share(child).is_some_and(|share| share > 0));
        let leads_to = serve.and_then(|serve| selected_cluster(serve)).map(str::to_owned);
        shares.map(|child| child.name_any()).chain(leads_to).collect()
    }

    /// Returns the deleted clusters that still have pods covered by a slice.
    fn orphaned_members(
        &self,
        namespace: &str,
        workloads: &[&Workload],
        templates: &KnownTemplates<'_>,
    ) -> Vec<Member> {
        let records = workloads.iter().filter_map(|workload| SliceRecord::from_workload(workload));
        let members = records.flat_map(|record| record.members);
        let clusters: BTreeSet<PodOwnerId> = members.map(|member| cluster_id(namespace, &member)).collect();
        let gone = clusters.into_iter().filter(|cluster| existing_cluster(&self.cluster_state, cluster).is_none());
        let left = gone.flat_map(|cluster| self.orphaned_members_of(&cluster, templates));
        left.filter(|member| !member.live_pods.is_empty()).collect()
    }

    /// Returns the remaining pods of a deleted cluster as one member per revision.
    fn orphaned_members_of(&self, cluster: &PodOwnerId, templates: &KnownTemplates<'_>) -> Vec<Member> {
        let mut by_share: BTreeMap<String, MemberPods<'_>> = BTreeMap::new();
        let pods = self.observed_and_expected_pods(&cluster.uid);
        for pod in pods.observed {
            by_share.entry(member_uid_of_pod(&cluster.uid, pod)).or_default().observed.push(pod);
        }
        for pod in pods.expected {
            by_share.entry(member_uid_of_pod(&cluster.uid, pod)).or_default().expected.push(pod);
        }
        by_share.iter().map(|(share, pods)| orphaned_member(&cluster.key.name, share, pods, templates)).collect()
    }
}

/// Returns the identity of the RayCluster that a recorded member belongs to.
pub(super) fn cluster_id(namespace: &str, member: &MemberShare) -> PodOwnerId {
    let (uid, _) = revision::parse_member_uid(&member.uid);
    PodOwnerId {
        owner_kind: PodOwnerKind::RayCluster,
        key: ObjectKey::new(namespace, &member.name),
        uid: uid.to_owned(),
    }
}
