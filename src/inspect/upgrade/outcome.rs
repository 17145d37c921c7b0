//! Outcome of the dry run of an upgrade.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::Preempted;
use super::least::{Amounts, Place, Tried};
use super::ways::Strategy;
use crate::explain::{holder, path};
use crate::remedies;
use sluice_api::condition;
use sluice_api::kueue::Workload;
use sluice_api::quantity::Amount;
use sluice_api::sluice::ADMITTED;
use sluice_engine::world::World;
use sluice_engine::{Engine, Sight};
use sluice_jobframework::fitting::UPGRADE_ADMISSIBLE;
use sluice_jobframework::managed::Managed;
use sluice_jobframework::record::Share;
use sluice_jobframework::slices::{self, Slice};
use sluice_jobframework::{Group, Member};
use sluice_plan::ObjectKey;
use sluice_plan::ObjectRef;
use sluice_queue::Waiting;
use sluice_rayservice::status::UPGRADE_HELD;

/// Verdict on an upgrade.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// Admitted now, possibly by preemption.
    Fits,
    /// Pending until other jobs release quota or are admitted first.
    #[serde(rename = "waits")]
    Waits,
    /// Never admitted without more quota or another change.
    Never,
}

/// Amount of a resource in a flavor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Use {
    /// Name of the flavor.
    pub flavor: String,
    /// Name of the resource.
    pub resource: String,
    /// Amount, as a Kubernetes quantity.
    pub amount: String,
}

/// Returns the amounts other than zero, in display format.
pub(super) fn uses(amounts: &Amounts) -> Vec<Use> {
    let uses = amounts.iter().filter(|(_, amount)| **amount != Amount::ZERO).map(|(place, amount)| Use {
        flavor: place.flavor.clone(),
        resource: place.resource.clone(),
        amount: amount.display(&place.resource).to_string(),
    });
    uses.collect()
}

/// Outcome of the dry run of an upgrade.
#[derive(Debug, Clone)]
pub(super) struct Outcome {
    /// Strategy that the change turned out to be.
    pub(super) strategy: Strategy,
    pub(super) verdict: Verdict,
    /// Reason for which it doesn't fit now; None if it does.
    pub(super) why: Option<String>,
    /// ClusterQueue of the RayService; None if it has no slice, or the slice's LocalQueue names
    /// none.
    pub(super) cluster_queue: Option<String>,
    /// Peak usage of the RayService during the dry run.
    pub(super) peak: Amounts,
    /// Usage before the change.
    used: Amounts,
    /// Usage at the end of the dry run.
    uses: Amounts,
    /// Sufficient quota according to the pending reason; empty if not pending for quota.
    suggested: Amounts,
    /// True if more quota may be sufficient.
    pub(super) is_about_quota: bool,
    /// Quota lost by other jobs, by job.
    lost: BTreeMap<String, Amounts>,
    /// Usage per pod at the end of the dry run.
    pub(super) per_pod: PerPod,
}

/// Usage per pod: by member uid, then by group.
#[derive(Debug, Clone, Default)]
pub(super) struct PerPod(BTreeMap<String, BTreeMap<String, Amounts>>);

impl PerPod {
    fn of(covering: Option<&Slice<'_>>) -> Self {
        let Some(slice) = covering else { return Self::default() };
        let by_pod_set = each_pod(slice.workload);
        let members = slice.record.members.iter().map(|member| {
            let group_usage = |share: &Share| Some((share.group.clone(), by_pod_set.get(&share.pod_set)?.clone()));
            (member.uid.clone(), member.pods.iter().filter_map(group_usage).collect())
        });
        Self(members.collect())
    }

    /// Returns the usage of these pods by group: `active_pods` of the active cluster with uid
    /// `active`, and `pending_pods` of the pending cluster.
    pub(super) fn used(
        &self,
        active: Option<&str>,
        active_pods: &BTreeMap<String, u32>,
        pending_pods: &BTreeMap<String, u32>,
    ) -> Amounts {
        let mut used = Amounts::new();
        for (uid, per_pod) in &self.0 {
            let pods = if Some(uid.as_str()) == active { active_pods } else { pending_pods };
            for (group, count) in pods {
                for (place, amount) in per_pod.get(group).into_iter().flatten() {
                    let sum = used.entry(place.clone()).or_default();
                    *sum = sum.plus(amount.times((*count).into()));
                }
            }
        }
        used
    }
}

