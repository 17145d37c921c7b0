//! Clusters whose pods are made anew when their spec changes (`upgradeStrategy: Recreate`), on the whole engine.

use rstest::rstest;
use serde_json::{Value, json};

use super::control_plane::ControlPlane;
use super::jobs::{cluster_spec, control_plane, meta, put_cluster, scale};
use sluice_api::ray::names;
use sluice_jobframework::fitting::UPGRADE_ADMISSIBLE;
use sluice_queue::Settings;

/// A cluster whose spec may ask for other pods: so many workers, each with so much CPU, and a version in which nothing else differs.
fn put(plane: &mut ControlPlane, workers: u32, cpu: &str, version: &str) {
    plane.apply("RayCluster", json!({"metadata": meta("chat", "low"), "spec": spec(workers, cpu, version)}));
}

fn spec(workers: u32, cpu: &str, version: &str) -> Value {
    let mut spec = cluster_spec(workers, version);
    spec["upgradeStrategy"] = json!({"type": "Recreate"});
    let container = &mut spec["workerGroupSpecs"][0]["template"]["spec"]["containers"][0];
    container["resources"] = json!({"requests": {"cpu": cpu}, "limits": {"cpu": cpu}});
    spec
}

/// What pods run.
fn running(plane: &ControlPlane) -> Vec<String> {
    let mut kinds: Vec<String> = plane.running("chat").map(what_it_is).collect();
    kinds.sort();
    kinds.dedup();
    kinds
}

fn what_it_is(pod: &Value) -> String {
    let cpu = &pod["spec"]["containers"][0]["resources"]["requests"]["cpu"];
    match pod["metadata"]["labels"]["ray.io/node-type"].as_str() {
        Some("worker") => format!("worker of {}", cpu.as_str().unwrap_or_default()),
        _ => "head".to_owned(),
    }
}

