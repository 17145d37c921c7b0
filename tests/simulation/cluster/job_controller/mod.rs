//! Job controller: creates and deletes the pods of batch/v1 Jobs, and reports their status
//! (kubernetes 1.36 `pkg/controller/job/job_controller.go`).
//!
//! It reads a Job and its pods at one time and writes later, so it acts on state that may be old, as
//! a controller with a cache does. It has seen its own earlier writes (the expectations of the real
//! one).
//!
//! Not implemented: adoption of pods, `activeDeadlineSeconds`, `ttlSecondsAfterFinished`, restarts of
//! containers (`OnFailure`), pod failure policy, success policy, backoff limit per index.

mod backoff;
mod indexes;
mod pods;
mod status;
mod sync;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::Value;

use super::latencies::saturating_add;
use super::object_view::{PodId, condition_status, is_terminating, items, namespaced_name, text, uid};
use super::{ControllerContext, Task};
use crate::api::{ApiServer, ObjectChange};
use backoff::Backoff;
pub use backoff::MAX as MAX_BACKOFF;
use pods::TRACKING_FINALIZER;
pub(super) use sync::JobSnapshot;
use sync::{Next, Sync};

/// Label of a pod with the uid of its Job.
const UID_LABEL: &str = "/metadata/labels/batch.kubernetes.io~1controller-uid";
/// Delay of the first retry, which doubles up to the maximum (`DefaultJobApiBackOff`,
/// `MaxJobApiBackOff`).
const FIRST_RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY: Duration = Duration::from_secs(60);

/// Job controller with the Jobs that it knows.
#[derive(Debug, Default)]
pub(super) struct JobController {
    /// Existing Jobs that are not finished, by uid.
    jobs: BTreeMap<String, TrackedJob>,
    /// Pods with the tracking finalizer and the uid of their Job, by ordinal.
    tracked_pods: BTreeMap<u64, (Arc<PodId>, String)>,
    /// Number of latencies drawn.
    draws: u64,
}

/// A Job that is not finished.
#[derive(Debug)]
struct TrackedJob {
    namespace: String,
    name: String,
    phase: SyncPhase,
    backoff: Backoff,
    /// Number of consecutive refused syncs.
    retries: u32,
}

/// Progress of the syncs of a Job, of which one runs at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SyncPhase {
    /// Nothing has changed since the last sync.
    Idle,
    /// A sync is about to read.
    Queued,
    /// A sync has read and will write.
    Running,
    /// The same, and the Job or a pod has changed since.
    RunningAndQueued,
}

impl JobController {
    /// Observes a change of a Job.
    pub(super) fn observe_job(&mut self, context: &mut ControllerContext<'_>, change: &ObjectChange) {
        let job = &change.object;
        if change.deleted || is_finished(job) {
            self.jobs.remove(uid(job));
            let of_job = self.tracked_pods.values().filter(|(_, owner)| owner == uid(job));
            let orphans: Vec<Arc<PodId>> = of_job.map(|(pod, _)| pod.clone()).collect();
            orphans.into_iter().for_each(|pod| self.schedule_release(context, pod));
            return;
        }
        let (namespace, name) = namespaced_name(job);
        self.jobs.entry(uid(job).to_owned()).or_insert_with(|| TrackedJob {
            namespace,
            name,
            phase: SyncPhase::Idle,
            backoff: Backoff::default(),
            retries: 0,
        });
        self.enqueue(context, uid(job));
    }

    /// Observes a change of a pod.
    pub(super) fn observe_pod(
        &mut self,
        context: &mut ControllerContext<'_>,
        id: &Arc<PodId>,
        pod: &Value,
        deleted: bool,
    ) {
        let owner = controlling_job(pod);
        if deleted || !is_tracked(pod) {
            self.tracked_pods.remove(&id.ordinal);
        } else {
            self.tracked_pods.insert(id.ordinal, (id.clone(), text(pod, UID_LABEL).to_owned()));
            let is_known = owner.is_some_and(|owner| self.jobs.contains_key(owner));
            if owner.is_none() || is_terminating(pod) && !is_known {
                self.schedule_release(context, id.clone());
            }
        }
        if let Some(owner) = owner {
            self.enqueue(context, owner);
        }
    }

    /// Starts again with the Jobs that it knows, as after a restart of the process.
    pub(super) fn restart(&mut self, context: &mut ControllerContext<'_>) {
        self.jobs.values_mut().for_each(|job| job.phase = SyncPhase::Idle);
        let jobs: Vec<String> = self.jobs.keys().cloned().collect();
        jobs.iter().for_each(|job| self.enqueue(context, job));
        let is_orphan = |(_, owner): &&(Arc<PodId>, String)| !self.jobs.contains_key(owner);
        let orphans: Vec<Arc<PodId>> =
            self.tracked_pods.values().filter(is_orphan).map(|(pod, _)| pod.clone()).collect();
        orphans.into_iter().for_each(|pod| self.schedule_release(context, pod));
    }

