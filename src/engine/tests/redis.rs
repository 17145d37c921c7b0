//! Clusters whose state is kept in a Redis, on the whole engine: from their beginning to their end.

use rstest::rstest;
use serde_json::{Value, json};

use super::control_plane::ControlPlane;
use super::jobs::{cluster_spec, control_plane, meta};
use crate::api::ray::names::REDIS_CLEANUP_FINALIZER;
use crate::queue::Settings;

const JOB: &str = "chat-redis-cleanup";

/// A cluster that runs, the state of which is kept in a Redis.
fn kept() -> ControlPlane {
    let mut plane = control_plane(Settings::default(), "4");
    let mut spec = cluster_spec(1, "2.53.0");
    spec["gcsFaultToleranceOptions"] = json!({"redisAddress": "redis:6379"});
    plane.apply("RayCluster", json!({"metadata": meta("chat", "low"), "spec": spec}));
    plane.play(60);
    assert_eq!(plane.pods("chat"), 2);
    assert_eq!(plane.object("RayCluster", "chat")["metadata"]["finalizers"], json!([REDIS_CLEANUP_FINALIZER]));
    plane
}

fn fail(plane: &mut ControlPlane) {
    let status = json!({"conditions": [{"type": "Failed", "status": "True"}]});
    plane.apply("Job", json!({"metadata": {"name": JOB}, "status": status}));
}

#[test]
fn its_keys_go_before_it_does_and_after_its_pods_have() {
    // Given such a cluster, with pods that take their time to go,
    let mut plane = kept();
    plane.linger = true;

    // when it is deleted, then its keys stay while a head could write some,
    plane.delete("RayCluster", "chat");
    plane.play(60);
    assert!(plane.has("RayCluster", "chat") && !plane.has("Job", JOB));
    plane.linger = false;
    plane.play(10);
    assert!(plane.has("RayCluster", "chat") && plane.has("Job", JOB));
    let over = plane.says("chat", "Finished").expect("it uses no quota any more");
    assert_eq!(over.0, "True");
    let container = &plane.object("Job", JOB)["spec"]["template"]["spec"]["containers"][0];
    let env = container["env"].as_array().expect("an environment");
    let address = env.iter().find(|variable| variable["name"] == "RAY_REDIS_ADDRESS").expect("the address");
    assert_eq!((&address["value"], &container["resources"]["limits"]["cpu"]), (&json!("redis:6379"), &json!("200m")));

    // and once they are gone, so is it.
    plane.complete_pods(JOB);
    plane.play(10);
    assert!(!plane.has("RayCluster", "chat"));
    assert_eq!(
        plane.told("RayCluster", "RedisCleanupFailed") + plane.told("RayCluster", "ForceDeletedStuckCluster"),
        0
    );
}

#[rstest]
#[case::it_fails(fail, 10, "RedisCleanupFailed")]
#[case::it_never_ends(|_: &mut ControlPlane| (), 301, "ForceDeletedStuckCluster")]
#[case::its_owner_waits_for_less(
    |plane: &mut ControlPlane| {
        let annotations = json!({"ray.io/gcs-ft-deletion-timeout": "30"});
        plane.apply("RayCluster", json!({"metadata": {"name": "chat", "annotations": annotations}}));
    },
    31,
    "ForceDeletedStuckCluster"
)]
fn a_redis_that_is_not_cleaned_up_holds_nobody(
    #[case] happens: fn(&mut ControlPlane),
    #[case] seconds: i64,
    #[case] told: &str,
) {
    let mut plane = kept();
    plane.delete("RayCluster", "chat");
    plane.play(5);
    assert!(plane.has("Job", JOB));

    happens(&mut plane);
    plane.play(seconds);

    assert!(!plane.has("RayCluster", "chat"));
    assert_eq!(plane.told("RayCluster", told), 1);
    let note = plane.notes.iter().find(|note| note.reason == told).expect("an event");
    assert!(note.message.contains("may be left in the Redis"), "{}", note.message);
}

/// KubeRay would wait for ever: it looks at the finalizer only where fault tolerance is on.
#[test]
fn a_cluster_for_which_it_was_turned_off_again_goes_at_once() {
    let mut plane = kept();
    plane.apply("RayCluster", json!({"metadata": {"name": "chat"}, "spec": {"gcsFaultToleranceOptions": Value::Null}}));
    plane.delete("RayCluster", "chat");
    plane.play(5);
    assert!(!plane.has("RayCluster", "chat") && !plane.has("Job", JOB));
}
