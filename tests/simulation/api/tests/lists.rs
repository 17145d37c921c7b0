//! Tests of lists.

use super::*;

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().into_iter().flatten().filter_map(|item| item["metadata"]["name"].as_str()).collect()
}

#[test]
fn list_has_selected_objects_ordered_by_name_and_the_version() {
    let mut server = TestServer::new();
    for (name, app) in [("b", "x"), ("a", "x"), ("c", "y")] {
        server.post(PODS, pod(name, json!({"app": app})));
    }

    let (code, list) = server.get("/api/v1/pods?&labelSelector=app%3Dx&resourceVersion=0");

    assert_eq!((code, names(&list)), (200, vec!["a", "b"]));
    assert_eq!(list["kind"], "PodList");
    let version = server.api.changes_from(0).last().expect("a change").version;
    assert_eq!(list["metadata"], json!({"resourceVersion": version.to_string()}));
}

#[test]
fn list_of_a_namespace_has_no_objects_of_other_namespaces() {
    let mut server = TestServer::new();
    server.post("/api/v1/namespaces", json!({"metadata": {"name": "default-2"}}));
    server.post("/api/v1/namespaces/default-2/pods", pod("p", json!({})));
    server.post(PODS, pod("p", json!({})));

    let (_, list) = server.get(PODS);

    assert_eq!(list["items"].as_array().map(Vec::len), Some(1));
    assert_eq!(list["items"][0]["metadata"]["namespace"], "default");
}

#[test]
fn pages_of_a_list_show_one_state() {
    let mut server = TestServer::new();
    for name in ["a", "b", "c"] {
        server.create_cluster(name);
    }
    let (_, first) = server.get(&format!("{CLUSTERS}?limit=1"));
    assert_eq!((names(&first), &first["metadata"]["remainingItemCount"]), (vec!["a"], &json!(2)));
    server.delete(&cluster_path("c"), Value::Null);
    server.merge(&cluster_path("b"), json!({"spec": {"suspend": true}}));
    server.create_cluster("d");

    let token = first["metadata"]["continue"].as_str().expect("a token");
    let (code, rest) = server.get(&format!("{CLUSTERS}?limit=5&continue={token}"));

    assert_eq!((code, names(&rest)), (200, vec!["b", "c"]));
    assert_eq!(rest["items"][0]["spec"]["suspend"], Value::Null);
    assert_eq!(rest["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
}

#[test]
fn expired_list_continues_only_with_the_current_state() {
    let mut server = TestServer::new();
    for name in ["a", "b"] {
        server.create_cluster(name);
    }
    let (_, first) = server.get(&format!("{CLUSTERS}?limit=1"));
    let token = first["metadata"]["continue"].as_str().expect("a token");
    server.create_cluster("c");
    server.api.compact();

    let (code, status) = server.get(&format!("{CLUSTERS}?limit=5&continue={token}"));
    assert_eq!((code, status["reason"].as_str()), (410, Some("Expired")));

    let token = status["metadata"]["continue"].as_str().expect("a token");
    let (code, rest) = server.get(&format!("{CLUSTERS}?limit=5&continue={token}"));
    assert_eq!((code, names(&rest)), (200, vec!["b", "c"]));
}
