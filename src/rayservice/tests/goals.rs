//! Convergence: after any sequence of events and faults, a RayService reaches its last spec once
//! faults stop. The harness checks at every write that no serving cluster is deleted and that no
//! cluster receives requests before it is ready.

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::json;

use super::stage::Stage;
use super::{chat, config, version};
use sluice_api::ray::RayCluster;

/// Number of random histories.
const CASES: u32 = 500;

/// Event or fault in the life of a RayService.
#[derive(Debug, Clone)]
enum Happening {
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
    Sense(bool),
    /// Unsuspends all clusters (true), or suspends those that do not serve.
    Gates(bool),
    /// Pods start from now on (true), or do not.
    Pods(bool),
    /// Dashboards reject configurations with this HTTP status from now on, or accept them (None).
    Refusal(Option<u16>),
    /// The head pod of the first cluster is lost.
    LoseHead,
    /// The last cluster is deleted externally, unless it serves.
    DeleteLast,
    /// The operator restarts.
    Restart,
    /// Only so many writes of each of the next plans succeed.
    Partly(usize),
    /// Seconds pass.
    Pass(i64),
}

fn version_wanted() -> impl Strategy<Value = &'static str> {
    select(vec!["2.53.0", "2.54.0", "2.55.0"])
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        4 => version_wanted().prop_map(Happening::Version),
        1 => (1..4usize).prop_map(Happening::Groups),
        1 => select(vec!["one", "two"]).prop_map(Happening::Serve),
        1 => select(vec!["None", "NewCluster"]).prop_map(Happening::Strategy),
        1 => any::<bool>().prop_map(Happening::Suspend),
        1 => any::<bool>().prop_map(Happening::Sense),
        2 => any::<bool>().prop_map(Happening::Gates),
        1 => any::<bool>().prop_map(Happening::Pods),
        1 => select(vec![None, Some(500), Some(400)]).prop_map(Happening::Refusal),
        1 => Just(Happening::LoseHead),
        1 => Just(Happening::DeleteLast),
        1 => Just(Happening::Restart),
        2 => (0..4usize).prop_map(Happening::Partly),
        4 => select(vec![1, 4, 15, 70]).prop_map(Happening::Pass),
    ]
}

fn groups(count: usize) -> serde_json::Value {
    let template = chat()["spec"]["rayClusterConfig"]["workerGroupSpecs"][0].clone();
    let named = |index: usize| {
        let mut group = template.clone();
        group["groupName"] = json!(["small", "medium", "large"][index]);
        group
    };
    json!((0..count).map(named).collect::<Vec<_>>())
}

fn happens(stage: &mut Stage, happening: &Happening) {
    match happening {
        Happening::Version(text) => stage.edit(version(text)),
        Happening::Groups(count) => {
            stage.edit(json!({"spec": {"rayClusterConfig": {"workerGroupSpecs": groups(*count)}}}));
        }
        Happening::Serve(name) => stage.edit(json!({"spec": {"serveConfigV2": config(name)}})),
        Happening::Strategy(strategy) => stage.edit(json!({"spec": {"upgradeStrategy": {"type": strategy}}})),
        Happening::Suspend(suspend) => stage.edit(json!({"spec": {"suspend": suspend}})),
        Happening::Sense(sense) => {
            let delay = if *sense { 60 } else { -1 };
            stage.edit(json!({"spec": {"rayClusterDeletionDelaySeconds": delay}}));
        }
        Happening::Gates(open) => set_gates(stage, *open),
        Happening::Pods(start) => stage.pods_start = *start,
        Happening::Refusal(code) => stage.refusal = *code,
        Happening::LoseHead => {
            if let Some(first) = stage.living().first() {
                stage.lose_head(&first.clone());
            }
        }
        Happening::DeleteLast => {
            let last = stage.living().pop().filter(|last| stage.leads_to().as_ref() != Some(last));
            last.iter().for_each(|last| stage.delete("RayCluster", last));
        }
        Happening::Restart => stage.restart(),
        Happening::Partly(max_writes) => {
            let end = stage.now + jiff::SignedDuration::from_secs(60);
            for _ in 0..5 {
                stage.beat(end, &|index| index < *max_writes);
            }
        }
        Happening::Pass(seconds) => play(stage, *seconds),
    }
}

