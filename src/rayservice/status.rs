//! What the status of a service says
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

/// Condition: requests are being taken.
pub const READY: &str = "Ready";
/// Condition: there is a cluster that serves and one that serves next.
pub const UPGRADE_IN_PROGRESS: &str = "UpgradeInProgress";
/// Condition, there while an upgrade in steps is taken back: traffic and capacity go back to the cluster that had them.
pub const ROLLBACK_IN_PROGRESS: &str = "RollbackInProgress";
/// Condition: all clusters are being deleted because the service is to be suspended.
pub const SUSPENDING: &str = "Suspending";
/// Condition: the service is suspended, and has no clusters.
pub const SUSPENDED: &str = "Suspended";
/// Condition, there only while True: another cluster is wanted, and isn't made because the strategy forbids it, or because it waited
/// for quota for too long.
pub const UPGRADE_HELD: &str = "sluice.dev/UpgradeBlocked";

/// Reason of [`READY`]: nothing serves yet.
pub(super) const INITIALIZING: &str = "Initializing";
/// Reason of [`READY`]: that took too long, and is over.
pub(super) const TIMED_OUT: &str = "InitializingTimeout";

/// Writes the status of a service that runs, if there is anything new to say.
pub(super) fn write(scene: &Scene<'_>) -> Option<Write> {
    let view = scene.view;
    let old = view.service.status.clone().unwrap_or_default();
    let mut status = old.clone();
    // The status must not forget who served before that is on record elsewhere.
    if !children::has_unmarked_predecessor(scene) {
        status.active_service_status = scene.family.active.as_ref().map(|child| entry(scene, child, &old));
        status.pending_service_status = scene.pending().map(|child| entry(scene, child, &old));
    }
    let endpoints = endpoints(view);
    status.num_serve_endpoints = Some(i32::try_from(endpoints).unwrap_or(i32::MAX));
    let mut conditions = Conditions { all: &mut status.conditions, view };
    if scene.phase == Phase::Resuming {
        conditions.set(SUSPENDED, false, "RayServiceResumed", "the service runs again");
    }
    readiness(scene, endpoints, &mut conditions);
    progress(scene, &mut conditions);
    rollback(scene, &mut conditions);
    validity(scene, &mut conditions);
    held(scene, &mut conditions);
    conditions.unsupported();
    finish(view, old, status)
}

/// Writes the status of a service that is on its way to being suspended, or is.
pub(super) fn of_suspended(view: &View<'_>, phase: Phase) -> Option<Write> {
    let old = view.service.status.clone().unwrap_or_default();
    let mut status = old.clone();
    status.active_service_status = None;
    status.pending_service_status = None;
    status.num_serve_endpoints = Some(0);
    let mut conditions = Conditions { all: &mut status.conditions, view };
    let going = view.children.len();
    match phase {
        Phase::Asked => {
            let text = "spec.suspend is true; all RayClusters of the service will be deleted";
            conditions.set(SUSPENDING, true, "SuspendRequested", text);
            conditions.remove(SUSPENDED);
            conditions.set(READY, false, "SuspendInProgress", "the service is being suspended");
            conditions.set(UPGRADE_IN_PROGRESS, false, "SuspendInProgress", "the service is being suspended");
        }
        Phase::Taking => {
            let text = format!("{going} RayClusters of the service are not gone yet");
            conditions.set(SUSPENDING, true, "SuspendInProgress", text);
        }
        Phase::Taken => {
            let text = "all RayClusters of the service are gone";
            conditions.set(SUSPENDING, false, "SuspendComplete", text);
            conditions.set(SUSPENDED, true, "SuspendComplete", text);
            conditions.set(READY, false, "SuspendComplete", "the service is suspended");
            conditions.set(UPGRADE_IN_PROGRESS, false, "SuspendComplete", "the service is suspended");
        }
        Phase::Running | Phase::Suspended | Phase::Resuming => {}
    }
    conditions.unsupported();
    finish(view, old, status)
}

/// Writes the status of a service that has taken too long to come to serve.
pub(super) fn of_timed_out(view: &View<'_>) -> Option<Write> {
    let old = view.service.status.clone().unwrap_or_default();
    let mut status = old.clone();
    status.active_service_status = None;
    status.pending_service_status = None;
    status.num_serve_endpoints = Some(0);
    let mut conditions = Conditions { all: &mut status.conditions, view };
    let limit =
        initializing::limit(view.service).ok().flatten().map(|limit| format!(" of {limit:#}")).unwrap_or_default();
    let text = format!(
        "it did not come to serve in the time{limit} that annotation {} allows; suspend and resume it, or make it anew, to try again",
        names::INITIALIZING_TIMEOUT_ANNOTATION
    );
    conditions.set(READY, false, TIMED_OUT, text);
    conditions.set(UPGRADE_IN_PROGRESS, false, TIMED_OUT, "nothing serves, and nothing is to");
    conditions.unsupported();
    finish(view, old, status)
}

