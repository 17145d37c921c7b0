//! Queued batch/v1 Jobs.

use rstest::rstest;
use serde_json::{Value, json};

use super::control_plane::ControlPlane;
use super::fixtures::{control_plane, job_metadata, put_cluster, set_quota};
use sluice_api::condition;
use sluice_api::kueue::names;
use sluice_plan::EventRecord;
use sluice_queue::Settings;

/// Creates a Job with pods of 1 CPU each. It has a queue name but is not suspended, as without the
/// webhook.
pub(super) fn put_job(plane: &mut ControlPlane, name: &str, class: &str, spec: Value) {
    let container = json!({"name": "work", "image": "work", "resources": {"requests": {"cpu": "1"}}});
    let mut object = json!({"metadata": job_metadata(name, class), "spec": {
        "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
    }});
    for (field, value) in spec.as_object().expect("fields") {
        object["spec"][field] = value.clone();
    }
    plane.apply("Job", object);
}

fn finished_reason(plane: &ControlPlane, job: &str) -> Option<String> {
    let conditions = plane.workload(job).status.unwrap_or_default().conditions;
    condition::get(&conditions, names::FINISHED).map(|found| found.reason.clone())
}

/// Returns the CPU in the `resourceRequests` of a Job's Workload, if it has any.
fn requested_cpu(plane: &ControlPlane, job: &str) -> Option<String> {
    let requests = plane.workload(job).status.unwrap_or_default().resource_requests;
    requests.first().map(|request| request.resources["cpu"].0.clone())
}

#[test]
fn job_is_admitted_runs_and_finishes() {
    // Given less quota than a Job needs, then it has no pods and reports why;
    let mut plane = control_plane(Settings::default(), "1");
    put_job(&mut plane, "sum", "low", json!({"parallelism": 2, "completions": 2}));
    plane.advance(10);
    assert_eq!(plane.running_and_gated("sum"), (0, 0));
    assert_eq!(plane.object("Job", "sum")["spec"]["suspend"], true);
    assert!(plane.pending_message("Job", "sum").contains("cpu"), "{}", plane.pending_message("Job", "sum"));
    assert_eq!(requested_cpu(&plane, "sum").as_deref(), Some("2"));

    // with enough it runs,
    set_quota(&mut plane, "2");
    plane.advance(10);
    assert_eq!(plane.running_and_gated("sum"), (2, 0));
    assert_eq!(plane.slice_condition("sum", names::ADMITTED), Some(("True".into(), "Admitted".into())));
    assert_eq!(requested_cpu(&plane, "sum"), None);

    // and its quota is released when it finishes.
    plane.complete_pods("sum");
    plane.advance(10);
    assert_eq!(finished_reason(&plane, "sum").as_deref(), Some("Succeeded"));
    put_cluster(&mut plane, "next", "low", 1);
    plane.advance(10);
    assert_eq!(plane.ungated_pod_count("next"), 2);
}

#[test]
fn ungating_that_is_lost_is_repeated() {
    // Given a Job whose pod is ungated by a write that never arrives,
    let mut plane = control_plane(Settings::default(), "1");
    plane.drop_next_write.insert("Pod");
    put_job(&mut plane, "sum", "low", json!({"parallelism": 1, "completions": 1}));

    // when ten seconds pass, then it runs, although the API server could still execute that write.
    plane.advance(10);
    assert!(plane.drop_next_write.is_empty(), "the write was sent");
    assert_eq!(plane.running_and_gated("sum"), (1, 0));
}

#[test]
fn quota_is_released_as_pods_of_a_job_complete() {
    // Given a Job with parallelism 3 and completions 4,
    let mut plane = control_plane(Settings::default(), "3");
    put_job(&mut plane, "sum", "low", json!({"parallelism": 3, "completions": 4}));
    plane.advance(10);
    assert_eq!(plane.running_and_gated("sum"), (3, 0));

    // when three pods complete, then the last one runs, and another job gets the remaining quota.
    put_cluster(&mut plane, "other", "low", 1);
    plane.complete_pods("sum");
    plane.advance(10);
    assert_eq!((plane.running_and_gated("sum"), plane.ungated_pod_count("other")), ((1, 0), 2));
}

