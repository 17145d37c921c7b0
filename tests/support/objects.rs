//! Fixtures of the samples, and helpers that read, change and wait for their objects.

use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicyBinding;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use sluice_api::condition;
use sluice_api::kueue::{ClusterQueue, Workload};
use sluice_api::ray::{RayCluster, RayService, RayServiceStatus};

use super::{TestEnv, eventually, eventually_or_err};

/// Namespace of the test objects.
pub const NAMESPACE: &str = "default";
/// ClusterQueue of `config/samples/queue.yaml`, with a quota of 1 CPU and 2 GiB.
pub const QUEUE: &str = "team-a";
/// RayService of `config/samples/rayservice.yaml`, which requests 1 CPU and 2 GiB.
pub const SERVICE: &str = "fruit";

/// Manifest of the ResourceFlavor, ClusterQueue and LocalQueue.
pub const QUEUE_SAMPLE: &str = include_str!("../../config/samples/queue.yaml");
/// Manifest of a RayService with one worker. The head and the worker request 500m CPU and 1 GiB
/// each.
pub const SERVICE_SAMPLE: &str = include_str!("../../config/samples/rayservice.yaml");

impl TestEnv {
    /// Returns the API of RayServices in the test namespace.
    pub fn ray_services(&self) -> Api<RayService> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Returns the API of RayClusters in the test namespace.
    pub fn ray_clusters(&self) -> Api<RayCluster> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Returns the API of Workloads in the test namespace.
    pub fn workloads(&self) -> Api<Workload> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Returns the API of Pods in the test namespace.
    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Returns the API of batch/v1 Jobs in the test namespace.
    pub fn jobs(&self) -> Api<Job> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Returns the API of Services in the test namespace.
    pub fn services(&self) -> Api<Service> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Returns the API of ClusterQueues.
    pub fn cluster_queues(&self) -> Api<ClusterQueue> {
        Api::all(self.client.clone())
    }

    /// Applies the samples: the queue, and the RayService that uses all of its quota.
    pub async fn apply_samples(&self) {
        self.apply(QUEUE_SAMPLE).await.expect("the queue");
        self.apply(SERVICE_SAMPLE).await.expect("the service");
    }

    /// Deletes the binding of the policy that protects the gate, as if it was never installed.
    pub async fn delete_gate_policy(&self) {
        self.delete_policy("sluice-gate").await;
    }

    /// Deletes the binding of an admission policy, as if it was never installed.
    pub async fn delete_policy(&self, name: &str) {
        let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(self.client.clone());
        bindings.delete(name, &DeleteParams::default()).await.expect("the binding is deleted");
    }

