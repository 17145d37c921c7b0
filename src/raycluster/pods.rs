//! Accessors for existing pods of a cluster: node type, group, state and failures.

use k8s_openapi::api::core::v1::{ContainerState, Pod};
use kube_core::ResourceExt;

use super::ClusterContext;
use super::groups::RayNodeType;
use sluice_api::pod;
use sluice_api::ray::names;

/// Returns the pods of the cluster, sorted by name: those that it controls, and those that it created for
/// a queue and that nothing controls any longer, because the cluster is being deleted without them and
/// that is not observed yet. A pod of an earlier cluster of the same name is excluded: its quota and
/// deletion belong to that cluster.
pub(super) fn owned_by<'a>(view: &ClusterContext<'a>) -> Vec<&'a Pod> {
    let uid = view.cluster.metadata.uid.as_deref().unwrap_or_default();
    let is_own = |pod: &Pod| match pod.owner_references().iter().find(|owner| owner.controller == Some(true)) {
        Some(controller) => controller.uid == uid,
        // Anyone who may create pods can write the label: the pod has to be in the cluster's namespace.
        None => {
            pod.namespace() == view.cluster.namespace()
                && pod.labels().get(names::CLUSTER_UID_LABEL).is_some_and(|label| label == uid)
        }
    };
    let mut own: Vec<&Pod> = view.pods.iter().copied().filter(|pod| is_own(pod) && node_type(pod).is_some()).collect();
    own.sort_by_key(|pod| pod.metadata.name.as_deref());
    own
}

/// Returns the node type from the pod's label; `None` if the label is missing or unknown.
pub(super) fn node_type(pod: &Pod) -> Option<RayNodeType> {
    match pod.labels().get(names::NODE_TYPE_LABEL)?.as_str() {
        "head" => Some(RayNodeType::Head),
        "worker" => Some(RayNodeType::Worker),
        _ => None,
    }
}

/// Returns the group of a pod: `headgroup` for a head, else the group label; `None` if it is
/// missing.
pub(super) fn group_name(pod: &Pod) -> Option<&str> {
    match node_type(pod) {
        Some(RayNodeType::Head) => Some(names::HEAD_GROUP),
        _ => pod.labels().get(names::GROUP_LABEL).map(String::as_str),
    }
}

/// Returns the number in a label of a pod; `None` if it is missing or not a number.
pub(super) fn index_label(pod: &Pod, label: &str) -> Option<u32> {
    pod.labels().get(label)?.parse().ok()
}

/// Reports whether the pod is running and ready.
pub(super) fn is_ready(pod: &Pod) -> bool {
    pod::is_running(pod) && pod::is_ready(pod)
}

/// Returns why the pod will never run Ray again; `None` if it may (KubeRay 1.7 `shouldDeletePod`).
pub(super) fn failure_reason(pod: &Pod) -> Option<String> {
    if let Some(phase) = pod::phase(pod).filter(|_| pod::is_finished(pod)) {
        let reason = pod.status.as_ref().and_then(|status| status.reason.as_deref());
        return Some(match reason {
            Some(reason) => format!("its phase is {phase} ({reason})"),
            None => format!("its phase is {phase}"),
        });
    }
    let spec = pod.spec.as_ref()?;
    let ray = spec.containers.first()?;
    let ended = container_states(pod).find(|(name, _)| *name == ray.name)?.1.terminated.as_ref()?;
    (pod::is_running(pod) && spec.restart_policy.as_deref() == Some("Never"))
        .then(|| format!("the Ray container exited with code {}, and restartPolicy is Never", ended.exit_code))
}

/// Returns name and state of each container that has a state.
pub(super) fn container_states(pod: &Pod) -> impl Iterator<Item = (&str, &ContainerState)> {
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    statuses.filter_map(|status| Some((status.name.as_str(), status.state.as_ref()?)))
}
