//! RayService status
//! (KubeRay 1.7 `ray-operator/controllers/ray/rayservice_controller.go`, `calculateStatus`).

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::family::{Child, active_name, pending_name};
use super::suspend::Phase;
use super::upgrade::{Reason, Step};
use super::{Scene, View, children, failed, goal, incremental, initializing, serve};
use sluice_api::condition::{self, Verdict};
use sluice_api::ray::step_choices::FAILED_ANNOTATION;
use sluice_api::ray::upgrade_choices::GIVEN_UP_ANNOTATION;
use sluice_api::ray::{AppStatus, RayServiceStatus, RayServiceStatuses, ServeDeploymentStatus, names};
use sluice_plan::ServeStatus;
use sluice_plan::Write;
use sluice_raycluster::Problem;

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
pub const UPGRADE_HELD: &str = "sluice.dev/UpgradeBlocked";

/// Reason of [`READY`]: no cluster has served yet.
pub(super) const INITIALIZING: &str = "Initializing";
/// Reason of [`READY`]: initialization timed out.
pub(super) const TIMED_OUT: &str = "InitializingTimeout";

/// Returns the write of the status of a running RayService; None if nothing changed.
pub(super) fn write(context: &Scene<'_>) -> Option<Write> {
    let observed = context.view;
    let old = observed.service.status.clone().unwrap_or_default();
    let mut status = old.clone();
    // The status keeps naming the previously active cluster until its annotation records that it
    // served.
    if !children::has_unmarked_predecessor(context) {
        status.active_service_status = context.family.active.as_ref().map(|child| entry(context, child, &old));
        status.pending_service_status = context.pending().map(|child| entry(context, child, &old));
    }
    let endpoints = endpoints(observed);
    status.num_serve_endpoints = Some(i32::try_from(endpoints).unwrap_or(i32::MAX));
    let mut conditions = Conditions { all: &mut status.conditions, view: observed };
    if context.phase == Phase::Resuming {
        conditions.set(SUSPENDED, false, "RayServiceResumed", "the RayService is resumed");
    }
    readiness(context, endpoints, &mut conditions);
    progress(context, &mut conditions);
    rollback(context, &mut conditions);
    validity(context, &mut conditions);
    held(context, &mut conditions);
    conditions.unsupported();
    finish(observed, old, status)
}

/// Returns the write of the status of a RayService that is being suspended or is suspended.
pub(super) fn of_suspended(observed: &View<'_>, phase: Phase) -> Option<Write> {
    let old = observed.service.status.clone().unwrap_or_default();
    let mut status = old.clone();
    status.active_service_status = None;
    status.pending_service_status = None;
    status.num_serve_endpoints = Some(0);
    let mut conditions = Conditions { all: &mut status.conditions, view: observed };
    let remaining = observed.children.len();
    match phase {
        Phase::Asked => {
            let text = "spec.suspend is true; all RayClusters of the RayService will be deleted";
            conditions.set(SUSPENDING, true, "SuspendRequested", text);
            conditions.remove(SUSPENDED);
            conditions.set(READY, false, "SuspendInProgress", "the RayService is being suspended");
            conditions.set(UPGRADE_IN_PROGRESS, false, "SuspendInProgress", "the RayService is being suspended");
        }
        Phase::Taking => {
            let text = format!("waiting for {remaining} RayClusters to be deleted");
            conditions.set(SUSPENDING, true, "SuspendInProgress", text);
        }
        Phase::Taken => {
            let text = "all RayClusters of the RayService are deleted";
            conditions.set(SUSPENDING, false, "SuspendComplete", text);
            conditions.set(SUSPENDED, true, "SuspendComplete", text);
            conditions.set(READY, false, "SuspendComplete", "the RayService is suspended");
            conditions.set(UPGRADE_IN_PROGRESS, false, "SuspendComplete", "the RayService is suspended");
        }
        Phase::Running | Phase::Suspended | Phase::Resuming => {}
    }
    conditions.unsupported();
    finish(observed, old, status)
}

/// Returns the write of the status of a RayService whose initialization timed out.
pub(super) fn of_timed_out(observed: &View<'_>) -> Option<Write> {
    let old = observed.service.status.clone().unwrap_or_default();
    let mut status = old.clone();
    status.active_service_status = None;
    status.pending_service_status = None;
    status.num_serve_endpoints = Some(0);
    let mut conditions = Conditions { all: &mut status.conditions, view: observed };
    let limit = initializing::limit(observed.service).ok().flatten();
    let limit = limit.map_or_else(|| "in time".to_owned(), |limit| format!("within {limit:#}"));
    let text = format!(
        "the RayService did not become ready {limit} (annotation {}); suspend and resume it, or recreate it, to retry",
        names::INITIALIZING_TIMEOUT_ANNOTATION
    );
    conditions.set(READY, false, TIMED_OUT, text);
    conditions.set(UPGRADE_IN_PROGRESS, false, TIMED_OUT, "no RayCluster is active or pending");
    conditions.unsupported();
    finish(observed, old, status)
}

