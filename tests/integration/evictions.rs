//! Jobs that are evicted and readmitted: a service preempted by another, and a cluster whose pods
//! are not ready in time.

use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams};
use serde_json::json;
use sluice_api::condition;
use sluice_api::kueue::Workload;

use sluice_testkit::history::Recorder;
use sluice_testkit::objects::{QUEUE, QUEUE_SAMPLE, SERVICE, SERVICE_SAMPLE, cluster_name};
use sluice_testkit::{TestEnv, eventually, eventually_or_err, invariants};

/// Returns the only slice of a job.
async fn slice_of(env: &TestEnv, job: &str) -> Option<Workload> {
    let slices = env.workloads().list(&ListParams::default()).await.expect("the slices").items;
    slices.into_iter().find(|slice| slice.owner_references().iter().any(|owner| owner.name == job))
}

/// Waits until a job's slice has a condition with this status and reason.
async fn wait_for_slice_condition(env: &TestEnv, job: &str, kind: &str, status: &str, reason: &str) -> Workload {
    eventually_or_err(&format!("{job} has {kind}={status} {reason}"), async || {
        let Some(slice) = slice_of(env, job).await else { return Err("but has no slice".to_owned()) };
        let conditions = slice.status.clone().unwrap_or_default().conditions;
        let found = condition::get(&conditions, kind);
        let matches_reason = found.is_some_and(|found| found.status == status && found.reason == reason);
        if matches_reason { Ok(slice) } else { Err(format!("but {conditions:?}")) }
    })
    .await
}

/// Waits until a cluster has this many pods.
async fn wait_for_pods(env: &TestEnv, cluster: &str, count: usize) {
    eventually(&format!("{cluster} has {count} pods"), async || {
        (env.pods_of(cluster).await.len() == count).then_some(())
    })
    .await;
}

/// Returns the number of Events about objects of a kind with this reason.
async fn count_events(env: &TestEnv, kind: &str, reason: &str) -> usize {
    let events = kube::Api::<k8s_openapi::api::events::v1::Event>::namespaced(env.client.clone(), "default");
    let events = events.list(&ListParams::default()).await.expect("the events").items;
    let about = |event: &k8s_openapi::api::events::v1::Event| {
        event.regarding.as_ref().and_then(|regarding| regarding.kind.as_deref()) == Some(kind)
    };
    events.iter().filter(|event| about(event) && event.reason.as_deref() == Some(reason)).count()
}

async fn check_invariants(recorder: &Recorder) {
    let breaches = invariants::violations(&recorder.history().await);
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
}

#[tokio::test]
async fn preempted_service_is_readmitted_with_the_same_cluster() {
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let _manager = env.manager().await;
    env.apply(QUEUE_SAMPLE).await.expect("the queue");
    env.patch_queue(QUEUE, json!({"preemption": {"withinClusterQueue": "LowerPriority"}})).await;
    env.apply_object(json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass",
        "metadata": {"name": "high"}, "value": 100,
    }))
    .await;

    // Given a service that uses all of the queue's quota,
    env.apply(SERVICE_SAMPLE).await.expect("the service");
    let cluster = env.wait_until_serving("2.52.0").await;
    let before = slice_of(&env, SERVICE).await.expect("its slice");

    // when one of higher priority is created, it is preempted, and the other one serves.
    let important = SERVICE_SAMPLE.replace("name: fruit\n", "name: bread\n").replace(
        "    kueue.x-k8s.io/queue-name: user-queue",
        "    kueue.x-k8s.io/queue-name: user-queue\n    kueue.x-k8s.io/priority-class: high",
    );
    env.apply(&important).await.expect("the important service");
    let theirs = eventually("the service of higher priority is ready", async || {
        let status = env.ray_services().get("bread").await.expect("the service").status.unwrap_or_default();
        let ready = condition::is_true(&status.conditions, "Ready");
        cluster_name(status.active_service_status.as_ref()).filter(|_| ready)
    })
    .await;
    wait_for_pods(&env, &cluster, 0).await;
    wait_for_pods(&env, &theirs, 2).await;
    let waiting = wait_for_slice_condition(&env, SERVICE, "Preempted", "True", "InClusterQueue").await;
    wait_for_slice_condition(&env, SERVICE, "Requeued", "True", "Preempted").await;
    assert_eq!(waiting.uid(), before.uid(), "it keeps its place in the queue");
    let suspended = env.ray_clusters().get(&cluster).await.expect("its cluster");
    assert_eq!(suspended.spec.suspend, Some(true));
    eventually("both get an Event", async || {
        let (preempted, job) = (
            count_events(&env, "Workload", "EvictedDueToPreempted").await,
            count_events(&env, "RayService", "Preempted").await,
        );
        (preempted == 1 && job == 1).then_some(())
    })
    .await;

    // When that one is deleted, it serves again from the same cluster.
    env.ray_services().delete("bread", &DeleteParams::default()).await.expect("the service is deleted");
    wait_for_pods(&env, &cluster, 2).await;
    assert_eq!(env.wait_until_serving("2.52.0").await, cluster);
    env.wait_for_reserved_cpu("1").await;
    check_invariants(&recorder).await;
}
