use serde_json::{Value, json};

use super::super::object_view::{is_terminating, items, uid};
use super::{ClusterFixture, Propagation, pod};

/// Builds a ConfigMap that blocks the deletion of its owners.
fn config(name: &str, owners: &[&Value]) -> Value {
    let reference = |owner: &&Value| {
        json!({
            "apiVersion": "v1", "kind": owner["kind"], "name": owner["metadata"]["name"], "uid": uid(owner),
            "blockOwnerDeletion": true,
        })
    };
    let owners: Vec<Value> = owners.iter().map(reference).collect();
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "ownerReferences": owners}})
}

fn names(scene: &ClusterFixture) -> Vec<&str> {
    scene.api.list("ConfigMap").filter_map(|object| object["metadata"]["name"].as_str()).collect()
}

#[test]
fn background_deletion_cascades_to_all_dependents() {
    let mut scene = ClusterFixture::new();
    let a = scene.create(config("a", &[]));
    let b = scene.create(config("b", &[&a]));
    scene.create(config("c", &[&b]));
    scene.create(config("d", &[]));
    scene.run(1_000);

    scene.delete("ConfigMap", "a", Propagation::Background);
    assert_eq!(names(&scene), ["b", "c", "d"]);

    scene.run(20);
    assert_eq!(names(&scene), ["c", "d"]);
    scene.run(20);
    assert_eq!(names(&scene), ["d"]);
}

#[test]
fn recreated_owner_does_not_keep_dependents_of_the_old_one() {
    let mut scene = ClusterFixture::new();
    let old = scene.create(config("a", &[]));
    scene.create(config("of-old", &[&old]));
    scene.delete("ConfigMap", "a", Propagation::Background);
    let new = scene.create(config("a", &[]));
    scene.create(config("of-new", &[&new]));

    scene.run(1_000);

    assert_eq!(names(&scene), ["a", "of-new"]);
}

#[test]
fn dependent_created_after_its_owner_was_deleted_is_deleted() {
    let mut scene = ClusterFixture::new();
    let a = scene.create(config("a", &[]));
    scene.delete("ConfigMap", "a", Propagation::Background);
    scene.run(1_000);

    scene.create(config("b", &[&a]));
    scene.run(20);

    assert!(names(&scene).is_empty());
}

#[test]
fn dependent_with_another_owner_stays_and_loses_the_deleted_owner() {
    let mut scene = ClusterFixture::new();
    let (a, b) = (scene.create(config("a", &[])), scene.create(config("b", &[])));
    scene.create(config("c", &[&a, &b]));

    scene.delete("ConfigMap", "a", Propagation::Background);
    scene.run(1_000);

    let left = scene.find("ConfigMap", "c").expect("it stays");
    let owners: Vec<&Value> = items(left, "/metadata/ownerReferences").map(|owner| &owner["name"]).collect();
    assert_eq!(owners, ["b"]);
}

#[test]
fn foreground_deletion_waits_for_a_pod_to_end() {
    let mut scene = ClusterFixture::new();
    let a = scene.create(config("a", &[]));
    let mut owned = pod("p");
    owned["metadata"]["ownerReferences"] = config("p", &[&a])["metadata"]["ownerReferences"].clone();
    scene.create(owned);
    scene.run(1_000);

    scene.delete("ConfigMap", "a", Propagation::Foreground);
    scene.run(20);
    assert!(is_terminating(scene.pod("p")));
    assert!(is_terminating(scene.find("ConfigMap", "a").expect("it waits")));

    scene.run(10);
    assert!(scene.find("Pod", "p").is_none());
    scene.run(20);
    assert!(names(&scene).is_empty());
}

#[test]
fn those_below_go_before_those_above_when_an_owner_goes_last() {
    let mut scene = ClusterFixture::new();
    let a = scene.create(config("a", &[]));
    let b = scene.create(config("b", &[&a]));
    scene.create(config("c", &[&b]));

    scene.delete("ConfigMap", "a", Propagation::Foreground);

    let mut order = vec![names(&scene).join(" ")];
    for _ in 0..20 {
        scene.run(10);
        let left = names(&scene).join(" ");
        if order.last() != Some(&left) {
            order.push(left);
        }
    }
    assert_eq!(order, ["a b c", "a b", "a", ""]);
}

#[test]
fn foreground_deletion_does_not_wait_for_non_blocking_dependents() {
    let mut scene = ClusterFixture::new();
    let a = scene.create(config("a", &[]));
    let mut owned = config("b", &[&a]);
    owned["metadata"]["ownerReferences"][0]["blockOwnerDeletion"] = json!(false);
    owned["metadata"]["finalizers"] = json!(["example.com/hold"]);
    scene.create(owned);

    scene.delete("ConfigMap", "a", Propagation::Foreground);
    scene.run(1_000);

    assert_eq!(names(&scene), ["b"]);
    assert!(is_terminating(scene.find("ConfigMap", "b").expect("the finalizer keeps it")));
}

#[test]
fn orphaned_dependents_stay_and_lose_their_owner() {
    let mut scene = ClusterFixture::new();
    let a = scene.create(config("a", &[]));
    scene.create(config("b", &[&a]));

    scene.delete("ConfigMap", "a", Propagation::Orphan);
    scene.run(1_000);

    assert_eq!(names(&scene), ["b"]);
    let left = scene.find("ConfigMap", "b").expect("it stays");
    assert_eq!(items(left, "/metadata/ownerReferences").count(), 0);
}