fn says(plane: &ControlPlane, kind: &str) -> Option<(String, String)> {
    let conditions = plane.object("RayCluster", "chat")["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions.into_iter().find(|condition| condition["type"] == kind)?;
    let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
    Some((text("status"), text("reason")))
}

#[test]
fn pods_are_made_anew_once_the_last_of_the_old_is_gone() {
    // Given a cluster that runs, with pods that take their time to go,
    let mut plane = control_plane(Settings::default(), "5");
    put(&mut plane, 2, "1", "2.53.0");
    plane.play(60);
    assert_eq!(plane.pods("chat"), 3);
    plane.linger = true;

    // when it is to have larger workers, then all old pods go, and no other is there before the last of them has;
    put(&mut plane, 2, "2", "2.53.0");
    plane.play(60);
    assert_eq!(running(&plane), ["head", "worker of 1"]);
    assert_eq!((plane.pods("chat"), plane.workloads("chat").len()), (3, 2));

    // and then those of the new spec start, on a slice of their own.
    plane.linger = false;
    plane.play(60);
    assert_eq!(running(&plane), ["head", "worker of 2"]);
    assert_eq!((plane.pods("chat"), plane.workloads("chat").len()), (3, 1));
    assert_eq!(plane.waits_for("RayCluster", "chat"), "");
    assert_eq!(says(&plane, UPGRADE_ADMISSIBLE), None);
}

#[test]
fn an_old_pod_that_has_ended_is_in_the_way_until_it_is_gone() {
    // Given a cluster that is made anew, and pods that have ended a while before they are gone, as a kubelet has it,
    let mut plane = control_plane(Settings::default(), "5");
    put(&mut plane, 2, "1", "2.53.0");
    plane.play(60);
    plane.linger = true;
    put(&mut plane, 2, "2", "2.53.0");
    plane.play(60);
    for name in plane.names("Pod") {
        plane.apply("Pod", json!({"metadata": {"name": name}, "status": {"phase": "Failed"}}));
    }
    plane.play(60);

    // then there is no other pod yet,
    assert_eq!((running(&plane), plane.pods("chat")), (vec!["head".to_owned(), "worker of 1".to_owned()], 3));

    // and those of the new spec start once they are.
    plane.linger = false;
    plane.play(60);
    assert_eq!((running(&plane), plane.pods("chat")), (vec!["head".to_owned(), "worker of 2".to_owned()], 3));
}

#[test]
fn what_runs_is_looked_after_until_there_is_quota_for_what_is_to_come() {
    // Given a cluster that is to have larger pods, for which others have the quota,
    let mut plane = control_plane(Settings::default(), "7");
    put(&mut plane, 2, "1", "2.53.0");
    put_cluster(&mut plane, "other", "low", 3);
    plane.play(60);
    put(&mut plane, 2, "3", "2.53.0");
    plane.play(60);
    assert_eq!((running(&plane), plane.pods("chat")), (vec!["head".to_owned(), "worker of 1".to_owned()], 3));
    assert_eq!(says(&plane, UPGRADE_ADMISSIBLE), Some(("True".to_owned(), "Recreate".to_owned())));
    assert!(plane.waits_for("RayCluster", "chat").contains("new spec of chat is pending in LocalQueue lq (chat keeps running)"));

    // when a pod of it fails, then another of the old spec takes its place, and it can be scaled,
    let worker = plane.running("chat").find(|pod| what_it_is(pod) == "worker of 1").expect("a worker");
    let name = worker["metadata"]["name"].as_str().expect("a name").to_owned();
    plane.delete("Pod", &name);
    plane.play(60);
    assert_eq!((running(&plane), plane.pods("chat")), (vec!["head".to_owned(), "worker of 1".to_owned()], 3));
    scale(&mut plane, "chat", 1);
    plane.play(60);
    assert_eq!((running(&plane), plane.pods("chat")), (vec!["head".to_owned(), "worker of 1".to_owned()], 2));

    // until the others are gone.
    scale(&mut plane, "chat", 2);
    plane.delete("RayCluster", "other");
    plane.play(60);
    assert_eq!((running(&plane), plane.pods("chat")), (vec!["head".to_owned(), "worker of 3".to_owned()], 3));
}

#[test]
fn a_spec_for_which_there_is_never_quota_stops_nothing() {
    let mut plane = control_plane(Settings::default(), "5");
    put(&mut plane, 2, "1", "2.53.0");
    plane.play(60);

    put(&mut plane, 2, "3", "2.53.0");
    plane.play(60);

    assert_eq!((running(&plane), plane.pods("chat")), (vec!["head".to_owned(), "worker of 1".to_owned()], 3));
    assert_eq!(says(&plane, UPGRADE_ADMISSIBLE), Some(("False".to_owned(), "ExceedsMaxQuota".to_owned())));

    // And it can be taken back.
    put(&mut plane, 2, "1", "2.53.0");
    plane.play(60);
    assert_eq!((plane.pods("chat"), plane.workloads("chat").len()), (3, 1));
    assert_eq!((plane.waits_for("RayCluster", "chat").as_str(), says(&plane, UPGRADE_ADMISSIBLE)), ("", None));
}

#[test]
fn what_is_taken_back_while_old_pods_stop_starts_again_as_it_was() {
    let mut plane = control_plane(Settings::default(), "5");
    put(&mut plane, 2, "1", "2.53.0");
    plane.play(60);
    plane.linger = true;
    put(&mut plane, 2, "2", "2.53.0");
    plane.play(10);

    put(&mut plane, 2, "1", "2.53.0");
    plane.play(10);
    plane.linger = false;
    plane.play(60);

    assert_eq!((running(&plane), plane.pods("chat")), (vec!["head".to_owned(), "worker of 1".to_owned()], 3));
    assert_eq!(plane.workloads("chat").len(), 1);
}

/// An edit that asks for the same quota needs none anew.
#[test]
fn other_pods_of_the_same_size_take_the_same_quota() {
    let mut plane = control_plane(Settings::default(), "3");
    put(&mut plane, 2, "1", "2.53.0");
    plane.play(60);
    let before = plane.uids("chat");

    put(&mut plane, 2, "1", "2.54.0");
    plane.play(60);

    assert_eq!(plane.pods("chat"), 3);
    assert!(plane.uids("chat").is_disjoint(&before), "each is another pod");
}

#[rstest]
#[case::scaling(|spec: &mut Value| spec["workerGroupSpecs"][0]["replicas"] = json!(1))]
#[case::another_service_type(|spec: &mut Value| spec["headGroupSpec"]["serviceType"] = json!("NodePort"))]
#[case::another_way_to_write_it(|spec: &mut Value| {
    spec["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["resources"] =
        json!({"requests": {"cpu": "1000m"}, "limits": {"cpu": 1}});
})]
#[case::what_others_write(|spec: &mut Value| {
    spec["headGroupSpec"]["template"]["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
})]
#[case::another_group(|spec: &mut Value| {
    let mut group = spec["workerGroupSpecs"][0].clone();
    (group["groupName"], group["replicas"]) = (json!("more"), json!(1));
    spec["workerGroupSpecs"].as_array_mut().expect("groups").push(group);
})]
fn a_harmless_edit_leaves_pods_alone(#[case] edit: fn(&mut Value)) {
    let mut plane = control_plane(Settings::default(), "9");
    put(&mut plane, 1, "1", "2.53.0");
    plane.play(60);
    let before = plane.uids("chat");

    let mut edited = spec(1, "1", "2.53.0");
    edit(&mut edited);
    plane.apply("RayCluster", json!({"metadata": meta("chat", "low"), "spec": edited}));
    plane.play(60);

    assert!(plane.uids("chat").is_superset(&before));
}

