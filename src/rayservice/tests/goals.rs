//! Any goal from any state: whatever has happened to a service, once things go well it comes to be what is asked for last. That
//! nothing which serves is deleted, and nothing gets requests before it is ready, the stage sees to at every write.

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::json;

use super::stage::Stage;
use super::{chat, config, version};
use sluice_api::ray::RayCluster;

/// How many histories are tried.
const CASES: u32 = 500;

/// Something that happens to a service.
#[derive(Debug, Clone)]
enum Happening {
    /// Another Ray version is asked for.
    Version(&'static str),
    /// So many worker groups are asked for.
    Groups(usize),
    /// Something else is to be served.
    Serve(&'static str),
    /// Upgrades are switched off, or on.
    Strategy(&'static str),
    /// The service is suspended, or resumed.
    Suspend(bool),
    /// The spec makes no sense, or does again.
    Sense(bool),
    /// The gates of all clusters are opened, or those of clusters that serve nobody are closed.
    Gates(bool),
    /// Pods come up from now on, or don't.
    Pods(bool),
    /// Dashboards refuse configurations from now on, or don't.
    Refusal(Option<u16>),
    /// The head of the first cluster dies.
    LoseHead,
    /// Somebody deletes the last cluster, unless it serves.
    DeleteLast,
    /// A new process takes over.
    Restart,
    /// Of the next plans, only so many writes get through.
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
        Happening::Partly(most) => {
            let end = stage.now + jiff::SignedDuration::from_secs(60);
            for _ in 0..5 {
                stage.beat(end, &|index| index < *most);
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

/// Lets time pass. When there is nothing left to write, there are no more clusters than are needed.
fn play(stage: &mut Stage, seconds: i64) {
    let end = stage.now + jiff::SignedDuration::from_secs(seconds);
    while stage.now < end {
        if stage.beat(end, &|_| true) == 0 {
            let needed = stage.living().into_iter().filter(|name| !stage.is_left(name)).count();
            assert!(needed <= 2, "{:?} are there, and requests go to {:?}", stage.living(), stage.leads_to());
        }
    }
}

/// All goes well from now on, and this is asked for.
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

/// What replaced it is new, and may go at once: only the name is that of a cluster that has served.
#[test]
fn a_cluster_made_anew_under_the_name_of_one_that_has_served_need_not_be_kept() {
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
    fn whatever_has_happened_what_is_asked_for_last_comes_to_serve_alone(
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
        let [cluster] = clusters.as_slice() else { panic!("{:?} are there", stage.living()) };
        prop_assert_eq!(cluster.spec.ray_version.as_deref(), Some(wanted));
        prop_assert_eq!(cluster.spec.worker_group_specs.len(), count);
        prop_assert_eq!(stage.leads_to(), cluster.metadata.name.clone());
        let name = cluster.metadata.name.clone().unwrap_or_default();
        let applied = stage.applied(&name);
        prop_assert_eq!(&applied.last().expect("a configuration")["applications"][0]["name"], "two");
        prop_assert_eq!(stage.condition("Ready").map(|(status, _)| status), Some("True".to_owned()));
    }
}
