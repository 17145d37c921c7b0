//! One sync of a Job: from its state as read, the pods to create or delete and the next status
//! (kubernetes 1.36 `pkg/controller/job/job_controller.go`, `syncJob`, `manageJob` and
//! `trackJobStatusAndRemoveFinalizers`).
//!
//! The writes may come long after the read. A status based on an older version of the Job is
//! refused, and the sync is repeated; its pods have been created or deleted by then, as in a real
//! cluster.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobSpec, JobStatus};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde::Deserialize;
use serde_json::Value;

use super::backoff::Backoff;
use super::indexes::{self, index_of};
use super::pods::{
    finished_at, has_succeeded, is_active, is_failed, is_indexed, is_terminating, is_tracked, new_pod, pods_to_delete,
};
use super::remove_tracking_finalizer;
use super::status::{JobEnd, count_recorded, is_true, non_zero, set_condition, whole_seconds};
use crate::api::{ApiServer, DeleteOptions, StatusError};

/// A Job and its pods as read.
#[derive(Debug)]
pub(in crate::cluster) struct JobSnapshot {
    pub(super) job: Arc<Value>,
    pub(super) pods: Vec<Arc<Value>>,
}

/// Action that follows a sync.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Wait for a change.
    Wait,
    /// Sync again at this time: the Job waits after failed pods.
    At(Timestamp),
    /// Sync again soon: recorded pods are not counted yet.
    Count,
    /// Sync again: a write was refused.
    Retry,
}

/// Sync of one Job.
pub(super) struct Sync<'a> {
    now: Timestamp,
    api: &'a mut ApiServer,
    job: Job,
    spec: JobSpec,
    /// Status to be written.
    status: JobStatus,
    pods: Vec<Pod>,
    /// Version of the Job that the next status is based on.
    version: String,
}

/// Pods by state.
struct PodCounts {
    active: i32,
    ready: i32,
    terminating: i32,
    succeeded: i32,
    failed: i32,
}

/// State of the status after a sync.
enum Tracking {
    /// It is current.
    Current,
    /// Ended pods are recorded in it, and not counted.
    Recorded,
}

impl<'a> Sync<'a> {
    pub(super) fn new(now: Timestamp, api: &'a mut ApiServer, snapshot: &JobSnapshot) -> Self {
        let job = Job::deserialize(&*snapshot.job).expect("a Job");
        let pods = snapshot.pods.iter().map(|pod| Pod::deserialize(&**pod).expect("a Pod")).collect();
        let (spec, mut status) = (job.spec.clone().unwrap_or_default(), job.status.clone().unwrap_or_default());
        status.uncounted_terminated_pods.get_or_insert_default();
        let version = job.resource_version().unwrap_or_default();
        Self { now, api, job, spec, status, pods, version }
    }

    /// Runs the sync. `counts_later` leaves the second update of the status, which counts the recorded
    /// pods, to the next sync.
    pub(super) fn run(mut self, backoff: &mut Backoff, counts_later: bool) -> Next {
        let mut counts = self.count_pods();
        let recorded = backoff.after(&self.new_ends(true), &self.new_ends(false));
        let mut changed = false;
        if self.status.start_time.is_none() && !self.is_suspended() {
            self.status.start_time = Some(whole_seconds(self.now));
        }
        let mut end = self
            .earlier_end()
            .or_else(|| (counts.failed > self.spec.backoff_limit.unwrap_or(6)).then_some(JobEnd::Failed));
        let completed = self.completed_indexes();
        if let Some(completed) = &completed {
            counts.succeeded = i32::try_from(completed.len()).unwrap_or(i32::MAX);
        }
        let mut next = Next::Wait;
        if end.is_some() {
            self.delete_active_pods(&mut counts);
        } else {
            if self.job.metadata.deletion_timestamp.is_none() {
                next = self.manage_pods(recorded, &mut counts);
            }
            let is_complete = match self.spec.completions {
                None => counts.succeeded > 0,
                Some(completions) => counts.succeeded >= completions,
            };
            if is_complete && counts.active == 0 {
                end = Some(JobEnd::Complete);
            } else if self.job.metadata.deletion_timestamp.is_none() {
                changed |= self.report_suspension();
            }
        }
        changed |= self.set_counts(&counts);
        let tracked = self.track(end, counts.terminating, completed, changed, counts_later);
        if tracked.is_ok() {
            *backoff = recorded;
        }
        match tracked {
            Err(_) => Next::Retry,
            Ok(Tracking::Current) => next,
            Ok(Tracking::Recorded) if next == Next::Wait => Next::Count,
            Ok(Tracking::Recorded) => next,
        }
    }

