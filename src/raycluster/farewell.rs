//! preStop hook of RayService workers: a terminating worker keeps serving for a few seconds.
//!
//! Gateways and kube-proxy learn of the termination no earlier than the worker, and send requests
//! to it until then. Without the delay these requests would fail.

use k8s_openapi::api::core::v1::{Container, LifecycleHandler, PodSpec, SleepAction};

/// Seconds that a terminating worker keeps serving; gateways update endpoints about every 2 s.
const SECONDS: i64 = 5;
/// Default `terminationGracePeriodSeconds` of a pod.
const GRACE_SECONDS: i64 = 30;

/// Adds a preStop sleep to the container, unless the user has set a preStop hook or the grace
/// period is too short.
pub(super) fn put(spec: &PodSpec, ray: &mut Container) {
    let seconds = SECONDS.min(spec.termination_grace_period_seconds.unwrap_or(GRACE_SECONDS) - 1);
    if seconds < 1 {
        return;
    }
    let sleep = SleepAction { seconds };
    let lifecycle = ray.lifecycle.get_or_insert_default();
    lifecycle.pre_stop.get_or_insert_with(|| LifecycleHandler { sleep: Some(sleep), ..LifecycleHandler::default() });
}
