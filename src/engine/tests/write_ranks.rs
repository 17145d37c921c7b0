//! Statuses of queues and conditions of pending Workloads give way to writes that decide.

use rstest::rstest;

use super::control_plane::ControlPlane;
use super::fixtures::{control_plane, put_cluster};
use crate::ApiServerLoad;
use sluice_plan::WriteRank;
use sluice_queue::{Settings, WorkloadCounts};

/// Returns whether the pending slice is reported on itself, and in the status of its ClusterQueue.
fn reports(plane: &ControlPlane, job: &str) -> (bool, bool) {
    let is_counted = plane.object("ClusterQueue", "cq")["status"]["pendingWorkloads"] == 1;
    (plane.slice_condition(job, "QuotaReserved").is_some(), is_counted)
}

#[test]
fn request_for_quota_gives_way_to_an_admission_and_that_to_the_gate() {
    let mut plane = control_plane(Settings::default(), "2");
    plane.delayed_kind = Some("Workload");
    put_cluster(&mut plane, "first", "high", 1);
    plane.advance(0);
    assert_eq!(plane.delayed_ranks(), [(WriteRank::QuotaRequest, 100)]);

    plane.deliver_delayed_writes();
    plane.advance(0);
    assert_eq!(plane.delayed_ranks(), [(WriteRank::Admission, 100)]);

    plane.delayed_kind = Some("RayCluster");
    plane.deliver_delayed_writes();
    plane.advance(0);
    assert!(plane.delayed_ranks().contains(&(WriteRank::Decision, 0)), "{:?}", plane.delayed_ranks());
}

#[test]
fn reports_wait_while_a_decision_is_in_flight_but_not_for_ever() {
    // Given a cluster that fills its queue, whose pods the API server has not created yet,
    let mut plane = control_plane(Settings::default(), "2");
    plane.delayed_kind = Some("Pod");
    put_cluster(&mut plane, "first", "low", 1);
    plane.advance(10);
    assert_eq!(reports(&plane, "first"), (true, false));

    // when another one is pending, then nothing reports it yet but the counts;
    put_cluster(&mut plane, "second", "low", 1);
    plane.advance(0);
    assert_eq!(reports(&plane, "second"), (false, false));
    let counts = WorkloadCounts { pending: 1, reserving: 1, admitted: 1 };
    assert_eq!(plane.take_changed_counts(), [("cq".to_owned(), counts)]);
    assert_eq!(plane.take_changed_counts(), []);

    // and when one second has passed for each of the reports, then all are written.
    plane.advance(5);
    assert_eq!(reports(&plane, "second"), (true, true));
}

#[rstest]
#[case::fast(ApiServerLoad::Low, true)]
#[case::slow(ApiServerLoad::High, false)]
fn few_reports_are_written_while_the_api_server_is_slow(#[case] load: ApiServerLoad, #[case] all: bool) {
    // Given a cluster that fills its queue,
    let mut plane = control_plane(Settings::default(), "2");
    put_cluster(&mut plane, "first", "low", 1);
    plane.load = load;
    plane.advance(30);

    // when four others are pending, then all are reported soon if the API server is fast, and later if it is not.
    let pending = ["a", "b", "c", "d"];
    pending.iter().for_each(|name| put_cluster(&mut plane, name, "low", 1));
    let is_reported = |plane: &ControlPlane| {
        let is_reported = |name: &&str| plane.slice_condition(name, "QuotaReserved").is_some();
        pending.iter().all(is_reported)
    };
    plane.advance(3);
    assert_eq!(is_reported(&plane), all);
    plane.advance(60);
    assert!(is_reported(&plane));
}
