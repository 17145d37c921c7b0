//! What the engine once got wrong: cases that the oracle and the simulator found, made small.

use serde_json::json;

use super::fixture::{Cluster, group, key, replacing};
use crate::{Decision, PendingCause};

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
    assert!(matches!(cluster.why("other"), Some(PendingCause::Quota(_))), "{:?}", cluster.why("other"));
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
    assert!(matches!(cluster.why("a2"), Some(PendingCause::PreemptionInProgress { .. })), "{:?}", cluster.why("a2"));
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
    assert_ne!(cluster.why("a2"), Some(PendingCause::PredecessorEvicted(key("a1"))));
}

#[test]
fn a_slice_admitted_and_replaced_in_one_cycle_is_charged_nowhere() {
    // Given a slice and its smaller successor, that come together.
    let mut cluster = Cluster::with_cpu("5");
    submit(&mut cluster, "a1", 0, "5");
    let next = cluster.workload("a2", &[("main", 1, json!({"cpu": "1"}))]);
    cluster.put(replacing(next, "a1"));

    // When both get their turn in one cycle.
    let effects = cluster.cycle();

    // Then only the successor's admission is written, and what is left goes to others at once.
    let admitted = effects.iter().filter(|effect| matches!(effect, Decision::Admit { .. }));
    assert_eq!(admitted.count(), 1);
    let charges = cluster.engine.recomputed_usage("cq");
    assert_eq!(
        charges.iter().map(|(key, charge)| (key.name.as_str(), charge.values().sum())).collect::<Vec<_>>(),
        [("a2", 1000)]
    );
}

#[test]
fn who_comes_next_in_a_queue_is_as_early_as_what_it_borrows_allows() {
    // Given a Cohort in which `a` and `spare` have 1 left each, and `b` and `c` nothing: all that wait would borrow, but `a2`.
    let mut cluster = Cluster::default();
    cluster.put_flavor("default");
    for (name, cpu) in [("a", "1"), ("b", "2"), ("c", "2"), ("spare", "1")] {
        let spec = json!({
            "cohortName": "team",
            "namespaceSelector": {},
            "resourceGroups": [group(&["cpu"], &[("default", &[cpu])])],
        });
        cluster.put_cluster_queue(name, spec);
        cluster.put_local_queue(&format!("lq-{name}"), json!({"clusterQueue": name}));
    }
    let submit = |cluster: &mut Cluster, name: &str, queue: &str, cpu: &str| {
        let mut workload = cluster.workload(name, &[("main", 1, json!({"cpu": cpu}))]);
        workload.spec.queue_name = Some(format!("lq-{queue}"));
        cluster.put(workload);
        cluster.now += 1;
    };
    submit(&mut cluster, "b1", "b", "2");
    submit(&mut cluster, "c1", "c", "2");
    cluster.run();
    submit(&mut cluster, "b2", "b", "1");
    submit(&mut cluster, "c2", "c", "1");
    submit(&mut cluster, "a1", "a", "2");
    submit(&mut cluster, "a2", "a", "1");

    // When the first turn, of `b2`, takes what `a1` would have borrowed.
    let admitted = cluster.run();

    // Then the turn of `a2` comes before `c2` borrows what `a` is entitled to.
    assert_eq!(admitted, ["b2", "a2"]);
}

#[test]
fn the_first_of_a_strict_queue_may_preempt_once_another_borrows() {
    // Given a Cohort of 10 in which `other` uses just what it is entitled to, and the first of `strict` wants 9.
    let mut cluster = Cluster::default();
    cluster.put_flavor("default");
    let spec = |cpu: &str, strategy: &str| {
        json!({
            "cohortName": "team",
            "namespaceSelector": {},
            "queueingStrategy": strategy,
            "resourceGroups": [group(&["cpu"], &[("default", &[cpu])])],
            "preemption": {
                "reclaimWithinCohort": "Any",
                "borrowWithinCohort": {"policy": "LowerPriority"},
            },
        })
    };
    cluster.put_cluster_queue("other", spec("5", "BestEffortFIFO"));
    cluster.put_cluster_queue("strict", spec("5", "StrictFIFO"));
    cluster.put_local_queue("lq-other", json!({"clusterQueue": "other"}));
    cluster.put_local_queue("lq-strict", json!({"clusterQueue": "strict"}));
    let submit = |cluster: &mut Cluster, name: &str, queue: &str, priority: i32, cpu: &str| {
        let mut workload = cluster.workload(name, &[("main", 1, json!({"cpu": cpu}))]);
        workload.spec.queue_name = Some(format!("lq-{queue}"));
        workload.spec.priority = Some(priority);
        cluster.put(workload);
        cluster.now += 1;
    };
    submit(&mut cluster, "old", "other", 0, "5");
    cluster.run();

    // When, in one cycle, `other` borrows a little.
    submit(&mut cluster, "wide", "strict", 1, "9");
    submit(&mut cluster, "more", "other", 0, "1");
    let effects = cluster.cycle();

    // Then that is enough to make room by taking from it, in the same cycle.
    let evicted =
        effects.iter().any(|effect| matches!(effect, Decision::Evict { workload, .. } if *workload == key("old")));
    assert!(evicted, "{effects:?}");
}

#[test]
fn a_slice_that_was_replaced_while_room_was_made_for_it_waits_no_more() {
    // Given a slice for which room is being made, and its successor, which asks for nothing and is admitted at once.
    let mut cluster = with_preemption("6");
    submit(&mut cluster, "low", 0, "5");
    cluster.run();
    submit(&mut cluster, "a1", 1, "6");
    let mut next = cluster.workload("a2", &[("main", 0, json!({"cpu": "6"}))]);
    next.spec.priority = Some(1);
    cluster.put(replacing(next, "a1"));
    assert_eq!(cluster.run(), ["a2"]);

    // When the room is there.
    cluster.release("low");

    // Then it is not given to the slice that was replaced, over and over.
    assert_eq!(cluster.run(), ["low"]);
    assert_eq!(cluster.holders(), ["a2", "low"]);
}

#[test]
fn a_workload_that_changed_while_its_local_queue_was_gone_is_counted_once() {
    let mut cluster = Cluster::with_cpu("4");
    cluster.delete_local_queue("lq");
    submit(&mut cluster, "big", 0, "5");
    cluster.change("big", |workload| workload.spec.priority = Some(1));
    let pending = |cluster: &mut Cluster| {
        cluster.run();
        cluster.local_queues[&key("lq")].status.clone().unwrap_or_default().pending_workloads
    };

    cluster.put_local_queue("lq", json!({"clusterQueue": "cq"}));
    assert_eq!(pending(&mut cluster), 1);

    cluster.delete("big");
    assert_eq!(pending(&mut cluster), 0);
}
