//! Jobs of Kubernetes in the queue.

use serde_json::{Value, json};

use super::control_plane::ControlPlane;
use super::jobs::{control_plane, meta, put_cluster, set_quota};
use sluice_api::condition;
use sluice_api::kueue::names;
use sluice_queue::Settings;

/// A Job of pods of 1 CPU each; with a queue, but not yet suspended, as without the webhook.
fn put_job(plane: &mut ControlPlane, name: &str, class: &str, spec: Value) {
    let container = json!({"name": "work", "image": "work", "resources": {"requests": {"cpu": "1"}}});
    let mut object = json!({"metadata": meta(name, class), "spec": {
        "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
    }});
    for (field, value) in spec.as_object().expect("fields") {
        object["spec"][field] = value.clone();
    }
    plane.apply("Job", object);
}

fn is_finished(plane: &ControlPlane, job: &str) -> Option<String> {
    let conditions = plane.workload(job).status.unwrap_or_default().conditions;
    condition::get(&conditions, names::FINISHED).map(|found| found.reason.clone())
}

#[test]
fn a_job_waits_for_quota_runs_and_is_done() {
    // Given less quota than a Job needs, then none of its pods is there, and it says why;
    let mut plane = control_plane(Settings::default(), "1");
    put_job(&mut plane, "sum", "low", json!({"parallelism": 2, "completions": 2}));
    plane.play(10);
    assert_eq!(plane.running_and_gated("sum"), (0, 0));
    assert_eq!(plane.object("Job", "sum")["spec"]["suspend"], true);
    assert!(plane.waits_for("Job", "sum").contains("cpu"), "{}", plane.waits_for("Job", "sum"));

    // with enough it runs,
    set_quota(&mut plane, "2");
    plane.play(10);
    assert_eq!(plane.running_and_gated("sum"), (2, 0));
    assert_eq!(plane.says("sum", names::ADMITTED), Some(("True".into(), "Admitted".into())));

    // and its quota is free when it is done.
    plane.complete_pods("sum");
    plane.play(10);
    assert_eq!(is_finished(&plane, "sum").as_deref(), Some("Succeeded"));
    put_cluster(&mut plane, "next", "low", 1);
    plane.play(10);
    assert_eq!(plane.pods("next"), 2);
}

#[test]
fn quota_follows_pods_as_a_job_gets_done() {
    // Given a Job of three pods at once, with four to complete,
    let mut plane = control_plane(Settings::default(), "3");
    put_job(&mut plane, "sum", "low", json!({"parallelism": 3, "completions": 4}));
    plane.play(10);
    assert_eq!(plane.running_and_gated("sum"), (3, 0));

    // when three are done, then the last one runs, and others get the rest.
    put_cluster(&mut plane, "other", "low", 1);
    plane.complete_pods("sum");
    plane.play(10);
    assert_eq!((plane.running_and_gated("sum"), plane.pods("other")), ((1, 0), 2));
}

#[test]
fn a_job_that_can_start_with_fewer_pods_grows_as_quota_comes() {
    // Given a Job of four pods that can start with two, and quota for three,
    let mut plane = control_plane(Settings::default(), "3");
    put_job(&mut plane, "sum", "low", json!({"parallelism": 4}));
    let annotation = json!({(names::MIN_PARALLELISM_ANNOTATION): "2"});
    plane.apply("Job", json!({"metadata": {"name": "sum", "annotations": annotation}}));

    // then three run, and the fourth once there is quota for it.
    plane.play(10);
    assert_eq!(plane.running_and_gated("sum"), (3, 1));
    set_quota(&mut plane, "4");
    plane.play(10);
    assert_eq!(plane.running_and_gated("sum"), (4, 0));
}

#[test]
fn a_job_that_runs_pods_that_nobody_pays_for_is_stopped_until_they_are_gone() {
    // Given a Job that runs with two of its four pods,
    let mut plane = control_plane(Settings::default(), "2");
    put_job(&mut plane, "sum", "low", json!({"parallelism": 4}));
    let annotation = json!({(names::MIN_PARALLELISM_ANNOTATION): "1"});
    plane.apply("Job", json!({"metadata": {"name": "sum", "annotations": annotation}}));
    plane.play(10);
    assert_eq!(plane.running_and_gated("sum"), (2, 2));

    // when the others turn out to have been made before its template had a gate, and take their time to end,
    plane.linger = true;
    plane.ungate_pods("sum");
    plane.play(10);

    // then it stays stopped and says why, until they are gone; and then two run again.
    assert_eq!(plane.object("Job", "sum")["spec"]["suspend"], true);
    let told = "2 of its 4 running pods are not covered";
    assert!(plane.notes.iter().any(|note| note.reason == "GateClosed" && note.message.contains(told)));
    plane.linger = false;
    plane.play(10);
    assert_eq!(plane.running_and_gated("sum"), (2, 2));
}

