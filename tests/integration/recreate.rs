//! A RayCluster whose pods are recreated when its pod templates change (`upgradeStrategy:
//! Recreate`).

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;
use sluice_api::condition;

use crate::rayclusters::{CLUSTER, cluster_manifest, wait_until_ready};
use sluice_testkit::history::Recorder;
use sluice_testkit::objects::QUEUE_SAMPLE;
use sluice_testkit::{TestEnv, eventually, invariants};

fn cluster_with_recreate() -> String {
    cluster_manifest().replace("spec:\n  rayVersion", "spec:\n  upgradeStrategy:\n    type: Recreate\n  rayVersion")
}

/// Sets the CPU request of the workers.
async fn set_worker_cpu(env: &TestEnv, cpu: &str) {
    let resources = "/spec/workerGroupSpecs/0/template/spec/containers/0/resources";
    let edit = json!([
        {"op": "replace", "path": format!("{resources}/requests/cpu"), "value": cpu},
        {"op": "replace", "path": format!("{resources}/limits/cpu"), "value": cpu},
    ]);
    let edit = Patch::Json::<()>(serde_json::from_value(edit).expect("a JSON patch"));
    env.ray_clusters().patch(CLUSTER, &PatchParams::default(), &edit).await.expect("the cluster is edited");
}

async fn pod_uids(env: &TestEnv) -> BTreeSet<String> {
    env.pods_of(CLUSTER).await.iter().filter_map(ResourceExt::uid).collect()
}

/// Returns the CPU requests of the existing workers.
async fn cpu_of_workers(env: &TestEnv) -> Vec<String> {
    let cpu = |pod: &Pod| {
        let requests = pod.spec.as_ref()?.containers[0].resources.as_ref()?.requests.as_ref()?;
        Some(requests.get("cpu")?.0.clone())
    };
    let pods = env.pods_of(CLUSTER).await;
    let workers = pods.iter().filter(|pod| pod.labels().get("ray.io/node-type").is_some_and(|kind| kind == "worker"));
    workers.filter_map(cpu).collect()
}

#[tokio::test]
async fn pods_are_recreated_once_quota_allows_despite_a_killed_manager() {
    // Given a running cluster,
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let manager = env.manager().await;
    env.apply(QUEUE_SAMPLE).await.expect("the queue");
    env.set_quota("1", "2Gi").await;
    env.apply(&cluster_with_recreate()).await.expect("the cluster");
    wait_until_ready(&env).await;
    let old = pod_uids(&env).await;

    // when it requests more than the quota, then the condition reports it, and the running pods are
    // reconciled as before:
    set_worker_cpu(&env, "1").await;
    let condition_found = eventually("the condition reports that its new spec exceeds the quota", async || {
        let conditions = env.ray_clusters().get(CLUSTER).await.expect("the cluster").status?.conditions;
        condition::get(&conditions, "sluice.dev/UpgradeAdmissible").filter(|found| found.status == "False").cloned()
    })
    .await;
    assert_eq!(condition_found.reason, "ExceedsMaxQuota");
    let remedy = condition_found.message.split_once("raise the nominalQuota of cpu").map(|(_, remedy)| remedy);
    assert!(remedy.is_some_and(|remedy| remedy.contains("to at least 1500m")), "{}", condition_found.message);
    assert_eq!(pod_uids(&env).await, old);
    let pods = env.pods_of(CLUSTER).await;
    let worker = pods.iter().find(|pod| pod.labels().get("ray.io/node-type").is_some_and(|kind| kind == "worker"));
    env.pods().delete(&worker.expect("a worker").name_any(), &DeleteParams::default()).await.expect("a pod fails");
    eventually("the worker is replaced", async || {
        let now = pod_uids(&env).await;
        (now.len() == 2 && now != old && cpu_of_workers(&env).await == ["500m"]).then_some(())
    })
    .await;

    // and when the quota is raised and the manager is killed during the recreate, then all pods are
    // recreated.
    let before = pod_uids(&env).await;
    env.set_quota("1500m", "2Gi").await;
    // Its replacement may exist already when the test looks.
    eventually("the first pod terminates or is gone", async || {
        let now = env.pods_of(CLUSTER).await.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
        let alive: BTreeSet<String> = now.filter_map(|pod| pod.uid()).collect();
        (!before.is_subset(&alive)).then_some(())
    })
    .await;
    manager.kill().await;
    let _manager = env.manager().await;
    eventually("the new pods exist", async || {
        let now = pod_uids(&env).await;
        (now.len() == 2 && now.is_disjoint(&before) && cpu_of_workers(&env).await == ["1"]).then_some(())
    })
    .await;
    env.wait_for_reserved_cpu("1500m").await;

    env.ray_clusters().delete(CLUSTER, &DeleteParams::default()).await.expect("the cluster is deleted");
    env.wait_until_empty().await;
    let breaches = invariants::violations(&recorder.history().await);
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
}
