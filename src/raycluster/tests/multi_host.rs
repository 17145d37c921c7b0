//! Replicas of several hosts.

use kube_core::ResourceExt;

use super::super::Grant;
use super::super::fixtures::{Stage, cluster, worker};
use super::{created, deleted};
use sluice_api::ray::RayCluster;

fn wide(replicas: i32) -> RayCluster {
    let mut cluster = cluster();
    cluster.spec.worker_group_specs = vec![worker("wide", replicas)];
    cluster.spec.worker_group_specs[0].num_of_hosts = Some(2);
    cluster
}

#[test]
fn the_hosts_of_a_replica_come_and_go_together() {
    let mut stage = Stage::new(wide(2));
    stage.settle();
    stage.all_ready();
    stage.settle();
    assert_eq!(stage.names("wide").len(), 4);
    assert!(stage.services.contains_key("demo-headless"));
    let name = stage.names("wide")[0].clone();
    let replica = |stage: &Stage, name: &str| stage.pods[name].labels()["ray.io/worker-group-replica-name"].clone();
    let lost = replica(&stage, &name);

    stage.set_phase(&name, "Failed");
    let plan = stage.step();

    assert_eq!(deleted(&plan).len(), 2);
    assert!(deleted(&plan).iter().all(|name| replica(&stage, name) == lost));
    stage.pods_gone();
    stage.settle();
    assert_eq!(stage.names("wide").len(), 4);
}

#[test]
fn b39_a_replica_that_lost_a_host_is_given_time_to_be_assembled_and_then_made_anew() {
    let mut stage = Stage::new(wide(1));
    stage.settle();
    let name = stage.names("wide")[0].clone();
    stage.pods.remove(&name);
    assert_eq!(created(&stage.plan(), "Pod"), 1, "it may still be on its way");

    stage.now = stage.now.checked_add(jiff::SignedDuration::from_mins(1)).expect("in range");
    assert_eq!(deleted(&stage.step()).len(), 1);
}

#[test]
fn quota_for_half_a_replica_is_quota_for_none() {
    let mut stage = Stage::new(wide(2));
    stage.grant = Grant::UpTo([("headgroup".to_owned(), 1), ("wide".to_owned(), 3)].into());
    stage.settle();
    assert_eq!((stage.names("wide").len(), stage.gated()), (4, 2));
}

#[test]
fn a_replica_that_has_had_more_hosts_is_there_whichever_of_them_is_left() {
    let mut stage = Stage::new(wide(1));
    stage.settle();
    stage.pods.retain(|_, pod| pod.labels().get("ray.io/replica-host-index").is_none_or(|host| host != "0"));
    stage.cluster.spec.worker_group_specs[0].num_of_hosts = Some(1);
    stage.cluster.spec.worker_group_specs[0].replicas = Some(2);
    assert_eq!(stage.names("wide").len(), 1);

    stage.settle();

    let replicas: Vec<_> = stage
        .names("wide")
        .iter()
        .map(|name| stage.pods[name].labels()["ray.io/worker-group-replica-index"].clone())
        .collect();
    assert!(replicas.len() == 2 && replicas[0] != replicas[1], "{replicas:?}");
}

#[test]
fn a_pod_that_is_on_its_way_has_its_place_when_its_replica_goes() {
    // Given two replicas, of each of which one host is going, and another host of the second that was asked for anew,
    let mut stage = Stage::new(wide(2));
    stage.settle();
    stage.all_ready();
    let host = |stage: &Stage, replica: &str, host: &str| {
        let is_it = |name: &String| {
            let labels = stage.pods[name].labels();
            labels["ray.io/worker-group-replica-index"] == replica && labels["ray.io/replica-host-index"] == host
        };
        stage.names("wide").into_iter().find(is_it).expect("a host")
    };
    for (replica, goes, is_gone) in [("0", "0", "1"), ("1", "1", "0")] {
        let (goes, is_gone) = (host(&stage, replica, goes), host(&stage, replica, is_gone));
        let going = stage.pods.get_mut(&goes).expect("a pod");
        going.metadata.deletion_timestamp =
            Some(serde_json::from_value(serde_json::json!("2026-01-01T00:00:00Z")).expect("a time"));
        let mut gone = stage.pods.remove(&is_gone).expect("a pod");
        if replica == "1" {
            gone.status = None;
            stage.arriving.push(gone);
        }
    }

    // then there is room for one pod, which is none for a replica;
    assert_eq!(created(&stage.plan(), "Pod"), 0);

    // and once one of them is gone, for a replica.
    let gone = host(&stage, "0", "0");
    stage.pods.remove(&gone);
    assert_eq!(created(&stage.plan(), "Pod"), 2);
}
