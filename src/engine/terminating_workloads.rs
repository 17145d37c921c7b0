//! Workloads that are being deleted: they hold their quota as long as pods use it.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube_core::ResourceExt;

use super::Engine;
use super::cluster_state::PodOwnerId;
use super::job_context::cluster_id;
use super::owners::{existing_cluster, gated_objects};
use sluice_api::condition;
use sluice_api::kueue::{Workload, names};
use sluice_api::ray::names::CLUSTER_UID_LABEL;
use sluice_jobframework as jobframework;
use sluice_jobframework::members::is_live;
use sluice_jobframework::ray_cluster::awaits_redis_cleanup;
use sluice_jobframework::slice_record::SliceRecord;
use sluice_jobframework::slices::{self, SlicePhase};
use sluice_plan::{ObjectKey, Plan};

impl Engine {
    /// Plans the removal of the finalizer of a Workload that is being deleted.
    pub(super) fn plan_terminating_workload(&self, key: &ObjectKey, workload: &Workload) -> Plan {
        if self.links_slices(workload) {
            return Plan::default();
        }
        let record = SliceRecord::from_workload(workload).unwrap_or_default();
        let clusters: Vec<PodOwnerId> =
            record.members.iter().map(|member| cluster_id(&key.namespace, member)).collect();
        let is_used = clusters.iter().any(|cluster| {
            self.may_run_pods_on_quota(cluster)
                || self.has_orphaned_pods(cluster)
                || self.is_sole_cover_of(workload, cluster)
                || existing_cluster(&self.cluster_state, cluster).is_some_and(|cluster| awaits_redis_cleanup(cluster))
        });
        let is_used = is_used
            && !self.is_replaced(workload, &record)
            && !self.is_covered_by_another_job(workload, &record, &clusters);
        let mut plan = jobframework::release_finalizer(workload, is_used);
        // A write in flight may be unsuspending a job on this quota: the release waits for it.
        let gated = gated_objects(workload);
        plan.writes = plan.writes.into_iter().map(|write| write.blocked_while_in_flight(gated.clone())).collect();
        plan
    }

    /// Reports whether the clusters of a slice belong to another job, whose admitted slice covers all
    /// pods of this one: they use the quota of that one alone.
    fn is_covered_by_another_job(&self, slice: &Workload, record: &SliceRecord, clusters: &[PodOwnerId]) -> bool {
        let existing = clusters.iter().filter_map(|cluster| existing_cluster(&self.cluster_state, cluster));
        let jobs: BTreeSet<_> = existing.filter_map(|cluster| self.covering_job(cluster).0).collect();
        let is_other = |job: &&String| slice.owner_references().iter().all(|owner| owner.uid != **job);
        jobs.iter().filter(is_other).any(|job| {
            let slices = slices::slices_of(self.workloads_of(job));
            slices::covering(&slices)
                .is_some_and(|covering| covering.phase == SlicePhase::Admitted && covering.grants_all_of(record))
        })
    }

    /// Reports whether a slice replaces one that still holds quota: it links that one to its own successor,
    /// even if it is finished itself.
    fn links_slices(&self, slice: &Workload) -> bool {
        let is_true = |workload: &Workload, kind| condition::is_true(workload.conditions(), kind);
        let Some(predecessor) = slices::predecessor_name(slice) else { return false };
        let key = ObjectKey::new(slice.namespace().unwrap_or_default(), predecessor);
        let holds_quota = |predecessor: &Arc<Workload>| {
            is_true(predecessor, names::QUOTA_RESERVED) && !is_true(predecessor, names::FINISHED)
        };
        is_true(slice, names::QUOTA_RESERVED) && self.cluster_state.workloads.get(&key).is_some_and(holds_quota)
    }

    /// Reports whether a cluster may run pods that use quota: of one that has left its queue, those that
    /// were created before.
    fn may_run_pods_on_quota(&self, cluster: &PodOwnerId) -> bool {
        let existing = existing_cluster(&self.cluster_state, cluster);
        let has_left = existing.is_some_and(|cluster| !self.covering_job(cluster).1.needs_quota());
        if !has_left || !self.components.ray_operator {
            return self.may_run_pods(&cluster.uid);
        }
        let pods = self.observed_and_expected_pods(&cluster.uid);
        let was_queued = |pod: &&Pod| {
            let marks = [CLUSTER_UID_LABEL, names::POD_SET_LABEL];
            is_live(pod) && marks.iter().any(|mark| pod.labels().contains_key(*mark))
        };
        !pods.expected.is_empty() || pods.observed.iter().any(was_queued)
    }

    /// Reports whether a cluster may run pods that no slice other than `slice` covers. Such a
    /// cluster is suspended before its slice is released.
    fn is_sole_cover_of(&self, slice: &Workload, cluster: &PodOwnerId) -> bool {
        let Some(cluster) = existing_cluster(&self.cluster_state, cluster) else { return false };
        let (_, managed) = self.covering_job(cluster);
        let is_terminating = cluster.metadata.deletion_timestamp.is_some();
        let may_run = cluster.spec.suspend != Some(true) && !is_terminating && managed.needs_quota();
        let job = slice.owner_references().iter().find(|owner| owner.controller == Some(true));
        let mut of_job = self.workloads_of(job.map(|job| job.uid.as_str()).unwrap_or_default());
        of_job.retain(|other| other.metadata.uid != slice.metadata.uid);
        may_run && slices::covering(&slices::slices_of(of_job)).is_none()
    }
}
