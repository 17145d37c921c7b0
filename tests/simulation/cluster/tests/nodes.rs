use rstest::rstest;
use serde_json::{Value, json};

use super::super::object_view::{condition_status, items, text};
use super::super::{Latencies, Node, Nodes, PodFaultInjector};
use super::{ClusterFixture, Propagation, SeededRandom, pod, set_at};

/// Creates one node with 64 CPUs.
fn one_node() -> ClusterFixture {
    ClusterFixture::with(Nodes::uniform(1), Latencies::fixed(SeededRandom::new(0)), PodFaultInjector::none())
}

fn pod_requesting(name: &str, cpu: &str) -> Value {
    set_at(pod(name), "/spec/containers/0/resources/requests/cpu", json!(cpu))
}

#[test]
fn pod_is_bound_and_then_becomes_ready() {
    let mut scene = ClusterFixture::new();
    scene.create(pod("a"));

    scene.run(20);
    assert_eq!(text(scene.pod("a"), "/spec/nodeName"), "node-0");
    assert_eq!(condition_status(scene.pod("a"), "PodScheduled"), "True");
    assert_eq!(condition_status(scene.pod("a"), "Ready"), "");

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
fn deleted_pod_reports_the_end_of_its_containers_before_removal() {
    let latencies = Latencies { removal: Some(500..=500), ..Latencies::fixed(SeededRandom::new(0)) };
    let mut scene = ClusterFixture::with(Nodes::uniform(1), latencies, PodFaultInjector::none());
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
fn gated_pod_is_reported_unscheduled_and_is_not_bound() {
    let mut scene = ClusterFixture::new();
    let mut gated = pod("a");
    gated["spec"]["schedulingGates"] = json!([{"name": "quota"}]);
    scene.create(gated);

    scene.run(20);

    assert_eq!(text(scene.pod("a"), "/spec/nodeName"), "");
    assert_eq!(condition_status(scene.pod("a"), "PodScheduled"), "False");
}

#[test]
fn nodes_exist_and_are_ready() {
    let scene = one_node();

    let node = scene.api.get("Node", "", "node-0").expect("a node");

    assert_eq!(condition_status(node, "Ready"), "True");
    assert_eq!(text(node, "/status/allocatable/nvidia.com~1gpu"), "8");
}

#[test]
fn gated_pod_is_bound_after_its_gate_is_removed() {
    let mut scene = ClusterFixture::new();
    scene.create(set_at(pod("a"), "/spec/schedulingGates", json!([{"name": "quota"}])));

    scene.run(1_000);
    assert_eq!(text(scene.pod("a"), "/spec/nodeName"), "");

    scene.change("Pod", "a", |pod| pod["spec"]["schedulingGates"] = json!([]));
    scene.run(220);
    assert_eq!(scene.state("a"), ("Running", "True"));
}

#[test]
fn unschedulable_pod_is_reported_and_bound_once_capacity_is_free() {
    let mut scene = one_node();
    scene.create(pod_requesting("a", "40"));
    scene.create(pod_requesting("b", "40"));

    scene.run(1_000);
    let scheduled = items(scene.pod("b"), "/status/conditions").next().expect("a condition");
    assert_eq!((text(scheduled, "/status"), text(scheduled, "/reason")), ("False", "Unschedulable"));
    assert_eq!(text(scheduled, "/message"), "0/1 nodes are available: 1 Insufficient cpu.");

    scene.delete("Pod", "a", Propagation::Background);
    scene.run(1_000);
    assert_eq!(scene.state("b"), ("Running", "True"));
}

#[test]
fn failed_pod_frees_its_capacity() {
    let mut scene = one_node();
    scene.create(set_at(
        pod_requesting("a", "40"),
        "/metadata/annotations",
        json!({"testenv.sluice.dev/phase": "failed"}),
    ));
    scene.run(100);
    scene.create(pod_requesting("b", "40"));

    scene.run(1_000);

    assert_eq!((scene.state("a").0, scene.state("b").0), ("Failed", "Running"));
}

#[test]
fn pending_pods_are_bound_by_priority_and_then_by_age() {
    let mut scene = one_node();
    scene.create(pod_requesting("holder", "60"));
    scene.run(20);
    let high = json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 9,
    });
    scene.api.create(scene.now, high).expect("a new and valid class");
    for (name, class) in [("older", ""), ("younger", ""), ("important", "high")] {
        scene.create(set_at(pod_requesting(name, "30"), "/spec/priorityClassName", json!(class)));
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
fn pod_is_bound_to_a_node_that_its_selector_matches() {
    let nodes = Nodes(vec![Node::numbered(0), Node::numbered(1).with_label("pool", "a100")]);
    let mut scene = ClusterFixture::with(nodes, Latencies::fixed(SeededRandom::new(0)), PodFaultInjector::none());
    scene.create(set_at(pod("a"), "/spec/nodeSelector", json!({"pool": "a100"})));

    scene.run(20);

    assert_eq!(text(scene.pod("a"), "/spec/nodeName"), "node-1");
}

#[test]
fn deleted_pod_is_removed_after_its_containers_end() {
    let mut scene = ClusterFixture::new();
    scene.create(pod("a"));
    scene.run(1_000);

    scene.delete("Pod", "a", Propagation::Background);
    assert!(!text(scene.pod("a"), "/metadata/deletionTimestamp").is_empty());

    scene.run(10);
    assert!(scene.find("Pod", "a").is_none());
}

#[test]
fn recreated_pod_with_the_same_name_starts_from_the_beginning() {
    let mut scene = ClusterFixture::new();
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
fn annotation_steers_a_pod_from_the_start_and_later(#[case] phase: &str, #[case] state: (&str, &str)) {
    let annotations = json!({"testenv.sluice.dev/phase": phase});
    let mut scene = ClusterFixture::new();
    scene.create(set_at(pod("early"), "/metadata/annotations", annotations.clone()));
    scene.create(pod("late"));
    scene.run(1_000);
    assert_eq!(scene.state("early"), state);

    scene.change("Pod", "late", |pod| pod["metadata"]["annotations"] = annotations);
    scene.run(200);

    assert_eq!(scene.state("late"), state);
}

#[test]
fn pod_becomes_ready_once_it_is_no_longer_steered() {
    let mut scene = ClusterFixture::new();
    scene.create(set_at(pod("a"), "/metadata/annotations", json!({"testenv.sluice.dev/phase": "never-ready"})));
    scene.run(1_000);

    scene.change("Pod", "a", |pod| pod["metadata"]["annotations"] = json!({}));
    scene.run(200);

    assert_eq!(scene.state("a"), ("Running", "True"));
}

#[test]
fn annotation_sets_the_time_from_scheduling_until_ready() {
    let mut scene = ClusterFixture::new();
    scene.create(set_at(pod("a"), "/metadata/annotations", json!({"testenv.sluice.dev/ready-after": "5s"})));

    scene.run(4_900);
    assert_eq!(scene.state("a"), ("Pending", ""));

    scene.run(200);
    assert_eq!(scene.state("a"), ("Running", "True"));
}

#[test]
fn sidecar_keeps_running_and_other_init_containers_complete() {
    let init = json!([{"name": "wait", "image": "i"}, {"name": "side", "image": "s", "restartPolicy": "Always"}]);
    let mut scene = ClusterFixture::new();
    scene.create(set_at(pod("a"), "/spec/initContainers", init));

    scene.run(1_000);

    let status = &scene.pod("a")["status"]["initContainerStatuses"];
    assert_eq!(status[0]["state"]["terminated"]["reason"], "Completed");
    assert!(status[1]["state"]["running"].is_object());
}
