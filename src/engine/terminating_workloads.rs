//! Workloads that are being deleted: they hold their quota as long as pods use it.

use kube_core::ResourceExt;

use super::Engine;
use super::cluster_state::PodOwnerId;
use super::job_context::cluster_id;
use super::owners::existing_cluster;
use sluice_api::kueue::Workload;
use sluice_jobframework as jobframework;
use sluice_jobframework::ray_cluster::awaits_redis_cleanup;
use sluice_jobframework::slice_record::SliceRecord;
use sluice_jobframework::slices;
use sluice_plan::{ObjectKey, ObjectRef, Plan};

impl Engine {
    /// Plans the removal of the finalizer of a Workload that is being deleted.
    pub(super) fn plan_terminating_workload(&self, key: &ObjectKey, workload: &Workload) -> Plan {
        let record = SliceRecord::from_workload(workload).unwrap_or_default();
        let clusters: Vec<PodOwnerId> =
            record.members.iter().map(|member| cluster_id(&key.namespace, member)).collect();
        let is_used = clusters.iter().any(|cluster| {
            self.may_run_pods(&cluster.uid) || self.has_orphaned_pods(&key.namespace, &cluster.key.name)
        }) || clusters.iter().any(|cluster| {
            self.is_sole_cover_of(workload, cluster)
                || existing_cluster(&self.cluster_state, cluster).is_some_and(|cluster| awaits_redis_cleanup(cluster))
        });
        let is_used = is_used && !self.is_replaced(workload, &record);
        let mut plan = jobframework::release_finalizer(workload, is_used);
        // A write in flight may be unsuspending a cluster on this quota: the release waits for it.
        let clusters = clusters.iter().filter_map(|cluster| existing_cluster(&self.cluster_state, cluster));
        let clusters: Vec<ObjectRef> = clusters.map(|cluster| ObjectRef::of(cluster.as_ref())).collect();
        plan.writes = plan.writes.into_iter().map(|write| write.blocked_while_in_flight(clusters.clone())).collect();
        plan
    }

    /// Reports whether a cluster may run pods that no slice other than `slice` covers. Such a
    /// cluster is suspended before its slice is released.
    fn is_sole_cover_of(&self, slice: &Workload, cluster: &PodOwnerId) -> bool {
        let Some(cluster) = existing_cluster(&self.cluster_state, cluster) else { return false };
        let (_, managed) = self.covering_job(cluster);
        let is_terminating = cluster.metadata.deletion_timestamp.is_some();
        let may_run = cluster.spec.suspend != Some(true) && !is_terminating && managed.needs_quota();
        let job = slice.owner_references().iter().find(|owner| owner.controller == Some(true));
        let of_job = self.workloads_of(job.map(|job| job.uid.as_str()).unwrap_or_default());
        may_run && slices::covering(&slices::slices_of(of_job)).is_none()
    }
}
