//! Tests of watches.

use super::*;

fn version(server: &TestServer) -> u64 {
    server.api.changes_from(0).last().expect("a change").version
}

#[test]
fn watch_reports_changes_after_its_version() {
    let mut server = TestServer::new();
    server.create_cluster("a");
    let path = format!("{CLUSTERS}?&watch=true&timeoutSeconds=290&resourceVersion={}", version(&server));
    let mut watch = server.watch(&path);
    assert_eq!(watch.timeout(), Some(std::time::Duration::from_secs(290)));

    server.create_cluster("b");
    server.post(PODS, pod("p", json!({})));
    let (_, changed) = server.merge(&cluster_path("a"), json!({"spec": {"suspend": true}}));
    server.delete(&cluster_path("b"), Value::Null);

    let events = server.events(&mut watch);
    assert_eq!(summary(&events), [("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b")]);
    assert_eq!(events[1].1, changed);
    assert_eq!(events[2].1["metadata"]["resourceVersion"], version(&server).to_string());
    assert!(server.events(&mut watch).is_empty());
}

#[test]
fn watch_from_an_earlier_version_catches_up() {
    let mut server = TestServer::new();
    let before = version(&server);
    server.create_cluster("a");
    server.create_cluster("b");

    let mut watch = server.watch(&format!("/apis/ray.io/v1/rayclusters?watch=1&resourceVersion={before}"));

    let events = server.events(&mut watch);
    assert_eq!(summary(&events), [("ADDED", "a"), ("ADDED", "b")]);
}

#[test]
fn object_is_added_and_deleted_as_it_starts_and_stops_matching() {
    let mut server = TestServer::new();
    let mut watch =
        server.watch(&format!("{PODS}?watch=true&labelSelector=app%3Dx&resourceVersion={}", version(&server)));
    let path = format!("{PODS}/p");
    server.post(PODS, pod("p", json!({"app": "y"})));
    for app in ["x", "z"] {
        server.merge(&path, json!({"metadata": {"labels": {"app": app}}}));
    }
    server.delete(&path, Value::Null);

    let events = server.events(&mut watch);

    assert_eq!(summary(&events), [("ADDED", "p"), ("DELETED", "p")]);
    assert_eq!(events[1].1["metadata"]["labels"]["app"], "x", "the last state that matched");
    let unmatched_at = version(&server) - 2;
    assert_eq!(
        events[1].1["metadata"]["resourceVersion"],
        unmatched_at.to_string(),
        "the version of the change after which it no longer matches"
    );
}

#[test]
fn watch_without_version_begins_with_existing_objects() {
    let mut server = TestServer::new();
    server.create_cluster("a");

    let mut plain = server.watch(&format!("{CLUSTERS}?watch=true&resourceVersion=0"));
    let mut streamed = server.watch(&format!("{CLUSTERS}?watch=true&sendInitialEvents=true&allowWatchBookmarks=true"));
    server.create_cluster("b");

    let events = server.events(&mut plain);
    assert_eq!(summary(&events), [("ADDED", "a"), ("ADDED", "b")]);
    let events = server.events(&mut streamed);
    assert_eq!(summary(&events), [("ADDED", "a"), ("BOOKMARK", ""), ("ADDED", "b")]);
    assert_eq!(events[1].1["metadata"]["annotations"], json!({"k8s.io/initial-events-end": "true"}));
}

#[test]
fn bookmark_has_the_version_up_to_which_all_changes_were_sent() {
    let mut server = TestServer::new();
    let before = version(&server);
    let mut watch = server.watch(&format!("{CLUSTERS}?watch=true&allowWatchBookmarks=true&resourceVersion={before}"));
    assert!(watch.wants_bookmarks());
    server.post(PODS, pod("p", json!({})));
    server.create_cluster("a");

    let bookmark_version = |line: Bytes| decode_event(&line).1["metadata"]["resourceVersion"].clone();
    assert_eq!(bookmark_version(server.api.bookmark(&mut watch)), (before + 1).to_string());
    server.api.events(&mut watch);
    assert_eq!(bookmark_version(server.api.bookmark(&mut watch)), (before + 2).to_string());
}

#[test]
fn watch_from_a_compacted_version_expires() {
    let mut server = TestServer::new();
    let before = version(&server);
    let mut current = server.watch(&format!("{CLUSTERS}?watch=true&resourceVersion={before}"));
    let mut lagging = server.watch(&format!("{CLUSTERS}?watch=true&resourceVersion={before}"));
    server.create_cluster("a");
    server.events(&mut current);
    server.api.compact();
    server.create_cluster("b");

    let mut late = server.watch(&format!("{CLUSTERS}?watch=true&resourceVersion={before}"));

    for watch in [&mut late, &mut lagging] {
        let events = server.events(watch);
        let [(change, status)] = events.as_slice() else { panic!("{events:?}") };
        assert_eq!((change.as_str(), &status["code"], &status["reason"]), ("ERROR", &json!(410), &json!("Expired")));
        assert!(watch.is_closed());
    }
    let events = server.events(&mut current);
    assert_eq!(summary(&events), [("ADDED", "b")]);
}