fn set_gates(stage: &mut Stage, open: bool) {
    let serving = stage.leads_to();
    for name in stage.living() {
        if open || serving.as_ref() != Some(&name) {
            stage.set_gate(&name, open);
        }
    }
}

/// Lets time pass. Whenever nothing is left to write, no more clusters than needed may exist.
fn play(stage: &mut Stage, seconds: i64) {
    let end = stage.now + jiff::SignedDuration::from_secs(seconds);
    while stage.now < end {
        if stage.beat(end, &|_| true) == 0 {
            let needed = stage.living().into_iter().filter(|name| !stage.is_left(name)).count();
            assert!(needed <= 2, "{:?} exist, and requests go to {:?}", stage.living(), stage.leads_to());
        }
    }
}

/// Stops all faults and requests this spec.
fn ends_well(stage: &mut Stage, wanted: &'static str, count: usize) {
    for happening in [
        Happening::Pods(true),
        Happening::Refusal(None),
        Happening::Sense(true),
        Happening::Strategy("NewCluster"),
        Happening::Suspend(false),
        Happening::Serve("two"),
        Happening::Version(wanted),
        Happening::Groups(count),
    ] {
        happens(stage, &happening);
    }
    for _ in 0..20 {
        set_gates(stage, true);
        play(stage, 10);
    }
}

/// The replacement is a new cluster and may be deleted immediately: only its name is that of a
/// cluster that has served.
#[test]
fn recreated_cluster_with_the_name_of_one_that_served_is_deleted_without_delay() {
    let mut stage = Stage::new(chat());
    play(&mut stage, 30);
    for happening in [
        Happening::Version("2.55.0"),
        Happening::Pass(4),
        Happening::DeleteLast,
        Happening::Version("2.53.0"),
        Happening::Partly(1),
    ] {
        happens(&mut stage, &happening);
    }

    ends_well(&mut stage, "2.54.0", 1);

    let [cluster] = stage.living().try_into().expect("one cluster is left");
    assert_eq!(stage.cluster(&cluster).spec.ray_version.as_deref(), Some("2.54.0"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, ..ProptestConfig::default() })]

    #[test]
    fn last_spec_is_served_by_a_single_cluster_after_any_history(
        gated in any::<bool>(),
        serves in any::<bool>(),
        happenings in prop::collection::vec(happening(), 0..12),
        wanted in version_wanted(),
        count in prop_oneof![4 => Just(1), 1 => 2..4usize],
    ) {
        let mut stage = Stage::new(chat());
        stage.gated = gated;
        if serves {
            for _ in 0..6 {
                set_gates(&mut stage, true);
                play(&mut stage, 5);
            }
        }
        happenings.iter().for_each(|happening| happens(&mut stage, happening));

        ends_well(&mut stage, wanted, count);

        let clusters: Vec<RayCluster> =
            stage.clusters().into_iter().filter(|cluster| cluster.metadata.deletion_timestamp.is_none()).collect();
        let [cluster] = clusters.as_slice() else { panic!("{:?} exist", stage.living()) };
        prop_assert_eq!(cluster.spec.ray_version.as_deref(), Some(wanted));
        prop_assert_eq!(cluster.spec.worker_group_specs.len(), count);
        prop_assert_eq!(stage.leads_to(), cluster.metadata.name.clone());
        let name = cluster.metadata.name.clone().unwrap_or_default();
        let applied = stage.applied(&name);
        prop_assert_eq!(&applied.last().expect("a configuration")["applications"][0]["name"], "two");
        prop_assert_eq!(stage.condition("Ready").map(|(status, _)| status), Some("True".to_owned()));
    }
}
