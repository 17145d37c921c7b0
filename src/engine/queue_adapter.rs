//! Adapter between the engine and the scheduler: feeds it every change, and plans the writes for
//! its decisions.

use std::collections::BTreeSet;

use jiff::Timestamp;
use kube_core::ResourceExt;

use super::cluster_state::{Change, ClusterState, Object};
use super::owners::gated_objects;
use super::planner_key::PlannerKey;
use super::{WriteError, finalizers, workload_events};
use sluice_api::condition;
use sluice_api::kueue::{Workload, names};
use sluice_jobframework::PodsReadyReports;
use sluice_plan::{ObjectKey, Plan, Write, WriteOp, WriteRank};
use sluice_queue::log::Recorder;
use sluice_queue::pending::PendingCause;
use sluice_queue::{self as queue, Decision, DecisionTarget, Input, WorkloadCounts, status};

/// The scheduler and its decision log.
#[derive(Debug, Clone)]
pub(super) struct QueueAdapter {
    scheduler: queue::Scheduler,
    pods_ready_reports: PodsReadyReports,
    /// Recorder of the decision log; `None` if it is off.
    recorder: Option<Recorder>,
}

impl QueueAdapter {
    /// Creates an adapter around an empty scheduler.
    pub(super) fn new(settings: queue::Settings) -> Self {
        let pods_ready_reports = match &settings.wait_for_pods_ready {
            None => PodsReadyReports::Nothing,
            Some(rules) if rules.unscheduled_timeout.is_none() => PodsReadyReports::Readiness,
            Some(_) => PodsReadyReports::SchedulingAndReadiness,
        };
        Self { pods_ready_reports, scheduler: queue::Scheduler::new(settings), recorder: None }
    }

    /// Turns the decision log on or off. Only a log recorded from the first input on can be
    /// replayed.
    pub(super) fn set_decision_log(&mut self, keep: bool) {
        self.recorder = keep.then(|| Recorder::new(&self.scheduler));
    }

    /// Returns the lines of the decision log since the last call.
    pub(super) fn take_decision_log(&mut self) -> Vec<u8> {
        self.recorder.as_mut().map(Recorder::take).unwrap_or_default()
    }

    /// Returns the scheduler for queries.
    pub(super) fn scheduler(&self) -> &queue::Scheduler {
        &self.scheduler
    }

    /// Reports whether the scheduler uses pod readiness (`waitForPodsReady`), so that Workloads
    /// need the condition `PodsReady`.
    pub(super) fn pods_ready_reports(&self) -> PodsReadyReports {
        self.pods_ready_reports
    }

    /// Feeds a change to the scheduler.
    pub(super) fn observe(&mut self, now: Timestamp, change: &Change) {
        match change {
            Change { after: Some(object), .. } => self.observe_object(now, object),
            Change { before: Some(object), after: None } => self.observe_deletion(now, object),
            Change { before: None, after: None } => {}
        }
    }

    /// Runs a scheduling cycle; returns the planners that write its decisions.
    pub(super) fn cycle(&mut self, now: Timestamp) -> Vec<PlannerKey> {
        let effects = self.scheduler.run_cycle(now);
        if let Some(recorder) = &mut self.recorder {
            recorder.record_decisions(now, &effects);
        }
        effects.iter().map(|effect| planner_key(effect.target())).collect()
    }

    /// Returns the ClusterQueues whose counts may have changed since the last call.
    pub(super) fn take_changed_counts(&mut self) -> Vec<(String, WorkloadCounts)> {
        self.scheduler.take_changed_counts()
    }

