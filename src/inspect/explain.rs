//! Explains one job: for a pending slice, the reason and the remediations; for an admitted slice,
//! its assignment. Messages and amounts are those of the conditions.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube_core::ResourceExt;
use serde::Serialize;

use super::remediation::{self, Remediation};
use sluice_api::condition;
use sluice_api::job_conditions::ADMITTED;
use sluice_api::kueue::Workload;
use sluice_api::quantity::Amount;
use sluice_engine::cluster_state::ClusterState;
use sluice_engine::{Engine, JobSnapshot};
use sluice_jobframework::managed::ManagementState;
use sluice_jobframework::slices::{self, Slice, SlicePhase};
use sluice_jobframework::upgrade_feasibility::UPGRADE_ADMISSIBLE;
use sluice_jobframework::{GenericJob, Member};
use sluice_plan::ObjectId;
use sluice_plan::ObjectKey;
use sluice_queue::{FlavorRejection, PendingCause, Shortfall};

/// Queueing and admission state of one job.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// Kind, namespace and name of the job.
    pub job: String,
    /// True if the job names a LocalQueue and is managed.
    pub queued: bool,
    /// Conditions `sluice.dev/Admitted` and `sluice.dev/UpgradeAdmissible`, if the job has them.
    pub conditions: Vec<ConditionSummary>,
    /// Members of the job, such as the RayClusters of a RayService.
    pub members: Vec<MemberStatus>,
    /// Unfinished slices of the job.
    pub slices: Vec<SliceStatus>,
}

/// Summary of a condition.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConditionSummary {
    /// Type of the condition.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True` or `False`.
    pub status: String,
    /// Machine-readable reason.
    pub reason: String,
    /// Human-readable message.
    pub message: String,
}

/// State of one member of a job.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberStatus {
    /// Kind of the member.
    pub kind: String,
    /// Name of the member.
    pub name: String,
    /// True if this entry describes the pods that will replace the running pods of a cluster.
    #[serde(rename = "replacement", skip_serializing_if = "std::ops::Not::not")]
    pub is_replacement: bool,
    /// True if the member is not suspended.
    #[serde(rename = "open")]
    pub is_unsuspended: bool,
    /// Number of its live pods that are not behind the scheduling gate.
    pub ungated_pods: u32,
    /// Number of its pods behind the scheduling gate.
    pub gated_pods: usize,
}

/// State of one slice of a job.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SliceStatus {
    /// Name of the Workload.
    pub name: String,
    /// Admission state.
    pub state: SliceState,
    /// LocalQueue of the Workload.
    pub local_queue: String,
    /// ClusterQueue of the LocalQueue, followed by its Cohorts from the nearest to the root.
    pub path: Vec<String>,
    /// Requests or assignment of each pod set.
    pub pod_sets: Vec<PodSetStatus>,
    /// Reason and remediations if the slice is pending, else None.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending: Option<PendingStatus>,
}

/// Admission state of a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum SliceState {
    /// The slice is pending.
    Pending,
    /// The slice holds quota.
    Admitted,
    /// The slice holds quota until its pods have terminated.
    Evicting,
    /// The slice was deleted, and holds quota until its pods have terminated or another slice covers them.
    Terminating,
}

impl SliceState {
    /// Returns the state of a slice in a phase; `None` if the slice is finished.
    fn of_phase(phase: SlicePhase) -> Option<Self> {
        match phase {
            SlicePhase::Pending => Some(Self::Pending),
            SlicePhase::Admitted => Some(Self::Admitted),
            SlicePhase::Evicted => Some(Self::Evicting),
            SlicePhase::Terminating => Some(Self::Terminating),
            SlicePhase::Finished => None,
        }
    }
}

/// Requests or assignment of one pod set of a slice.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSetStatus {
    /// Name of the pod set.
    pub name: String,
    /// Number of pods: assigned if there is an assignment, else requested.
    pub count: i32,
    /// Flavor of each resource; empty before quota is reserved.
    pub flavors: BTreeMap<String, String>,
    /// Quantity of each resource in total; empty before quota is reserved.
    pub usage: BTreeMap<String, String>,
}

/// Reason for which a slice is pending, and its remediations.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PendingStatus {
    /// Reason of the condition QuotaReserved; None if the next scheduling cycle admits the slice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Message of that condition, or that the next cycle admits the slice.
    pub message: String,
    /// Missing quota, by pod set, flavor and resource.
    pub shortfalls: Vec<ResourceShortfall>,
    /// Remediations; any one of them is sufficient.
    pub remediations: Vec<Remediation>,
}