fn finish(observed: &View<'_>, old: RayServiceStatuses, mut status: RayServiceStatuses) -> Option<Write> {
    status.observed_generation = observed.service.metadata.generation;
    status.service_status = condition::is_true(&status.conditions, READY).then(|| "Running".to_owned());
    if status == old {
        return None;
    }
    status.last_update_time = Some(Time(condition::whole_seconds(observed.now)));
    Write::patch_status(observed.service, &status)
}

fn entry(context: &Scene<'_>, child: &Child<'_>, old: &RayServiceStatuses) -> RayServiceStatus {
    let name = child.name();
    let previous = [&old.active_service_status, &old.pending_service_status].into_iter().flatten();
    let previous = previous.into_iter().find(|previous| previous.ray_cluster_name.as_ref() == Some(&name));
    // The last applications are kept while the dashboard does not respond and after a restart.
    let reported = child.serve.last_status().map(applications);
    let mut entry = RayServiceStatus {
        application_statuses: reported.or_else(|| previous?.application_statuses.clone()),
        ray_cluster_name: Some(name),
        ray_cluster_status: child.cluster.status.clone(),
        ..RayServiceStatus::default()
    };
    incremental::record(context, child, previous, &mut entry);
    entry
}

/// Returns true if the status lists applications of this cluster.
pub(super) fn had_applications(context: &Scene<'_>, child: &Child<'_>) -> bool {
    let status = context.view.service.status.as_ref();
    let entries = status.into_iter().flat_map(|status| [&status.active_service_status, &status.pending_service_status]);
    let mut entries = entries.flatten().filter(|entry| entry.ray_cluster_name == Some(child.name()));
    entries.any(|entry| entry.application_statuses.as_ref().is_some_and(|applications| !applications.is_empty()))
}

