//! Plans over the states that a cluster can be in, and the objects that come out.

mod access;
mod ingress;
mod multi_host;
mod plan;
mod pods;
mod scale;
mod services;
mod trimming;

use k8s_openapi::api::core::v1::{Container, EnvVar, Pod};

use super::fixtures::{Stage, cluster_with_workers};
use sluice_api::ray::RayCluster;
use sluice_plan::{Plan, Write, WriteOp};

/// A cluster with so many workers, all of whose pods are ready.
fn ready(workers: i32) -> Stage {
    let mut stage = Stage::new(cluster_with_workers(workers));
    stage.settle();
    stage.all_ready();
    stage.settle();
    stage
}

/// How many objects of a kind a plan creates.
fn created(plan: &Plan, kind: &str) -> usize {
    let is_it = |write: &&Write| matches!(write.op, WriteOp::Create(_)) && write.target.kind == kind;
    plan.writes.iter().filter(is_it).count()
}

/// The names of what a plan deletes.
fn deleted(plan: &Plan) -> Vec<&str> {
    let deletes = plan.writes.iter().filter(|write| matches!(write.op, WriteOp::Delete { .. }));
    deletes.map(|write| write.target.name.as_str()).collect()
}

/// The first pod of a group, as it is made for this cluster.
fn pod_of(cluster: RayCluster, group: &str) -> Pod {
    let mut stage = Stage::new(cluster);
    stage.settle();
    let name = stage.names(group).into_iter().next().expect("the group has a pod");
    stage.pods.remove(&name).expect("the pod is there")
}

/// The container that runs Ray.
fn ray(pod: &Pod) -> &Container {
    pod.spec.as_ref().and_then(|spec| spec.containers.first()).expect("the pod has a container")
}

/// The variable of this name, the last one of several.
fn variable<'a>(container: &'a Container, name: &str) -> Option<&'a EnvVar> {
    container.env.iter().flatten().rfind(|variable| variable.name == name)
}

/// The value of the variable of this name.
fn value<'a>(container: &'a Container, name: &str) -> Option<&'a str> {
    variable(container, name)?.value.as_deref()
}
