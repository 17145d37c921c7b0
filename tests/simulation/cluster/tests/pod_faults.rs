use rstest::rstest;
use serde_json::json;

use super::super::object_view::{condition_status, text};
use super::super::{FaultList, FaultOdds, Latencies, Nodes, PodFault, PodFaultInjector};
use super::{ClusterFixture, Propagation, SeededRandom, pod, set_at};

#[rstest]
#[case::slow(PodFault::SlowStart { after_ms: 3_000 }, 3_019, ("Pending", ""), ("Running", "True"))]
#[case::fails_early(PodFault::Fails { after_ms: 100 }, 119, ("Pending", ""), ("Failed", "False"))]
#[case::fails_late(PodFault::Fails { after_ms: 5_000 }, 5_019, ("Running", "True"), ("Failed", "False"))]
#[case::restarts(PodFault::Restarts { after_ms: 1_000, for_ms: 500 }, 1_019, ("Running", "True"), ("Running", "False"))]
#[case::recovers(PodFault::Restarts { after_ms: 1_000, for_ms: 500 }, 1_519, ("Running", "False"), ("Running", "True"))]
#[case::never_starts(PodFault::NeverStarts, 219, ("Pending", ""), ("Pending", "False"))]
#[case::never_ready(PodFault::NeverReady, 219, ("Pending", ""), ("Running", "False"))]
fn pod_fault_triggers_at_its_time(
    #[case] fault: PodFault,
    #[case] at: u64,
    #[case] before: (&str, &str),
    #[case] after: (&str, &str),
) {
    let mut scene = ClusterFixture::with_pod_faults([fault]);
    scene.create(pod("a"));

    scene.run(at);
    assert_eq!(scene.state("a"), before);
    scene.run(1);
    assert_eq!(scene.state("a"), after);

    assert_eq!(scene.cluster.triggered_faults().pods.get(&0), Some(&fault));
}

#[test]
fn restarted_container_has_a_restart_count() {
    let mut scene = ClusterFixture::with_pod_faults([PodFault::Restarts { after_ms: 1_000, for_ms: 500 }]);
    scene.create(pod("a"));

    scene.run(10_000);

    let ray = &scene.pod("a")["status"]["containerStatuses"][0];
    assert_eq!((&ray["restartCount"], &ray["ready"]), (&json!(1), &json!(true)));
    assert_eq!(ray["lastState"]["terminated"]["exitCode"], 1);
}

#[test]
fn pod_with_restart_policy_never_fails_with_its_containers() {
    let mut scene = ClusterFixture::with_pod_faults([PodFault::Restarts { after_ms: 1_000, for_ms: 500 }]);
    scene.create(set_at(pod("a"), "/spec/restartPolicy", json!("Never")));

    scene.run(10_000);

    assert_eq!(scene.state("a"), ("Failed", "False"));
}

#[test]
fn evicted_pod_has_condition_disruption_target() {
    let mut scene = ClusterFixture::with_pod_faults([PodFault::Evicted { after_ms: 1_000 }]);
    scene.create(pod("a"));

    scene.run(1_020);
    assert_eq!(condition_status(scene.pod("a"), "DisruptionTarget"), "True");
    assert!(!text(scene.pod("a"), "/metadata/deletionTimestamp").is_empty());

    scene.run(10);
    assert!(scene.find("Pod", "a").is_none());
}

#[test]
fn drain_evicts_exactly_the_pods_of_the_node() {
    let drained = PodFaultInjector::listed(FaultList {
        pods: [(1, PodFault::NodeDrained { after_ms: 1_000 })].into(),
        ..FaultList::default()
    });
    let mut scene = ClusterFixture::with(Nodes::uniform(2), Latencies::fixed(SeededRandom::new(0)), drained);
    for name in ["a", "b", "c", "d"] {
        scene.create(pod(name));
        scene.run(100);
    }
    let node = |name: &str, scene: &ClusterFixture| text(scene.pod(name), "/spec/nodeName").to_owned();
    assert_eq!(["a", "b", "c", "d"].map(|name| node(name, &scene)), ["node-0", "node-1", "node-0", "node-1"]);

    scene.run(2_000);

    assert_eq!(["a", "b", "c", "d"].map(|name| scene.find("Pod", name).is_some()), [true, false, true, false]);
}

#[test]
fn slow_termination_delays_the_end_of_a_deleted_pod() {
    let mut scene = ClusterFixture::with_pod_faults([PodFault::SlowTermination { for_ms: 30_000 }]);
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
    let mut scene = ClusterFixture::with_pod_faults([PodFault::Fails { after_ms: 1_000 }]);
    scene.create(set_at(pod("a"), "/metadata/annotations", json!({"testenv.sluice.dev/phase": "never-ready"})));

    scene.run(10_000);

    assert_eq!(scene.state("a"), ("Running", "False"));
    assert!(scene.cluster.triggered_faults().pods.is_empty());
}

#[test]
fn pods_become_ready_once_faults_are_disabled() {
    let mut scene = ClusterFixture::with_pod_faults([
        PodFault::NeverReady,
        PodFault::SlowStart { after_ms: 60_000 },
        PodFault::Restarts { after_ms: 500, for_ms: 60_000 },
        PodFault::Fails { after_ms: 5_000 },
        PodFault::SlowTermination { for_ms: 60_000 },
        PodFault::Evicted { after_ms: 5_000 },
        PodFault::NeverStarts,
    ]);
    let names = ["a", "b", "c", "d", "lingers", "f", "g"];
    for name in names {
        scene.create(pod(name));
    }
    scene.run(1_000);
    scene.delete("Pod", "lingers", Propagation::Background);

    scene.cluster.disable_faults(scene.now);
    scene.run(1_000);

    assert!(scene.find("Pod", "lingers").is_none());
    scene.run(60_000);
    for name in names.into_iter().filter(|name| *name != "lingers") {
        assert_eq!(scene.state(name), ("Running", "True"), "{name}");
    }
    let triggered: Vec<u64> = scene.cluster.triggered_faults().pods.keys().copied().collect();
    assert_eq!(triggered, [0, 1, 2, 4, 6]);
    assert_eq!(scene.cluster.next_deadline(), None);
}

/// Runs forty pods for a minute and deletes half of them early; returns the change log.
fn history(faults: PodFaultInjector) -> (Vec<String>, ClusterFixture) {
    let mut scene = ClusterFixture::with(Nodes::uniform(2), Latencies::varied(SeededRandom::new(5)), faults);
    for number in 0..40 {
        scene.create(set_at(pod(&format!("p{number}")), "/spec/containers/0/resources/requests/cpu", json!("5")));
        scene.run(50);
        if number % 2 == 1 && scene.find("Pod", &format!("p{}", number - 1)).is_some() {
            scene.delete("Pod", &format!("p{}", number - 1), Propagation::Background);
        }
    }
    scene.run(60_000);
    let lines = scene.api.changes_from(0).iter().map(|change| format!("{} {}", change.time, change.object));
    (lines.collect(), scene)
}

#[test]
fn same_seed_or_listed_triggered_faults_reproduce_the_history() {
    let drawn = || PodFaultInjector::random(SeededRandom::new(3), FaultOdds { pods: 400, dashboards: 0 });

    let (first, scene) = history(drawn());
    let (second, _) = history(drawn());
    let (listed, _) = history(PodFaultInjector::listed(scene.cluster.triggered_faults().clone()));

    assert!(scene.cluster.triggered_faults().pods.len() > 5, "{:?}", scene.cluster.triggered_faults());
    assert_eq!(first, second);
    assert_eq!(first, listed);
}