fn applications(status: &ServeStatus) -> BTreeMap<String, AppStatus> {
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
fn endpoints(observed: &View<'_>) -> usize {
    let endpoints = observed.endpoint_slices.iter().flat_map(|slice| slice.endpoints.iter().flatten());
    let ready = endpoints.filter(|endpoint| endpoint.conditions.as_ref().and_then(|state| state.ready) == Some(true));
    let pods = ready.filter_map(|endpoint| endpoint.target_ref.as_ref()?.uid.as_deref());
    pods.filter(|uid| !uid.is_empty()).collect::<BTreeSet<_>>().len()
}

fn readiness(context: &Scene<'_>, endpoints: usize, conditions: &mut Conditions<'_>) {
    let was_ready = condition::is_true(conditions.all, READY);
    let previous_reason = condition::get(conditions.all, READY).map(|ready| ready.reason.clone());
    if endpoints > 0 {
        conditions.set(READY, true, "NonZeroServeEndpoints", format!("{endpoints} serve endpoints are ready"));
    } else if was_ready || previous_reason.as_deref() == Some("ZeroServeEndpoints") {
        conditions.set(READY, false, "ZeroServeEndpoints", "no serve endpoint is ready");
    } else if let Err(problems) = &context.goal {
        conditions.set(READY, false, "ValidationFailed", told(problems));
    } else {
        let text = waiting(context).unwrap_or_else(|| "the RayService is initializing".to_owned());
        conditions.set(READY, false, INITIALIZING, text);
    }
}

fn progress(context: &Scene<'_>, conditions: &mut Conditions<'_>) {
    let service = context.view.service;
    match (active_name_of(context), pending_name_of(context)) {
        (Some(active), Some(pending)) => {
            let is_suspended = context.family.active.as_ref().is_some_and(Child::is_suspended);
            let state = if is_suspended { "is active but suspended, so requests fail" } else { "is active" };
            let text = format!("RayCluster {active} {state}; RayCluster {pending} is pending");
            let text = incremental::progress(context).unwrap_or(text);
            let text = waiting(context).map_or_else(|| text.clone(), |waiting| format!("{text}; {waiting}"));
            conditions.set(UPGRADE_IN_PROGRESS, true, "BothActivePendingClustersExist", text);
        }
        (Some(active), None) => {
            let text = format!("RayCluster {active} is active and no RayCluster is pending");
            conditions.set(UPGRADE_IN_PROGRESS, false, "NoPendingCluster", text);
        }
        (None, _) if active_name(service).is_some() => {
            conditions.set(UPGRADE_IN_PROGRESS, false, "NoActiveCluster", "the active RayCluster no longer exists");
        }
        (None, _) => {
            let reason = condition::get(conditions.all, UPGRADE_IN_PROGRESS).map(|found| found.reason.as_str());
            if reason != Some("NoActiveCluster") {
                conditions.set(UPGRADE_IN_PROGRESS, false, INITIALIZING, "no RayCluster is active yet");
            }
        }
    }
}

fn rollback(context: &Scene<'_>, conditions: &mut Conditions<'_>) {
    match incremental::rollback(context) {
        Some(why) => {
            let reason = if has_failed(context).is_some() { "UpgradeFailed" } else { "DesiredClusterSpecChanged" };
            conditions.set(ROLLBACK_IN_PROGRESS, true, reason, why);
        }
        None => conditions.remove(ROLLBACK_IN_PROGRESS),
    }
}

fn active_name_of(context: &Scene<'_>) -> Option<String> {
    match children::has_unmarked_predecessor(context) {
        true => active_name(context.view.service).map(str::to_owned),
        false => context.family.active.as_ref().map(Child::name),
    }
}

fn pending_name_of(context: &Scene<'_>) -> Option<String> {
    match children::has_unmarked_predecessor(context) {
        true => pending_name(context.view.service).map(str::to_owned),
        false => context.pending().map(Child::name),
    }
}

/// Returns why the pending cluster cannot serve yet; None if there is none or it can.
fn waiting(context: &Scene<'_>) -> Option<String> {
    let pending = context.pending()?;
    let reason = match &context.goal {
        Ok(_) if matches!(context.step, Step::Hold(..)) => "the upgrade is blocked".to_owned(),
        Ok(desired) => serve::waits_for(context, pending, &desired.config)?,
        Err(_) => "the spec is invalid".to_owned(),
    };
    Some(format!("RayCluster {} cannot serve yet: {reason}", pending.name()))
}

fn validity(context: &Scene<'_>, conditions: &mut Conditions<'_>) {
    match &context.goal {
        Ok(_) => conditions.remove(names::SPEC_REJECTED),
        Err(problems) => conditions.set(names::SPEC_REJECTED, true, "InvalidSpec", told(problems)),
    }
}

fn held(context: &Scene<'_>, conditions: &mut Conditions<'_>) {
    match (context.step, &context.family.active) {
        (Step::Hold(Reason::NoUpgrades, _), Some(active)) => {
            let why = match goal::own_strategy(context.view.service) {
                Some(_) => "spec.upgradeStrategy.type is None",
                None => "spec.upgradeStrategy.type is not set, and --enable-zero-downtime is false",
            };
            let text = format!(
                "spec.rayClusterConfig differs from RayCluster {}, which is not replaced because {why}; \
                 set spec.upgradeStrategy.type to NewCluster to upgrade",
                active.name()
            );
            conditions.set(UPGRADE_HELD, true, "UpgradeStrategyNone", text);
        }
        (Step::Hold(Reason::GivenUp, _), Some(active)) => {
            let text = format!(
                "the new RayCluster was not admitted in time; RayCluster {} stays active. The upgrade is retried when \
                 spec.rayClusterConfig changes or annotation {GIVEN_UP_ANNOTATION} is removed",
                active.name()
            );
            conditions.set(UPGRADE_HELD, true, "UpgradeAdmissionTimedOut", text);
        }
        (_, Some(active)) if has_failed(context).is_some() => {
            let why = has_failed(context).unwrap_or_default();
            let text = format!(
                "the upgrade failed: {why}. RayCluster {} stays active; the upgrade is retried when the spec changes or \
                 annotation {FAILED_ANNOTATION} is removed",
                active.name()
            );
            conditions.set(UPGRADE_HELD, true, "UpgradeFailed", text);
        }
        _ => conditions.remove(UPGRADE_HELD),
    }
}

/// Returns why the desired upgrade failed; None if it did not.
fn has_failed<'s>(context: &'s Scene<'_>) -> Option<&'s str> {
    failed::reason(context.view.service, context.goal.as_ref().ok()?)
}

/// Joins all validation errors into one message.
pub(super) fn told(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Conditions of a RayService. Condition types set by other controllers are kept.
struct Conditions<'a> {
    all: &'a mut Vec<Condition>,
    view: &'a View<'a>,
}

impl Conditions<'_> {
    fn now(&self) -> Timestamp {
        self.view.now
    }

    fn set(&mut self, type_: &'static str, status: bool, reason: &str, message: impl Into<String>) {
        let observed_generation = self.view.service.metadata.generation;
        let verdict =
            Verdict { type_, status, reason: reason.to_owned(), message: message.into(), observed_generation };
        condition::set(self.all, self.now(), verdict);
    }

    fn remove(&mut self, type_: &str) {
        condition::remove(self.all, type_);
    }

    fn unsupported(&mut self) {
        let service = self.view.service;
        let fields = goal::unsupported(service);
        condition::report_unsupported(self.all, self.now(), service.metadata.generation, &fields);
    }
}
