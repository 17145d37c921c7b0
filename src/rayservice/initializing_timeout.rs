//! Initialization timeout: a RayService that does not become ready in time loses its RayClusters,
//! and no new ones are created (KubeRay 1.7
//! `ray-operator/controllers/ray/rayservice_controller.go`, `markFailedOnInitializingTimeout`).
//! Time spent pending for quota does not count, because the RayService is not at fault.
//!
//! The timeout is recorded in the condition `Ready` before anything is deleted. Suspending and
//! resuming the RayService starts over.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube_core::ResourceExt;

use super::{ObservedService, ray_clusters, status};
use sluice_api::job_conditions::ADMITTED;
use sluice_api::ray::RayService;
use sluice_api::ray::names::INITIALIZING_TIMEOUT_ANNOTATION;
use sluice_api::{condition, duration};
use sluice_plan::{EventRecord, Plan};

/// Error in the value of the annotation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{value:?} is not a positive duration such as 30m or 1h30m, nor a positive number of seconds")]
pub(super) struct InvalidTimeout {
    value: String,
}

/// Returns the configured timeout; None if there is none.
///
/// # Errors
/// If the annotation is not a positive duration or number of seconds.
pub(super) fn initializing_timeout(service: &RayService) -> Result<Option<SignedDuration>, InvalidTimeout> {
    let Some(text) = service.annotations().get(INITIALIZING_TIMEOUT_ANNOTATION).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let seconds = || text.parse().ok().map(SignedDuration::from_secs);
    let limit = duration::parse(text).or_else(seconds).filter(SignedDuration::is_positive);
    limit.map(Some).ok_or_else(|| InvalidTimeout { value: text.clone() })
}

/// Returns when initialization times out; None if there is no timeout, the RayService is not
/// initializing, or it is pending for quota.
pub(super) fn timeout_at(observed: &ObservedService<'_>) -> Option<Timestamp> {
    let service = observed.service;
    let limit = initializing_timeout(service).ok()??;
    let conditions = service.conditions();
    let ready = condition::get_false(conditions, status::READY)?;
    if ready.reason != status::INITIALIZING {
        return None;
    }
    let since = |found: &Condition| found.last_transition_time.0;
    let resumed = condition::get(conditions, status::SUSPENDED).map(since);
    let admitted = condition::get_true(conditions, ADMITTED).map(since);
    if observed.is_queued && admitted.is_none() {
        return None;
    }
    let started_at = [Some(since(ready)), resumed, admitted].into_iter().flatten().max()?;
    Some(started_at.saturating_add(limit).unwrap_or(Timestamp::MAX))
}

/// Returns true if initialization has timed out: the RayService needs no RayClusters.
pub fn has_timed_out(service: &RayService) -> bool {
    let ready = condition::get_false(service.conditions(), status::READY);
    ready.is_some_and(|ready| ready.reason == status::TIMED_OUT)
}

/// Records the timeout if it is due and returns true; otherwise schedules the next check and
/// returns false.
pub(super) fn record_timeout_when_due(observed: &ObservedService<'_>, due: Timestamp, plan: &mut Plan) -> bool {
    if due > observed.now {
        plan.wake_by(due);
        return false;
    }
    let text = format!(
        "RayService {} did not become ready in time (annotation {INITIALIZING_TIMEOUT_ANNOTATION}); its RayClusters are deleted",
        observed.service.name_any()
    );
    plan.events.push(EventRecord::warning(observed.service, "RayServiceInitializingTimeout", text));
    plan.write(status::timed_out_status_write(observed));
    true
}

/// Plans a RayService that has timed out: deletes its RayClusters.
pub(super) fn plan_timed_out(observed: &ObservedService<'_>) -> Plan {
    let mut plan = Plan::default();
    ray_clusters::delete_all_clusters(observed.service, &observed.clusters, &mut plan);
    plan.write(status::timed_out_status_write(observed));
    plan
}
