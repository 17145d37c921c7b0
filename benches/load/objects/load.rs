//! Workloads, Jobs and RayClusters, and what a manager creates for them.

use serde_json::{Value, json};
use sluice_api::kueue::names;
use sluice_api::quantity::Amount;

use super::{CPU, JOBS, NewObject, PODS, RAY_CLUSTERS, RAY_SERVICES, SERVICES, WORKLOADS};
use crate::plan::{Item, LoadPlan};
use crate::scenario::Kind;

/// Image of all containers, without its tag. No container starts, because nodes are fake.
const IMAGE: &str = "rayproject/ray";
/// API version of the Ray kinds.
const RAY_API: &str = "ray.io/v1";
/// Applications of each RayService.
const SERVE_CONFIG: &str = "applications: [{name: app, import_path: 'app:app', route_prefix: /}]";
/// Version of Ray before an upgrade.
const RAY_VERSION: &str = "2.52.0";
/// Version of Ray that an upgrade introduces.
pub const UPGRADED_RAY_VERSION: &str = "2.53.0";

/// Request by which a user starts an item.
pub enum UserRequest {
    /// Creates an object.
    Create(NewObject),
    /// Upgrades a RayService with this merge patch.
    Upgrade(Value),
}

/// Returns the request by which the user starts an item.
pub fn user_request(plan: &LoadPlan, item: &Item) -> UserRequest {
    let class = plan.class_of(item);
    let (resource, body) = match class.kind {
        Kind::Workload => (WORKLOADS, workload(plan, item)),
        Kind::Job => (JOBS, job(plan, item)),
        Kind::RayCluster => (RAY_CLUSTERS, ray_cluster(plan, item)),
        Kind::RayService => (RAY_SERVICES, ray_service(plan, item)),
        Kind::Upgrade => {
            let cluster = cluster_spec(class.cpu, UPGRADED_RAY_VERSION);
            return UserRequest::Upgrade(json!({"spec": {"rayClusterConfig": cluster}}));
        }
    };
    UserRequest::Create(NewObject { resource, namespace: Some(plan.namespace_of(item).to_owned()), body })
}

/// Returns the name of the RayCluster of an object; a Job has the same name as its Workload.
pub fn cluster_name(plan: &LoadPlan, item: &Item) -> String {
    match plan.class_of(item).kind {
        Kind::Workload | Kind::Job | Kind::RayCluster => item.name.clone(),
        Kind::RayService => replaced_cluster_name(item),
        Kind::Upgrade => format!("{}-upgraded", item.name),
    }
}

/// Returns the name of the RayCluster that an upgrade replaces.
pub fn replaced_cluster_name(item: &Item) -> String {
    format!("{}-first", item.name)
}

/// Returns the suspended RayCluster that the operator creates for a RayService or its upgrade.
pub fn cluster_of_service(plan: &LoadPlan, item: &Item) -> NewObject {
    let class = plan.class_of(item);
    let version = if class.kind == Kind::Upgrade { UPGRADED_RAY_VERSION } else { RAY_VERSION };
    let mut spec = cluster_spec(class.cpu, version);
    spec["suspend"] = true.into();
    let metadata = json!({"name": cluster_name(plan, item), "labels": {"ray.io/originated-from-cr-name": item.name}});
    let body = json!({"apiVersion": RAY_API, "kind": "RayCluster", "metadata": metadata, "spec": spec});
    NewObject { resource: RAY_CLUSTERS, namespace: Some(plan.namespace_of(item).to_owned()), body }
}

/// Returns the Workload that a manager creates for a Job, a RayCluster, or that of a RayService.
pub fn workload_of(plan: &LoadPlan, item: &Item) -> NewObject {
    let namespace = Some(plan.namespace_of(item).to_owned());
    let mut body = workload(plan, item);
    body["metadata"]["name"] = cluster_name(plan, item).into();
    NewObject { resource: WORKLOADS, namespace, body }
}

/// Returns a pod that the operator creates for a RayCluster.
pub fn pod(plan: &LoadPlan, item: &Item, group: &str) -> NewObject {
    let cluster = cluster_name(plan, item);
    let mut body = template(group, RAY_VERSION, plan.class_of(item).cpu);
    body["apiVersion"] = "v1".into();
    body["kind"] = "Pod".into();
    body["metadata"] = json!({
        "name": format!("{cluster}-{group}"),
        "labels": {"ray.io/cluster": cluster, "ray.io/group": group},
    });
    NewObject { resource: PODS, namespace: Some(plan.namespace_of(item).to_owned()), body }
}

