//! Compares the scheduler's decisions with the oracle's in random small clusters.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::fixture::Cluster;
use super::generators::{Change, ClusterPlan, apply_decisions, cluster_plans, histories};
use super::oracle::{self, Admitted, Snapshot, run_cycle};
use super::proptest_config;
use crate::partial_preemption::PreemptionScope;
use crate::tree::NodeId;
use crate::{Decision, EvictionReason, ObjectKey};

/// Converts the scheduler's decisions to the oracle's form.
fn to_oracle_decision(cluster: &Cluster, effects: &[Decision]) -> oracle::Decision {
    let mut decision = oracle::Decision::default();
    for effect in effects {
        match effect {
            Decision::Admit { workload, admission, .. } => {
                let sets = &admission.pod_set_assignments;
                let sets = sets.iter().map(|set| (set.name.clone(), set.count.unwrap_or(0), set.flavors.clone()));
                decision.admitted.push(Admitted { workload: workload.clone(), pod_sets: sets.collect() });
            }
            Decision::Evict { workload, reason: EvictionReason::Preempted(preemption) } => {
                decision.evicted.insert(
                    workload.clone(),
                    (PreemptionScope::Whole, preemption.preemptor.clone(), preemption.reason),
                );
            }
            Decision::PreemptPart { workload, part, preemption } => {
                let loss = PreemptionScope::Part(*part);
                decision.evicted.insert(workload.clone(), (loss, preemption.preemptor.clone(), preemption.reason));
            }
            _ => {}
        }
    }
    decision.deferred = reservations_awaiting_evictions(cluster).into_iter().map(|(_, key)| key).collect();
    decision
}

/// Returns the workloads with a capacity reservation that wait for evictions, with the root of
/// their tree.
fn reservations_awaiting_evictions(cluster: &Cluster) -> Vec<(NodeId, ObjectKey)> {
    let by_root = cluster.scheduler.reservations.iter();
    let reservations = by_root.flat_map(|(root, reservations)| reservations.iter().map(|one| (*root, one)));
    let reservations = reservations.filter(|(_, reservation)| reservation.queue_position.is_some());
    let cached = reservations
        .filter_map(|(root, reservation)| Some((root, cluster.scheduler.workloads.get(reservation.workload)?)));
    cached.map(|(root, workload)| (root, workload.info.key.clone())).collect()
}

/// Returns the trees without any change since a reservation was made in them. Evictions are in
/// progress there; the scheduler decides nothing until they finish or another input arrives.
fn idle_trees(cluster: &Cluster) -> BTreeSet<NodeId> {
    let engine = &cluster.scheduler;
    if engine.tree.is_stale() {
        return BTreeSet::new();
    }
    let dirty: BTreeSet<NodeId> = engine.dirty_cluster_queues.iter().map(|node| engine.tree.root(*node)).collect();
    reservations_awaiting_evictions(cluster)
        .into_iter()
        .map(|(root, _)| root)
        .filter(|root| !dirty.contains(root))
        .collect()
}

/// Drops the decisions on idle trees and sorts the rest, since trees are scheduled in no particular
/// order.
fn without_idle_trees(
    mut decision: oracle::Decision,
    cluster: &Cluster,
    asleep: &BTreeSet<NodeId>,
) -> oracle::Decision {
    let tree = &cluster.scheduler.tree;
    let is_active = |key: &ObjectKey| {
        let local_queue = cluster.workloads[key].spec.queue_name.as_deref().unwrap_or_default();
        let queue = local_queue.trim_start_matches('l');
        tree.known_cluster_queue(queue).is_none_or(|node| !asleep.contains(&tree.root(node)))
    };
    decision.admitted.retain(|admitted| is_active(&admitted.workload));
    decision.evicted.retain(|target, _| is_active(target));
    decision.deferred.retain(is_active);
    decision.admitted.sort_by(|a, b| a.workload.cmp(&b.workload));
    decision
}

fn pending_causes(cluster: &Cluster) -> String {
    let causes =
        cluster.workloads.keys().filter_map(|key| Some(format!("{}: {}", key.name, cluster.pending_cause(&key.name)?)));
    causes.collect::<Vec<_>>().join("\n")
}

fn assert_same_decisions(plan: &ClusterPlan, history: &[Vec<Change>], restarts: bool) -> Result<(), TestCaseError> {
    let (mut plan, mut cluster) = (plan.clone(), plan.new_cluster());
    for acts in history {
        for act in acts {
            plan.apply(&mut cluster, act);
        }
        if restarts {
            cluster.restart();
        }
        let snapshot = Snapshot::of(&cluster);
        let (expected, asleep) = (run_cycle(&snapshot), idle_trees(&cluster));
        let effects = cluster.cycle();
        let decided = without_idle_trees(to_oracle_decision(&cluster, &effects), &cluster, &asleep);
        let expected = without_idle_trees(expected, &cluster, &asleep);
        prop_assert_eq!(decided, expected, "{}{}", snapshot.summary(), pending_causes(&cluster));
        apply_decisions(&mut cluster, &effects);
    }
    Ok(())
}

proptest! {
    #![proptest_config(proptest_config())]

    #[test]
    fn restarted_scheduler_decides_like_the_oracle(plan in cluster_plans(), history in histories()) {
        assert_same_decisions(&plan, &history, true)?;
    }

    #[test]
    fn scheduler_decides_like_the_oracle(plan in cluster_plans(), history in histories()) {
        assert_same_decisions(&plan, &history, false)?;
    }
}
