use rstest::rstest;
use serde_json::json;

use super::super::read::{condition, text};
use super::super::{Fate, FateList, Fates, Nodes, Odds, Pace};
use super::{Chance, Propagation, Scene, pod, with};

#[rstest]
#[case::slow(Fate::Slow { after_ms: 3_000 }, 3_019, ("Pending", ""), ("Running", "True"))]
#[case::fails_early(Fate::Fails { after_ms: 100 }, 119, ("Pending", ""), ("Failed", "False"))]
#[case::fails_late(Fate::Fails { after_ms: 5_000 }, 5_019, ("Running", "True"), ("Failed", "False"))]
#[case::restarts(Fate::Restarts { after_ms: 1_000, for_ms: 500 }, 1_019, ("Running", "True"), ("Running", "False"))]
#[case::recovers(Fate::Restarts { after_ms: 1_000, for_ms: 500 }, 1_519, ("Running", "False"), ("Running", "True"))]
#[case::never_starts(Fate::NeverStarts, 219, ("Pending", ""), ("Pending", "False"))]
#[case::never_ready(Fate::NeverReady, 219, ("Pending", ""), ("Running", "False"))]
fn pod_fault_triggers_at_its_time(
    #[case] fault: Fate,
    #[case] at: u64,
    #[case] before: (&str, &str),
    #[case] after: (&str, &str),
) {
    let mut scene = Scene::fated([fault]);
    scene.create(pod("a"));

    scene.run(at);
    assert_eq!(scene.state("a"), before);
    scene.run(1);
    assert_eq!(scene.state("a"), after);

    assert_eq!(scene.cluster.struck().pods.get(&0), Some(&fault));
}

#[test]
fn restarted_container_has_a_restart_count() {
    let mut scene = Scene::fated([Fate::Restarts { after_ms: 1_000, for_ms: 500 }]);
    scene.create(pod("a"));

    scene.run(10_000);

    let ray = &scene.pod("a")["status"]["containerStatuses"][0];
    assert_eq!((&ray["restartCount"], &ray["ready"]), (&json!(1), &json!(true)));
    assert_eq!(ray["lastState"]["terminated"]["exitCode"], 1);
}

#[test]
fn pod_with_restart_policy_never_fails_with_its_containers() {
    let mut scene = Scene::fated([Fate::Restarts { after_ms: 1_000, for_ms: 500 }]);
    scene.create(with(pod("a"), "/spec/restartPolicy", json!("Never")));

    scene.run(10_000);

    assert_eq!(scene.state("a"), ("Failed", "False"));
}

#[test]
fn evicted_pod_has_condition_disruption_target() {
    let mut scene = Scene::fated([Fate::Evicted { after_ms: 1_000 }]);
    scene.create(pod("a"));

    scene.run(1_020);
    assert_eq!(condition(scene.pod("a"), "DisruptionTarget"), "True");
    assert!(!text(scene.pod("a"), "/metadata/deletionTimestamp").is_empty());

    scene.run(10);
    assert!(scene.find("Pod", "a").is_none());
}

#[test]
fn drain_evicts_exactly_the_pods_of_the_node() {
    let drained =
        Fates::listed(FateList { pods: [(1, Fate::Drained { after_ms: 1_000 })].into(), ..FateList::default() });
    let mut scene = Scene::with(Nodes::alike(2), Pace::steady(Chance::new(0)), drained);
    for name in ["a", "b", "c", "d"] {
        scene.create(pod(name));
        scene.run(100);
    }
    let node = |name: &str, scene: &Scene| text(scene.pod(name), "/spec/nodeName").to_owned();
    assert_eq!(["a", "b", "c", "d"].map(|name| node(name, &scene)), ["node-0", "node-1", "node-0", "node-1"]);

    scene.run(2_000);

    assert_eq!(["a", "b", "c", "d"].map(|name| scene.find("Pod", name).is_some()), [true, false, true, false]);
}

#[test]
fn slow_termination_delays_the_end_of_a_deleted_pod() {
    let mut scene = Scene::fated([Fate::Lingers { for_ms: 30_000 }]);
    scene.create(pod("a"));
    scene.run(1_000);

    scene.delete("Pod", "a", Propagation::Background);
    scene.run(29_999);
    assert!(scene.find("Pod", "a").is_some());

    scene.run(1);
    assert!(scene.find("Pod", "a").is_none());
}

#[test]
fn steered_pod_has_no_fault() {
    let mut scene = Scene::fated([Fate::Fails { after_ms: 1_000 }]);
    scene.create(with(pod("a"), "/metadata/annotations", json!({"testenv.sluice.dev/phase": "never-ready"})));

    scene.run(10_000);

    assert_eq!(scene.state("a"), ("Running", "False"));
    assert!(scene.cluster.struck().pods.is_empty());
}

#[test]
fn pods_become_ready_once_faults_are_disabled() {
    let mut scene = Scene::fated([
        Fate::NeverReady,
        Fate::Slow { after_ms: 60_000 },
        Fate::Restarts { after_ms: 500, for_ms: 60_000 },
        Fate::Fails { after_ms: 5_000 },
        Fate::Lingers { for_ms: 60_000 },
        Fate::Evicted { after_ms: 5_000 },
        Fate::NeverStarts,
    ]);
    let names = ["a", "b", "c", "d", "lingers", "f", "g"];
    for name in names {
        scene.create(pod(name));
    }
    scene.run(1_000);
    scene.delete("Pod", "lingers", Propagation::Background);

    scene.cluster.heal(scene.now);
    scene.run(1_000);

    assert!(scene.find("Pod", "lingers").is_none());
    scene.run(60_000);
    for name in names.into_iter().filter(|name| *name != "lingers") {
        assert_eq!(scene.state(name), ("Running", "True"), "{name}");
    }
    let triggered: Vec<u64> = scene.cluster.struck().pods.keys().copied().collect();
    assert_eq!(triggered, [0, 1, 2, 4, 6]);
    assert_eq!(scene.cluster.next(), None);
}

/// Runs forty pods for a minute and deletes half of them early; returns the change log.
fn history(faults: Fates) -> (Vec<String>, Scene) {
    let mut scene = Scene::with(Nodes::alike(2), Pace::uneven(Chance::new(5)), faults);
    for number in 0..40 {
        scene.create(with(pod(&format!("p{number}")), "/spec/containers/0/resources/requests/cpu", json!("5")));
        scene.run(50);
        if number % 2 == 1 && scene.find("Pod", &format!("p{}", number - 1)).is_some() {
            scene.delete("Pod", &format!("p{}", number - 1), Propagation::Background);
        }
    }
    scene.run(60_000);
    let lines = scene.api.changes_from(0).iter().map(|change| format!("{} {}", change.at, change.object));
    (lines.collect(), scene)
}

#[test]
fn same_seed_or_listed_triggered_faults_reproduce_the_history() {
    let drawn = || Fates::drawn(Chance::new(3), Odds { pods: 400, boards: 0 });

    let (first, scene) = history(drawn());
    let (second, _) = history(drawn());
    let (listed, _) = history(Fates::listed(scene.cluster.struck().clone()));

    assert!(scene.cluster.struck().pods.len() > 5, "{:?}", scene.cluster.struck());
    assert_eq!(first, second);
    assert_eq!(first, listed);
}
