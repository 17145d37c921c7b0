//! A user opens a gate by hand.

use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use sluice::api::ray::RayCluster;

use crate::support::history::{Object, Recorder};
use crate::support::{TestEnv, eventually};
use crate::upgrades::pods_ever;

fn opened() -> Patch<serde_json::Value> {
    Patch::Merge(json!({
        "metadata": {"annotations": {"test.sluice.dev/opened-by-hand": "yes"}},
        "spec": {"suspend": false},
    }))
}

#[tokio::test]
async fn the_api_server_refuses_a_user_who_opens_a_gate() {
    let env = TestEnv::start().await;
    let _manager = env.manager().await;
    env.apply_samples().await;
    env.serves_from("2.52.0").await;
    env.set_ray_version("2.53.0").await;
    let (pending, _) = env.waits_for_quota().await;

    // A policy takes the API server a moment to compile; from then on it holds.
    let refusal = eventually("the policy holds", async || {
        env.ray_clusters()
            .patch(&pending, &PatchParams { dry_run: true, ..PatchParams::default() }, &opened())
            .await
            .err()
    })
    .await;
    assert!(refusal.to_string().contains("an admitted Workload covers the cluster"), "{refusal}");
}

#[tokio::test]
async fn a_gate_opened_by_hand_is_closed_again_before_a_pod_exists() {
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let _manager = env.manager().await;
    env.apply_samples().await;
    env.serves_from("2.52.0").await;
    env.set_ray_version("2.53.0").await;
    let (pending, _) = env.waits_for_quota().await;

    // Given a cluster without our policy, or a user whom it lets through,
    env.delete_gate_policy().await;
    let clusters: Api<RayCluster> = env.ray_clusters();
    eventually("the gate is opened by hand", async || {
        clusters.patch(&pending, &PatchParams::default(), &opened()).await.ok()
    })
    .await;

    // then the gate is closed again, and no pod was ever made.
    eventually("the gate is closed", async || {
        let cluster = clusters.get(&pending).await.expect("the cluster");
        (cluster.spec.suspend == Some(true)).then_some(())
    })
    .await;
    let history = recorder.history().await;
    let was_open = history.iter().any(|change| {
        matches!(&change.object, Object::RayCluster(cluster)
            if cluster.metadata.name.as_deref() == Some(&pending) && cluster.spec.suspend == Some(false))
    });
    assert!(was_open, "the gate was open for a moment");
    assert!(pods_ever(&history, &pending).is_empty(), "no pod was made");
}
