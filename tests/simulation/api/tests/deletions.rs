//! Tests of deletion.

use rstest::rstest;

use super::*;

#[test]
fn object_without_finalizers_is_deleted_immediately() {
    let mut server = TestServer::new();
    let made = server.create_cluster("a");

    let (code, status) = server.delete(&cluster_path("a"), json!({"propagationPolicy": "Background"}));

    assert_eq!((code, status["status"].as_str()), (200, Some("Success")));
    let details = json!({"name": "a", "group": "ray.io", "kind": "rayclusters", "uid": made["metadata"]["uid"]});
    assert_eq!(status["details"], details);
    assert_eq!(server.get(&cluster_path("a")).0, 404);
    let last = server.api.changes_from(0).last().expect("a change");
    assert!(last.deleted);
    assert_eq!(last.object["metadata"]["resourceVersion"], last.version.to_string());
}

#[test]
fn finalizer_keeps_an_object_until_it_is_removed() {
    let mut server = TestServer::new();
    server.create_cluster("a");
    server.merge(&cluster_path("a"), json!({"metadata": {"finalizers": ["sluice.dev/hold"]}}));

    let (_, marked) = server.delete(&cluster_path("a"), Value::Null);
    assert_eq!(marked["metadata"]["deletionTimestamp"], "2026-01-01T00:00:00Z");
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 0);
    assert_eq!(marked["metadata"]["generation"], 2);

    let (code, _) =
        server.merge(&cluster_path("a"), json!({"metadata": {"finalizers": ["sluice.dev/hold", "another/one"]}}));
    assert_eq!(code, 422, "a terminating object accepts no new finalizers");

    let (code, _) = server.merge(&cluster_path("a"), json!({"metadata": {"finalizers": null}}));
    assert_eq!((code, server.get(&cluster_path("a")).0), (200, 404));
}

#[rstest]
#[case::foreground("Foreground", json!(["foregroundDeletion"]))]
#[case::orphan("Orphan", json!(["orphan"]))]
fn propagation_policy_sets_a_finalizer_for_the_garbage_collector(#[case] policy: &str, #[case] expected: Value) {
    let mut server = TestServer::new();
    server.create_cluster("a");

    let (_, marked) = server.delete(&cluster_path("a"), json!({"propagationPolicy": policy}));

    assert_eq!(marked["metadata"]["finalizers"], expected);
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
}

#[test]
fn background_deletion_overrides_an_earlier_foreground_deletion() {
    let mut server = TestServer::new();
    server.create_cluster("a");
    server.delete(&cluster_path("a"), json!({"propagationPolicy": "Foreground"}));

    server.delete(&cluster_path("a"), json!({"propagationPolicy": "Background"}));

    assert_eq!(server.get(&cluster_path("a")).0, 404);
}

#[test]
fn deletion_with_another_uid_is_rejected() {
    let mut server = TestServer::new();
    let made = server.create_cluster("a");
    let uid = made["metadata"]["uid"].as_str().unwrap_or_default();

    let (code, status) = server.delete(&cluster_path("a"), json!({"preconditions": {"uid": "other"}}));

    let message = format!(
        "Operation cannot be fulfilled on RayCluster.ray.io \"a\": the UID in the precondition (other) does not match the \
         UID in record ({uid}). The object might have been deleted and then recreated"
    );
    assert_eq!((code, status["message"].as_str()), (409, Some(message.as_str())));
    assert_eq!(server.get(&cluster_path("a")).0, 200);
}

#[test]
fn unscheduled_pod_is_deleted_immediately() {
    let mut server = TestServer::new();
    server.post(PODS, pod("p", json!({})));
    server.delete(&format!("{PODS}/p"), Value::Null);
    assert_eq!(server.get(&format!("{PODS}/p")).0, 404);
}

#[test]
fn running_pod_has_a_grace_period_until_the_kubelet_removes_it() {
    let mut server = TestServer::new();
    server.create_running_pod("p");
    let path = format!("{PODS}/p");

    let (_, ending) = server.delete(&path, Value::Null);
    assert_eq!(ending["metadata"]["deletionTimestamp"], "2026-01-01T00:00:30Z");
    assert_eq!(ending["metadata"]["deletionGracePeriodSeconds"], 30);

    server.advance(3);
    assert_eq!(server.delete(&path, Value::Null).1, ending, "a repeated deletion changes nothing");
    let (_, shortened) = server.delete(&path, json!({"gracePeriodSeconds": 5}));
    assert_eq!(shortened["metadata"]["deletionTimestamp"], "2026-01-01T00:00:05Z");

    let now = server.now;
    server.api.delete_immediately(now, "Pod", "default", "p");
    assert_eq!(server.get(&path).0, 404);
}

#[test]
fn pod_with_a_finalizer_stays_after_the_kubelet_removes_it() {
    let mut server = TestServer::new();
    server.create_running_pod("p");
    let path = format!("{PODS}/p");
    server.merge(&path, json!({"metadata": {"finalizers": ["a/b"]}}));
    server.delete(&path, Value::Null);

    let now = server.now;
    server.api.delete_immediately(now, "Pod", "default", "p");
    assert_eq!(server.get(&path).1["metadata"]["deletionGracePeriodSeconds"], 0);

    server.merge(&path, json!({"metadata": {"finalizers": []}}));
    assert_eq!(server.get(&path).0, 404);
}

#[test]
fn collection_is_deleted_by_selector() {
    let mut server = TestServer::new();
    for (name, app) in [("a", "x"), ("b", "y")] {
        server.post(PODS, pod(name, json!({"app": app})));
    }

    let (code, _) = server.delete(&format!("{PODS}?labelSelector=app%3Dx"), Value::Null);

    assert_eq!((code, server.get(&format!("{PODS}/a")).0, server.get(&format!("{PODS}/b")).0), (200, 404, 200));
}

#[test]
fn create_in_a_terminating_namespace_is_rejected() {
    let mut server = TestServer::new();
    server.delete("/api/v1/namespaces/default", Value::Null);

    let (code, status) = server.post(CLUSTERS, cluster("a"));

    assert_eq!((code, status["reason"].as_str()), (403, Some("Forbidden")));
    assert_eq!(server.get("/api/v1/namespaces/default").1["status"]["phase"], "Terminating");
}
