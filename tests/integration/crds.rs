//! The CRDs of Sluice on a real API server.

use std::collections::BTreeSet;
use std::path::Path;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Resource, ResourceExt};
use serde_json::{Value, json};
use sluice_api::ray::RayService;

use crate::rayclusters::{CLUSTER, cluster_manifest, wait_until_ready};
use sluice_testkit::env::{cache_dir, repository_root};
use sluice_testkit::objects::{NAMESPACE, SERVICE, SERVICE_SAMPLE};
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

/// Kueue compares the pod templates of a Ray object with those in its Workload, and KubeRay hashes
/// them.
#[test]
fn fields_of_core_types_have_the_defaults_of_kuberay_and_kueue() {
    let (kuberay, kueue) = (cache_dir().join("kuberay-crds"), cache_dir().join("kueue-crds"));
    let workload = spec_schema(&kueue.join("kueue.x-k8s.io_workloads.yaml"), "v1beta2");
    let template = &workload["properties"]["podSets"]["items"]["properties"]["template"];
    for (file, cluster_path) in
        [("ray.io_rayclusters.yaml", ""), ("ray.io_rayservices.yaml", "/properties/rayClusterConfig")]
    {
        let spec = spec_schema(&repository_root().join("config/crd").join(file), "v1");
        let ours = defaults(&spec);

        let missing: Vec<_> = defaults(&spec_schema(&kuberay.join(file), "v1"))
            .into_iter()
            .filter(|default| !ours.contains(default))
            .collect();
        assert!(missing.is_empty(), "defaults of KubeRay that {file} lacks: {missing:?}");
        for group in ["headGroupSpec", "workerGroupSpecs/items"] {
            let path = format!("{cluster_path}/properties/{group}/properties/template");
            assert_eq!(defaults(spec.pointer(&path).expect("a template")), defaults(template), "{path} of {file}");
        }
    }
}

/// Returns the schema of `spec` in a file with one CRD.
fn spec_schema(file: &Path, version: &str) -> Value {
    let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let definition: Value = serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let versions = definition["spec"]["versions"].as_array().expect("versions");
    let version = versions.iter().find(|candidate| candidate["name"] == version).expect("the version");
    version["schema"]["openAPIV3Schema"]["properties"]["spec"].clone()
}

/// Returns the paths of all fields in a schema that have a default, and the defaults.
fn defaults(schema: &Value) -> BTreeSet<String> {
    let own = schema.get("default").map(|default| format!(" = {default}"));
    let properties = schema["properties"].as_object().into_iter().flatten();
    let nested = properties
        .flat_map(|(name, property)| defaults(property).into_iter().map(move |path| format!(".{name}{path}")));
    let items = schema.get("items").map(defaults).into_iter().flatten().map(|path| format!("[]{path}"));
    own.into_iter().chain(nested).chain(items).collect()
}

#[tokio::test]
async fn new_defaults_in_the_crds_replace_no_running_object() {
    // Given a service and a cluster that run, stored with the CRDs of a release without defaults,
    let env = TestEnv::start().await;
    let definitions: Api<CustomResourceDefinition> = Api::all(env.client.clone());
    for (name, path) in [("rayclusters.ray.io", ""), ("rayservices.ray.io", "/properties/rayClusterConfig")] {
        let mut definition = json!(definitions.get(name).await.expect("the definition"));
        let spec = format!("/spec/versions/0/schema/openAPIV3Schema/properties/spec{path}");
        remove_template_defaults(definition.pointer_mut(&spec).expect("the cluster's spec"));
        let definition = serde_json::from_value(definition).expect("a definition");
        definitions.replace(name, &PostParams::default(), &definition).await.expect("the older definition");
    }
    let recreated =
        cluster_manifest().replace("spec:\n  rayVersion", "spec:\n  upgradeStrategy: {type: Recreate}\n  rayVersion");
    eventually("the API server sets no defaults", async || {
        env.apply(&recreated).await.expect("the cluster");
        let is_stored = !has_protocol(&env).await;
        if !is_stored {
            env.ray_clusters().delete(CLUSTER, &DeleteParams::default()).await.expect("the cluster is deleted");
        }
        is_stored.then_some(())
    })
    .await;
    let manager = env.manager().await;
    env.apply_samples().await;
    env.set_quota("2", "4Gi").await;
    env.wait_until_serving("2.52.0").await;
    wait_until_ready(&env).await;
    let before = running_objects(&env).await;
    assert_eq!(before.iter().filter(|name| name.starts_with("Pod ")).count(), 4, "{before:?}");

    // when the CRDs of this release are installed, Sluice is restarted and both objects are edited
    // in a way that applies in place,
    env.apply_kustomization("crd").await;
    eventually("the API server sets defaults", async || has_protocol(&env).await.then_some(())).await;
    manager.kill().await;
    let _manager = env.manager().await;
    let (params, delay) =
        (PatchParams::default(), Patch::Merge(json!({"spec": {"rayClusterDeletionDelaySeconds": 7}})));
    let service = env.ray_services().patch(SERVICE, &params, &delay).await.expect("the service is edited");
    let idle = Patch::Merge(json!({"spec": {"autoscalerOptions": {"idleTimeoutSeconds": 61}}}));
    let cluster = env.ray_clusters().patch(CLUSTER, &params, &idle).await.expect("the cluster is edited");
    eventually("Sluice has observed both edits", async || {
        let service_status = env.get_service().await.status?;
        let cluster_status = env.ray_clusters().get(CLUSTER).await.expect("the cluster").status?;
        let observed = [service_status.observed_generation, cluster_status.observed_generation];
        (observed == [service.metadata.generation, cluster.metadata.generation]).then_some(())
    })
    .await;

    // then nothing that ran was replaced.
    assert_eq!(running_objects(&env).await, before);
}

fn remove_template_defaults(cluster_spec: &mut Value) {
    fn remove_defaults(schema: &mut Value) {
        match schema {
            Value::Object(fields) => {
                fields.remove("default");
                fields.values_mut().for_each(remove_defaults);
            }
            Value::Array(items) => items.iter_mut().for_each(remove_defaults),
            _ => {}
        }
    }
    for group in ["headGroupSpec", "workerGroupSpecs/items"] {
        let path = format!("/properties/{group}/properties/template");
        remove_defaults(cluster_spec.pointer_mut(&path).expect("a template"));
    }
}

/// Reports whether the ports of the cluster's head have a protocol.
async fn has_protocol(env: &TestEnv) -> bool {
    let cluster = env.ray_clusters().get(CLUSTER).await.expect("the cluster");
    let template = cluster.spec.head_group_spec.template.0;
    template.pointer("/spec/containers/0/ports/0/protocol").is_some()
}

/// Returns kinds, names and uids of all pods, clusters and Workloads.
async fn running_objects(env: &TestEnv) -> BTreeSet<String> {
    fn identify<K: Resource<DynamicType = ()>>(all: Vec<K>) -> impl Iterator<Item = String> {
        all.into_iter().map(|object| format!("{} {} {:?}", K::kind(&()), object.name_any(), object.uid()))
    }
    let all = ListParams::default();
    let pods = identify(env.pods().list(&all).await.expect("the pods").items);
    let clusters = identify(env.ray_clusters().list(&all).await.expect("the clusters").items);
    let workloads = identify(env.workloads().list(&all).await.expect("the Workloads").items);
    pods.chain(clusters).chain(workloads).collect()
}
