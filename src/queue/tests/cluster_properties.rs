//! Properties of the scheduler in random small clusters.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::fixture::{Cluster, timestamp};
use super::generators::{
    Change, ClusterPlan, apply_decisions, cluster_plans, histories, is_being_evicted, is_releasing_part, release_part,
};
use super::oracle::Snapshot;
use super::proptest_config;
use crate::log::replay;
use crate::partial_preemption::PreemptionScope;
use crate::pending::FlavorRejection;
use crate::{Decision, EvictionReason, Input, ObjectKey, PendingCause, Scheduler};
use sluice_api::quantity::Amount;

/// Iteration limit for detecting non-convergence.
const MAX_CYCLES: usize = 200;

/// Runs a history; calls `check` in every cycle with the snapshot before it, the cluster and the
/// decisions.
fn run_history(
    plan: &ClusterPlan,
    history: &[Vec<Change>],
    mut check: impl FnMut(&Snapshot, &Cluster, &[Decision]) -> Result<(), TestCaseError>,
) -> Result<(ClusterPlan, Cluster), TestCaseError> {
    let (mut plan, mut cluster) = (plan.clone(), plan.new_cluster());
    for acts in history {
        acts.iter().for_each(|act| plan.apply(&mut cluster, act));
        let before = Snapshot::of(&cluster);
        let effects = cluster.cycle();
        check(&before, &cluster, &effects)?;
        apply_decisions(&mut cluster, &effects);
    }
    Ok((plan, cluster))
}

/// Runs cycles and releases the quota of evicted workloads until there are no more decisions.
/// Returns all evicted workloads.
fn run_until_stable(cluster: &mut Cluster) -> Result<Vec<ObjectKey>, TestCaseError> {
    let mut evicted = Vec::new();
    for _ in 0..MAX_CYCLES {
        let effects = cluster.cycle();
        evicted.extend(effects.iter().filter_map(|effect| match effect {
            Decision::Evict { workload, .. } => Some(workload.clone()),
            _ => None,
        }));
        apply_decisions(cluster, &effects);
        let names: Vec<String> = cluster.workloads.keys().map(|key| key.name.clone()).collect();
        let evicting: Vec<&String> = names.iter().filter(|name| is_being_evicted(cluster, name)).collect();
        let releasing: Vec<&String> = names.iter().filter(|name| is_releasing_part(cluster, name)).collect();
        if effects.is_empty() && evicting.is_empty() && releasing.is_empty() {
            return Ok(evicted);
        }
        releasing.iter().for_each(|name| release_part(cluster, name));
        evicting.iter().for_each(|name| cluster.release_quota(name));
    }
    Err(TestCaseError::fail(format!("the cluster does not converge; evicted: {evicted:?}")))
}

/// Returns a new scheduler that observed the objects of a cluster, sorted by these numbers, which
/// are repeated as often as needed.
fn restarted_scheduler(cluster: &Cluster, order: &[u16]) -> Scheduler {
    let mut engine = Scheduler::new(cluster.settings.clone());
    let events = cluster.workloads.values().map(Input::Workload);
    let events = events.chain(cluster.local_queues.values().map(Input::LocalQueue));
    let events = events.chain(cluster.cohorts.values().map(Input::Cohort));
    let events = events.chain(cluster.cluster_queues.values().map(Input::ClusterQueue));
    let events = events.chain(cluster.flavors.values().map(Input::ResourceFlavor));
    let mut events: Vec<(u16, Input<'_>)> = order.iter().copied().cycle().zip(events).collect();
    events.sort_by_key(|(number, _)| *number);
    events.iter().for_each(|(_, event)| engine.observe(timestamp(cluster.now), event));
    engine
}

/// Formats decisions as an unordered set, since trees are scheduled in no particular order.
fn decision_texts(effects: &[Decision]) -> BTreeSet<String> {
    let text = |effect: &Decision| match effect {
        Decision::Pending { workload, cause } => format!("{} is pending: {cause}", workload.name),
        effect => format!("{effect:?}"),
    };
    effects.iter().map(text).collect()
}

/// Returns the preemption targets of each preemptor, and how much each of them loses.
fn targets_by_preemptor(effects: &[Decision]) -> BTreeMap<ObjectKey, Vec<(ObjectKey, PreemptionScope)>> {
    let mut targets: BTreeMap<ObjectKey, Vec<(ObjectKey, PreemptionScope)>> = BTreeMap::new();
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
        targets.entry(preemption.preemptor.clone()).or_default().push((workload.clone(), loss));
    }
    targets
}

/// Returns the pending workloads.
fn pending_workloads(cluster: &Cluster) -> Vec<ObjectKey> {
    let is_pending = |key: &&ObjectKey| cluster.pending_cause(&key.name).is_some();
    cluster.workloads.keys().filter(is_pending).cloned().collect()
}