/// Returns the usage per pod of each pod set of an admitted Workload; empty if it isn't admitted.
fn each_pod(workload: &Workload) -> BTreeMap<String, Amounts> {
    let admission = workload.status.as_ref().and_then(|status| status.admission.as_ref());
    let assigned = admission.into_iter().flat_map(|admission| &admission.pod_set_assignments);
    let per_pod = assigned.filter_map(|assigned| {
        let count = i64::from(assigned.count.filter(|count| *count > 0)?);
        let amounts = assigned.resource_usage.iter().map(|(resource, quantity)| {
            let flavor = assigned.flavors.get(resource).cloned().unwrap_or_default();
            let amount = Amount::of(resource, quantity).unwrap_or_default();
            (Place { flavor, resource: resource.clone() }, Amount::new(amount.get() / count))
        });
        Some((assigned.name.clone(), amounts.collect()))
    });
    per_pod.collect()
}

impl Outcome {
    /// Evaluates the state of the RayService after the dry run. `before` is the usage of each job
    /// before the change.
    pub(super) fn of(
        engine: &Engine,
        service: &ObjectRef,
        members_before: &BTreeSet<String>,
        before: &BTreeMap<String, Amounts>,
        peak: Amounts,
    ) -> Self {
        let stands = engine.look(service, |sight| Stands::of(engine, &sight));
        let stands = stands.unwrap_or_else(|| Stands::never("the RayService doesn't exist, or is part of another job"));
        let is_new = |uid: &String| !members_before.contains(uid);
        let strategy = match (members_before.is_empty(), stands.members.iter().any(is_new)) {
            (true, _) => Strategy::Create,
            (false, true) => Strategy::NewCluster,
            (false, false) => Strategy::InPlace,
        };
        let now = usage_by_job(engine.world());
        let service_name = service.to_string();
        let others = before.iter().filter(|(job, _)| **job != service_name);
        let lost = others.map(|(job, had)| (job.clone(), less(had, now.get(job).unwrap_or(&Amounts::new()))));
        Self {
            strategy,
            verdict: stands.verdict,
            why: stands.why,
            cluster_queue: stands.cluster_queue,
            peak,
            used: before.get(&service_name).cloned().unwrap_or_default(),
            uses: now.get(&service_name).cloned().unwrap_or_default(),
            suggested: stands.suggested,
            is_about_quota: stands.is_about_quota,
            lost: lost.filter(|(_, lost)| !lost.is_empty()).collect(),
            per_pod: stands.per_pod,
        }
    }

    /// Returns true if the RayService reaches its new spec with the quota it already holds.
    pub(super) fn needs_no_more(&self) -> bool {
        self.strategy == Strategy::InPlace && self.verdict == Verdict::Fits && self.peak == self.used
    }

    /// Converts the outcome for the search for the minimum quota.
    pub(super) fn tried(self) -> Tried {
        Tried {
            through: self.verdict == Verdict::Fits,
            places: self.uses.into_keys().collect(),
            suggested: self.suggested,
        }
    }

    /// Returns the preempted jobs.
    pub(super) fn preempts(&self) -> Vec<Preempted> {
        self.lost.iter().map(|(job, lost)| Preempted { job: job.clone(), loses: uses(lost) }).collect()
    }
}

fn less(had: &Amounts, has: &Amounts) -> Amounts {
    let lost = had.iter().map(|(place, had)| {
        let has = has.get(place).copied().unwrap_or(Amount::ZERO);
        (place.clone(), had.minus(has))
    });
    lost.filter(|(_, lost)| *lost > Amount::ZERO).collect()
}

/// State of the RayService at the end of a dry run.
struct Stands {
    verdict: Verdict,
    why: Option<String>,
    cluster_queue: Option<String>,
    suggested: Amounts,
    is_about_quota: bool,
    /// Uids of its RayClusters that are not terminating.
    members: BTreeSet<String>,
    per_pod: PerPod,
}

impl Stands {
    fn never(why: &str) -> Self {
        Self {
            verdict: Verdict::Never,
            why: Some(why.to_owned()),
            cluster_queue: None,
            suggested: Amounts::new(),
            is_about_quota: false,
            members: BTreeSet::new(),
            per_pod: PerPod::default(),
        }
    }

