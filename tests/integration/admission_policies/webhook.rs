//! The webhook creates queued objects suspended. Without it, the manager suspends them afterwards.

use kube::api::{DynamicObject, ListParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use super::fixtures::{api_of, cluster, create, queue_label, service, service_cluster};
use crate::upgrades::all_pod_names;
use sluice_testkit::history::Recorder;
use sluice_testkit::objects::{QUEUE_SAMPLE, SERVICE_SAMPLE};
use sluice_testkit::quotas::local_queue;
use sluice_testkit::{Manager, TestEnv, eventually};

/// Starts a manager with the webhook at a port.
pub(crate) async fn start_manager_with_webhook(env: &TestEnv, port: u16, flags: &[&str]) -> Manager {
    let address = format!("--webhook-bind-address=127.0.0.1:{port}");
    env.manager_with(&[&[address.as_str()], flags].concat()).await
}

/// Starts a manager and waits until the API server calls its webhook. Returns the manager and the
/// webhook's port.
pub(crate) async fn start_manager_and_wait_for_webhook(env: &TestEnv, flags: &[&str]) -> (Manager, u16) {
    let port = env.configure_webhook().await;
    let manager = start_manager_with_webhook(env, port, flags).await;
    eventually("the webhook is called", async || creates_suspended(&env.client).await.then_some(())).await;
    (manager, port)
}

/// Creates an object as a dry run. Returns it as admitted.
pub(super) async fn dry_run_create(client: &Client, object: &Value) -> Result<DynamicObject, kube::Error> {
    let object: DynamicObject = serde_json::from_value(object.clone()).expect("an object");
    let kind = object.types.clone().expect("its type").kind;
    let params = PostParams { dry_run: true, ..PostParams::default() };
    api_of(client, &kind).create(&params, &object).await
}

/// Reports whether a new queued RayCluster is created suspended.
pub(crate) async fn creates_suspended(client: &Client) -> bool {
    let made = dry_run_create(client, &cluster("new", queue_label("a"), false)).await.expect("an answer");
    made.data["spec"]["suspend"] == true
}

#[tokio::test]
async fn new_queued_objects_are_created_suspended() {
    let env = TestEnv::start().await;
    let port = env.configure_webhook().await;
    let _manager = start_manager_with_webhook(&env, port, &[]).await;
    eventually("the webhook is called", async || creates_suspended(&env.client).await.then_some(())).await;

    let service = service("made", queue_label("a"));
    let owner = create(&env.client, service.clone()).await.expect("a service");
    let mut open_service = service.clone();
    open_service["metadata"]["name"] = "open".into();
    open_service["spec"]["rayClusterConfig"]["suspend"] = false.into();
    let mut open_child = service_cluster("child", &owner, "a");
    open_child["spec"]["suspend"] = false.into();
    let mut of_job = cluster("of-job", queue_label("a"), false);
    of_job["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "ray.io/v1", "kind": "RayJob", "name": "j", "uid": "1", "controller": true}]);
    let cases = [
        ("a service", open_service, "/spec/rayClusterConfig/suspend", true),
        ("a child of a service", open_child, "/spec/suspend", true),
        ("a cluster", cluster("own", queue_label("a"), false), "/spec/suspend", true),
        ("a cluster of a RayJob, which this operator does not run", of_job, "/spec/suspend", true),
        ("a cluster in no queue", cluster("free", json!({"team": "a"}), false), "/spec/suspend", false),
    ];
    for (what, object, pointer, expected) in cases {
        let made = dry_run_create(&env.client, &object).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(made.data.pointer(pointer), Some(&Value::Bool(expected)), "{what}");
    }
}

#[tokio::test]
async fn new_object_without_queue_name_gets_the_default_queue() {
    // Given a namespace with a default LocalQueue,
    let env = TestEnv::start().await;
    let port = env.configure_webhook().await;
    let _manager = start_manager_with_webhook(&env, port, &[]).await;
    let mut default_queue = local_queue("any");
    default_queue["metadata"]["name"] = "default".into();
    env.apply_object(default_queue).await;

    // when a cluster is created, then it gets that queue name and is suspended;
    let free = cluster("free", json!({"team": "a"}), false);
    eventually("a cluster is put into the queue", async || {
        let made = dry_run_create(&env.client, &free).await.expect("an answer");
        let is_suspended = made.data["spec"]["suspend"] == true;
        (made.labels().get("kueue.x-k8s.io/queue-name")? == "default" && is_suspended).then_some(())
    })
    .await;

    // a cluster of a service is left unchanged, and one with another queue name keeps it.
    let owner = create(&env.client, service("made", queue_label("a"))).await.expect("a service");
    let mut unnamed_child = service_cluster("child", &owner, "");
    unnamed_child["metadata"]["labels"].as_object_mut().expect("labels").remove("kueue.x-k8s.io/queue-name");
    for (object, expected) in [(unnamed_child, None), (cluster("own", queue_label("a"), false), Some("a"))] {
        let made = dry_run_create(&env.client, &object).await.expect("an answer");
        assert_eq!(made.labels().get("kueue.x-k8s.io/queue-name").map(String::as_str), expected);
    }
}

#[tokio::test]
async fn without_the_webhook_objects_are_created_and_no_pod_exists_without_quota() {
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let port = env.configure_webhook().await;
    let manager = start_manager_with_webhook(&env, port, &[]).await;
    eventually("the webhook is called", async || creates_suspended(&env.client).await.then_some(())).await;
    env.apply(QUEUE_SAMPLE).await.expect("the queue");
    env.set_quota("999m", "2Gi").await;

    // Given that the webhook is down, when a service is created, then it is created unchanged.
    manager.kill().await;
    env.apply(SERVICE_SAMPLE).await.expect("the service is created");
    assert_eq!(env.get_service().await.spec.ray_cluster_config.suspend, None);
    let basket = crate::rayclusters::cluster_manifest();
    env.apply(&basket).await.expect("the cluster is created");

    // When Sluice is back, without the webhook, then both are suspended and wait for quota without
    // a pod.
    let _manager = env.manager().await;
    eventually("the template is suspended", async || {
        (env.get_service().await.spec.ray_cluster_config.suspend == Some(true)).then_some(())
    })
    .await;
    let clusters = eventually("both clusters are suspended", async || {
        let clusters = env.ray_clusters().list(&ListParams::default()).await.expect("the clusters").items;
        let all = clusters.len() == 2 && clusters.iter().all(|cluster| cluster.spec.suspend == Some(true));
        all.then_some(clusters)
    })
    .await;
    eventually("both are queued", async || {
        let slices = env.workloads().list(&ListParams::default()).await.expect("the slices").items;
        (slices.len() == 2).then_some(())
    })
    .await;
    let history = recorder.history().await;
    for cluster in clusters {
        assert!(all_pod_names(&history, &cluster.name_any()).is_empty(), "{}", cluster.name_any());
    }
}
