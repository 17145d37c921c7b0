//! Status of a cluster (KubeRay 1.7 `ray-operator/controllers/ray/raycluster_controller.go`,
//! `calculateStatus`).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, Service, ServicePort};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube_core::ResourceExt;

use super::field_error::FieldError;
use super::groups::{self, PodGroup, RayNodeType};
use super::suspend::SuspendState;
use super::{ClusterContext, names as naming, pods, services, start_command, unsupported};
use sluice_api::condition::{self, ConditionUpdate};
use sluice_api::pod;
use sluice_api::quantity::{Amount, Quantity};
use sluice_api::ray::options::StringMap;
use sluice_api::ray::{HeadInfo, RayCluster, RayClusterStatus, names};
use sluice_plan::{Write, WriteRank};
use sluice_queue::requests::pod_requests;

/// Input from which the status is computed.
pub(super) struct StatusContext<'a> {
    pub(super) view: &'a ClusterContext<'a>,
    /// Pods that the cluster controls.
    pub(super) pods: &'a [&'a Pod],
    /// Pod groups, or the validation errors of the spec.
    pub(super) groups: &'a Result<Vec<PodGroup>, Vec<FieldError>>,
    pub(super) suspend_state: SuspendState,
    /// True if the plan creates or deletes pods. The condition `ReplicaFailure` stays until no such
    /// write is left.
    pub(super) changes_pods: bool,
}

/// Returns the write of the status; `None` if it has not changed.
pub(super) fn write(facts: &StatusContext<'_>) -> Option<Write> {
    let cluster = facts.view.cluster;
    let old = cluster.status.clone().unwrap_or_default();
    let mut status = next_status(facts, old.clone());
    if status == old {
        return None;
    }
    let rank = if is_progress(cluster, &old, &status) { WriteRank::Progress } else { WriteRank::Decision };
    let now = Time(condition::whole_seconds(facts.view.now));
    if let Some(state) = status.state.clone()
        && status.state != old.state
    {
        status.state_transition_times.get_or_insert_default().insert(state, now.clone());
    }
    status.last_update_time = Some(now);
    Write::patch_status(cluster, &status).map(|write| write.ranked(rank))
}

/// Reports whether no planner acts on the change of a status and no user waits for it: the cluster
/// is in the same state, and the same conditions are true.
fn is_progress(cluster: &RayCluster, old: &RayClusterStatus, new: &RayClusterStatus) -> bool {
    // A cluster that was created suspended may be admitted right away. Its pods then need not wait
    // for the end of a suspension that no status reports.
    let is_first = condition::get(&old.conditions, names::CLUSTER_SUSPENDED).is_none();
    if is_first && new.state.as_deref() == Some(names::STATE_SUSPENDED) {
        return true;
    }
    // A RayService acts on the head as soon as it is ready, and sends requests during an incremental
    // upgrade once there is a ready worker.
    let has_owner = !cluster.owner_references().is_empty();
    let has_ready_worker = |status: &RayClusterStatus| has_owner && status.ready_worker_replicas.unwrap_or(0) > 0;
    let (mut held, mut holds) =
        (condition::true_conditions(&old.conditions), condition::true_conditions(&new.conditions));
    if !has_owner {
        held.retain(|(type_, _)| *type_ != names::HEAD_POD_READY);
        holds.retain(|(type_, _)| *type_ != names::HEAD_POD_READY);
    }
    (&old.state, &old.reason, has_ready_worker(old)) == (&new.state, &new.reason, has_ready_worker(new))
        && held == holds
}

fn next_status(facts: &StatusContext<'_>, mut status: RayClusterStatus) -> RayClusterStatus {
    let cluster = facts.view.cluster;
    status.observed_generation = cluster.metadata.generation;
    set_replica_counts(facts, &mut status);
    if let Ok(groups) = facts.groups {
        set_desired_resources(groups, &mut status);
    }
    let problems = facts.view.spec_errors();
    status.reason = (!problems.is_empty()).then(|| error_message(problems));
    if cluster.spec.suspend == Some(true) && facts.pods.is_empty() {
        status.state = Some(names::STATE_SUSPENDED.to_owned());
    } else if facts.suspend_state == SuspendState::Active && all_ready(facts) {
        status.state = Some(names::STATE_READY.to_owned());
    }
    let service = services::find_service(facts.view, &naming::head_service(cluster));
    status.endpoints = service.map(endpoints);
    status.head = head_info(head(facts), service);
    set_conditions(facts, &mut status.conditions);
    status
}

fn head<'a>(facts: &StatusContext<'a>) -> Option<&'a Pod> {
    facts.pods.iter().copied().find(|pod| pods::node_type(pod) == Some(RayNodeType::Head))
}

