//! Applies scheduling decisions to the status of objects. Pure functions: the manager writes the
//! difference.
//!
//! Condition types, reasons and the beginnings of messages are Kueue's (kueue v0.19.2
//! `pkg/workload`, `pkg/scheduler`, `pkg/controller/core`), because users and monitoring match on
//! them.

use std::fmt;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::partial_preemption::{PARTIALLY_PREEMPTED, PreemptiblePart};
use super::pending::{PendingCause, PendingReason};
use super::queue_status::{ActiveCondition, ClusterQueueReport, CohortReport, LocalQueueReport};
use super::{DeactivationCause, Decision, EvictionReason, Preemption, PreemptionReason, ReplacementSlice};
use sluice_api::condition::{self, ConditionUpdate};
use sluice_api::kueue::workload_status::{EvictionCount, RequeueState, SchedulingStats};
use sluice_api::kueue::{
    Admission, ClusterQueueStatus, CohortStatus, FairSharingStatus, LocalQueueStatus, Workload, WorkloadStatus, names,
};

/// Reason of the conditions that follow from a quota reservation.
const QUOTA_RESERVED_REASON: &str = "QuotaReserved";
const NO_RESERVATION_REASON: &str = "NoReservation";
const NO_RESERVATION_MESSAGE: &str = "The workload has no reservation";
const RELEASED_REASON: &str = "Released";

/// Returns true for the reason of an eviction by `spec.active`, with or without a cause.
fn is_deactivation(reason: &str) -> bool {
    reason == names::evicted_reason::DEACTIVATED || is_deactivation_with_cause(reason)
}

/// Returns true for the reason of an eviction of a workload that the queue manager deactivated: it names
/// the cause (kueue v0.19.2 `pkg/workload/evict/evict.go`, `IsEvictedDueToDeactivationByKueue`).
pub fn is_deactivation_with_cause(reason: &str) -> bool {
    reason.strip_prefix(names::evicted_reason::DEACTIVATED).is_some_and(|cause| cause.starts_with("DueTo"))
}

/// Returns the condition DeactivationTarget; `None` if it is not set.
pub(super) fn deactivation_target(workload: &Workload) -> Option<&Condition> {
    condition::get(workload.conditions(), names::DEACTIVATION_TARGET)
}

impl PreemptionReason {
    /// Returns the reason of the condition Preempted.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InClusterQueue => "InClusterQueue",
            Self::InCohortReclamation => "InCohortReclamation",
            Self::InCohortFairSharing => "InCohortFairSharing",
            Self::InCohortReclaimWhileBorrowing => "InCohortReclaimWhileBorrowing",
        }
    }

    fn description(self) -> &'static str {
        match self {
            Self::InClusterQueue => "prioritization in the ClusterQueue",
            Self::InCohortReclamation => "reclamation within the cohort",
            Self::InCohortFairSharing => "Fair Sharing within the cohort",
            Self::InCohortReclaimWhileBorrowing => "reclamation within the cohort while borrowing",
        }
    }
}

impl fmt::Display for Preemption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNKNOWN: &str = "UNKNOWN";
        write!(
            f,
            "Preempted to accommodate a workload (UID: {}, JobUID: {}) due to {}; preemptor path: {}; preemptee path: {}",
            if self.preemptor_uid.is_empty() { UNKNOWN } else { &self.preemptor_uid },
            self.preemptor_job_uid.as_deref().unwrap_or(UNKNOWN),
            self.reason.description(),
            self.preemptor_path,
            self.preemptee_path
        )
    }
}

impl DeactivationCause {
    /// Returns the reason of the condition DeactivationTarget.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RequeuingLimitExceeded => "RequeuingLimitExceeded",
            Self::MaximumExecutionTimeExceeded => "MaximumExecutionTimeExceeded",
        }
    }

    fn message(self) -> &'static str {
        match self {
            Self::RequeuingLimitExceeded => "exceeding the maximum number of re-queuing retries",
            Self::MaximumExecutionTimeExceeded => "exceeding the maximum execution time",
        }
    }
}

