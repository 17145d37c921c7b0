//! Unacknowledged writes.

use rstest::rstest;

use super::control_plane::ControlPlane;
use super::fixtures::{control_plane, put_service};
use sluice_queue::Settings;

const SERVICE: &str = "chat-serve-svc";

#[rstest]
#[case::observed(ControlPlane::deliver_withheld, 5)]
#[case::timed_out(|_: &mut ControlPlane| (), 60)]
fn service_is_not_routed_to_a_cluster_with_an_unacknowledged_write(
    #[case] happens: fn(&mut ControlPlane),
    #[case] seconds: i64,
) {
    // Given a serving RayService, and a write to its cluster that succeeds without a response,
    let mut plane = control_plane(Settings::default(), "4");
    put_service(&mut plane, "chat", "low", "2.53.0");
    plane.advance(60);
    assert!(plane.has("Service", SERVICE));
    plane.silenced_kind = Some("RayCluster");
    plane.unready_pods.insert("worker".to_owned());
    plane.advance(5);

    // when the Service that routes to the cluster is deleted, then it is not recreated: the write
    // may have suspended the cluster.
    plane.delete("Service", SERVICE);
    plane.advance(20);
    assert!(!plane.has("Service", SERVICE));

    // Once the write is observed or has timed out, the Service is recreated.
    happens(&mut plane);
    plane.advance(seconds);
    assert!(plane.has("Service", SERVICE));
}