    /// Sets the nominal quota of the ClusterQueue.
    pub async fn set_quota(&self, cpu: &str, memory: &str) {
        let resources = json!([{"name": "cpu", "nominalQuota": cpu}, {"name": "memory", "nominalQuota": memory}]);
        let groups = json!([{
            "coveredResources": ["cpu", "memory"],
            "flavors": [{"name": "default-flavor", "resources": resources}],
        }]);
        let patch = json!({"spec": {"resourceGroups": groups}});
        self.cluster_queues()
            .patch(QUEUE, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .expect("the quota is set");
    }

    /// Changes the Ray version of the RayService, which starts an upgrade.
    pub async fn set_ray_version(&self, version: &str) {
        let patch = json!({"spec": {"rayClusterConfig": {"rayVersion": version}}});
        self.ray_services()
            .patch(SERVICE, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .expect("the version is set");
    }

    /// Returns the current RayService.
    pub async fn get_service(&self) -> RayService {
        self.ray_services().get(SERVICE).await.expect("the service")
    }

    /// Waits until the RayService is ready with an active cluster of this Ray version. Returns the
    /// cluster's name.
    pub async fn wait_until_serving(&self, version: &str) -> String {
        eventually(&format!("the service serves from {version}"), async || {
            let service = self.get_service().await;
            let status = service.status.unwrap_or_default();
            let name = cluster_name(status.active_service_status.as_ref())?;
            let cluster = self.ray_clusters().get_opt(&name).await.expect("the cluster")?;
            let ready = condition::is_true(&status.conditions, "Ready");
            (ready && cluster.spec.ray_version.as_deref() == Some(version)).then_some(name)
        })
        .await
    }

    /// Waits until the RayService has a pending cluster. Returns its name.
    pub async fn wait_for_pending_cluster(&self) -> String {
        eventually("there is a pending cluster", async || {
            cluster_name(self.get_service().await.status.unwrap_or_default().pending_service_status.as_ref())
        })
        .await
    }

    /// Waits until an upgrade is pending for lack of quota. Returns the name of the pending cluster
    /// and the message of the condition `sluice.dev/Admitted`.
    pub async fn wait_for_pending_upgrade(&self) -> (String, String) {
        eventually("the upgrade is pending for lack of quota", async || {
            let status = self.get_service().await.status.unwrap_or_default();
            let pending = cluster_name(status.pending_service_status.as_ref())?;
            let admitted = condition::get(&status.conditions, "sluice.dev/Admitted")?;
            let reported = admitted.status == "False" && admitted.message.contains(&pending);
            (reported && is_quota_reason(&admitted.reason)).then(|| (pending, admitted.message.clone()))
        })
        .await
    }

    /// Waits for an Event with this reason about an object of this kind. Returns its note.
    pub async fn wait_for_event(&self, kind: &str, reason: &str) -> String {
        let events: Api<Event> = Api::namespaced(self.client.clone(), NAMESPACE);
        eventually(&format!("there is a {reason} Event about a {kind}"), async || {
            let event =
                events.list(&ListParams::default()).await.expect("the Events").items.into_iter().find(|event| {
                    let about = event.regarding.as_ref().and_then(|regarding| regarding.kind.as_deref());
                    about == Some(kind) && event.reason.as_deref() == Some(reason)
                })?;
            Some(event.note.unwrap_or_default())
        })
        .await
    }

    /// Waits until `only` is the only RayCluster.
    pub async fn wait_for_only_cluster(&self, only: &str) {
        eventually(&format!("{only} is the only cluster"), async || {
            let clusters = self.ray_clusters().list(&ListParams::default()).await.expect("the clusters");
            let names: Vec<String> = clusters.iter().map(ResourceExt::name_any).collect();
            (names == [only]).then_some(())
        })
        .await;
    }

    /// Waits until exactly this much CPU is reserved in the ClusterQueue of the samples.
    pub async fn wait_for_reserved_cpu(&self, cpu: &str) {
        self.wait_for_reserved_cpu_in(QUEUE, cpu).await;
    }

    /// Waits until exactly this much CPU is reserved in a ClusterQueue.
    pub async fn wait_for_reserved_cpu_in(&self, queue: &str, cpu: &str) {
        eventually_or_err(&format!("{queue} reserves {cpu} CPU"), async || {
            let queue = self.cluster_queues().get(queue).await.expect("the queue");
            let reserved = reserved_amount(&queue, "cpu");
            if reserved == cpu { Ok(()) } else { Err(reserved) }
        })
        .await;
    }

    /// Waits until the manager has observed the current generation of the ClusterQueue.
    pub async fn wait_for_queue_observed(&self) {
        eventually("the spec of the queue is observed", async || {
            let queue = self.cluster_queues().get(QUEUE).await.expect("the queue");
            let conditions = queue.status.clone().unwrap_or_default().conditions;
            let active = condition::get(&conditions, "Active")?;
            (active.observed_generation == queue.metadata.generation).then_some(())
        })
        .await;
    }

    /// Waits until exactly one Workload is left.
    pub async fn wait_for_single_slice(&self) {
        eventually("one slice is left", async || {
            let slices = self.workloads().list(&ListParams::default()).await.expect("the slices").items;
            (slices.len() == 1).then_some(())
        })
        .await;
    }

    /// Returns the pods of a RayCluster.
    pub async fn pods_of(&self, cluster: &str) -> Vec<Pod> {
        let of_cluster = ListParams::default().labels(&format!("ray.io/cluster={cluster}"));
        self.pods().list(&of_cluster).await.expect("the pods").items
    }

    /// Deletes the RayService, like `kubectl delete`.
    pub async fn delete_service(&self) {
        self.ray_services().delete(SERVICE, &DeleteParams::default()).await.expect("the service is deleted");
    }

    /// Waits until no RayService, RayCluster, Workload, Pod or Service is left and no quota is
    /// reserved.
    pub async fn wait_until_empty(&self) {
        let all = ListParams::default();
        eventually("nothing is left", async || {
            let left = self.ray_services().list(&all).await.expect("the services").items.len()
                + self.ray_clusters().list(&all).await.expect("the clusters").items.len()
                + self.workloads().list(&all).await.expect("the workloads").items.len()
                + self.pods().list(&all).await.expect("the pods").items.len();
            let services = self.services().list(&all).await.expect("the Services").items;
            let services = services.iter().filter(|service| service.name_any() != "kubernetes").count();
            (left + services == 0).then_some(())
        })
        .await;
        self.wait_for_reserved_cpu("0").await;
    }
}

/// Reports whether a condition reason stands for a lack of quota: temporary, or because the request
/// exceeds the maximum capacity.
pub fn is_quota_reason(reason: &str) -> bool {
    matches!(reason, "WaitingForQuota" | "ExceedsMaxQuota")
}

/// Returns the name of the cluster in an active or pending service status.
pub fn cluster_name(status: Option<&RayServiceStatus>) -> Option<String> {
    status?.ray_cluster_name.clone().filter(|name| !name.is_empty())
}

/// Returns the reserved amount of a resource in a ClusterQueue's status. If several flavors have
/// the resource, it is that of the last one.
pub fn reserved_amount(queue: &ClusterQueue, resource: &str) -> String {
    let status = queue.status.clone().unwrap_or_default();
    let flavors = status.flavors_reservation.iter().flat_map(|flavor| &flavor.resources);
    let mut amounts =
        flavors.filter(|usage| usage.name == resource).filter_map(|usage| Some(usage.total.as_ref()?.0.clone()));
    amounts.next_back().unwrap_or_else(|| "0".into())
}
