//! A RayCluster with GCS fault tolerance in Redis.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::rayclusters::{CLUSTER, cluster_manifest, wait_until_ready};
use sluice_testkit::objects::{NAMESPACE, QUEUE_SAMPLE};
use sluice_testkit::{TestEnv, eventually};

const JOB: &str = "basket-redis-cleanup";

fn cluster_with_redis() -> String {
    let redis = "spec:\n  gcsFaultToleranceOptions:\n    redisAddress: redis:6379\n  rayVersion";
    cluster_manifest().replace("spec:\n  rayVersion", redis)
}

/// Returns the pods of the cleanup Job.
async fn pods(env: &TestEnv) -> Vec<Pod> {
    let of_job = ListParams::default().labels(&format!("batch.kubernetes.io/job-name={JOB}"));
    env.pods().list(&of_job).await.expect("the pods").items
}

#[tokio::test]
async fn redis_keys_are_deleted_before_the_cluster() {
    let env = TestEnv::start().await;
    let _manager = env.manager().await;
    env.apply(QUEUE_SAMPLE).await.expect("the queue");
    env.set_quota("1", "2Gi").await;
    env.apply(&cluster_with_redis()).await.expect("the cluster");
    wait_until_ready(&env).await;

    env.ray_clusters().delete(CLUSTER, &DeleteParams::default()).await.expect("the cluster is deleted");
    let jobs: Api<Job> = Api::namespaced(env.client.clone(), NAMESPACE);
    let job = eventually("a Job deletes its keys", async || jobs.get_opt(JOB).await.expect("an answer")).await;
    assert_eq!(job.spec.expect("a spec").suspend, Some(false), "the quota of the head covers it");
    assert!(env.pods_of(CLUSTER).await.iter().all(|pod| pod.labels().contains_key("batch.kubernetes.io/job-name")));
    env.wait_for_reserved_cpu("500m").await;
    assert!(
        env.ray_clusters().get_opt(CLUSTER).await.expect("an answer").is_some(),
        "the cluster remains until its keys are deleted"
    );

    let runs = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
    let pod = eventually("its pod runs", async || pods(&env).await.into_iter().find(|pod| runs(pod))).await;
    let done = Patch::Merge(json!({"metadata": {"annotations": {"testenv.sluice.dev/phase": "succeeded"}}}));
    env.pods().patch(&pod.name_any(), &PatchParams::default(), &done).await.expect("the pod is done");
    env.wait_until_empty().await;
}
