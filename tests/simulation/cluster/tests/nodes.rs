use rstest::rstest;
use serde_json::{Value, json};

use super::super::read::{condition, items, text};
use super::super::{Fates, Node, Nodes, Pace};
use super::{Chance, Propagation, Scene, pod, with};

/// One node that has 64 CPUs.
fn one_node() -> Scene {
    Scene::with(Nodes::alike(1), Pace::steady(Chance::new(0)), Fates::kind())
}

fn demanding(name: &str, cpu: &str) -> Value {
    with(pod(name), "/spec/containers/0/resources/requests/cpu", json!(cpu))
}

#[test]
fn a_pod_is_bound_and_then_gets_ready() {
    let mut scene = Scene::new();
    scene.create(pod("a"));

    scene.run(20);
    assert_eq!(text(scene.pod("a"), "/spec/nodeName"), "node-0");
    assert_eq!(condition(scene.pod("a"), "PodScheduled"), "True");
    assert_eq!(condition(scene.pod("a"), "Ready"), "");

    scene.run(200);
    let status = &scene.pod("a")["status"];
    assert_eq!(scene.state("a"), ("Running", "True"));
    assert_eq!((&status["podIP"], &status["hostIP"]), (&json!("198.19.0.1"), &json!("198.18.1.1")));
    let ray = &status["containerStatuses"][0];
    assert_eq!((&ray["name"], &ray["ready"], &ray["restartCount"]), (&json!("ray"), &json!(true), &json!(0)));
    assert!(ray["state"]["running"].is_object());
    let kinds = items(scene.pod("a"), "/status/conditions").map(|condition| text(condition, "/type"));
    let expected = ["PodScheduled", "PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready"];
    assert_eq!(kinds.collect::<Vec<_>>(), expected);
}

#[test]
fn a_pod_that_is_deleted_has_ended_before_it_is_gone_where_that_is_told() {
    let pace = Pace { gone: Some(500..=500), ..Pace::steady(Chance::new(0)) };
    let mut scene = Scene::with(Nodes::alike(1), pace, Fates::kind());
    scene.create(pod("a"));
    scene.run(220);

    scene.delete("Pod", "a", Propagation::Background);
    scene.run(10);
    let (phase, ready) = scene.state("a");
    assert!(["Succeeded", "Failed"].contains(&phase), "{phase}");
    assert_eq!(ready, "False");

    scene.run(499);
    assert!(scene.find("Pod", "a").is_some());
    scene.run(1);
    assert!(scene.find("Pod", "a").is_none());
}

#[test]
fn a_pod_behind_a_scheduling_gate_says_so_and_is_not_bound() {
    let mut scene = Scene::new();
    let mut gated = pod("a");
    gated["spec"]["schedulingGates"] = json!([{"name": "quota"}]);
    scene.create(gated);

    scene.run(20);

    assert_eq!(text(scene.pod("a"), "/spec/nodeName"), "");
    assert_eq!(condition(scene.pod("a"), "PodScheduled"), "False");
}

#[test]
fn the_nodes_are_there_and_ready() {
    let scene = one_node();

    let node = scene.api.get("Node", "", "node-0").expect("a node");

    assert_eq!(condition(node, "Ready"), "True");
    assert_eq!(text(node, "/status/allocatable/nvidia.com~1gpu"), "8");
}

#[test]
fn a_pod_with_a_scheduling_gate_waits_for_its_removal() {
    let mut scene = Scene::new();
    scene.create(with(pod("a"), "/spec/schedulingGates", json!([{"name": "quota"}])));

    scene.run(1_000);
    assert_eq!(text(scene.pod("a"), "/spec/nodeName"), "");

    scene.change("Pod", "a", |pod| pod["spec"]["schedulingGates"] = json!([]));
    scene.run(220);
    assert_eq!(scene.state("a"), ("Running", "True"));
}

#[test]
fn a_pod_that_fits_nowhere_says_so_and_is_bound_once_there_is_room() {
    let mut scene = one_node();
    scene.create(demanding("a", "40"));
    scene.create(demanding("b", "40"));

    scene.run(1_000);
    let scheduled = items(scene.pod("b"), "/status/conditions").next().expect("a condition");
    assert_eq!((text(scheduled, "/status"), text(scheduled, "/reason")), ("False", "Unschedulable"));
    assert_eq!(text(scheduled, "/message"), "0/1 nodes are available: 1 Insufficient cpu.");

    scene.delete("Pod", "a", Propagation::Background);
    scene.run(1_000);
    assert_eq!(scene.state("b"), ("Running", "True"));
}

