//! Unacknowledged writes.

use rstest::rstest;

use super::control_plane::ControlPlane;
use super::jobs::{control_plane, put_service};
use sluice_queue::Settings;

const SERVICE: &str = "chat-serve-svc";

#[rstest]
#[case::observed(ControlPlane::is_heard, 5)]
#[case::timed_out(|_: &mut ControlPlane| (), 60)]
fn service_is_not_routed_to_a_cluster_with_an_unacknowledged_write(
    #[case] happens: fn(&mut ControlPlane),
    #[case] seconds: i64,
) {
    // Given a serving RayService, and a write to its cluster that succeeds without a response,
    let mut plane = control_plane(Settings::default(), "4");
    put_service(&mut plane, "chat", "low", "2.53.0");
    plane.play(60);
    assert!(plane.has("Service", SERVICE));
    plane.silent = Some("RayCluster");
    plane.ailing.insert("worker".to_owned());
    plane.play(5);

    // when the Service that routes to the cluster is deleted, then it is not recreated: the write
    // may have suspended the cluster.
    plane.delete("Service", SERVICE);
    plane.play(20);
    assert!(!plane.has("Service", SERVICE));

    // Once the write is observed or has timed out, the Service is recreated.
    happens(&mut plane);
    plane.play(seconds);
    assert!(plane.has("Service", SERVICE));
}
