//! Jobs that grow and shrink, on the whole engine: what went wrong in Kueue, by the number of its issue.

use super::control_plane::ControlPlane;
use super::jobs::{control_plane, put_cluster, put_service};
use crate::api::condition;
use crate::api::kueue::names;
use crate::queue::Settings;

/// How many slices of a job are not over.
fn live_slices(plane: &ControlPlane, job: &str) -> usize {
    let slices = plane.workloads(job).into_iter();
    let over = |conditions: &[_]| condition::is_true(conditions, names::FINISHED);
    slices.filter(|slice| !slice.status.as_ref().is_some_and(|status| over(&status.conditions))).count()
}

/// kubernetes-sigs/kueue#11327: a job that changed its mind faster than the queue decides was left with several successors
/// and pods that nobody let go.
#[test]
fn a_job_that_changes_its_mind_while_it_waits_gets_what_it_wants_in_the_end() {
    let mut plane = control_plane(Settings::default(), "5");
    put_cluster(&mut plane, "other", "low", 1);
    put_cluster(&mut plane, "restless", "low", 1);
    plane.play(30);
    assert_eq!((plane.pods("other"), plane.pods("restless")), (2, 2));

    for workers in [3, 9, 4, 3] {
        put_cluster(&mut plane, "restless", "low", workers);
        plane.play(1);
        assert_eq!(live_slices(&plane, "restless"), 2, "what it holds, and what it asks for");
        assert_eq!(plane.pods("restless"), 2);
    }
    plane.delete("RayCluster", "other");
    plane.play(30);

    assert_eq!(plane.pods("restless"), 4);
    assert_eq!(live_slices(&plane, "restless"), 1);
}

/// kubernetes-sigs/kueue#14277 and #14703: after the slices of a service had changed, its pods were found minutes later or
/// never; here nothing waits for a clock.
#[test]
fn the_pods_of_an_upgrade_start_and_its_quota_comes_back_without_delay() {
    let mut plane = control_plane(Settings::default(), "4");
    put_service(&mut plane, "chat", "low", "2.53.0");
    plane.play(60);
    let old = plane.children("chat").remove(0);

    put_service(&mut plane, "chat", "low", "2.54.0");
    plane.play(1);
    let new = plane.children("chat").into_iter().find(|child| *child != old).expect("a pending cluster");
    plane.play(1);
    assert_eq!((plane.pods(&old), plane.pods(&new)), (2, 2));
    put_cluster(&mut plane, "next", "low", 1);

    // It has what is left of the old cluster as soon as that is gone.
    let mut seconds = 0;
    while plane.pods(&old) > 0 {
        assert_eq!(plane.pods("next"), 0);
        plane.play(1);
        seconds += 1;
        assert!(seconds < 300, "the old cluster does not go");
    }
    plane.play(2);
    assert_eq!((plane.pods(&new), plane.pods("next")), (2, 2));
    assert_eq!(live_slices(&plane, "chat"), 1);
}
