//! Clusters whose state is kept in a Redis, on the whole engine: from their beginning to their end.

use rstest::rstest;
use serde_json::{Value, json};

use super::control_plane::ControlPlane;
use super::jobs::{cluster_spec, control_plane, meta, put_service};
use sluice_api::ray::names::REDIS_CLEANUP_FINALIZER;
use sluice_queue::Settings;

const JOB: &str = "chat-redis-cleanup";

/// A cluster that runs, the state of which is kept in a Redis.
fn kept() -> ControlPlane {
    let mut plane = control_plane(Settings::default(), "4");
    let mut spec = cluster_spec(1, "2.53.0");
    spec["gcsFaultToleranceOptions"] = json!({"redisAddress": "redis:6379", "externalStorageNamespace": "chats"});
    spec["enableInTreeAutoscaling"] = json!(true);
    spec["authOptions"] = json!({"mode": "token"});
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
    let job = plane.object("Job", JOB);
    let pod = &job["spec"]["template"]["spec"];
    assert_eq!(pod["serviceAccountName"], Value::Null, "that of its autoscaler goes with it");
    assert_eq!(job["spec"]["activeDeadlineSeconds"], 300);
    let container = &pod["containers"][0];
    let env = container["env"].as_array().expect("an environment");
    assert!(env.iter().all(|variable| variable["name"] != "RAY_AUTH_TOKEN"), "the token goes with it");
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
fn b40_a_redis_that_is_not_cleaned_up_holds_nobody(
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

#[test]
fn the_job_has_as_long_as_the_cluster_is_held() {
    let mut plane = kept();
    let annotations = json!({"ray.io/gcs-ft-deletion-timeout": "900"});
    plane.apply("RayCluster", json!({"metadata": {"name": "chat", "annotations": annotations}}));
    plane.delete("RayCluster", "chat");
    plane.play(5);
    assert_eq!(plane.object("Job", JOB)["spec"]["activeDeadlineSeconds"], 900);
}

#[test]
fn keys_that_another_cluster_may_need_stay() {
    // Given two clusters whose keys begin with the same name,
    let mut plane = kept();
    let mut spec = cluster_spec(1, "2.53.0");
    spec["gcsFaultToleranceOptions"] = json!({"redisAddress": "redis:6379", "externalStorageNamespace": "chats"});
    plane.apply("RayCluster", json!({"metadata": meta("talk", "low"), "spec": spec}));
    plane.play(60);

    // when one of them is deleted, then it goes, and says why it leaves its keys;
    plane.delete("RayCluster", "chat");
    plane.play(10);
    assert!(!plane.has("RayCluster", "chat") && !plane.has("Job", JOB));
    let note = plane.notes.iter().find(|note| note.reason == "RedisCleanupSkipped").expect("an event");
    assert!(note.message.contains("/talk keeps its state under \"chats\""), "{}", note.message);

    // and the last one takes them with it.
    plane.delete("RayCluster", "talk");
    plane.play(10);
    assert!(plane.has("Job", "talk-redis-cleanup"));
}

/// That Ray itself goes on without its head is for a test with Ray.
#[test]
fn b15_while_a_head_is_gone_whose_state_is_kept_its_workers_take_requests() {
    // Given a service that serves, the state of which is kept in a Redis,
    let mut plane = control_plane(Settings::default(), "4");
    put_service(&mut plane, "chat", "low", "2.53.0");
    let options = json!({"rayClusterConfig": {"gcsFaultToleranceOptions": {"redisAddress": "redis:6379"}}});
    plane.apply("RayService", json!({"metadata": {"name": "chat"}, "spec": options}));
    plane.play(120);
    let cluster = plane.children("chat").remove(0);
    let workers = |plane: &ControlPlane| {
        let pods = plane.running(&cluster).filter(|pod| pod["metadata"]["labels"]["ray.io/node-type"] == "worker");
        pods.map(|pod| pod["metadata"]["uid"].clone()).collect::<Vec<_>>()
    };
    let before = workers(&plane);
    assert_eq!(before.len(), 1);

    // when its head is lost, and another one takes long to be ready,
    let head_of = |plane: &ControlPlane| {
        let name = plane.names("Pod").into_iter().find(|name| name.contains("-head-")).expect("a head");
        (plane.object("Pod", &name)["metadata"]["uid"].clone(), name)
    };
    let (lost, head) = head_of(&plane);
    plane.ailing.insert("-head-".to_owned());
    plane.delete("Pod", &head);
    plane.play(60);

    // then requests go to the same workers as before, and the head comes back.
    let slice = plane.object("EndpointSlice", "chat-serve-svc-1");
    let takes_requests = |endpoint: &&Value| endpoint["conditions"]["ready"] == true;
    let takers = slice["endpoints"].as_array().into_iter().flatten().filter(takes_requests);
    let takers: Vec<Value> = takers.map(|endpoint| endpoint["targetRef"]["uid"].clone()).collect();
    assert_eq!((&takers, &workers(&plane)), (&before, &before));
    assert_eq!(plane.told("RayService", "UpgradeStarted"), 0);
    plane.ailing.clear();
    plane.play(60);
    assert_ne!(head_of(&plane).0, lost);
    assert_eq!(workers(&plane), before);
}
