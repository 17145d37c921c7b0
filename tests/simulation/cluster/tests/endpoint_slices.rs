use rstest::rstest;
use serde_json::{Value, json};

use super::super::PodFault;
use super::super::object_view::uid;
use super::{ClusterFixture, Propagation, pod, service, set_at};

#[test]
fn service_gets_a_slice_with_its_selected_pods() {
    let mut scene = ClusterFixture::new();
    let owner = scene.create(service("chat", "a"));
    let a = scene.create(pod("a"));
    scene.create(pod("other"));

    scene.run(1_000);

    let slice = scene.slice("chat").expect("a slice");
    assert_eq!(
        slice["metadata"]["labels"],
        json!({
            "kubernetes.io/service-name": "chat", "team": "ml",
            "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
        })
    );
    assert_eq!(
        slice["metadata"]["ownerReferences"],
        json!([{
            "apiVersion": "v1", "kind": "Service", "name": "chat", "uid": uid(&owner),
            "controller": true, "blockOwnerDeletion": true,
        }])
    );
    assert!(slice["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("chat-")));
    assert_eq!(slice["addressType"], "IPv4");
    assert_eq!(slice["ports"], json!([{"name": "dashboard", "port": 8265, "protocol": "TCP"}]));
    assert_eq!(
        slice["endpoints"],
        json!([{
            "addresses": [scene.pod("a")["status"]["podIP"]], "nodeName": scene.pod("a")["spec"]["nodeName"],
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "targetRef": {"kind": "Pod", "namespace": "default", "name": "a", "uid": uid(&a)},
        }])
    );
}

#[test]
fn service_without_pods_has_an_empty_slice() {
    let mut scene = ClusterFixture::new();
    scene.create(service("chat", "a"));

    scene.run(1_000);

    let slice = scene.slice("chat").expect("a slice");
    assert_eq!((&slice["endpoints"], &slice["ports"]), (&Value::Null, &Value::Null));
}

#[rstest]
#[case::without_a_selector("/spec/selector", json!({}))]
#[case::external_name("/spec/type", json!("ExternalName"))]
fn service_without_selector_or_with_external_name_has_no_slice(#[case] field: &str, #[case] value: Value) {
    let mut scene = ClusterFixture::new();
    scene.create(set_at(service("chat", "a"), field, value));

    scene.run(1_000);

    assert!(scene.slice("chat").is_none());
}

/// Returns the true conditions of the only endpoint (ready, serving, terminating); empty without
/// one.
fn conditions(scene: &ClusterFixture) -> String {
    let slice = scene.slice("chat").expect("a slice");
    let is_true = |condition: &str| slice["endpoints"][0]["conditions"][condition] == true;
    ["ready", "serving", "terminating"].into_iter().filter(|condition| is_true(condition)).collect::<Vec<_>>().join(" ")
}

#[rstest]
#[case::only_ready_pods(false, "", "serving terminating")]
#[case::publish_not_ready(true, "ready", "ready serving terminating")]
fn endpoint_is_ready_with_its_pod_or_if_the_service_publishes_unready_pods(
    #[case] publish_not_ready: bool,
    #[case] while_down: &str,
    #[case] while_terminating: &str,
) {
    let mut scene = ClusterFixture::with_pod_faults([
        PodFault::Restarts { after_ms: 1_000, for_ms: 1_000 },
        PodFault::SlowTermination { for_ms: 1_000 },
    ]);
    scene.create(set_at(service("chat", "a"), "/spec/publishNotReadyAddresses", json!(publish_not_ready)));
    scene.create(pod("a"));

    scene.run(900);
    assert_eq!(conditions(&scene), "ready serving");
    scene.run(200);
    assert_eq!(conditions(&scene), while_down);
    scene.run(1_000);
    assert_eq!(conditions(&scene), "ready serving");
    scene.delete("Pod", "a", Propagation::Background);
    scene.run(10);
    assert!(scene.find("Pod", "a").is_none());
    scene.run(10);
    assert_eq!(conditions(&scene), "");

    let mut labeled = pod("b");
    labeled["metadata"]["labels"]["app"] = json!("a");
    scene.create(labeled);
    scene.run(1_000);
    scene.delete("Pod", "b", Propagation::Background);
    scene.run(100);
    assert_eq!(conditions(&scene), while_terminating);
}

#[test]
fn endpoints_follow_pod_labels_and_service_selectors() {
    let mut scene = ClusterFixture::new();
    scene.create(service("chat", "a"));
    scene.create(pod("a"));
    scene.create(pod("b"));
    scene.run(1_000);

    scene.change("Pod", "b", |pod| pod["metadata"]["labels"]["app"] = json!("a"));
    scene.run(10);
    let names = |scene: &ClusterFixture| {
        let slice = scene.slice("chat").expect("a slice").clone();
        let endpoints = slice["endpoints"].as_array().cloned().unwrap_or_default();
        endpoints.iter().map(|endpoint| endpoint["targetRef"]["name"].to_string()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(names(&scene), r#""a" "b""#);

    scene.change("Pod", "a", |pod| pod["metadata"]["labels"]["app"] = json!("b"));
    scene.run(10);
    assert_eq!(names(&scene), r#""b""#);

    scene.change("Service", "chat", |service| service["spec"]["selector"]["app"] = json!("b"));
    scene.run(10);
    assert_eq!(names(&scene), r#""a""#);
}

#[test]
fn failed_pod_is_not_an_endpoint() {
    let mut scene = ClusterFixture::with_pod_faults([PodFault::Fails { after_ms: 1_000 }]);
    scene.create(service("chat", "a"));
    scene.create(pod("a"));

    scene.run(2_000);

    assert_eq!(scene.slice("chat").expect("a slice")["endpoints"], Value::Null);
}

#[test]
fn slice_is_deleted_with_its_service_and_recreated_if_only_it_is_deleted() {
    let mut scene = ClusterFixture::new();
    scene.create(service("chat", "a"));
    scene.run(1_000);
    let name = scene.slice("chat").expect("a slice")["metadata"]["name"].as_str().expect("a name").to_owned();

    scene.delete("EndpointSlice", &name, Propagation::Background);
    scene.run(10);
    assert!(scene.slice("chat").is_some());

    scene.delete("Service", "chat", Propagation::Background);
    scene.run(100);
    assert!(scene.slice("chat").is_none());
}

#[test]
fn slice_of_a_headless_service_has_the_headless_label() {
    let mut scene = ClusterFixture::new();
    scene.create(set_at(service("chat", "a"), "/spec/clusterIP", json!("None")));

    scene.run(1_000);

    assert_eq!(scene.slice("chat").expect("a slice")["metadata"]["labels"]["service.kubernetes.io/headless"], "");
}
