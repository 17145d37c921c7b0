//! Facts about a pod, from its metadata and status.

use k8s_openapi::api::core::v1::{Pod, PodCondition};

pub use crate::kueue::scheduling_gate::is_gated;

/// Returns the phase; None if no kubelet has reported any.
pub fn phase(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.phase.as_deref()
}

/// Returns whether the pod is being deleted.
pub fn is_terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Returns whether the pod has succeeded or failed, so that it no longer uses resources.
pub fn is_finished(pod: &Pod) -> bool {
    matches!(phase(pod), Some("Succeeded" | "Failed"))
}

/// Returns whether the pod has succeeded.
pub fn has_succeeded(pod: &Pod) -> bool {
    phase(pod) == Some("Succeeded")
}

/// Returns whether the phase of the pod is `Running`.
pub fn is_running(pod: &Pod) -> bool {
    phase(pod) == Some("Running")
}

/// Returns whether a scheduler has bound the pod to a node.
pub fn has_node(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some())
}

/// Returns the condition Ready; None if it is not set.
pub fn ready_condition(pod: &Pod) -> Option<&PodCondition> {
    pod.status.as_ref()?.conditions.iter().flatten().find(|condition| condition.type_ == "Ready")
}

/// Returns whether the condition Ready is True.
pub fn is_ready(pod: &Pod) -> bool {
    ready_condition(pod).is_some_and(|ready| ready.status == "True")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case::new(json!({}), "")]
    #[case::pending(json!({"status": {"phase": "Pending"}}), "")]
    #[case::running(json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}}), "running")]
    #[case::ready(json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}), "running ready")]
    #[case::succeeded(json!({"status": {"phase": "Succeeded"}}), "finished succeeded")]
    #[case::failed(json!({"status": {"phase": "Failed"}}), "finished")]
    #[case::terminating(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), "terminating")]
    #[case::gated(json!({"spec": {"containers": [], "schedulingGates": [{"name": "kueue.x-k8s.io/elastic-job"}]}}), "gated")]
    fn facts_are_read(#[case] pod: Value, #[case] expected: &str) {
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        let facts = [
            (is_terminating(&pod), "terminating"),
            (is_gated(&pod), "gated"),
            (is_running(&pod), "running"),
            (is_ready(&pod), "ready"),
            (is_finished(&pod), "finished"),
            (has_succeeded(&pod), "succeeded"),
        ];
        let held: Vec<&str> = facts.into_iter().filter(|(holds, _)| *holds).map(|(_, fact)| fact).collect();
        assert_eq!(held.join(" "), expected);
    }
}
