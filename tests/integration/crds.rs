//! The CRDs of Sluice on a real API server.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{ListParams, ObjectMeta};
use sluice_api::ray::RayService;

use sluice_testkit::objects::{NAMESPACE, SERVICE_SAMPLE};
use sluice_testkit::{TestEnv, eventually};

#[tokio::test]
async fn api_server_accepts_every_crd_as_structural() {
    let env = TestEnv::start().await;
    let definitions: Api<CustomResourceDefinition> = Api::all(env.client.clone());

    let listed = definitions.list(&ListParams::default()).await.expect("the definitions").items;
    assert_eq!(listed.len(), sluice_api::crds::all().len());
    for definition in listed {
        let name = definition.metadata.name.clone().unwrap_or_default();
        eventually(&format!("{name} is established and structural"), async || {
            let definition = definitions.get(&name).await.expect("the definition");
            let conditions = definition.status.and_then(|status| status.conditions).unwrap_or_default();
            let has = |kind: &str, status: &str| {
                conditions.iter().any(|condition| condition.type_ == kind && condition.status == status)
            };
            assert!(!has("NonStructuralSchema", "True"), "{name}: {conditions:?}");
            has("Established", "True").then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn unknown_pod_template_field_is_preserved() {
    let env = TestEnv::start().await;
    let future = SERVICE_SAMPLE.replacen(
        "          containers:",
        "          fieldOfTheFuture: {a: [1]}\n          containers:",
        1,
    );
    env.apply(&future).await.expect("the service");

    let services: Api<RayService> = Api::namespaced(env.client.clone(), NAMESPACE);
    let service = services.get("fruit").await.expect("the service");
    let template = service.spec.ray_cluster_config.head_group_spec.template.0;
    assert_eq!(template.pointer("/spec/fieldOfTheFuture/a/0"), Some(&1.into()));
    assert_ne!(service.metadata, ObjectMeta::default());
}
