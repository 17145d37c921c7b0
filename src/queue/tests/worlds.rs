//! What must hold in every small cluster, whoever decides.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::config;
use super::fixture::{Cluster, at};
use super::oracle::World;
use super::random::{Act, Plan, carry_out, give_back, going, histories, loses_part, plans};
use crate::log::replay;
use crate::partial_preemption::PreemptionScope;
use crate::pending::FlavorRejection;
use crate::{Decision, EvictionReason, Input, ObjectKey, PendingCause, Scheduler};
use sluice_api::quantity::Amount;

/// More cycles than any small cluster needs to come to rest.
const MANY_CYCLES: usize = 200;

/// Lets a history happen; `check` sees every cycle: the world before, and what was decided.
fn happen(
    plan: &Plan,
    history: &[Vec<Act>],
    mut check: impl FnMut(&World, &Cluster, &[Decision]) -> Result<(), TestCaseError>,
) -> Result<(Plan, Cluster), TestCaseError> {
    let (mut plan, mut cluster) = (plan.clone(), plan.start());
    for acts in history {
        acts.iter().for_each(|act| plan.apply(&mut cluster, act));
        let before = World::of(&cluster);
        let effects = cluster.cycle();
        check(&before, &cluster, &effects)?;
        carry_out(&mut cluster, &effects);
    }
    Ok((plan, cluster))
}

/// Those who were told to go give their quota back, until nothing more is wanted. Returns all evictions on the way.
fn come_to_rest(cluster: &mut Cluster) -> Result<Vec<ObjectKey>, TestCaseError> {
    let mut evicted = Vec::new();
    for _ in 0..MANY_CYCLES {
        let effects = cluster.cycle();
        evicted.extend(effects.iter().filter_map(|effect| match effect {
            Decision::Evict { workload, .. } => Some(workload.clone()),
            _ => None,
        }));
        carry_out(cluster, &effects);
        let names: Vec<String> = cluster.workloads.keys().map(|key| key.name.clone()).collect();
        let leaving: Vec<&String> = names.iter().filter(|name| going(cluster, name)).collect();
        let giving_back: Vec<&String> = names.iter().filter(|name| loses_part(cluster, name)).collect();
        if effects.is_empty() && leaving.is_empty() && giving_back.is_empty() {
            return Ok(evicted);
        }
        giving_back.iter().for_each(|name| give_back(cluster, name));
        leaving.iter().for_each(|name| cluster.release(name));
    }
    Err(TestCaseError::fail(format!("it does not come to rest; evicted: {evicted:?}")))
}

