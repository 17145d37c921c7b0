//! Workers that go when Serve was told, and not before.

use super::{begin, play_until, serving, shares, watched};
use crate::tests::version;

#[test]
fn no_worker_goes_before_serve_was_told() {
    // Given an upgrade that is half-way, and a dashboard that takes nothing,
    let mut stage = serving(50, 25, 5);
    let old = stage.living()[0].clone();
    begin(&mut stage, "50/100 50/50");
    stage.refusal = Some(500);

    // when the old cluster is to have less, then no worker goes before it is told, whichever process asks,
    watched(&mut stage, 30);
    stage.restart();
    watched(&mut stage, 30);
    assert_eq!((shares(&stage).as_str(), stage.workers_there()), ("50/50 50/50", 6));

    // and then those go that hold nothing.
    let before = stage.worker_names(&old);
    stage.refusal = None;
    play_until(&mut stage, "50/50 50/100");
    assert_eq!(stage.worker_names(&old), before[2..], "the oldest replicas went");
    watched(&mut stage, 60);
    assert_eq!(shares(&stage), "100/100");
    let groups = stage.clusters().into_iter().flat_map(|cluster| cluster.spec.worker_group_specs);
    assert!(groups.into_iter().all(|group| group.scale_strategy.is_none()), "no name stays behind");
}

#[test]
fn no_worker_goes_while_nobody_answers() {
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
fn where_serve_does_not_tell_who_holds_replicas_workers_go_once_it_was_told() {
    let mut stage = serving(50, 25, 5);
    stage.tells_places = false;
    begin(&mut stage, "50/100 50/50");
    stage.refusal = Some(500);
    watched(&mut stage, 30);
    assert_eq!((shares(&stage).as_str(), stage.workers_there()), ("50/50 50/50", 6));

    stage.refusal = None;
    assert_eq!(watched(&mut stage, 60).last().map(String::as_str), Some("100/100"));
}
