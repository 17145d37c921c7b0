//! Regressions: minimized cases of scheduler bugs that the oracle and the simulator found.

use serde_json::json;

use super::fixture::{Cluster, group, object_key, replacing};
use crate::{Decision, PendingCause};

/// Returns one ClusterQueue that preempts lower priorities.
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
fn readmitted_workload_does_not_count_as_releasing_quota() {
    // Given a preempted workload that released its quota and is pending.
    let mut cluster = with_preemption("5");
    submit(&mut cluster, "low", 0, "5");
    cluster.run_until_stable();
    submit(&mut cluster, "high", 1, "5");
    cluster.run_until_stable();
    cluster.release_quota("low");
    cluster.run_until_stable();
    assert_eq!(cluster.holders(), ["high"]);

    // When it gets quota again in the cycle in which another is queued behind it.
    cluster.finish("high");
    submit(&mut cluster, "other", 0, "5");
    cluster.cycle();

    // Then the other is pending for quota, not for an eviction that was never decided.
    assert!(
        matches!(cluster.pending_cause("other"), Some(PendingCause::Quota(_))),
        "{:?}",
        cluster.pending_cause("other")
    );
}

#[test]
fn reservation_for_replacement_slice_covers_only_the_difference() {
    // Given a slice of 5 CPUs, another workload of 3, and 2 unused.
    let mut cluster = with_preemption("10");
    submit(&mut cluster, "a1", 1, "5");
    submit(&mut cluster, "low", 0, "3");
    cluster.run_until_stable();

    // When the slice grows to 9.
    let mut next = cluster.workload("a2", &[("main", 1, json!({"cpu": "9"}))]);
    next.spec.priority = Some(1);
    cluster.put(replacing(next, "a1"));
    submit(&mut cluster, "tiny", 0, "1");

    // Then 4 are reserved for the difference, and 1 more is available.
    assert_eq!(cluster.run_until_stable(), ["tiny"]);
    assert!(
        matches!(cluster.pending_cause("a2"), Some(PendingCause::PreemptionInProgress { .. })),
        "{:?}",
        cluster.pending_cause("a2")
    );
    cluster.release_quota("low");
    assert_eq!(cluster.run_until_stable(), ["a2"]);
    assert_eq!(cluster.pending_cause("low").is_some(), !cluster.holders().contains(&"low"));
}

#[test]
fn replacement_slice_does_not_wait_for_readmitted_predecessor() {
    // Given a slice that was preempted, released its quota, and gets it again in this cycle.
    let mut cluster = with_preemption("5");
    submit(&mut cluster, "a1", 0, "5");
    cluster.run_until_stable();
    submit(&mut cluster, "high", 1, "5");
    cluster.run_until_stable();
    cluster.release_quota("a1");
    cluster.run_until_stable();
    cluster.finish("high");
    cluster.cycle();

    // When its replacement is created before that is observed.
    let next = cluster.workload("a2", &[("main", 1, json!({"cpu": "4"}))]);
    cluster.put(replacing(next, "a1"));

    // Then the replacement does not wait for an eviction.
    assert_ne!(cluster.pending_cause("a2"), Some(PendingCause::PredecessorEvicted(object_key("a1"))));
}

#[test]
fn slice_admitted_and_replaced_in_one_cycle_has_no_usage() {
    // Given a slice and its smaller replacement, created together.
    let mut cluster = Cluster::with_cpu("5");
    submit(&mut cluster, "a1", 0, "5");
    let next = cluster.workload("a2", &[("main", 1, json!({"cpu": "1"}))]);
    cluster.put(replacing(next, "a1"));

    // When both are scheduled in one cycle.
    let effects = cluster.cycle();

    // Then only the replacement's admission is written, and the rest is available immediately.
    let admitted = effects.iter().filter(|effect| matches!(effect, Decision::Admit { .. }));
    assert_eq!(admitted.count(), 1);
    let usage = cluster.scheduler.recomputed_usage("cq");
    assert_eq!(
        usage.iter().map(|(key, used)| (key.name.as_str(), used.values().sum())).collect::<Vec<_>>(),
        [("a2", 1000)]
    );
}

#[test]
fn next_workload_of_a_queue_is_ordered_by_its_own_borrowing() {
    // Given a Cohort in which `a` and `spare` have 1 unused each, `b` and `c` nothing: every
    // pending workload except `a2` would borrow.
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
    cluster.run_until_stable();
    submit(&mut cluster, "b2", "b", "1");
    submit(&mut cluster, "c2", "c", "1");
    submit(&mut cluster, "a1", "a", "2");
    submit(&mut cluster, "a2", "a", "1");

    // When `b2`, scheduled first, takes the quota that `a1` would have borrowed.
    let admitted = cluster.run_until_stable();

    // Then `a2` is scheduled before `c2` borrows the nominal quota of `a`.
    assert_eq!(admitted, ["b2", "a2"]);
}

#[test]
fn strict_head_may_reclaim_in_the_cycle_in_which_another_queue_borrows() {
    // Given a Cohort of 10 in which `other` uses exactly its nominal quota, and the head of
    // `strict` requests 9.
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
    cluster.run_until_stable();

    // When, in one cycle, `other` borrows a little.
    submit(&mut cluster, "wide", "strict", 1, "9");
    submit(&mut cluster, "more", "other", 0, "1");
    let effects = cluster.cycle();

    // Then the head may reclaim from it in the same cycle.
    let evicted = effects
        .iter()
        .any(|effect| matches!(effect, Decision::Evict { workload, .. } if *workload == object_key("old")));
    assert!(evicted, "{effects:?}");
}

#[test]
fn slice_replaced_while_waiting_for_evictions_is_no_longer_pending() {
    // Given a slice that waits for evictions, and its replacement, which requests nothing and is
    // admitted immediately.
    let mut cluster = with_preemption("6");
    submit(&mut cluster, "low", 0, "5");
    cluster.run_until_stable();
    submit(&mut cluster, "a1", 1, "6");
    let mut next = cluster.workload("a2", &[("main", 0, json!({"cpu": "6"}))]);
    next.spec.priority = Some(1);
    cluster.put(replacing(next, "a1"));
    assert_eq!(cluster.run_until_stable(), ["a2"]);

    // When the eviction is finished.
    cluster.release_quota("low");

    // Then the quota is not assigned to the replaced slice again and again.
    assert_eq!(cluster.run_until_stable(), ["low"]);
    assert_eq!(cluster.holders(), ["a2", "low"]);
}

#[test]
fn workload_changed_without_local_queue_is_counted_once() {
    let mut cluster = Cluster::with_cpu("4");
    cluster.delete_local_queue("lq");
    submit(&mut cluster, "big", 0, "5");
    cluster.update("big", |workload| workload.spec.priority = Some(1));
    let pending = |cluster: &mut Cluster| {
        cluster.run_until_stable();
        cluster.local_queues[&object_key("lq")].status.clone().unwrap_or_default().pending_workloads
    };

    cluster.put_local_queue("lq", json!({"clusterQueue": "cq"}));
    assert_eq!(pending(&mut cluster), 1);

    cluster.delete("big");
    assert_eq!(pending(&mut cluster), 0);
}
