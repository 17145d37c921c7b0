//! Multi-host replicas.

use kube_core::ResourceExt;

use super::super::Grant;
use super::super::fixtures::{TestCluster, cluster, worker};
use super::{created, deleted};
use sluice_api::ray::RayCluster;

fn wide(replicas: i32) -> RayCluster {
    let mut cluster = cluster();
    cluster.spec.worker_group_specs = vec![worker("wide", replicas)];
    cluster.spec.worker_group_specs[0].num_of_hosts = Some(2);
    cluster
}

#[test]
fn hosts_of_a_replica_are_created_and_deleted_together() {
    let mut stage = TestCluster::new(wide(2));
    stage.reconcile_until_stable();
    stage.make_all_ready();
    stage.reconcile_until_stable();
    assert_eq!(stage.pod_names("wide").len(), 4);
    assert!(stage.services.contains_key("demo-headless"));
    let name = stage.pod_names("wide")[0].clone();
    let replica =
        |stage: &TestCluster, name: &str| stage.pods[name].labels()["ray.io/worker-group-replica-name"].clone();
    let lost = replica(&stage, &name);

    stage.set_phase(&name, "Failed");
    let plan = stage.reconcile_once();

    assert_eq!(deleted(&plan).len(), 2);
    assert!(deleted(&plan).iter().all(|name| replica(&stage, name) == lost));
    stage.remove_terminating_pods();
    stage.reconcile_until_stable();
    assert_eq!(stage.pod_names("wide").len(), 4);
}

#[test]
fn b39_replica_that_lost_a_host_is_recreated_after_the_assembly_timeout() {
    let mut stage = TestCluster::new(wide(1));
    stage.reconcile_until_stable();
    let name = stage.pod_names("wide")[0].clone();
    stage.pods.remove(&name);
    assert_eq!(created(&stage.plan(), "Pod"), 1, "its creation may still be in flight");

    stage.now = stage.now.checked_add(jiff::SignedDuration::from_mins(1)).expect("in range");
    assert_eq!(deleted(&stage.reconcile_once()).len(), 1);
}

#[test]
fn quota_for_some_hosts_of_a_replica_ungates_none() {
    let mut stage = TestCluster::new(wide(2));
    stage.grant = Grant::UpTo([("headgroup".to_owned(), 1), ("wide".to_owned(), 3)].into());
    stage.reconcile_until_stable();
    assert_eq!((stage.pod_names("wide").len(), stage.gated_pods()), (4, 2));
}

#[test]
fn replica_that_had_more_hosts_counts_with_any_remaining_host() {
    let mut stage = TestCluster::new(wide(1));
    stage.reconcile_until_stable();
    stage.pods.retain(|_, pod| pod.labels().get("ray.io/replica-host-index").is_none_or(|host| host != "0"));
    stage.cluster.spec.worker_group_specs[0].num_of_hosts = Some(1);
    stage.cluster.spec.worker_group_specs[0].replicas = Some(2);
    assert_eq!(stage.pod_names("wide").len(), 1);

    stage.reconcile_until_stable();

    let replicas: Vec<_> = stage
        .pod_names("wide")
        .iter()
        .map(|name| stage.pods[name].labels()["ray.io/worker-group-replica-index"].clone())
        .collect();
    assert!(replicas.len() == 2 && replicas[0] != replicas[1], "{replicas:?}");
}

#[test]
fn requested_pod_counts_while_its_replica_is_terminating() {
    // Given two replicas with one terminating host each, and a requested other host of the second
    // replica,
    let mut stage = TestCluster::new(wide(2));
    stage.reconcile_until_stable();
    stage.make_all_ready();
    let host = |stage: &TestCluster, replica: &str, host: &str| {
        let has_index = |name: &String| {
            let labels = stage.pods[name].labels();
            labels["ray.io/worker-group-replica-index"] == replica && labels["ray.io/replica-host-index"] == host
        };
        stage.pod_names("wide").into_iter().find(has_index).expect("a host")
    };
    for (replica, terminating, lost) in [("0", "0", "1"), ("1", "1", "0")] {
        let (terminating, lost) = (host(&stage, replica, terminating), host(&stage, replica, lost));
        let terminating = stage.pods.get_mut(&terminating).expect("a pod");
        terminating.metadata.deletion_timestamp =
            Some(serde_json::from_value(serde_json::json!("2026-01-01T00:00:00Z")).expect("a time"));
        let mut lost = stage.pods.remove(&lost).expect("a pod");
        if replica == "1" {
            lost.status = None;
            stage.expected_pods.push(lost);
        }
    }

    // then there is room for one pod, which is less than a replica;
    assert_eq!(created(&stage.plan(), "Pod"), 0);

    // and once a terminating pod is gone, there is room for a replica.
    let gone = host(&stage, "0", "0");
    stage.pods.remove(&gone);
    assert_eq!(created(&stage.plan(), "Pod"), 2);
}