#[test]
fn quota_of_a_work_queue_is_released_as_its_pods_succeed() {
    // Given a Job without completions,
    let mut plane = control_plane(Settings::default(), "3");
    put_job(&mut plane, "drain", "low", json!({"parallelism": 3}));
    plane.advance(10);
    assert_eq!(plane.running_and_gated("drain"), (3, 0));

    // when two of its pods succeed, then another job gets their quota, and the last one continues.
    put_cluster(&mut plane, "other", "low", 1);
    plane.complete_some_pods("drain", 2);
    plane.advance(10);
    assert_eq!((plane.running_and_gated("drain"), plane.ungated_pod_count("other")), ((1, 0), 2));
    assert_eq!(plane.object("Job", "drain")["spec"]["suspend"], false);

    // and the Job finishes with it.
    plane.complete_pods("drain");
    plane.advance(10);
    assert_eq!(finished_reason(&plane, "drain").as_deref(), Some("Succeeded"));
}

#[test]
fn job_whose_work_ends_while_it_is_suspended_is_resumed_without_quota() {
    // Given a work queue with a pod that has succeeded and one that runs,
    let mut plane = control_plane(Settings::default(), "2");
    put_job(&mut plane, "drain", "low", json!({"parallelism": 2}));
    plane.advance(10);
    plane.complete_some_pods("drain", 1);
    plane.advance(10);
    assert_eq!(plane.running_and_gated("drain"), (1, 0));

    // when its queue is drained and its owner moves it, which without the policies is possible,
    plane.apply("LocalQueue", json!({"metadata": {"name": "lq"}, "spec": {"stopPolicy": "HoldAndDrain"}}));
    plane.advance(1);
    let labels = json!({names::QUEUE_NAME_LABEL: "other"});
    plane.apply("Job", json!({"metadata": {"name": "drain", "labels": labels}}));
    plane.advance(60);

    // then Kubernetes counts it as successful, and it is resumed, so that it can complete.
    assert_eq!(plane.object("Job", "drain")["status"]["conditions"][0]["type"], "Complete");
    assert!(plane.workloads("drain").is_empty());
    assert_eq!(plane.event_count("Job", "GateOpened"), 2);
}

#[test]
fn job_scaled_to_zero_holds_no_quota_until_it_is_scaled_up() {
    // Given a Job that runs, and another one that is pending,
    let mut plane = control_plane(Settings::default(), "3");
    put_job(&mut plane, "sweep", "low", json!({"parallelism": 3}));
    plane.advance(10);
    put_job(&mut plane, "next", "low", json!({"parallelism": 2}));
    plane.advance(10);
    assert_eq!((plane.running_and_gated("sweep"), plane.running_and_gated("next")), ((3, 0), (0, 0)));

    // when the first one is scaled to zero, then the other one gets its quota;
    plane.apply("Job", json!({"metadata": {"name": "sweep"}, "spec": {"parallelism": 0}}));
    plane.advance(10);
    assert_eq!((plane.running_and_gated("sweep"), plane.running_and_gated("next")), ((0, 0), (2, 0)));
    let message = plane.pending_message("Job", "sweep");
    assert!(message.starts_with("Scaled to zero by its owner"), "{message}");

    // scaled up, it is pending until there is quota;
    plane.apply("Job", json!({"metadata": {"name": "sweep"}, "spec": {"parallelism": 2}}));
    plane.advance(10);
    assert_eq!(plane.running_and_gated("sweep"), (0, 0));

    // and scaled to zero while it is pending, it is not admitted for the pods that it wanted before.
    plane.apply("Job", json!({"metadata": {"name": "sweep"}, "spec": {"parallelism": 0}}));
    plane.advance(10);
    set_quota(&mut plane, "9");
    plane.advance(10);
    assert_eq!(plane.object("ClusterQueue", "cq")["status"]["reservingWorkloads"], 1);
    plane.apply("Job", json!({"metadata": {"name": "sweep"}, "spec": {"parallelism": 2}}));
    plane.advance(10);
    assert_eq!(plane.running_and_gated("sweep"), (2, 0));
}

