//! What a pod that exists tells.

use k8s_openapi::api::core::v1::{ContainerState, Pod};
use kube_core::ResourceExt;

use super::View;
use super::groups::Role;
use sluice_api::kueue::scheduling_gate;
use sluice_api::ray::names;

/// The pods that the cluster controls. One of another cluster that had the same name is not among them: its name, its quota
/// and its end are that cluster's.
pub(super) fn own<'a>(view: &View<'a>) -> Vec<&'a Pod> {
    let uid = view.cluster.metadata.uid.as_deref().unwrap_or_default();
    let controlled =
        |pod: &Pod| pod.owner_references().iter().any(|owner| owner.controller == Some(true) && owner.uid == uid);
    let mut own: Vec<&Pod> = view.pods.iter().copied().filter(|pod| controlled(pod) && role(pod).is_some()).collect();
    own.sort_by_key(|pod| pod.metadata.name.as_deref());
    own
}

/// What a pod is to its cluster, as its label says.
pub(super) fn role(pod: &Pod) -> Option<Role> {
    match pod.labels().get(names::NODE_TYPE_LABEL)?.as_str() {
        "head" => Some(Role::Head),
        "worker" => Some(Role::Worker),
        _ => None,
    }
}

/// The group of a pod; that of a head follows from its role.
pub(super) fn group(pod: &Pod) -> &str {
    match role(pod) {
        Some(Role::Head) => names::HEAD_GROUP,
        _ => pod.labels().get(names::GROUP_LABEL).map_or("", String::as_str),
    }
}

/// A number among a pod's labels.
pub(super) fn index(pod: &Pod, label: &str) -> Option<u32> {
    pod.labels().get(label)?.parse().ok()
}

/// Whether the pod is on its way out.
pub(super) fn is_going(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Whether the pod waits behind a scheduling gate until quota is admitted for it.
pub(super) fn is_gated(pod: &Pod) -> bool {
    scheduling_gate::is_gated(pod)
}

/// Whether all of the pod's containers have ended for good, so that it holds no resources any more.
pub(super) fn has_ended(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// Whether the pod runs.
pub(super) fn is_running(pod: &Pod) -> bool {
    phase(pod) == "Running"
}

/// Whether the pod runs and is ready.
pub(super) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    is_running(pod) && conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Why the pod will never run Ray again, if that is so (KubeRay 1.7 `shouldDeletePod`).
pub(super) fn ailment(pod: &Pod) -> Option<String> {
    if has_ended(pod) {
        let reason = pod.status.as_ref().and_then(|status| status.reason.as_deref());
        return Some(match reason {
            Some(reason) => format!("its phase is {} ({reason})", phase(pod)),
            None => format!("its phase is {}", phase(pod)),
        });
    }
    let spec = pod.spec.as_ref()?;
    let ray = spec.containers.first()?;
    let ended = states(pod).find(|(name, _)| *name == ray.name)?.1.terminated.as_ref()?;
    (is_running(pod) && spec.restart_policy.as_deref() == Some("Never"))
        .then(|| format!("Ray ended with exit code {}, and the pod never restarts it", ended.exit_code))
}

/// The state of each container, by its name.
pub(super) fn states(pod: &Pod) -> impl Iterator<Item = (&str, &ContainerState)> {
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    statuses.filter_map(|status| Some((status.name.as_str(), status.state.as_ref()?)))
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}
