use http::Method;
use rstest::rstest;
use serde_json::{Value, json};

use super::super::{DashboardFault, FaultList, Latencies, Nodes, PodFault, PodFaultInjector};
use super::{ClusterFixture, Propagation, ProxyTarget, SeededRandom, pod, service, set_at};

const PATH: &str = "/api/serve/applications/?api_type=declarative";

fn service_target(port: &str) -> ProxyTarget {
    ProxyTarget::Service { name: "head".to_owned(), port: Some(port.to_owned()) }
}

fn pod_target(name: &str) -> ProxyTarget {
    ProxyTarget::Pod { name: name.to_owned(), port: Some("8000".to_owned()) }
}

/// Adds a ready head pod with its Service.
fn with_head(mut scene: ClusterFixture) -> ClusterFixture {
    scene.create(set_at(service("head", "head"), "/spec/publishNotReadyAddresses", json!(true)));
    scene.create(pod("head"));
    scene.run(300);
    scene
}

fn with_dashboard_fault(fault: DashboardFault) -> ClusterFixture {
    let faults = PodFaultInjector::listed(FaultList { dashboards: [(0, fault)].into(), ..FaultList::default() });
    with_head(ClusterFixture::with(Nodes::uniform(1), Latencies::fixed(SeededRandom::new(0)), faults))
}

fn get_applications(scene: &mut ClusterFixture) -> Value {
    let (code, body) = scene.call(Method::GET, service_target("dashboard"), PATH, "");
    assert_eq!(code, 200, "{body}");
    serde_json::from_str(&body).expect("JSON")
}

fn put_config(scene: &mut ClusterFixture, config: &Value) {
    let answer = scene.call(Method::PUT, service_target("dashboard"), PATH, &config.to_string());
    assert_eq!(answer, (200, String::new()));
}

/// Returns the status of each application.
fn statuses(scene: &mut ClusterFixture) -> String {
    let details = get_applications(scene);
    let applications = details["applications"].as_object().expect("a map");
    applications
        .iter()
        .map(|(name, app)| format!("{name}:{}", app["status"].as_str().expect("text")))
        .collect::<Vec<_>>()
        .join(" ")
}

fn config(applications: &[&str]) -> Value {
    let application = |name: &&str| json!({"name": name, "route_prefix": "/", "deployments": [{"name": "Llm"}]});
    json!({"applications": applications.iter().map(application).collect::<Vec<_>>()})
}

#[test]
fn head_without_configuration_has_no_applications() {
    let mut scene = with_head(ClusterFixture::new());

    let details = get_applications(&mut scene);

    assert_eq!(details, json!({"deploy_mode": "UNSET", "target_capacity": null, "applications": {}}));
}

#[test]
fn applications_deploy_and_then_run() {
    let mut scene = with_head(ClusterFixture::new());
    put_config(&mut scene, &set_at(config(&["chat"]), "/target_capacity", json!(50)));

    let details = get_applications(&mut scene);
    let deployment = json!({"name": "Llm", "status": "UPDATING", "message": ""});
    let chat = json!({
        "name": "chat", "status": "DEPLOYING", "message": "", "route_prefix": "/", "docs_path": null,
        "deployments": {"Llm": deployment},
    });
    assert_eq!(details, json!({"deploy_mode": "MULTI_APP", "target_capacity": 50.0, "applications": {"chat": chat}}));

    scene.run(299);
    assert_eq!(statuses(&mut scene), "chat:DEPLOYING");
    scene.run(1);
    assert_eq!(statuses(&mut scene), "chat:RUNNING");
}

#[rstest]
#[case::same_configuration(config(&["a", "b"]), "a:RUNNING b:RUNNING")]
#[case::one_more(config(&["a", "b", "c"]), "a:RUNNING b:RUNNING c:DEPLOYING")]
#[case::one_less(config(&["b"]), "b:RUNNING")]
#[case::one_changed(set_at(config(&["a", "b"]), "/applications/0/route_prefix", json!("/a")), "a:DEPLOYING b:RUNNING")]
#[case::another_capacity(set_at(config(&["a", "b"]), "/target_capacity", json!(40)), "a:RUNNING b:RUNNING")]
fn applications_changed_by_a_configuration_are_redeployed(#[case] second: Value, #[case] expected: &str) {
    let mut scene = with_head(ClusterFixture::new());
    put_config(&mut scene, &config(&["a", "b"]));
    scene.run(1_000);

    put_config(&mut scene, &second);

    assert_eq!(statuses(&mut scene), expected);
}

