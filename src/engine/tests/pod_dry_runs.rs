//! Jobs whose pods the API server rejects.

use rstest::rstest;
use serde_json::json;

use super::batch_jobs::put_job;
use super::control_plane::ControlPlane;
use super::fixtures::{control_plane, put_cluster, put_service, scale_cluster};
use crate::WriteError;
use sluice_api::kueue::names;
use sluice_queue::Settings;

const REJECTION: &str = "pods \"a-main\" is forbidden: violates PodSecurity \"restricted:latest\"";

fn rejecting(cpu: &str) -> ControlPlane {
    let mut plane = control_plane(Settings::default(), cpu);
    plane.pod_rejection = Some(rejection());
    plane
}

fn rejection() -> WriteError {
    WriteError { code: Some(403), ..WriteError::unanswered(REJECTION.into()) }
}

fn put_suspended_job(plane: &mut ControlPlane) {
    put_job(plane, "a", "low", json!({"suspend": true, "parallelism": 2}));
}

#[rstest]
#[case::of_a_job("Job", put_suspended_job, "main")]
#[case::of_a_cluster("RayCluster", |plane: &mut ControlPlane| put_cluster(plane, "a", "low", 1), "head")]
#[case::of_a_service("RayService", |plane: &mut ControlPlane| put_service(plane, "a", "low", "2.52.0"), "head")]
fn rejected_pods_hold_no_quota(#[case] kind: &str, #[case] put: fn(&mut ControlPlane), #[case] pod_set: &str) {
    // Given quota, and pods that the API server rejects,
    let mut plane = rejecting("2");

    // when the job is created, then it requests no quota and says why;
    put(&mut plane);
    plane.advance(20);
    assert!(plane.workloads("a").is_empty());
    let message = plane.pending_message(kind, "a");
    assert!(message.contains(&format!("pod set {pod_set}: the API server rejects its pods")), "{message}");
    assert!(message.contains(REJECTION), "{message}");

    // and once they are accepted, it is admitted after a bounded time.
    plane.pod_rejection = None;
    plane.advance(300);
    assert_eq!(plane.workloads("a").len(), 1, "{}", plane.pending_message(kind, "a"));
    assert_eq!(plane.pending_message(kind, "a"), "");
}

#[test]
fn rejected_pods_are_tried_again_once_their_namespace_changes() {
    // Given a Job whose pods are rejected,
    let mut plane = rejecting("2");
    put_suspended_job(&mut plane);
    plane.advance(20);
    assert!(plane.workloads("a").is_empty());

    // when a label of its namespace changes, then they are tried at once.
    plane.pod_rejection = None;
    plane.advance(1);
    assert!(plane.workloads("a").is_empty());
    plane.apply("Namespace", json!({"metadata": {"name": "default", "labels": {"enforce": "privileged"}}}));
    plane.advance(1);
    assert_eq!(plane.workloads("a").len(), 1);
}

#[rstest]
#[case::of_a_job("Job", put_suspended_job)]
#[case::of_a_cluster("RayCluster", |plane: &mut ControlPlane| put_cluster(plane, "a", "low", 1))]
fn quota_is_given_back_if_pods_are_rejected_after_admission(#[case] kind: &str, #[case] put: fn(&mut ControlPlane)) {
    // Given a job that is admitted, whose pods are rejected from then on,
    let mut plane = control_plane(Settings::default(), "2");
    plane.forbidden_creation = Some("Pod");
    put(&mut plane);
    plane.advance(20);
    assert_eq!(plane.slice_condition("a", names::ADMITTED), Some(("True".into(), "Admitted".into())));
    plane.pod_rejection = Some(rejection());

    // when the pods are still rejected minutes later, then the quota is given back,
    plane.advance(1200);
    assert!(plane.workloads("a").is_empty());
    assert!(plane.pending_message(kind, "a").contains(REJECTION), "{}", plane.pending_message(kind, "a"));
    assert_eq!(plane.event_count(kind, "PodsRejected"), 1);

    // and requested again once they are accepted.
    (plane.pod_rejection, plane.forbidden_creation) = (None, None);
    plane.advance(300);
    assert_eq!(plane.workloads("a").len(), 1);
}

#[test]
fn upgrade_to_pods_that_are_rejected_keeps_the_service_running() {
    // Given a service that runs,
    let mut plane = control_plane(Settings::default(), "4");
    put_service(&mut plane, "a", "low", "2.52.0");
    plane.advance(60);
    let serving = plane.clusters_of_service("a");
    let slices = plane.workloads("a").len();

    // when it is upgraded to pods that the API server rejects, then nothing more is requested, and the
    // service runs on.
    plane.pod_rejection = Some(WriteError { code: Some(422), ..WriteError::unanswered("invalid".into()) });
    put_service(&mut plane, "a", "low", "2.53.0");
    plane.advance(60);
    assert_eq!(plane.workloads("a").len(), slices);
    assert_eq!(plane.ungated_pod_count(&serving[0]), 2);
    assert!(plane.pending_message("RayService", "a").contains("rejects its pods"));
}

#[test]
fn job_that_grows_by_pods_that_exist_already_needs_no_dry_run() {
    // Given a cluster with pods,
    let mut plane = control_plane(Settings::default(), "8");
    put_cluster(&mut plane, "a", "low", 1);
    plane.advance(20);
    assert_eq!(plane.ungated_pod_count("a"), 2);

    // when it grows while dry runs are rejected, then it gets its pods: there are such ones.
    plane.pod_rejection = Some(WriteError { code: Some(422), ..WriteError::unanswered("invalid".into()) });
    scale_cluster(&mut plane, "a", 3);
    plane.advance(20);
    assert_eq!(plane.ungated_pod_count("a"), 4);
}
