//! Execution of actions on RayClusters and RayServices that no orderly user takes.

use kube::ResourceExt;
use kube::api::{ListParams, PropagationPolicy};
use serde_json::{Value, json};
use sluice_testkit::invariants::OPENED_BY_HAND_ANNOTATION;

use super::cluster_step::RayAction;
use super::executor::Executor;

impl Executor<'_> {
    /// Executes an action.
    ///
    /// # Errors
    /// If the API server rejects a request, except if the object does not exist.
    pub(super) async fn execute_on_ray(&self, act: &RayAction) -> Result<(), kube::Error> {
        match act {
            RayAction::SetQueue { kind, name, queue, suspend } => {
                let labels = json!({"kueue.x-k8s.io/queue-name": queue});
                let mut change =
                    json!({"metadata": {"labels": labels, "annotations": {OPENED_BY_HAND_ANNOTATION: null}}});
                if *suspend {
                    change["spec"]["suspend"] = true.into();
                }
                self.merge(kind.as_str(), name, change).await
            }
            RayAction::Suspend { cluster, suspend } => {
                let mark = json!({OPENED_BY_HAND_ANNOTATION: (!suspend).then_some("true")});
                let change = json!({"metadata": {"annotations": mark}, "spec": {"suspend": suspend}});
                self.merge("RayCluster", cluster, change).await
            }
            RayAction::SetOwner { cluster, owned } => {
                let owners = if *owned { self.unrelated_owner().await? } else { Value::Null };
                self.merge("RayCluster", cluster, json!({"metadata": {"ownerReferences": owners}})).await
            }
            RayAction::DeletePods { cluster, count } => {
                let of_cluster = ListParams::default().labels(&format!("ray.io/cluster={cluster}"));
                let pods = self.api("Pod").list(&of_cluster).await?;
                for pod in pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).take(*count) {
                    self.delete("Pod", &pod.name_any(), PropagationPolicy::Background).await?;
                }
                Ok(())
            }
        }
    }

    /// Returns owner references to an object that has nothing to do with quota: the first LocalQueue.
    pub(super) async fn unrelated_owner(&self) -> Result<Value, kube::Error> {
        let queues = self.api("LocalQueue").list(&ListParams::default()).await?;
        let owners = queues.iter().take(1).map(|queue| {
            json!({
                "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue", "name": queue.name_any(),
                "uid": queue.uid(), "controller": true,
            })
        });
        Ok(owners.collect())
    }

    /// Deletes the Workloads of a job.
    pub(super) async fn delete_workloads(&self, job: &str) -> Result<(), kube::Error> {
        for workload in self.api("Workload").list(&ListParams::default()).await? {
            if workload.owner_references().iter().any(|owner| owner.name == job) {
                self.delete("Workload", &workload.name_any(), PropagationPolicy::Background).await?;
            }
        }
        Ok(())
    }
}