/// Returns the workload with a decision applied to its status; unchanged if the decision does not
/// concern the status of a workload.
pub fn with_decision(workload: &Workload, effect: &Decision, now: Timestamp) -> Workload {
    let status = match effect {
        Decision::Admit { admission, .. } => admitted(workload, admission, now),
        Decision::Pending { cause: why, .. } => pending(workload, why, now),
        Decision::Evict { reason, .. } => evicted(workload, reason, now),
        Decision::PreemptPart { part, preemption, .. } => partially_preempted(workload, *part, preemption, now),
        Decision::PartReleased { .. } => part_released(workload, now),
        Decision::Deactivate { cause, .. } => deactivation_requested(workload, *cause, now),
        Decision::FinishReplaced { replacement: by, .. } => finished_replaced(workload, by, now),
        Decision::ReduceAdmission { admission, .. } => admission_reduced(workload, admission),
        Decision::SetInactive { .. }
        | Decision::ClusterQueueStatus { .. }
        | Decision::CohortStatus { .. }
        | Decision::LocalQueueStatus { .. } => return workload.clone(),
    };
    Workload { status: Some(status), ..workload.clone() }
}

/// Returns the status of a newly admitted workload. Without admission checks, the quota reservation
/// and the admission happen together.
pub fn admitted(workload: &Workload, admission: &Admission, now: Timestamp) -> WorkloadStatus {
    let mut edit = StatusEditor::of(workload, now);
    let cluster_queue = &admission.cluster_queue;
    edit.mark_requeued();
    edit.set(
        names::QUOTA_RESERVED,
        true,
        QUOTA_RESERVED_REASON,
        format!("Quota reserved in ClusterQueue {cluster_queue}"),
    );
    edit.set(names::ADMITTED, true, names::ADMITTED, "The workload is admitted".to_owned());
    for type_ in [names::EVICTED, names::PREEMPTED, PARTIALLY_PREEMPTED, names::BLOCKED_ON_PREEMPTION_GATES] {
        edit.set_previously(type_, QUOTA_RESERVED_REASON);
    }
    edit.update_unsupported(workload);
    edit.status.admission = Some(admission.clone());
    edit.status.resource_requests.clear();
    edit.status
}

/// Returns the status of a pending workload. It says that it is not admitted too, as in Kueue 0.20
/// (`pkg/workload/admissionchecks.go`, `SyncAdmittedCondition`).
pub fn pending(workload: &Workload, why: &PendingCause, now: Timestamp) -> WorkloadStatus {
    let mut edit = StatusEditor::of(workload, now);
    if why.is_queued() {
        edit.mark_requeued();
    }
    edit.set(names::QUOTA_RESERVED, false, why.reason().as_str(), why.to_string());
    edit.set(names::ADMITTED, false, NO_RESERVATION_REASON, NO_RESERVATION_MESSAGE.to_owned());
    edit.update_unsupported(workload);
    edit.status
}

/// Returns the status of an evicted workload. It holds its quota until [`released`], which applies
/// immediately if it has no admission.
pub fn evicted(workload: &Workload, reason: &EvictionReason, now: Timestamp) -> WorkloadStatus {
    let mut edit = StatusEditor::of(workload, now);
    edit.set(names::EVICTED, true, &reason.with_cause(workload), reason.message(workload));
    edit.count_eviction(reason.as_str(), &reason.underlying_cause(workload));
    match reason {
        EvictionReason::Deactivated => {
            edit.status.requeue_state = None;
            condition::remove(&mut edit.status.conditions, names::DEACTIVATION_TARGET);
        }
        EvictionReason::Preempted(preemption) => {
            edit.set(names::PREEMPTED, true, preemption.reason.as_str(), preemption.to_string());
        }
        EvictionReason::PodsReadyTimeout(timeout) => {
            let state = edit.status.requeue_state.get_or_insert_with(RequeueState::default);
            state.count = Some(i32::try_from(timeout.requeue_count).unwrap_or(i32::MAX));
            state.requeue_at = Some(Time(timeout.requeue_at));
        }
        EvictionReason::ClusterQueueStopped | EvictionReason::LocalQueueStopped | EvictionReason::PodsRejected(_) => {}
    }
    if edit.status.admission.is_some() {
        return edit.status;
    }
    released(&Workload { status: Some(edit.status), ..workload.clone() }, now)
}

/// Returns the status of a partially preempted workload. It holds the quota of `part` until the
/// pods are gone and its spec requests less.
pub fn partially_preempted(
    workload: &Workload,
    part: PreemptiblePart,
    preemption: &Preemption,
    now: Timestamp,
) -> WorkloadStatus {
    let mut edit = StatusEditor::of(workload, now);
    edit.set(PARTIALLY_PREEMPTED, true, part.as_str(), format!("For workload {}: {preemption}", preemption.preemptor));
    edit.status
}

