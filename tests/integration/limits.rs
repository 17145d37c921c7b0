//! LimitRanges and RuntimeClasses: usage is that of the pods as the API server admits them, and
//! workloads that it would reject stay pending. (B21 of the portable behaviors of Kueue's own
//! tests,
//! `test/integration/singlecluster/scheduler`.)

use k8s_openapi::api::core::v1::{LimitRange, Pod};
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use sluice_queue::requests::pod_requests;

use crate::rayclusters::CLUSTER;
use sluice_testkit::history::Recorder;
use sluice_testkit::objects::{NAMESPACE, QUEUE_SAMPLE};
use sluice_testkit::quotas::{cpu_quota, resource_flavor, workload};
use sluice_testkit::{TestEnv, eventually, invariants};

fn limit_range(name: &str, item: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"limits": [item]},
    })
}

fn limit_ranges(env: &TestEnv) -> Api<LimitRange> {
    Api::namespaced(env.client.clone(), NAMESPACE)
}

/// Returns the CPU that a Workload was admitted with.
async fn admitted_cpu(env: &TestEnv, name: &str) -> String {
    env.wait_until_admitted(name).await;
    let status = env.workloads().get(name).await.expect("the Workload").status.unwrap_or_default();
    let admission = status.admission.expect("it is admitted");
    admission.pod_set_assignments[0].resource_usage["cpu"].0.clone()
}

/// Returns a Workload of one pod with these resources.
fn workload_with_resources(name: &str, resources: Value) -> Value {
    let mut object = workload(name, "team", "0", 0);
    object["spec"]["podSets"][0]["template"]["spec"]["containers"][0]["resources"] = resources;
    object
}

/// Waits until the queue has observed a LimitRange: the message of an oversized probe Workload then
/// changes.
async fn wait_until_limit_range_observed(env: &TestEnv, words: &str) {
    env.wait_for_condition("crowd", "QuotaReserved", "False", &[words]).await;
}

#[tokio::test]
async fn limit_range_violation_keeps_workload_pending_and_defaults_count_as_requests() {
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let _manager = env.manager().await;
    env.apply_object(resource_flavor()).await;
    env.apply_queue("team", None, cpu_quota("20", json!({})), json!({})).await;
    let mut crowd = workload_with_resources("crowd", json!({"requests": {"cpu": "1500m"}}));
    crowd["spec"]["podSets"][0]["count"] = 1000.into();
    env.apply_object(crowd).await;

    // Above the maximum: admitted once the maximum is raised.
    env.apply_object(limit_range("small", &json!({"type": "Container", "max": {"cpu": "1"}}))).await;
    wait_until_limit_range_observed(
        &env,
        "requests 1500m of cpu, which is more than the maximum of 1 set by LimitRange small",
    )
    .await;
    env.apply_object(workload("large", "team", "2", 0)).await;
    let expected_message = "pod set main: container \"c\" requests 2 of cpu, which is more than the maximum of 1 set by LimitRange small \
                for a Container";
    env.wait_for_condition("large", "QuotaReserved", "False", &["Misconfigured", expected_message]).await;
    env.apply_object(limit_range("small", &json!({"type": "Container", "max": {"cpu": "4"}}))).await;
    assert_eq!(admitted_cpu(&env, "large").await, "2");

    // The API server uses the maximum as default. A limit without a request sets the request.
    env.apply_object(workload_with_resources("by-default", json!({}))).await;
    assert_eq!(admitted_cpu(&env, "by-default").await, "4");
    env.apply_object(workload_with_resources("by-limit", json!({"limits": {"cpu": "3"}}))).await;
    assert_eq!(admitted_cpu(&env, "by-limit").await, "3");

    // Below the minimum of a pod: admitted once the minimum is removed. Running workloads keep
    // their usage.
    env.apply_object(limit_range("pods", &json!({"type": "Pod", "min": {"cpu": "2"}}))).await;
    wait_until_limit_range_observed(
        &env,
        "the pod requests 1500m of cpu, which is less than the minimum of 2 set by LimitRange pods",
    )
    .await;
    env.apply_object(workload("tiny", "team", "250m", 0)).await;
    let expected_message =
        "the pod requests 250m of cpu, which is less than the minimum of 2 set by LimitRange pods for a Pod";
    env.wait_for_condition("tiny", "QuotaReserved", "False", &["Misconfigured", expected_message]).await;
    limit_ranges(&env).delete("pods", &DeleteParams::default()).await.expect("the LimitRange is deleted");
    assert_eq!(admitted_cpu(&env, "tiny").await, "250m");
    assert_eq!(admitted_cpu(&env, "by-default").await, "4");

    let breaches = invariants::violations(&recorder.history().await);
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
}

