//! Deletion of finished Workloads and deactivated jobs after their retention.

use jiff::SignedDuration;
use rstest::rstest;
use serde_json::{Value, json};

use super::batch_jobs::put_job;
use super::control_plane::ControlPlane;
use super::evictions::with_pods_ready_timeout;
use super::fixtures::{control_plane, put_cluster};
use sluice_api::kueue::names;
use sluice_jobframework::retention::RetentionPolicy;
use sluice_queue::Settings;

fn after_finished(seconds: i64) -> RetentionPolicy {
    RetentionPolicy { after_finished: Some(SignedDuration::from_secs(seconds)), ..RetentionPolicy::default() }
}

fn after_deactivated(seconds: i64) -> RetentionPolicy {
    RetentionPolicy {
        after_deactivated_by_kueue: Some(SignedDuration::from_secs(seconds)),
        ..RetentionPolicy::default()
    }
}

/// A control plane with a cluster that never becomes ready and is deactivated by the queue manager, for
/// that reason, after 60 seconds.
fn with_cluster_to_deactivate(retention: RetentionPolicy) -> ControlPlane {
    let mut plane = control_plane(with_pods_ready_timeout(Some(0)), "2").with_retention(retention);
    plane.unready_pods.insert("humble-small".to_owned());
    put_cluster(&mut plane, "humble", "low", 1);
    plane
}

fn set_active(plane: &mut ControlPlane, job: &str, active: bool) {
    let name = plane.workload(job).metadata.name;
    plane.apply("Workload", json!({"metadata": {"name": name}, "spec": {"active": active}}));
}

#[test]
fn workload_of_a_finished_job_is_deleted_after_its_retention() {
    // Given a Job that has finished,
    let mut plane = control_plane(Settings::default(), "1").with_retention(after_finished(60));
    put_job(&mut plane, "sum", "low", json!({"parallelism": 1, "completions": 1}));
    plane.advance(10);
    plane.complete_pods("sum");
    plane.advance(58);
    assert_eq!(plane.slice_condition("sum", names::FINISHED).map(|found| found.0).as_deref(), Some("True"));

    // when its retention is over, then its Workload is deleted once and not created again.
    plane.advance(3);
    assert!(plane.workloads("sum").is_empty());
    plane.advance(3600);
    assert!(plane.has("Job", "sum") && plane.workloads("sum").is_empty());
    assert_eq!(plane.event_count("Workload", "Deleted"), 1);
}

#[test]
fn retention_of_zero_deletes_immediately() {
    let mut plane = control_plane(Settings::default(), "1").with_retention(after_finished(0));
    put_job(&mut plane, "sum", "low", json!({"parallelism": 1, "completions": 1}));
    plane.advance(10);

    plane.complete_pods("sum");
    plane.advance(1);

    assert!(plane.workloads("sum").is_empty());
}

#[test]
fn finished_workload_is_kept_without_a_retention_policy() {
    let mut plane = control_plane(Settings::default(), "1");
    put_job(&mut plane, "sum", "low", json!({"parallelism": 1, "completions": 1}));
    plane.advance(10);

    plane.complete_pods("sum");
    plane.advance(1_000_000);

    assert_eq!(plane.workloads("sum").len(), 1);
}

#[test]
fn newest_slice_of_an_unfinished_job_outlives_its_retention() {
    // Given a Job that is scaled to zero, so that its only slice is finished,
    let mut plane = control_plane(Settings::default(), "2").with_retention(after_finished(0));
    put_job(&mut plane, "sum", "low", json!({"parallelism": 2}));
    plane.advance(10);
    plane.apply("Job", json!({"metadata": {"name": "sum"}, "spec": {"parallelism": 0}}));
    plane.advance(60);
    assert_eq!(plane.slice_condition("sum", names::FINISHED).map(|found| found.0).as_deref(), Some("True"));
    let first = plane.workload("sum").metadata.name;

    // when it is scaled up, then the next slice has the next number, and the finished one is deleted.
    plane.apply("Job", json!({"metadata": {"name": "sum"}, "spec": {"parallelism": 1}}));
    plane.advance(60);
    assert_eq!(plane.running_and_gated("sum"), (1, 0));
    let second = plane.workload("sum").metadata.name;
    assert_eq!(second, first.map(|name| format!("{name}-2")));
}