/// Returns the status after a partial preemption is complete.
pub fn part_released(workload: &Workload, now: Timestamp) -> WorkloadStatus {
    let mut edit = StatusEditor::of(workload, now);
    edit.set_previously(PARTIALLY_PREEMPTED, RELEASED_REASON);
    edit.status
}

/// Returns the status with the condition DeactivationTarget.
pub fn deactivation_requested(workload: &Workload, cause: DeactivationCause, now: Timestamp) -> WorkloadStatus {
    let mut edit = StatusEditor::of(workload, now);
    edit.set(names::DEACTIVATION_TARGET, true, cause.as_str(), cause.message().to_owned());
    if cause == DeactivationCause::MaximumExecutionTimeExceeded {
        edit.status.accumulated_past_execution_time_seconds = None;
    }
    edit.status
}

/// Returns the accumulated execution time of a workload in seconds; `None` if it was never
/// admitted.
pub fn execution_time(workload: &Workload, now: Timestamp) -> Option<i32> {
    let status = workload.status.as_ref()?;
    let past = status.accumulated_past_execution_time_seconds;
    let Some(admitted) = condition::get_true(&status.conditions, names::ADMITTED) else {
        return past;
    };
    let this_time = (now.as_second() - admitted.last_transition_time.0.as_second()).max(0);
    Some(past.unwrap_or(0).saturating_add(i32::try_from(this_time).unwrap_or(i32::MAX)))
}

/// Returns the status that releases the quota of an evicted workload, once its pods are gone.
/// Called by the code that stops the job.
pub fn released(workload: &Workload, now: Timestamp) -> WorkloadStatus {
    let mut edit = StatusEditor::of(workload, now);
    let evicted = condition::get(&edit.status.conditions, names::EVICTED).cloned();
    let (reason, message) = match &evicted {
        Some(evicted) if evicted.status == "True" => (evicted.reason.clone(), evicted.message.clone()),
        _ => (PendingReason::PendingEvaluation.as_str().to_owned(), "The workload holds no quota".to_owned()),
    };
    // Kueue gives a workload that is deactivated before it holds quota the reason of the eviction.
    let held_quota = edit.status.admission.is_some();
    let why = match reason.as_str() {
        reason if is_deactivation(reason) && !held_quota => names::evicted_reason::DEACTIVATED,
        _ => PendingReason::PendingEvaluation.as_str(),
    };
    edit.set(names::QUOTA_RESERVED, false, why, message.clone());
    if condition::is_true(&edit.status.conditions, names::ADMITTED) {
        // A workload reactivated after its maximum execution time starts with the full time again.
        let timed_out = reason.ends_with(DeactivationCause::MaximumExecutionTimeExceeded.as_str());
        let spent = execution_time(workload, now).filter(|_| !timed_out);
        edit.status.accumulated_past_execution_time_seconds = spent;
    }
    edit.set(names::ADMITTED, false, NO_RESERVATION_REASON, NO_RESERVATION_MESSAGE.to_owned());
    let requeued_later = [
        names::evicted_reason::CLUSTER_QUEUE_STOPPED,
        names::evicted_reason::LOCAL_QUEUE_STOPPED,
        names::evicted_reason::PODS_READY_TIMEOUT,
        names::evicted_reason::ADMISSION_CHECK,
    ];
    if evicted.is_some() {
        let later = requeued_later.contains(&reason.as_str()) || is_deactivation(&reason);
        edit.set(names::REQUEUED, !later, &reason, message);
    }
    edit.status.admission = None;
    edit.status
}

/// Returns the status of a slice that was replaced by a newer slice with quota.
pub fn finished_replaced(workload: &Workload, by: &ReplacementSlice, now: Timestamp) -> WorkloadStatus {
    let mut edit = StatusEditor::of(workload, now);
    let message = format!(
        "Replaced to accommodate a workload (UID: {}, JobUID: {}) due to workload slice aggregation: {}",
        by.uid,
        by.job_uid.as_deref().unwrap_or_default(),
        by.workload
    );
    edit.set(names::FINISHED, true, names::finished_reason::WORKLOAD_SLICE_REPLACED, message);
    edit.status
}

