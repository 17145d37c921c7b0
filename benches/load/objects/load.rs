//! Workloads, Jobs and RayClusters, and what a manager creates for them.

use serde_json::{Value, json};
use sluice_api::kueue::names;
use sluice_api::quantity::Amount;

use super::{CPU, JOBS, NewObject, PODS, RAY_CLUSTERS, SERVICES, WORKLOADS};
use crate::plan::{Item, LoadPlan};
use crate::scenario::Kind;

/// Image of all containers. No container starts, because nodes are fake.
const IMAGE: &str = "rayproject/ray:2.52.0";
const RAY_VERSION: &str = "2.52.0";

/// Returns the object that the user creates.
pub fn item(plan: &LoadPlan, item: &Item) -> NewObject {
    let class = plan.class_of(item);
    let (resource, body) = match class.kind {
        Kind::Workload => (WORKLOADS, workload(plan, item)),
        Kind::Job => (JOBS, job(plan, item)),
        Kind::RayCluster => (RAY_CLUSTERS, ray_cluster(plan, item)),
    };
    NewObject { resource, namespace: Some(plan.namespace_of(item).to_owned()), body }
}

/// Returns the Workload that a manager creates for a Job or RayCluster of the same name.
pub fn workload_of(plan: &LoadPlan, item: &Item) -> NewObject {
    let namespace = Some(plan.namespace_of(item).to_owned());
    NewObject { resource: WORKLOADS, namespace, body: workload(plan, item) }
}

/// Returns a pod that the operator creates for a RayCluster.
pub fn pod(plan: &LoadPlan, item: &Item, group: &str) -> NewObject {
    let mut body = template(group, plan.class_of(item).cpu);
    body["apiVersion"] = "v1".into();
    body["kind"] = "Pod".into();
    body["metadata"] = json!({
        "name": format!("{}-{group}", item.name),
        "labels": {"ray.io/cluster": item.name, "ray.io/group": group},
    });
    NewObject { resource: PODS, namespace: Some(plan.namespace_of(item).to_owned()), body }
}

/// Returns the Service of the head that the operator creates for a RayCluster.
pub fn head_service(plan: &LoadPlan, item: &Item) -> NewObject {
    let body = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": format!("{}-head-svc", item.name), "labels": {"ray.io/cluster": item.name}},
        "spec": {
            "clusterIP": "None",
            "selector": {"ray.io/cluster": item.name, "ray.io/group": "head"},
            "ports": [{"name": "dashboard", "port": 8265}, {"name": "gcs-server", "port": 6379}],
        },
    });
    NewObject { resource: SERVICES, namespace: Some(plan.namespace_of(item).to_owned()), body }
}

fn workload(plan: &LoadPlan, item: &Item) -> Value {
    let class = plan.class_of(item);
    let pod_set = |name: &str| json!({"name": name, "count": 1, "template": template("work", class.cpu)});
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
        Kind::RayCluster => &["head", "workers"],
    }
}

/// Returns a suspended Job.
fn job(plan: &LoadPlan, item: &Item) -> Value {
    let mut template = template("work", plan.class_of(item).cpu);
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
    let cpu = plan.class_of(item).cpu;
    let workers = json!({
        "groupName": "workers",
        "replicas": 1,
        "minReplicas": 1,
        "maxReplicas": 1,
        "rayStartParams": {},
        "template": template("ray-worker", cpu),
    });
    json!({
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": queued(plan, item),
        "spec": {
            "suspend": true,
            "rayVersion": RAY_VERSION,
            "headGroupSpec": {"rayStartParams": {}, "template": template("ray-head", cpu)},
            "workerGroupSpecs": [workers],
        },
    })
}

fn queued(plan: &LoadPlan, item: &Item) -> Value {
    let queue = plan.namespace_of(item);
    json!({"name": item.name, "namespace": queue, "labels": {names::QUEUE_NAME_LABEL: queue}})
}

fn template(container: &str, cpu: Amount) -> Value {
    let resources = json!({"requests": {CPU: cpu.to_quantity(CPU)}});
    json!({"spec": {"containers": [{"name": container, "image": IMAGE, "resources": resources}]}})
}