#[test]
fn more_parallelism_of_a_job_that_runs_waits_for_quota() {
    let mut plane = control_plane(Settings::default(), "2");
    put_job(&mut plane, "sum", "low", json!({"parallelism": 2}));
    plane.play(10);

    plane.apply("Job", json!({"metadata": {"name": "sum"}, "spec": {"parallelism": 4}}));
    plane.play(10);
    assert_eq!(plane.running_and_gated("sum"), (2, 2));
    set_quota(&mut plane, "3");
    plane.play(10);
    assert_eq!(plane.running_and_gated("sum"), (3, 1));

    plane.apply("Job", json!({"metadata": {"name": "sum"}, "spec": {"parallelism": 1}}));
    put_cluster(&mut plane, "other", "low", 1);
    plane.play(10);
    assert_eq!((plane.running_and_gated("sum").0, plane.pods("other")), (1, 2));
}

#[test]
fn a_job_makes_place_for_what_is_more_important_and_starts_again() {
    let mut plane = control_plane(Settings::default(), "2");
    put_job(&mut plane, "sum", "low", json!({"parallelism": 2}));
    plane.play(10);

    put_cluster(&mut plane, "proud", "high", 1);
    plane.play(10);
    assert_eq!((plane.running_and_gated("sum"), plane.pods("proud")), ((0, 0), 2));

    plane.delete("RayCluster", "proud");
    plane.play(10);
    assert_eq!(plane.running_and_gated("sum"), (2, 0));
}

#[test]
fn a_job_that_is_deleted_leaves_nothing() {
    let mut plane = control_plane(Settings::default(), "2");
    put_job(&mut plane, "sum", "low", json!({"parallelism": 2}));
    plane.play(10);
    plane.linger = true;

    // Its quota stays as long as its pods.
    plane.delete("Job", "sum");
    put_cluster(&mut plane, "next", "low", 1);
    plane.play(10);
    assert_eq!(plane.pods("next"), 0);
    plane.linger = false;
    plane.play(10);

    assert_eq!(plane.pods("next"), 2);
    assert!(plane.workloads("sum").is_empty());
}

#[test]
fn a_job_whose_annotation_makes_no_sense_says_so() {
    let mut plane = control_plane(Settings::default(), "4");
    put_job(&mut plane, "sum", "low", json!({"parallelism": 4}));
    let annotation = json!({(names::MIN_PARALLELISM_ANNOTATION): "4"});
    plane.apply("Job", json!({"metadata": {"name": "sum", "annotations": annotation}}));
    plane.play(10);
    let why = plane.waits_for("Job", "sum");
    assert!(why.contains("\"4\" is not a number of pods between 1 and 3"), "{why}");
    assert_eq!(plane.running_and_gated("sum"), (0, 0));
}

#[test]
fn a_job_in_no_queue_and_one_that_ray_has_made_run_as_they_are() {
    let mut plane = control_plane(Settings::default(), "0");
    put_job(&mut plane, "free", "low", json!({}));
    plane.apply("Job", json!({"metadata": {"name": "free", "labels": {(names::QUEUE_NAME_LABEL): null}}}));
    let uid = plane.object("Namespace", "default")["metadata"]["uid"].clone();
    let owner = json!([{"apiVersion": "ray.io/v1", "kind": "RayJob", "name": "j", "uid": uid, "controller": true}]);
    put_job(&mut plane, "submit", "low", json!({}));
    plane.apply("Job", json!({"metadata": {"name": "submit", "ownerReferences": owner}}));
    plane.play(10);
    assert_eq!((plane.running_and_gated("free"), plane.running_and_gated("submit")), ((1, 0), (1, 0)));
}

#[test]
fn a_place_that_is_free_is_taken_at_once_and_not_when_somebody_looks_again() {
    // Given many more Jobs than fit,
    const JOBS: usize = 60;
    const FIT: usize = 5;
    let mut plane = control_plane(Settings::default(), &FIT.to_string());
    let names: Vec<String> = (0..JOBS).map(|number| format!("job-{number:02}")).collect();
    names.iter().for_each(|name| put_job(&mut plane, name, "low", json!({"parallelism": 1, "completions": 1})));
    plane.play(10);

    // when those that run are done, then others run, though no time passes; the oldest first, until all are done.
    for done in (FIT..=JOBS).step_by(FIT) {
        let running = |plane: &ControlPlane| -> Vec<String> {
            names.iter().filter(|name| plane.running_and_gated(name) == (1, 0)).cloned().collect()
        };
        let before = running(&plane);
        assert_eq!(before, names[done - FIT..done]);
        before.iter().for_each(|name| plane.complete_pods(name));
        plane.play(0);
    }
    assert!(names.iter().all(|name| is_finished(&plane, name).as_deref() == Some("Succeeded")));
}
