//! Effects of the configuration file.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams};
use serde_json::json;
use sluice_api::condition;
use sluice_api::kueue::Workload;

use crate::rayclusters::{CLUSTER, cluster_manifest};
use sluice_testkit::history::Recorder;
use sluice_testkit::objects::{QUEUE, QUEUE_SAMPLE};
use sluice_testkit::quotas::{FLAVOR, cohort, cpu_quota, local_queue, resource_flavor, workload};
use sluice_testkit::{TestEnv, eventually, invariants};

/// Configuration in which a GPU slice uses two credits, and CPU and memory are excluded. Leader
/// election uses the namespace of the RBAC manifests.
const CREDITS_CONFIG: &str = "
apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
leaderElection: {resourceNamespace: sluice-system}
integrations: {frameworks: [ray.io/raycluster, pod]}
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

/// Returns a cluster whose one worker has two GPU slices, set in limits only, as is usual.
fn cluster() -> String {
    let manifest = cluster_manifest();
    let (start, worker) = manifest.rsplit_once("limits: {").expect("the worker's limits");
    format!("{start}limits: {{nvidia.com/mig-1g.5gb: 2, {worker}")
}

#[tokio::test]
async fn gpu_slices_use_quota_as_configured() {
    let env = TestEnv::start().await;
    let file = env.dir.join("configuration.yaml");
    let flag = format!("--config={}", file.display());
    env.apply_object(resource_flavor()).await;
    env.apply_queue("user-queue", None, credits("3"), json!({})).await;

    // A typo ends the process, which reports its location.
    std::fs::write(&file, CREDITS_CONFIG.replace("strategy: Replace", "strategy: Swap")).expect("a file");
    let (status, log) = env.manager_with(&[&flag]).await.wait().await;
    assert!(!status.success());
    let problem = "resources.transformations[0].strategy: \"Swap\": must be Retain or Replace";
    assert!(log.contains(problem) && log.contains("configuration.yaml"), "{log}");

    // The corrected file is accepted.
    std::fs::write(&file, CREDITS_CONFIG).expect("a file");
    let manager = env.manager_with(&[&flag]).await;
    env.apply(&cluster()).await.expect("the cluster");

    // Two slices use four credits.
    let name = eventually("the Workload exists", async || {
        let slices = env.workloads().list(&ListParams::default()).await.expect("the slices").items;
        slices.first().map(ResourceExt::name_any)
    })
    .await;
    let message = env.wait_until_pending(&name).await;
    assert!(message.contains("credits") && !message.contains("mig-1g"), "{message}");
    env.patch_queue("user-queue", json!({"resourceGroups": credits("4")})).await;
    env.wait_until_admitted(&name).await;

    let slice = env.workloads().get(&name).await.expect("the slice");
    let admission = slice.status.and_then(|status| status.admission).expect("an admission");
    let charged: Vec<_> = admission.pod_set_assignments.iter().flat_map(|assigned| &assigned.resource_usage).collect();
    assert_eq!(charged, [(&"credits".to_owned(), &Quantity("4".to_owned()))]);

    // Unsupported fields are logged, once.
    let log = std::fs::read_to_string(&manager.log).expect("its log");
    let warnings: Vec<_> =
        log.lines().filter(|line| line.contains("unsupported fields of the configuration file")).collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings.iter().all(|line| line.contains("integrations.frameworks[1] (pod)")), "{warnings:?}");
}

/// Configuration in which jobs without a queue name are managed, except in the namespaces of
/// Kubernetes and Sluice.
const MANAGE_UNNAMED_CONFIG: &str = "
apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
leaderElection: {leaderElect: false}
manageJobsWithoutQueueName: true
managedJobsNamespaceSelector:
  matchExpressions:
  - {key: kubernetes.io/metadata.name, operator: NotIn, values: [kube-system, sluice-system]}
";

/// Returns a cluster without a queue name.
fn unnamed(name: &str) -> String {
    let label = "  labels:\n    kueue.x-k8s.io/queue-name: user-queue\n";
    cluster_manifest().replace(label, "").replace(&format!("name: {CLUSTER}\n"), &format!("name: {name}\n"))
}

#[tokio::test]
async fn cluster_without_queue_name_is_held_unless_a_default_queue_exists() {
    // Given a configuration that manages jobs without a queue name,
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let file = env.dir.join("configuration.yaml");
    std::fs::write(&file, MANAGE_UNNAMED_CONFIG).expect("a file");
    let _manager = env.manager_with(&[&format!("--config={}", file.display())]).await;
    env.apply(QUEUE_SAMPLE).await.expect("the queue");
    env.wait_for_queue_observed().await;

    // when a cluster has none, then it is suspended and reports the remedy;
    env.apply(&unnamed("held")).await.expect("a cluster");
    let why = eventually("the cluster reports why it is pending", async || {
        let held = env.ray_clusters().get("held").await.expect("the cluster");
        let conditions = held.status.clone().unwrap_or_default().conditions;
        let admitted = condition::get(&conditions, "sluice.dev/Admitted")?;
        (held.spec.suspend == Some(true) && admitted.reason == "NoQueueName").then(|| admitted.message.clone())
    })
    .await;
    assert!(why.contains("set its label kueue.x-k8s.io/queue-name to a LocalQueue"), "{why}");
    env.wait_for_event("RayCluster", "NoQueueName").await;

    // and once there is a default LocalQueue, it is in that one and runs;
    let mut default_queue = local_queue(QUEUE);
    default_queue["metadata"]["name"] = "default".into();
    env.apply_object(default_queue).await;
    eventually("the cluster runs", async || (env.pods_of("held").await.len() == 2).then_some(())).await;
    let held = env.ray_clusters().get("held").await.expect("the cluster");
    assert_eq!(held.labels().get("kueue.x-k8s.io/queue-name").map(String::as_str), Some("default"));

    // so is a new one, which waits for its quota.
    env.apply(&unnamed("new")).await.expect("a cluster");
    eventually("the new cluster waits in the default queue", async || {
        let new = env.ray_clusters().get("new").await.expect("the cluster");
        let conditions = new.status.clone().unwrap_or_default().conditions;
        let admitted = condition::get(&conditions, "sluice.dev/Admitted")?;
        (admitted.status == "False" && admitted.message.contains("LocalQueue default")).then_some(())
    })
    .await;
    assert!(env.pods_of("new").await.is_empty());
    env.ray_clusters().delete("held", &DeleteParams::default()).await.expect("a deletion");
    eventually("the new cluster runs", async || (env.pods_of("new").await.len() == 2).then_some(())).await;
    let breaches = invariants::violations(&recorder.history().await);
    assert!(breaches.is_empty(), "{breaches:#?}");
}

