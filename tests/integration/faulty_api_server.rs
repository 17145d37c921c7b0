//! Writes fail, watches end, and the manager is killed: nothing is lost, and nothing is admitted
//! twice. `FAULT_SEED=7` sets the seed of the faults, `FAULT_PERCENT=5` the share of writes that
//! fail.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use sluice_api::condition;
use sluice_api::kueue::Workload;
use sluice_api::kueue::scheduling_gate::is_gated;
use tokio::task::JoinSet;

use crate::contention::cpu_held;
use sluice_testkit::fault_proxy::{Fault, FaultOptions, FaultProxy};
use sluice_testkit::history::{Change, Object, Recorder, State};
use sluice_testkit::invariants::{holds_quota, is_finished, object_key, owner_uid, violations};
use sluice_testkit::objects::{NAMESPACE, reserved_amount};
use sluice_testkit::quotas::{cpu_quota, resource_flavor};
use sluice_testkit::{TestEnv, eventually, eventually_or_err};

/// Queue that borrows the quota of the other one.
const BORROWER: &str = "borrower";
/// Queue that reclaims its quota.
const LENDER: &str = "lender";
/// Nominal quota of each queue, in CPUs.
const QUOTA: usize = 4;
/// Number of Jobs of each queue; each requests one CPU.
const JOBS: usize = 30;
/// Number of RayClusters of the lender; each requests one CPU for its head and one for its worker.
const CLUSTERS: usize = 3;
/// Number of pods of a RayCluster.
const PODS_OF_CLUSTER: usize = 2;

#[tokio::test]
async fn nothing_is_lost_or_admitted_twice_while_the_api_server_fails() {
    // Given a manager behind a connection with faults, and two queues of a cohort,
    let options = FaultOptions {
        seed: number_from_env("FAULT_SEED", 1),
        failed_writes: number_from_env("FAULT_PERCENT", 20),
        watch_duration: Duration::from_secs(3)..Duration::from_secs(12),
    };
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let proxy = FaultProxy::start(&env, options).await;
    let manager = env.manager_through(&proxy.kubeconfig, &[]).await;
    apply_queues(&env).await;

    // when the Jobs of one queue borrow all quota, those of the other one and its RayClusters
    // reclaim their part, and the manager is killed while all of them finish,
    let start = Instant::now();
    create_jobs(&env, BORROWER).await;
    wait_for_reserved_cpu(&env, BORROWER, 2 * QUOTA).await;
    for number in 0..CLUSTERS {
        env.apply_object(cluster(number)).await;
    }
    create_jobs(&env, LENDER).await;
    wait_for_reserved_cpu(&env, LENDER, QUOTA).await;
    let mut completions = JoinSet::new();
    completions.spawn(complete_running_pods(env.pods()));
    wait_for_complete_jobs(&env, JOBS).await;
    manager.kill().await;
    let _manager = env.manager_through(&proxy.kubeconfig, &[]).await;
    delete_clusters_once_ready(&env).await;
    let jobs = wait_for_complete_jobs(&env, 2 * JOBS).await;

    // then each Job has succeeded once, and has one Workload, which is finished;
    assert_eq!(jobs.len(), 2 * JOBS);
    let workloads = wait_for_finished_workloads(&env, jobs.len()).await;
    let owners: BTreeSet<String> = workloads.iter().filter_map(owner_uid).collect();
    assert_eq!(owners, jobs.iter().filter_map(ResourceExt::uid).collect());
    wait_for_reported_cpu(&env, "0").await;
    let history = recorder.history().await;
    assert_eq!(lost_workloads(&history, &owners), Vec::<String>::new());

    // no job was admitted twice, some were preempted, and the quota was used up and never exceeded;
    assert_eq!(double_admissions(&history), Vec::<String>::new());
    let breaches = violations(&history);
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
    assert_eq!(max_reserved_milli_cpu(&history), 1000 * 2 * QUOTA);
    let preempted = count_preempted(&history);
    assert!(preempted > 0, "the lender reclaimed its quota");

    // and every fault has occurred.
    let injected = proxy.injected();
    println!("{preempted} preempted, after {} s: {injected:?}", start.elapsed().as_secs());
    for fault in Fault::OF_WRITES.iter().chain(&Fault::OF_WATCHES) {
        assert!(injected.contains_key(fault), "{fault:?} is not among {injected:?}");
    }
}

fn number_from_env<N: FromStr>(name: &str, default: N) -> N {
    let parse = |text: String| text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text}"));
    std::env::var(name).map_or(default, parse)
}