/// Returns the status with the admission reduced to a scaled-down spec.
pub fn admission_reduced(workload: &Workload, admission: &Admission) -> WorkloadStatus {
    WorkloadStatus { admission: Some(admission.clone()), ..workload.status.clone().unwrap_or_default() }
}

/// Returns true if the status of a ClusterQueue already matches `report`.
pub(super) fn cluster_queue_matches(status: &ClusterQueueStatus, report: &ClusterQueueReport) -> bool {
    let counts = (status.pending_workloads, status.reserving_workloads, status.admitted_workloads);
    let share = status.fair_sharing.as_ref().map(|sharing| sharing.weighted_share);
    counts == (report.counts.pending, report.counts.reserving, report.counts.admitted)
        && share == report.weighted_share
        && status.flavors_reservation == report.reservation
        && status.flavors_usage == report.usage
        && active_matches(&status.conditions, &report.active_condition, report.generation)
        && unsupported_matches(&status.conditions, &report.unsupported_fields, report.generation)
}

/// Returns true if the status of a LocalQueue already matches `report`.
pub(super) fn local_queue_matches(status: &LocalQueueStatus, report: &LocalQueueReport) -> bool {
    let counts = (status.pending_workloads, status.reserving_workloads, status.admitted_workloads);
    counts == (report.counts.pending, report.counts.reserving, report.counts.admitted)
        && status.flavors_reservation == report.reservation
        && status.flavors_usage == report.usage
        && active_matches(&status.conditions, &report.active_condition, report.generation)
}

/// Returns the status of a ClusterQueue updated to `report`. Fields of other controllers are kept.
pub fn cluster_queue(old: &ClusterQueueStatus, report: &ClusterQueueReport, now: Timestamp) -> ClusterQueueStatus {
    let mut status = old.clone();
    set_active(&mut status.conditions, &report.active_condition, report.generation, now);
    set_unsupported(&mut status.conditions, &report.unsupported_fields, report.generation, now);
    status.flavors_reservation.clone_from(&report.reservation);
    status.flavors_usage.clone_from(&report.usage);
    status.pending_workloads = report.counts.pending;
    status.reserving_workloads = report.counts.reserving;
    status.admitted_workloads = report.counts.admitted;
    status.fair_sharing = report.weighted_share.map(|weighted_share| FairSharingStatus { weighted_share });
    status
}

/// Returns the status of a Cohort for `report`.
pub fn cohort(report: &CohortReport) -> CohortStatus {
    CohortStatus { fair_sharing: report.weighted_share.map(|weighted_share| FairSharingStatus { weighted_share }) }
}

/// Returns the status of a LocalQueue updated to `report`. Fields of other controllers are kept.
pub fn local_queue(old: &LocalQueueStatus, report: &LocalQueueReport, now: Timestamp) -> LocalQueueStatus {
    let mut status = old.clone();
    set_active(&mut status.conditions, &report.active_condition, report.generation, now);
    status.flavors_reservation.clone_from(&report.reservation);
    status.flavors_usage.clone_from(&report.usage);
    status.pending_workloads = report.counts.pending;
    status.reserving_workloads = report.counts.reserving;
    status.admitted_workloads = report.counts.admitted;
    status
}

fn active_condition(activity: &ActiveCondition, generation: Option<i64>) -> ConditionUpdate {
    ConditionUpdate {
        type_: names::ACTIVE,
        status: activity.active,
        reason: activity.reason.to_owned(),
        message: activity.message.clone(),
        observed_generation: generation,
    }
}

/// Returns the condition that names the unsupported fields; `None` if there are none.
fn unsupported_condition(fields: &[String], generation: Option<i64>) -> Option<ConditionUpdate> {
    (!fields.is_empty()).then(|| ConditionUpdate {
        type_: names::UNSUPPORTED,
        status: true,
        reason: condition::UNSUPPORTED_REASON.to_owned(),
        message: format!("Sluice does not support {} yet", fields.join(", ")),
        observed_generation: generation,
    })
}

fn set_active(conditions: &mut Vec<Condition>, activity: &ActiveCondition, generation: Option<i64>, now: Timestamp) {
    condition::set(conditions, now, active_condition(activity, generation));
}

