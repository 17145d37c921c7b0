//! Quota of batch/v1 Jobs follows what the real Job controller keeps active: a table of Jobs, each
//! brought into a state in which the controller creates fewer pods than `parallelism`, or others.

use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use sluice_api::kueue::scheduling_gate::is_gated;
use sluice_api::pod;

use sluice_testkit::history::Recorder;
use sluice_testkit::quotas::{cpu_quota, resource_flavor};
use sluice_testkit::{TestEnv, eventually_or_err, invariants};

const QUEUE: &str = "table";
const INDEX_LABEL: &str = "batch.kubernetes.io/job-completion-index";
const TRACKING_FINALIZER: &str = "batch.kubernetes.io/job-tracking";
/// Time in which the Job controller would create further pods. That it creates none has no event to wait for.
const SETTLED: Duration = Duration::from_secs(5);

/// Event in the life of a Job with running pods.
#[derive(Debug, Clone, Copy)]
enum Event {
    /// So many pods succeed.
    Succeed(usize),
    /// The pod of an index succeeds.
    SucceedIndex(&'static str),
    /// The pod of an index fails.
    FailIndex(&'static str),
    /// A pod fails because its node is drained.
    Disrupt,
    /// The pods that have succeeded are deleted.
    DeleteEnded,
    /// A running pod is deleted, and does not go.
    Linger,
    /// A user suspends the Job, which Sluice resumes, as it is admitted.
    Suspend,
    /// `parallelism` changes.
    Scale(i32),
}
use Event::*;

/// A Job, what happens to it, and the state that the Job controller and the queue then keep.
struct Row {
    name: &'static str,
    spec: Value,
    events: &'static [Event],
    expected: Pods,
}

/// Numbers of pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pods {
    running: usize,
    gated: usize,
    /// Pods that the Workload of the Job holds quota for.
    charged: i32,
}

const fn all(pods: usize) -> Pods {
    Pods { running: pods, gated: 0, charged: pods as i32 }
}

fn table() -> Vec<Row> {
    let row = |name, spec, events, expected| Row { name, spec, events, expected };
    let on_disruption = |action: &str| {
        json!({"parallelism": 3, "podFailurePolicy": {"rules": [
            {"action": action, "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        ]}})
    };
    let indexed = |field: &str, value: Value| json!({"parallelism": 3, "completions": 3, "completionMode": "Indexed", field: value});
    let on_success = json!({"rules": [{"succeededIndexes": "0"}]});
    let of_terminated = |policy: &str| json!({"parallelism": 3, "podReplacementPolicy": policy});
    vec![
        row("work-queue", json!({"parallelism": 3}), &[], all(3)),
        row("drained", json!({"parallelism": 3}), &[Succeed(1)], all(2)),
        row("drained-and-scaled", json!({"parallelism": 3}), &[Succeed(1), Scale(5)], all(2)),
        row("many-remain", json!({"parallelism": 3, "completions": 6}), &[Succeed(2)], all(3)),
        row("few-remain", json!({"parallelism": 3, "completions": 4}), &[Succeed(2)], all(2)),
        row("parallelism-above", json!({"parallelism": 5, "completions": 2}), &[], all(2)),
        row("ended-deleted", json!({"parallelism": 3, "completions": 3}), &[Succeed(1), DeleteEnded], all(2)),
        row("suspended", json!({"parallelism": 3, "completions": 3}), &[Succeed(1), Suspend], all(2)),
        row("scaled-down", json!({"parallelism": 3, "completions": 9}), &[Scale(1)], all(1)),
        row("index-done", indexed("backoffLimit", json!(6)), &[SucceedIndex("1")], all(2)),
        row("index-failed", indexed("backoffLimitPerIndex", json!(0)), &[FailIndex("1")], all(2)),
        row("success-policy", indexed("successPolicy", on_success), &[SucceedIndex("0")], all(0)),
        row("failure-policy", on_disruption("FailJob"), &[Disrupt], all(0)),
        row("failure-ignored", on_disruption("Ignore"), &[Disrupt], all(3)),
        // The pod that terminates uses quota, so the one that replaces it waits behind its gate.
        row("replaced", of_terminated("TerminatingOrFailed"), &[Linger], Pods { running: 2, gated: 1, charged: 3 }),
        row("replaced-once-gone", of_terminated("Failed"), &[Linger], Pods { running: 2, gated: 0, charged: 3 }),
    ]
}

impl Row {
    async fn play(&self, env: &TestEnv) {
        let container = json!({"name": "work", "image": "work", "resources": {"requests": {"cpu": "1"}}});
        let mut spec =
            json!({"suspend": true, "template": {"spec": {"restartPolicy": "Never", "containers": [container]}}});
        spec.as_object_mut().expect("a spec").extend(self.spec.as_object().cloned().expect("a spec"));
        let metadata = json!({"name": self.name, "labels": {"kueue.x-k8s.io/queue-name": QUEUE}});
        let job: Job = serde_json::from_value(json!({"metadata": metadata, "spec": spec})).expect("a Job");
        let started = job.spec.as_ref().expect("a spec");
        let most = started.parallelism.expect("a number").min(started.completions.unwrap_or(i32::MAX));
        env.jobs().create(&PostParams::default(), &job).await.expect("a Job");
        self.wait_for(env, all(usize::try_from(most).expect("a few"))).await;
        for event in self.events {
            event.happen(env, self.name).await;
        }
        self.wait_for(env, self.expected).await;
    }

    async fn wait_for(&self, env: &TestEnv, expected: Pods) {
        eventually_or_err(&format!("Job {} has {expected:?}", self.name), async || {
            let found = self.pods(env).await;
            if found == expected { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await;
    }

    async fn pods(&self, env: &TestEnv) -> Pods {
        let active = pods(env, self.name).await.into_iter().filter(|pod| !pod::is_finished(pod) && is_staying(pod));
        let (gated, running): (Vec<Pod>, Vec<Pod>) = active.partition(is_gated);
        let uid = env.jobs().get(self.name).await.expect("the Job").uid();
        let workloads = env.workloads().list(&ListParams::default()).await.expect("the Workloads").items;
        let of_job = workloads
            .iter()
            .filter(|workload| workload.owner_references().iter().any(|owner| Some(&owner.uid) == uid.as_ref()));
        let holding = of_job.filter(|workload| invariants::holds_quota(workload));
        let admissions = holding.filter_map(|workload| workload.status.as_ref()?.admission.as_ref());
        let charged = admissions.flat_map(|admission| &admission.pod_set_assignments).filter_map(|set| set.count).sum();
        Pods { running: running.len(), gated: gated.len(), charged }
    }
}

impl Event {
    async fn happen(self, env: &TestEnv, job: &str) {
        let phase =
            |phase: &str| Patch::Merge(json!({"metadata": {"annotations": {"testenv.sluice.dev/phase": phase}}}));
        let api = env.pods();
        match self {
            Succeed(count) => {
                for pod in running(env, job).await.into_iter().take(count) {
                    api.patch(&pod.name_any(), &PatchParams::default(), &phase("succeeded"))
                        .await
                        .expect("it succeeds");
                }
                wait_until_counted(env, job, count).await;
            }
            SucceedIndex(index) | FailIndex(index) => {
                let of_index = |pod: &Pod| pod.labels().get(INDEX_LABEL).is_some_and(|label| label == index);
                let pod = running(env, job).await.into_iter().find(of_index).expect("a pod of the index");
                let end = if matches!(self, FailIndex(_)) { "failed" } else { "succeeded" };
                api.patch(&pod.name_any(), &PatchParams::default(), &phase(end)).await.expect("it ends");
            }
            Disrupt => {
                let pod = running(env, job).await.remove(0);
                let drained = json!({"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"});
                let status = json!({"status": {"phase": "Failed", "conditions": [drained]}});
                let patch = Patch::Strategic(status);
                api.patch_status(&pod.name_any(), &PatchParams::default(), &patch).await.expect("it fails");
            }
            DeleteEnded => {
                for pod in pods(env, job).await.iter().filter(|pod| pod::is_finished(pod)) {
                    api.delete(&pod.name_any(), &DeleteParams::background()).await.expect("it is deleted");
                }
            }
            Linger => {
                let name = running(env, job).await.remove(0).name_any();
                let kept =
                    Patch::Merge(json!({"metadata": {"finalizers": [TRACKING_FINALIZER, "test.sluice.dev/kept"]}}));
                api.patch(&name, &PatchParams::default(), &kept).await.expect("it is kept");
                api.delete(&name, &DeleteParams::background()).await.expect("it terminates");
            }
            Suspend => patch(env, job, json!({"suspend": true})).await,
            Scale(parallelism) => patch(env, job, json!({"parallelism": parallelism})).await,
        }
    }
}

/// Waits until the Job controller has counted the pods that succeeded.
async fn wait_until_counted(env: &TestEnv, job: &str, count: usize) {
    eventually_or_err(&format!("{count} successes of Job {job} are counted"), async || {
        let counted = env.jobs().get(job).await.expect("the Job").status.and_then(|status| status.succeeded);
        if counted == i32::try_from(count).ok() { Ok(()) } else { Err(format!("{counted:?}")) }
    })
    .await;
}

async fn patch(env: &TestEnv, job: &str, spec: Value) {
    let patch = Patch::Merge(json!({ "spec": spec }));
    env.jobs().patch(job, &PatchParams::default(), &patch).await.expect("the Job is changed");
}

async fn pods(env: &TestEnv, job: &str) -> Vec<Pod> {
    let of_job = ListParams::default().labels(&format!("batch.kubernetes.io/job-name={job}"));
    env.pods().list(&of_job).await.expect("its pods").items
}

/// Returns the pods of a Job that run, once they are on nodes.
async fn running(env: &TestEnv, job: &str) -> Vec<Pod> {
    eventually_or_err(&format!("the pods of Job {job} run"), async || {
        let active: Vec<Pod> = pods(env, job).await.into_iter().filter(|pod| !pod::is_finished(pod)).collect();
        let waiting = active.iter().filter(|pod| !pod::is_running(pod)).count();
        if waiting == 0 && !active.is_empty() { Ok(active) } else { Err(format!("{waiting} do not")) }
    })
    .await
}

fn is_staying(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none()
}

#[tokio::test]
async fn quota_of_a_job_is_what_the_job_controller_keeps_active() {
    // Given quota for all Jobs of the table,
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let _manager = env.manager().await;
    env.apply_object(resource_flavor()).await;
    env.apply_queue(QUEUE, None, cpu_quota("100", json!({})), json!({})).await;

    // when each has lived through its events, then it has the pods of its row, and their quota.
    let table = table();
    join_all(table.iter().map(|row| row.play(&env))).await;

    // It stays so.
    tokio::time::sleep(SETTLED).await;
    for row in &table {
        assert_eq!(row.pods(&env).await, row.expected, "{}", row.name);
    }
    let breaches = invariants::violations(&recorder.history().await);
    assert!(breaches.is_empty(), "{breaches:#?}");
}
