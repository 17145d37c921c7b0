//! What must hold in every small cluster, and that the engine decides as the oracle does.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::config;
use super::fixture::Cluster;
use super::oracle::{self, Admitted, World, decide};
use super::random::{Act, Plan, carry_out, histories, plans};
use crate::partial_preemption::PreemptionScope;
use crate::tree::NodeId;
use crate::{Decision, EvictionReason, ObjectKey};

/// What the engine decided, as the oracle would say it.
fn decision_of(cluster: &Cluster, effects: &[Decision]) -> oracle::Decision {
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
    decision.deferred = room_is_made_for(cluster).into_iter().map(|(_, key)| key).collect();
    decision
}

/// For whom quota is kept until others have given it back, and the root of each tree.
fn room_is_made_for(cluster: &Cluster) -> Vec<(NodeId, ObjectKey)> {
    let promises =
        cluster.engine.reservations.iter().flat_map(|(root, promises)| promises.iter().map(|one| (*root, one)));
    let promises = promises.filter(|(_, promise)| promise.queue_position.is_some());
    let slots = promises.filter_map(|(root, promise)| Some((root, cluster.engine.workloads.get(promise.workload)?)));
    slots.map(|(root, slot)| (root, slot.info.key.clone())).collect()
}

/// The trees in which nothing happened since room was made in them. Evictions are under way there: who is next is decided when
/// they are through, or anything else happens, and not before.
fn asleep(cluster: &Cluster) -> BTreeSet<NodeId> {
    let engine = &cluster.engine;
    if engine.tree.is_stale() {
        return BTreeSet::new();
    }
    let awake: BTreeSet<NodeId> = engine.dirty_cluster_queues.iter().map(|node| engine.tree.root(*node)).collect();
    room_is_made_for(cluster).into_iter().map(|(root, _)| root).filter(|root| !awake.contains(root)).collect()
}

/// A decision on the trees that are awake. Trees are decided in no particular order.
fn on_others(mut decision: oracle::Decision, cluster: &Cluster, asleep: &BTreeSet<NodeId>) -> oracle::Decision {
    let tree = &cluster.engine.tree;
    let awake = |key: &ObjectKey| {
        let local_queue = cluster.workloads[key].spec.queue_name.as_deref().unwrap_or_default();
        let queue = local_queue.trim_start_matches('l');
        tree.known_cluster_queue(queue).is_none_or(|node| !asleep.contains(&tree.root(node)))
    };
    decision.admitted.retain(|admitted| awake(&admitted.workload));
    decision.evicted.retain(|victim, _| awake(victim));
    decision.deferred.retain(awake);
    decision.admitted.sort_by(|a, b| a.workload.cmp(&b.workload));
    decision
}

fn whys(cluster: &Cluster) -> String {
    let whys = cluster.workloads.keys().filter_map(|key| Some(format!("{}: {}", key.name, cluster.why(&key.name)?)));
    whys.collect::<Vec<_>>().join("\n")
}

fn agree(plan: &Plan, history: &[Vec<Act>], restarts: bool) -> Result<(), TestCaseError> {
    let (mut plan, mut cluster) = (plan.clone(), plan.start());
    for acts in history {
        for act in acts {
            plan.apply(&mut cluster, act);
        }
        if restarts {
            cluster.restart();
        }
        let world = World::of(&cluster);
        let (expected, asleep) = (decide(&world), asleep(&cluster));
        let effects = cluster.cycle();
        let decided = on_others(decision_of(&cluster, &effects), &cluster, &asleep);
        let expected = on_others(expected, &cluster, &asleep);
        prop_assert_eq!(decided, expected, "{}{}", world.summary(), whys(&cluster));
        carry_out(&mut cluster, &effects);
    }
    Ok(())
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_fresh_engine_decides_as_the_oracle_does(plan in plans(), history in histories()) {
        agree(&plan, &history, true)?;
    }

    #[test]
    fn the_engine_decides_as_the_oracle_does(plan in plans(), history in histories()) {
        agree(&plan, &history, false)?;
    }
}
