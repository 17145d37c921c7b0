//! The queue manager and the Ray operator run separately, each with another system in place of the
//! other.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use sluice_api::condition;

use crate::rayclusters::{CLUSTER, cluster_manifest};
use sluice_testkit::objects::{QUEUE_SAMPLE, SERVICE_SAMPLE};
use sluice_testkit::{TestEnv, eventually};

#[tokio::test]
async fn ray_operator_alone_keeps_suspend_of_the_template() {
    let env = TestEnv::start().await;
    let _manager = env.manager_with(&["--queue-manager=false"]).await;

    // Given a service whose template another queue manager suspends, its cluster is created
    // suspended,
    let suspended = SERVICE_SAMPLE.replace("  rayClusterConfig:\n", "  rayClusterConfig:\n    suspend: true\n");
    env.apply(&suspended).await.expect("the service");
    let name = eventually("the cluster is there", async || {
        let clusters = env.ray_clusters().list(&ListParams::default()).await.expect("the clusters").items;
        clusters.first().and_then(|cluster| cluster.metadata.name.clone())
    })
    .await;
    assert_eq!(env.ray_clusters().get(&name).await.expect("the cluster").spec.suspend, Some(true));

    // and when that queue manager unsuspends it, the cluster runs: Sluice does not suspend it
    // again.
    env.delete_gate_policy().await;
    let open = Patch::Merge(json!({"spec": {"suspend": false}}));
    eventually("the gate is opened", async || {
        env.ray_clusters().patch(&name, &PatchParams::default(), &open).await.ok()
    })
    .await;
    assert_eq!(env.wait_until_serving("2.52.0").await, name);
    assert!(env.workloads().list(&ListParams::default()).await.expect("the slices").items.is_empty());
}

#[tokio::test]
async fn queue_manager_alone_opens_the_gate_and_creates_no_pod() {
    let env = TestEnv::start().await;
    let _manager = env.manager_with(&["--ray-operator=false"]).await;
    env.apply(QUEUE_SAMPLE).await.expect("the queue");
    env.set_quota("0", "0").await;
    env.apply(&cluster_manifest()).await.expect("the cluster");

    let is_open = async || env.ray_clusters().get(CLUSTER).await.expect("the cluster").spec.suspend != Some(true);
    eventually("the gate is closed", async || (!is_open().await).then_some(())).await;
    env.set_quota("1", "2Gi").await;
    eventually("the gate is open", async || {
        let conditions =
            env.ray_clusters().get(CLUSTER).await.expect("the cluster").status.unwrap_or_default().conditions;
        (is_open().await && condition::is_true(&conditions, "sluice.dev/Admitted")).then_some(())
    })
    .await;
    assert!(env.pods_of(CLUSTER).await.is_empty(), "the other operator creates the pods");
}

#[tokio::test]
async fn queue_manager_admits_jobs_without_the_crds_of_ray() {
    // Given a cluster without the CRDs of Ray,
    let env = TestEnv::start().await;
    let crds: Api<CustomResourceDefinition> = Api::all(env.client.clone());
    for crd in ["rayclusters.ray.io", "rayservices.ray.io"] {
        crds.delete(crd, &DeleteParams::default()).await.expect("the CRD is deleted");
    }
    eventually("the CRDs are gone", async || {
        let left = crds.list(&ListParams::default()).await.expect("the CRDs").items;
        (!left.iter().any(|crd| crd.spec.group == "ray.io")).then_some(())
    })
    .await;
    let _manager = env.manager_with(&["--ray-operator=false"]).await;

    // when a queued Job is created, then it is admitted;
    env.apply(QUEUE_SAMPLE).await.expect("the queue");
    env.set_quota("2", "4Gi").await;
    let container = json!({"name": "work", "image": "work", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}});
    let job = json!({
        "metadata": {"name": "train", "labels": {"kueue.x-k8s.io/queue-name": "user-queue"}},
        "spec": {"suspend": true, "template": {"spec": {"restartPolicy": "Never", "containers": [container]}}},
    });
    let job = serde_json::from_value(job).expect("a Job");
    env.jobs().create(&PostParams::default(), &job).await.expect("the Job");
    eventually("the Job runs", async || {
        let job = env.jobs().get("train").await.expect("the Job");
        (job.status?.active == Some(1)).then_some(())
    })
    .await;

    // and when the CRDs are installed, then a queued RayCluster is gated without a restart.
    env.apply_kustomization("crd").await;
    env.set_quota("0", "0").await;
    eventually("the RayCluster is created", async || env.apply(&cluster_manifest()).await.ok()).await;
    eventually("its Workload waits", async || {
        let slices = env.workloads().list(&ListParams::default()).await.expect("the Workloads").items;
        slices.into_iter().find(|slice| slice.name_any().starts_with("raycluster-"))
    })
    .await;
}
