//! Writes that nobody answers, on the whole engine.

use rstest::rstest;

use super::control_plane::ControlPlane;
use super::jobs::{control_plane, put_service};
use sluice_queue::Settings;

const SERVICE: &str = "chat-serve-svc";

#[rstest]
#[case::it_is_heard_of(ControlPlane::is_heard, 5)]
#[case::nothing_can_come_of_it_any_more(|_: &mut ControlPlane| (), 60)]
fn no_requests_are_sent_to_a_cluster_of_which_it_is_not_known_what_became_of_it(
    #[case] happens: fn(&mut ControlPlane),
    #[case] seconds: i64,
) {
    // Given a service that serves, and a write of its cluster that goes through, of which nothing is heard,
    let mut plane = control_plane(Settings::default(), "4");
    put_service(&mut plane, "chat", "low", "2.53.0");
    plane.play(60);
    assert!(plane.has("Service", SERVICE));
    plane.silent = Some("RayCluster");
    plane.ailing.insert("worker".to_owned());
    plane.play(5);

    // when somebody deletes the Service that leads to the cluster, then it isn't made anew: the write may have suspended the cluster.
    plane.delete("Service", SERVICE);
    plane.play(20);
    assert!(!plane.has("Service", SERVICE));

    // Once it is known, or as good as known, it is.
    happens(&mut plane);
    plane.play(seconds);
    assert!(plane.has("Service", SERVICE));
}