    fn is_suspended(&self) -> bool {
        self.spec.suspend == Some(true)
    }

    fn replaces_failed_only(&self) -> bool {
        self.spec.pod_replacement_policy.as_deref() == Some("Failed")
    }

    fn active_pods(&self) -> Vec<&Pod> {
        self.pods.iter().filter(|pod| is_active(pod)).collect()
    }

    /// Returns the uids of the pods whose success or failure was recorded and not counted yet.
    fn uncounted(&self, success: bool) -> &[String] {
        let uncounted = self.status.uncounted_terminated_pods.as_ref();
        let list = uncounted.and_then(|lists| if success { lists.succeeded.as_ref() } else { lists.failed.as_ref() });
        list.map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns the pods that succeeded, or failed, and were not recorded (`getNewFinishedPods`).
    fn newly_finished(&self, success: bool) -> impl Iterator<Item = &Pod> {
        let failed_only = self.replaces_failed_only();
        let is_new = move |pod: &&Pod| {
            let ended = if success { has_succeeded(pod) } else { is_failed(pod, failed_only) };
            let has_index =
                self.spec.completions.is_none_or(|most| !is_indexed(&self.spec) || index_of(pod, most).is_some());
            let is_recorded = pod.metadata.uid.as_ref().is_some_and(|uid| self.uncounted(success).contains(uid));
            ended && is_tracked(pod) && has_index && !is_recorded
        };
        self.pods.iter().filter(is_new)
    }

    /// Returns when pods succeeded, or failed, that were not recorded.
    fn new_ends(&self, success: bool) -> Vec<Timestamp> {
        self.newly_finished(success).filter_map(finished_at).collect()
    }

    fn count_pods(&self) -> PodCounts {
        let count = |number: usize| i32::try_from(number).expect("a small number");
        let active = self.active_pods();
        PodCounts {
            active: count(active.len()),
            ready: count(active.iter().filter(|pod| sluice_api::pod::is_ready(pod)).count()),
            terminating: count(self.pods.iter().filter(|pod| is_terminating(pod)).count()),
            succeeded: self.status.succeeded.unwrap_or(0)
                + count(self.newly_finished(true).count() + self.uncounted(true).len()),
            failed: self.status.failed.unwrap_or(0)
                + count(self.newly_finished(false).count() + self.uncounted(false).len()),
        }
    }

    /// Returns the indexes that have succeeded, if the Job is Indexed (`calculateSucceededIndexes`).
    fn completed_indexes(&self) -> Option<BTreeSet<i32>> {
        let completions = self.spec.completions.filter(|_| is_indexed(&self.spec))?;
        let mut indexes = indexes::parse(self.status.completed_indexes.as_deref().unwrap_or_default(), completions);
        let succeeded = self.pods.iter().filter(|pod| has_succeeded(pod) && is_tracked(pod));
        indexes.extend(succeeded.filter_map(|pod| index_of(pod, completions)));
        Some(indexes)
    }

    /// Returns the end that an earlier sync has decided on.
    fn earlier_end(&self) -> Option<JobEnd> {
        JobEnd::ALL.into_iter().find(|end| is_true(&self.status, end.interim_condition()))
    }

    /// Sets condition Suspended. Returns true if that changes the status.
    fn report_suspension(&mut self) -> bool {
        let is_suspended = self.is_suspended();
        let reason = if is_suspended { ("JobSuspended", "Job suspended") } else { ("JobResumed", "Job resumed") };
        let changed = set_condition(&mut self.status, self.now, "Suspended", is_suspended, reason);
        if changed {
            // The start time is that of the last resumption (feature gate
            // MutableSchedulingDirectivesForSuspendedJobs, on in 1.36).
            self.status.start_time = (!is_suspended).then(|| whole_seconds(self.now));
        }
        changed
    }

    /// Creates missing pods or deletes excess ones, and counts them as done.
    fn manage_pods(&mut self, backoff: Backoff, counts: &mut PodCounts) -> Next {
        let parallelism = self.spec.parallelism.unwrap_or(1);
        let wanted = match self.spec.completions {
            _ if self.is_suspended() => 0,
            None if counts.succeeded > 0 => counts.active,
            None => parallelism,
            Some(completions) => parallelism.min(completions - counts.succeeded).max(0),
        };
        let excess = usize::try_from(counts.active - wanted).unwrap_or(0);
        let deleted: Vec<Pod> = pods_to_delete(&self.spec, self.active_pods(), excess).into_iter().cloned().collect();
        if !deleted.is_empty() {
            // A pod that was not wanted any more does not count as failed.
            deleted.iter().for_each(|pod| remove_tracking_finalizer(self.now, self.api, pod));
            deleted.iter().for_each(|pod| self.delete_pod(pod, counts));
            return Next::Wait;
        }
        let awaited = if self.replaces_failed_only() { counts.terminating } else { 0 };
        let missing = wanted - counts.active - awaited;
        if missing <= 0 {
            return Next::Wait;
        }
        if let Some(end) = backoff.end().filter(|end| *end > self.now) {
            return Next::At(end);
        }
        if self.create_pods(missing, counts).is_err() { Next::Retry } else { Next::Wait }
    }

    fn create_pods(&mut self, missing: i32, counts: &mut PodCounts) -> Result<(), StatusError> {
        let indexes: Vec<Option<i32>> = match self.spec.completions.filter(|_| is_indexed(&self.spec)) {
            Some(completions) => self.pending_indexes(completions).into_iter().map(Some).collect(),
            None => vec![None; usize::try_from(missing).unwrap_or(0)],
        };
        for index in indexes.into_iter().take(usize::try_from(missing).unwrap_or(0)) {
            self.api.create(self.now, new_pod(&self.job, index))?;
            counts.active += 1;
        }
        Ok(())
    }

    /// Returns the indexes without a success and without an active pod (`firstPendingIndexes`).
    fn pending_indexes(&self, completions: i32) -> Vec<i32> {
        let failed_only = self.replaces_failed_only();
        let keeps_index = |pod: &&Pod| is_active(pod) || failed_only && is_terminating(pod);
        let taken: BTreeSet<i32> =
            self.pods.iter().filter(keeps_index).filter_map(|pod| index_of(pod, completions)).collect();
        let completed = self.completed_indexes().unwrap_or_default();
        (0..completions).filter(|index| !taken.contains(index) && !completed.contains(index)).collect()
    }

    /// Deletes the active pods of a Job that ends. They keep their finalizers until they are recorded.
    fn delete_active_pods(&mut self, counts: &mut PodCounts) {
        let active: Vec<Pod> = self.active_pods().into_iter().cloned().collect();
        active.iter().for_each(|pod| self.delete_pod(pod, counts));
    }

    fn delete_pod(&mut self, pod: &Pod, counts: &mut PodCounts) {
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        let options = DeleteOptions { uid: pod.uid(), ..DeleteOptions::default() };
        // It may be gone already.
        let _ = self.api.delete(self.now, "Pod", &namespace, &name, &options);
        counts.active -= 1;
        counts.terminating += 1;
        counts.ready -= i32::from(sluice_api::pod::is_ready(pod));
    }

    /// Sets the counts of existing pods. Returns true if that changes the status.
    fn set_counts(&mut self, counts: &PodCounts) -> bool {
        let before = (self.status.active, self.status.ready, self.status.terminating);
        self.status.active = non_zero(counts.active);
        self.status.ready = Some(counts.ready);
        self.status.terminating = Some(counts.terminating);
        before != (self.status.active, self.status.ready, self.status.terminating)
    }

    /// Records ended pods, removes their finalizers, counts them, and declares the end of the Job.
    fn track(
        &mut self,
        end: Option<JobEnd>,
        terminating: i32,
        completed: Option<BTreeSet<i32>>,
        mut changed: bool,
        counts_later: bool,
    ) -> Result<Tracking, StatusError> {
        let mut tracked: BTreeSet<String> =
            self.pods.iter().filter(|pod| is_tracked(pod)).filter_map(ResourceExt::uid).collect();
        changed |= count_recorded(&mut self.status, &tracked);
        let ended = self.record_ended_pods(end, &mut changed);
        if let Some(completed) = completed {
            let (count, text) = (i32::try_from(completed.len()).unwrap_or(i32::MAX), indexes::format(&completed));
            changed |= self.status.completed_indexes.clone().unwrap_or_default() != text;
            self.status.succeeded = non_zero(count);
            self.status.completed_indexes = Some(text).filter(|text| !text.is_empty());
        }
        if let Some(end) = end {
            changed |= set_condition(&mut self.status, self.now, end.interim_condition(), true, end.reason());
        }
        if changed {
            self.write_status()?;
        }
        for pod in &ended {
            remove_tracking_finalizer(self.now, self.api, pod);
            tracked.remove(&pod.uid().unwrap_or_default());
        }
        let mut changed = count_recorded(&mut self.status, &tracked);
        if changed && counts_later {
            return Ok(Tracking::Recorded);
        }
        let is_counted = self.uncounted(true).is_empty() && self.uncounted(false).is_empty();
        if let Some(end) = end.filter(|_| is_counted && terminating == 0) {
            changed |= set_condition(&mut self.status, self.now, end.final_condition(), true, end.reason());
            self.status.completion_time = (end == JobEnd::Complete).then(|| whole_seconds(self.now));
        }
        if changed {
            self.write_status()?;
        }
        Ok(Tracking::Current)
    }

    /// Adds the ended pods to `status.uncountedTerminatedPods` and returns them. Once the Job has
    /// failed, all its pods count as failed.
    fn record_ended_pods(&mut self, end: Option<JobEnd>, changed: &mut bool) -> Vec<Pod> {
        let failed_only = self.replaces_failed_only();
        let is_ending = end.is_some() || self.job.metadata.deletion_timestamp.is_some();
        let may_go = |pod: &&Pod| is_tracked(pod) && (is_ending || has_succeeded(pod) || is_failed(pod, failed_only));
        let ended: Vec<Pod> = self.pods.iter().filter(may_go).cloned().collect();
        for pod in &ended {
            let uid = pod.uid().unwrap_or_default();
            let is_failure = is_failed(pod, failed_only) || end == Some(JobEnd::Failed);
            let has_index =
                self.spec.completions.is_none_or(|most| !is_indexed(&self.spec) || index_of(pod, most).is_some());
            let is_recorded = self.uncounted(true).contains(&uid) || self.uncounted(false).contains(&uid);
            let lists = self.status.uncounted_terminated_pods.get_or_insert_default();
            let list = match has_succeeded(pod) {
                // The index records the success.
                true if is_indexed(&self.spec) => continue,
                true => &mut lists.succeeded,
                false if is_failure && has_index => &mut lists.failed,
                false => continue,
            };
            if !is_recorded {
                list.get_or_insert_default().push(uid);
                *changed = true;
            }
        }
        ended
    }

    fn write_status(&mut self) -> Result<(), StatusError> {
        let (namespace, name) = (self.job.namespace().unwrap_or_default(), self.job.name_any());
        let status = serde_json::to_value(&self.status).expect("a status is JSON");
        let version = self.version.clone();
        self.api.update_status(self.now, "Job", &namespace, &name, |job| {
            job["metadata"]["resourceVersion"] = version.into();
            job["status"] = status;
        })?;
        let written = self.api.get("Job", &namespace, &name);
        self.version = written
            .map(|job| job["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned())
            .unwrap_or_default();
        Ok(())
    }
}
