//! RayService status
//! (KubeRay 1.7 `ray-operator/controllers/ray/rayservice_controller.go`, `calculateStatus`).

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::clusters::{ServiceCluster, active_cluster_name, pending_cluster_name};
use super::suspend::SuspendPhase;
use super::upgrade::{BlockReason, UpgradeAction};
use super::{
    ObservedService, ServiceContext, desired, incremental, initializing_timeout, ray_clusters, serve, upgrade_failure,
};
use sluice_api::condition::{self, ConditionUpdate};
use sluice_api::ray::admission_annotations::TIMED_OUT_ANNOTATION;
use sluice_api::ray::incremental_annotations::UPGRADE_FAILED_ANNOTATION;
use sluice_api::ray::{AppStatus, RayServiceStatus, RayServiceStatuses, ServeDeploymentStatus, names};
use sluice_plan::ServeStatus;
use sluice_plan::{Write, WriteRank};
use sluice_raycluster::FieldError;

/// Condition: the serve Service has ready endpoints.
pub const READY: &str = "Ready";
/// Condition: an active and a pending cluster exist.
pub const UPGRADE_IN_PROGRESS: &str = "UpgradeInProgress";
/// Condition, present only while an incremental upgrade is rolled back: traffic and capacity return
/// to the active cluster.
pub const ROLLBACK_IN_PROGRESS: &str = "RollbackInProgress";
/// Condition: all RayClusters are being deleted because the RayService is being suspended.
pub const SUSPENDING: &str = "Suspending";
/// Condition: the RayService is suspended and has no RayClusters.
pub const SUSPENDED: &str = "Suspended";
/// Condition, present only while True: a new RayCluster is required but not created, because the
/// strategy is None, its admission timed out, or its upgrade failed.
pub const UPGRADE_BLOCKED: &str = "sluice.dev/UpgradeBlocked";

/// Reason of [`READY`]: no cluster has served yet.
pub(super) const INITIALIZING: &str = "Initializing";
/// Reason of [`READY`]: initialization timed out.
pub(super) const TIMED_OUT: &str = "InitializingTimeout";

/// Returns the write of the status of a running RayService; None if nothing changed.
pub(super) fn running_status_write(context: &ServiceContext<'_>) -> Option<Write> {
    let observed = context.observed;
    let old = observed.service.status.clone().unwrap_or_default();
    let mut status = old.clone();
    // The status keeps naming the previously active cluster until its annotation records that it
    // served.
    if !ray_clusters::has_unrecorded_predecessor(context) {
        status.active_service_status =
            context.clusters.active.as_ref().map(|child| cluster_status_entry(context, child, &old));
        status.pending_service_status =
            context.pending_cluster().map(|child| cluster_status_entry(context, child, &old));
    }
    let endpoints = ready_endpoint_count(observed);
    status.num_serve_endpoints = Some(i32::try_from(endpoints).unwrap_or(i32::MAX));
    let mut conditions = ConditionWriter { conditions: &mut status.conditions, observed };
    if context.phase == SuspendPhase::Resuming {
        conditions.set(SUSPENDED, false, "RayServiceResumed", "the RayService is resumed");
    }
    set_ready(context, endpoints, &mut conditions);
    set_upgrade_in_progress(context, &mut conditions);
    set_rollback_in_progress(context, &mut conditions);
    set_spec_rejected(context, &mut conditions);
    set_upgrade_blocked(context, &mut conditions);
    conditions.unsupported();
    status_write(observed, old, status)
}