async fn apply_queues(env: &TestEnv) {
    env.apply_object(resource_flavor()).await;
    let reclaim = json!({"preemption": {"reclaimWithinCohort": "Any"}});
    let mut quota = cpu_quota(&QUOTA.to_string(), json!({}));
    // The init container of Ray workers requests memory.
    quota[0]["coveredResources"] = json!(["cpu", "memory"]);
    let memory = json!({"name": "memory", "nominalQuota": "64Gi"});
    quota[0]["flavors"][0]["resources"].as_array_mut().expect("the quotas").push(memory);
    for (queue, preemption) in [(BORROWER, json!({})), (LENDER, reclaim)] {
        env.apply_queue(queue, Some("all"), quota.clone(), preemption).await;
    }
}

/// Returns a container that requests one CPU.
fn container() -> Value {
    json!({"name": "work", "image": "work", "resources": {"requests": {"cpu": "1"}}})
}

/// Creates the Jobs of a queue, suspended: the webhook is not part of the scenario.
async fn create_jobs(env: &TestEnv, queue: &str) {
    for number in 0..JOBS {
        let meta = json!({"name": format!("{queue}-{number}"), "labels": {"kueue.x-k8s.io/queue-name": queue}});
        let template = json!({"spec": {"restartPolicy": "Never", "containers": [container()]}});
        let job = json!({"metadata": meta, "spec": {"suspend": true, "template": template}});
        let job: Job = serde_json::from_value(job).expect("a Job");
        jobs(env).create(&PostParams::default(), &job).await.expect("a Job");
    }
}

fn jobs(env: &TestEnv) -> Api<Job> {
    Api::namespaced(env.client.clone(), NAMESPACE)
}

/// Returns a suspended RayCluster of the lender.
fn cluster(number: usize) -> Value {
    let template = json!({"spec": {"containers": [container()]}});
    let head = json!({"rayStartParams": {}, "template": template});
    let mut workers = head.clone();
    workers["groupName"] = "small".into();
    workers["replicas"] = 1.into();
    json!({
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {
            "name": cluster_name(number), "namespace": NAMESPACE, "labels": {"kueue.x-k8s.io/queue-name": LENDER},
        },
        "spec": {"suspend": true, "rayVersion": "2.52.0", "headGroupSpec": head, "workerGroupSpecs": [workers]},
    })
}

fn cluster_name(number: usize) -> String {
    format!("cluster-{number}")
}

/// Deletes each RayCluster when all of its pods are ready.
async fn delete_clusters_once_ready(env: &TestEnv) {
    for name in (0..CLUSTERS).map(cluster_name) {
        eventually_or_err(&format!("{name} is ready"), async || {
            let status = env.ray_clusters().get(&name).await.expect("the cluster").status.unwrap_or_default();
            let is_ready = condition::is_true(&status.conditions, "RayClusterProvisioned");
            if is_ready { Ok(()) } else { Err(format!("but {:?}", status.conditions)) }
        })
        .await;
        env.ray_clusters().delete(&name, &DeleteParams::default()).await.expect("the cluster is deleted");
    }
    eventually("all clusters are gone", async || {
        env.ray_clusters().list(&ListParams::default()).await.expect("the clusters").items.is_empty().then_some(())
    })
    .await;
}

/// Completes every pod of a Job as soon as it runs.
async fn complete_running_pods(pods: Api<Pod>) {
    let done = Patch::Merge(json!({"metadata": {"annotations": {"testenv.sluice.dev/phase": "succeeded"}}}));
    let of_jobs = watcher::Config::default().labels("batch.kubernetes.io/job-name");
    let mut changes = watcher(pods.clone(), of_jobs).applied_objects().boxed();
    while let Some(pod) = changes.next().await {
        let pod = pod.expect("a pod");
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        if phase != Some("Running") || is_gated(&pod) || pod.metadata.deletion_timestamp.is_some() {
            continue;
        }
        match pods.patch(&pod.name_any(), &PatchParams::default(), &done).await {
            Ok(_) => {}
            // Its Job was preempted in the meantime.
            Err(kube::Error::Api(error)) if error.code == 404 => {}
            Err(error) => panic!("completing {}: {error}", pod.name_any()),
        }
    }
}

/// Waits until Workloads of a queue have reserved this many CPUs.
async fn wait_for_reserved_cpu(env: &TestEnv, queue: &str, cpus: usize) {
    eventually_or_err(&format!("{queue} reserves {cpus} CPUs"), async || {
        let workloads = env.workloads().list(&ListParams::default()).await.expect("the Workloads").items;
        let holders =
            workloads.iter().filter(|workload| holds_quota(workload) && cluster_queue(workload) == Some(queue));
        let reserved: usize = holders.map(cpu_held).sum();
        if reserved >= 1000 * cpus { Ok(()) } else { Err(format!("but {reserved}m")) }
    })
    .await;
}

