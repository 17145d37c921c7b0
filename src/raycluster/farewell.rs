//! What a worker of a service does when it is told to go: it answers for a while longer.
//!
//! Whoever lets requests in hears of that no sooner than the worker itself, and sends some more until then. They would find nobody.

use k8s_openapi::api::core::v1::{Container, LifecycleHandler, PodSpec, SleepAction};

/// For how long a worker goes on answering: a gateway takes in what has changed every two seconds or so.
const SECONDS: i64 = 5;
/// How long a pod has to end unless its owner says otherwise.
const GRACE_SECONDS: i64 = 30;

/// Has the container wait before it is stopped, unless its owner says what it does then, or leaves it no time.
pub(super) fn put(spec: &PodSpec, ray: &mut Container) {
    let seconds = SECONDS.min(spec.termination_grace_period_seconds.unwrap_or(GRACE_SECONDS) - 1);
    if seconds < 1 {
        return;
    }
    let sleep = SleepAction { seconds };
    let lifecycle = ray.lifecycle.get_or_insert_default();
    lifecycle.pre_stop.get_or_insert_with(|| LifecycleHandler { sleep: Some(sleep), ..LifecycleHandler::default() });
}