/// Returns the write of the status of a RayService that is being suspended or is suspended.
pub(super) fn suspended_status_write(observed: &ObservedService<'_>, phase: SuspendPhase) -> Option<Write> {
    let old = observed.service.status.clone().unwrap_or_default();
    let mut status = old.clone();
    status.active_service_status = None;
    status.pending_service_status = None;
    status.num_serve_endpoints = Some(0);
    let mut conditions = ConditionWriter { conditions: &mut status.conditions, observed };
    let remaining = observed.clusters.len();
    match phase {
        SuspendPhase::Requested => {
            let text = "spec.suspend is true; all RayClusters of the RayService will be deleted";
            conditions.set(SUSPENDING, true, "SuspendRequested", text);
            conditions.remove(SUSPENDED);
            conditions.set(READY, false, "SuspendInProgress", "the RayService is being suspended");
            conditions.set(UPGRADE_IN_PROGRESS, false, "SuspendInProgress", "the RayService is being suspended");
        }
        SuspendPhase::DeletingClusters => {
            let text = format!("waiting for {remaining} RayClusters to be deleted");
            conditions.set(SUSPENDING, true, "SuspendInProgress", text);
        }
        SuspendPhase::ClustersDeleted => {
            let text = "all RayClusters of the RayService are deleted";
            conditions.set(SUSPENDING, false, "SuspendComplete", text);
            conditions.set(SUSPENDED, true, "SuspendComplete", text);
            conditions.set(READY, false, "SuspendComplete", "the RayService is suspended");
            conditions.set(UPGRADE_IN_PROGRESS, false, "SuspendComplete", "the RayService is suspended");
        }
        SuspendPhase::Running | SuspendPhase::Suspended | SuspendPhase::Resuming => {}
    }
    conditions.unsupported();
    status_write(observed, old, status)
}

/// Returns the write of the status of a RayService whose initialization timed out.
pub(super) fn timed_out_status_write(observed: &ObservedService<'_>) -> Option<Write> {
    let old = observed.service.status.clone().unwrap_or_default();
    let mut status = old.clone();
    status.active_service_status = None;
    status.pending_service_status = None;
    status.num_serve_endpoints = Some(0);
    let mut conditions = ConditionWriter { conditions: &mut status.conditions, observed };
    let limit = initializing_timeout::initializing_timeout(observed.service).ok().flatten();
    let limit = limit.map_or_else(|| "in time".to_owned(), |limit| format!("within {limit:#}"));
    let text = format!(
        "the RayService did not become ready {limit} (annotation {}); suspend and resume it, or recreate it, to retry",
        names::INITIALIZING_TIMEOUT_ANNOTATION
    );
    conditions.set(READY, false, TIMED_OUT, text);
    conditions.set(UPGRADE_IN_PROGRESS, false, TIMED_OUT, "no RayCluster is active or pending");
    conditions.unsupported();
    status_write(observed, old, status)
}

fn status_write(
    observed: &ObservedService<'_>,
    old: RayServiceStatuses,
    mut status: RayServiceStatuses,
) -> Option<Write> {
    status.observed_generation = observed.service.metadata.generation;
    status.service_status = condition::is_true(&status.conditions, READY).then(|| "Running".to_owned());
    if status == old {
        return None;
    }
    let rank = if is_progress(&old, &status) { WriteRank::Progress } else { WriteRank::Decision };
    status.last_update_time = Some(Time(condition::whole_seconds(observed.now)));
    Write::patch_status(observed.service, &status).map(|write| write.ranked(rank))
}

/// Reports whether no planner acts on the change of a status and no user waits for it: clusters,
/// capacity and traffic are the same, and the same conditions are true.
fn is_progress(old: &RayServiceStatuses, new: &RayServiceStatuses) -> bool {
    condition::true_conditions(&old.conditions) == condition::true_conditions(&new.conditions)
        && is_same_cluster(old.active_service_status.as_ref(), new.active_service_status.as_ref())
        && is_same_cluster(old.pending_service_status.as_ref(), new.pending_service_status.as_ref())
}

/// Reports whether the entries of a cluster differ only in its own status and in the states of its
/// applications. That it has applications is remembered across restarts.
fn is_same_cluster(old: Option<&RayServiceStatus>, new: Option<&RayServiceStatus>) -> bool {
    let rest = |entry: &RayServiceStatus| {
        let has_applications = entry.application_statuses.as_ref().is_some_and(|found| !found.is_empty());
        let rest = RayServiceStatus { ray_cluster_status: None, application_statuses: None, ..entry.clone() };
        (rest, has_applications)
    };
    old.map(rest) == new.map(rest)
}