    /// Returns the time at which a cycle is due without new inputs; `None` if none is.
    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        self.scheduler.next_deadline()
    }

    /// Feeds a failed write to the scheduler if the API server rejects the decision itself (HTTP
    /// 400, 403 or 422). Writes that failed otherwise are planned again.
    pub(super) fn on_write_failed(&mut self, now: Timestamp, write: &Write, error: &WriteError) {
        let Write { target, op: WriteOp::PatchStatus(_), .. } = write else { return };
        let key = ObjectKey::new(target.namespace.clone().unwrap_or_default(), target.name.clone());
        if target.kind == "Workload" && matches!(error.code, Some(400 | 403 | 422)) {
            self.feed(now, &Input::AdmissionRejected(&key));
        }
    }

    /// Reports whether the scheduler has decided to admit a Workload.
    pub(super) fn admits(&self, workload: &ObjectKey) -> bool {
        matches!(self.scheduler.decision_for(&DecisionTarget::Workload(workload.clone())), Some(Decision::Admit { .. }))
    }

    /// Returns the PodSets of a pending slice that are bound to flavors without headroom; see
    /// [`queue::Scheduler::pinned_pod_sets`].
    pub(super) fn flavor_bound_pod_sets(&self, slice: &Workload) -> BTreeSet<String> {
        self.scheduler.pinned_pod_sets(&ObjectKey::of(slice))
    }

    /// Plans the decision about a Workload.
    pub(super) fn plan_workload(&self, state: &ClusterState, workload: &Workload, now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        match self.scheduler.decision_for(&DecisionTarget::Workload(ObjectKey::of(workload))) {
            Some(Decision::SetInactive { .. }) => {
                let mut inactive = workload.clone();
                inactive.spec.active = Some(false);
                plan.write(Write::patch(workload, &inactive));
            }
            Some(effect) => {
                let mut decided = status::with_decision(workload, &effect, now);
                if let (Decision::Pending { .. }, Some(status)) = (&effect, &mut decided.status) {
                    status.resource_requests = self.scheduler.resource_requests(&ObjectKey::of(workload));
                }
                if let Decision::Admit { replaces: Some(replaced), .. } = &effect {
                    carry_over_execution_time(&mut decided, state.workloads.get(replaced).map(AsRef::as_ref), now);
                }
                let status = decided.status.as_ref();
                if let Some(write) = status.and_then(|status| Write::patch_status(workload, status)) {
                    // Nothing may be unsuspended on a slice that was just evicted, even partially
                    // (invariant I2).
                    plan.write(match &effect {
                        Decision::Evict { .. } | Decision::Deactivate { .. } | Decision::PreemptPart { .. } => {
                            write.blocked_while_in_flight(gated_objects(workload))
                        }
                        Decision::Pending { cause, .. } => write.ranked(pending_rank(workload, cause)),
                        Decision::Admit { .. } => {
                            write.ranked(WriteRank::Admission).with_priority(workload.spec.priority.unwrap_or_default())
                        }
                        _ => write,
                    });
                    plan.events.extend(workload_events::decision_events(workload, &decided, &effect));
                }
            }
            None => {}
        }
        plan
    }

    /// Plans the finalizer and the status of a ClusterQueue, in this order. The finalizer of a
    /// terminating ClusterQueue is released once neither its status nor the scheduler counts a
    /// workload that holds its quota.
    pub(super) fn plan_cluster_queue(&self, state: &ClusterState, name: &str, now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let Some(queue) = state.cluster_queues.get(&ObjectKey::global(name)).map(AsRef::as_ref) else { return plan };
        let old = queue.status.clone().unwrap_or_default();
        let effect = self.scheduler.decision_for(&DecisionTarget::ClusterQueue(name.to_owned()));
        plan.write(finalizers::protect_in_use(queue, effect.is_some() || old.reserving_workloads > 0));
        if let Some(Decision::ClusterQueueStatus { report, .. }) = effect {
            plan.write(queue_status(Write::patch_status(queue, &status::cluster_queue(&old, &report, now))));
        }
        plan
    }

    /// Plans the status of a Cohort.
    pub(super) fn plan_cohort(&self, state: &ClusterState, name: &str) -> Plan {
        let mut plan = Plan::default();
        let effect = self.scheduler.decision_for(&DecisionTarget::Cohort(name.to_owned()));
        if let (Some(Decision::CohortStatus { report, .. }), Some(cohort)) =
            (effect, state.cohorts.get(&ObjectKey::global(name)))
        {
            plan.write(queue_status(Write::patch_status(cohort.as_ref(), &status::cohort(&report))));
        }
        plan
    }

    /// Plans the status of a LocalQueue.
    pub(super) fn plan_local_queue(&self, state: &ClusterState, key: &ObjectKey, now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let effect = self.scheduler.decision_for(&DecisionTarget::LocalQueue(key.clone()));
        if let (Some(Decision::LocalQueueStatus { report, .. }), Some(queue)) = (effect, state.local_queues.get(key)) {
            let status = status::local_queue(&queue.status.clone().unwrap_or_default(), &report, now);
            plan.write(queue_status(Write::patch_status(queue.as_ref(), &status)));
        }
        plan
    }

    fn feed(&mut self, now: Timestamp, event: &Input<'_>) {
        if let Some(recorder) = &mut self.recorder {
            recorder.record_input(now, event);
        }
        self.scheduler.observe(now, event);
    }

    fn observe_object(&mut self, now: Timestamp, object: &Object) {
        let event = match object {
            Object::ResourceFlavor(flavor) => Input::ResourceFlavor(flavor),
            Object::ClusterQueue(queue) => Input::ClusterQueue(queue),
            Object::Cohort(cohort) => Input::Cohort(cohort),
            Object::LocalQueue(queue) => Input::LocalQueue(queue),
            Object::Namespace(namespace) => Input::Namespace(namespace),
            Object::LimitRange(limit_range) => Input::LimitRange(limit_range),
            Object::RuntimeClass(class) => Input::RuntimeClass(class),
            Object::Workload(workload) => Input::Workload(workload),
            _ => return,
        };
        self.feed(now, &event);
    }

    fn observe_deletion(&mut self, now: Timestamp, object: &Object) {
        match object {
            Object::ResourceFlavor(flavor) => self.feed(now, &Input::ResourceFlavorDeleted(&flavor.name_any())),
            Object::ClusterQueue(queue) => self.feed(now, &Input::ClusterQueueDeleted(&queue.name_any())),
            Object::Cohort(cohort) => self.feed(now, &Input::CohortDeleted(&cohort.name_any())),
            Object::LocalQueue(queue) => self.feed(now, &Input::LocalQueueDeleted(&ObjectKey::of(queue.as_ref()))),
            Object::Namespace(namespace) => self.feed(now, &Input::NamespaceDeleted(&namespace.name_any())),
            Object::LimitRange(limits) => self.feed(now, &Input::LimitRangeDeleted(&ObjectKey::of(limits.as_ref()))),
            Object::RuntimeClass(class) => self.feed(now, &Input::RuntimeClassDeleted(&class.name_any())),
            Object::Workload(workload) => self.feed(now, &Input::WorkloadDeleted(&ObjectKey::of(workload.as_ref()))),
            _ => {}
        }
    }
}

