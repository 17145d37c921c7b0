//! Workloads that have lost their owner.
//!
//! `kubectl delete --cascade=orphan` removes the owner reference from pods, RayClusters and
//! Workloads alike, and then deletes the job. Its pods run on, and their quota stays in use until
//! the last one is gone. A Workload whose job is gone, and which no garbage collector deletes, ends
//! the same way.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube_core::{Resource, ResourceExt};

use super::Engine;
use super::ancestors::{JobOfBatchJob, JobOfCluster};
use super::cluster_state::{PodOwnerId, has_controller, orphaned_pods_key, owner_key};
use super::job_context::cluster_id;
use super::owners::{existing_cluster, owning_job_exists, owning_job_key};
use super::planner_key::JobKey;
use sluice_api::condition;
use sluice_api::kueue::{Workload, names};
use sluice_jobframework::finished;
use sluice_jobframework::members::is_live;
use sluice_jobframework::slice_record::{MemberShare, SliceRecord};
use sluice_jobframework::slices::{self, Slice, SlicePhase};
use sluice_plan::{ObjectKey, ObjectRef, Plan, Write};

/// Time after which a Workload ends by itself if its job is gone: the garbage collector, which deletes
/// both, is given the time to do so.
const COLLECTION_TIME: SignedDuration = SignedDuration::from_mins(1);

/// Job that an orphaned Workload belongs to.
pub(super) struct AdoptiveJob {
    reference: ObjectRef,
    uid: String,
    is_terminating: bool,
}

impl AdoptiveJob {
    fn of<K: Resource<DynamicType = ()>>(job: &K) -> Self {
        Self {
            reference: ObjectRef::of(job),
            uid: job.meta().uid.clone().unwrap_or_default(),
            is_terminating: job.meta().deletion_timestamp.is_some(),
        }
    }
}

impl Engine {
    /// Plans a Workload that has lost its owner: its job adopts it again; without one it finishes
    /// after its last pod, or at once if it holds no quota or another slice covers its pods. Returns
    /// `None` if it is not orphaned, or stays as it is.
    pub(super) fn plan_orphaned_workload(&self, workload: &Workload, now: Timestamp) -> Option<Plan> {
        let record = orphaned_record(workload)?;
        if let Some(job) = self.adoptive_job(workload, &record) {
            return (!job.is_terminating).then(|| adopt(workload, job));
        }
        let namespace = workload.namespace().unwrap_or_default();
        let is_used = || record.members.iter().any(|member| self.uses_orphaned_quota(&namespace, member));
        let holds_quota = condition::is_true(workload.conditions(), names::QUOTA_RESERVED);
        let is_kept = holds_quota && !self.is_replaced(workload, &record) && is_used();
        (!is_kept).then(|| finished::plan_orphaned(workload, now))
    }

    /// Returns the time at which a Workload ends by itself, since its job is gone; `None` while it has
    /// one, or none that it was created for.
    pub(super) fn collection_deadline(&mut self, workload: &Workload, now: Timestamp) -> Option<Timestamp> {
        let key = ObjectKey::of(workload);
        let is_over = condition::is_true(workload.conditions(), names::FINISHED);
        let has_lost_job = owning_job_key(workload).is_some() && !owning_job_exists(&self.cluster_state, workload);
        if is_over || !has_lost_job || SliceRecord::from_workload(workload).is_none() {
            self.jobs_gone_since.remove(&key);
            return None;
        }
        Some(*self.jobs_gone_since.entry(key).or_insert(now) + COLLECTION_TIME)
    }

    /// Plans the end of a Workload whose job is gone. Returns `None` while one of its clusters exists,
    /// or one of its pods runs.
    pub(super) fn plan_uncollected_workload(&self, workload: &Workload, now: Timestamp) -> Option<Plan> {
        let namespace = workload.namespace().unwrap_or_default();
        let members = SliceRecord::from_workload(workload).unwrap_or_default().members;
        let is_used = members.iter().any(|member| {
            existing_cluster(&self.cluster_state, &cluster_id(&namespace, member)).is_some()
                || self.uses_orphaned_quota(&namespace, member)
        });
        (!is_used).then(|| finished::plan_orphaned(workload, now))
    }

    /// Reports whether an admitted slice that replaces this one covers all its pods: they use the quota
    /// of that one alone, also if their job was deleted before this one was written as finished. Pods
    /// of an older shape, which the successor does not cover, keep the quota of this one.
    pub(super) fn is_replaced(&self, slice: &Workload, record: &SliceRecord) -> bool {
        let Some(job) = slice.labels().get(names::JOB_UID_LABEL) else { return false };
        let name = slice.name_any();
        let of_job = self.cluster_state.workloads.by_index(&owner_key(job));
        of_job.filter(|other| slices::predecessor_name(other) == Some(&name)).any(|workload| {
            let successor = Slice::from_workload(workload);
            let is_admitted = match successor.phase {
                SlicePhase::Admitted => true,
                SlicePhase::Terminating => condition::is_true(workload.conditions(), names::ADMITTED),
                SlicePhase::Pending | SlicePhase::Evicted | SlicePhase::Finished => false,
            };
            is_admitted && successor.grants_all_of(record)
        })
    }

