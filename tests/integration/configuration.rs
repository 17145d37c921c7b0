//! The configuration file at work.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;
use kube::api::ListParams;
use serde_json::json;

use crate::rayclusters::manifest;
use crate::support::quotas::{FLAVOR, flavor};
use crate::support::{TestEnv, eventually};

/// GPU slices are paid for in credits, two each; CPU and memory are not. Leads in the namespace that the rights are for.
const FILE: &str = "
apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
leaderElection: {resourceNamespace: sluice-system}
integrations: {frameworks: [ray.io/raycluster]}
resources:
  excludeResourcePrefixes: [cpu, memory]
  transformations:
  - input: nvidia.com/mig-1g.5gb
    strategy: Replace
    outputs: {credits: 2}
";

fn credits(nominal: &str) -> serde_json::Value {
    let quota = json!({"name": "credits", "nominalQuota": nominal});
    json!([{"coveredResources": ["credits"], "flavors": [{"name": FLAVOR, "resources": [quota]}]}])
}

/// A cluster whose one worker has two GPU slices, which says so in limits alone, as is usual.
fn cluster() -> String {
    let manifest = manifest();
    let (start, worker) = manifest.rsplit_once("limits: {").expect("the worker's limits");
    format!("{start}limits: {{nvidia.com/mig-1g.5gb: 2, {worker}")
}

#[tokio::test]
async fn gpu_slices_are_paid_for_as_the_configuration_file_says() {
    let env = TestEnv::start().await;
    let file = env.dir.join("configuration.yaml");
    let flag = format!("--config={}", file.display());
    env.put(flavor()).await;
    env.put_queue("user-queue", None, credits("3"), json!({})).await;

    // A slip of the pen ends the process, which says where it is.
    std::fs::write(&file, FILE.replace("strategy: Replace", "strategy: Swap")).expect("a file");
    let (status, said) = env.manager_with(&[&flag]).await.ended().await;
    assert!(!status.success());
    let problem = "resources.transformations[0].strategy: \"Swap\": allowed is Retain or Replace";
    assert!(said.contains(problem) && said.contains("configuration.yaml"), "{said}");

    // Put right, it is taken.
    std::fs::write(&file, FILE).expect("a file");
    let manager = env.manager_with(&[&flag]).await;
    env.apply(&cluster()).await.expect("the cluster");

    // Two slices are four credits.
    let name = eventually("the slice is there", async || {
        let slices = env.workloads().list(&ListParams::default()).await.expect("the slices").items;
        slices.first().map(ResourceExt::name_any)
    })
    .await;
    let said = env.is_short(&name).await;
    assert!(said.contains("credits") && !said.contains("mig-1g"), "{said}");
    env.change_queue("user-queue", json!({"resourceGroups": credits("4")})).await;
    env.is_admitted(&name).await;

    let slice = env.workloads().get(&name).await.expect("the slice");
    let admission = slice.status.and_then(|status| status.admission).expect("an admission");
    let charged: Vec<_> = admission.pod_set_assignments.iter().flat_map(|assigned| &assigned.resource_usage).collect();
    assert_eq!(charged, [(&"credits".to_owned(), &Quantity("4".to_owned()))]);

    // What isn't acted on is told, once.
    let log = std::fs::read_to_string(&manager.log).expect("its log");
    let warnings: Vec<_> = log.lines().filter(|line| line.contains("doesn't act on")).collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings.iter().all(|line| line.contains("integrations.frameworks")), "{warnings:?}");
}