#[test]
fn an_edit_from_before_it_was_to_be_so_counts() {
    // Given a cluster whose template was changed while it was not to be made anew,
    let mut plane = control_plane(Settings::default(), "9");
    let kept = |mut spec: Value| {
        spec["upgradeStrategy"] = json!({"type": "None"});
        spec
    };
    plane.apply("RayCluster", json!({"metadata": meta("chat", "low"), "spec": kept(spec(1, "1", "2.53.0"))}));
    plane.play(60);
    let before = plane.uids("chat");
    plane.apply("RayCluster", json!({"metadata": meta("chat", "low"), "spec": kept(spec(1, "2", "2.53.0"))}));
    plane.play(60);
    assert_eq!(plane.uids("chat"), before);

    // when it is, then it is made anew.
    put(&mut plane, 1, "2", "2.53.0");
    plane.play(60);
    assert!(plane.uids("chat").is_disjoint(&before));
    assert_eq!(running(&plane), ["head", "worker of 2"]);
}

#[test]
fn pods_stay_though_somebody_deletes_what_is_kept_of_them() {
    let mut plane = control_plane(Settings::default(), "9");
    put(&mut plane, 1, "1", "2.53.0");
    plane.play(60);
    put(&mut plane, 1, "2", "2.53.0");
    plane.play(60);
    let before = plane.uids("chat");

    plane.names("ControllerRevision").iter().for_each(|name| plane.delete("ControllerRevision", name));
    plane.play(60);

    assert_eq!(plane.uids("chat"), before);
    assert_eq!((plane.names("ControllerRevision").len(), plane.workloads("chat").len()), (1, 1));
}

/// KubeRay 1.7 writes a hash of the spec on the head, which says nothing to us, and nothing on the workers.
#[test]
fn pods_that_kuberay_made_are_taken_over_and_made_anew_with_the_next_edit() {
    // Given a cluster with pods as KubeRay leaves them,
    let mut plane = control_plane(Settings::default(), "0");
    let unqueued = |spec: Value| json!({"metadata": {"name": "chat"}, "spec": spec});
    plane.apply("RayCluster", unqueued(spec(1, "1", "2.53.0")));
    let owner = json!({"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "chat", "controller": true,
        "uid": plane.object("RayCluster", "chat")["metadata"]["uid"]});
    for (name, group, kind) in
        [("chat-head-abcde", "headgroup", "head"), ("chat-small-worker-fghij", "small", "worker")]
    {
        let labels = json!({"ray.io/cluster": "chat", "ray.io/group": group, "ray.io/node-type": kind});
        let annotations = json!({"ray.io/upgrade-strategy-recreate-hash": "1A2B", "ray.io/kuberay-version": "v1.7.0"});
        let resources = json!({"requests": {"cpu": "1"}, "limits": {"cpu": "1"}});
        plane.apply(
            "Pod",
            json!({
                "metadata": {"name": name, "labels": labels, "annotations": annotations, "ownerReferences": [owner]},
                "spec": {"containers": [{"name": "ray", "resources": resources}]},
            }),
        );
    }
    let before = plane.uids("chat");

    // when Sluice takes over, then they stay, until other ones are asked for.
    plane.play(60);
    assert_eq!(plane.uids("chat"), before);
    plane.apply("RayCluster", unqueued(spec(1, "2", "2.53.0")));
    plane.play(60);
    assert!(plane.uids("chat").is_disjoint(&before));
    assert_eq!(running(&plane), ["head", "worker of 2"]);
}