fn cluster_status_entry(
    context: &ServiceContext<'_>,
    child: &ServiceCluster<'_>,
    old: &RayServiceStatuses,
) -> RayServiceStatus {
    let name = child.name();
    let previous = [&old.active_service_status, &old.pending_service_status].into_iter().flatten();
    let previous = previous.into_iter().find(|previous| previous.ray_cluster_name.as_ref() == Some(&name));
    // The last applications are kept while the dashboard does not respond and after a restart.
    let reported = child.serve.last_status().map(application_statuses);
    let mut entry = RayServiceStatus {
        application_statuses: reported.or_else(|| previous?.application_statuses.clone()),
        ray_cluster_name: Some(name),
        ray_cluster_status: child.cluster.status.clone(),
        ..RayServiceStatus::default()
    };
    incremental::record_shares(context, child, previous, &mut entry);
    entry
}

/// Returns true if the status lists applications of this cluster.
pub(super) fn had_applications(context: &ServiceContext<'_>, child: &ServiceCluster<'_>) -> bool {
    let status = context.observed.service.status.as_ref();
    let entries = status.into_iter().flat_map(|status| [&status.active_service_status, &status.pending_service_status]);
    let mut entries = entries.flatten().filter(|entry| entry.ray_cluster_name == Some(child.name()));
    entries.any(|entry| entry.application_statuses.as_ref().is_some_and(|applications| !applications.is_empty()))
}

fn application_statuses(status: &ServeStatus) -> BTreeMap<String, AppStatus> {
    let display_name = |name: &String| if name.is_empty() { "default".to_owned() } else { name.clone() };
    let applications = status.applications.iter().map(|(name, application)| {
        let deployments = application.deployments.iter().map(|(name, deployment)| {
            let status = ServeDeploymentStatus {
                status: Some(deployment.status.clone()),
                message: non_empty(&deployment.message),
            };
            (name.clone(), status)
        });
        let status = AppStatus {
            serve_deployment_statuses: Some(deployments.collect()),
            status: Some(application.status.clone()),
            message: non_empty(&application.message),
        };
        (display_name(name), status)
    });
    applications.collect()
}

fn non_empty(message: &str) -> Option<String> {
    Some(message.to_owned()).filter(|message| !message.is_empty())
}

/// Returns the number of pods that are ready endpoints of the serve Service. A dual-stack pod
/// counts once.
fn ready_endpoint_count(observed: &ObservedService<'_>) -> usize {
    let endpoints = observed.endpoint_slices.iter().flat_map(|slice| slice.endpoints.iter().flatten());
    let ready = endpoints.filter(|endpoint| endpoint.conditions.as_ref().and_then(|state| state.ready) == Some(true));
    let pods = ready.filter_map(|endpoint| endpoint.target_ref.as_ref()?.uid.as_deref());
    pods.filter(|uid| !uid.is_empty()).collect::<BTreeSet<_>>().len()
}

fn set_ready(context: &ServiceContext<'_>, endpoints: usize, conditions: &mut ConditionWriter<'_>) {
    let was_ready = condition::is_true(conditions.conditions, READY);
    let previous_reason = condition::get(conditions.conditions, READY).map(|ready| ready.reason.clone());
    if endpoints > 0 {
        conditions.set(READY, true, "NonZeroServeEndpoints", format!("{endpoints} serve endpoints are ready"));
    } else if was_ready || previous_reason.as_deref() == Some("ZeroServeEndpoints") {
        conditions.set(READY, false, "ZeroServeEndpoints", "no serve endpoint is ready");
    } else if let Err(problems) = &context.desired {
        conditions.set(READY, false, "ValidationFailed", join_errors(problems));
    } else {
        let text = pending_reason(context).unwrap_or_else(|| "the RayService is initializing".to_owned());
        conditions.set(READY, false, INITIALIZING, text);
    }
}

fn set_upgrade_in_progress(context: &ServiceContext<'_>, conditions: &mut ConditionWriter<'_>) {
    let service = context.observed.service;
    match (reported_active_name(context), reported_pending_name(context)) {
        (Some(active), Some(pending)) => {
            let is_suspended = context.clusters.active.as_ref().is_some_and(ServiceCluster::is_suspended);
            let state = if is_suspended { "is active but suspended, so requests fail" } else { "is active" };
            let text = format!("RayCluster {active} {state}; RayCluster {pending} is pending");
            let text = incremental::progress_message(context).unwrap_or(text);
            let text = pending_reason(context).map_or_else(|| text.clone(), |waiting| format!("{text}; {waiting}"));
            conditions.set(UPGRADE_IN_PROGRESS, true, "BothActivePendingClustersExist", text);
        }
        (Some(active), None) => {
            let text = format!("RayCluster {active} is active and no RayCluster is pending");
            conditions.set(UPGRADE_IN_PROGRESS, false, "NoPendingCluster", text);
        }
        (None, _) if active_cluster_name(service).is_some() => {
            conditions.set(UPGRADE_IN_PROGRESS, false, "NoActiveCluster", "the active RayCluster no longer exists");
        }
        (None, _) => {
            let reason = condition::get(conditions.conditions, UPGRADE_IN_PROGRESS).map(|found| found.reason.as_str());
            if reason != Some("NoActiveCluster") {
                conditions.set(UPGRADE_IN_PROGRESS, false, INITIALIZING, "no RayCluster is active yet");
            }
        }
    }
}

