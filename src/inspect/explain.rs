//! Explains one job: for a pending slice, the reason and the remediations; for an admitted slice,
//! its assignment. Messages and amounts are those of the conditions.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube_core::ResourceExt;
use serde::Serialize;

use super::remedies::{self, Remedy};
use sluice_api::condition;
use sluice_api::kueue::Workload;
use sluice_api::quantity::Amount;
use sluice_api::sluice::ADMITTED;
use sluice_engine::world::World;
use sluice_engine::{Engine, Sight};
use sluice_jobframework::fitting::UPGRADE_ADMISSIBLE;
use sluice_jobframework::managed::Managed;
use sluice_jobframework::slices::{self, Phase, Slice};
use sluice_jobframework::{Job, Member};
use sluice_plan::ObjectKey;
use sluice_plan::ObjectRef;
use sluice_queue::{Obstacle, Shortfall, Waiting};

/// Queueing and admission state of one job.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// Kind, namespace and name of the job.
    pub job: String,
    /// True if the job names a LocalQueue and is managed.
    pub queued: bool,
    /// Conditions `sluice.dev/Admitted` and `sluice.dev/UpgradeAdmissible`, if the job has them.
    #[serde(rename = "conditions")]
    pub says: Vec<Said>,
    /// Members of the job, such as the RayClusters of a RayService.
    pub members: Vec<MemberStands>,
    /// Unfinished slices of the job.
    pub slices: Vec<SliceStands>,
}

/// Summary of a condition.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Said {
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
pub struct MemberStands {
    /// Kind of the member.
    pub kind: String,
    /// Name of the member.
    pub name: String,
    /// True if this entry describes the pods that will replace the running pods of a cluster.
    #[serde(rename = "takesPlace", skip_serializing_if = "std::ops::Not::not")]
    pub takes_place: bool,
    /// True if the member is not suspended.
    #[serde(rename = "open")]
    pub open: bool,
    /// Number of its live pods that are not behind the scheduling gate.
    #[serde(rename = "run")]
    pub run: u32,
    /// Number of its pods behind the scheduling gate.
    #[serde(rename = "wait")]
    pub wait: usize,
}

/// State of one slice of a job.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SliceStands {
    /// Name of the Workload.
    pub name: String,
    /// Admission state.
    #[serde(rename = "state")]
    pub stands: Stands,
    /// LocalQueue of the Workload.
    pub local_queue: String,
    /// ClusterQueue of the LocalQueue, followed by its Cohorts from the nearest to the root.
    pub path: Vec<String>,
    /// Requests or assignment of each pod set.
    pub pod_sets: Vec<PodSetStands>,
    /// Reason and remediations if the slice is pending, else None.
    #[serde(rename = "pending", skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<Waits>,
}

/// Admission state of a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Stands {
    /// The slice is pending.
    #[serde(rename = "pending")]
    Waits,
    /// The slice holds quota.
    #[serde(rename = "admitted")]
    Holds,
    /// The slice holds quota until its pods have terminated.
    #[serde(rename = "evicting")]
    GivesBack,
}

/// Requests or assignment of one pod set of a slice.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSetStands {
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
pub struct Waits {
    /// Reason of the condition QuotaReserved.
    pub reason: String,
    /// Message of that condition.
    pub message: String,
    /// Missing quota, by pod set, flavor and resource.
    #[serde(rename = "shortfalls")]
    pub short: Vec<Short>,
    /// Remediations; any one of them is sufficient.
    #[serde(rename = "remediations")]
    pub unblocked_by: Vec<Remedy>,
}

/// Missing quota of one resource in one flavor.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Short {
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
    #[serde(rename = "reservedFor", skip_serializing_if = "Option::is_none")]
    pub kept: Option<KeptForOthers>,
}

/// Unused quota that is reserved for other pending Workloads.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KeptForOthers {
    /// Total amount.
    pub amount: String,
    /// Job with the largest reservation, or its Workload if the job is unknown.
    #[serde(rename = "largest")]
    pub first: String,
    /// Number of other Workloads with a reservation.
    #[serde(rename = "others")]
    pub more: usize,
}