#[test]
fn job_with_min_parallelism_scales_up_as_quota_becomes_available() {
    // Given a Job with parallelism 4 and minimum parallelism 2, and quota for three pods,
    let mut plane = control_plane(Settings::default(), "3");
    put_job(&mut plane, "sum", "low", json!({"parallelism": 4}));
    let annotation = json!({(names::MIN_PARALLELISM_ANNOTATION): "2"});
    plane.apply("Job", json!({"metadata": {"name": "sum", "annotations": annotation}}));

    // then three pods run, and the fourth starts once there is quota for it.
    plane.advance(10);
    assert_eq!(plane.running_and_gated("sum"), (3, 1));
    set_quota(&mut plane, "4");
    plane.advance(10);
    assert_eq!(plane.running_and_gated("sum"), (4, 0));
}

#[test]
fn job_with_uncovered_running_pods_is_suspended_until_they_are_gone() {
    // Given a Job that runs with two of its four pods,
    let mut plane = control_plane(Settings::default(), "2");
    put_job(&mut plane, "sum", "low", json!({"parallelism": 4}));
    let annotation = json!({(names::MIN_PARALLELISM_ANNOTATION): "1"});
    plane.apply("Job", json!({"metadata": {"name": "sum", "annotations": annotation}}));
    plane.advance(10);
    assert_eq!(plane.running_and_gated("sum"), (2, 2));

    // when the other two run because they were created before its template had a gate, and
    // terminate slowly,
    plane.pods_linger = true;
    plane.ungate_pods("sum");
    plane.advance(10);

    // then it stays suspended and reports why, until they are gone; then two pods run again.
    assert_eq!(plane.object("Job", "sum")["spec"]["suspend"], true);
    let message = "2 of its 4 running pods are not covered";
    assert!(plane.emitted_events.iter().any(|note| note.reason == "GateClosed" && note.message.contains(message)));
    plane.pods_linger = false;
    plane.advance(10);
    assert_eq!(plane.running_and_gated("sum"), (2, 2));
}

/// A control plane with a Job `sum` that runs two of its four pods, because there is no quota for more.
fn with_job_beyond_its_quota() -> ControlPlane {
    let mut plane = control_plane(Settings::default(), "2");
    put_job(&mut plane, "sum", "low", json!({"parallelism": 2}));
    plane.advance(10);
    plane.apply("Job", json!({"metadata": {"name": "sum"}, "spec": {"parallelism": 4}}));
    plane.advance(10);
    assert_eq!(plane.running_and_gated("sum"), (2, 2));
    plane
}

#[test]
fn increased_parallelism_of_a_running_job_waits_for_quota() {
    let mut plane = with_job_beyond_its_quota();
    set_quota(&mut plane, "3");
    plane.advance(10);
    assert_eq!(plane.running_and_gated("sum"), (3, 1));

    plane.apply("Job", json!({"metadata": {"name": "sum"}, "spec": {"parallelism": 1}}));
    put_cluster(&mut plane, "other", "low", 1);
    plane.advance(10);
    assert_eq!((plane.running_and_gated("sum").0, plane.ungated_pod_count("other")), (1, 2));
}

#[test]
fn job_that_is_suspended_by_hand_after_it_grew_beyond_its_quota_resumes() {
    // Given a Job that runs two of its four pods, because there is no quota for more,
    let mut plane = with_job_beyond_its_quota();

    // when its owner suspends it, then it runs with the quota that it holds,
    plane.apply("Job", json!({"metadata": {"name": "sum"}, "spec": {"suspend": true}}));
    plane.advance(10);
    assert_eq!(plane.object("Job", "sum")["spec"]["suspend"], false);
    assert_eq!(plane.running_and_gated("sum"), (2, 2));

    // and grows as before.
    set_quota(&mut plane, "3");
    plane.advance(10);
    assert_eq!(plane.running_and_gated("sum"), (3, 1));
}

