//! Why a job waits and what would let it run; and of what runs, what it was granted. Words and numbers are those of conditions.

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

/// Where a job stands.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// Its kind, namespace and name.
    pub job: String,
    /// Whether it is in a queue at all.
    pub queued: bool,
    /// What its conditions say: whether all that it wants is admitted, and whether an upgrade of it can ever be.
    pub says: Vec<Said>,
    /// What has pods for it.
    pub members: Vec<MemberStands>,
    /// Its slices, but for those that are over.
    pub slices: Vec<SliceStands>,
}

/// What a condition says.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Said {
    /// The type of the condition.
    #[serde(rename = "type")]
    pub kind: String,
    /// True or False.
    pub status: String,
    /// The reason.
    pub reason: String,
    /// The message.
    pub message: String,
}

/// How a member of a job stands.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberStands {
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Whether this is how the pods of a cluster stand that are to take the place of those that run.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub takes_place: bool,
    /// Whether its gate is open.
    pub open: bool,
    /// How many of its pods run or may run.
    pub run: u32,
    /// How many of its pods wait behind their scheduling gates.
    pub wait: usize,
}

/// How a slice of a job stands.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SliceStands {
    /// The name of the Workload.
    pub name: String,
    /// Whether it waits, holds quota, or is on its way out.
    pub stands: Stands,
    /// The LocalQueue that it asks.
    pub local_queue: String,
    /// The ClusterQueue that this leads to, and the cohorts above that, the nearest first.
    pub path: Vec<String>,
    /// What it asks for, or was granted.
    pub pod_sets: Vec<PodSetStands>,
    /// What it waits for, if it waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<Waits>,
}

/// Where a slice is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Stands {
    /// It waits for quota.
    Waits,
    /// It holds quota.
    Holds,
    /// It holds quota, and has been told to give it back.
    GivesBack,
}

/// What a slice asks for, or was granted, for one PodSet.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSetStands {
    /// Its name.
    pub name: String,
    /// How many pods.
    pub count: i32,
    /// The flavor of each resource, once there is one.
    pub flavors: BTreeMap<String, String>,
    /// What it uses of each resource, once it is granted.
    pub usage: BTreeMap<String, String>,
}

/// What a slice waits for.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Waits {
    /// The reason of the condition QuotaReserved.
    pub reason: String,
    /// The message of that condition.
    pub message: String,
    /// What quota is missing.
    pub short: Vec<Short>,
    /// What would let it go on; one of them is enough.
    pub unblocked_by: Vec<Remedy>,
}

/// What is missing of a resource in a flavor.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Short {
    /// The PodSet that needs it.
    pub pod_set: String,
    /// The flavor.
    pub flavor: String,
    /// The resource.
    pub resource: String,
    /// What more would have to be free, or to be there.
    pub missing: String,
    /// What it and the PodSets before it ask for.
    pub requested: String,
    /// What of that the slice which it replaces holds.
    pub held: String,
    /// What others in the ClusterQueue use.
    pub used: String,
    /// The nominal quota of the ClusterQueue.
    pub nominal: String,
    /// What of the cohort tree binds.
    pub bound_by: String,
    /// Who holds the most of it: the job, where it is known, else its Workload; and how much.
    pub holders: BTreeMap<String, String>,
    /// How many others hold some.
    pub more_holders: usize,
    /// What nobody holds, and is kept for others that wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<KeptForOthers>,
}

/// Quota that is kept for others that wait.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KeptForOthers {
    /// How much.
    pub amount: String,
    /// For whom the most is kept: the job, where it is known, else its Workload.
    pub first: String,
    /// For how many others some is kept.
    pub more: usize,
}

/// Explains where the job stands that this object is, or is a part of; `None` if there is no such object, or no job that it is a
/// part of.
pub fn explain(engine: &Engine, subject: &ObjectRef) -> Option<Explanation> {
    let job = job_of(engine.world(), subject)?;
    engine.look(&job, |sight| stands(engine, &job, &sight))
}

/// The job that an object is a part of.
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
    let of_owner = ObjectRef { kind: owner.kind, api_version: owner.api_version, name: owner.name, ..subject.clone() };
    job_of(world, &of_owner)
}

fn stands(engine: &Engine, job: &ObjectRef, sight: &Sight<'_>) -> Explanation {
    let slices = slices::slices_of(sight.workloads.iter().copied());
    let shown =
        [ADMITTED, UPGRADE_ADMISSIBLE].into_iter().filter_map(|kind| condition::get(sight.job.conditions(), kind));
    Explanation {
        job: job.to_string(),
        queued: sight.managed == Managed::InQueue,
        says: shown.map(said).collect(),
        members: sight.job.members().iter().map(|it| member(sight.job, it)).collect(),
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

/// The ClusterQueue that a Workload's LocalQueue leads to, and the cohorts above it.
pub(super) fn path(world: &World, workload: &Workload) -> Vec<String> {
    let local =
        ObjectKey::new(workload.namespace().unwrap_or_default(), workload.spec.queue_name.clone().unwrap_or_default());
    let queue = world.local_queues.get(&local).and_then(|local| local.spec.cluster_queue.clone());
    let Some(queue) = queue else { return Vec::new() };
    let known = world.cluster_queues.get(&ObjectKey::global(queue.clone()));
    let mut path = vec![queue];
    let mut above = known.and_then(|known| known.spec.cohort_name.clone());
    // A cycle of cohorts is refused by the queue, and may be there all the same.
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

/// What is said of a slice that gets its quota with the next decision.
fn fits() -> Waits {
    let message = "it fits, and is admitted with the next decision".to_owned();
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

/// The job that a Workload stands for, by kind, namespace and name.
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