fn set_replica_counts(facts: &StatusContext<'_>, status: &mut RayClusterStatus) {
    let workers = || facts.pods.iter().filter(|pod| pods::node_type(pod) == Some(RayNodeType::Worker));
    status.ready_worker_replicas = number(workers().filter(|pod| pods::is_ready(pod)).count());
    status.available_worker_replicas = number(workers().filter(|pod| pod::is_running(pod)).count());
    let specs = facts.view.cluster.spec.worker_group_specs.iter();
    let (mut wanted, mut least, mut most) = (0_u32, 0_u32, 0_u32);
    for group in specs.filter(|group| group.suspend != Some(true)) {
        wanted = wanted.saturating_add(groups::desired_pods(group));
        least = least.saturating_add(groups::pods_in_replicas(group.min_replicas.unwrap_or(0), group));
        most = most.saturating_add(groups::pods_in_replicas(group.max_replicas.unwrap_or(i32::MAX), group));
    }
    status.desired_worker_replicas = number(wanted as usize);
    status.min_worker_replicas = number(least as usize);
    status.max_worker_replicas = number(most as usize);
}

/// Converts a count to its API type, saturating at 2³¹-1.
fn number(count: usize) -> Option<i32> {
    Some(i32::try_from(count).unwrap_or(i32::MAX))
}

/// Sets the total requests of all desired pods, including head and sidecars.
fn set_desired_resources(groups: &[PodGroup], status: &mut RayClusterStatus) {
    let mut total: BTreeMap<String, Amount> = BTreeMap::new();
    for group in groups {
        let Some(Ok(requests)) = group.template.spec.as_ref().map(pod_requests) else { continue };
        for (resource, amount) in requests.times(i64::from(group.count)).iter() {
            let sum = total.entry(resource.to_owned()).or_default();
            *sum = sum.plus(amount);
        }
    }
    let total_of = |resource: &str| total.get(resource).copied().unwrap_or_default();
    let gpus = total.iter().filter(|(resource, _)| start_command::is_gpu(resource));
    status.desired_cpu = quantity("cpu", total_of("cpu"));
    status.desired_memory = quantity("memory", total_of("memory"));
    status.desired_gpu = quantity("gpu", gpus.fold(Amount::ZERO, |sum, (_, amount)| sum.plus(*amount)));
    status.desired_tpu = quantity("tpu", total_of("google.com/tpu"));
}

fn quantity(resource: &str, amount: Amount) -> Option<Quantity> {
    Some(amount.to_quantity(resource))
}

/// Reports whether exactly the desired pods exist, all ready and none terminating.
fn all_ready(facts: &StatusContext<'_>) -> bool {
    let Ok(groups) = facts.groups else { return false };
    let wanted = groups.iter().fold(0_u32, |sum, group| sum.saturating_add(group.count));
    facts.pods.len() == wanted as usize && facts.pods.iter().all(|pod| pods::is_ready(pod) && !pod::is_terminating(pod))
}

/// Returns the reachable ports of the head Service by name.
fn endpoints(service: &Service) -> StringMap {
    let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    ports.filter_map(|port| Some((port.name.clone().filter(|name| !name.is_empty())?, endpoint_port(port)))).collect()
}

/// Returns the node port, else the target port, else the Service port.
fn endpoint_port(port: &ServicePort) -> String {
    match (port.node_port.filter(|number| *number != 0), &port.target_port) {
        (Some(number), _) => number.to_string(),
        (None, Some(IntOrString::Int(number))) if *number != 0 => number.to_string(),
        (None, Some(IntOrString::String(name))) if !name.is_empty() => name.clone(),
        _ => port.port.to_string(),
    }
}

fn head_info(head: Option<&Pod>, service: Option<&Service>) -> Option<HeadInfo> {
    let text = |text: Option<&String>| text.filter(|text| !text.is_empty()).cloned();
    let pod_ip = text(head.and_then(|pod| pod.status.as_ref()?.pod_ip.as_ref()));
    let cluster_ip = text(service.and_then(|service| service.spec.as_ref()?.cluster_ip.as_ref()));
    let info = HeadInfo {
        service_ip: match cluster_ip {
            Some(ip) if ip == "None" => pod_ip.clone(),
            other => other,
        },
        pod_ip,
        pod_name: head.map(ResourceExt::name_any),
        service_name: service.map(ResourceExt::name_any),
    };
    (info != HeadInfo::default()).then_some(info)
}

