//! A RayService with Ray token authentication. Its dashboards reject requests without the token.

use k8s_openapi::api::core::v1::Secret;
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use sluice_testkit::objects::{NAMESPACE, QUEUE_SAMPLE, SERVICE_SAMPLE};
use sluice_testkit::{TestEnv, eventually, eventually_or_err};

fn service_with_token_auth(options: &str) -> String {
    SERVICE_SAMPLE.replace("  rayClusterConfig:\n", &format!("  rayClusterConfig:\n    authOptions: {options}\n"))
}

async fn secrets(env: &TestEnv) -> Vec<Secret> {
    let api: Api<Secret> = Api::namespaced(env.client.clone(), NAMESPACE);
    api.list(&ListParams::default()).await.expect("the Secrets").items
}

#[tokio::test]
async fn each_cluster_of_a_service_gets_a_separate_token() {
    let env = TestEnv::start().await;
    let manager = env.manager().await;
    env.apply(QUEUE_SAMPLE).await.expect("the queue");
    env.set_quota("2", "4Gi").await;

    // Given a service with token authentication, it becomes ready: its dashboard reported running
    // applications.
    env.apply(&service_with_token_auth("{mode: token}")).await.expect("the service");
    let first = env.wait_until_serving("2.52.0").await;
    let made = secrets(&env).await;
    assert_eq!(made.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), [first.as_str()]);
    let token = made[0].data.clone().expect("data")["auth_token"].clone();

    // When Sluice restarts and the service is upgraded, then the new cluster has a separate token,
    // and no token changes.
    manager.kill().await;
    let _manager = env.manager().await;
    env.set_ray_version("2.53.0").await;
    let second = env.wait_until_serving("2.53.0").await;
    let tokens = secrets(&env).await;
    let token_of =
        |name: &str| tokens.iter().find(|secret| secret.name_any() == name)?.data.clone()?.remove("auth_token");
    assert!(token_of(&second).is_some_and(|other| other != token));
    assert!(token_of(&first).is_none_or(|secret| secret == token));

    // The first token is deleted with its cluster.
    env.wait_for_only_cluster(&second).await;
    eventually("its Secret is deleted", async || (secrets(&env).await.len() == 1).then_some(())).await;
}

#[tokio::test]
async fn missing_user_provided_token_is_reported_until_it_exists() {
    let env = TestEnv::start().await;
    let _manager = env.manager().await;
    env.apply(QUEUE_SAMPLE).await.expect("the queue");
    env.set_quota("1", "2Gi").await;
    env.apply(&service_with_token_auth("{mode: token, secretName: mine}")).await.expect("the service");

    eventually_or_err("the service reports the missing Secret", async || {
        let conditions = format!("{:?}", env.get_service().await.status.unwrap_or_default().conditions);
        if conditions.contains("reading Secret default/mine") { Ok(()) } else { Err(conditions) }
    })
    .await;

    let secret = "apiVersion: v1\nkind: Secret\nmetadata:\n  name: mine\n  namespace: default\nstringData:\n  auth_token: sesame\n";
    env.apply(secret).await.expect("the Secret");
    env.wait_until_serving("2.52.0").await;
    assert_eq!(secrets(&env).await.len(), 1, "no Secret was created");
}
