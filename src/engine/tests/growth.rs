//! Jobs that grow and shrink, on the whole engine: what went wrong in Kueue, by the number of its issue.

use rstest::rstest;
use serde_json::json;

use super::control_plane::ControlPlane;
use super::jobs::{cluster_spec, control_plane, meta, put_cluster, put_service, scale, set_quota};
use sluice_api::condition;
use sluice_api::kueue::names;
use sluice_queue::Settings;

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
    let mut plane = control_plane(Settings::default(), "4");
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

/// Of what a job wants more, it gets as many whole replicas as there is room for, and the rest when there is more.
#[rstest]
#[case::a_host_each(1, 8, [5, 6, 9])]
#[case::two_hosts_each(2, 4, [5, 5, 9])]
fn a_job_grows_as_far_as_whole_replicas_fit(#[case] hosts: u32, #[case] replicas: u32, #[case] pods: [usize; 3]) {
    // Given a head and two workers, beside another job, and room for two more,
    let put = |plane: &mut ControlPlane, replicas: u32| {
        let mut spec = cluster_spec(replicas, "2.53.0");
        spec["workerGroupSpecs"][0]["numOfHosts"] = json!(hosts);
        plane.apply("RayCluster", json!({"metadata": meta("eager", "low"), "spec": spec}));
    };
    let mut plane = control_plane(Settings::default(), "7");
    put_cluster(&mut plane, "other", "low", 1);
    put(&mut plane, 2 / hosts);
    plane.play(30);
    assert_eq!((plane.pods("other"), plane.pods("eager")), (2, 3));

    // when it is to have eight workers, it has two more at once, and says what the rest waits for;
    put(&mut plane, replicas);
    plane.play(5);
    assert_eq!((plane.pods("eager"), plane.gated("eager")), (pods[0], 9 - pods[0]));
    assert_eq!(live_slices(&plane, "eager"), 2, "what it holds, and what it asks for");
    let message = plane.waits_for("RayCluster", "eager");
    assert!(message.starts_with("scale-up of eager is pending in LocalQueue lq (eager keeps running): "), "{message}");

    // a place for one more is enough for a replica of one host,
    put_cluster(&mut plane, "other", "low", 0);
    plane.play(5);
    assert_eq!((plane.pods("eager"), plane.gated("eager")), (pods[1], 9 - pods[1]));

    // and the rest comes once there is room for it.
    set_quota(&mut plane, "10");
    plane.play(5);
    assert_eq!((plane.pods("eager"), plane.gated("eager")), (pods[2], 0));
    assert_eq!(live_slices(&plane, "eager"), 1);
}

/// A service that is upgraded and grows at once: what serves comes first, and its upgrade as a whole.
#[test]
fn what_serves_grows_before_its_upgrade_starts() {
    let mut plane = control_plane(Settings::default(), "4");
    put_service(&mut plane, "chat", "low", "2.53.0");
    plane.play(60);
    let old = plane.children("chat").remove(0);
    set_quota(&mut plane, "3");
    put_service(&mut plane, "chat", "low", "2.54.0");
    plane.play(5);
    let new = plane.children("chat").into_iter().find(|child| *child != old).expect("a pending cluster");
    assert_eq!((plane.pods(&old), plane.pods(&new)), (2, 0));

    scale(&mut plane, &old, 2);
    plane.play(5);
    assert_eq!((plane.pods(&old), plane.pods(&new)), (3, 0));

    set_quota(&mut plane, "4");
    plane.play(5);
    assert_eq!((plane.pods(&old), plane.pods(&new)), (3, 0), "one pod of it is of no use");

    set_quota(&mut plane, "5");
    plane.play(5);
    assert_eq!((plane.pods(&old), plane.pods(&new)), (3, 2));
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