fn set_rollback_in_progress(context: &ServiceContext<'_>, conditions: &mut ConditionWriter<'_>) {
    match incremental::rollback_message(context) {
        Some(why) => {
            let reason =
                if upgrade_failure_reason(context).is_some() { "UpgradeFailed" } else { "DesiredClusterSpecChanged" };
            conditions.set(ROLLBACK_IN_PROGRESS, true, reason, why);
        }
        None => conditions.remove(ROLLBACK_IN_PROGRESS),
    }
}

fn reported_active_name(context: &ServiceContext<'_>) -> Option<String> {
    match ray_clusters::has_unrecorded_predecessor(context) {
        true => active_cluster_name(context.observed.service).map(str::to_owned),
        false => context.clusters.active.as_ref().map(ServiceCluster::name),
    }
}

fn reported_pending_name(context: &ServiceContext<'_>) -> Option<String> {
    match ray_clusters::has_unrecorded_predecessor(context) {
        true => pending_cluster_name(context.observed.service).map(str::to_owned),
        false => context.pending_cluster().map(ServiceCluster::name),
    }
}

/// Returns why the pending cluster cannot serve yet; None if there is none or it can.
fn pending_reason(context: &ServiceContext<'_>) -> Option<String> {
    let pending = context.pending_cluster()?;
    let reason = match &context.desired {
        Ok(_) if matches!(context.action, UpgradeAction::Block { .. }) => "the upgrade is blocked".to_owned(),
        Ok(desired) => serve::not_serving_reason(context, pending, &desired.serve_config)?,
        Err(_) => "the spec is invalid".to_owned(),
    };
    Some(format!("RayCluster {} cannot serve yet: {reason}", pending.name()))
}

fn set_spec_rejected(context: &ServiceContext<'_>, conditions: &mut ConditionWriter<'_>) {
    match &context.desired {
        Ok(_) => conditions.remove(names::SPEC_REJECTED),
        Err(problems) => conditions.set(names::SPEC_REJECTED, true, "InvalidSpec", join_errors(problems)),
    }
}

fn set_upgrade_blocked(context: &ServiceContext<'_>, conditions: &mut ConditionWriter<'_>) {
    match (context.action, &context.clusters.active) {
        (UpgradeAction::Block { reason: BlockReason::UpgradesDisabled, .. }, Some(active)) => {
            let why = match desired::spec_strategy(context.observed.service) {
                Some(_) => "spec.upgradeStrategy.type is None",
                None => "spec.upgradeStrategy.type is not set, and --enable-zero-downtime is false",
            };
            let text = format!(
                "spec.rayClusterConfig differs from RayCluster {}, which is not replaced because {why}; \
                 set spec.upgradeStrategy.type to NewCluster to upgrade",
                active.name()
            );
            conditions.set(UPGRADE_BLOCKED, true, "UpgradeStrategyNone", text);
        }
        (UpgradeAction::Block { reason: BlockReason::AdmissionTimedOut, .. }, Some(active)) => {
            let text = format!(
                "the new RayCluster was not admitted in time; RayCluster {} stays active. The upgrade is retried when \
                 spec.rayClusterConfig changes or annotation {TIMED_OUT_ANNOTATION} is removed",
                active.name()
            );
            conditions.set(UPGRADE_BLOCKED, true, "UpgradeAdmissionTimedOut", text);
        }
        (_, Some(active)) if upgrade_failure_reason(context).is_some() => {
            let why = upgrade_failure_reason(context).unwrap_or_default();
            let text = format!(
                "the upgrade failed: {why}. RayCluster {} stays active; the upgrade is retried when the spec changes or \
                 annotation {UPGRADE_FAILED_ANNOTATION} is removed",
                active.name()
            );
            conditions.set(UPGRADE_BLOCKED, true, "UpgradeFailed", text);
        }
        _ => conditions.remove(UPGRADE_BLOCKED),
    }
}