/// Missing quota of one resource in one flavor.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceShortfall {
    /// Name of the pod set.
    pub pod_set: String,
    /// Name of the flavor.
    pub flavor: String,
    /// Name of the resource.
    pub resource: String,
    /// Amount that has to be released, or added if the maximum capacity is too low.
    pub missing: String,
    /// Requests of this pod set and the earlier ones.
    pub requested: String,
    /// Amount of that already held by the slice that this one replaces.
    pub held: String,
    /// Usage of the other Workloads in the ClusterQueue.
    pub used: String,
    /// Nominal quota of the ClusterQueue.
    pub nominal: String,
    /// Quota or limit of the cohort tree that binds.
    pub bound_by: String,
    /// Amounts of the largest holders, by job, or by Workload if the job is unknown.
    pub holders: BTreeMap<String, String>,
    /// Number of further holders.
    pub more_holders: usize,
    /// Unused quota that is reserved for other pending Workloads; None if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved_for: Option<ReservedForOthers>,
}

/// Unused quota that is reserved for other pending Workloads.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReservedForOthers {
    /// Total amount.
    pub amount: String,
    /// Job with the largest reservation, or its Workload if the job is unknown.
    pub largest: String,
    /// Number of other Workloads with a reservation.
    pub others: usize,
}

/// Explains the job that `subject` is or belongs to; None if the object doesn't exist or belongs to
/// no job.
pub fn explain(engine: &Engine, subject: impl Into<ObjectId>) -> Option<Explanation> {
    let subject = subject.into();
    let explanation = engine.with_job(subject.clone(), |snapshot| explain_job(engine, &subject, &snapshot));
    explanation.or_else(|| explain(engine, controller(engine.cluster_state(), &subject)?))
}

/// Returns the object that controls a Workload, RayCluster or pod; None for any other object.
fn controller(state: &ClusterState, subject: &ObjectId) -> Option<ObjectId> {
    let key = ObjectKey::new(subject.namespace.clone().unwrap_or_default(), subject.name.clone());
    let owners = match subject.kind.as_str() {
        "Workload" => state.workloads.get(&key)?.owner_references(),
        "RayCluster" => state.ray_clusters.get(&key)?.owner_references(),
        "Pod" => state.pods.get(&key)?.owner_references(),
        _ => return None,
    };
    let owner = owners.iter().find(|owner| owner.controller == Some(true))?;
    Some(ObjectId { kind: owner.kind.clone(), name: owner.name.clone(), ..subject.clone() })
}

fn explain_job(engine: &Engine, job: &ObjectId, snapshot: &JobSnapshot<'_>) -> Explanation {
    let slices = slices::slices_of(snapshot.workloads.iter().copied());
    let shown =
        [ADMITTED, UPGRADE_ADMISSIBLE].into_iter().filter_map(|kind| condition::get(snapshot.job.conditions(), kind));
    Explanation {
        job: job.to_string(),
        queued: snapshot.managed == ManagementState::InQueue,
        conditions: shown.map(condition_summary).collect(),
        members: snapshot.job.members().iter().map(|entry| member_status(snapshot.job, entry)).collect(),
        slices: slices.iter().filter_map(|slice| slice_status(engine, slice)).collect(),
    }
}

fn condition_summary(condition: &Condition) -> ConditionSummary {
    ConditionSummary {
        kind: condition.type_.clone(),
        status: condition.status.clone(),
        reason: condition.reason.clone(),
        message: condition.message.clone(),
    }
}

fn member_status(job: &dyn GenericJob, member: &Member) -> MemberStatus {
    MemberStatus {
        kind: job.member_kind().to_owned(),
        name: member.name.clone(),
        is_replacement: job.recreates() && job.pending_member().as_ref() == Some(&member.uid),
        is_unsuspended: member.is_open,
        ungated_pods: member.live_pods.values().sum(),
        gated_pods: member.gated_pods.len(),
    }
}

fn slice_status(engine: &Engine, slice: &Slice<'_>) -> Option<SliceStatus> {
    let state = SliceState::of_phase(slice.phase)?;
    let key = ObjectKey::of(slice.workload);
    let path = queue_path(engine.cluster_state(), slice.workload);
    let waits = || match engine.scheduler().explain(&key) {
        Some(waiting) => pending_status(engine.cluster_state(), &waiting, path.first().map(String::as_str)),
        None => admitted_next_cycle(),
    };
    let waits_for = (state == SliceState::Pending).then(waits);
    Some(SliceStatus {
        name: slice.workload.name_any(),
        state,
        local_queue: slice.workload.spec.queue_name.clone().unwrap_or_default(),
        pending: waits_for,
        path,
        pod_sets: pod_set_statuses(slice.workload),
    })
}

