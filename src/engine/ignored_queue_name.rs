//! Queue names that have no effect, because the owner of the object is queued.

use jiff::Timestamp;
use kube_core::ResourceExt;

use super::Engine;
use super::ancestors::JobOfCluster;
use sluice_api::condition::{self, ConditionUpdate};
use sluice_api::job_conditions::{OWNER_IS_QUEUED, QUEUE_NAME_IGNORED};
use sluice_api::ray::RayCluster;
use sluice_jobframework::queue_name;
use sluice_plan::{ObjectKey, ObjectRef, Plan, Write};

impl Engine {
    /// Reports on a RayCluster that its queue name is ignored, as long as it is.
    pub(super) fn plan_ignored_queue_name(&self, key: &ObjectKey, now: Timestamp) -> Plan {
        let Some(cluster) = self.cluster_state.ray_clusters.get(key) else { return Plan::default() };
        let message = self.ignored_queue_message(cluster);
        let mut status = cluster.status.clone().unwrap_or_default();
        match message {
            None if condition::get(&status.conditions, QUEUE_NAME_IGNORED).is_none() => return Plan::default(),
            None => status.conditions.retain(|shown| shown.type_ != QUEUE_NAME_IGNORED),
            Some(message) => {
                let verdict = ConditionUpdate {
                    type_: QUEUE_NAME_IGNORED,
                    status: true,
                    reason: OWNER_IS_QUEUED.to_owned(),
                    message,
                    observed_generation: None,
                };
                condition::set(&mut status.conditions, now, verdict);
            }
        }
        Plan { writes: Vec::from_iter(Write::patch_status(cluster.as_ref(), &status)), ..Plan::default() }
    }

    /// Returns why the queue name of a cluster is ignored; `None` if it is not.
    fn ignored_queue_message(&self, cluster: &RayCluster) -> Option<String> {
        let named = queue_name(&cluster.metadata)?;
        let (owner, queue) = match self.job_of_cluster(cluster) {
            JobOfCluster::RayService(service) => (ObjectRef::of(service), queue_name(&service.metadata)),
            JobOfCluster::RayJob(job) => (ObjectRef::of(job), queue_name(&job.metadata)),
            JobOfCluster::Itself | JobOfCluster::Former(_) => return None,
        };
        let queue = queue.filter(|queue| *queue != named)?;
        Some(format!(
            "The label kueue.x-k8s.io/queue-name names LocalQueue {named}, and has no effect: {} {} covers {}, in LocalQueue \
             {queue}",
            owner.kind,
            owner.name,
            cluster.name_any()
        ))
    }
}