/// Returns the cluster after a restart, with this workload as the only pending one.
fn with_only_pending(cluster: &Cluster, key: &ObjectKey) -> Cluster {
    let mut one = cluster.clone();
    for other in pending_workloads(cluster).into_iter().filter(|other| other != key) {
        one.delete(&other.name);
    }
    one.restart();
    one
}

/// Reports whether a workload was ever admitted, even if it was preempted later.
fn was_admitted(cluster: &Cluster, key: &ObjectKey) -> bool {
    is_admitted(&cluster.decisions, key)
}

fn is_admitted(effects: &[Decision], key: &ObjectKey) -> bool {
    effects.iter().any(|effect| matches!(effect, Decision::Admit { workload, .. } if workload == key))
}

fn is_admitted_when_alone(cluster: &Cluster, key: &ObjectKey) -> bool {
    is_admitted(&with_only_pending(cluster, key).cycle(), key)
}

proptest! {
    #![proptest_config(proptest_config())]

    /// I1: no admission makes the available quota of a ClusterQueue negative, or more negative than
    /// lowered quotas made it.
    #[test]
    fn admissions_never_exceed_quota_of_any_node(plan in cluster_plans(), history in histories()) {
        run_history(&plan, &history, |before, cluster, effects| {
            let mut after = cluster.clone();
            apply_decisions(&mut after, effects);
            let worse = Snapshot::of(&after).newly_overcommitted(before);
            prop_assert!(worse.is_empty(), "{:?}\n{}", worse, before.summary());
            Ok(())
        })?;
    }

    /// The same state and the same inputs give the same decisions.
    #[test]
    fn cycles_are_deterministic(plan in cluster_plans(), history in histories()) {
        let run = || run_history(&plan, &history, |_, _, _| Ok(())).map(|(_, cluster)| cluster.decisions);
        prop_assert_eq!(run()?, run()?);
    }

    /// Decisions do not depend on the order in which objects were observed.
    #[test]
    fn decisions_do_not_depend_on_observation_order(
        plan in cluster_plans(),
        history in histories(),
        order in prop::collection::vec(any::<u16>(), 32),
    ) {
        let (last, before) = history.split_last().expect("histories are not empty");
        let (mut plan, mut cluster) = run_history(&plan, before, |_, _, _| Ok(()))?;
        last.iter().for_each(|act| plan.apply(&mut cluster, act));
        let now = timestamp(cluster.now);
        let decided = |order: &[u16]| decision_texts(&restarted_scheduler(&cluster, order).run_cycle(now));
        prop_assert_eq!(decided(&order), decided(&[0]));
    }

    /// Preemption terminates: no workload is evicted and readmitted in an endless cycle.
    #[test]
    fn preemption_terminates(plan in cluster_plans(), history in histories()) {
        let (_, mut cluster) = run_history(&plan, &history, |_, _, _| Ok(()))?;
        run_until_stable(&mut cluster)?;
        let restarted = { let mut other = cluster.clone(); other.restart(); other.cycle() };
        let moves = restarted.iter().filter(|effect| matches!(effect, Decision::Admit { .. } | Decision::Evict { .. }));
        prop_assert_eq!(moves.count(), 0, "a restarted process decides more: {:?}", restarted);
    }

    /// Every preemption target is necessary for the preemptor's assignment.
    #[test]
    fn preemption_targets_are_minimal(plan in cluster_plans(), history in histories()) {
        run_history(&plan.with_one_flavor_and_best_effort(), &history, |before, cluster, effects| {
            let targets = targets_by_preemptor(effects);
            // Only cycles with one reservation and no admission are checked: the snapshot before the
            // cycle does not contain the others.
            let reservations = cluster.scheduler.reservations.values().flatten().count();
            let admitted = effects.iter().any(|effect| matches!(effect, Decision::Admit { .. }));
            let only_one = reservations == 1 && !admitted;
            for (preemptor, targets) in targets.iter().filter(|_| only_one) {
                let unnecessary = before.unnecessary_target(preemptor, targets);
                prop_assert!(unnecessary.is_none(), "{:?} of {:?}\n{}", unnecessary, targets, before.summary());
            }
            Ok(())
        })?;
    }

    /// Raising a quota never prevents an admission. The workload is admitted or waits for
    /// evictions: with more quota its search may stop at more pods or at an earlier flavor that
    /// needs preemption.
    #[test]
    fn raising_quota_never_prevents_admission(
        plan in cluster_plans(),
        history in histories(),
        queue in 0..5_u8,
        quota in 0..6_usize,
        more in 1..4_u8,
    ) {
        let (mut plan, cluster) = run_history(&plan, &history, |_, _, _| Ok(()))?;
        let mut richer = cluster.clone();
        plan.raise_quota(&mut richer, queue, quota, more);
        for key in pending_workloads(&cluster) {
            if is_admitted_when_alone(&cluster, &key) {
                let mut richer = with_only_pending(&richer, &key);
                let effects = richer.cycle();
                let waits_for_evictions = matches!(richer.pending_cause(&key.name), Some(PendingCause::PreemptionInProgress { .. }));
                prop_assert!(is_admitted(&effects, &key) || waits_for_evictions, "{} is no longer admitted", key.name);
            }
        }
    }

    /// The reported shortfall is exact: raising the quota by it, and nothing else, gets the
    /// workload admitted. A pod set reports its shortfall only once earlier pod sets fit, so this
    /// may take as many rounds as there are pod sets.
    #[test]
    fn reported_shortfall_is_sufficient_for_admission(plan in cluster_plans(), history in histories()) {
        let (plan, mut cluster) = run_history(&plan.with_one_flavor(), &history, |_, _, _| Ok(()))?;
        run_until_stable(&mut cluster)?;
        for key in pending_workloads(&cluster) {
            let (mut plan, mut richer) = (plan.clone(), cluster.clone());
            // For each of two resources: first the quota in use by others, then by earlier pod
            // sets.
            let rounds = 1 + 4 * richer.workloads[&key].spec.pod_sets.len();
            let queue = richer.workloads[&key].spec.queue_name.clone().unwrap_or_default();
            for _ in 0..rounds {
                let mut one = with_only_pending(&richer, &key);
                one.cycle();
                let Some(PendingCause::Quota(rejections)) = one.pending_cause(&key.name) else { break };
                for rejection in rejections {
                    if let FlavorRejection::InsufficientUnused(short) | FlavorRejection::ExceedsMaximum(short) = rejection {
                        prop_assert!(short.missing > Amount::ZERO, "{:?}", short);
                        plan.cover_shortfall(&mut richer, &queue, &short);
                    }
                }
            }
            let mut one = with_only_pending(&richer, &key);
            run_until_stable(&mut one)?;
            let cause = one.pending_cause(&key.name);
            let is_mismatch = |rejection: &FlavorRejection| matches!(rejection, FlavorRejection::Mismatch { .. });
            let flavor_matches = !matches!(&cause, Some(PendingCause::Quota(all)) if all.iter().any(is_mismatch));
            prop_assert!(!flavor_matches || was_admitted(&one, &key), "{}: {:?}", key.name, cause);
        }
    }

    /// Removing all usage and adding it again restores the ledger.
    #[test]
    fn removing_and_adding_usage_restores_the_ledger(plan in cluster_plans(), history in histories()) {
        let (_, cluster) = run_history(&plan, &history, |_, _, _| Ok(()))?;
        let recreate_workloads = |engine: &mut Scheduler| {
            for workload in cluster.workloads.values() {
                engine.observe(timestamp(cluster.now), &Input::WorkloadDeleted(&ObjectKey::of(workload)));
            }
            for workload in cluster.workloads.values() {
                engine.observe(timestamp(cluster.now), &Input::Workload(workload));
            }
        };
        let mut engine = cluster.scheduler.clone();
        // Reservations belong to the last cycle, not to the ledger.
        engine.release_all_reservations();
        let mut other = engine.clone();
        recreate_workloads(&mut other);
        prop_assert_eq!(usage(&other, &cluster), usage(&engine, &cluster));
    }

    /// Replaying the decision log gives the same decisions.
    #[test]
    fn decision_log_replays_without_differences(plan in cluster_plans(), history in histories()) {
        let (mut plan, mut cluster) = (plan.clone(), plan.new_cluster());
        cluster.restart_recording(cluster.settings.clone());
        for acts in &history {
            acts.iter().for_each(|act| plan.apply(&mut cluster, act));
            let effects = cluster.cycle();
            apply_decisions(&mut cluster, &effects);
        }
        let replayed = replay(cluster.decision_log()).expect("a valid log");
        prop_assert_eq!(replayed.first_difference, None);
        prop_assert_eq!((replayed.differences, replayed.truncated_lines, replayed.cycles), (0, 0, history.len()));
    }
}

/// Returns actual and planned usage by node, flavor and resource.
fn usage(engine: &Scheduler, cluster: &Cluster) -> BTreeMap<(String, String, String), (i128, i128)> {
    use crate::tree::UsageView;
    let mut usage = BTreeMap::new();
    let names = cluster.cluster_queues.keys().filter_map(|name| engine.tree.known_cluster_queue(name));
    let nodes = names.chain(cluster.cohorts.keys().filter_map(|name| engine.tree.known_cohort(name)));
    for node in nodes {
        for (flavor, resource) in ["f0", "f1", "f2", "g0", "g1", "g2"]
            .into_iter()
            .flat_map(|flavor| ["gpu", "tpu"].map(|resource| (flavor, resource)))
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
