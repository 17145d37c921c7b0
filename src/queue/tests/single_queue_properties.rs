//! Invariants of a single ClusterQueue under random histories.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::fixture::{Cluster, group, object_key, replacing, timestamp};
use super::proptest_config;
use crate::log::{Difference, replay};
use crate::settings::{FairSharing, Requeuing, WaitForPodsReady};
use crate::tree::UsageView;
use crate::{Decision, Input, ObjectKey, PendingCause, Settings};
use sluice_api::kueue::names;

/// Change of the cluster. Workloads have small numbers, so that a history uses each several times.
#[derive(Debug, Clone)]
enum Change {
    Submit {
        id: u8,
        cpu: u8,
        gpu: u8,
        count: u8,
        priority: i8,
    },
    Replace {
        id: u8,
        predecessor: u8,
        count: u8,
    },
    Resize {
        id: u8,
        count: u8,
    },
    Finish(u8),
    Delete(u8),
    SetDeletionTimestamp(u8),
    SetActive(u8, bool),
    ReleaseQuota(u8),
    SetQuota {
        cpu: u8,
        spot: u8,
        gpu: u8,
    },
    SetStrict(bool),
    StopClusterQueue(&'static str),
    StopLocalQueue(&'static str),
    DeleteLocalQueue,
    /// Moves a workload to another LocalQueue.
    MoveToLocalQueue(u8, &'static str),
    DeleteFlavor,
    CreateFlavor,
    /// Runs a cycle and applies only the decisions whose bit is set; the others are lost.
    ApplySomeDecisions(u32),
    RejectAdmission(u8),
    Restart,
    Run,
}

fn changes() -> impl Strategy<Value = Change> {
    let id = || 0..8_u8;
    let policy = || prop_oneof![Just("None"), Just("Hold"), Just("HoldAndDrain")];
    prop_oneof![
        6 => (id(), 0..6_u8, 0..3_u8, 0..4_u8, -1..2_i8).prop_map(|(id, cpu, gpu, count, priority)| Change::Submit { id, cpu, gpu, count, priority }),
        4 => (id(), id(), 0..5_u8).prop_map(|(id, predecessor, count)| Change::Replace { id, predecessor, count }),
        2 => (id(), 0..4_u8).prop_map(|(id, count)| Change::Resize { id, count }),
        2 => id().prop_map(Change::Finish),
        1 => id().prop_map(Change::Delete),
        1 => id().prop_map(Change::SetDeletionTimestamp),
        2 => (id(), any::<bool>()).prop_map(|(id, active)| Change::SetActive(id, active)),
        2 => id().prop_map(Change::ReleaseQuota),
        2 => (0..12_u8, 0..6_u8, 0..6_u8).prop_map(|(cpu, spot, gpu)| Change::SetQuota { cpu, spot, gpu }),
        1 => any::<bool>().prop_map(Change::SetStrict),
        1 => policy().prop_map(Change::StopClusterQueue),
        1 => policy().prop_map(Change::StopLocalQueue),
        1 => Just(Change::DeleteLocalQueue),
        1 => (id(), prop_oneof![Just("lq"), Just("lq2")]).prop_map(|(id, queue)| Change::MoveToLocalQueue(id, queue)),
        1 => Just(Change::DeleteFlavor),
        2 => Just(Change::CreateFlavor),
        4 => any::<u32>().prop_map(Change::ApplySomeDecisions),
        1 => id().prop_map(Change::RejectAdmission),
        1 => Just(Change::Restart),
        4 => Just(Change::Run),
    ]
}

fn workload_name(id: u8) -> String {
    format!("w{id}")
}

fn resource_groups(cpu: u8, spot: u8, gpu: u8) -> serde_json::Value {
    let (cpu, spot, gpu) = (cpu.to_string(), spot.to_string(), gpu.to_string());
    json!([
        group(&["cpu"], &[("default", &[&cpu]), ("spot", &[&spot])]),
        group(&["nvidia.com/gpu"], &[("a100", &[&gpu])])
    ])
}

fn new_cluster() -> Cluster {
    let mut cluster = Cluster::with(json!({"namespaceSelector": {}, "resourceGroups": resource_groups(8, 4, 3)}));
    cluster.put_local_queue("lq2", json!({"clusterQueue": "cq"}));
    cluster
}

fn apply(cluster: &mut Cluster, act: &Change) {
    let exists = |cluster: &Cluster, id: u8| cluster.workloads.contains_key(&object_key(&workload_name(id)));
    cluster.now += 1;
    match act {
        Change::Submit { id, cpu, gpu, count, priority } if !exists(cluster, *id) => {
            let requests = json!({"cpu": cpu.to_string(), "nvidia.com/gpu": gpu.to_string()});
            let sets = [("head", 1, json!({"cpu": "1"})), ("worker", i32::from(*count), requests)];
            let mut workload = cluster.workload(&workload_name(*id), &sets);
            workload.spec.priority = Some(i32::from(*priority));
            cluster.put(workload);
        }
        Change::Replace { id, predecessor, count } if !exists(cluster, *id) && exists(cluster, *predecessor) => {
            let mut workload = cluster.workload(&workload_name(*id), &[]);
            workload.spec = cluster.workloads[&object_key(&workload_name(*predecessor))].spec.clone();
            if let Some(set) = workload.spec.pod_sets.last_mut() {
                set.count = i32::from(*count);
            }
            cluster.put(replacing(workload, &workload_name(*predecessor)));
        }
        Change::Resize { id, count } if exists(cluster, *id) => cluster.update(&workload_name(*id), |workload| {
            if let Some(set) = workload.spec.pod_sets.last_mut() {
                set.count = i32::from(*count);
            }
        }),
        Change::Finish(id) if exists(cluster, *id) => cluster.finish(&workload_name(*id)),
        Change::Delete(id) if exists(cluster, *id) => cluster.delete(&workload_name(*id)),
        Change::SetDeletionTimestamp(id) if exists(cluster, *id) => {
            let deleted_at = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(timestamp(cluster.now));
            cluster.update(&workload_name(*id), |workload| workload.metadata.deletion_timestamp = Some(deleted_at));
        }
        Change::SetActive(id, active) if exists(cluster, *id) => {
            cluster.update(&workload_name(*id), |workload| workload.spec.active = Some(*active));
        }
        Change::ReleaseQuota(id) if cluster.is_true(&workload_name(*id), names::EVICTED) => {
            cluster.release_quota(&workload_name(*id));
        }
        Change::SetQuota { cpu, spot, gpu } => {
            cluster.patch_cluster_queue(json!({"resourceGroups": resource_groups(*cpu, *spot, *gpu)}));
        }
        Change::SetStrict(strict) => {
            let strategy = if *strict { "StrictFIFO" } else { "BestEffortFIFO" };
            cluster.patch_cluster_queue(json!({"queueingStrategy": strategy}));
        }
        Change::StopClusterQueue(policy) => cluster.patch_cluster_queue(json!({"stopPolicy": policy})),
        Change::StopLocalQueue(policy) => {
            cluster.put_local_queue("lq", json!({"clusterQueue": "cq", "stopPolicy": policy}));
        }
        Change::DeleteLocalQueue => cluster.delete_local_queue("lq"),
        Change::MoveToLocalQueue(id, queue) if exists(cluster, *id) => {
            cluster.update(&workload_name(*id), |workload| workload.spec.queue_name = Some((*queue).to_owned()));
        }
        Change::DeleteFlavor => {
            cluster.flavors.remove("spot");
            cluster.observe(&Input::ResourceFlavorDeleted("spot"));
        }
        Change::CreateFlavor => cluster.put_flavor("spot"),
        Change::ApplySomeDecisions(kept) => {
            let effects = cluster.cycle();
            let kept = effects.iter().enumerate().filter(|(index, _)| kept & (1 << (index % 32)) != 0);
            kept.for_each(|(_, effect)| cluster.apply_decision(effect));
        }
        Change::RejectAdmission(id) => cluster.observe(&Input::AdmissionRejected(&object_key(&workload_name(*id)))),
        Change::Restart => cluster.restart(),
        Change::Run => drop(cluster.run_until_stable()),
        _ => {}
    }
}

/// Returns usage by flavor and resource, summed up from the usage of each workload.
fn recomputed_usage(cluster: &Cluster) -> BTreeMap<(String, String), i128> {
    let mut usage = BTreeMap::new();
    for (_, charge) in cluster.scheduler.recomputed_usage("cq") {
        for (fr, amount) in charge {
            let at = cluster.scheduler.tree.flavor_resource(fr);
            *usage.entry((at.flavor.clone(), at.resource.clone())).or_insert(0) += amount;
        }
    }
    usage
}

/// Checks that the ledger and the tree equal the sum of all workloads' usage, and that no admission
/// exceeds the nominal quota.
fn check_ledger(cluster: &Cluster, before: &BTreeMap<(String, String), i128>) -> Result<(), TestCaseError> {
    let after = recomputed_usage(cluster);
    let state = cluster.scheduler.cluster_queues.get_by_name("cq").expect("the ClusterQueue is known");
    let tree = &cluster.scheduler.tree;
    let quota = state.config.as_ref().expect("the ClusterQueue is there");
    for (at, limits) in &quota.node_spec().limits {
        let pair = (at.flavor.clone(), at.resource.clone());
        let (was, is) = (before.get(&pair).copied().unwrap_or(0), after.get(&pair).copied().unwrap_or(0));
        let fr = tree.known_flavor_resource(&at.flavor, &at.resource).expect("it has a number");
        prop_assert_eq!(state.ledger.totals.reserved(fr), is, "ledger usage of {:?}", pair);
        let node = tree.known_cluster_queue("cq").expect("it has a number");
        prop_assert_eq!(tree.usage(node, fr, UsageView::Actual), is, "tree usage of {:?}", pair);
        let nominal = i128::from(limits.nominal.get());
        prop_assert!(is <= was || is <= nominal, "{:?} went from {} to {} of {}", pair, was, is, nominal);
    }
    Ok(())
}

fn settings() -> impl Strategy<Value = Settings> {
    let ready = |limit| WaitForPodsReady {
        timeout: jiff::SignedDuration::from_secs(20),
        recovery_timeout: None,
        unscheduled_timeout: None,
        block_admission: limit == 2,
        requeuing: Requeuing { backoff_limit_count: Some(limit), ..Requeuing::default() },
    };
    (any::<bool>(), prop::option::of(0..3_u32)).prop_map(move |(fair, limit)| Settings {
        fair_sharing: fair.then(FairSharing::default),
        wait_for_pods_ready: limit.map(ready),
        ..Settings::default()
    })
}

/// Returns the decision log of a history with preemption enabled.
fn record_history(settings: Settings, history: &[Change]) -> Vec<String> {
    let mut cluster = new_cluster();
    cluster.patch_cluster_queue(json!({"preemption": {"withinClusterQueue": "LowerPriority"}}));
    cluster.restart_recording(settings);
    history.iter().for_each(|act| apply(&mut cluster, act));
    cluster.decision_log()
}

/// Changes one decision of a log; returns its line and its position in the line, both counted from
/// 1, or `None` if the log has no decision.
fn corrupt_decision(log: &mut [String], choice: prop::sample::Index) -> Option<(usize, usize)> {
    let decisions = |line: &String| {
        let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
        line.pointer("/cycle/decisions").and_then(|all| all.as_array().map(Vec::len)).unwrap_or(0)
    };
    let places = log.iter().enumerate().flat_map(|(line, text)| (0..decisions(text)).map(move |place| (line, place)));
    let places: Vec<(usize, usize)> = places.collect();
    let (line, place) = *places.get(choice.index(places.len().max(1)))?;
    let mut value: serde_json::Value = serde_json::from_str(&log[line]).expect("JSON");
    let decision = value.pointer_mut(&format!("/cycle/decisions/{place}")).and_then(|one| one.as_object_mut());
    for (_, decided) in decision.expect("a decision") {
        decided["workload"] = json!("team/other-workload");
    }
    log[line] = value.to_string();
    Some((line + 1, place + 1))
}

proptest! {
    #![proptest_config(proptest_config())]

    /// I1 and I4, after every change of every history.
    #[test]
    fn admission_never_exceeds_quota_and_ledger_equals_sum_of_usage(history in prop::collection::vec(changes(), 1..60)) {
        let mut cluster = new_cluster();
        for act in &history {
            let before = recomputed_usage(&cluster);
            apply(&mut cluster, act);
            match act {
                // A run frees quota and assigns it again, so only the final state is comparable.
                Change::Run => check_ledger(&cluster, &recomputed_usage(&cluster))?,
                _ => check_ledger(&cluster, &before)?,
            }
        }
    }

    /// I5: in a converged cluster no pending workload would fit, except behind a StrictFIFO head.
    #[test]
    fn no_pending_workload_fits_after_convergence(history in prop::collection::vec(changes(), 1..60)) {
        let mut cluster = new_cluster();
        for act in &history {
            apply(&mut cluster, act);
        }
        cluster.run_until_stable();
        // More than the age at which the numbers in the first pending message are refreshed.
        cluster.now += 61;
        cluster.run_until_stable();
        let first = cluster.scheduler.queued_workloads().into_iter().next();
        let strict = cluster.scheduler.cluster_queues.get_by_name("cq").and_then(|state| state.config.as_ref()).is_some_and(|quota| quota.strict_fifo);
        for key in cluster.workloads.keys() {
            match cluster.scheduler.explain(key) {
                Some(PendingCause::BehindHead { .. }) => prop_assert!(strict),
                Some(why) => {
                    let (reason, message) = cluster.reason_and_message(&key.name, names::QUOTA_RESERVED);
                    prop_assert_eq!(reason, why.reason().as_str());
                    prop_assert!(first.as_ref() != Some(key) || message == why.to_string(), "{} instead of {}", message, why);
                }
                None => {}
            }
            prop_assert_eq!(cluster.scheduler.decision_for(&crate::DecisionTarget::Workload(key.clone())), None);
        }
        let fits = cluster.scheduler.queued_workloads().into_iter().filter(|key| cluster.scheduler.would_fit(key)).collect::<Vec<ObjectKey>>();
        prop_assert!(fits.is_empty() || strict, "{:?} would fit", fits);
        if strict && let Some(head) = cluster.scheduler.queued_workloads().first() {
            prop_assert!(!cluster.scheduler.would_fit(head), "the head {:?} would fit", head);
        }
    }

    /// The same history gives the same decisions.
    #[test]
    fn same_history_gives_same_decisions(history in prop::collection::vec(changes(), 1..40)) {
        let run = || {
            let mut cluster = new_cluster();
            for act in &history {
                apply(&mut cluster, act);
            }
            cluster.decisions
        };
        prop_assert_eq!(run(), run());
    }

    /// I7: a restarted process converges to the same state.
    #[test]
    fn restart_after_convergence_decides_nothing(history in prop::collection::vec(changes(), 1..40)) {
        let mut cluster = new_cluster();
        for act in history.iter().filter(|act| !matches!(act, Change::RejectAdmission(_))) {
            apply(&mut cluster, act);
        }
        cluster.run_until_stable();
        cluster.now += 60;
        cluster.run_until_stable();
        cluster.restart();
        let effects: Vec<Decision> = cluster.cycle();
        prop_assert_eq!(effects, vec![]);
    }

    /// Replaying the decision log of a history gives the same decisions, and replay detects a
    /// changed decision.
    #[test]
    fn decision_log_replays_and_detects_changed_decision(
        settings in settings(),
        history in prop::collection::vec(changes(), 1..40),
        choice in any::<prop::sample::Index>(),
    ) {
        let mut log = record_history(settings, &history);
        let replayed = replay(&log).expect("a valid log");
        prop_assert_eq!(replayed.first_difference, None);
        prop_assert_eq!((replayed.differences, replayed.truncated_lines), (0, 0));
        prop_assert_eq!(replayed.sections, 1 + history.iter().filter(|act| matches!(act, Change::Restart)).count());
        prop_assert_eq!(replayed.sections + replayed.inputs + replayed.cycles, log.len());

        let Some((line, decision)) = corrupt_decision(&mut log, choice) else {
            prop_assert_eq!(replayed.decisions, 0);
            return Ok(());
        };
        let found = replay(&log).expect("a readable log");
        prop_assert_eq!(found.differences, 1);
        let first = found.first_difference.map(|Difference { line, decision, .. }| (line, decision));
        prop_assert_eq!(first, Some((line, decision)));
    }
}