#[test]
fn target_capacity_changes_the_number_of_replicas() {
    let mut scene = with_head(ClusterFixture::new());
    let whole = set_at(config(&["a"]), "/applications/0/deployments/0/num_replicas", json!(4));
    let mut wanted = |config: &Value| {
        put_config(&mut scene, config);
        get_applications(&mut scene)["applications"]["a"]["deployments"]["Llm"]["target_num_replicas"].clone()
    };
    assert_eq!(wanted(&whole), 4);
    assert_eq!(wanted(&set_at(whole.clone(), "/target_capacity", json!(50))), 2);
    assert_eq!(wanted(&set_at(whole.clone(), "/target_capacity", json!(0))), 0);
}

#[test]
fn replica_stays_on_its_worker_while_the_worker_exists() {
    // Given three replicas on three workers,
    let cluster_pod = |name: &str, kind: &str| {
        let labels = json!({"app": name, "ray.io/cluster": "c", "ray.io/node-type": kind});
        set_at(pod(name), "/metadata/labels", labels)
    };
    let mut scene = ClusterFixture::new();
    scene.create(set_at(service("head", "head"), "/spec/publishNotReadyAddresses", json!(true)));
    scene.create(cluster_pod("head", "head"));
    for worker in ["a", "b", "c"] {
        scene.create(cluster_pod(worker, "worker"));
    }
    scene.run(1_000);
    let [a, b, c] = ["a", "b", "c"].map(|worker| scene.pod(worker)["status"]["podIP"].clone());
    let whole = set_at(config(&["a"]), "/applications/0/deployments/0/num_replicas", json!(3));
    let places = |scene: &mut ClusterFixture| {
        let replicas = get_applications(scene)["applications"]["a"]["deployments"]["Llm"]["replicas"].clone();
        replicas.as_array().expect("a list").iter().map(|replica| replica["node_ip"].clone()).collect::<Vec<_>>()
    };
    put_config(&mut scene, &whole);
    assert_eq!(places(&mut scene), [a.clone(), b.clone(), c]);

    // when one of them is removed, then the others stay where they are,
    put_config(&mut scene, &set_at(whole.clone(), "/target_capacity", json!(67)));
    assert_eq!(places(&mut scene)[0], b);

    // and a replica whose worker is lost gets another worker, or none.
    scene.delete("Pod", "c", Propagation::Background);
    scene.run(1_000);
    assert_eq!(places(&mut scene), [b.clone(), a.clone()]);
    put_config(&mut scene, &whole);
    assert_eq!(places(&mut scene), [b, a, Value::Null]);
}

#[test]
fn new_head_starts_without_applications() {
    let mut scene = with_head(ClusterFixture::new());
    put_config(&mut scene, &config(&["a"]));
    scene.delete("Pod", "head", Propagation::Background);
    scene.run(20);

    scene.create(pod("head"));
    scene.run(300);

    assert_eq!(statuses(&mut scene), "");
}

#[test]
fn restarting_head_is_unreachable_and_loses_its_applications() {
    let mut scene = with_head(ClusterFixture::with_pod_faults([PodFault::Restarts { after_ms: 1_000, for_ms: 1_000 }]));
    put_config(&mut scene, &config(&["a"]));
    scene.run(1_000);

    let (code, body) = scene.call(Method::GET, service_target("dashboard"), PATH, "");
    assert_eq!(code, 503);
    assert!(body.contains("connect: connection refused"), "{body}");

    scene.run(1_000);
    assert_eq!(statuses(&mut scene), "");
}

#[rstest]
#[case::no_service(
    ProxyTarget::Service { name: "none".into(), port: None }, "/", 404, r#""message":"services \"none\" not found""#)]
#[case::no_port(service_target("serve"), "/", 503, r#"no service port \"serve\" found for service \"head\""#)]
#[case::no_pod(
    ProxyTarget::Service { name: "empty".into(), port: Some("80".into()) }, "/", 503,
    r#"no endpoints available for service \"empty:80\""#)]
