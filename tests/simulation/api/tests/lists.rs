//! Listing.

use super::*;

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().into_iter().flatten().filter_map(|item| item["metadata"]["name"].as_str()).collect()
}

#[test]
fn a_list_has_the_selected_objects_by_name_and_the_version() {
    let mut server = Server::new();
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
fn a_list_of_one_namespace_has_nothing_of_others() {
    let mut server = Server::new();
    server.post("/api/v1/namespaces", json!({"metadata": {"name": "default-2"}}));
    server.post("/api/v1/namespaces/default-2/pods", pod("p", json!({})));
    server.post(PODS, pod("p", json!({})));

    let (_, list) = server.get(PODS);

    assert_eq!(list["items"].as_array().map(Vec::len), Some(1));
    assert_eq!(list["items"][0]["metadata"]["namespace"], "default");
}

#[test]
fn a_list_in_pieces_is_one_state() {
    let mut server = Server::new();
    for name in ["a", "b", "c"] {
        server.has_cluster(name);
    }
    let (_, first) = server.get(&format!("{CLUSTERS}?limit=1"));
    assert_eq!((names(&first), &first["metadata"]["remainingItemCount"]), (vec!["a"], &json!(2)));
    server.delete(&at("c"), Value::Null);
    server.merge(&at("b"), json!({"spec": {"suspend": true}}));
    server.has_cluster("d");

    let token = first["metadata"]["continue"].as_str().expect("a token");
    let (code, rest) = server.get(&format!("{CLUSTERS}?limit=5&continue={token}"));

    assert_eq!((code, names(&rest)), (200, vec!["b", "c"]));
    assert_eq!(rest["items"][0]["spec"]["suspend"], Value::Null);
    assert_eq!(rest["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
}

#[test]
fn a_list_of_forgotten_history_goes_on_only_with_the_present() {
    let mut server = Server::new();
    for name in ["a", "b"] {
        server.has_cluster(name);
    }
    let (_, first) = server.get(&format!("{CLUSTERS}?limit=1"));
    let token = first["metadata"]["continue"].as_str().expect("a token");
    server.has_cluster("c");
    server.api.compact();

    let (code, status) = server.get(&format!("{CLUSTERS}?limit=5&continue={token}"));
    assert_eq!((code, status["reason"].as_str()), (410, Some("Expired")));

    let token = status["metadata"]["continue"].as_str().expect("a token");
    let (code, rest) = server.get(&format!("{CLUSTERS}?limit=5&continue={token}"));
    assert_eq!((code, names(&rest)), (200, vec!["b", "c"]));
}