fn set_conditions(facts: &StatusContext<'_>, conditions: &mut Vec<Condition>) {
    let ClusterContext { cluster, now, .. } = facts.view;
    let generation = cluster.metadata.generation;
    let mut set = |type_, status, reason: &str, message: String| {
        let observed_generation = None;
        let verdict = ConditionUpdate { type_, status, reason: reason.to_owned(), message, observed_generation };
        condition::set(conditions, *now, verdict);
    };
    let HeadReadiness { is_ready, reason, message } = head_readiness(head(facts));
    set(names::HEAD_POD_READY, is_ready, &reason, message);
    let (suspending, suspended) = facts.suspend_state.condition_statuses();
    let was_provisioned = cluster
        .status
        .as_ref()
        .is_some_and(|status| condition::is_true(&status.conditions, names::CLUSTER_PROVISIONED));
    if facts.suspend_state == SuspendState::Suspended {
        let message = "RayCluster is suspended".to_owned();
        set(names::CLUSTER_PROVISIONED, false, "RayClusterPodsProvisioning", message);
    } else if !was_provisioned && facts.suspend_state == SuspendState::Active && all_ready(facts) {
        let message = "all Pods are ready for the first time".to_owned();
        set(names::CLUSTER_PROVISIONED, true, "AllPodRunningAndReadyFirstTime", message);
    } else if !was_provisioned {
        set(names::CLUSTER_PROVISIONED, false, "RayClusterPodsProvisioning", provisioning_progress(facts));
    }
    if let Some(setback) = facts.view.replica_failure {
        set(names::REPLICA_FAILURE, true, &setback.reason, setback.message.clone());
    }
    set(names::CLUSTER_SUSPENDING, suspending, names::CLUSTER_SUSPENDING, String::new());
    set(names::CLUSTER_SUSPENDED, suspended, names::CLUSTER_SUSPENDED, String::new());
    if facts.view.replica_failure.is_none() && !facts.changes_pods {
        condition::remove(conditions, names::REPLICA_FAILURE);
    }
    condition::set_unsupported(conditions, *now, generation, &unsupported::unsupported_fields(cluster));
    match facts.view.spec_errors() {
        [] => {
            condition::remove(conditions, names::SPEC_REJECTED);
        }
        problems => {
            let verdict = ConditionUpdate {
                type_: names::SPEC_REJECTED,
                status: true,
                reason: "InvalidSpec".to_owned(),
                message: error_message(problems),
                observed_generation: generation,
            };
            condition::set(conditions, *now, verdict);
        }
    }
}

/// Joins all errors into one message.
pub(super) fn error_message(problems: &[FieldError]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Returns the message of the condition `RayClusterProvisioned`: ready pods, and the admitted ones
/// if quota is short.
fn provisioning_progress(facts: &StatusContext<'_>) -> String {
    let Ok(groups) = facts.groups else { return "no Pods are created, since the spec is invalid".to_owned() };
    let ready = facts.pods.iter().filter(|pod| pods::is_ready(pod)).count();
    let wanted = groups.iter().fold(0_u32, |sum, group| sum.saturating_add(group.count));
    let covered = |group: &PodGroup| {
        let earlier = facts.view.pod_set_infos.get(&group.name).map_or(0, |mark| mark.earlier_pods);
        facts.view.grant.pods_in_group(&group.name).saturating_add(earlier)
    };
    let granted = groups.iter().fold(0_u32, |sum, group| sum.saturating_add(group.count.min(covered(group))));
    let text = format!("{ready} of {wanted} Pods are ready");
    if granted < wanted { format!("{text}; quota is admitted for {granted} of them") } else { text }
}

/// Content of the condition `HeadPodReady`.
struct HeadReadiness {
    is_ready: bool,
    reason: String,
    message: String,
}

fn head_readiness(head: Option<&Pod>) -> HeadReadiness {
    let not_ready = |reason: &str, message: &str| HeadReadiness {
        is_ready: false,
        reason: reason.to_owned(),
        message: message.to_owned(),
    };
    let Some(head) = head else { return not_ready("HeadPodNotFound", "Head Pod not found") };
    let Some(ready) = pod::ready_condition(head) else { return not_ready("Unknown", "") };
    let is_ready = ready.status == "True";
    let ready_reason = ready.reason.clone().filter(|reason| !reason.is_empty());
    let mut message = ready.message.clone().unwrap_or_default();
    let mut reason =
        ready_reason.unwrap_or_else(|| if is_ready { "HeadPodRunningAndReady" } else { "Unknown" }.to_owned());
    if reason == "ContainersNotReady"
        && let Some((container, container_reason, detail)) = pods::container_states(head).find_map(container_failure)
    {
        message = if message.is_empty() {
            format!("{container}: {detail}")
        } else {
            format!("{message}; {container}: {detail}")
        };
        reason = container_reason;
    }
    HeadReadiness { is_ready, reason, message }
}

/// Returns name, reason and message of a container that is waiting or terminated; `None` if it is
/// running or has no reason.
fn container_failure<'a>(
    (container, state): (&'a str, &k8s_openapi::api::core::v1::ContainerState),
) -> Option<(&'a str, String, String)> {
    let waiting = state.waiting.as_ref().map(|waiting| (waiting.reason.clone(), waiting.message.clone()));
    let ended = state.terminated.as_ref().map(|ended| (ended.reason.clone(), ended.message.clone()));
    let (reason, message) = waiting.or(ended)?;
    Some((container, reason.filter(|reason| !reason.is_empty())?, message.unwrap_or_default()))
}