/// Returns a cluster whose head has limits only, and whose worker has a sidecar without resources
/// and a runtime class with overhead.
fn cluster() -> Value {
    let own = json!({"cpu": "500m", "memory": "1Gi"});
    let container =
        |name: &str, resources: Value| json!({"name": name, "image": "rayproject/ray:2.52.0", "resources": resources});
    let head = json!({"containers": [container("ray-head", json!({"limits": own}))]});
    let worker = json!({
        "runtimeClassName": "kata",
        "containers": [container("ray-worker", json!({"requests": own})), container("sidecar", json!({}))],
    });
    json!({
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": CLUSTER, "namespace": NAMESPACE, "labels": {"kueue.x-k8s.io/queue-name": "user-queue"}},
        "spec": {
            "rayVersion": "2.52.0",
            "headGroupSpec": {"rayStartParams": {}, "template": {"spec": head}},
            "workerGroupSpecs": [{
                "groupName": "small", "replicas": 2, "minReplicas": 2, "maxReplicas": 2, "rayStartParams": {},
                "template": {"spec": worker},
            }],
        },
    })
}

async fn cpu_of_pods(env: &TestEnv, count: usize) -> i64 {
    let pods: Vec<Pod> = eventually(&format!("{count} pods"), async || {
        let pods = env.pods_of(CLUSTER).await;
        (pods.len() == count).then_some(pods)
    })
    .await;
    let requests = pods.iter().filter_map(|pod| pod_requests(pod.spec.as_ref()?).ok());
    requests.map(|requests| requests.get("cpu").get()).sum()
}

/// The usage is that of the pods as admitted: 500m for the head; for each worker 500m, 100m for its
/// sidecar and 250m for its runtime class.
#[tokio::test]
async fn ray_cluster_usage_includes_sidecars_limits_and_runtime_class_overhead() {
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    env.apply(QUEUE_SAMPLE).await.expect("the queue");
    env.set_quota("2199m", "8Gi").await;
    let defaults = json!({
        "type": "Container",
        "defaultRequest": {"cpu": "100m", "memory": "64Mi"},
        "default": {"cpu": "600m", "memory": "1Gi"},
    });
    env.apply_object(limit_range("defaults", &defaults)).await;
    env.apply_object(json!({
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": "kata"},
        "handler": "kata",
        "overhead": {"podFixed": {"cpu": "250m"}},
    }))
    .await;
    let _manager = env.manager().await;
    env.apply_object(cluster()).await;

    let name = eventually("the slice is there", async || {
        let slices = env.workloads().list(&ListParams::default()).await.expect("the slices").items;
        slices.first().map(ResourceExt::name_any)
    })
    .await;
    env.wait_until_pending(&name).await;
    assert!(env.pods_of(CLUSTER).await.is_empty());

    env.set_quota("2200m", "8Gi").await;
    assert_eq!(cpu_of_pods(&env, 3).await, 2200);
    env.wait_for_reserved_cpu("2200m").await;
    let breaches = invariants::violations(&recorder.history().await);
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
}