    /// Reports whether an orphaned Workload belongs to the job with this uid.
    pub(super) fn is_adopted_by(&self, workload: &Workload, job: &str) -> bool {
        let record = SliceRecord::from_workload(workload).unwrap_or_default();
        self.adoptive_job(workload, &record).is_some_and(|adoptive| adoptive.uid == job)
    }

    /// Returns the key of the job that an orphaned Workload belongs to.
    pub(super) fn adoptive_job_key(&self, workload: &Workload) -> Option<JobKey> {
        let job = self.adoptive_job(workload, &orphaned_record(workload)?)?.reference;
        JobKey::of_kind(&job.kind, ObjectKey::new(job.namespace.unwrap_or_default(), job.name))
    }

    /// Reports whether orphaned pods run that may belong to this RayCluster: they name it, no label has
    /// the uid of their cluster, and they are not older than it.
    pub(super) fn has_orphaned_pods(&self, cluster: &PodOwnerId) -> bool {
        let orphaned = self.cluster_state.pods.by_index(&orphaned_pods_key(&cluster.key.namespace, &cluster.key.name));
        let created = existing_cluster(&self.cluster_state, cluster).and_then(|cluster| cluster.creation_timestamp());
        orphaned.into_iter().any(|pod| is_live(pod) && pod.creation_timestamp() >= created)
    }

    /// Returns the existing job that an orphaned Workload belongs to: its only member if that is a
    /// job itself, else the one that its label names.
    pub(super) fn adoptive_job(&self, workload: &Workload, record: &SliceRecord) -> Option<AdoptiveJob> {
        let namespace = workload.namespace().unwrap_or_default();
        if let [member] = record.members.as_slice()
            && let Some(job) = self.member_as_job(&namespace, member)
        {
            return Some(job);
        }
        let uid = workload.labels().get(names::JOB_UID_LABEL)?;
        let mut services = self.cluster_state.ray_services.iter().map(|(_, service)| service);
        let service = services.find(|service| service.metadata.uid.as_ref() == Some(uid))?;
        (service.namespace().unwrap_or_default() == namespace).then(|| AdoptiveJob::of(service.as_ref()))
    }

    fn member_as_job(&self, namespace: &str, member: &MemberShare) -> Option<AdoptiveJob> {
        let cluster = cluster_id(namespace, member);
        let has_uid = |uid: &Option<String>| uid.as_ref() == Some(&cluster.uid);
        if let Some(cluster) = existing_cluster(&self.cluster_state, &cluster) {
            return matches!(self.job_of_cluster(cluster), JobOfCluster::Itself)
                .then(|| AdoptiveJob::of(cluster.as_ref()));
        }
        let jobs = &self.cluster_state.batch_jobs;
        if let Some(job) = jobs.get(&cluster.key).filter(|job| has_uid(&job.metadata.uid)) {
            let is_own = matches!(self.job_of_batch_job(job), JobOfBatchJob::Itself | JobOfBatchJob::SubmitterFor(_));
            return is_own.then(|| AdoptiveJob::of(job.as_ref()));
        }
        let job = self.cluster_state.ray_jobs.get(&cluster.key).filter(|job| has_uid(&job.metadata.uid));
        job.map(|job| AdoptiveJob::of(job.as_ref()))
    }

    /// Reports whether a member without a job uses the quota of an orphaned Workload: its pods run,
    /// or it may still create some.
    fn uses_orphaned_quota(&self, namespace: &str, member: &MemberShare) -> bool {
        let id = cluster_id(namespace, member);
        let may_create = existing_cluster(&self.cluster_state, &id).is_some_and(|cluster| {
            let (job, managed) = self.covering_job(cluster);
            let of_job = slices::slices_of(self.workloads_of(&job.unwrap_or_default()));
            let is_open = cluster.spec.suspend != Some(true) && cluster.metadata.deletion_timestamp.is_none();
            is_open && managed.needs_quota() && slices::covering(&of_job).is_none()
        });
        may_create || self.may_run_pods(&id.uid) || self.has_orphaned_pods(&id)
    }
}

/// Returns the record of a slice without an owner that is neither finished nor terminating; `None`
/// for any other Workload. A Workload without a record was not created for a job.
fn orphaned_record(workload: &Workload) -> Option<SliceRecord> {
    let is_over =
        workload.metadata.deletion_timestamp.is_some() || condition::is_true(workload.conditions(), names::FINISHED);
    if is_over || has_controller(workload) {
        return None;
    }
    SliceRecord::from_workload(workload)
}

/// Makes a job the owner of a Workload, as controllers adopt orphans that they select.
fn adopt(workload: &Workload, job: AdoptiveJob) -> Plan {
    let mut adopted = workload.clone();
    adopted.labels_mut().insert(names::JOB_UID_LABEL.to_owned(), job.uid.clone());
    adopted.owner_references_mut().push(OwnerReference {
        api_version: job.reference.api_version,
        kind: job.reference.kind,
        name: job.reference.name,
        uid: job.uid,
        controller: Some(true),
        block_owner_deletion: Some(true),
    });
    Plan { writes: Vec::from_iter(Write::patch(workload, &adopted)), ..Plan::default() }
}