/// Explains the job that `subject` is or belongs to; None if the object doesn't exist or belongs to
/// no job.
pub fn explain(engine: &Engine, subject: &ObjectRef) -> Option<Explanation> {
    let job = job_of(engine.world(), subject)?;
    engine.look(&job, |sight| stands(engine, &job, &sight))
}

/// Returns the job at the top of the controller references of `subject`; None if an object on the
/// way doesn't exist.
fn job_of(world: &World, subject: &ObjectRef) -> Option<ObjectRef> {
    let key = ObjectKey::new(subject.namespace.clone().unwrap_or_default(), subject.name.clone());
    let owners = match subject.kind.as_str() {
        "Workload" => world.workloads.get(&key)?.owner_references().to_vec(),
        "RayCluster" => world.ray_clusters.get(&key)?.owner_references().to_vec(),
        "Pod" => world.pods.get(&key)?.owner_references().to_vec(),
        _ => Vec::new(),
    };
    let Some(owner) = owners.into_iter().find(|owner| owner.controller == Some(true)) else {
        return Some(subject.clone());
    };
    let owner = ObjectRef { kind: owner.kind, api_version: owner.api_version, name: owner.name, ..subject.clone() };
    job_of(world, &owner)
}

fn stands(engine: &Engine, job: &ObjectRef, sight: &Sight<'_>) -> Explanation {
    let slices = slices::slices_of(sight.workloads.iter().copied());
    let shown =
        [ADMITTED, UPGRADE_ADMISSIBLE].into_iter().filter_map(|kind| condition::get(sight.job.conditions(), kind));
    Explanation {
        job: job.to_string(),
        queued: sight.managed == Managed::InQueue,
        says: shown.map(said).collect(),
        members: sight.job.members().iter().map(|entry| member(sight.job, entry)).collect(),
        slices: slices.iter().filter_map(|slice| slice_stands(engine, slice)).collect(),
    }
}

fn said(condition: &Condition) -> Said {
    Said {
        kind: condition.type_.clone(),
        status: condition.status.clone(),
        reason: condition.reason.clone(),
        message: condition.message.clone(),
    }
}

fn member(job: &dyn Job, member: &Member) -> MemberStands {
    MemberStands {
        kind: job.member_kind().to_owned(),
        name: member.name.clone(),
        takes_place: job.starts_anew() && job.next().as_ref() == Some(&member.uid),
        open: member.open,
        run: member.live_pods.values().sum(),
        wait: member.gated.len(),
    }
}

fn slice_stands(engine: &Engine, slice: &Slice<'_>) -> Option<SliceStands> {
    let stands = match slice.phase {
        Phase::Waiting => Stands::Waits,
        Phase::Admitted => Stands::Holds,
        Phase::Evicted | Phase::Going => Stands::GivesBack,
        Phase::Finished => return None,
    };
    let key = ObjectKey::of(slice.workload);
    let path = path(engine.world(), slice.workload);
    let waits = || match engine.queue().explain(&key) {
        Some(waiting) => waits(engine.world(), &waiting, path.first().map(String::as_str)),
        None => fits(),
    };
    let waits_for = (stands == Stands::Waits).then(waits);
    Some(SliceStands {
        name: slice.workload.name_any(),
        stands,
        local_queue: slice.workload.spec.queue_name.clone().unwrap_or_default(),
        waits_for,
        path,
        pod_sets: pod_sets(slice.workload),
    })
}

/// Returns the ClusterQueue of a Workload and its Cohorts from the nearest to the root; empty if
/// the LocalQueue doesn't exist or names no ClusterQueue.
pub(super) fn path(world: &World, workload: &Workload) -> Vec<String> {
    let local =
        ObjectKey::new(workload.namespace().unwrap_or_default(), workload.spec.queue_name.clone().unwrap_or_default());
    let queue = world.local_queues.get(&local).and_then(|local| local.spec.cluster_queue.clone());
    let Some(queue) = queue else { return Vec::new() };
    let known = world.cluster_queues.get(&ObjectKey::global(queue.clone()));
    let mut path = vec![queue];
    let mut above = known.and_then(|known| known.spec.cohort_name.clone());
    // The scheduler rejects Cohort cycles, but the objects may still form one.
    while let Some(cohort) = above.filter(|cohort| !cohort.is_empty() && !path.contains(cohort)) {
        above = world.cohorts.get(&ObjectKey::global(cohort.clone())).and_then(|known| known.spec.parent_name.clone());
        path.push(cohort);
    }
    path
}

