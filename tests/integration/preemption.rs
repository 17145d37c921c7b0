//! Preemption between clusters: by priority, and by reclaiming borrowed quota.

use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use sluice_api::condition;
use sluice_api::kueue::scheduling_gate::is_gated;
use sluice_api::kueue::{Workload, WorkloadPriorityClass};
use sluice_queue::partial_preemption::PARTIALLY_PREEMPTED;

use crate::rayclusters;
use sluice_testkit::history::Recorder;
use sluice_testkit::objects::{QUEUE, QUEUE_SAMPLE, SERVICE};
use sluice_testkit::quotas::{cohort, local_queue};
use sluice_testkit::{TestEnv, eventually, eventually_or_err, invariants, next_second};

/// Returns a cluster that uses all of the sample queue's quota.
fn cluster(name: &str, queue: &str, class: Option<&str>) -> String {
    let labels = class.map(|class| format!("\n    kueue.x-k8s.io/priority-class: {class}")).unwrap_or_default();
    rayclusters::cluster_manifest()
        .replace(&format!("name: {}\n", rayclusters::CLUSTER), &format!("name: {name}\n"))
        .replace("kueue.x-k8s.io/queue-name: user-queue", &format!("kueue.x-k8s.io/queue-name: {queue}{labels}"))
}

async fn apply_priority_class(env: &TestEnv, name: &str, value: i32) {
    let class = json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass", "metadata": {"name": name}, "value": value});
    env.apply_object(class).await;
}

/// Waits until a cluster is admitted and has all of its pods.
async fn wait_until_running(env: &TestEnv, name: &str) {
    eventually_or_err(&format!("cluster {name} runs"), async || {
        let status = env.ray_clusters().get(name).await.expect("the cluster").status.unwrap_or_default();
        let is = |kind| condition::is_true(&status.conditions, kind);
        let pods = env.pods_of(name).await.len();
        let all = is("RayClusterProvisioned") && is("sluice.dev/Admitted") && pods == 2;
        if all { Ok(()) } else { Err(format!("but has {pods} pods and {:?}", status.conditions)) }
    })
    .await;
}

/// Waits until a cluster has no pods and no quota. Returns the message of its condition.
async fn wait_until_stopped(env: &TestEnv, name: &str) -> String {
    wait_until_pending(env, name, "").await
}

/// Waits until a cluster has no pods and no quota, and reports a cause with this text. Returns the
/// message of its condition.
async fn wait_until_pending(env: &TestEnv, name: &str, cause: &str) -> String {
    eventually_or_err(&format!("cluster {name} is stopped: {cause}"), async || {
        let status = env.ray_clusters().get(name).await.expect("the cluster").status.unwrap_or_default();
        let pods = env.pods_of(name).await.len();
        let holds = slice_of(env, name)
            .await
            .is_some_and(|slice| condition::is_true(&slice.status.unwrap_or_default().conditions, "QuotaReserved"));
        let admitted = condition::get(&status.conditions, "sluice.dev/Admitted");
        match admitted.filter(|found| found.status == "False" && pods == 0 && !holds) {
            Some(found) if found.message.contains(cause) => Ok(format!("{}: {}", found.reason, found.message)),
            _ => Err(format!("but has {pods} pods, holds quota: {holds}, and {:?}", status.conditions)),
        }
    })
    .await
}

/// Returns the newest slice of a cluster.
async fn slice_of(env: &TestEnv, cluster: &str) -> Option<Workload> {
    let slices = env.workloads().list(&ListParams::default()).await.expect("the slices").items;
    slices.into_iter().rfind(|slice| slice.owner_references().iter().any(|owner| owner.name == cluster))
}

/// Waits until the slice of a cluster is preempted with this reason.
async fn wait_until_preempted(env: &TestEnv, cluster: &str, reason: &str) {
    eventually_or_err(&format!("the slice of {cluster} was preempted"), async || {
        let Some(slice) = slice_of(env, cluster).await else { return Err("but there is none".to_owned()) };
        let conditions = slice.status.unwrap_or_default().conditions;
        let found = condition::get(&conditions, "Preempted").filter(|found| found.reason == reason);
        found.map(drop).ok_or_else(|| format!("but {conditions:?}"))
    })
    .await;
}

async fn wait_for_priority(env: &TestEnv, cluster: &str, class: &str, value: i32) {
    eventually_or_err(&format!("the slice of {cluster} has priority {value}"), async || {
        let Some(slice) = slice_of(env, cluster).await else { return Err("but there is none".to_owned()) };
        let named = slice.spec.priority_class_ref.as_ref().map(|class| class.name.as_str());
        let fits = slice.spec.priority == Some(value) && named == Some(class);
        if fits { Ok(()) } else { Err(format!("but {:?} {named:?}", slice.spec.priority)) }
    })
    .await;
}

async fn pod_names(env: &TestEnv, cluster: &str) -> Vec<String> {
    env.pods_of(cluster).await.iter().map(ResourceExt::name_any).collect()
}

