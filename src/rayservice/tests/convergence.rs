//! Convergence: after any sequence of events and faults, a RayService reaches its last spec once
//! faults stop. The harness checks at every write that no serving cluster is deleted and that no
//! cluster receives requests before it is ready.

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::json;

use super::harness::Harness;
use super::{chat_service, ray_version_patch, serve_config};
use sluice_api::ray::RayCluster;

/// Number of random histories.
const CASES: u32 = 500;

/// Event or fault in the life of a RayService.
#[derive(Debug, Clone)]
enum ScenarioEvent {
    /// Sets the Ray version.
    Version(&'static str),
    /// Sets the number of worker groups.
    Groups(usize),
    /// Sets the application to serve.
    Serve(&'static str),
    /// Sets the upgrade strategy.
    Strategy(&'static str),
    /// Suspends or resumes the RayService.
    Suspend(bool),
    /// Makes the spec valid (true) or invalid.
    ValidSpec(bool),
    /// Unsuspends all clusters (true), or suspends those that do not serve.
    Unsuspended(bool),
    /// Pods start from now on (true), or do not.
    PodsStart(bool),
    /// Dashboards reject configurations with this HTTP status from now on, or accept them (None).
    RejectConfigs(Option<u16>),
    /// The head pod of the first cluster is lost.
    LoseHead,
    /// The last cluster is deleted externally, unless it serves.
    DeleteLast,
    /// The operator restarts.
    Restart,
    /// Only so many writes of each of the next plans succeed.
    LimitWrites(usize),
    /// Seconds pass.
    Pass(i64),
}

fn any_version() -> impl Strategy<Value = &'static str> {
    select(vec!["2.53.0", "2.54.0", "2.55.0"])
}

fn any_event() -> impl Strategy<Value = ScenarioEvent> {
    prop_oneof![
        4 => any_version().prop_map(ScenarioEvent::Version),
        1 => (1..4usize).prop_map(ScenarioEvent::Groups),
        1 => select(vec!["one", "two"]).prop_map(ScenarioEvent::Serve),
        1 => select(vec!["None", "NewCluster"]).prop_map(ScenarioEvent::Strategy),
        1 => any::<bool>().prop_map(ScenarioEvent::Suspend),
        1 => any::<bool>().prop_map(ScenarioEvent::ValidSpec),
        2 => any::<bool>().prop_map(ScenarioEvent::Unsuspended),
        1 => any::<bool>().prop_map(ScenarioEvent::PodsStart),
        1 => select(vec![None, Some(500), Some(400)]).prop_map(ScenarioEvent::RejectConfigs),
        1 => Just(ScenarioEvent::LoseHead),
        1 => Just(ScenarioEvent::DeleteLast),
        1 => Just(ScenarioEvent::Restart),
        2 => (0..4usize).prop_map(ScenarioEvent::LimitWrites),
        4 => select(vec![1, 4, 15, 70]).prop_map(ScenarioEvent::Pass),
    ]
}

fn groups(count: usize) -> serde_json::Value {
    let template = chat_service()["spec"]["rayClusterConfig"]["workerGroupSpecs"][0].clone();
    let named = |index: usize| {
        let mut group = template.clone();
        group["groupName"] = json!(["small", "medium", "large"][index]);
        group
    };
    json!((0..count).map(named).collect::<Vec<_>>())
}

fn apply_event(harness: &mut Harness, happening: &ScenarioEvent) {
    match happening {
        ScenarioEvent::Version(text) => harness.patch_service(ray_version_patch(text)),
        ScenarioEvent::Groups(count) => {
            harness.patch_service(json!({"spec": {"rayClusterConfig": {"workerGroupSpecs": groups(*count)}}}));
        }
        ScenarioEvent::Serve(name) => harness.patch_service(json!({"spec": {"serveConfigV2": serve_config(name)}})),
        ScenarioEvent::Strategy(strategy) => {
            harness.patch_service(json!({"spec": {"upgradeStrategy": {"type": strategy}}}));
        }
        ScenarioEvent::Suspend(suspend) => harness.patch_service(json!({"spec": {"suspend": suspend}})),
        ScenarioEvent::ValidSpec(sense) => {
            let delay = if *sense { 60 } else { -1 };
            harness.patch_service(json!({"spec": {"rayClusterDeletionDelaySeconds": delay}}));
        }
        ScenarioEvent::Unsuspended(open) => set_gates(harness, *open),
        ScenarioEvent::PodsStart(start) => harness.pods_start = *start,
        ScenarioEvent::RejectConfigs(code) => harness.rejection_code = *code,
        ScenarioEvent::LoseHead => {
            if let Some(first) = harness.live_clusters().first() {
                harness.lose_head(&first.clone());
            }
        }
        ScenarioEvent::DeleteLast => {
            let last = harness.live_clusters().pop().filter(|last| harness.selected_cluster().as_ref() != Some(last));
            last.iter().for_each(|last| harness.delete("RayCluster", last));
        }
        ScenarioEvent::Restart => harness.restart(),
        ScenarioEvent::LimitWrites(max_writes) => {
            let end = harness.now + jiff::SignedDuration::from_secs(60);
            for _ in 0..5 {
                harness.run_once(end, &|index| index < *max_writes);
            }
        }
        ScenarioEvent::Pass(seconds) => run_and_check(harness, *seconds),
    }
}

fn set_gates(harness: &mut Harness, open: bool) {
    let serving = harness.selected_cluster();
    for name in harness.live_clusters() {
        if open || serving.as_ref() != Some(&name) {
            harness.set_unsuspended(&name, open);
        }
    }
}

/// Lets time pass. Whenever nothing is left to write, no more clusters than needed may exist.
fn run_and_check(harness: &mut Harness, seconds: i64) {
    let end = harness.now + jiff::SignedDuration::from_secs(seconds);
    while harness.now < end {
        if harness.run_once(end, &|_| true) == 0 {
            let needed = harness.live_clusters().into_iter().filter(|name| !harness.has_stopped_serving(name)).count();
            assert!(
                needed <= 2,
                "{:?} exist, and requests go to {:?}",
                harness.live_clusters(),
                harness.selected_cluster()
            );
        }
    }
}

/// Stops all faults and requests this spec.
fn converge(harness: &mut Harness, wanted: &'static str, count: usize) {
    for happening in [
        ScenarioEvent::PodsStart(true),
        ScenarioEvent::RejectConfigs(None),
        ScenarioEvent::ValidSpec(true),
        ScenarioEvent::Strategy("NewCluster"),
        ScenarioEvent::Suspend(false),
        ScenarioEvent::Serve("two"),
        ScenarioEvent::Version(wanted),
        ScenarioEvent::Groups(count),
    ] {
        apply_event(harness, &happening);
    }
    for _ in 0..20 {
        set_gates(harness, true);
        run_and_check(harness, 10);
    }
}

/// The replacement is a new cluster and may be deleted immediately: only its name is that of a
/// cluster that has served.
#[test]
fn recreated_cluster_with_the_name_of_one_that_served_is_deleted_without_delay() {
    let mut harness = Harness::new(chat_service());
    run_and_check(&mut harness, 30);
    for happening in [
        ScenarioEvent::Version("2.55.0"),
        ScenarioEvent::Pass(4),
        ScenarioEvent::DeleteLast,
        ScenarioEvent::Version("2.53.0"),
        ScenarioEvent::LimitWrites(1),
    ] {
        apply_event(&mut harness, &happening);
    }

    converge(&mut harness, "2.54.0", 1);

    let [cluster] = harness.live_clusters().try_into().expect("one cluster is left");
    assert_eq!(harness.cluster(&cluster).spec.ray_version.as_deref(), Some("2.54.0"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, ..ProptestConfig::default() })]

    #[test]
    fn last_spec_is_served_by_a_single_cluster_after_any_history(
        gated in any::<bool>(),
        serves in any::<bool>(),
        happenings in prop::collection::vec(any_event(), 0..12),
        wanted in any_version(),
        count in prop_oneof![4 => Just(1), 1 => 2..4usize],
    ) {
        let mut harness = Harness::new(chat_service());
        harness.is_queued = gated;
        if serves {
            for _ in 0..6 {
                set_gates(&mut harness, true);
                run_and_check(&mut harness, 5);
            }
        }
        happenings.iter().for_each(|happening| apply_event(&mut harness, happening));

        converge(&mut harness, wanted, count);

        let clusters: Vec<RayCluster> =
            harness.clusters().into_iter().filter(|cluster| cluster.metadata.deletion_timestamp.is_none()).collect();
        let [cluster] = clusters.as_slice() else { panic!("{:?} exist", harness.live_clusters()) };
        prop_assert_eq!(cluster.spec.ray_version.as_deref(), Some(wanted));
        prop_assert_eq!(cluster.spec.worker_group_specs.len(), count);
        prop_assert_eq!(harness.selected_cluster(), cluster.metadata.name.clone());
        let name = cluster.metadata.name.clone().unwrap_or_default();
        let applied = harness.applied_configs(&name);
        prop_assert_eq!(&applied.last().expect("a configuration")["applications"][0]["name"], "two");
        prop_assert_eq!(harness.condition("Ready").map(|(status, _)| status), Some("True".to_owned()));
    }
}
