//! What the engine once decided wrongly: cases that the oracle found, made small.

use serde_json::json;

use super::fixture::{Cluster, key, replacing};
use crate::queue::Waiting;

/// One ClusterQueue in which priority preempts.
fn with_preemption(cpu: &str) -> Cluster {
    let mut cluster = Cluster::with_cpu(cpu);
    cluster.patch_cluster_queue(json!({"preemption": {"withinClusterQueue": "LowerPriority"}}));
    cluster
}

fn submit(cluster: &mut Cluster, name: &str, priority: i32, cpu: &str) {
    let mut workload = cluster.workload(name, &[("main", 1, json!({"cpu": cpu}))]);
    workload.spec.priority = Some(priority);
    cluster.put(workload);
}

#[test]
fn what_an_evicted_workload_is_given_again_is_not_on_its_way_back() {
    // Given a workload that was preempted, gave its quota back and waits.
    let mut cluster = with_preemption("5");
    submit(&mut cluster, "low", 0, "5");
    cluster.run();
    submit(&mut cluster, "high", 1, "5");
    cluster.run();
    cluster.release("low");
    cluster.run();
    assert_eq!(cluster.holders(), ["high"]);

    // When it gets quota again, in the cycle in which another lines up behind it.
    cluster.finish("high");
    submit(&mut cluster, "other", 0, "5");
    cluster.cycle();

    // Then the other waits for quota, and not for an eviction that nobody decided.
    assert!(matches!(cluster.why("other"), Some(Waiting::Quota(_))), "{:?}", cluster.why("other"));
}

#[test]
fn room_for_a_slice_is_room_for_what_it_adds() {
    // Given a slice of 5, another workload of 3, and 2 left.
    let mut cluster = with_preemption("10");
    submit(&mut cluster, "a1", 1, "5");
    submit(&mut cluster, "low", 0, "3");
    cluster.run();

    // When the slice is to grow to 9.
    let mut next = cluster.workload("a2", &[("main", 1, json!({"cpu": "9"}))]);
    next.spec.priority = Some(1);
    cluster.put(replacing(next, "a1"));
    submit(&mut cluster, "tiny", 0, "1");

    // Then room is made for 4, and one more fits beside it.
    assert_eq!(cluster.run(), ["tiny"]);
    assert!(matches!(cluster.why("a2"), Some(Waiting::Room { .. })), "{:?}", cluster.why("a2"));
    cluster.release("low");
    assert_eq!(cluster.run(), ["a2"]);
    assert_eq!(cluster.why("low").is_some(), !cluster.holders().contains(&"low"));
}

#[test]
fn a_slice_follows_one_that_was_evicted_and_came_back() {
    // Given a slice that was preempted, gave its quota back, and gets it again in this cycle.
    let mut cluster = with_preemption("5");
    submit(&mut cluster, "a1", 0, "5");
    cluster.run();
    submit(&mut cluster, "high", 1, "5");
    cluster.run();
    cluster.release("a1");
    cluster.run();
    cluster.finish("high");
    cluster.cycle();

    // When its successor comes before that is observed.
    let next = cluster.workload("a2", &[("main", 1, json!({"cpu": "4"}))]);
    cluster.put(replacing(next, "a1"));

    // Then the successor does not wait for an eviction.
    assert_ne!(cluster.why("a2"), Some(Waiting::PredecessorEvicted(key("a1"))));
}