#[case::another_path(service_target("80"), "/api/jobs/", 404, "404 page not found")]
#[case::no_such_pod(pod_target("none"), "/-/healthz", 404, r#"pods \"none\" not found"#)]
#[case::not_ready(pod_target("young"), "/-/healthz", 503, r#"pod \"young\" is not ready"#)]
#[case::another_path_of_a_pod(pod_target("head"), "/", 404, "404 page not found")]
#[case::healthy(pod_target("head"), "/-/healthz", 200, "success")]
fn unreachable_target_returns_the_error_of_the_api_server(
    #[case] target: ProxyTarget,
    #[case] path: &str,
    #[case] code: u16,
    #[case] message: &str,
) {
    let mut scene = with_head(ClusterFixture::new());
    scene.create(service("empty", "nothing"));
    scene.create(pod("young"));
    scene.run(50);

    let (answered, body) = scene.call(Method::GET, target, path, "");

    assert_eq!(answered, code, "{body}");
    assert!(body.contains(message), "{body}");
}

#[rstest]
#[case("{", "the Serve configuration: ")]
#[case("{}", "the Serve configuration: applications is required")]
#[case(r#"{"applications": [], "target_capacity": 101}"#, "target_capacity is 101, must be from 0 to 100")]
#[case(r#"{"applications": [{}, {"name": "default"}]}"#, r#"the application "default" is there twice"#)]
fn invalid_configuration_is_rejected(#[case] body: &str, #[case] message: &str) {
    let mut scene = with_head(ClusterFixture::new());

    let (code, answer) = scene.call(Method::PUT, service_target("dashboard"), PATH, body);

    assert_eq!(code, 400);
    assert!(answer.contains(message), "{answer}");
}

#[test]
fn dashboard_returns_errors_for_a_limited_time() {
    let fault = DashboardFault::ReturnsError { code: 500, after_ms: 1_000, for_ms: 1_000 };
    let mut scene = with_dashboard_fault(fault);
    put_config(&mut scene, &config(&["a"]));

    scene.run(1_000);
    let answer = scene.call(Method::GET, service_target("dashboard"), PATH, "");
    assert_eq!(answer, (500, "steered to fail\n".to_owned()));
    assert_eq!(scene.cluster.triggered_faults().dashboards.get(&0), Some(&fault));

    scene.run(1_000);
    assert_eq!(statuses(&mut scene), "a:RUNNING");
}

#[rstest]
#[case(DashboardFault::DeployFails { for_ms: 1_000 }, 300, "a:DEPLOY_FAILED", 1_300)]
#[case(DashboardFault::Unhealthy { after_ms: 500, for_ms: 1_000 }, 800, "a:UNHEALTHY", 1_800)]
fn applications_are_unhealthy_for_a_limited_time(
    #[case] fault: DashboardFault,
    #[case] at: u64,
    #[case] faulty_status: &str,
    #[case] until: u64,
) {
    let mut scene = with_dashboard_fault(fault);
    put_config(&mut scene, &config(&["a"]));

    scene.run(at);
    assert_eq!(statuses(&mut scene), faulty_status);
    scene.run(until - at);
    assert_eq!(statuses(&mut scene), "a:RUNNING");
}

#[test]
fn applications_run_once_faults_are_disabled() {
    for fault in [
        DashboardFault::ReturnsError { code: 503, after_ms: 0, for_ms: 60_000 },
        DashboardFault::DeployFails { for_ms: 60_000 },
        DashboardFault::Unhealthy { after_ms: 0, for_ms: 60_000 },
    ] {
        let mut scene = with_dashboard_fault(fault);
        let _ = scene.call(Method::GET, service_target("dashboard"), PATH, "");
        scene.cluster.disable_faults(scene.now);

        put_config(&mut scene, &config(&["a"]));
        scene.run(1_000);

        assert_eq!(statuses(&mut scene), "a:RUNNING");
    }
}

#[test]
fn pod_with_unreachable_proxy_is_ready_but_refuses_connections() {
    let mut scene =
        with_head(ClusterFixture::with_pod_faults([PodFault::ProxyUnreachable { after_ms: 1_000, for_ms: 1_000 }]));
    scene.run(1_000);

    let (code, body) = scene.call(Method::GET, pod_target("head"), "/-/healthz", "");
    assert_eq!(code, 503);
    assert!(body.contains(":8000: connect: connection refused"), "{body}");

    scene.run(1_000);
    assert_eq!(scene.call(Method::GET, pod_target("head"), "/-/healthz", "").0, 200);
}