#[test]
fn a_cluster_in_no_queue_is_made_anew_at_once() {
    let mut plane = control_plane(Settings::default(), "0");
    let unqueued = |spec: Value| json!({"metadata": {"name": "chat"}, "spec": spec});
    plane.apply("RayCluster", unqueued(spec(1, "1", "2.53.0")));
    plane.play(60);
    assert_eq!(running(&plane), ["head", "worker of 1"]);

    plane.apply("RayCluster", unqueued(spec(1, "2", "2.53.0")));
    plane.play(60);

    assert_eq!((running(&plane), plane.pods("chat")), (vec!["head".to_owned(), "worker of 2".to_owned()], 2));
}

#[test]
fn nothing_is_made_of_an_edit_that_is_not_kept_yet() {
    // Given a cluster that is edited, and grows at the same time, while what it is to be can't be written down,
    let mut plane = control_plane(Settings::default(), "9");
    put(&mut plane, 2, "1", "2.53.0");
    plane.play(60);
    plane.late = Some("ControllerRevision");

    // when that takes its time, then it grows as what it was,
    put(&mut plane, 3, "2", "2.53.0");
    plane.play(60);
    assert_eq!((running(&plane), plane.pods("chat")), (vec!["head".to_owned(), "worker of 1".to_owned()], 4));

    // and is made anew after that.
    plane.late = None;
    plane.arrive();
    plane.play(60);
    assert_eq!((running(&plane), plane.pods("chat")), (vec!["head".to_owned(), "worker of 2".to_owned()], 4));
}

#[test]
fn an_old_pod_that_comes_late_goes_alone() {
    // Given a cluster whose pods were made anew,
    let mut plane = control_plane(Settings::default(), "5");
    put(&mut plane, 2, "1", "2.53.0");
    plane.play(60);
    let old = plane.running("chat").find(|pod| what_it_is(pod) == "worker of 1").expect("a worker").clone();
    put(&mut plane, 2, "2", "2.53.0");
    plane.play(60);
    let names =
        |plane: &ControlPlane| plane.running("chat").map(|pod| pod["metadata"]["uid"].clone()).collect::<Vec<_>>();
    let new = names(&plane);

    // when one of the old kind comes to be after all, as if a process that is gone had asked for it,
    let mut late = old;
    late["metadata"] = json!({
        "name": "late", "namespace": "default", "labels": late["metadata"]["labels"],
        "ownerReferences": late["metadata"]["ownerReferences"],
    });
    plane.apply("Pod", late);
    plane.play(60);

    // then it goes, and no other.
    assert_eq!(names(&plane), new);
    assert_eq!(running(&plane), ["head", "worker of 2"]);
}

#[test]
fn a_spec_that_makes_no_sense_stops_nothing() {
    // Given a cluster that runs, the spec of which is edited into something that makes no sense,
    let mut plane = control_plane(Settings::default(), "5");
    put(&mut plane, 2, "1", "2.53.0");
    plane.play(60);
    let mut wrong = spec(2, "2", "2.53.0");
    wrong["headGroupSpec"]["rayStartParams"] = json!({"redis-username": "me"});
    plane.apply("RayCluster", json!({"metadata": meta("chat", "low"), "spec": wrong}));
    plane.play(60);
    assert_eq!(says(&plane, names::SPEC_REJECTED), Some(("True".to_owned(), "InvalidSpec".to_owned())));

    // when a pod of it fails, then another of the spec that was good takes its place,
    let worker = plane.running("chat").find(|pod| what_it_is(pod) == "worker of 1").expect("a worker");
    let name = worker["metadata"]["name"].as_str().expect("a name").to_owned();
    plane.delete("Pod", &name);
    plane.play(60);
    assert_eq!((running(&plane), plane.pods("chat")), (vec!["head".to_owned(), "worker of 1".to_owned()], 3));

    // and once it is put right, it becomes what it was to be.
    plane.apply(
        "RayCluster",
        json!({"metadata": {"name": "chat"}, "spec": {"headGroupSpec": {"rayStartParams": null}}}),
    );
    plane.play(60);
    assert_eq!(says(&plane, names::SPEC_REJECTED), None);
    assert_eq!((running(&plane), plane.pods("chat")), (vec!["head".to_owned(), "worker of 2".to_owned()], 3));
}