fn finish(view: &View<'_>, old: RayServiceStatuses, mut status: RayServiceStatuses) -> Option<Write> {
    status.observed_generation = view.service.metadata.generation;
    status.service_status = condition::is_true(&status.conditions, READY).then(|| "Running".to_owned());
    if status == old {
        return None;
    }
    status.last_update_time = Some(Time(condition::whole_seconds(view.now)));
    Write::patch_status(view.service, &status)
}

fn entry(scene: &Scene<'_>, child: &Child<'_>, old: &RayServiceStatuses) -> RayServiceStatus {
    let name = child.name();
    let before = [&old.active_service_status, &old.pending_service_status].into_iter().flatten();
    let before = before.into_iter().find(|before| before.ray_cluster_name.as_ref() == Some(&name));
    // What was seen last is kept while nobody answers, and while this process doesn't know yet.
    let seen = child.serve.last_status().map(applications);
    let mut entry = RayServiceStatus {
        application_statuses: seen.or_else(|| before?.application_statuses.clone()),
        ray_cluster_name: Some(name),
        ray_cluster_status: child.cluster.status.clone(),
        ..RayServiceStatus::default()
    };
    incremental::record(scene, child, before, &mut entry);
    entry
}

/// Whether applications were seen on a child when it was asked last.
pub(super) fn had_applications(scene: &Scene<'_>, child: &Child<'_>) -> bool {
    let status = scene.view.service.status.as_ref();
    let entries = status.into_iter().flat_map(|status| [&status.active_service_status, &status.pending_service_status]);
    let mut its = entries.flatten().filter(|entry| entry.ray_cluster_name == Some(child.name()));
    its.any(|entry| entry.application_statuses.as_ref().is_some_and(|seen| !seen.is_empty()))
}

fn applications(status: &ServeStatus) -> BTreeMap<String, AppStatus> {
    let named = |name: &String| if name.is_empty() { "default".to_owned() } else { name.clone() };
    let applications = status.applications.iter().map(|(name, application)| {
        let deployments = application.deployments.iter().map(|(name, deployment)| {
            let status =
                ServeDeploymentStatus { status: Some(deployment.status.clone()), message: said(&deployment.message) };
            (name.clone(), status)
        });
        let status = AppStatus {
            serve_deployment_statuses: Some(deployments.collect()),
            status: Some(application.status.clone()),
            message: said(&application.message),
        };
        (named(name), status)
    });
    applications.collect()
}

fn said(message: &str) -> Option<String> {
    Some(message.to_owned()).filter(|message| !message.is_empty())
}

/// How many pods take requests. One with two addresses counts once.
fn endpoints(view: &View<'_>) -> usize {
    let endpoints = view.endpoint_slices.iter().flat_map(|slice| slice.endpoints.iter().flatten());
    let ready = endpoints.filter(|endpoint| endpoint.conditions.as_ref().and_then(|state| state.ready) == Some(true));
    let pods = ready.filter_map(|endpoint| endpoint.target_ref.as_ref()?.uid.as_deref());
    pods.filter(|uid| !uid.is_empty()).collect::<BTreeSet<_>>().len()
}

fn readiness(scene: &Scene<'_>, endpoints: usize, conditions: &mut Conditions<'_>) {
    let was_ready = condition::is_true(conditions.all, READY);
    let before = condition::get(conditions.all, READY).map(|ready| ready.reason.clone());
    if endpoints > 0 {
        conditions.set(READY, true, "NonZeroServeEndpoints", format!("{endpoints} pods take requests"));
    } else if was_ready || before.as_deref() == Some("ZeroServeEndpoints") {
        conditions.set(READY, false, "ZeroServeEndpoints", "no pod takes requests");
    } else if let Err(problems) = &scene.goal {
        conditions.set(READY, false, "ValidationFailed", told(problems));
    } else {
        let text = waiting(scene).unwrap_or_else(|| "the service is initializing".to_owned());
        conditions.set(READY, false, INITIALIZING, text);
    }
}