/// Returns the Service of the head that the operator creates for a RayCluster.
pub fn head_service(plan: &LoadPlan, item: &Item) -> NewObject {
    let mut service = service(plan, item, &format!("{}-head-svc", cluster_name(plan, item)));
    service.body["spec"]["clusterIP"] = "None".into();
    service
}

/// Returns the Services that the operator creates for a RayService: to its head, and to its replicas.
pub fn services_of_service(plan: &LoadPlan, item: &Item) -> Vec<NewObject> {
    service_names(item).iter().map(|name| service(plan, item, name)).collect()
}

/// Returns the names of the Services of a RayService.
pub fn service_names(item: &Item) -> [String; 2] {
    ["head", "serve"].map(|of| format!("{}-{of}-svc", item.name))
}

fn service(plan: &LoadPlan, item: &Item, name: &str) -> NewObject {
    let cluster = cluster_name(plan, item);
    let body = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": {"ray.io/cluster": cluster}},
        "spec": {
            "selector": {"ray.io/cluster": cluster, "ray.io/group": "head"},
            "ports": [{"name": "dashboard", "port": 8265}, {"name": "gcs-server", "port": 6379}],
        },
    });
    NewObject { resource: SERVICES, namespace: Some(plan.namespace_of(item).to_owned()), body }
}

fn workload(plan: &LoadPlan, item: &Item) -> Value {
    let class = plan.class_of(item);
    let pod_set = |name: &str| json!({"name": name, "count": 1, "template": template("work", RAY_VERSION, class.cpu)});
    let pod_sets: Vec<Value> = pod_set_names(class.kind).iter().map(|name| pod_set(name)).collect();
    json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"name": item.name, "namespace": plan.namespace_of(item)},
        "spec": {"queueName": plan.namespace_of(item), "priority": class.priority, "podSets": pod_sets},
    })
}

/// Returns the names of the PodSets, each of one pod.
pub(super) fn pod_set_names(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Workload | Kind::Job => &[names::DEFAULT_POD_SET],
        Kind::RayCluster | Kind::RayService | Kind::Upgrade => &["head", "workers"],
    }
}

/// Returns a suspended Job.
fn job(plan: &LoadPlan, item: &Item) -> Value {
    let mut template = template("work", RAY_VERSION, plan.class_of(item).cpu);
    template["spec"]["restartPolicy"] = "Never".into();
    json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": queued(plan, item),
        "spec": {"suspend": true, "template": template},
    })
}

/// Returns a suspended RayCluster of a head and one worker.
fn ray_cluster(plan: &LoadPlan, item: &Item) -> Value {
    let mut spec = cluster_spec(plan.class_of(item).cpu, RAY_VERSION);
    spec["suspend"] = true.into();
    json!({"apiVersion": RAY_API, "kind": "RayCluster", "metadata": queued(plan, item), "spec": spec})
}

/// Returns a RayService of a head and one worker, which serves what the fake dashboards report. An
/// old RayCluster is deleted soon, because other upgrades wait for its quota.
fn ray_service(plan: &LoadPlan, item: &Item) -> Value {
    json!({
        "apiVersion": RAY_API,
        "kind": "RayService",
        "metadata": queued(plan, item),
        "spec": {
            "rayClusterDeletionDelaySeconds": 1,
            "serveConfigV2": SERVE_CONFIG,
            "rayClusterConfig": cluster_spec(plan.class_of(item).cpu, RAY_VERSION),
        },
    })
}

/// Returns the spec of a RayCluster of a head and one worker.
fn cluster_spec(cpu: Amount, version: &str) -> Value {
    let workers = json!({
        "groupName": "workers",
        "replicas": 1,
        "minReplicas": 1,
        "maxReplicas": 1,
        "rayStartParams": {},
        "template": template("ray-worker", version, cpu),
    });
    json!({
        "rayVersion": version,
        "headGroupSpec": {"rayStartParams": {}, "template": template("ray-head", version, cpu)},
        "workerGroupSpecs": [workers],
    })
}

fn queued(plan: &LoadPlan, item: &Item) -> Value {
    let queue = plan.namespace_of(item);
    json!({"name": item.name, "namespace": queue, "labels": {names::QUEUE_NAME_LABEL: queue}})
}

fn template(container: &str, version: &str, cpu: Amount) -> Value {
    let (image, resources) = (format!("{IMAGE}:{version}"), json!({"requests": {CPU: cpu.to_quantity(CPU)}}));
    json!({"spec": {"containers": [{"name": container, "image": image, "resources": resources}]}})
}