#[rstest]
#[case::without_an_owner(Value::Null, "True", false)]
#[case::of_a_deleted_job(json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "gone", "uid": "u", "controller": true}]), "True", false)]
#[case::of_another_kind(json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "u", "controller": true}]), "True", false)]
#[case::unfinished(Value::Null, "False", true)]
fn finished_workload_that_no_job_plans_is_deleted(#[case] owners: Value, #[case] finished: &str, #[case] stays: bool) {
    let mut plane = control_plane(Settings::default(), "1").with_retention(after_finished(60));
    plane.collects_garbage = false;
    let pod_set = json!({"name": "main", "count": 1, "template": {"spec": {"containers": []}}});
    let condition = json!({"type": "Finished", "status": finished, "reason": "Done", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let workload = json!({
        "metadata": {"name": "alone", "ownerReferences": owners, "finalizers": [names::RESOURCE_IN_USE_FINALIZER]},
        "spec": {"queueName": "lq", "podSets": [pod_set]},
        "status": {"conditions": [condition]},
    });
    plane.apply("Workload", workload);

    plane.advance(59);
    assert!(plane.has("Workload", "alone"));
    plane.advance(2);
    assert_eq!(plane.has("Workload", "alone"), stays);
}

#[test]
fn job_deactivated_by_the_queue_manager_is_deleted_after_its_retention() {
    // Given a job that was deactivated because it never became ready,
    let mut plane = with_cluster_to_deactivate(after_deactivated(300));
    plane.advance(120);
    assert_eq!(
        plane.slice_condition("humble", names::EVICTED).map(|found| found.1).as_deref(),
        Some("DeactivatedDueToRequeuingLimitExceeded")
    );
    plane.advance(180);
    assert!(plane.has("RayCluster", "humble"));

    // when its retention is over, then it is deleted with its Workload.
    plane.advance(120);
    assert!(!plane.has("RayCluster", "humble") && plane.workloads("humble").is_empty());
    assert_eq!(plane.event_count("RayCluster", "Deleted"), 1);
}

#[test]
fn deleted_deactivated_job_holds_its_quota_until_its_pods_are_gone() {
    // Given pods that are slow to terminate,
    let mut plane = with_cluster_to_deactivate(after_deactivated(0));
    plane.pods_linger = true;

    // when their job is deactivated and deleted immediately,
    plane.advance(120);
    assert!(!plane.has("RayCluster", "humble"));

    // then another job gets the quota once they are gone.
    put_cluster(&mut plane, "later", "low", 1);
    plane.advance(10);
    assert_eq!(plane.ungated_pod_count("later"), 0);
    plane.pods_linger = false;
    plane.advance(10);
    assert_eq!(plane.ungated_pod_count("later"), 2);
}

#[test]
fn job_deactivated_by_a_user_is_not_deleted() {
    let mut plane = control_plane(Settings::default(), "2").with_retention(after_deactivated(0));
    put_cluster(&mut plane, "humble", "low", 1);
    plane.advance(10);

    set_active(&mut plane, "humble", false);
    plane.advance(3600);

    assert_eq!(plane.slice_condition("humble", names::EVICTED), Some(("True".to_owned(), "Deactivated".to_owned())));
    assert!(plane.has("RayCluster", "humble"));
}

#[test]
fn job_reactivated_within_its_retention_is_not_deleted() {
    let mut plane = with_cluster_to_deactivate(after_deactivated(300));
    plane.advance(120);

    plane.unready_pods.clear();
    set_active(&mut plane, "humble", true);
    plane.advance(3600);

    assert!(plane.has("RayCluster", "humble"));
    assert_eq!(plane.ungated_pod_count("humble"), 2);
}