#[test]
fn preempted_job_stops_and_is_readmitted() {
    let mut plane = control_plane(Settings::default(), "2");
    put_job(&mut plane, "sum", "low", json!({"parallelism": 2}));
    plane.advance(10);

    put_cluster(&mut plane, "proud", "high", 1);
    plane.advance(10);
    assert_eq!((plane.running_and_gated("sum"), plane.ungated_pod_count("proud")), ((0, 0), 2));

    plane.delete("RayCluster", "proud");
    plane.advance(10);
    assert_eq!(plane.running_and_gated("sum"), (2, 0));
}

#[test]
fn deleted_job_holds_its_quota_until_its_pods_are_gone() {
    let mut plane = control_plane(Settings::default(), "2");
    put_job(&mut plane, "sum", "low", json!({"parallelism": 2}));
    plane.advance(10);
    plane.pods_linger = true;

    // It holds its quota as long as its pods exist.
    plane.delete("Job", "sum");
    put_cluster(&mut plane, "next", "low", 1);
    plane.advance(10);
    assert_eq!(plane.ungated_pod_count("next"), 0);
    plane.pods_linger = false;
    plane.advance(10);

    assert_eq!(plane.ungated_pod_count("next"), 2);
    assert!(plane.workloads("sum").is_empty());
}

#[rstest]
#[case::scaled_down_to_its_minimum(json!({}), 1, 3)]
#[case::scaled_down(json!({(names::MAX_EXEC_TIME_LABEL): "soon"}), 1, 3)]
#[case::scaled_to_zero(json!({(names::MAX_EXEC_TIME_LABEL): "soon"}), 0, 4)]
fn job_that_is_misconfigured_while_it_runs_releases_what_it_no_longer_uses(
    #[case] labels: Value,
    #[case] parallelism: u32,
    #[case] freed: u32,
) {
    // Given a Job that runs four pods, and another one that waits for its quota,
    let mut plane = control_plane(Settings::default(), "4");
    put_job(&mut plane, "sum", "low", json!({"parallelism": 4}));
    let annotation = json!({(names::MIN_PARALLELISM_ANNOTATION): "1"});
    plane.apply("Job", json!({"metadata": {"name": "sum", "annotations": annotation}}));
    plane.advance(10);
    put_job(&mut plane, "next", "low", json!({"parallelism": freed}));
    plane.advance(10);
    assert_eq!((plane.running_and_gated("sum"), plane.running_and_gated("next")), ((4, 0), (0, 0)));

    // when it is edited, and scaled down,
    plane.apply("Job", json!({"metadata": {"name": "sum", "labels": labels}, "spec": {"parallelism": parallelism}}));
    plane.advance(10);

    // then the other one runs.
    assert_eq!(plane.running_and_gated("sum"), (parallelism as usize, 0));
    assert_eq!(plane.running_and_gated("next"), (freed as usize, 0));
}

#[test]
fn job_with_an_invalid_annotation_reports_it() {
    let mut plane = control_plane(Settings::default(), "4");
    put_job(&mut plane, "sum", "low", json!({"parallelism": 4}));
    let annotation = json!({(names::MIN_PARALLELISM_ANNOTATION): "none"});
    plane.apply("Job", json!({"metadata": {"name": "sum", "annotations": annotation}}));
    plane.advance(10);
    let why = plane.pending_message("Job", "sum");
    assert!(why.contains("\"none\" is not a number of pods above 0"), "{why}");
    assert_eq!(plane.running_and_gated("sum"), (0, 0));
}

#[rstest]
#[case::that_grows(&[3])]
#[case::that_shrinks(&[1])]
#[case::that_is_scaled_to_zero_and_back(&[0, 2])]
fn edit_of_a_job_does_not_reactivate_its_workload(#[case] parallelism: &[u32], #[values(0, 10)] seconds_before: i64) {
    // Given a running Job whose Workload a user deactivates,
    let mut plane = control_plane(Settings::default(), "4");
    put_job(&mut plane, "sum", "low", json!({"parallelism": 2}));
    plane.advance(10);
    let name = plane.workload("sum").metadata.name;
    plane.apply("Workload", json!({"metadata": {"name": name}, "spec": {"active": false}}));
    plane.advance(seconds_before);

    // when the Job is edited, then it stays deactivated,
    for pods in parallelism {
        plane.apply("Job", json!({"metadata": {"name": "sum"}, "spec": {"parallelism": pods}}));
        plane.advance(60);
        assert_eq!((plane.running_and_gated("sum"), plane.workload("sum").spec.active), ((0, 0), Some(false)));
    }

    // and reactivated it runs as edited.
    let name = plane.workload("sum").metadata.name;
    plane.apply("Workload", json!({"metadata": {"name": name}, "spec": {"active": true}}));
    plane.advance(60);
    assert_eq!(plane.running_and_gated("sum").0, parallelism.last().map_or(0, |pods| *pods as usize));
}