    fn enqueue(&mut self, context: &mut ControllerContext<'_>, uid: &str) {
        let Some(job) = self.jobs.get_mut(uid) else { return };
        match job.phase {
            SyncPhase::Idle => {
                job.phase = SyncPhase::Queued;
                let delay = self.draw(context, "job read");
                context.schedule_after(delay, Task::ReadJob(uid.to_owned()));
            }
            SyncPhase::Running => job.phase = SyncPhase::RunningAndQueued,
            SyncPhase::Queued | SyncPhase::RunningAndQueued => {}
        }
    }

    fn schedule_release(&mut self, context: &mut ControllerContext<'_>, pod: Arc<PodId>) {
        let delay = self.draw(context, "job pod release");
        context.schedule_after(delay, Task::ReleaseJobPod(pod));
    }

    fn draw(&mut self, context: &ControllerContext<'_>, subject: &str) -> Duration {
        self.draws += 1;
        context.latencies.sample(&context.latencies.job_sync, subject, self.draws)
    }

    /// Reads a Job and its pods for a sync, which writes later.
    pub(super) fn read(&mut self, context: &mut ControllerContext<'_>, api: &ApiServer, uid: &str) {
        let Some(job) = self.jobs.get_mut(uid) else { return };
        if matches!(job.phase, SyncPhase::Running | SyncPhase::RunningAndQueued) {
            job.phase = SyncPhase::RunningAndQueued;
            return;
        }
        job.phase = SyncPhase::Running;
        let found = api.get("Job", &job.namespace, &job.name).filter(|found| super::object_view::uid(found) == uid);
        let Some(job) = found.cloned() else { return };
        let pods = api.list("Pod").filter(|pod| controlling_job(pod) == Some(uid)).cloned().collect();
        let delay = self.draw(context, "job write");
        context.schedule_after(delay, Task::SyncJob(JobSnapshot { job, pods }));
    }

    /// Writes what a sync has decided on.
    pub(super) fn sync(&mut self, context: &mut ControllerContext<'_>, api: &mut ApiServer, snapshot: &JobSnapshot) {
        let uid = uid(&snapshot.job);
        let counting = context.latencies.sample(&context.latencies.job_counting, "job counting", self.draws);
        let Some(job) = self.jobs.get_mut(uid) else { return };
        let next = Sync::new(context.now, api, snapshot).run(&mut job.backoff, !counting.is_zero());
        let was_queued = job.phase == SyncPhase::RunningAndQueued;
        job.phase = SyncPhase::Idle;
        let due = match next {
            Next::Wait => None,
            Next::Count => Some(saturating_add(context.now, counting)),
            Next::At(due) => Some(due),
            Next::Retry => {
                let delay = FIRST_RETRY.saturating_mul(2_u32.saturating_pow(job.retries)).min(MAX_RETRY);
                Some(saturating_add(context.now, delay))
            }
        };
        job.retries = if next == Next::Retry { job.retries + 1 } else { 0 };
        if let Some(due) = due {
            context.timers.schedule(due, Task::ReadJob(uid.to_owned()));
        }
        if was_queued {
            self.enqueue(context, uid);
        }
    }

    /// Removes the tracking finalizer from a pod that no unfinished Job controls
    /// (`handleSingleOrphanPod`).
    pub(super) fn release_pod(&self, now: Timestamp, api: &mut ApiServer, id: &PodId) {
        let Some(pod) = id.find(api) else { return };
        if is_tracked(pod) && controlling_job(pod).is_none_or(|owner| !self.jobs.contains_key(owner)) {
            remove_finalizer(now, api, &id.namespace, &id.name);
        }
    }
}

/// Removes the tracking finalizer of a pod, if the pod still exists.
fn remove_tracking_finalizer(now: Timestamp, api: &mut ApiServer, pod: &Pod) {
    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
    let exists = api.get("Pod", &namespace, &name).is_some_and(|found| Some(uid(found)) == pod.metadata.uid.as_deref());
    if exists {
        remove_finalizer(now, api, &namespace, &name);
    }
}

fn remove_finalizer(now: Timestamp, api: &mut ApiServer, namespace: &str, name: &str) {
    let remove = |pod: &mut Value| {
        if let Some(Value::Array(finalizers)) = pod.pointer_mut("/metadata/finalizers") {
            finalizers.retain(|finalizer| finalizer != TRACKING_FINALIZER);
        }
    };
    api.update(now, "Pod", namespace, name, remove).expect("the pod exists");
}

fn is_tracked(pod: &Value) -> bool {
    items(pod, "/metadata/finalizers").any(|finalizer| finalizer == TRACKING_FINALIZER)
}

/// Returns the uid of the Job that controls a pod.
fn controlling_job(pod: &Value) -> Option<&str> {
    let controller = items(pod, "/metadata/ownerReferences").find(|owner| owner["controller"] == true)?;
    (controller["kind"] == "Job").then(|| text(controller, "/uid"))
}

fn is_finished(job: &Value) -> bool {
    ["Complete", "Failed"].iter().any(|end| condition_status(job, end) == "True")
}
