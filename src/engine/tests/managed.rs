//! Jobs that name no LocalQueue, and namespaces whose jobs aren't managed.

use serde_json::{Value, json};

use super::control_plane::ControlPlane;
use super::jobs::{cluster_spec, control_plane, put_cluster, put_service};
use sluice_api::kueue::names::{DEFAULT_LOCAL_QUEUE, QUEUE_NAME_LABEL};
use sluice_jobframework::managed::Rules;
use sluice_queue::Settings;

fn strict() -> Rules {
    Rules { without_queue_name: true, ..Rules::default() }
}

/// The namespace is managed once it says so.
fn chosen() -> Rules {
    let selector = json!({"matchLabels": {"managed": "yes"}});
    Rules { namespaces: serde_json::from_value(selector).expect("a selector"), ..Rules::default() }
}

fn put_unnamed_cluster(plane: &mut ControlPlane, name: &str) {
    plane.apply("RayCluster", json!({"metadata": {"name": name}, "spec": cluster_spec(1, "2.53.0")}));
}

/// A RayService that names no LocalQueue.
fn put_unnamed_service(plane: &mut ControlPlane) {
    put_service(plane, "chat", "low", "2.53.0");
    plane.apply("RayService", json!({"metadata": {"name": "chat", "labels": {(QUEUE_NAME_LABEL): null}}}));
}

fn put_default_queue(plane: &mut ControlPlane) {
    plane.apply("LocalQueue", json!({"metadata": {"name": DEFAULT_LOCAL_QUEUE}, "spec": {"clusterQueue": "cq"}}));
}

fn name_queue(plane: &mut ControlPlane, kind: &str, name: &str) {
    plane.apply(kind, json!({"metadata": {"name": name, "labels": {(QUEUE_NAME_LABEL): "lq"}}}));
}

fn queue_of<'a>(plane: &'a ControlPlane, kind: &str, name: &str) -> &'a Value {
    &plane.object(kind, name)["metadata"]["labels"][QUEUE_NAME_LABEL]
}

fn label_namespace(plane: &mut ControlPlane, managed: &str) {
    plane.apply("Namespace", json!({"metadata": {"name": "default", "labels": {"managed": managed}}}));
}

#[test]
fn a_job_that_names_no_queue_runs_as_if_there_were_none() {
    let mut plane = control_plane(Settings::default(), "0");
    put_unnamed_cluster(&mut plane, "own");
    put_unnamed_service(&mut plane);
    plane.apply("RayService", json!({"metadata": {"name": "chat"}, "spec": {"rayClusterConfig": {"suspend": null}}}));
    plane.play(60);
    let child = plane.children("chat").remove(0);
    assert_eq!((plane.pods("own"), plane.pods(&child)), (2, 2));
    assert!(plane.workloads("own").is_empty() && plane.workloads("chat").is_empty());
}

#[test]
fn a_new_job_that_names_no_queue_goes_into_the_default_one() {
    // Given a namespace with a LocalQueue for jobs that name none,
    let mut plane = control_plane(Settings::default(), "4");
    put_default_queue(&mut plane);

    // when jobs are made that name none, then they are there, and run as far as there is quota.
    put_unnamed_cluster(&mut plane, "own");
    put_unnamed_service(&mut plane);
    plane.play(60);
    for (kind, name) in [("RayCluster", "own"), ("RayService", "chat")] {
        assert_eq!(queue_of(&plane, kind, name), DEFAULT_LOCAL_QUEUE);
        plane.workload(name);
    }
    let child = plane.children("chat").remove(0);
    assert_eq!((plane.pods("own"), plane.pods(&child)), (2, 2));
    put_unnamed_cluster(&mut plane, "another");
    plane.play(60);
    assert_eq!((plane.pods("another"), plane.gated("another")), (0, 0));
    assert!(plane.waits_for("RayCluster", "another").contains("LocalQueue default"));
}

#[test]
fn a_new_cluster_goes_into_the_default_queue_though_its_name_is_late() {
    // Given a cluster the first write of which is turned away,
    let mut plane = control_plane(Settings::default(), "0");
    put_default_queue(&mut plane);
    plane.turns_away = Some("RayCluster");
    put_unnamed_cluster(&mut plane, "own");

    // when that is tried again, then it comes into the queue, and no pod of it has run.
    plane.play(60);
    assert_eq!(queue_of(&plane, "RayCluster", "own"), DEFAULT_LOCAL_QUEUE);
    assert_eq!(plane.pods("own"), 0);
}