#[test]
fn job_without_queue_name_runs_without_quota() {
    let mut plane = control_plane(Settings::default(), "0");
    put_job(&mut plane, "free", "low", json!({}));
    plane.apply("Job", json!({"metadata": {"name": "free", "labels": {(names::QUEUE_NAME_LABEL): null}}}));
    plane.advance(10);
    assert_eq!(plane.running_and_gated("free"), (1, 0));
}

#[test]
fn job_that_leaves_its_queue_is_rid_of_its_scheduling_gates() {
    // Given a Job that runs on quota for one of its two pods,
    let mut plane = control_plane(Settings::default(), "1");
    let annotation = json!({(names::MIN_PARALLELISM_ANNOTATION): "1"});
    put_job(&mut plane, "sum", "low", json!({"suspend": true, "parallelism": 2, "completions": 2}));
    plane.apply("Job", json!({"metadata": {"name": "sum", "annotations": annotation}}));
    plane.advance(10);
    assert_eq!(plane.running_and_gated("sum"), (1, 1));

    // when it leaves the queue, then its other pod runs too.
    plane.apply("Job", json!({"metadata": {"name": "sum", "labels": {(names::QUEUE_NAME_LABEL): null}}}));
    plane.advance(10);
    assert_eq!(plane.running_and_gated("sum"), (2, 0));
    assert!(
        plane.workload("sum").metadata.deletion_timestamp.is_some(),
        "it holds the quota of the pods until they end"
    );
}

#[test]
fn released_quota_is_used_in_the_same_instant() {
    // Given many more Jobs than fit,
    const JOBS: usize = 60;
    const FIT: usize = 5;
    let mut plane = control_plane(Settings::default(), &FIT.to_string());
    let names: Vec<String> = (0..JOBS).map(|number| format!("job-{number:02}")).collect();
    names.iter().for_each(|name| put_job(&mut plane, name, "low", json!({"parallelism": 1, "completions": 1})));
    plane.advance(10);

    // when the running ones finish, then the next ones start without time passing, oldest first,
    // until all are finished.
    for done in (FIT..=JOBS).step_by(FIT) {
        let running = |plane: &ControlPlane| -> Vec<String> {
            names.iter().filter(|name| plane.running_and_gated(name) == (1, 0)).cloned().collect()
        };
        let before = running(&plane);
        assert_eq!(before, names[done - FIT..done]);
        before.iter().for_each(|name| plane.complete_pods(name));
        plane.advance(0);
    }
    assert!(names.iter().all(|name| finished_reason(&plane, name).as_deref() == Some("Succeeded")));
}

#[test]
fn work_that_an_eviction_ends_is_reported() {
    // Given a Job without completions, one of whose pods has succeeded,
    let mut plane = control_plane(Settings::default(), "3");
    put_job(&mut plane, "drain", "low", json!({"parallelism": 3}));
    plane.advance(10);
    plane.complete_some_pods("drain", 1);
    plane.advance(10);
    assert_eq!(plane.running_and_gated("drain"), (2, 0));

    // when it is preempted, then its Event says what becomes of it.
    put_job(&mut plane, "proud", "high", json!({"parallelism": 3, "completions": 3}));
    plane.advance(10);
    let is_closed = |event: &&EventRecord| event.reason == "GateClosed" && event.regarding.name == "drain";
    let closed = plane.emitted_events.iter().rfind(is_closed);
    let message = &closed.expect("an Event").message;
    assert!(message.contains("2 unfinished pods are stopped, and Kubernetes counts the Job as complete"), "{message}");
    assert_eq!(plane.running_and_gated("proud"), (3, 0));
}
