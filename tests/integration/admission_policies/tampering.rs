//! Gates opened by hand, with and without the policies and a running manager.

use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;
use sluice_api::condition;
use sluice_api::ray::RayCluster;

use crate::rayclusters::{CLUSTER, cluster_manifest};
use crate::upgrades::all_pod_names;
use sluice_testkit::history::{Change, Object, Recorder};
use sluice_testkit::objects::{NAMESPACE, QUEUE_SAMPLE, SERVICE, is_quota_reason};
use sluice_testkit::{TestEnv, eventually};

fn unsuspend_patch() -> Patch<serde_json::Value> {
    Patch::Merge(json!({
        "metadata": {"annotations": {"test.sluice.dev/opened-by-hand": "yes"}},
        "spec": {"suspend": false},
    }))
}

#[tokio::test]
async fn api_server_rejects_opening_a_gate_by_hand_even_while_sluice_is_down() {
    let env = TestEnv::start().await;
    let manager = env.manager().await;
    env.apply_samples().await;
    env.wait_until_serving("2.52.0").await;
    env.set_ray_version("2.53.0").await;
    let (pending, _) = env.wait_for_pending_upgrade().await;

    // The policies do not depend on a running manager.
    manager.kill().await;

    // The API server takes a moment to compile the policy.
    let refusal = eventually("the policy is enforced", async || {
        env.ray_clusters()
            .patch(&pending, &PatchParams { dry_run: true, ..PatchParams::default() }, &unsuspend_patch())
            .await
            .err()
    })
    .await;
    assert!(refusal.to_string().contains("an admitted Workload covers the cluster"), "{refusal}");
}

#[tokio::test]
async fn gate_opened_by_hand_is_closed_before_a_pod_exists() {
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let _manager = env.manager().await;
    env.apply_samples().await;
    env.wait_until_serving("2.52.0").await;
    env.set_ray_version("2.53.0").await;
    let (pending, _) = env.wait_for_pending_upgrade().await;

    // Given a Kubernetes cluster without our policy, or a user exempt from it,
    env.delete_gate_policy().await;
    let clusters: Api<RayCluster> = env.ray_clusters();
    eventually("the gate is opened by hand", async || {
        clusters.patch(&pending, &PatchParams::default(), &unsuspend_patch()).await.ok()
    })
    .await;

    // then the gate is closed again, and no pod was ever created.
    eventually("the gate is closed", async || {
        let cluster = clusters.get(&pending).await.expect("the cluster");
        (cluster.spec.suspend == Some(true)).then_some(())
    })
    .await;
    let history = recorder.history().await;
    assert!(was_unsuspended(&history, &pending), "the gate was open for a moment");
    assert!(all_pod_names(&history, &pending).is_empty(), "no pod was created");
}

/// Reports whether the gate of a cluster was open at any point of a history.
fn was_unsuspended(history: &[Change], name: &str) -> bool {
    history.iter().any(|change| {
        matches!(&change.object, Object::RayCluster(cluster)
            if cluster.metadata.name.as_deref() == Some(name) && cluster.spec.suspend == Some(false))
    })
}

#[tokio::test]
async fn gate_opened_while_sluice_is_down_is_closed_before_a_pod_exists() {
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let manager = env.manager().await;
    env.apply(QUEUE_SAMPLE).await.expect("the queue");
    env.set_quota("999m", "2Gi").await;
    env.apply(&cluster_manifest()).await.expect("the cluster");
    let clusters: Api<RayCluster> = env.ray_clusters();
    eventually("the cluster is pending", async || {
        let cluster = clusters.get(CLUSTER).await.expect("the cluster");
        let conditions = cluster.status.unwrap_or_default().conditions;
        is_quota_reason(&condition::get(&conditions, "sluice.dev/Admitted")?.reason).then_some(())
    })
    .await;

    // Given that the policies are removed and Sluice is down,
    manager.kill().await;
    env.delete_policy("sluice-gate").await;
    eventually("the gate is opened by hand", async || {
        clusters.patch(CLUSTER, &PatchParams::default(), &unsuspend_patch()).await.ok()
    })
    .await;

    // when Sluice is back, the gate is closed, and no pod was ever created.
    let _manager = env.manager().await;
    eventually("the gate is closed", async || {
        (clusters.get(CLUSTER).await.expect("the cluster").spec.suspend == Some(true)).then_some(())
    })
    .await;
    let history = recorder.history().await;
    assert!(was_unsuspended(&history, CLUSTER), "the gate was open for a while");
    assert!(all_pod_names(&history, CLUSTER).is_empty(), "no pod was created");
}

#[tokio::test]
async fn template_unsuspended_while_sluice_is_down_is_suspended_without_creating_a_pod() {
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let manager = env.manager().await;
    env.apply_samples().await;
    env.wait_until_serving("2.52.0").await;

    // Given that the policies are removed and Sluice is down, when the template is unsuspended and
    // the service upgraded,
    manager.kill().await;
    env.delete_policy("sluice-template-gate").await;
    let open = Patch::Merge(json!({"spec": {"rayClusterConfig": {"suspend": false, "rayVersion": "2.53.0"}}}));
    eventually("the template is opened by hand", async || {
        env.ray_services().patch(SERVICE, &PatchParams::default(), &open).await.ok()
    })
    .await;

    // then the template is suspended again once Sluice is back, and the pending cluster waits for
    // quota without a pod.
    let _manager = env.manager().await;
    let (pending, _) = env.wait_for_pending_upgrade().await;
    assert_eq!(env.get_service().await.spec.ray_cluster_config.suspend, Some(true));
    let history = recorder.history().await;
    assert!(!was_unsuspended(&history, &pending), "the cluster was created suspended");
    let events: Api<Event> = Api::namespaced(env.client.clone(), NAMESPACE);
    eventually("there is a warning Event", async || {
        let events = events.list(&ListParams::default()).await.expect("the Events").items;
        let is_warning = |event: &Event| {
            event.reason.as_deref() == Some("TemplateGateClosed") && event.type_.as_deref() == Some("Warning")
        };
        events.iter().any(is_warning).then_some(())
    })
    .await;
    assert!(all_pod_names(&history, &pending).is_empty(), "no pod was created");
}