async fn check_invariants(recorder: &Recorder) {
    let breaches = invariants::violations(&recorder.history().await);
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
}

async fn change_queue(env: &TestEnv, spec: Value) {
    env.patch_queue(QUEUE, spec).await;
}

#[tokio::test]
async fn cluster_preempts_lower_priority_cluster_which_is_readmitted_later() {
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let _manager = env.manager().await;
    env.apply(QUEUE_SAMPLE).await.expect("the queue");
    change_queue(&env, json!({"preemption": {"withinClusterQueue": "LowerPriority"}})).await;
    apply_priority_class(&env, "low", 1).await;
    apply_priority_class(&env, "high", 100).await;
    env.apply(&cluster("humble", "user-queue", Some("low"))).await.expect("a cluster");
    wait_until_running(&env, "humble").await;
    wait_for_priority(&env, "humble", "low", 1).await;

    // When a cluster of higher priority is created, the first is preempted, and the other starts
    // only after its pods are gone.
    env.apply(&cluster("proud", "user-queue", Some("high"))).await.expect("a cluster");
    wait_until_running(&env, "proud").await;
    wait_until_preempted(&env, "humble", "InClusterQueue").await;
    wait_until_pending(&env, "humble", "cpu").await;

    env.ray_clusters().delete("proud", &DeleteParams::default()).await.expect("the cluster is deleted");
    wait_until_running(&env, "humble").await;

    // When the priority class label of a pending cluster changes, its priority follows.
    env.apply(&cluster("rising", "user-queue", Some("low"))).await.expect("a cluster");
    wait_until_stopped(&env, "rising").await;
    env.apply(&cluster("rising", "user-queue", Some("high"))).await.expect("another class");
    wait_for_priority(&env, "rising", "high", 100).await;
    wait_until_running(&env, "rising").await;
    wait_until_stopped(&env, "humble").await;

    // When the value of a class is reduced, its running cluster is preempted by the one that is now
    // ahead.
    let classes: Api<WorkloadPriorityClass> = Api::all(env.client.clone());
    let nothing = Patch::Merge(json!({"value": 0}));
    classes.patch("high", &PatchParams::default(), &nothing).await.expect("the class is changed");
    wait_for_priority(&env, "rising", "high", 0).await;
    wait_until_running(&env, "humble").await;
    wait_until_stopped(&env, "rising").await;

    for name in ["humble", "rising"] {
        env.ray_clusters().delete(name, &DeleteParams::default()).await.expect("the cluster is deleted");
    }
    env.wait_until_empty().await;
    check_invariants(&recorder).await;
}

#[tokio::test]
async fn missing_priority_class_is_reported_until_it_exists() {
    let env = TestEnv::start().await;
    let _manager = env.manager().await;
    env.apply(QUEUE_SAMPLE).await.expect("the queue");
    env.apply(&cluster("early", "user-queue", Some("soon"))).await.expect("a cluster");

    let message = wait_until_stopped(&env, "early").await;
    assert!(message.contains("kueue.x-k8s.io/priority-class") && message.contains("\"soon\""), "{message}");

    apply_priority_class(&env, "soon", 5).await;
    wait_until_running(&env, "early").await;
    wait_for_priority(&env, "early", "soon", 5).await;
}

#[tokio::test]
async fn borrowed_quota_is_reclaimed_from_the_newest_workload() {
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let _manager = env.manager().await;
    env.apply_object(cohort("all", None, json!([]))).await;
    for (queue, preemption) in [("team-a", json!({})), ("team-b", json!({"reclaimWithinCohort": "Any"}))] {
        env.apply(&QUEUE_SAMPLE.replace("team-a", queue).replace("user-queue", queue)).await.expect("a queue");
        env.patch_queue(queue, json!({"cohortName": "all", "preemption": preemption})).await;
        env.apply_object(local_queue(queue)).await;
    }

    // Two clusters of one team: the second borrows the other team's unused quota.
    env.apply(&cluster("own", "team-a", None)).await.expect("a cluster");
    wait_until_running(&env, "own").await;
    next_second().await;
    env.apply(&cluster("borrower", "team-a", None)).await.expect("a cluster");
    wait_until_running(&env, "borrower").await;

    // When the other team needs it, it is reclaimed, and the cluster within its nominal quota keeps
    // running.
    env.apply(&cluster("owner", "team-b", None)).await.expect("a cluster");
    wait_until_running(&env, "owner").await;
    wait_until_preempted(&env, "borrower", "InCohortReclamation").await;
    wait_until_pending(&env, "borrower", "cohort all").await;
    wait_until_running(&env, "own").await;

    // When the owner is finished, the borrower is readmitted.
    env.ray_clusters().delete("owner", &DeleteParams::default()).await.expect("the cluster is deleted");
    wait_until_running(&env, "borrower").await;
    check_invariants(&recorder).await;
}