#[test]
fn what_runs_already_is_not_put_into_a_queue_that_comes_later() {
    let mut plane = control_plane(Settings::default(), "4");
    put_unnamed_cluster(&mut plane, "own");
    plane.play(60);

    put_default_queue(&mut plane);
    plane.play(60);

    assert_eq!((queue_of(&plane, "RayCluster", "own"), plane.pods("own")), (&Value::Null, 2));
}

#[test]
fn a_job_that_has_to_name_a_queue_is_held_until_it_does() {
    // Given rules by which every job names a queue,
    let mut plane = control_plane(Settings::default(), "4").managing(strict());

    // when jobs are made that name none, then nothing of them runs, and they say why;
    put_unnamed_cluster(&mut plane, "own");
    put_unnamed_service(&mut plane);
    plane.play(60);
    assert!(plane.children("chat").is_empty());
    assert_eq!((plane.pods("own"), plane.gated("own")), (0, 0));
    for (kind, name) in [("RayCluster", "own"), ("RayService", "chat")] {
        let why = plane.waits_for(kind, name);
        assert!(why.contains("set its label kueue.x-k8s.io/queue-name to a LocalQueue"), "{kind} says {why:?}");
        assert_eq!(plane.told(kind, "NoQueueName"), 1);
    }

    // once they name one they are like all others.
    name_queue(&mut plane, "RayCluster", "own");
    name_queue(&mut plane, "RayService", "chat");
    plane.play(60);
    let child = plane.children("chat").remove(0);
    assert_eq!((plane.pods("own"), plane.pods(&child)), (2, 2));
    assert_eq!(plane.waits_for("RayCluster", "own"), "");
}

#[test]
fn jobs_of_a_namespace_that_is_not_chosen_are_left_alone_until_it_is() {
    // Given a namespace whose jobs aren't managed,
    let mut plane = control_plane(Settings::default(), "4").managing(chosen());
    label_namespace(&mut plane, "no");
    put_default_queue(&mut plane);

    // when a job is made there, then it runs, whatever quota there is;
    put_cluster(&mut plane, "large", "low", 8);
    put_unnamed_cluster(&mut plane, "own");
    plane.play(60);
    assert_eq!((plane.pods("large"), plane.pods("own")), (9, 2));
    assert!(plane.workloads("large").is_empty());

    // once the namespace is chosen, the job that names a queue has to have quota,
    label_namespace(&mut plane, "yes");
    plane.play(60);
    assert_eq!((plane.pods("large"), plane.pods("own")), (0, 2));
    assert!(plane.waits_for("RayCluster", "large").contains("is pending in LocalQueue lq"));

    // and no more once it isn't.
    label_namespace(&mut plane, "no");
    plane.play(60);
    assert!(plane.workloads("large").is_empty());
    assert_eq!(plane.waits_for("RayCluster", "large"), "");
}

#[test]
fn a_job_of_a_namespace_that_was_not_seen_yet_waits_for_that() {
    let mut plane = control_plane(Settings::default(), "4").managing(chosen());
    plane.delete("Namespace", "default");
    put_cluster(&mut plane, "own", "low", 1);
    plane.play(60);
    assert_eq!((plane.pods("own"), plane.workloads("own").len()), (0, 0));

    label_namespace(&mut plane, "yes");
    plane.play(60);

    assert_eq!((plane.pods("own"), plane.workloads("own").len()), (2, 1));
}

#[test]
fn what_another_controller_runs_takes_no_quota() {
    let mut plane = control_plane(Settings::default(), "2");
    put_cluster(&mut plane, "afar", "high", 1);
    plane
        .apply("RayCluster", json!({"metadata": {"name": "afar"}, "spec": {"managedBy": "kueue.x-k8s.io/multikueue"}}));
    put_cluster(&mut plane, "here", "low", 1);
    plane.play(60);
    assert!(plane.workloads("afar").is_empty());
    assert_eq!((plane.pods("afar"), plane.pods("here")), (0, 2));
}
