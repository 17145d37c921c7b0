//! Replicas of several hosts.

use kube::ResourceExt;

use super::super::Grant;
use super::super::fixtures::{Stage, cluster, worker};
use super::{created, deleted};
use crate::api::ray::RayCluster;

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
