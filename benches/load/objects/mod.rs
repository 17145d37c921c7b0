//! The objects and status writes that are sent, as JSON.

mod load;
mod queues;
mod status;

use serde_json::Value;

pub use load::{
    UPGRADED_RAY_VERSION, UserRequest, cluster_name, cluster_of_service, head_service, pod, replaced_cluster_name,
    service_names, services_of_service, user_request, workload_of,
};
pub use queues::queues;
pub use status::{admission, finished, open_gate, ray_cluster_ready, ray_service_ready, released, select_cluster};

/// The only ResourceFlavor.
pub const FLAVOR: &str = "load";
/// The only resource that has quota.
pub const CPU: &str = "cpu";

/// Condition of a RayService that serves.
pub const READY: &str = "Ready";

/// Path of the objects of a kind in the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resource {
    /// Path of the group and version.
    pub group: &'static str,
    /// Plural name.
    pub plural: &'static str,
}

/// ResourceFlavors.
pub const RESOURCE_FLAVORS: Resource = Resource { group: KUEUE, plural: "resourceflavors" };
/// ClusterQueues.
pub const CLUSTER_QUEUES: Resource = Resource { group: KUEUE, plural: "clusterqueues" };
/// LocalQueues.
pub const LOCAL_QUEUES: Resource = Resource { group: KUEUE, plural: "localqueues" };
/// Workloads.
pub const WORKLOADS: Resource = Resource { group: KUEUE, plural: "workloads" };
/// Namespaces.
pub const NAMESPACES: Resource = Resource { group: "/api/v1", plural: "namespaces" };
/// Pods.
pub const PODS: Resource = Resource { group: "/api/v1", plural: "pods" };
/// Services.
pub const SERVICES: Resource = Resource { group: "/api/v1", plural: "services" };
/// Jobs.
pub const JOBS: Resource = Resource { group: "/apis/batch/v1", plural: "jobs" };
/// RayServices.
pub const RAY_SERVICES: Resource = Resource { group: RAY, plural: "rayservices" };
/// RayClusters.
pub const RAY_CLUSTERS: Resource = Resource { group: RAY, plural: "rayclusters" };

const RAY: &str = "/apis/ray.io/v1";
const KUEUE: &str = "/apis/kueue.x-k8s.io/v1beta2";

/// An object to create.
#[derive(Debug, Clone, PartialEq)]
pub struct NewObject {
    /// Its kind.
    pub resource: Resource,
    /// Its namespace. `None` if it has none.
    pub namespace: Option<String>,
    /// The object.
    pub body: Value,
}
