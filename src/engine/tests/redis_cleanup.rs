//! Clusters with GCS fault tolerance, which store their state in Redis.

use rstest::rstest;
use serde_json::{Value, json};

use super::control_plane::ControlPlane;
use super::fixtures::{cluster_spec, control_plane, job_metadata, put_service};
use sluice_api::ray::names::REDIS_CLEANUP_FINALIZER;
use sluice_queue::Settings;

const JOB: &str = "chat-redis-cleanup";

/// Returns a control plane with a running cluster that stores its state in Redis.
fn fault_tolerant_cluster() -> ControlPlane {
    let mut plane = control_plane(Settings::default(), "4");
    let mut spec = cluster_spec(1, "2.53.0");
    spec["gcsFaultToleranceOptions"] = json!({"redisAddress": "redis:6379", "externalStorageNamespace": "chats"});
    spec["enableInTreeAutoscaling"] = json!(true);
    spec["authOptions"] = json!({"mode": "token"});
    plane.apply("RayCluster", json!({"metadata": job_metadata("chat", "low"), "spec": spec}));
    plane.advance(60);
    assert_eq!(plane.ungated_pod_count("chat"), 2);
    assert_eq!(plane.object("RayCluster", "chat")["metadata"]["finalizers"], json!([REDIS_CLEANUP_FINALIZER]));
    plane
}

/// Returns the names and counts of the pod sets that hold quota.
fn reserved_pods(plane: &ControlPlane) -> Vec<(String, i64)> {
    let workloads = plane.names("Workload").into_iter().map(|name| plane.object("Workload", &name)["status"].clone());
    let is_finished = |status: &Value| {
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|found| found["type"] == "Finished" && found["status"] == "True")
    };
    let held = workloads.filter(|status| !is_finished(status));
    let sets = held.flat_map(|status| status["admission"]["podSetAssignments"].as_array().cloned().unwrap_or_default());
    sets.map(|set| (set["name"].as_str().unwrap_or_default().to_owned(), set["count"].as_i64().unwrap_or(0))).collect()
}

fn fail_cleanup_job(plane: &mut ControlPlane) {
    let status = json!({"conditions": [{"type": "Failed", "status": "True"}]});
    plane.apply("Job", json!({"metadata": {"name": JOB}, "status": status}));
}

#[test]
fn redis_keys_are_deleted_after_the_pods_and_before_the_cluster() {
    // Given such a cluster, with pods that terminate slowly,
    let mut plane = fault_tolerant_cluster();
    plane.pods_linger = true;

    // when it is deleted, then its keys stay while a head could write them,
    plane.delete("RayCluster", "chat");
    plane.advance(60);
    assert!(plane.has("RayCluster", "chat") && !plane.has("Job", JOB));
    plane.pods_linger = false;
    plane.advance(10);
    assert!(plane.has("RayCluster", "chat") && plane.has("Job", JOB));
    assert_eq!(plane.slice_condition("chat", "Finished"), None);
    assert_eq!(
        reserved_pods(&plane),
        [("head".to_owned(), 1)],
        "the quota of the head covers the pod that deletes them"
    );
    let job = plane.object("Job", JOB);
    let pod = &job["spec"]["template"]["spec"];
    assert_eq!(pod["serviceAccountName"], Value::Null, "the autoscaler's account is deleted with the cluster");
    assert_eq!(job["spec"]["activeDeadlineSeconds"], 300);
    let container = &pod["containers"][0];
    let env = container["env"].as_array().expect("an environment");
    assert!(env.iter().all(|variable| variable["name"] != "RAY_AUTH_TOKEN"), "the token is deleted with the cluster");
    let address = env.iter().find(|variable| variable["name"] == "RAY_REDIS_ADDRESS").expect("the address");
    assert_eq!((&address["value"], &container["resources"]["limits"]["cpu"]), (&json!("redis:6379"), &json!("200m")));

    // and once the keys are deleted, the cluster is gone.
    plane.complete_pods(JOB);
    plane.advance(10);
    assert!(!plane.has("RayCluster", "chat"));
    assert_eq!(reserved_pods(&plane), []);
    assert_eq!(
        plane.event_count("RayCluster", "RedisCleanupFailed")
            + plane.event_count("RayCluster", "ForceDeletedStuckCluster"),
        0
    );
}

#[rstest]
#[case::job_fails(fail_cleanup_job, 10, "RedisCleanupFailed")]
#[case::job_never_ends(|_: &mut ControlPlane| (), 301, "ForceDeletedStuckCluster")]
#[case::shorter_deletion_timeout(
    |plane: &mut ControlPlane| {
        let annotations = json!({"ray.io/gcs-ft-deletion-timeout": "30"});
        plane.apply("RayCluster", json!({"metadata": {"name": "chat", "annotations": annotations}}));
    },
    31,
    "ForceDeletedStuckCluster"
)]
fn b40_failed_redis_cleanup_does_not_block_deletion(
    #[case] happens: fn(&mut ControlPlane),
    #[case] seconds: i64,
    #[case] reason: &str,
) {
    let mut plane = fault_tolerant_cluster();
    plane.delete("RayCluster", "chat");
    plane.advance(5);
    assert!(plane.has("Job", JOB));

    happens(&mut plane);
    plane.advance(seconds);

    assert!(!plane.has("RayCluster", "chat"));
    assert_eq!(plane.event_count("RayCluster", reason), 1);
    let note = plane.emitted_events.iter().find(|note| note.reason == reason).expect("an event");
    assert!(note.message.contains("may be left in the Redis"), "{}", note.message);
}