fn progress(scene: &Scene<'_>, conditions: &mut Conditions<'_>) {
    let service = scene.view.service;
    match (active_name_of(scene), pending_name_of(scene)) {
        (Some(active), Some(pending)) => {
            let stopped = scene.family.active.as_ref().is_some_and(Child::is_suspended);
            let does = if stopped { "is suspended and takes no requests" } else { "serves" };
            let text = format!("RayCluster {active} {does}, RayCluster {pending} is to serve next");
            let text = incremental::progress(scene).unwrap_or(text);
            let text = waiting(scene).map_or_else(|| text.clone(), |waiting| format!("{text}; {waiting}"));
            conditions.set(UPGRADE_IN_PROGRESS, true, "BothActivePendingClustersExist", text);
        }
        (Some(active), None) => {
            let text = format!("RayCluster {active} serves, and none is to take its place");
            conditions.set(UPGRADE_IN_PROGRESS, false, "NoPendingCluster", text);
        }
        (None, _) if active_name(service).is_some() => {
            conditions.set(UPGRADE_IN_PROGRESS, false, "NoActiveCluster", "the RayCluster that served is gone");
        }
        (None, _) => {
            let known = condition::get(conditions.all, UPGRADE_IN_PROGRESS).map(|known| known.reason.as_str());
            if known != Some("NoActiveCluster") {
                conditions.set(UPGRADE_IN_PROGRESS, false, INITIALIZING, "no RayCluster serves yet");
            }
        }
    }
}

fn rollback(scene: &Scene<'_>, conditions: &mut Conditions<'_>) {
    match incremental::rollback(scene) {
        Some(why) => {
            let reason = if has_failed(scene).is_some() { "UpgradeFailed" } else { "DesiredClusterSpecChanged" };
            conditions.set(ROLLBACK_IN_PROGRESS, true, reason, why);
        }
        None => conditions.remove(ROLLBACK_IN_PROGRESS),
    }
}

fn active_name_of(scene: &Scene<'_>) -> Option<String> {
    match children::has_unmarked_predecessor(scene) {
        true => active_name(scene.view.service).map(str::to_owned),
        false => scene.family.active.as_ref().map(Child::name),
    }
}

fn pending_name_of(scene: &Scene<'_>) -> Option<String> {
    match children::has_unmarked_predecessor(scene) {
        true => pending_name(scene.view.service).map(str::to_owned),
        false => scene.pending().map(Child::name),
    }
}

/// What the cluster that is to serve next waits for.
fn waiting(scene: &Scene<'_>) -> Option<String> {
    let pending = scene.pending()?;
    let waits_for = match &scene.goal {
        Ok(_) if matches!(scene.step, Step::Hold(..)) => "the upgrade is held".to_owned(),
        Ok(goal) => serve::waits_for(scene, pending, &goal.config)?,
        Err(_) => "the spec is invalid".to_owned(),
    };
    Some(format!("RayCluster {} waits: {waits_for}", pending.name()))
}

fn validity(scene: &Scene<'_>, conditions: &mut Conditions<'_>) {
    match &scene.goal {
        Ok(_) => conditions.remove(names::SPEC_REJECTED),
        Err(problems) => conditions.set(names::SPEC_REJECTED, true, "InvalidSpec", told(problems)),
    }
}

fn held(scene: &Scene<'_>, conditions: &mut Conditions<'_>) {
    match (scene.step, &scene.family.active) {
        (Step::Hold(Reason::NoUpgrades, _), Some(active)) => {
            let why = match goal::own_strategy(scene.view.service) {
                Some(_) => "spec.upgradeStrategy.type is None",
                None => "spec.upgradeStrategy.type is not set, and --enable-zero-downtime is false",
            };
            let text = format!(
                "spec.rayClusterConfig is not that of RayCluster {}, which stays as it is because {why}",
                active.name()
            );
            conditions.set(UPGRADE_HELD, true, "UpgradeStrategyNone", text);
        }
        (Step::Hold(Reason::GivenUp, _), Some(active)) => {
            let text = format!(
                "another RayCluster is wanted, and waited for quota for too long; RayCluster {} stays as it is. It is tried again \
                 when spec.rayClusterConfig changes, or annotation {GIVEN_UP_ANNOTATION} is removed",
                active.name()
            );
            conditions.set(UPGRADE_HELD, true, "UpgradeAdmissionTimedOut", text);
        }
        (_, Some(active)) if has_failed(scene).is_some() => {
            let why = has_failed(scene).unwrap_or_default();
            let text = format!(
                "another RayCluster was tried, and failed: {why}. RayCluster {} serves; it is tried again when the spec changes, or \
                 annotation {FAILED_ANNOTATION} is removed",
                active.name()
            );
            conditions.set(UPGRADE_HELD, true, "UpgradeFailed", text);
        }
        _ => conditions.remove(UPGRADE_HELD),
    }
}

/// Why what is wanted has failed, if it has.
fn has_failed<'s>(scene: &'s Scene<'_>) -> Option<&'s str> {
    failed::reason(scene.view.service, scene.goal.as_ref().ok()?)
}

/// All problems in one sentence.
pub(super) fn told(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// The conditions of a service. Those that others have put there stay as they are.
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
