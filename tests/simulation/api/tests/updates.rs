//! Tests of create and update.

use rstest::rstest;

use super::*;

#[test]
fn new_object_gets_server_set_metadata() {
    let mut server = TestServer::new();

    let (code, made) = server.post(CLUSTERS, cluster("a"));

    assert_eq!(code, 201);
    let metadata = &made["metadata"];
    assert_eq!(metadata["namespace"], "default");
    assert_eq!(metadata["generation"], 1);
    assert_eq!(metadata["creationTimestamp"], "2026-01-01T00:00:00Z");
    assert!(metadata["uid"].is_string() && metadata["resourceVersion"].is_string());
    assert_eq!(server.get(&cluster_path("a")), (200, made));
}

#[test]
fn generated_names_are_unique() {
    let mut server = TestServer::new();
    let mut nameless = pod("", json!({}));
    nameless["metadata"] = json!({"generateName": "p-"});

    let (_, first) = server.post(PODS, nameless.clone());
    let (_, second) = server.post(PODS, nameless);

    let name = |pod: &Value| pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    assert!(name(&first).starts_with("p-") && name(&first).len() == 7);
    assert_ne!(name(&first), name(&second));
}

#[rstest]
#[case::already_exists(CLUSTERS, cluster("a"), 409, "rayclusters.ray.io \"a\" already exists")]
#[case::no_namespace(
    "/apis/ray.io/v1/namespaces/nowhere/rayclusters",
    cluster("b"),
    404,
    "namespaces \"nowhere\" not found"
)]
#[case::no_name(
    PODS,
    pod("", json!({})),
    422,
    "Pod \"\" is invalid: metadata.name: Required value: name or generateName is required"
)]
fn invalid_create_is_rejected(#[case] path: &str, #[case] object: Value, #[case] code: u16, #[case] message: &str) {
    let mut server = TestServer::new();
    server.create_cluster("a");

    let (answered, status) = server.post(path, object);

    assert_eq!((answered, status["message"].as_str()), (code, Some(message)));
}

#[test]
fn spec_change_increments_generation_and_label_change_does_not() {
    let mut server = TestServer::new();
    server.create_cluster("a");

    let (_, suspended) = server.merge(&cluster_path("a"), json!({"spec": {"suspend": true}}));
    let (_, labeled) = server.merge(&cluster_path("a"), json!({"metadata": {"labels": {"x": "y"}}}));

    assert_eq!(suspended["metadata"]["generation"], 2);
    assert_eq!(labeled["metadata"]["generation"], 2);
    assert_ne!(suspended["metadata"]["resourceVersion"], labeled["metadata"]["resourceVersion"]);
}

#[test]
fn update_without_changes_makes_no_version() {
    let mut server = TestServer::new();
    server.create_cluster("a");
    let (_, first) = server.merge(&cluster_path("a"), json!({"spec": {"suspend": true}}));
    let seen = server.api.changes_from(0).len();

    let (code, second) = server.merge(&cluster_path("a"), json!({"spec": {"suspend": true, "rayVersion": null}}));

    assert_eq!((code, second), (200, first));
    assert!(server.api.changes_from(seen).is_empty());
}

#[test]
fn status_is_written_only_through_the_status_subresource() {
    let mut server = TestServer::new();
    server.create_cluster("a");

    let both = json!({"spec": {"suspend": true}, "status": {"state": "ready"}});
    let (_, main) = server.merge(&cluster_path("a"), both.clone());
    assert_eq!((&main["spec"]["suspend"], &main["status"]), (&json!(true), &Value::Null));

    server.merge(&cluster_path("a"), json!({"spec": {"suspend": false}}));
    let (_, status) = server.merge(&cluster_path("a/status"), both);
    assert_eq!((&status["spec"]["suspend"], &status["status"]["state"]), (&json!(false), &json!("ready")));
    assert_eq!(status["metadata"]["generation"], 3);
}

#[rstest]
#[case::patch("PATCH", "application/merge-patch+json")]
#[case::update("PUT", "application/json")]
fn update_with_outdated_version_is_rejected(#[case] method: &str, #[case] content_type: &str) {
    let mut server = TestServer::new();
    let old = server.create_cluster("a");
    server.merge(&cluster_path("a"), json!({"spec": {"suspend": true}}));

    let (code, status) = server.send(method, &cluster_path("a"), content_type, &old);

    assert_eq!((code, status["reason"].as_str()), (409, Some("Conflict")));
    let message = "Operation cannot be fulfilled on rayclusters.ray.io \"a\": the object has been modified; please apply \
        your changes to the latest version and try again";
    assert_eq!(status["message"], message);
}

#[test]
fn json_patch_is_atomic() {
    let mut server = TestServer::new();
    server.create_cluster("a");
    let json_patch = "application/json-patch+json";

    let suspend = json!([{"op": "add", "path": "/spec/suspend", "value": true}]);
    let (code, changed) = server.send("PATCH", &cluster_path("a"), json_patch, &suspend);
    assert_eq!((code, &changed["spec"]["suspend"]), (200, &json!(true)));

    let test = json!([
        {"op": "add", "path": "/spec/rayVersion", "value": "2"},
        {"op": "test", "path": "/spec/suspend", "value": false},
    ]);
    let (code, _) = server.send("PATCH", &cluster_path("a"), json_patch, &test);
    assert_eq!((code, server.get(&cluster_path("a")).1), (422, changed));
}

/// As in a real API server: a running pod has generation 1.
#[test]
fn binding_a_pod_does_not_change_its_generation() {
    let mut server = TestServer::new();

    server.create_running_pod("p");

    let (_, pod) = server.get(&format!("{PODS}/p"));
    assert_eq!((&pod["spec"]["nodeName"], &pod["metadata"]["generation"]), (&json!("node"), &json!(1)));
}

#[test]
fn new_pod_is_pending() {
    let mut server = TestServer::new();
    let (_, pod) = server.post(PODS, pod("p", json!({})));
    assert_eq!(pod["status"]["phase"], "Pending");
    assert_eq!(pod["spec"]["restartPolicy"], "Always");
}

#[test]
fn service_keeps_its_cluster_ip_and_target_ports_are_defaulted() {
    let mut server = TestServer::new();
    let services = "/api/v1/namespaces/default/services";
    let service = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 8000}]}});

    let (_, made) = server.post(services, service.clone());
    let (_, replaced) = server.put(&format!("{services}/s"), &service);

    assert_eq!(made["spec"]["ports"], json!([{"port": 8000, "protocol": "TCP", "targetPort": 8000}]));
    assert_eq!(made["spec"]["type"], "ClusterIP");
    assert_eq!(replaced, made);
}

#[rstest]
#[case::unknown_object("GET", "/api/v1/namespaces/default/pods/x", 404, "NotFound")]
#[case::unknown_kind("GET", "/apis/ray.io/v1/rayjobs", 404, "NotFound")]
#[case::wrong_verb("POST", "/api/v1/namespaces/default/pods/x", 405, "MethodNotAllowed")]
#[case::no_object("POST", "/api/v1/namespaces/default/pods", 400, "BadRequest")]
#[case::unknown_patch("PATCH", "/api/v1/namespaces/default/pods/x", 415, "UnsupportedMediaType")]
fn malformed_request_is_rejected(#[case] method: &str, #[case] path: &str, #[case] code: u16, #[case] reason: &str) {
    let (answered, status) = TestServer::new().send(method, path, "text/plain", &Value::Null);
    assert_eq!((answered, status["reason"].as_str(), status["code"].as_u64()), (code, Some(reason), Some(code.into())));
}
