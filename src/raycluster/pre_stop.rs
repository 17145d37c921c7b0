//! preStop hook of RayService workers: a terminating worker keeps serving for a few seconds.
//!
//! Gateways and kube-proxy learn of the termination no earlier than the worker, and send requests
//! to it until then. Without the delay these requests would fail.

use k8s_openapi::api::core::v1::{Container, LifecycleHandler, PodSpec, SleepAction};

/// Seconds that a terminating worker keeps serving; gateways update endpoints about every 2 s.
const PRE_STOP_SECONDS: i64 = 5;
/// Default `terminationGracePeriodSeconds` of a pod.
const DEFAULT_GRACE_PERIOD_SECONDS: i64 = 30;

/// Adds a preStop sleep to the container, unless the user has set a preStop hook or the grace
/// period is too short.
pub(super) fn apply_to(spec: &PodSpec, ray: &mut Container) {
    let seconds =
        PRE_STOP_SECONDS.min(spec.termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE_PERIOD_SECONDS) - 1);
    if seconds < 1 {
        return;
    }
    let sleep = SleepAction { seconds };
    let lifecycle = ray.lifecycle.get_or_insert_default();
    lifecycle.pre_stop.get_or_insert_with(|| LifecycleHandler { sleep: Some(sleep), ..LifecycleHandler::default() });
}