fn pod_sets(workload: &Workload) -> Vec<PodSetStands> {
    let admission = workload.status.as_ref().and_then(|status| status.admission.as_ref());
    let assigned = |name: &str| {
        let assignments = admission.into_iter().flat_map(|admission| &admission.pod_set_assignments);
        assignments.into_iter().find(|assigned| assigned.name == name)
    };
    let stands = workload.spec.pod_sets.iter().map(|pod_set| {
        let assigned = assigned(&pod_set.name);
        let usage = assigned.into_iter().flat_map(|assigned| &assigned.resource_usage);
        PodSetStands {
            name: pod_set.name.clone(),
            count: assigned.and_then(|assigned| assigned.count).unwrap_or(pod_set.count),
            flavors: assigned.map(|assigned| assigned.flavors.clone().into_iter().collect()).unwrap_or_default(),
            usage: usage.map(|(resource, amount)| (resource.clone(), amount.0.clone())).collect(),
        }
    });
    stands.collect()
}

/// Describes a slice that the next scheduling cycle admits.
fn fits() -> Waits {
    let message = "fits, and will be admitted in the next scheduling cycle".to_owned();
    Waits { reason: String::new(), message, short: Vec::new(), unblocked_by: Vec::new() }
}

fn waits(world: &World, waiting: &Waiting, cluster_queue: Option<&str>) -> Waits {
    let obstacles = match waiting {
        Waiting::Quota(obstacles) => obstacles.as_slice(),
        _ => &[],
    };
    let short = obstacles.iter().filter_map(|obstacle| match obstacle {
        Obstacle::Short(shortfall) | Obstacle::Exceeds(shortfall) => Some(short(world, shortfall, cluster_queue)),
        _ => None,
    });
    Waits {
        reason: waiting.reason().as_str().to_owned(),
        message: waiting.to_string(),
        short: short.collect(),
        unblocked_by: remedies::of(waiting, cluster_queue.unwrap_or_default()),
    }
}

fn short(world: &World, shortfall: &Shortfall, cluster_queue: Option<&str>) -> Short {
    let show = |amount: Amount| amount.display(&shortfall.resource).to_string();
    let holders = shortfall.holders.iter().map(|(key, amount)| (holder(world, key), show(*amount)));
    let kept = shortfall.kept.as_ref().map(|kept| KeptForOthers {
        amount: show(kept.amount),
        first: holder(world, &kept.first),
        more: kept.more,
    });
    Short {
        pod_set: shortfall.pod_set.clone(),
        flavor: shortfall.flavor.clone(),
        resource: shortfall.resource.clone(),
        missing: show(shortfall.missing),
        requested: show(shortfall.requested.plus(shortfall.earlier)),
        held: show(shortfall.held),
        used: show(shortfall.used),
        nominal: show(shortfall.nominal),
        bound_by: remedies::bound_by(&shortfall.binding, cluster_queue.unwrap_or_default()),
        holders: holders.collect(),
        more_holders: shortfall.more_holders,
        kept,
    }
}

/// Returns the kind, namespace and name of the job that owns a Workload, or of the Workload if it
/// has no controller.
pub(super) fn holder(world: &World, workload: &ObjectKey) -> String {
    let owner = world.workloads.get(workload).and_then(|workload| {
        let owners = workload.owner_references();
        owners.iter().find(|owner| owner.controller == Some(true)).map(|owner| (owner.kind.clone(), owner.name.clone()))
    });
    match owner {
        Some((kind, name)) => format!("{kind} {}/{name}", workload.namespace),
        None => format!("Workload {workload}"),
    }
}