/// Returns why the desired upgrade failed; None if it did not.
fn upgrade_failure_reason<'s>(context: &'s ServiceContext<'_>) -> Option<&'s str> {
    upgrade_failure::failure_reason(context.observed.service, context.desired.as_ref().ok()?)
}

/// Joins all validation errors into one message.
pub(super) fn join_errors(problems: &[FieldError]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Conditions of a RayService. Condition types set by other controllers are kept.
struct ConditionWriter<'a> {
    conditions: &'a mut Vec<Condition>,
    observed: &'a ObservedService<'a>,
}

impl ConditionWriter<'_> {
    fn now(&self) -> Timestamp {
        self.observed.now
    }

    fn set(&mut self, type_: &'static str, status: bool, reason: &str, message: impl Into<String>) {
        let observed_generation = self.observed.service.metadata.generation;
        let verdict =
            ConditionUpdate { type_, status, reason: reason.to_owned(), message: message.into(), observed_generation };
        condition::set(self.conditions, self.now(), verdict);
    }

    fn remove(&mut self, type_: &str) {
        condition::remove(self.conditions, type_);
    }

    fn unsupported(&mut self) {
        let service = self.observed.service;
        let fields = desired::unsupported_fields(service);
        condition::set_unsupported(self.conditions, self.now(), service.metadata.generation, &fields);
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case::another_state_of_the_cluster(json!({"activeServiceStatus": {"rayClusterStatus": {"readyWorkerReplicas": 2}}}), true)]
    #[case::number_of_endpoints(json!({"numServeEndpoints": 2, "observedGeneration": 2}), true)]
    #[case::message_of_a_condition(json!({"conditions": [condition("Ready", "True", "2 serve endpoints are ready")]}), true)]
    #[case::condition_that_is_false(json!({"conditions": [ready(), condition("UpgradeInProgress", "False", "no")]}), true)]
    #[case::condition_becomes_true(json!({"conditions": [ready(), condition("UpgradeInProgress", "True", "yes")]}), false)]
    #[case::condition_becomes_false(json!({"conditions": [condition("Ready", "False", "no serve endpoint is ready")]}), false)]
    #[case::another_cluster(json!({"activeServiceStatus": {"rayClusterName": "b"}}), false)]
    #[case::pending_cluster(json!({"pendingServiceStatus": {"rayClusterName": "b"}}), false)]
    #[case::traffic(json!({"activeServiceStatus": {"trafficRoutedPercent": 50}}), false)]
    #[case::state_of_an_application(json!({"activeServiceStatus": {"applicationStatuses": {"fruit": {"status": "RUNNING"}}}}), true)]
    #[case::no_application(json!({"activeServiceStatus": {"applicationStatuses": {"fruit": null}}}), false)]
    fn status_reports_progress_if_only_what_nothing_waits_for_changes(#[case] change: Value, #[case] expected: bool) {
        let mut manifest = json!({
            "conditions": [ready()],
            "activeServiceStatus": {
                "rayClusterName": "a",
                "rayClusterStatus": {"readyWorkerReplicas": 1},
                "applicationStatuses": {"fruit": {"status": "DEPLOYING"}},
            },
            "numServeEndpoints": 1,
            "observedGeneration": 1,
        });
        let old: RayServiceStatuses = serde_json::from_value(manifest.clone()).expect("a status");
        json_patch::merge(&mut manifest, &change);
        let new = serde_json::from_value(manifest).expect("a status");

        assert_ne!(old, new);
        assert_eq!(is_progress(&old, &new), expected);
    }

    fn ready() -> Value {
        condition("Ready", "True", "1 serve endpoints are ready")
    }

    fn condition(type_: &str, status: &str, message: &str) -> Value {
        let time = "2026-01-01T00:00:00Z";
        json!({"type": type_, "status": status, "reason": "Any", "message": message, "lastTransitionTime": time})
    }
}
