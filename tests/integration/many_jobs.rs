//! Many Jobs compete for the same quota, which fits one in forty. `JOBS=2000` sets their number.

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use sluice_api::condition;
use sluice_api::kueue::Workload;
use sluice_api::kueue::scheduling_gate::is_gated;

use crate::admission_policies::webhook::start_manager_and_wait_for_webhook;
use sluice_testkit::history::{Change, Object, Recorder, State};
use sluice_testkit::objects::NAMESPACE;
use sluice_testkit::quotas::{cpu_quota, resource_flavor};
use sluice_testkit::{TestEnv, eventually, invariants};

const QUEUE: &str = "jobs";
/// Default number of Jobs.
const JOBS: usize = 120;
/// Ratio of Jobs to the number that fits simultaneously.
const JOBS_PER_SLOT: usize = 40;

fn job(number: usize) -> Job {
    let container = json!({"name": "work", "image": "work", "resources": {"requests": {"cpu": "1"}}});
    let meta = json!({"name": format!("job-{number}"), "labels": {"kueue.x-k8s.io/queue-name": QUEUE}});
    let spec = json!({"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}});
    serde_json::from_value(json!({"metadata": meta, "spec": spec})).expect("a Job")
}

/// Completes every running pod until this many Jobs are finished.
async fn complete_jobs(env: &TestEnv, jobs: usize) {
    let pods: Api<Pod> = Api::namespaced(env.client.clone(), NAMESPACE);
    let done = Patch::Merge(json!({"metadata": {"annotations": {"testenv.sluice.dev/phase": "succeeded"}}}));
    let mut completed = std::collections::BTreeSet::new();
    let mut idle = Duration::ZERO;
    while completed.len() < jobs {
        let before = completed.len();
        for pod in pods.list(&ListParams::default()).await.expect("the pods").items {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            if phase == Some("Running") && !is_gated(&pod) && completed.insert(pod.name_any()) {
                pods.patch(&pod.name_any(), &PatchParams::default(), &done).await.expect("the pod is completed");
            }
        }
        let pause = Duration::from_millis(50);
        idle = if completed.len() > before { Duration::ZERO } else { idle + pause };
        assert!(
            idle < Duration::from_secs(120),
            "{} of {jobs} Jobs had a pod that ran, and no other comes",
            completed.len()
        );
        tokio::time::sleep(pause).await;
    }
}

fn has_condition(workload: &Workload, kind: &str) -> bool {
    let conditions = workload.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    condition::is_true(conditions, kind)
}

/// Returns the maximum number of simultaneously admitted Jobs, and for each released quota the
/// milliseconds until it was used again.
fn max_admitted_and_gaps(history: &[Change]) -> (usize, Vec<i64>) {
    let (mut state, mut most, mut free, mut waited) = (State::default(), 0, Vec::new(), Vec::new());
    let held = |state: &State| {
        let admitted = state
            .workloads
            .values()
            .filter(|workload| has_condition(workload, "Admitted") && !has_condition(workload, "Finished"));
        admitted.count()
    };
    for change in history {
        let before = held(&state);
        state.apply(change);
        if !matches!(change.object, Object::Workload(_)) {
            continue;
        }
        let now = held(&state);
        most = most.max(now);
        if now < before {
            free.push(change.observed_at);
        } else if now > before && !free.is_empty() {
            waited.push(change.observed_at.duration_since(free.remove(0)).as_millis() as i64);
        }
    }
    waited.sort_unstable();
    (most, waited)
}

#[tokio::test]
async fn many_jobs_share_a_queue_that_fits_a_few() {
    let jobs = std::env::var("JOBS").map_or(JOBS, |jobs| jobs.parse().expect("JOBS is a number"));
    let room = jobs / JOBS_PER_SLOT;
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let (_manager, _) = start_manager_and_wait_for_webhook(&env, &[]).await;
    env.apply_object(resource_flavor()).await;
    env.apply_queue(QUEUE, None, cpu_quota(&room.to_string(), json!({})), json!({})).await;
    let api: Api<Job> = Api::namespaced(env.client.clone(), NAMESPACE);
    for number in 0..jobs {
        api.create(&PostParams::default(), &job(number)).await.expect("a Job");
    }

    complete_jobs(&env, jobs).await;

    eventually("all Jobs and their slices are finished", async || {
        let slices = env.workloads().list(&ListParams::default()).await.expect("the slices").items;
        (slices.len() == jobs && slices.iter().all(|slice| has_condition(slice, "Finished"))).then_some(())
    })
    .await;
    let history = recorder.history().await;
    let breaches = invariants::violations(&history);
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
    let (most, waited) = max_admitted_and_gaps(&history);
    assert_eq!(most, room, "the queue was full and never exceeded");
    println!(
        "{jobs} Jobs, {room} at a time: a free place waited for {} ms in the middle, for {} ms at most",
        waited[waited.len() / 2],
        waited[waited.len() - 1]
    );
}
