//! Deleting a service in any phase leaves nothing behind; deleting its Workload stops nothing, and a
//! service that leaves its queue leaves everything of it.

use std::collections::BTreeSet;

use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use sluice_api::condition;
use sluice_testkit::history::Recorder;
use sluice_testkit::objects::SERVICE;
use sluice_testkit::{TestEnv, eventually, invariants};

async fn check_nothing_left(env: &TestEnv, recorder: &Recorder) {
    env.delete_service().await;
    env.wait_until_empty().await;
    let breaches = invariants::violations(&recorder.history().await);
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
}

/// All phases share one control plane: each starts only once nothing is left of the previous one.
#[tokio::test]
async fn service_deleted_in_any_phase_leaves_nothing_behind() {
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let _manager = env.manager().await;

    // Before it is admitted.
    env.apply_samples().await;
    env.set_quota("0", "0").await;
    eventually("its first slice exists", async || {
        let slices = env.workloads().list(&ListParams::default()).await.expect("the slices").items;
        (!slices.is_empty()).then_some(())
    })
    .await;
    check_nothing_left(&env, &recorder).await;

    // While its pods start.
    env.apply_samples().await;
    eventually("its pods exist", async || {
        let pods = env.pods().list(&ListParams::default()).await.expect("the pods").items;
        (!pods.is_empty()).then_some(())
    })
    .await;
    check_nothing_left(&env, &recorder).await;

    // While it is ready.
    env.apply_samples().await;
    env.wait_until_serving("2.52.0").await;
    check_nothing_left(&env, &recorder).await;

    // While an upgrade is pending.
    env.apply_samples().await;
    env.wait_until_serving("2.52.0").await;
    env.set_ray_version("2.53.0").await;
    env.wait_for_pending_upgrade().await;
    check_nothing_left(&env, &recorder).await;

    // While both clusters run.
    env.apply_samples().await;
    env.set_quota("2", "4Gi").await;
    env.wait_until_serving("2.52.0").await;
    env.set_ray_version("2.53.0").await;
    env.wait_until_serving("2.53.0").await;
    check_nothing_left(&env, &recorder).await;
}

/// Returns the names of the pods of a cluster.
async fn pod_names(env: &TestEnv, cluster: &str) -> BTreeSet<String> {
    env.pods_of(cluster).await.iter().map(ResourceExt::name_any).collect()
}

/// Kueue stops a job whose Workload is deleted.
#[tokio::test]
async fn service_goes_on_serving_when_its_workload_is_deleted_by_hand() {
    // Given a service that serves on the whole quota,
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let _manager = env.manager().await;
    env.apply_samples().await;
    let cluster = env.wait_until_serving("2.52.0").await;
    let pods = pod_names(&env, &cluster).await;
    let held = env.workloads().list(&ListParams::default()).await.expect("the slices").items.remove(0);

    // when its Workload is deleted,
    env.workloads().delete(&held.name_any(), &DeleteParams::default()).await.expect("a deletion");

    // then another one takes its place, and every pod goes on running.
    eventually("another Workload covers the service", async || {
        let slices = env.workloads().list(&ListParams::default()).await.expect("the slices").items;
        let [slice] = slices.as_slice() else { return None };
        let conditions = slice.status.clone().unwrap_or_default().conditions;
        (slice.uid() != held.uid() && condition::is_true(&conditions, "Admitted")).then_some(())
    })
    .await;
    assert_eq!(pod_names(&env, &cluster).await, pods);
    assert_eq!(env.wait_until_serving("2.52.0").await, cluster);
    let breaches = invariants::violations(&recorder.history().await);
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
}

/// Follows the advice of policy `sluice-queue-names`.
#[tokio::test]
async fn service_that_leaves_its_queue_serves_without_it() {
    let env = TestEnv::start().await;
    let _manager = env.manager().await;
    env.apply_samples().await;
    env.wait_until_serving("2.52.0").await;
    let patch = async |patch: Value| {
        let params = PatchParams::default();
        env.ray_services().patch(SERVICE, &params, &Patch::Merge(patch)).await.expect("a patch");
    };
    let conditions = async || env.get_service().await.status.unwrap_or_default().conditions;

    // When it is suspended, leaves its queue, and is resumed,
    patch(json!({"spec": {"suspend": true}})).await;
    eventually("it holds no quota", async || {
        let reserved = condition::get(&conditions().await, "sluice.dev/QuotaReserved").cloned();
        reserved.filter(|reserved| reserved.status == "False")
    })
    .await;
    patch(json!({"metadata": {"labels": {"kueue.x-k8s.io/queue-name": null}}})).await;
    patch(json!({"spec": {"suspend": false}})).await;

    // then it serves, without a Workload and without conditions of the queue.
    env.wait_until_serving("2.52.0").await;
    assert_eq!(env.workloads().list(&ListParams::default()).await.expect("the slices").items.len(), 0);
    let left = conditions().await.into_iter().map(|condition| condition.type_);
    let left: Vec<String> = left.filter(|kind| kind.starts_with("sluice.dev/")).collect();
    assert_eq!(left, [""; 0]);
}
