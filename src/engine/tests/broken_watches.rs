//! Watches that broke.

use super::fixtures::{control_plane, put_cluster};
use sluice_queue::Settings;

#[test]
fn nothing_is_decided_while_the_history_of_the_api_server_is_in_doubt() {
    // Given a broken watch,
    let mut plane = control_plane(Settings::default(), "2");
    plane.break_watch(true);

    // when a cluster comes into the queue, then it waits,
    put_cluster(&mut plane, "chat", "low", 1);
    plane.advance(60);
    assert!(plane.workloads("chat").is_empty());

    // until the API server is known to be the same.
    plane.break_watch(false);
    plane.advance(20);
    assert_eq!(plane.ungated_pod_count("chat"), 2);
}
