//! Services of a cluster.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Service;
use kube_core::ResourceExt;
use rstest::rstest;
use serde_json::{Value, json};

use super::super::fixtures::{TestCluster, cluster_with_patch};
use super::super::services::head_ports;
use sluice_api::ray::names::SERVE_SERVICE_ANNOTATION;

fn head_service(spec: Value) -> Service {
    let mut test_cluster = TestCluster::new(cluster_with_patch(spec));
    test_cluster.reconcile_until_stable();
    let mut services = test_cluster.services.into_values();
    let service = services.next().expect("there is a Service");
    assert_eq!(services.next(), None);
    service
}

#[test]
fn head_service_is_headless_and_publishes_an_unready_head() {
    let service = head_service(json!({"headServiceAnnotations": {"a": "b"}}));
    assert_eq!(service.name_any(), "demo-head-svc");
    assert_eq!(service.annotations().get("a").map(String::as_str), Some("b"));
    let spec = service.spec.clone().expect("a spec");
    assert_eq!((spec.cluster_ip.as_deref(), spec.publish_not_ready_addresses), (Some("None"), Some(true)));
    let selector = json!({"ray.io/cluster": "demo", "ray.io/node-type": "head"});
    assert_eq!(serde_json::to_value(spec.selector).ok(), Some(selector));
    let labels = json!({
        "app.kubernetes.io/created-by": "kuberay-operator", "app.kubernetes.io/name": "kuberay", "ray.io/cluster": "demo",
        "ray.io/identifier": "demo-head", "ray.io/node-type": "head",
    });
    assert_eq!(serde_json::to_value(service.labels()).ok(), Some(labels));
    let names: Vec<_> = spec.ports.iter().flatten().filter_map(|port| port.name.as_deref()).collect();
    assert_eq!(names, ["client", "dashboard", "gcs-server", "metrics", "serve"]);
}

fn selects_head(test_cluster: &TestCluster) -> bool {
    let service = test_cluster.services.values().next().expect("a Service");
    let selector = service.spec.clone().and_then(|spec| spec.selector).expect("a selector");
    let head = test_cluster.pods.values().next().expect("a head");
    selector.iter().all(|(label, value)| head.labels().get(label) == Some(value))
}

#[rstest]
#[case::labels_of_the_template(json!({"template": {"metadata": {"labels": {"ray.io/identifier": "me", "app.kubernetes.io/name": "mine"}}}}))]
#[case::labels_of_the_group(json!({"labels": {"ray.io/identifier": "me", "app.kubernetes.io/name": "mine"}}))]
fn head_service_selects_a_head_with_user_labels(#[case] head: Value) {
    let mut test_cluster = TestCluster::new(cluster_with_patch(json!({"headGroupSpec": head})));
    test_cluster.reconcile_until_stable();
    assert!(selects_head(&test_cluster));
}

#[test]
fn kuberay_head_service_that_selects_no_head_is_repaired() {
    // Given a head Service created by KubeRay for a head with user labels,
    let mut test_cluster =
        TestCluster::new(cluster_with_patch(json!({"headGroupSpec": {"labels": {"ray.io/identifier": "me"}}})));
    test_cluster.reconcile_until_stable();
    let service = test_cluster.services.values_mut().next().expect("a Service");
    let selector = service.spec.as_mut().and_then(|spec| spec.selector.as_mut()).expect("a selector");
    selector.insert("ray.io/identifier".into(), "demo-head".into());
    assert!(!selects_head(&test_cluster));

    // when Sluice reconciles the cluster, then its Service selects the head. A custom selector
    // stays unchanged.
    test_cluster.reconcile_until_stable();
    assert!(selects_head(&test_cluster));
    let service = test_cluster.services.values_mut().next().expect("a Service");
    service.spec.as_mut().expect("a spec").selector = Some(BTreeMap::from([("x".to_owned(), "y".to_owned())]));
    assert_eq!(test_cluster.plan().writes, []);
}

#[rstest]
#[case::node_port("NodePort", None)]
#[case::load_balancer("LoadBalancer", None)]
#[case::cluster_ip("ClusterIP", Some("None"))]
fn head_service_type_determines_its_cluster_ip(#[case] service_type: &str, #[case] cluster_ip: Option<&str>) {
    let service = head_service(json!({"headGroupSpec": {"serviceType": service_type}}));
    let spec = service.spec.expect("a spec");
    assert_eq!((spec.type_.as_deref(), spec.cluster_ip.as_deref()), (Some(service_type), cluster_ip));
}

