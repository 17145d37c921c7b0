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
    let mut test_cluster = TestCluster::new(wide(2));
    test_cluster.reconcile_until_stable();
    test_cluster.make_all_ready();
    test_cluster.reconcile_until_stable();
    assert_eq!(test_cluster.pod_names("wide").len(), 4);
    assert!(test_cluster.services.contains_key("demo-headless"));
    let name = test_cluster.pod_names("wide")[0].clone();
    let replica = |test_cluster: &TestCluster, name: &str| {
        test_cluster.pods[name].labels()["ray.io/worker-group-replica-name"].clone()
    };
    let lost = replica(&test_cluster, &name);

    test_cluster.set_phase(&name, "Failed");
    let plan = test_cluster.reconcile_once();

    assert_eq!(deleted(&plan).len(), 2);
    assert!(deleted(&plan).iter().all(|name| replica(&test_cluster, name) == lost));
    test_cluster.remove_terminating_pods();
    test_cluster.reconcile_until_stable();
    assert_eq!(test_cluster.pod_names("wide").len(), 4);
}

#[test]
fn b39_replica_that_lost_a_host_is_recreated_after_the_assembly_timeout() {
    let mut test_cluster = TestCluster::new(wide(1));
    test_cluster.reconcile_until_stable();
    let name = test_cluster.pod_names("wide")[0].clone();
    test_cluster.pods.remove(&name);
    assert_eq!(created(&test_cluster.plan(), "Pod"), 1, "its creation may still be in flight");

    test_cluster.now = test_cluster.now.checked_add(jiff::SignedDuration::from_mins(1)).expect("in range");
    assert_eq!(deleted(&test_cluster.reconcile_once()).len(), 1);
}

#[test]
fn quota_for_some_hosts_of_a_replica_ungates_none() {
    let mut test_cluster = TestCluster::new(wide(2));
    test_cluster.grant = Grant::UpTo([("headgroup".to_owned(), 1), ("wide".to_owned(), 3)].into());
    test_cluster.reconcile_until_stable();
    assert_eq!((test_cluster.pod_names("wide").len(), test_cluster.gated_pods()), (4, 2));
}

#[test]
fn replica_that_had_more_hosts_counts_with_any_remaining_host() {
    let mut test_cluster = TestCluster::new(wide(1));
    test_cluster.reconcile_until_stable();
    test_cluster.pods.retain(|_, pod| pod.labels().get("ray.io/replica-host-index").is_none_or(|host| host != "0"));
    test_cluster.cluster.spec.worker_group_specs[0].num_of_hosts = Some(1);
    test_cluster.cluster.spec.worker_group_specs[0].replicas = Some(2);
    assert_eq!(test_cluster.pod_names("wide").len(), 1);

    test_cluster.reconcile_until_stable();

    let replicas: Vec<_> = test_cluster
        .pod_names("wide")
        .iter()
        .map(|name| test_cluster.pods[name].labels()["ray.io/worker-group-replica-index"].clone())
        .collect();
    assert!(replicas.len() == 2 && replicas[0] != replicas[1], "{replicas:?}");
}

#[test]
fn requested_pod_counts_while_its_replica_is_terminating() {
    // Given two replicas with one terminating host each, and a requested other host of the second
    // replica,
    let mut test_cluster = TestCluster::new(wide(2));
    test_cluster.reconcile_until_stable();
    test_cluster.make_all_ready();
    let host = |test_cluster: &TestCluster, replica: &str, host: &str| {
        let has_index = |name: &String| {
            let labels = test_cluster.pods[name].labels();
            labels["ray.io/worker-group-replica-index"] == replica && labels["ray.io/replica-host-index"] == host
        };
        test_cluster.pod_names("wide").into_iter().find(has_index).expect("a host")
    };
    for (replica, terminating, lost) in [("0", "0", "1"), ("1", "1", "0")] {
        let (terminating, lost) = (host(&test_cluster, replica, terminating), host(&test_cluster, replica, lost));
        let terminating = test_cluster.pods.get_mut(&terminating).expect("a pod");
        terminating.metadata.deletion_timestamp =
            Some(serde_json::from_value(serde_json::json!("2026-01-01T00:00:00Z")).expect("a time"));
        let mut lost = test_cluster.pods.remove(&lost).expect("a pod");
        if replica == "1" {
            lost.status = None;
            test_cluster.expected_pods.push(lost);
        }
    }

    // then there is room for one pod, which is less than a replica;
    assert_eq!(created(&test_cluster.plan(), "Pod"), 0);

    // and once a terminating pod is gone, there is room for a replica.
    let gone = host(&test_cluster, "0", "0");
    test_cluster.pods.remove(&gone);
    assert_eq!(created(&test_cluster.plan(), "Pod"), 2);
}