fn cluster_queue(workload: &Workload) -> Option<&str> {
    Some(workload.status.as_ref()?.admission.as_ref()?.cluster_queue.as_str())
}

/// Waits until at least this many Jobs have succeeded. Returns them.
async fn wait_for_complete_jobs(env: &TestEnv, count: usize) -> Vec<Job> {
    eventually_or_err(&format!("{count} Jobs are complete"), async || {
        let mut found = jobs(env).list(&ListParams::default()).await.expect("the Jobs").items;
        found.retain(is_complete);
        if found.len() >= count { Ok(found) } else { Err(format!("but {} are", found.len())) }
    })
    .await
}

fn is_complete(job: &Job) -> bool {
    let Some(status) = &job.status else { return false };
    let mut conditions = status.conditions.iter().flatten();
    status.succeeded == Some(1) && conditions.any(|found| found.type_ == "Complete" && found.status == "True")
}

/// Waits until the only Workloads are this many finished ones. Returns them.
async fn wait_for_finished_workloads(env: &TestEnv, count: usize) -> Vec<Workload> {
    eventually_or_err(&format!("{count} Workloads are finished"), async || {
        let found = env.workloads().list(&ListParams::default()).await.expect("the Workloads").items;
        let finished = found.iter().filter(|workload| is_finished(workload)).count();
        if (found.len(), finished) == (count, count) {
            Ok(found)
        } else {
            Err(format!("but {finished} of {}", found.len()))
        }
    })
    .await
}

/// Waits until the status of both queues reports this much reserved CPU.
async fn wait_for_reported_cpu(env: &TestEnv, cpu: &str) {
    for name in [BORROWER, LENDER] {
        eventually_or_err(&format!("{name} reports {cpu} reserved CPU"), async || {
            let queue = env.cluster_queues().get(name).await.expect("the queue");
            let reported = reserved_amount(&queue, "cpu");
            if reported == cpu { Ok(()) } else { Err(format!("but {reported}")) }
        })
        .await;
    }
}

/// Returns the Workloads of these jobs that were deleted.
fn lost_workloads(history: &[Change], jobs: &BTreeSet<String>) -> Vec<String> {
    let deleted = history.iter().filter(|change| change.deleted).filter_map(|change| match &change.object {
        Object::Workload(workload) => Some(workload),
        _ => None,
    });
    deleted.filter(|workload| owner_uid(*workload).is_some_and(|job| jobs.contains(&job))).map(object_key).collect()
}

/// Returns the jobs that were admitted while they held quota, and those that had more pods than
/// their admissions allow.
fn double_admissions(history: &[Change]) -> Vec<String> {
    let mut holders: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut admissions: BTreeMap<String, usize> = BTreeMap::new();
    let mut pods: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut problems = Vec::new();
    for change in history {
        match &change.object {
            Object::Workload(workload) => {
                let job = owner_uid(workload).expect("the uid of its job");
                let (key, holding) = (object_key(workload), holders.entry(job.clone()).or_default());
                if change.deleted || !holds_quota(workload) {
                    holding.remove(&key);
                } else if holding.insert(key) {
                    *admissions.entry(job.clone()).or_default() += 1;
                    if holding.len() > 1 {
                        problems.push(format!("at version {}: {job} holds quota by {holding:?}", change.version));
                    }
                }
            }
            Object::Pod(pod) => {
                let owner = owner_uid(pod).expect("the uid of its job");
                pods.entry(owner).or_default().insert(pod.name_any());
            }
            _ => {}
        }
    }
    for (job, pods) in pods {
        let each = if pods.iter().all(|pod| pod.starts_with("cluster-")) { PODS_OF_CLUSTER } else { 1 };
        let admitted = admissions.get(&job).copied().unwrap_or_default();
        if pods.len() > each * admitted {
            problems.push(format!("{job} was admitted {admitted} times, and had the pods {pods:?}"));
        }
    }
    problems
}

/// Returns the maximum of the CPU that all Workloads together had reserved at a time, in milli-CPU.
fn max_reserved_milli_cpu(history: &[Change]) -> usize {
    let (mut state, mut most) = (State::default(), 0);
    for change in history {
        state.apply(change);
        if matches!(change.object, Object::Workload(_)) {
            let holders = state.workloads.values().filter(|workload| holds_quota(workload));
            most = most.max(holders.map(cpu_held).sum());
        }
    }
    most
}

/// Returns the number of Workloads that were preempted.
fn count_preempted(history: &[Change]) -> usize {
    let preempted = history.iter().filter_map(|change| match &change.object {
        Object::Workload(workload) => {
            let conditions = &workload.status.as_ref()?.conditions;
            condition::is_true(conditions, "Preempted").then(|| object_key(workload))
        }
        _ => None,
    });
    preempted.collect::<BTreeSet<String>>().len()
}
