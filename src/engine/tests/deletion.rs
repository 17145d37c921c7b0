//! Jobs that are deleted, on the whole engine.

use rstest::rstest;

use super::jobs::{control_plane, put_cluster, put_service};
use crate::queue::Settings;

/// In the foreground everything that a job owns is deleted at once, its slices with its clusters. The slices hold their quota
/// until the last pod is gone, and the job stays until the slices are.
#[rstest]
#[case::service("RayService")]
#[case::cluster("RayCluster")]
fn a_job_that_is_deleted_in_the_foreground_goes_when_its_pods_have(#[case] kind: &str) {
    let mut plane = control_plane(Settings::default(), "2");
    if kind == "RayService" {
        put_service(&mut plane, "chat", "low", "2.53.0");
    } else {
        put_cluster(&mut plane, "chat", "low", 1);
    }
    plane.play(60);
    plane.linger = true;
    assert!(plane.has(kind, "chat") && plane.workloads("chat").len() == 1);

    plane.delete_in_foreground(kind, "chat");
    plane.play(5);
    assert_eq!(plane.workloads("chat").len(), 1, "pods still run on its quota");

    plane.linger = false;
    plane.play(5);
    assert!(plane.workloads("chat").is_empty());
    assert!(!plane.has(kind, "chat"));
}
