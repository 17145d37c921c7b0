//! Pod garbage collector: ends deleted pods that were never bound, for which no kubelet is
//! responsible (kubernetes 1.36 `pkg/controller/podgc/gc_controller.go`,
//! `gcUnscheduledTerminating`). Only a finalizer keeps such a pod.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::object_view::{PodId, has_ended, is_terminating, items, text};
use super::{ControllerContext, Task};
use crate::api::ApiServer;

/// Observes a change of a pod.
pub(super) fn observe(context: &mut ControllerContext<'_>, id: &Arc<PodId>, pod: &Value) {
    if is_stuck(pod) {
        let delay = context.latencies.sample(&context.latencies.pod_gc, "pod gc", id.ordinal);
        context.schedule_after(delay, Task::CollectPod(id.clone()));
    }
}

/// Marks a deleted pod as failed, if it is still unbound, so that the Job controller removes its finalizer.
pub(super) fn collect(now: Timestamp, api: &mut ApiServer, id: &PodId) {
    if id.find(api).is_some_and(|pod| is_stuck(pod)) {
        let failed = |pod: &mut Value| pod["status"]["phase"] = json!("Failed");
        api.update_status(now, "Pod", &id.namespace, &id.name, failed).expect("the pod exists");
        api.delete_immediately(now, "Pod", &id.namespace, &id.name);
    }
}

fn is_stuck(pod: &Value) -> bool {
    let is_unbound = text(pod, "/spec/nodeName").is_empty();
    is_terminating(pod) && is_unbound && !has_ended(pod) && items(pod, "/metadata/finalizers").next().is_some()
}
