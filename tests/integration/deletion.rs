//! Deleting a service in any phase leaves nothing behind.

use kube::api::ListParams;
use sluice_testkit::eventually;
use sluice_testkit::history::Recorder;
use sluice_testkit::{TestEnv, invariants};

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