#[test]
fn user_provided_head_service_keeps_name_and_ports_but_not_its_selector() {
    let own = json!({
        "metadata": {"name": "mine", "namespace": "elsewhere", "labels": {"a": "b"}},
        "spec": {"selector": {"x": "y"}, "ports": [{"name": "web", "port": 8265}]},
    });
    let service = head_service(json!({"headGroupSpec": {"headService": own}}));
    assert_eq!((service.name_any().as_str(), service.namespace().as_deref()), ("mine", Some("default")));
    assert_eq!(service.labels().get("a").map(String::as_str), Some("b"));
    let spec = service.spec.expect("a spec");
    assert_eq!(spec.selector.and_then(|selector| selector.get("ray.io/cluster").cloned()).as_deref(), Some("demo"));
    let names: Vec<_> = spec.ports.iter().flatten().filter_map(|port| port.name.as_deref()).collect();
    assert_eq!(names, ["web", "client", "gcs-server", "metrics", "serve"], "port 8265 exists already");
}

#[rstest]
#[case::none(json!([]), &[("client", 10001), ("dashboard", 8265), ("gcs-server", 6379), ("metrics", 8080), ("serve", 8000)])]
#[case::some(json!([{"name": "serve", "containerPort": 9000}]), &[("metrics", 8080), ("serve", 9000)])]
#[case::unnamed(json!([{"containerPort": 9000}]), &[("9000-port", 9000), ("metrics", 8080)])]
#[case::metrics(json!([{"name": "metrics", "containerPort": 9000}]), &[("metrics", 9000)])]
fn head_ports_are_those_of_its_container(#[case] ports: Value, #[case] expected: &[(&str, i32)]) {
    let container = json!({"name": "h", "ports": ports});
    let cluster = cluster_with_patch(json!({"headGroupSpec": {"template": {"spec": {"containers": [container]}}}}));
    let expected: BTreeMap<String, i32> = expected.iter().map(|(name, port)| ((*name).to_owned(), *port)).collect();
    assert_eq!(head_ports(&cluster), expected);
}

/// Returns a cluster that serves without a RayService.
fn serving(annotation: &str, ports: Value) -> TestCluster {
    let container = json!({"name": "h", "ports": ports});
    let mut cluster = cluster_with_patch(json!({"headGroupSpec": {"template": {"spec": {"containers": [container]}}}}));
    cluster.annotations_mut().insert(SERVE_SERVICE_ANNOTATION.to_owned(), annotation.to_owned());
    let mut test_cluster = TestCluster::new(cluster);
    test_cluster.reconcile_until_stable();
    test_cluster
}

#[test]
fn cluster_that_serves_without_a_ray_service_has_a_serve_service() {
    let ports = json!([{"name": "serve", "containerPort": 9000}, {"name": "serve-grpc", "containerPort": 9001}]);
    let test_cluster = serving("true", ports);

    let service = &test_cluster.services["demo-serve-svc"];
    let spec = service.spec.as_ref().expect("a spec");
    assert_eq!(serde_json::to_value(&spec.selector).ok(), Some(json!({"ray.io/cluster": "demo"})));
    let of_spec: Vec<_> = spec.ports.iter().flatten().map(|port| (port.name.as_deref(), port.port)).collect();
    assert_eq!(of_spec, [(Some("serve"), 9000), (Some("serve-grpc"), 9001)]);
    let labels = json!({
        "ray.io/originated-from-cr-name": "demo", "ray.io/originated-from-crd": "RayCluster", "ray.io/serve": "demo-serve",
    });
    assert_eq!(serde_json::to_value(service.labels()).ok(), Some(labels));
    assert_eq!(service.owner_references().len(), 1);
}

#[rstest]
#[case::annotation_false("false", json!([]), None)]
#[case::annotation_misspelled("True", json!([]), None)]
#[case::without_a_port("true", json!([{"name": "web", "containerPort": 80}]), Some("ports has no port named serve"))]
fn cluster_has_no_serve_service(#[case] annotation: &str, #[case] ports: Value, #[case] error: Option<&str>) {
    let test_cluster = serving(annotation, ports);

    assert_eq!(test_cluster.services.keys().collect::<Vec<_>>(), ["demo-head-svc"]);
    let notes = test_cluster.plan().events;
    assert_eq!(notes.len(), usize::from(error.is_some()), "{notes:?}");
    assert!(notes.iter().all(|note| error.is_some_and(|error| note.message.contains(error))), "{notes:?}");
}
