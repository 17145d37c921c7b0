//! Plans for the states of a cluster, and the objects that they create.

mod autoscaler_rbac;
mod ingress;
mod multi_host;
mod plan;
mod pods;
mod scale;
mod services;
mod surplus_workers;

use k8s_openapi::api::core::v1::{Container, EnvVar, Pod};

use super::fixtures::{TestCluster, cluster_with_workers};
use sluice_api::ray::RayCluster;
use sluice_plan::{Plan, Write, WriteOp};

/// Returns a cluster with this many workers and all pods ready.
fn ready_cluster(workers: i32) -> TestCluster {
    let mut test_cluster = TestCluster::new(cluster_with_workers(workers));
    test_cluster.reconcile_until_stable();
    test_cluster.make_all_ready();
    test_cluster.reconcile_until_stable();
    test_cluster
}

/// Returns the number of objects of a kind that a plan creates.
fn created(plan: &Plan, kind: &str) -> usize {
    let creates = |write: &&Write| matches!(write.op, WriteOp::Create(_)) && write.target.kind == kind;
    plan.writes.iter().filter(creates).count()
}

/// Returns the names of the objects that a plan deletes.
fn deleted(plan: &Plan) -> Vec<&str> {
    let deletes = plan.writes.iter().filter(|write| matches!(write.op, WriteOp::Delete { .. }));
    deletes.map(|write| write.target.name.as_str()).collect()
}

/// Returns the first pod of a group, as created for this cluster.
fn pod_of(cluster: RayCluster, group: &str) -> Pod {
    let mut test_cluster = TestCluster::new(cluster);
    test_cluster.reconcile_until_stable();
    let name = test_cluster.pod_names(group).into_iter().next().expect("the group has a pod");
    test_cluster.pods.remove(&name).expect("the pod is there")
}

/// Returns the container that runs Ray.
fn ray_container(pod: &Pod) -> &Container {
    pod.spec.as_ref().and_then(|spec| spec.containers.first()).expect("the pod has a container")
}

/// Returns the last environment variable of this name.
fn variable<'a>(container: &'a Container, name: &str) -> Option<&'a EnvVar> {
    container.env.iter().flatten().rfind(|variable| variable.name == name)
}

/// Returns the value of the environment variable of this name.
fn value<'a>(container: &'a Container, name: &str) -> Option<&'a str> {
    variable(container, name)?.value.as_deref()
}