/// Returns the ClusterQueue of a Workload and its Cohorts from the nearest to the root; empty if
/// the LocalQueue doesn't exist or names no ClusterQueue.
pub(super) fn queue_path(state: &ClusterState, workload: &Workload) -> Vec<String> {
    let local =
        ObjectKey::new(workload.namespace().unwrap_or_default(), workload.spec.queue_name.clone().unwrap_or_default());
    let queue = state.local_queues.get(&local).and_then(|local| local.spec.cluster_queue.clone());
    let Some(queue) = queue else { return Vec::new() };
    let known = state.cluster_queues.get(&ObjectKey::global(queue.clone()));
    let mut path = vec![queue];
    let mut above = known.and_then(|known| known.spec.cohort_name.clone());
    // The scheduler rejects Cohort cycles, but the objects may still form one.
    while let Some(cohort) = above.filter(|cohort| !cohort.is_empty() && !path.contains(cohort)) {
        above = state.cohorts.get(&ObjectKey::global(cohort.clone())).and_then(|known| known.spec.parent_name.clone());
        path.push(cohort);
    }
    path
}

fn pod_set_statuses(workload: &Workload) -> Vec<PodSetStatus> {
    let admission = workload.status.as_ref().and_then(|status| status.admission.as_ref());
    let assigned = |name: &str| {
        let assignments = admission.into_iter().flat_map(|admission| &admission.pod_set_assignments);
        assignments.into_iter().find(|assigned| assigned.name == name)
    };
    let pod_sets = workload.spec.pod_sets.iter().map(|pod_set| {
        let assigned = assigned(&pod_set.name);
        let usage = assigned.into_iter().flat_map(|assigned| &assigned.resource_usage);
        PodSetStatus {
            name: pod_set.name.clone(),
            count: assigned.and_then(|assigned| assigned.count).unwrap_or(pod_set.count),
            flavors: assigned.map(|assigned| assigned.flavors.clone().into_iter().collect()).unwrap_or_default(),
            usage: usage.map(|(resource, amount)| (resource.clone(), amount.0.clone())).collect(),
        }
    });
    pod_sets.collect()
}

/// Describes a slice that the next scheduling cycle admits.
fn admitted_next_cycle() -> PendingStatus {
    let message = "fits, and will be admitted in the next scheduling cycle".to_owned();
    PendingStatus { reason: None, message, shortfalls: Vec::new(), remediations: Vec::new() }
}

fn pending_status(state: &ClusterState, waiting: &PendingCause, cluster_queue: Option<&str>) -> PendingStatus {
    let obstacles = match waiting {
        PendingCause::Quota(obstacles) => obstacles.as_slice(),
        _ => &[],
    };
    let short = obstacles.iter().filter_map(|obstacle| match obstacle {
        FlavorRejection::InsufficientUnused(shortfall) | FlavorRejection::ExceedsMaximum(shortfall) => {
            Some(resource_shortfall(state, shortfall, cluster_queue))
        }
        _ => None,
    });
    PendingStatus {
        reason: Some(waiting.reason().as_str().to_owned()),
        message: waiting.to_string(),
        shortfalls: short.collect(),
        remediations: remediation::remediations(waiting, cluster_queue.unwrap_or_default()),
    }
}

fn resource_shortfall(state: &ClusterState, shortfall: &Shortfall, cluster_queue: Option<&str>) -> ResourceShortfall {
    let show = |amount: Amount| amount.display(&shortfall.resource).to_string();
    let holders = shortfall.holders.iter().map(|(key, amount)| (owner_name(state, key), show(*amount)));
    let kept = shortfall.reserved_for_others.as_ref().map(|kept| ReservedForOthers {
        amount: show(kept.amount),
        largest: owner_name(state, &kept.largest),
        others: kept.others,
    });
    ResourceShortfall {
        pod_set: shortfall.pod_set.clone(),
        flavor: shortfall.flavor.clone(),
        resource: shortfall.resource.clone(),
        missing: show(shortfall.missing),
        requested: show(shortfall.requested.plus(shortfall.earlier_pod_sets)),
        held: show(shortfall.held_by_predecessor),
        used: show(shortfall.used),
        nominal: show(shortfall.nominal),
        bound_by: remediation::describe_binding(&shortfall.binding, cluster_queue.unwrap_or_default()),
        holders: holders.collect(),
        more_holders: shortfall.more_holders,
        reserved_for: kept,
    }
}

/// Returns the kind, namespace and name of the job that owns a Workload, or of the Workload if it
/// has no controller.
pub(super) fn owner_name(state: &ClusterState, workload: &ObjectKey) -> String {
    let owner = state.workloads.get(workload).and_then(|workload| {
        let owners = workload.owner_references();
        owners.iter().find(|owner| owner.controller == Some(true)).map(|owner| (owner.kind.clone(), owner.name.clone()))
    });
    match owner {
        Some((kind, name)) => format!("{kind} {}/{name}", workload.namespace),
        None => format!("Workload {workload}"),
    }
}