#[test]
fn room_is_there_again_when_a_pod_has_failed() {
    let mut scene = one_node();
    scene.create(with(demanding("a", "40"), "/metadata/annotations", json!({"testenv.sluice.dev/phase": "failed"})));
    scene.run(100);
    scene.create(demanding("b", "40"));

    scene.run(1_000);

    assert_eq!((scene.state("a").0, scene.state("b").0), ("Failed", "Running"));
}

#[test]
fn of_those_that_wait_the_more_important_goes_first_and_then_the_older() {
    let mut scene = one_node();
    scene.create(demanding("holder", "60"));
    scene.run(20);
    let high = json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 9,
    });
    scene.api.create(scene.now, high).expect("a class that is new and right");
    for (name, class) in [("older", ""), ("younger", ""), ("important", "high")] {
        scene.create(with(demanding(name, "30"), "/spec/priorityClassName", json!(class)));
    }
    scene.run(1_000);

    scene.delete("Pod", "holder", Propagation::Background);
    scene.run(1_000);

    let bound: Vec<&str> = ["older", "younger", "important"]
        .into_iter()
        .filter(|name| !text(scene.pod(name), "/spec/nodeName").is_empty())
        .collect();
    assert_eq!(bound, ["older", "important"]);
}

#[test]
fn a_pod_goes_where_its_selector_says() {
    let nodes = Nodes(vec![Node::numbered(0), Node::numbered(1).labelled("pool", "a100")]);
    let mut scene = Scene::with(nodes, Pace::steady(Chance::new(0)), Fates::kind());
    scene.create(with(pod("a"), "/spec/nodeSelector", json!({"pool": "a100"})));

    scene.run(20);

    assert_eq!(text(scene.pod("a"), "/spec/nodeName"), "node-1");
}

#[test]
fn a_deleted_pod_is_gone_after_a_while() {
    let mut scene = Scene::new();
    scene.create(pod("a"));
    scene.run(1_000);

    scene.delete("Pod", "a", Propagation::Background);
    assert!(!text(scene.pod("a"), "/metadata/deletionTimestamp").is_empty());

    scene.run(10);
    assert!(scene.find("Pod", "a").is_none());
}

#[test]
fn a_pod_that_gets_the_name_of_one_that_is_gone_is_another_one() {
    let mut scene = Scene::new();
    scene.create(pod("a"));
    scene.run(100);
    scene.delete("Pod", "a", Propagation::Background);
    scene.run(10);

    scene.create(pod("a"));
    scene.run(219);
    assert_eq!(scene.state("a"), ("Pending", ""));

    scene.run(1);
    assert_eq!(scene.state("a"), ("Running", "True"));
}

#[rstest]
#[case("never-ready", ("Running", "False"))]
#[case("failed", ("Failed", "False"))]
#[case("succeeded", ("Succeeded", "False"))]
#[case("none of these", ("Running", "True"))]
fn a_pod_is_steered_from_the_start_and_later(#[case] phase: &str, #[case] state: (&str, &str)) {
    let annotations = json!({"testenv.sluice.dev/phase": phase});
    let mut scene = Scene::new();
    scene.create(with(pod("early"), "/metadata/annotations", annotations.clone()));
    scene.create(pod("late"));
    scene.run(1_000);
    assert_eq!(scene.state("early"), state);

    scene.change("Pod", "late", |pod| pod["metadata"]["annotations"] = annotations);
    scene.run(200);

    assert_eq!(scene.state("late"), state);
}

#[test]
fn a_pod_that_is_no_longer_steered_gets_ready() {
    let mut scene = Scene::new();
    scene.create(with(pod("a"), "/metadata/annotations", json!({"testenv.sluice.dev/phase": "never-ready"})));
    scene.run(1_000);

    scene.change("Pod", "a", |pod| pod["metadata"]["annotations"] = json!({}));
    scene.run(200);

    assert_eq!(scene.state("a"), ("Running", "True"));
}

#[test]
fn a_pod_gets_ready_as_long_after_it_was_scheduled_as_it_says() {
    let mut scene = Scene::new();
    scene.create(with(pod("a"), "/metadata/annotations", json!({"testenv.sluice.dev/ready-after": "5s"})));

    scene.run(4_900);
    assert_eq!(scene.state("a"), ("Pending", ""));

    scene.run(200);
    assert_eq!(scene.state("a"), ("Running", "True"));
}

#[test]
fn a_sidecar_runs_beside_the_containers_and_other_init_containers_have_ended() {
    let init = json!([{"name": "wait", "image": "i"}, {"name": "side", "image": "s", "restartPolicy": "Always"}]);
    let mut scene = Scene::new();
    scene.create(with(pod("a"), "/spec/initContainers", init));

    scene.run(1_000);

    let status = &scene.pod("a")["status"]["initContainerStatuses"];
    assert_eq!(status[0]["state"]["terminated"]["reason"], "Completed");
    assert!(status[1]["state"]["running"].is_object());
}