/// Returns reason and message of the first condition of this type and status of any slice.
async fn find_slice_condition(env: &TestEnv, condition: &str, status: &str) -> Option<(String, String)> {
    let slices = env.workloads().list(&ListParams::default()).await.expect("the slices").items;
    let mut conditions = slices.into_iter().flat_map(|slice| slice.status.unwrap_or_default().conditions);
    let found = conditions.find(|found| found.type_ == condition && found.status == status)?;
    Some((found.reason, found.message))
}

#[tokio::test]
async fn preemption_stops_the_upgrade_of_a_service_before_the_active_cluster() {
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let _manager = env.manager().await;
    env.apply_samples().await;
    change_queue(&env, json!({"preemption": {"withinClusterQueue": "LowerPriority"}})).await;
    env.set_quota("2", "4Gi").await;
    apply_priority_class(&env, "high", 100).await;
    let serving = env.wait_until_serving("2.52.0").await;
    let pods = pod_names(&env, &serving).await;

    // Given an admitted upgrade that is not ready yet,
    let never = json!({"template": {"metadata": {"annotations": {"testenv.sluice.dev/phase": "never-ready"}}}});
    let upgrade = json!({"spec": {"rayClusterConfig": {"rayVersion": "2.53.0", "headGroupSpec": never}}});
    env.ray_services().patch(SERVICE, &PatchParams::default(), &Patch::Merge(upgrade)).await.expect("the upgrade");
    let pending = eventually("the upgrade has its pods", async || {
        let clusters = env.ray_clusters().list(&ListParams::default()).await.expect("the clusters").items;
        let pending = clusters.iter().map(ResourceExt::name_any).find(|name| *name != serving)?;
        (env.pods_of(&pending).await.len() == 2).then_some(pending)
    })
    .await;

    // when a cluster of higher priority is created, the upgrade is stopped and pending, its message
    // names the preemptor, and the active cluster is unchanged.
    env.apply(&cluster("proud", "user-queue", Some("high"))).await.expect("a cluster");
    wait_until_running(&env, "proud").await;
    assert!(env.pods_of(&pending).await.is_empty());
    assert_eq!(pod_names(&env, &serving).await, pods);
    let (waiting, message) = env.wait_for_pending_upgrade().await;
    assert_eq!(waiting, pending);
    let why = format!("upgrade to {pending} is pending in LocalQueue user-queue ({serving} keeps serving): ");
    assert!(message.starts_with(&why), "{message}");
    let (reason, _) =
        find_slice_condition(&env, PARTIALLY_PREEMPTED, "False").await.expect("the slice was partially preempted");
    assert_eq!(reason, "Released");
    assert_eq!(find_slice_condition(&env, "Evicted", "True").await, None);
    let note = env.wait_for_event("RayService", "PartiallyPreempted").await;
    let why = format!("{pending} is stopping ({serving} keeps running). For workload default/raycluster-proud-");
    assert!(note.starts_with(&why), "{note}");

    // When that cluster is deleted, the upgrade continues.
    env.ray_clusters().delete("proud", &DeleteParams::default()).await.expect("the cluster is deleted");
    eventually("the upgrade has its pods again", async || (env.pods_of(&pending).await.len() == 2).then_some(())).await;
    assert_eq!(pod_names(&env, &serving).await, pods);
    check_invariants(&recorder).await;
}

#[tokio::test]
async fn preemption_scales_down_an_elastic_cluster_before_evicting_it() {
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let _manager = env.manager().await;
    env.apply(QUEUE_SAMPLE).await.expect("the queue");
    change_queue(&env, json!({"preemption": {"withinClusterQueue": "LowerPriority"}})).await;
    // Quota for exactly three workers and a head with the autoscaler container.
    env.set_quota("2500m", "5Gi").await;
    apply_priority_class(&env, "high", 100).await;
    let elastic = cluster("elastic", "user-queue", None).replace("replicas: 1", "replicas: 3");
    let elastic = elastic.replace("spec:\n  rayVersion", "spec:\n  enableInTreeAutoscaling: true\n  rayVersion");
    env.apply(&elastic).await.expect("a cluster");
    eventually("it runs", async || (env.pods_of("elastic").await.len() == 4).then_some(())).await;

    // When a cluster of higher priority is created, it loses two workers, whose replacements are
    // gated.
    env.apply(&cluster("proud", "user-queue", Some("high"))).await.expect("a cluster");
    wait_until_running(&env, "proud").await;
    let running = async || {
        let pods = env.pods_of("elastic").await;
        (pods.iter().filter(|pod| !is_gated(pod)).count(), pods.len())
    };
    eventually("two workers are gated", async || (running().await == (2, 4)).then_some(())).await;
    assert_eq!(find_slice_condition(&env, "Evicted", "True").await, None);

    env.ray_clusters().delete("proud", &DeleteParams::default()).await.expect("the cluster is deleted");
    eventually("all workers run again", async || (running().await == (4, 4)).then_some(())).await;
    check_invariants(&recorder).await;
}