/// A fresh process that sees the objects of a cluster in this order: by these numbers, over and over.
fn afresh(cluster: &Cluster, order: &[u16]) -> Scheduler {
    let mut engine = Scheduler::new(cluster.settings.clone());
    let events = cluster.workloads.values().map(Input::Workload);
    let events = events.chain(cluster.local_queues.values().map(Input::LocalQueue));
    let events = events.chain(cluster.cohorts.values().map(Input::Cohort));
    let events = events.chain(cluster.cluster_queues.values().map(Input::ClusterQueue));
    let events = events.chain(cluster.flavors.values().map(Input::ResourceFlavor));
    let mut events: Vec<(u16, Input<'_>)> = order.iter().copied().cycle().zip(events).collect();
    events.sort_by_key(|(number, _)| *number);
    events.iter().for_each(|(_, event)| engine.observe(at(cluster.now), event));
    engine
}

/// Effects as people see them, in no order: trees are decided one after the other, and none is the first.
fn said(effects: &[Decision]) -> BTreeSet<String> {
    let said = |effect: &Decision| match effect {
        Decision::Pending { workload, cause: why } => format!("{} waits: {why}", workload.name),
        effect => format!("{effect:?}"),
    };
    effects.iter().map(said).collect()
}

/// For whom others go, and what each of them loses.
fn victims_of(effects: &[Decision]) -> BTreeMap<ObjectKey, Vec<(ObjectKey, PreemptionScope)>> {
    let mut victims: BTreeMap<ObjectKey, Vec<(ObjectKey, PreemptionScope)>> = BTreeMap::new();
    for effect in effects {
        let (preemption, workload, loss) = match effect {
            Decision::Evict { workload, reason: EvictionReason::Preempted(preemption) } => {
                (preemption, workload, PreemptionScope::Whole)
            }
            Decision::PreemptPart { workload, part, preemption } => {
                (preemption, workload, PreemptionScope::Part(*part))
            }
            _ => continue,
        };
        victims.entry(preemption.preemptor.clone()).or_default().push((workload.clone(), loss));
    }
    victims
}

/// Those that wait.
fn waiting(cluster: &Cluster) -> Vec<ObjectKey> {
    let waits = |key: &&ObjectKey| cluster.why(&key.name).is_some();
    cluster.workloads.keys().filter(waits).cloned().collect()
}

/// A fresh process, and nobody waits but this one.
fn alone(cluster: &Cluster, key: &ObjectKey) -> Cluster {
    let mut one = cluster.clone();
    for other in waiting(cluster).into_iter().filter(|other| other != key) {
        one.delete(&other.name);
    }
    one.restart();
    one
}

/// Whether it was admitted, if only until others took what is theirs by right.
fn was_admitted(cluster: &Cluster, key: &ObjectKey) -> bool {
    is_admitted(&cluster.effects, key)
}

fn is_admitted(effects: &[Decision], key: &ObjectKey) -> bool {
    effects.iter().any(|effect| matches!(effect, Decision::Admit { workload, .. } if workload == key))
}

fn is_admitted_alone(cluster: &Cluster, key: &ObjectKey) -> bool {
    is_admitted(&alone(cluster, key).cycle(), key)
}

proptest! {
    #![proptest_config(config())]

    /// I1: what is admitted leaves nobody with less than nothing, unless quota was taken from those that run.
    #[test]
    fn no_node_of_the_tree_is_pushed_past_its_quota(plan in plans(), history in histories()) {
        happen(&plan, &history, |before, cluster, effects| {
            let mut after = cluster.clone();
            carry_out(&mut after, effects);
            let worse = World::of(&after).overdrawn(before);
            prop_assert!(worse.is_empty(), "{:?}\n{}", worse, before.summary());
            Ok(())
        })?;
    }

    /// The same state and the same events give the same decisions.
    #[test]
    fn a_cycle_is_deterministic(plan in plans(), history in histories()) {
        let run = || happen(&plan, &history, |_, _, _| Ok(())).map(|(_, cluster)| cluster.effects);
        prop_assert_eq!(run()?, run()?);
    }

    /// What is there is decided upon in one way, whichever of it was seen first.
    #[test]
    fn the_order_in_which_objects_are_seen_changes_nothing(
        plan in plans(),
        history in histories(),
        order in prop::collection::vec(any::<u16>(), 32),
    ) {
        let (last, before) = history.split_last().expect("histories are not empty");
        let (mut plan, mut cluster) = happen(&plan, before, |_, _, _| Ok(()))?;
        last.iter().for_each(|act| plan.apply(&mut cluster, act));
        let now = at(cluster.now);
        let decided = |order: &[u16]| said(&afresh(&cluster, order).run_cycle(now));
        prop_assert_eq!(decided(&order), decided(&[0]));
    }

    /// Preemption ends, and nobody goes for good but comes back and goes again.
    #[test]
    fn preemption_comes_to_rest(plan in plans(), history in histories()) {
        let (_, mut cluster) = happen(&plan, &history, |_, _, _| Ok(()))?;
        come_to_rest(&mut cluster)?;
        let restarted = { let mut other = cluster.clone(); other.restart(); other.cycle() };
        let moves = restarted.iter().filter(|effect| matches!(effect, Decision::Admit { .. } | Decision::Evict { .. }));
        prop_assert_eq!(moves.count(), 0, "a fresh process goes on: {:?}", restarted);
    }

    /// Nobody goes without whom the preemptor gets the same.
    #[test]
    fn every_victim_set_is_minimal(plan in plans(), history in histories()) {
        happen(&plan.plain(), &history, |before, cluster, effects| {
            let victims = victims_of(effects);
            // What others got, or are kept, in the same cycle is not in the world before it.
            let kept = cluster.engine.reservations.values().flatten().count();
            let admitted = effects.iter().any(|effect| matches!(effect, Decision::Admit { .. }));
            let alone = kept == 1 && !admitted;
            for (preemptor, victims) in victims.iter().filter(|_| alone) {
                let spared = before.could_stay(preemptor, victims);
                prop_assert!(spared.is_none(), "{:?} of {:?}\n{}", spared, victims, before.summary());
            }
            Ok(())
        })?;
    }

    /// Raising a quota never takes anything from who would be admitted. It is admitted, or has room made for it: its search ends
    /// where it could not have had that before, with more of its pods or in the flavor that comes first.
    #[test]
    fn admitting_is_monotone_in_quota(
        plan in plans(),
        history in histories(),
        queue in 0..5_u8,
        quota in 0..6_usize,
        more in 1..4_u8,
    ) {
        let (mut plan, cluster) = happen(&plan, &history, |_, _, _| Ok(()))?;
        let mut richer = cluster.clone();
        plan.raise(&mut richer, queue, quota, more);
        for key in waiting(&cluster) {
            if is_admitted_alone(&cluster, &key) {
                let mut richer = alone(&richer, &key);
                let effects = richer.cycle();
                let has_room = matches!(richer.why(&key.name), Some(PendingCause::PreemptionInProgress { .. }));
                prop_assert!(is_admitted(&effects, &key) || has_room, "{} is not admitted any more", key.name);
            }
        }
    }

    /// The explanation is true: giving a workload what it says is short, and nothing else, gets it admitted. What a pod set is
    /// short of is said after those before it got what they need, so it may take as many turns as there are pod sets.
    #[test]
    fn what_is_said_to_be_short_is_all_that_is_short(plan in plans(), history in histories()) {
        let (plan, mut cluster) = happen(&plan.with_one_flavor(), &history, |_, _, _| Ok(()))?;
        come_to_rest(&mut cluster)?;
        for key in waiting(&cluster) {
            let (mut plan, mut given) = (plan.clone(), cluster.clone());
            // Short of what others hold, then of what earlier pod sets take, for each of two resources.
            let turns = 1 + 4 * given.workloads[&key].spec.pod_sets.len();
            let queue = given.workloads[&key].spec.queue_name.clone().unwrap_or_default();
            for _ in 0..turns {
                let mut one = alone(&given, &key);
                one.cycle();
                let Some(PendingCause::Quota(obstacles)) = one.why(&key.name) else { break };
                for obstacle in obstacles {
                    if let FlavorRejection::InsufficientUnused(short) | FlavorRejection::ExceedsMaximum(short) = obstacle {
                        prop_assert!(short.missing > Amount::ZERO, "{:?}", short);
                        plan.give(&mut given, &queue, &short);
                    }
                }
            }
            let mut one = alone(&given, &key);
            come_to_rest(&mut one)?;
            let why = one.why(&key.name);
            let other_flavor = |obstacle: &FlavorRejection| matches!(obstacle, FlavorRejection::Mismatch { .. });
            let suits = !matches!(&why, Some(PendingCause::Quota(all)) if all.iter().any(other_flavor));
            prop_assert!(!suits || was_admitted(&one, &key), "{}: {:?}", key.name, why);
        }
    }

    /// A ledger whose usage was taken out and put back is the ledger that it was.
    #[test]
    fn taking_usage_out_and_putting_it_back_restores_the_ledger(plan in plans(), history in histories()) {
        let (_, cluster) = happen(&plan, &history, |_, _, _| Ok(()))?;
        let told = |engine: &mut Scheduler| {
            for workload in cluster.workloads.values() {
                engine.observe(at(cluster.now), &Input::WorkloadDeleted(&ObjectKey::of(workload)));
            }
            for workload in cluster.workloads.values() {
                engine.observe(at(cluster.now), &Input::Workload(workload));
            }
        };
        let mut engine = cluster.engine.clone();
        // Promises are of the last cycle and not of the ledger.
        engine.release_all_reservations();
        let mut other = engine.clone();
        told(&mut other);
        prop_assert_eq!(usage(&other, &cluster), usage(&engine, &cluster));
    }

    /// A replay of the decision log decides the same.
    #[test]
    fn a_log_replays(plan in plans(), history in histories()) {
        let (mut plan, mut cluster) = (plan.clone(), plan.start());
        cluster.restart_recording(cluster.settings.clone());
        for acts in &history {
            acts.iter().for_each(|act| plan.apply(&mut cluster, act));
            let effects = cluster.cycle();
            carry_out(&mut cluster, &effects);
        }
        let replayed = replay(cluster.log()).expect("a good log");
        prop_assert_eq!(replayed.first_difference, None);
        prop_assert_eq!((replayed.differences, replayed.truncated_lines, replayed.cycles), (0, 0, history.len()));
    }
}

/// What the tree says is used of everything by everyone, in both views.
fn usage(engine: &Scheduler, cluster: &Cluster) -> BTreeMap<(String, String, String), (i128, i128)> {
    use crate::tree::UsageView;
    let mut usage = BTreeMap::new();
    let names = cluster.cluster_queues.keys().filter_map(|name| engine.tree.known_cluster_queue(name));
    let nodes = names.chain(cluster.cohorts.keys().filter_map(|name| engine.tree.known_cohort(name)));
    for node in nodes {
        for (flavor, resource) in
            ["f0", "f1", "f2", "g0", "g1", "g2"].into_iter().flat_map(|flavor| ["gpu", "tpu"].map(|of| (flavor, of)))
        {
            if let Some(fr) = engine.tree.known_flavor_resource(flavor, resource) {
                let used =
                    (engine.tree.usage(node, fr, UsageView::Actual), engine.tree.usage(node, fr, UsageView::Planned));
                usage.insert((engine.tree.name(node).to_owned(), flavor.to_owned(), resource.to_owned()), used);
            }
        }
    }
    usage
}