    fn of(engine: &Engine, sight: &Sight<'_>) -> Self {
        let members: Vec<Member> = sight.job.members().into_iter().filter(|member| !member.going).collect();
        let slices = slices::slices_of(sight.workloads.iter().copied());
        let waiting = slices::waiting(&slices).map(|slice| slice.workload);
        let covering = slices::covering(&slices);
        let waits_for = waiting.and_then(|workload| engine.queue().explain(&ObjectKey::of(workload)));
        let asks = waiting.or(covering.map(|slice| slice.workload));
        let can_be = !condition::is_false(sight.job.conditions(), UPGRADE_ADMISSIBLE);
        let verdict = match &waits_for {
            _ if sight.managed == Managed::No || has_quota(sight, &members, covering) => Verdict::Fits,
            Some(waiting) if can_be && waiting.ends_by_itself() => Verdict::Waits,
            _ => Verdict::Never,
        };
        Self {
            verdict,
            why: if verdict == Verdict::Fits { None } else { obstacle(sight) },
            cluster_queue: asks.and_then(|workload| path(engine.world(), workload).into_iter().next()),
            is_about_quota: waits_for.as_ref().is_none_or(Waiting::is_in_line),
            suggested: waits_for.as_ref().map(enough).unwrap_or_default(),
            members: members.into_iter().map(|member| member.uid).collect(),
            per_pod: PerPod::of(covering),
        }
    }
}

/// Returns true if the covering slice covers every group of the RayService; during an upgrade, only
/// those of the pending cluster, since the active one may still be pending for more.
fn has_quota(sight: &Sight<'_>, members: &[Member], covering: Option<&Slice<'_>>) -> bool {
    let Some(slice) = covering else { return false };
    let is_covered = |member: &Member| {
        let granted = slice.grant(member);
        let has = |group: &Group| granted.get(&group.name).copied().unwrap_or(0) >= group.count;
        member.groups.as_ref().as_ref().is_ok_and(|groups| groups.iter().all(has))
    };
    let held = condition::is_true(sight.job.conditions(), UPGRADE_HELD);
    match members.iter().find(|member| Some(&member.uid) == sight.job.next().as_ref()) {
        Some(next) => is_covered(next),
        None => !held && !members.is_empty() && members.iter().all(is_covered),
    }
}

/// Returns the message of the most severe blocking condition: UpgradeBlocked, then
/// UpgradeAdmissible, then Admitted; None if none blocks.
fn obstacle(sight: &Sight<'_>) -> Option<String> {
    let conditions = sight.job.conditions();
    let held = condition::get(conditions, UPGRADE_HELD).filter(|held| held.status == "True");
    let is_false = |kind| condition::get(conditions, kind).filter(|condition| condition.status == "False");
    let most_severe = held.or_else(|| is_false(UPGRADE_ADMISSIBLE)).or_else(|| is_false(ADMITTED))?;
    Some(most_severe.message.clone())
}

fn enough(waiting: &Waiting) -> Amounts {
    let lacks = remedies::enough_quota(waiting).into_iter();
    lacks.map(|(flavor, resource, amount)| (Place { flavor, resource }, amount)).collect()
}

/// Returns the usage of each job, by kind, namespace and name; without jobs that use nothing.
pub(super) fn usage_by_job(world: &World) -> BTreeMap<String, Amounts> {
    let mut by_owner: BTreeMap<String, Vec<&Workload>> = BTreeMap::new();
    for (key, workload) in world.workloads.iter() {
        by_owner.entry(holder(world, key)).or_default().push(workload);
    }
    by_owner
        .into_iter()
        .map(|(owner, workloads)| (owner, usage(workloads)))
        .filter(|(_, usage)| !usage.is_empty())
        .collect()
}

/// Returns the usage of the job that owns these Workloads: that of the covering slice, whose usage
/// includes that of the slice it replaced.
pub(super) fn usage<'a>(workloads: impl IntoIterator<Item = &'a Workload>) -> Amounts {
    let slices = slices::slices_of(workloads);
    let covering = slices::covering(&slices).and_then(|slice| slice.workload.status.as_ref()?.admission.as_ref());
    let mut usage = Amounts::new();
    for assigned in covering.into_iter().flat_map(|admission| &admission.pod_set_assignments) {
        for (resource, quantity) in &assigned.resource_usage {
            let flavor = assigned.flavors.get(resource).cloned().unwrap_or_default();
            let amount = Amount::of(resource, quantity).unwrap_or_default();
            let total = usage.entry(Place { flavor, resource: resource.clone() }).or_default();
            *total = total.plus(amount);
        }
    }
    usage
}