fn queue_status(write: Option<Write>) -> Option<Write> {
    write.map(|write| write.ranked(WriteRank::QueueStatus))
}

/// Returns the rank of the write that reports why a Workload is pending.
fn pending_rank(workload: &Workload, cause: &PendingCause) -> WriteRank {
    let conditions = workload.status.as_ref().map_or(&[][..], |status| &status.conditions);
    match condition::get_false(conditions, names::QUOTA_RESERVED) {
        Some(reported) if reported.reason == cause.reason().as_str() => WriteRank::PendingMessage,
        _ => WriteRank::PendingCondition,
    }
}

/// Carries the execution time of the replaced slice over to its successor: otherwise a job that
/// grows every hour would never reach its maximum. (In kueue v0.19.2 each slice starts from zero.)
fn carry_over_execution_time(slice: &mut Workload, replaced: Option<&Workload>, now: Timestamp) {
    if let (Some(status), Some(replaced), Some(_)) =
        (&mut slice.status, replaced, slice.spec.maximum_execution_time_seconds)
    {
        status.accumulated_past_execution_time_seconds = status::execution_time(replaced, now);
    }
}

/// Returns the planner that writes the decisions about a target.
fn planner_key(subject: DecisionTarget) -> PlannerKey {
    match subject {
        DecisionTarget::Workload(key) => PlannerKey::Workload(key),
        DecisionTarget::ClusterQueue(name) => PlannerKey::ClusterQueue(name),
        DecisionTarget::LocalQueue(key) => PlannerKey::LocalQueue(key),
        DecisionTarget::Cohort(name) => PlannerKey::Cohort(name),
    }
}
