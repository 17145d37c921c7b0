//! The objects that scenarios apply, read and change.

use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicyBinding;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use sluice_api::condition;
use sluice_api::kueue::{ClusterQueue, Workload};
use sluice_api::ray::{RayCluster, RayService, RayServiceStatus};

use super::{TestEnv, eventually};

/// The namespace of the scenarios.
pub const NAMESPACE: &str = "default";
/// The ClusterQueue of `config/samples/queue.yaml`: 1 CPU and 2 GiB.
pub const QUEUE: &str = "team-a";
/// The RayService of `config/samples/rayservice.yaml`: it takes 1 CPU and 2 GiB.
pub const SERVICE: &str = "fruit";

/// The head needs 500m CPU and 1 GiB, and so does each worker.
pub const QUEUE_SAMPLE: &str = include_str!("../../config/samples/queue.yaml");
/// A service with one worker.
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

    /// Returns the API of Services in the test namespace.
    pub fn services(&self) -> Api<Service> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Returns the API of ClusterQueues.
    pub fn cluster_queues(&self) -> Api<ClusterQueue> {
        Api::all(self.client.clone())
    }

    /// Applies the samples: the queue, and the service that fills it.
    pub async fn apply_samples(&self) {
        self.apply(QUEUE_SAMPLE).await.expect("the queue");
        self.apply(SERVICE_SAMPLE).await.expect("the service");
    }

    /// Takes the guard of the gate away, as in a cluster where it was never installed.
    pub async fn delete_gate_policy(&self) {
        self.delete_policy("sluice-gate").await;
    }

    /// Takes a policy away, as in a cluster where it was never installed.
    pub async fn delete_policy(&self, name: &str) {
        let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(self.client.clone());
        bindings.delete(name, &DeleteParams::default()).await.expect("the policy is off");
    }

    /// Sets the quota of the queue.
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

    /// Changes the Ray version of the service: an upgrade.
    pub async fn set_ray_version(&self, version: &str) {
        let patch = json!({"spec": {"rayClusterConfig": {"rayVersion": version}}});
        self.ray_services()
            .patch(SERVICE, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .expect("the version is set");
    }

    /// The service, as it is now.
    pub async fn service(&self) -> RayService {
        self.ray_services().get(SERVICE).await.expect("the service")
    }

    /// Waits until the service serves from a cluster of this Ray version, alone; returns the cluster's name.
    pub async fn serves_from(&self, version: &str) -> String {
        eventually(&format!("the service serves from {version}"), async || {
            let service = self.service().await;
            let status = service.status.unwrap_or_default();
            let name = cluster_name(status.active_service_status.as_ref())?;
            let cluster = self.ray_clusters().get_opt(&name).await.expect("the cluster")?;
            let ready = condition::is_true(&status.conditions, "Ready");
            (ready && cluster.spec.ray_version.as_deref() == Some(version)).then_some(name)
        })
        .await
    }

    /// Waits until there is a cluster that is to serve next; returns its name.
    pub async fn pending_cluster(&self) -> String {
        eventually("a cluster is to serve next", async || {
            cluster_name(self.service().await.status.unwrap_or_default().pending_service_status.as_ref())
        })
        .await
    }

    /// Waits until an upgrade waits for quota; returns the name of the pending cluster and what the service says.
    pub async fn waits_for_quota(&self) -> (String, String) {
        eventually("the upgrade waits for quota", async || {
            let status = self.service().await.status.unwrap_or_default();
            let pending = cluster_name(status.pending_service_status.as_ref())?;
            let admitted = condition::get(&status.conditions, "sluice.dev/Admitted")?;
            let says_so = admitted.status == "False" && admitted.message.contains(&pending);
            (says_so && waits_for_quota(&admitted.reason)).then(|| (pending, admitted.message.clone()))
        })
        .await
    }

    /// Waits until an Event about an object of this kind gives this reason; returns what it says.
    pub async fn event_about(&self, kind: &str, reason: &str) -> String {
        let events: Api<Event> = Api::namespaced(self.client.clone(), NAMESPACE);
        eventually(&format!("{reason} is told about a {kind}"), async || {
            let told =
                events.list(&ListParams::default()).await.expect("the Events").items.into_iter().find(|event| {
                    let about = event.regarding.as_ref().and_then(|regarding| regarding.kind.as_deref());
                    about == Some(kind) && event.reason.as_deref() == Some(reason)
                })?;
            Some(told.note.unwrap_or_default())
        })
        .await
    }

    /// Waits until the one cluster named `only` is left, and its service's pods with it.
    pub async fn only_cluster(&self, only: &str) {
        eventually(&format!("{only} is the only cluster"), async || {
            let clusters = self.ray_clusters().list(&ListParams::default()).await.expect("the clusters");
            let names: Vec<String> = clusters.iter().map(ResourceExt::name_any).collect();
            (names == [only]).then_some(())
        })
        .await;
    }

    /// Waits until the queue holds exactly this much CPU.
    pub async fn reserves_cpu(&self, cpu: &str) {
        eventually(&format!("the queue reserves {cpu} CPU"), async || {
            let queue = self.cluster_queues().get(QUEUE).await.expect("the queue");
            (reserved(&queue, "cpu") == cpu).then_some(())
        })
        .await;
    }

    /// Waits until the manager has taken in the spec of the queue as it is now.
    pub async fn queue_is_seen(&self) {
        eventually("the spec of the queue is seen", async || {
            let queue = self.cluster_queues().get(QUEUE).await.expect("the queue");
            let conditions = queue.status.clone().unwrap_or_default().conditions;
            let active = condition::get(&conditions, "Active")?;
            (active.observed_generation == queue.metadata.generation).then_some(())
        })
        .await;
    }

    /// Waits until one slice is left.
    pub async fn one_slice_is_left(&self) {
        eventually("one slice is left", async || {
            let slices = self.workloads().list(&ListParams::default()).await.expect("the slices").items;
            (slices.len() == 1).then_some(())
        })
        .await;
    }

    /// The pods of a cluster.
    pub async fn pods_of(&self, cluster: &str) -> Vec<Pod> {
        let of_cluster = ListParams::default().labels(&format!("ray.io/cluster={cluster}"));
        self.pods().list(&of_cluster).await.expect("the pods").items
    }

    /// Deletes the service, as `kubectl delete` does.
    pub async fn delete_service(&self) {
        self.ray_services().delete(SERVICE, &DeleteParams::default()).await.expect("the service is deleted");
    }

    /// Waits until nothing is left of any service, and the queue holds nothing.
    pub async fn nothing_is_left(&self) {
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
        self.reserves_cpu("0").await;
    }
}

/// Whether this is the reason of what waits for quota: for some to be released, or for more than there is in all.
pub fn waits_for_quota(reason: &str) -> bool {
    matches!(reason, "WaitingForQuota" | "ExceedsMaxQuota")
}

/// The name of the cluster that a part of a service's status is about.
pub fn cluster_name(status: Option<&RayServiceStatus>) -> Option<String> {
    status?.ray_cluster_name.clone().filter(|name| !name.is_empty())
}

/// How much of a resource a queue's status says is reserved, over all flavors.
pub fn reserved(queue: &ClusterQueue, resource: &str) -> String {
    let status = queue.status.clone().unwrap_or_default();
    let flavors = status.flavors_reservation.iter().flat_map(|flavor| &flavor.resources);
    let mut amounts =
        flavors.filter(|usage| usage.name == resource).filter_map(|usage| Some(usage.total.as_ref()?.0.clone()));
    amounts.next_back().unwrap_or_else(|| "0".into())
}