fn active_matches(conditions: &[Condition], activity: &ActiveCondition, generation: Option<i64>) -> bool {
    condition::is_up_to_date(conditions, &active_condition(activity, generation))
}

fn set_unsupported(conditions: &mut Vec<Condition>, fields: &[String], generation: Option<i64>, now: Timestamp) {
    match unsupported_condition(fields, generation) {
        Some(verdict) => {
            condition::set(conditions, now, verdict);
        }
        None => {
            condition::remove(conditions, names::UNSUPPORTED);
        }
    }
}

fn unsupported_matches(conditions: &[Condition], fields: &[String], generation: Option<i64>) -> bool {
    match unsupported_condition(fields, generation) {
        Some(verdict) => condition::is_up_to_date(conditions, &verdict),
        None => condition::get(conditions, names::UNSUPPORTED).is_none(),
    }
}

/// Builder for the new status of a workload.
struct StatusEditor {
    status: WorkloadStatus,
    generation: Option<i64>,
    now: Timestamp,
}

impl StatusEditor {
    fn of(workload: &Workload, now: Timestamp) -> Self {
        let status = workload.status.clone().unwrap_or_default();
        Self { status, generation: workload.metadata.generation, now }
    }

    fn set(&mut self, type_: &'static str, status: bool, reason: &str, message: String) {
        let observed_generation = self.generation;
        let verdict = ConditionUpdate { type_, status, reason: reason.to_owned(), message, observed_generation };
        condition::set(&mut self.status.conditions, self.now, verdict);
    }

    /// Sets a condition that is True to False, keeping its message as the previous one.
    fn set_previously(&mut self, type_: &'static str, reason: &str) {
        if let Some(current) = condition::get_true(&self.status.conditions, type_) {
            let message = format!("Previously: {}", current.message);
            self.set(type_, false, reason, message);
        }
    }

    /// Ends the backoff of a workload that is queued again, and sets the condition Requeued to True if
    /// it is False. A job controller that stops the job need not have set the condition.
    fn mark_requeued(&mut self) {
        if let Some(state) = &mut self.status.requeue_state {
            state.requeue_at = None;
        }
        let requeued = condition::get(&self.status.conditions, names::REQUEUED);
        let Some(requeued) = requeued.filter(|requeued| requeued.status == "False") else { return };
        let (reason, message) = match requeued.reason.as_str() {
            names::evicted_reason::CLUSTER_QUEUE_STOPPED => {
                (names::requeued_reason::CLUSTER_QUEUE_RESTARTED, "The ClusterQueue was restarted after being stopped")
            }
            names::evicted_reason::LOCAL_QUEUE_STOPPED => {
                (names::requeued_reason::LOCAL_QUEUE_RESTARTED, "The LocalQueue was restarted after being stopped")
            }
            reason if is_deactivation(reason) => (names::requeued_reason::REACTIVATED, "The workload was reactivated"),
            _ => (names::requeued_reason::BACKOFF_FINISHED, "The workload backoff was finished"),
        };
        self.set(names::REQUEUED, true, reason, message.to_owned());
    }

    /// Counts an eviction in the scheduling statistics.
    fn count_eviction(&mut self, reason: &str, cause: &str) {
        let stats = self.status.scheduling_stats.get_or_insert_with(SchedulingStats::default);
        match stats.evictions.iter_mut().find(|count| count.reason == reason && count.underlying_cause == cause) {
            Some(eviction) => eviction.count = eviction.count.saturating_add(1),
            None => stats.evictions.push(EvictionCount {
                reason: reason.to_owned(),
                underlying_cause: cause.to_owned(),
                count: 1,
            }),
        }
    }

    fn update_unsupported(&mut self, workload: &Workload) {
        let fields = unsupported_fields(workload);
        set_unsupported(&mut self.status.conditions, &fields, self.generation, self.now);
    }
}

/// Returns the fields of a workload that are set but not supported.
fn unsupported_fields(workload: &Workload) -> Vec<String> {
    let spec = &workload.spec;
    let sets = &spec.pod_sets;
    let fields = [
        (!spec.preemption_gates.is_empty(), "spec.preemptionGates"),
        (sets.iter().any(|set| set.topology_request.is_some()), "spec.podSets[*].topologyRequest"),
    ];
    fields.into_iter().filter(|(set, _)| *set).map(|(_, name)| name.to_owned()).collect()
}
