//! Services that don't come to serve in time, if their owner has set a limit: their clusters go, and nothing is made any more
//! (KubeRay 1.7 `ray-operator/controllers/ray/rayservice_controller.go`, `markFailedOnInitializingTimeout`). Time that is spent waiting
//! for quota doesn't count: nothing of the service is at fault then.
//!
//! The end is in the condition `Ready`, before anything is deleted. Suspending the service, and resuming it, begins anew.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube_core::ResourceExt;

use super::{View, children, status};
use sluice_api::ray::RayService;
use sluice_api::ray::names::INITIALIZING_TIMEOUT_ANNOTATION;
use sluice_api::{condition, duration};
use sluice_plan::{Note, Plan};
use sluice_api::sluice::ADMITTED;

/// The limit that the owner has set.
///
/// # Errors
/// When the annotation doesn't say a time.
pub(super) fn limit(service: &RayService) -> Result<Option<SignedDuration>, String> {
    let Some(text) = service.annotations().get(INITIALIZING_TIMEOUT_ANNOTATION).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let seconds = || text.parse().ok().map(SignedDuration::from_secs);
    let limit = duration::parse(text).or_else(seconds).filter(SignedDuration::is_positive);
    limit
        .map(Some)
        .ok_or_else(|| format!("{text:?} is not a time above zero like 30m or 1h30m, nor a number of seconds"))
}

/// When a service that doesn't serve yet has taken too long.
pub(super) fn due(view: &View<'_>) -> Option<Timestamp> {
    let service = view.service;
    let limit = limit(service).ok()??;
    let conditions = conditions(service);
    let ready = condition::get(conditions, status::READY).filter(|ready| ready.status == "False")?;
    if ready.reason != status::INITIALIZING {
        return None;
    }
    let since = |found: &Condition| found.last_transition_time.0;
    let resumed = condition::get(conditions, status::SUSPENDED).map(since);
    let admitted = condition::get(conditions, ADMITTED).filter(|admitted| admitted.status == "True").map(since);
    if view.gated && admitted.is_none() {
        return None;
    }
    let begun = [Some(since(ready)), resumed, admitted].into_iter().flatten().max()?;
    Some(begun.saturating_add(limit).unwrap_or(Timestamp::MAX))
}

/// Whether a service has taken too long, and wants nothing any more.
pub fn is_over(service: &RayService) -> bool {
    let ready = condition::get(conditions(service), status::READY);
    ready.is_some_and(|ready| ready.status == "False" && ready.reason == status::TIMED_OUT)
}

/// Ends a service that takes too long, now or when it will have.
pub(super) fn plan(view: &View<'_>, due: Timestamp, plan: &mut Plan) -> bool {
    if due > view.now {
        plan.wake(due);
        return false;
    }
    let text = format!(
        "RayService {} is not ready in time ({INITIALIZING_TIMEOUT_ANNOTATION}); its clusters go",
        view.service.name_any()
    );
    plan.notes.push(Note::warning(view.service, "RayServiceInitializingTimeout", text));
    plan.write(status::of_timed_out(view));
    true
}

/// Plans a service that has taken too long.
pub(super) fn end(view: &View<'_>) -> Plan {
    let mut plan = Plan::default();
    children::delete_all(view.service, &view.children, &mut plan);
    plan.write(status::of_timed_out(view));
    plan
}

fn conditions(service: &RayService) -> &[Condition] {
    service.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default()
}
