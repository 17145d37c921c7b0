//! Workers are removed only after Serve accepted the lower capacity.

use super::{begin, play_until, serving, shares, watched};
use crate::tests::version;

#[test]
fn no_worker_is_removed_before_serve_accepts_the_lower_capacity() {
    // Given an upgrade that is halfway, and a dashboard that rejects every configuration,
    let mut stage = serving(50, 25, 5);
    let old = stage.living()[0].clone();
    begin(&mut stage, "50/100 50/50");
    stage.refusal = Some(500);

    // when the capacity of the old cluster is lowered, then no worker is removed, also not after a
    // restart,
    watched(&mut stage, 30);
    stage.restart();
    watched(&mut stage, 30);
    assert_eq!((shares(&stage).as_str(), stage.workers_there()), ("50/50 50/50", 6));

    // and once Serve accepts it, the workers without replicas are removed.
    let before = stage.worker_names(&old);
    stage.refusal = None;
    play_until(&mut stage, "50/50 50/100");
    assert_eq!(stage.worker_names(&old), before[2..], "the oldest replicas were stopped");
    watched(&mut stage, 60);
    assert_eq!(shares(&stage), "100/100");
    let groups = stage.clusters().into_iter().flat_map(|cluster| cluster.spec.worker_group_specs);
    assert!(groups.into_iter().all(|group| group.scale_strategy.is_none()), "workersToDelete is cleared");
}

#[test]
fn no_worker_is_removed_while_the_dashboard_does_not_respond() {
    let mut stage = serving(50, 25, 5);
    let old = stage.living()[0].clone();
    begin(&mut stage, "25/50 75/100");
    stage.answering = Some(old);
    stage.edit(version("2.53.0"));
    stage.play(60);
    assert_eq!(stage.workers_there(), 6);
    assert!(stage.missed.is_empty());

    stage.answering = None;
    watched(&mut stage, 60);
    assert_eq!(shares(&stage), "100/100");
}

#[test]
fn without_replica_locations_workers_are_removed_once_serve_accepts_the_capacity() {
    let mut stage = serving(50, 25, 5);
    stage.tells_places = false;
    begin(&mut stage, "50/100 50/50");
    stage.refusal = Some(500);
    watched(&mut stage, 30);
    assert_eq!((shares(&stage).as_str(), stage.workers_there()), ("50/50 50/50", 6));

    stage.refusal = None;
    assert_eq!(watched(&mut stage, 60).last().map(String::as_str), Some("100/100"));
}