/// KubeRay would wait forever: it handles the finalizer only while fault tolerance is on.
#[test]
fn cluster_with_fault_tolerance_turned_off_is_deleted_immediately() {
    let mut plane = fault_tolerant_cluster();
    plane.apply("RayCluster", json!({"metadata": {"name": "chat"}, "spec": {"gcsFaultToleranceOptions": Value::Null}}));
    plane.delete("RayCluster", "chat");
    plane.advance(5);
    assert!(!plane.has("RayCluster", "chat") && !plane.has("Job", JOB));
}

#[test]
fn cleanup_job_deadline_equals_the_deletion_timeout_of_the_cluster() {
    let mut plane = fault_tolerant_cluster();
    let annotations = json!({"ray.io/gcs-ft-deletion-timeout": "900"});
    plane.apply("RayCluster", json!({"metadata": {"name": "chat", "annotations": annotations}}));
    plane.delete("RayCluster", "chat");
    plane.advance(5);
    assert_eq!(plane.object("Job", JOB)["spec"]["activeDeadlineSeconds"], 900);
}

#[test]
fn redis_keys_shared_with_another_cluster_are_not_deleted() {
    // Given two clusters whose keys begin with the same name,
    let mut plane = fault_tolerant_cluster();
    let mut spec = cluster_spec(1, "2.53.0");
    spec["gcsFaultToleranceOptions"] = json!({"redisAddress": "redis:6379", "externalStorageNamespace": "chats"});
    plane.apply("RayCluster", json!({"metadata": job_metadata("talk", "low"), "spec": spec}));
    plane.advance(60);

    // when one of them is deleted, then it is gone and reports why its keys stay;
    plane.delete("RayCluster", "chat");
    plane.advance(10);
    assert!(!plane.has("RayCluster", "chat") && !plane.has("Job", JOB));
    let note = plane.emitted_events.iter().find(|note| note.reason == "RedisCleanupSkipped").expect("an event");
    assert!(note.message.contains("/talk may use the same storage namespace \"chats\""), "{}", note.message);

    // and the last one deletes them.
    plane.delete("RayCluster", "talk");
    plane.advance(10);
    assert!(plane.has("Job", "talk-redis-cleanup"));
}

/// A test with Ray covers that Ray itself keeps running without its head.
#[test]
fn b15_workers_keep_serving_while_a_fault_tolerant_head_is_restarted() {
    // Given a serving service that stores its state in Redis,
    let mut plane = control_plane(Settings::default(), "4");
    put_service(&mut plane, "chat", "low", "2.53.0");
    let options = json!({"rayClusterConfig": {"gcsFaultToleranceOptions": {"redisAddress": "redis:6379"}}});
    plane.apply("RayService", json!({"metadata": {"name": "chat"}, "spec": options}));
    plane.advance(120);
    let cluster = plane.clusters_of_service("chat").remove(0);
    let workers = |plane: &ControlPlane| {
        let pods = plane.ungated_pods(&cluster).filter(|pod| pod["metadata"]["labels"]["ray.io/node-type"] == "worker");
        pods.map(|pod| pod["metadata"]["uid"].clone()).collect::<Vec<_>>()
    };
    let before = workers(&plane);
    assert_eq!(before.len(), 1);

    // when its head is lost, and the new one takes long to become ready,
    let head_of = |plane: &ControlPlane| {
        let name = plane.names("Pod").into_iter().find(|name| name.contains("-head-")).expect("a head");
        (plane.object("Pod", &name)["metadata"]["uid"].clone(), name)
    };
    let (lost, head) = head_of(&plane);
    plane.unready_pods.insert("-head-".to_owned());
    plane.delete("Pod", &head);
    plane.advance(60);

    // then the same workers receive traffic as before, and the head is replaced.
    let slice = plane.object("EndpointSlice", "chat-serve-svc-1");
    let is_ready = |endpoint: &&Value| endpoint["conditions"]["ready"] == true;
    let ready = slice["endpoints"].as_array().into_iter().flatten().filter(is_ready);
    let ready: Vec<Value> = ready.map(|endpoint| endpoint["targetRef"]["uid"].clone()).collect();
    assert_eq!((&ready, &workers(&plane)), (&before, &before));
    assert_eq!(plane.event_count("RayService", "UpgradeStarted"), 0);
    plane.unready_pods.clear();
    plane.advance(60);
    assert_ne!(head_of(&plane).0, lost);
    assert_eq!(workers(&plane), before);
}