/// Fair sharing by one strategy alone.
const FINAL_SHARE_CONFIG: &str = "
apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
fairSharing:
  preemptionStrategies: [LessThanOrEqualToFinalShare]
";

#[tokio::test]
async fn own_workload_makes_way_for_one_that_is_fair_to_admit() {
    // Given two ClusterQueues that share 12 CPUs: one uses 2 of them, the other 8,
    let env = TestEnv::start().await;
    let file = env.dir.join("configuration.yaml");
    std::fs::write(&file, FINAL_SHARE_CONFIG).expect("a file");
    let _manager = env.manager_with(&[&format!("--config={}", file.display())]).await;
    env.apply_object(resource_flavor()).await;
    env.apply_object(cohort("all", None, cpu_quota("12", json!({})))).await;
    let preemption = json!({"preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"}});
    for queue in ["team-a", "team-b"] {
        env.apply_queue(queue, Some("all"), cpu_quota("0", json!({})), preemption.clone()).await;
    }
    let theirs = ["b1", "b2", "b3", "b4"];
    for (name, queue) in theirs.iter().map(|name| (*name, "team-b")).chain([("low", "team-a")]) {
        env.apply_object(workload(name, queue, "2", 0)).await;
        env.wait_until_admitted(name).await;
    }

    // when the first one wants 5 for a workload of higher priority, which is more than the other would keep, then its
    // own workload is preempted, after which one of the other is fair to preempt.
    env.apply_object(workload("high", "team-a", "5", 100)).await;
    env.release_evicted("low", "Preempted").await;
    let evicted = eventually("one of the other ClusterQueue is preempted", async || {
        let workloads = env.workloads().list(&ListParams::default()).await.expect("the Workloads").items;
        let is_evicted = |workload: &&Workload| condition::is_true(workload.conditions(), "Evicted");
        let evicted = workloads.iter().filter(is_evicted).map(ResourceExt::name_any);
        evicted.into_iter().find(|name| theirs.contains(&name.as_str()))
    })
    .await;
    env.release_evicted(&evicted, "Preempted").await;
    env.wait_until_admitted("high").await;
    for name in theirs.iter().filter(|name| **name != evicted) {
        env.wait_until_admitted(name).await;
    }
}

/// Configuration in which finished Workloads and deactivated jobs are deleted after two seconds.
const RETENTION_CONFIG: &str = "
apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
leaderElection: {leaderElect: false}
objectRetentionPolicies: {workloads: {afterFinished: 2s, afterDeactivatedByKueue: 2s}}
";

#[tokio::test]
async fn finished_workloads_and_deactivated_jobs_are_deleted_after_their_retention() {
    // Given a configuration with retention policies, a Workload, and a cluster that may run for five seconds,
    let env = TestEnv::start().await;
    let file = env.dir.join("configuration.yaml");
    std::fs::write(&file, RETENTION_CONFIG).expect("a file");
    let _manager = env.manager_with(&[&format!("--config={}", file.display())]).await;
    env.apply(QUEUE_SAMPLE).await.expect("the queue");
    env.wait_for_queue_observed().await;
    env.apply_object(workload("done", "user-queue", "100m", 0)).await;
    let labels = "  labels:\n";
    let limit = "  labels:\n    kueue.x-k8s.io/max-exec-time-seconds: \"5\"\n";
    env.apply(&cluster_manifest().replacen(labels, limit, 1)).await.expect("the cluster");

    // when the Workload finishes, then it is deleted,
    env.wait_until_admitted("done").await;
    env.mark_finished("done").await;
    eventually("the finished Workload is deleted", async || {
        env.workloads().get_opt("done").await.expect("an answer").is_none().then_some(())
    })
    .await;
    env.wait_for_event("Workload", "Deleted").await;

    // and when the time of the cluster is over, then it is deleted with its pods and its Workload.
    eventually("the deactivated cluster is deleted", async || {
        env.ray_clusters().get_opt(CLUSTER).await.expect("an answer").is_none().then_some(())
    })
    .await;
    env.wait_for_event("RayCluster", "Deleted").await;
    eventually("its pods and its Workload are gone", async || {
        let slices = env.workloads().list(&ListParams::default()).await.expect("the slices").items;
        (slices.is_empty() && env.pods_of(CLUSTER).await.is_empty()).then_some(())
    })
    .await;
}
