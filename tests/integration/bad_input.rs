//! Invalid input is rejected or reported with its cause, and affects nothing that runs.

use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use sluice_api::condition;
use sluice_api::kueue::ClusterQueue;

use sluice_testkit::objects::{QUEUE, QUEUE_SAMPLE, SERVICE, SERVICE_SAMPLE};
use sluice_testkit::{TestEnv, eventually};

/// Returns the API server's rejection of a manifest.
async fn rejection(env: &TestEnv, manifest: &str) -> String {
    match env.apply(manifest).await {
        Ok(()) => panic!("accepted:\n{manifest}"),
        Err(error) => error.to_string(),
    }
}

/// Waits until the service's condition contains all of `words`. Returns its message.
async fn wait_for_service_message(env: &TestEnv, words: &[&str]) -> String {
    eventually(&format!("the service reports {words:?}"), async || {
        let status = env.ray_services().get(SERVICE).await.expect("the service").status.unwrap_or_default();
        let messages = status.conditions.iter().map(|condition| format!("{}: {}", condition.reason, condition.message));
        messages.into_iter().find(|message| words.iter().all(|word| message.contains(word)))
    })
    .await
}

#[tokio::test]
async fn api_server_rejects_statically_invalid_objects() {
    let env = TestEnv::start().await;

    let without_head = "apiVersion: ray.io/v1\nkind: RayService\nmetadata:\n  name: fruit\n  namespace: default\nspec:\n  \
                        rayClusterConfig:\n    rayVersion: 2.52.0\n";
    let message = rejection(&env, without_head).await;
    assert!(message.contains("spec.rayClusterConfig.headGroupSpec"), "{message}");

    let without_template = format!("{without_head}    headGroupSpec:\n      rayStartParams: {{}}\n");
    let message = rejection(&env, &without_template).await;
    assert!(message.contains("spec.rayClusterConfig.headGroupSpec.template"), "{message}");

    let (start, worker) = SERVICE_SAMPLE.split_once("    - groupName: small").expect("a worker group");
    let twice = format!("{start}    - groupName: small{worker}    - groupName: small{worker}");
    let message = rejection(&env, &twice).await;
    assert!(message.contains("workerGroupSpecs") && message.contains("groupName must be unique"), "{message}");

    let quota = json!({"name": "cpu", "nominalQuota": -1});
    let group = json!({"coveredResources": ["cpu"], "flavors": [{"name": "default-flavor", "resources": [quota]}]});
    let spec = serde_json::from_value(json!({"resourceGroups": [group]})).expect("a spec");
    let negative = ClusterQueue::new("negative", spec);
    // A policy rejects it, which the API server enforces a moment after the policy is created.
    let message = eventually("a negative quota is rejected", async || {
        let params = PostParams { dry_run: true, ..PostParams::default() };
        env.cluster_queues().create(&params, &negative).await.err().map(|error| error.to_string())
    })
    .await;
    assert!(message.contains("nominalQuota") && message.contains("greater than or equal to 0"), "{message}");

    let huge = QUEUE_SAMPLE.replace("nominalQuota: 1\n", "nominalQuota: \"1e400\"\n");
    let message = rejection(&env, &huge).await;
    assert!(message.contains("nominalQuota"), "{message}");
}

#[tokio::test]
async fn missing_local_queue_is_reported_until_it_exists() {
    let env = TestEnv::start().await;
    let _manager = env.manager().await;
    env.apply(SERVICE_SAMPLE).await.expect("the service");

    let message = wait_for_service_message(&env, &["user-queue"]).await;
    assert!(message.contains("LocalQueue"), "{message}");

    // Once the queue exists, the service runs.
    env.apply(QUEUE_SAMPLE).await.expect("the queue");
    env.wait_until_serving("2.52.0").await;
}

#[tokio::test]
async fn missing_flavor_is_reported_until_it_exists() {
    let env = TestEnv::start().await;
    let _manager = env.manager().await;
    env.apply(&QUEUE_SAMPLE.replace("- name: default-flavor", "- name: other-flavor")).await.expect("the queue");
    env.apply(SERVICE_SAMPLE).await.expect("the service");

    let message = eventually("the queue names the flavor", async || {
        let status = env.cluster_queues().get(QUEUE).await.expect("the queue").status.unwrap_or_default();
        let active = condition::get(&status.conditions, "Active")?;
        (active.status == "False").then(|| format!("{}: {}", active.reason, active.message))
    })
    .await;
    assert!(message.contains("FlavorNotFound") && message.contains("other-flavor"), "{message}");
    wait_for_service_message(&env, &[QUEUE]).await;

    env.apply("apiVersion: kueue.x-k8s.io/v1beta2\nkind: ResourceFlavor\nmetadata:\n  name: other-flavor\n")
        .await
        .expect("the flavor");
    env.wait_until_serving("2.52.0").await;
}

#[tokio::test]
async fn invalid_change_of_a_running_service_is_reported_and_not_applied() {
    let env = TestEnv::start().await;
    let _manager = env.manager().await;
    env.apply_samples().await;
    let first = env.wait_until_serving("2.52.0").await;

    let broken = json!({"spec": {"serveConfigV2": "applications: [unclosed"}});
    env.ray_services().patch(SERVICE, &PatchParams::default(), &Patch::Merge(broken)).await.expect("a change");
    wait_for_service_message(&env, &["serveConfigV2"]).await;
    assert_eq!(env.pods_of(&first).await.len(), 2, "the active cluster keeps running");

    env.apply(SERVICE_SAMPLE).await.expect("the change is reverted");
    assert_eq!(env.wait_until_serving("2.52.0").await, first);
}

#[tokio::test]
async fn invalid_resource_quantity_is_reported() {
    let env = TestEnv::start().await;
    let _manager = env.manager().await;
    env.apply(QUEUE_SAMPLE).await.expect("the queue");
    for bad in ["-1", "1e400"] {
        let manifest = SERVICE_SAMPLE.replacen("requests: {cpu: 500m", &format!("requests: {{cpu: \"{bad}\""), 1);
        match env.apply(&manifest).await {
            Ok(()) => drop(wait_for_service_message(&env, &[bad]).await),
            Err(error) => assert!(error.to_string().contains("cpu"), "{error}"),
        }
    }
}
