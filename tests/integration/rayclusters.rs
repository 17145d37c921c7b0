//! Standalone RayClusters: each is a job by itself.

use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;
use sluice_api::condition;
use sluice_api::kueue::scheduling_gate::is_gated;

use sluice_testkit::history::Recorder;
use sluice_testkit::objects::{QUEUE_SAMPLE, SERVICE_SAMPLE, is_quota_reason};
use sluice_testkit::{TestEnv, eventually, invariants};

/// Name of the cluster of these scenarios.
pub(crate) const CLUSTER: &str = "basket";

/// Returns the sample's cluster as a standalone RayCluster.
pub(crate) fn cluster_manifest() -> String {
    let (_, config) = SERVICE_SAMPLE.split_once("rayClusterConfig:\n").expect("the cluster's configuration");
    let spec: String = config.lines().map(|line| format!("{}\n", line.strip_prefix("  ").unwrap_or(line))).collect();
    format!(
        "apiVersion: ray.io/v1\nkind: RayCluster\nmetadata:\n  name: {CLUSTER}\n  namespace: default\n  labels:\n    \
         kueue.x-k8s.io/queue-name: user-queue\nspec:\n{spec}"
    )
}

pub(crate) async fn wait_until_ready(env: &TestEnv) {
    eventually("the cluster is ready", async || {
        let status = env.ray_clusters().get(CLUSTER).await.expect("the cluster").status.unwrap_or_default();
        condition::is_true(&status.conditions, "RayClusterProvisioned").then_some(())
    })
    .await;
}

/// Returns the number of gated and of ungated pods of the cluster.
async fn count_gated_and_ungated(env: &TestEnv) -> (usize, usize) {
    let (waiting, others): (Vec<_>, Vec<_>) = env.pods_of(CLUSTER).await.into_iter().partition(is_gated);
    (waiting.len(), others.len())
}

#[tokio::test]
async fn cluster_waits_for_quota_runs_and_scales_within_it() {
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let _manager = env.manager().await;
    env.apply(QUEUE_SAMPLE).await.expect("the queue");
    env.set_quota("999m", "2Gi").await;
    env.apply(&cluster_manifest()).await.expect("the cluster");

    // Given too little quota, it is suspended and reports why.
    eventually("the cluster is pending", async || {
        let cluster = env.ray_clusters().get(CLUSTER).await.expect("the cluster");
        let conditions = cluster.status.clone().unwrap_or_default().conditions;
        let admitted = condition::get(&conditions, "sluice.dev/Admitted")?;
        (cluster.spec.suspend == Some(true) && is_quota_reason(&admitted.reason)).then_some(())
    })
    .await;
    assert!(env.pods_of(CLUSTER).await.is_empty());

    env.set_quota("1", "2Gi").await;
    wait_until_ready(&env).await;
    env.wait_for_reserved_cpu("1").await;

    // When it is scaled beyond the quota, its pods keep running, and the new ones are gated until
    // the quota allows;
    let grown = json!([{"op": "replace", "path": "/spec/workerGroupSpecs/0/replicas", "value": 3}]);
    let grown = Patch::Json::<()>(serde_json::from_value(grown).expect("a JSON patch"));
    env.ray_clusters().patch(CLUSTER, &PatchParams::default(), &grown).await.expect("the cluster grows");
    eventually("the scale-up is pending", async || {
        let slices = env.workloads().list(&ListParams::default()).await.expect("the slices").items;
        (slices.len() == 2).then_some(())
    })
    .await;
    eventually("the pending pods are gated", async || (count_gated_and_ungated(&env).await == (2, 2)).then_some(()))
        .await;
    // quota for one ungates one, and the other stays gated.
    env.set_quota("1500m", "3Gi").await;
    eventually("a new worker may run", async || (count_gated_and_ungated(&env).await == (1, 3)).then_some(())).await;
    env.wait_for_reserved_cpu("1500m").await;
    let waits = eventually("the rest is pending", async || {
        let conditions = env.ray_clusters().get(CLUSTER).await.expect("the cluster").status?.conditions;
        let admitted = condition::get(&conditions, "sluice.dev/Admitted")?.clone();
        (is_quota_reason(&admitted.reason) && admitted.message.contains("nominalQuota is 2")).then_some(admitted)
    })
    .await;
    assert!(waits.message.contains("scale-up of basket is pending"), "{}", waits.message);
    env.set_quota("2", "4Gi").await;
    eventually("both new workers may run", async || (count_gated_and_ungated(&env).await == (0, 4)).then_some(()))
        .await;
    env.wait_for_reserved_cpu("2").await;

    // When it is scaled down, quota is released with its pods.
    let shrunk = json!([{"op": "replace", "path": "/spec/workerGroupSpecs/0/replicas", "value": 1}]);
    let shrunk = Patch::Json::<()>(serde_json::from_value(shrunk).expect("a JSON patch"));
    env.ray_clusters().patch(CLUSTER, &PatchParams::default(), &shrunk).await.expect("the cluster shrinks");
    env.wait_for_reserved_cpu("1").await;

    // When it is drained, it stops, and releases its quota only once its pods are gone.
    let drain = Patch::Merge(json!({"spec": {"stopPolicy": "HoldAndDrain"}}));
    env.cluster_queues().patch("team-a", &PatchParams::default(), &drain).await.expect("the queue is drained");
    eventually("its pods are gone", async || env.pods_of(CLUSTER).await.is_empty().then_some(())).await;
    env.wait_for_reserved_cpu("0").await;
    let resume = Patch::Merge(json!({"spec": {"stopPolicy": "None"}}));
    env.cluster_queues().patch("team-a", &PatchParams::default(), &resume).await.expect("the queue is resumed");
    eventually("it runs again", async || (env.pods_of(CLUSTER).await.len() == 2).then_some(())).await;

    env.ray_clusters().delete(CLUSTER, &DeleteParams::default()).await.expect("the cluster is deleted");
    env.wait_until_empty().await;
    let breaches = invariants::violations(&recorder.history().await);
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
}

#[tokio::test]
async fn pods_run_on_nodes_of_their_flavor() {
    let env = TestEnv::start().await;
    let _manager = env.manager().await;
    let flavored = QUEUE_SAMPLE.replacen(
        "  name: default-flavor\n",
        "  name: default-flavor\nspec:\n  nodeLabels: {kubernetes.io/arch: amd64}\n  tolerations:\n  - {key: spot, operator: Exists}\n",
        1,
    );
    env.apply(&flavored).await.expect("the queue");
    env.apply(&cluster_manifest()).await.expect("the cluster");

    wait_until_ready(&env).await;
    for pod in env.pods_of(CLUSTER).await {
        let spec = pod.spec.expect("a spec");
        assert_eq!(spec.node_selector.unwrap_or_default().get("kubernetes.io/arch").map(String::as_str), Some("amd64"));
        assert!(spec.tolerations.iter().flatten().any(|toleration| toleration.key.as_deref() == Some("spot")));
    }
}

#[tokio::test]
async fn cluster_without_queue_name_is_not_gated() {
    let env = TestEnv::start().await;
    let _manager = env.manager().await;
    env.apply(&cluster_manifest().replace("kueue.x-k8s.io/queue-name: user-queue", "team: a"))
        .await
        .expect("the cluster");

    wait_until_ready(&env).await;
    assert_eq!(env.pods_of(CLUSTER).await.len(), 2);
    assert!(env.workloads().list(&ListParams::default()).await.expect("the slices").items.is_empty());
}
