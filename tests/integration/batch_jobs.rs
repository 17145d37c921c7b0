//! Queued batch/v1 Jobs, run by kube-controller-manager.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use sluice_api::condition;
use sluice_api::kueue::scheduling_gate::{has_gate, is_gated};

use crate::admission_policies::webhook::start_manager_and_wait_for_webhook;
use sluice_testkit::history::Recorder;
use sluice_testkit::objects::NAMESPACE;
use sluice_testkit::quotas::{cpu_quota, resource_flavor};
use sluice_testkit::{Manager, TestEnv, eventually, eventually_or_err, invariants};

const QUEUE: &str = "jobs";

/// Returns a queued Job whose pods request 1 CPU each.
fn job(name: &str, more: Value) -> Job {
    let container = json!({"name": "work", "image": "work", "resources": {"requests": {"cpu": "1"}}});
    let mut spec = json!({"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}});
    spec.as_object_mut().expect("a spec").extend(more.as_object().cloned().unwrap_or_default());
    let meta = json!({"name": name, "labels": {"kueue.x-k8s.io/queue-name": QUEUE}});
    serde_json::from_value(json!({"metadata": meta, "spec": spec})).expect("a Job")
}

/// Starts a manager with this configuration file.
async fn manager_with_configuration(env: &TestEnv, configuration: &str) -> Manager {
    let file = env.dir.join("configuration.yaml");
    std::fs::write(&file, configuration).expect("a file");
    env.manager_with(&[&format!("--config={}", file.display())]).await
}

async fn create(env: &TestEnv, job: &Job) {
    env.jobs().create(&PostParams::default(), job).await.expect("a Job");
}

async fn pods(env: &TestEnv, job: &str) -> Vec<Pod> {
    let of_job = ListParams::default().labels(&format!("batch.kubernetes.io/job-name={job}"));
    let pods: Api<Pod> = Api::namespaced(env.client.clone(), NAMESPACE);
    pods.list(&of_job).await.expect("its pods").items
}

/// Waits until this many pods of a Job run and this many are gated.
async fn wait_for_pods(env: &TestEnv, job: &str, running: usize, waiting: usize) {
    eventually_or_err(&format!("Job {job} has {running} running and {waiting} gated pods"), async || {
        let active = pods(env, job).await.into_iter().filter(|pod| phase(pod) != "Succeeded");
        let (gated, others): (Vec<_>, Vec<_>) = active.partition(is_gated);
        let run = others.iter().filter(|pod| phase(pod) == "Running").count();
        match (run, others.len() - run, gated.len()) {
            (run, 0, gated) if run == running && gated == waiting => Ok(()),
            found => Err(format!("(running, starting, gated) = {found:?}")),
        }
    })
    .await;
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Completes this many running pods, as soon as there are so many that are not being deleted.
async fn complete_pods(env: &TestEnv, job: &str, count: usize) {
    let api: Api<Pod> = Api::namespaced(env.client.clone(), NAMESPACE);
    let done = Patch::Merge(json!({"metadata": {"annotations": {"testenv.sluice.dev/phase": "succeeded"}}}));
    let is_running = |pod: &Pod| phase(pod) == "Running" && pod.metadata.deletion_timestamp.is_none();
    let running = eventually_or_err(&format!("{count} pods of Job {job} run"), async || {
        let running: Vec<Pod> = pods(env, job).await.into_iter().filter(is_running).collect();
        if running.len() >= count { Ok(running) } else { Err(format!("{} do", running.len())) }
    })
    .await;
    for pod in running.into_iter().take(count) {
        api.patch(&pod.name_any(), &PatchParams::default(), &done).await.expect("the pod is done");
    }
}

/// Waits until a Job that was created without the webhook is admitted and starts gated pods. Those
/// that it started before have been deleted, or are covered.
async fn wait_until_unsuspended(env: &TestEnv, job: &str) {
    eventually(&format!("Job {job} is unsuspended with a gated template"), async || {
        let spec = env.jobs().get(job).await.expect("the Job").spec?;
        (spec.suspend == Some(false) && spec.template.spec.as_ref().is_some_and(has_gate)).then_some(())
    })
    .await;
}

async fn patch_job(env: &TestEnv, job: &str, patch: Value) -> Result<Job, kube::Error> {
    env.jobs().patch(job, &PatchParams::default(), &Patch::Merge(patch)).await
}

/// Returns status, reason and message of a Job's admission condition.
async fn admission_condition(env: &TestEnv, job: &str) -> Option<(String, String, String)> {
    let status = env.jobs().get(job).await.expect("the Job").status?;
    let found = status.conditions?.into_iter().find(|found| found.type_ == "sluice.dev/Admitted")?;
    Some((found.status, found.reason?, found.message?))
}

async fn queue(env: &TestEnv, nominal: &str) {
    env.apply_object(resource_flavor()).await;
    let preemption = json!({"preemption": {"withinClusterQueue": "LowerPriority"}});
    env.apply_queue(QUEUE, None, cpu_quota(nominal, json!({})), preemption).await;
}

async fn resize(env: &TestEnv, nominal: &str) {
    env.patch_queue(QUEUE, json!({"resourceGroups": cpu_quota(nominal, json!({}))})).await;
}

#[tokio::test]
async fn job_stays_within_its_quota_over_its_lifecycle() {
    // Given too little quota, a Job is pending without a pod and reports why; only Sluice may start
    // it;
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let (_manager, _) = start_manager_and_wait_for_webhook(&env, &[]).await;
    queue(&env, "1").await;
    create(&env, &job("sum", json!({"parallelism": 2, "completions": 4}))).await;
    let (_, _, why) = eventually("the Job is pending", async || {
        admission_condition(&env, "sum").await.filter(|says| says.0 == "False")
    })
    .await;
    assert!(why.contains("cpu"), "{why}");
    assert!(pods(&env, "sum").await.is_empty());
    let opened = Patch::Merge(json!({"spec": {"suspend": false}}));
    let refusal = eventually("the policy is enforced", async || {
        let dry_run = PatchParams { dry_run: true, ..PatchParams::default() };
        env.jobs().patch("sum", &dry_run, &opened).await.err().map(|error| error.to_string())
    })
    .await;
    assert!(refusal.contains("spec.suspend of a queued Job cannot be set to false by hand"), "{refusal}");

    // with enough it runs; more parallelism waits for quota, pod by pod;
    resize(&env, "2").await;
    wait_for_pods(&env, "sum", 2, 0).await;
    env.wait_for_reserved_cpu_in(QUEUE, "2").await;
    patch_job(&env, "sum", json!({"spec": {"parallelism": 4}})).await.expect("more parallelism");
    wait_for_pods(&env, "sum", 2, 2).await;
    resize(&env, "3").await;
    wait_for_pods(&env, "sum", 3, 1).await;
    env.wait_for_reserved_cpu_in(QUEUE, "3").await;

    // its quota is released with its pods,
    complete_pods(&env, "sum", 2).await;
    wait_for_pods(&env, "sum", 2, 0).await;
    env.wait_for_reserved_cpu_in(QUEUE, "2").await;

    // and completely when it is finished.
    complete_pods(&env, "sum", 2).await;
    eventually("the slice is finished", async || {
        let slices = env.workloads().list(&ListParams::default()).await.expect("the slices").items;
        let [slice] = slices.as_slice() else { return None };
        let conditions = slice.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        condition::get(conditions, "Finished").filter(|found| found.reason == "Succeeded").map(drop)
    })
    .await;
    env.wait_for_reserved_cpu_in(QUEUE, "0").await;
    env.jobs().delete("sum", &DeleteParams::background()).await.expect("a deletion");
    eventually("nothing is left", async || {
        let slices = env.workloads().list(&ListParams::default()).await.expect("the slices").items;
        (slices.is_empty() && pods(&env, "sum").await.is_empty()).then_some(())
    })
    .await;
    let breaches = invariants::violations(&recorder.history().await);
    assert!(breaches.is_empty(), "{breaches:#?}");
}

#[tokio::test]
async fn work_queue_releases_quota_as_its_pods_succeed() {
    // Given a Job without completions that uses all quota, and another one that is pending,
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let _manager = env.manager().await;
    queue(&env, "3").await;
    create(&env, &job("drain", json!({"parallelism": 3, "suspend": true}))).await;
    wait_for_pods(&env, "drain", 3, 0).await;
    create(&env, &job("next", json!({"parallelism": 2, "suspend": true}))).await;

    // when its pods succeed one by one, then each releases its quota, and no other takes its place;
    complete_pods(&env, "drain", 1).await;
    wait_for_pods(&env, "drain", 2, 0).await;
    env.wait_for_reserved_cpu_in(QUEUE, "2").await;
    complete_pods(&env, "drain", 1).await;
    wait_for_pods(&env, "next", 2, 0).await;
    wait_for_pods(&env, "drain", 1, 0).await;
    env.wait_for_reserved_cpu_in(QUEUE, "3").await;

    // and the Job is complete with the last one.
    complete_pods(&env, "drain", 1).await;
    env.wait_for_reserved_cpu_in(QUEUE, "2").await;
    let drain = env.jobs().get("drain").await.expect("the Job").status.expect("a status");
    assert_eq!(drain.succeeded, Some(3));
    let breaches = invariants::violations(&recorder.history().await);
    assert!(breaches.is_empty(), "{breaches:#?}");
}

/// Evicts jobs whose pods are not ready for five seconds.
const RECOVERY_CONFIG: &str = "
apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
waitForPodsReady:
  timeout: 5m
  recoveryTimeout: 5s
";
/// Time in which a job that counts as not ready would have been evicted.
const PAST_RECOVERY: Duration = Duration::from_secs(15);

#[tokio::test]
async fn job_is_not_evicted_because_some_of_its_pods_have_succeeded() {
    // Given a recovery timeout, and two Jobs, one of them without completions,
    let env = TestEnv::start().await;
    let _manager = manager_with_configuration(&env, RECOVERY_CONFIG).await;
    queue(&env, "6").await;
    let names = ["drain", "fixed"];
    create(&env, &job("drain", json!({"parallelism": 3, "suspend": true}))).await;
    create(&env, &job("fixed", json!({"parallelism": 3, "completions": 3, "suspend": true}))).await;
    for name in names {
        wait_for_pods(&env, name, 3, 0).await;
    }

    // when a pod of each succeeds, and is then deleted,
    let mut left: Vec<String> = Vec::new();
    for name in names {
        complete_pods(&env, name, 1).await;
        wait_for_pods(&env, name, 2, 0).await;
        for pod in pods(&env, name).await {
            if phase(&pod) == "Succeeded" {
                env.pods().delete(&pod.name_any(), &DeleteParams::background()).await.expect("a deletion");
            } else {
                left.extend(pod.uid());
            }
        }
    }
    tokio::time::sleep(PAST_RECOVERY).await;

    // then the others still run, and neither Job was evicted or finished.
    for workload in env.workloads().list(&ListParams::default()).await.expect("the Workloads").items {
        let conditions = workload.conditions();
        assert!(condition::is_true(conditions, "PodsReady"), "{conditions:#?}");
        assert!(condition::get(conditions, "Evicted").is_none(), "{conditions:#?}");
    }
    let mut running = Vec::new();
    for name in names {
        wait_for_pods(&env, name, 2, 0).await;
        running.extend(pods(&env, name).await.iter().filter_map(ResourceExt::uid));
    }
    assert_eq!(running.into_iter().collect::<BTreeSet<_>>(), left.into_iter().collect());
}

/// Evicts jobs with a pod that has no node for five seconds.
const UNSCHEDULED_CONFIG: &str = "
apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
waitForPodsReady:
  timeout: 5m
  unscheduledTimeout: 5s
  requeuingStrategy:
    backoffBaseSeconds: 1
    backoffMaxSeconds: 1
";

#[tokio::test]
async fn job_whose_pods_get_no_node_makes_way_and_starts_once_there_is_one() {
    // Given a Job that uses all quota for nodes that do not exist, and another one that is pending,
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let _manager = manager_with_configuration(&env, UNSCHEDULED_CONFIG).await;
    queue(&env, "2").await;
    let mut lost = json!(job("lost", json!({"parallelism": 2, "suspend": true})));
    lost["spec"]["template"]["spec"]["nodeSelector"] = json!({"pool": "new"});
    create(&env, &serde_json::from_value(lost).expect("a Job")).await;
    env.wait_for_reserved_cpu_in(QUEUE, "2").await;
    create(&env, &job("next", json!({"parallelism": 2, "suspend": true}))).await;

    // when the timeout ends, then the first one gives way, and says why;
    wait_for_pods(&env, "next", 2, 0).await;
    let workloads = env.workloads().list(&ListParams::default()).await.expect("the Workloads").items;
    let evicted = workloads.iter().find(|workload| workload.name_any().starts_with("job-lost-")).expect("its Workload");
    let stats = evicted.status.as_ref().and_then(|status| status.scheduling_stats.as_ref()).expect("statistics");
    let cause = &stats.evictions[0];
    assert_eq!((&*cause.reason, &*cause.underlying_cause), ("PodsReadyTimeout", "WaitForScheduling"));

    // and once there are such nodes and quota, it runs.
    env.jobs().delete("next", &DeleteParams::background()).await.expect("a deletion");
    let nodes: Api<Node> = Api::all(env.client.clone());
    let label = Patch::Merge(json!({"metadata": {"labels": {"pool": "new"}}}));
    for node in nodes.list(&ListParams::default()).await.expect("the nodes") {
        nodes.patch(&node.name_any(), &PatchParams::default(), &label).await.expect("a label");
    }
    wait_for_pods(&env, "lost", 2, 0).await;
    env.wait_for_reserved_cpu_in(QUEUE, "2").await;
    let breaches = invariants::violations(&recorder.history().await);
    assert!(breaches.is_empty(), "{breaches:#?}");
}

#[tokio::test]
async fn job_scaled_to_zero_holds_no_quota_until_it_is_scaled_up() {
    // Given a Job that uses all quota, and another one that is pending,
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let _manager = env.manager().await;
    queue(&env, "4").await;
    create(&env, &job("sweep", json!({"parallelism": 4, "suspend": true}))).await;
    wait_for_pods(&env, "sweep", 4, 0).await;
    create(&env, &job("next", json!({"parallelism": 2, "suspend": true}))).await;

    // when the first one is scaled to zero, then the other one runs, and the first one says why it does not;
    patch_job(&env, "sweep", json!({"spec": {"parallelism": 0}})).await.expect("no parallelism");
    wait_for_pods(&env, "next", 2, 0).await;
    wait_for_pods(&env, "sweep", 0, 0).await;
    env.wait_for_reserved_cpu_in(QUEUE, "2").await;
    eventually("the Job is reported as scaled to zero", async || {
        admission_condition(&env, "sweep").await.filter(|(_, _, message)| message.starts_with("Scaled to zero"))
    })
    .await;

    // and scaled up again, it runs within the quota.
    patch_job(&env, "sweep", json!({"spec": {"parallelism": 2}})).await.expect("parallelism");
    wait_for_pods(&env, "sweep", 2, 0).await;
    env.wait_for_reserved_cpu_in(QUEUE, "4").await;
    let breaches = invariants::violations(&recorder.history().await);
    assert!(breaches.is_empty(), "{breaches:#?}");
}

#[tokio::test]
async fn running_job_is_suspended_until_admitted_without_the_webhook_and_can_be_preempted() {
    // Given a Job that already runs before Sluice starts,
    let env = TestEnv::start().await;
    create(&env, &job("early", json!({"parallelism": 2}))).await;
    wait_for_pods(&env, "early", 2, 0).await;

    // when Sluice starts, then the Job is suspended until it is admitted, and then runs with
    // covered pods.
    let _manager = env.manager().await;
    queue(&env, "1").await;
    wait_for_pods(&env, "early", 0, 0).await;
    resize(&env, "2").await;
    wait_for_pods(&env, "early", 2, 0).await;
    env.wait_for_reserved_cpu_in(QUEUE, "2").await;

    // It is preempted by a Job of higher priority, and starts again.
    env.apply_object(json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass", "metadata": {"name": "high"}, "value": 100,
    }))
    .await;
    let mut proud = job("proud", json!({"parallelism": 1, "completions": 1}));
    proud.labels_mut().insert("kueue.x-k8s.io/priority-class".to_owned(), "high".to_owned());
    create(&env, &proud).await;
    wait_until_unsuspended(&env, "proud").await;
    wait_for_pods(&env, "proud", 1, 0).await;
    wait_for_pods(&env, "early", 0, 0).await;
    complete_pods(&env, "proud", 1).await;
    wait_for_pods(&env, "early", 2, 0).await;

    // A Job with partial admission starts with as many pods as fit, and scales up.
    resize(&env, "4").await;
    let mut modest = job("modest", json!({"parallelism": 4}));
    modest.annotations_mut().insert("kueue.x-k8s.io/job-min-parallelism".to_owned(), "1".to_owned());
    create(&env, &modest).await;
    wait_for_pods(&env, "modest", 2, 2).await;
    env.jobs().delete("early", &DeleteParams::background()).await.expect("a deletion");
    wait_for_pods(&env, "modest", 4, 0).await;
    env.wait_for_reserved_cpu_in(QUEUE, "4").await;
}
