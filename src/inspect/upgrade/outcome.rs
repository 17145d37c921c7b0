//! What came of a rehearsal.

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

/// Whether an upgrade goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// At once.
    Fits,
    /// Once others give quota back, or have had their turn.
    Waits,
    /// Not before there is more quota, or something else is changed.
    Never,
}

/// So much of a resource in a flavor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Use {
    /// The flavor.
    pub flavor: String,
    /// The resource.
    pub resource: String,
    /// How much, as Kubernetes writes quantities.
    pub amount: String,
}

/// The amounts, as they are shown.
pub(super) fn uses(amounts: &Amounts) -> Vec<Use> {
    let uses = amounts.iter().filter(|(_, amount)| **amount != Amount::ZERO).map(|(place, amount)| Use {
        flavor: place.flavor.clone(),
        resource: place.resource.clone(),
        amount: amount.display(&place.resource).to_string(),
    });
    uses.collect()
}

/// What came of a rehearsal.
#[derive(Debug, Clone)]
pub(super) struct Outcome {
    /// What kind of change it was.
    pub(super) strategy: Strategy,
    pub(super) verdict: Verdict,
    /// Why it doesn't go through, if it doesn't.
    pub(super) why: Option<String>,
    /// The ClusterQueue that it asks.
    pub(super) cluster_queue: Option<String>,
    /// The most that the service used of it.
    pub(super) peak: Amounts,
    /// What it used before.
    used: Amounts,
    /// What it uses in the end.
    uses: Amounts,
    /// The quota that would be enough, by what is said of its waiting.
    suggested: Amounts,
    /// Whether more quota may be all that it takes.
    pub(super) is_about_quota: bool,
    /// What other jobs lost to it.
    lost: BTreeMap<String, Amounts>,
    /// What each of its pods uses in the end.
    pub(super) per_pod: PerPod,
}

/// What a pod of each group of each member of a job uses, by the uid of the member.
#[derive(Debug, Clone, Default)]
pub(super) struct PerPod(BTreeMap<String, BTreeMap<String, Amounts>>);

impl PerPod {
    fn of(covering: Option<&Slice<'_>>) -> Self {
        let Some(slice) = covering else { return Self::default() };
        let of_pod_set = each_pod(slice.workload);
        let members = slice.record.members.iter().map(|member| {
            let of_group = |share: &Share| Some((share.group.clone(), of_pod_set.get(&share.pod_set)?.clone()));
            (member.uid.clone(), member.pods.iter().filter_map(of_group).collect())
        });
        Self(members.collect())
    }

    /// What so many pods of what serves, by its uid, and of what is to serve next use, by group.
    pub(super) fn used(
        &self,
        serving: Option<&str>,
        of_it: &BTreeMap<String, u32>,
        next: &BTreeMap<String, u32>,
    ) -> Amounts {
        let mut used = Amounts::new();
        for (uid, per_pod) in &self.0 {
            let pods = if Some(uid.as_str()) == serving { of_it } else { next };
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

/// What a pod of each PodSet uses of a Workload that holds quota.
fn each_pod(workload: &Workload) -> BTreeMap<String, Amounts> {
    let admission = workload.status.as_ref().and_then(|status| status.admission.as_ref());
    let assigned = admission.into_iter().flat_map(|admission| &admission.pod_set_assignments);
    let each = assigned.filter_map(|assigned| {
        let count = i64::from(assigned.count.filter(|count| *count > 0)?);
        let amounts = assigned.resource_usage.iter().map(|(resource, quantity)| {
            let flavor = assigned.flavors.get(resource).cloned().unwrap_or_default();
            let amount = Amount::of(resource, quantity).unwrap_or_default();
            (Place { flavor, resource: resource.clone() }, Amount::new(amount.get() / count))
        });
        Some((assigned.name.clone(), amounts.collect()))
    });
    each.collect()
}

impl Outcome {
    /// What came of it, by how the service stands now; `before` is what each job used then.
    pub(super) fn of(
        engine: &Engine,
        service: &ObjectRef,
        members_before: &BTreeSet<String>,
        before: &BTreeMap<String, Amounts>,
        peak: Amounts,
    ) -> Self {
        let stands = engine.look(service, |sight| Stands::of(engine, &sight));
        let stands =
            stands.unwrap_or_else(|| Stands::never("it is a part of another job, or there is no such service"));
        let is_new = |uid: &String| !members_before.contains(uid);
        let strategy = match (members_before.is_empty(), stands.members.iter().any(is_new)) {
            (true, _) => Strategy::Create,
            (false, true) => Strategy::NewCluster,
            (false, false) => Strategy::InPlace,
        };
        let now = usage_by_job(engine.world());
        let own = service.to_string();
        let others = before.iter().filter(|(job, _)| **job != own);
        let lost = others.map(|(job, had)| (job.clone(), less(had, now.get(job).unwrap_or(&Amounts::new()))));
        Self {
            strategy,
            verdict: stands.verdict,
            why: stands.why,
            cluster_queue: stands.cluster_queue,
            peak,
            used: before.get(&own).cloned().unwrap_or_default(),
            uses: now.get(&own).cloned().unwrap_or_default(),
            suggested: stands.suggested,
            is_about_quota: stands.is_about_quota,
            lost: lost.filter(|(_, lost)| !lost.is_empty()).collect(),
            per_pod: stands.per_pod,
        }
    }

    /// Whether the service becomes what it is to be with what it has.
    pub(super) fn needs_no_more(&self) -> bool {
        self.strategy == Strategy::InPlace && self.verdict == Verdict::Fits && self.peak == self.used
    }

    /// The same, for the search for the least quota.
    pub(super) fn tried(self) -> Tried {
        Tried {
            through: self.verdict == Verdict::Fits,
            places: self.uses.into_keys().collect(),
            suggested: self.suggested,
        }
    }

    /// Who lost quota to it.
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

/// How the service stands.
struct Stands {
    verdict: Verdict,
    why: Option<String>,
    cluster_queue: Option<String>,
    suggested: Amounts,
    is_about_quota: bool,
    /// The uids of its clusters.
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
            why: obstacle(sight).filter(|_| verdict != Verdict::Fits),
            cluster_queue: asks.and_then(|workload| path(engine.world(), workload).into_iter().next()),
            is_about_quota: waits_for.as_ref().is_none_or(Waiting::is_in_line),
            suggested: waits_for.as_ref().map(enough).unwrap_or_default(),
            members: members.into_iter().map(|member| member.uid).collect(),
            per_pod: PerPod::of(covering),
        }
    }
}

/// Whether all that the service is to have is paid for; of an upgrade, the cluster that is to serve next: what it takes the place of
/// may go on to wait for more.
fn has_quota(sight: &Sight<'_>, members: &[Member], covering: Option<&Slice<'_>>) -> bool {
    let Some(slice) = covering else { return false };
    let is_paid = |member: &Member| {
        let granted = slice.grant(member);
        let has = |group: &Group| granted.get(&group.name).copied().unwrap_or(0) >= group.count;
        member.groups.as_ref().as_ref().is_ok_and(|groups| groups.iter().all(has))
    };
    let held = condition::is_true(sight.job.conditions(), UPGRADE_HELD);
    match members.iter().find(|member| Some(&member.uid) == sight.job.next().as_ref()) {
        Some(next) => is_paid(next),
        None => !held && !members.is_empty() && members.iter().all(is_paid),
    }
}

/// What stands in its way by its own conditions, the worst first.
fn obstacle(sight: &Sight<'_>) -> Option<String> {
    let conditions = sight.job.conditions();
    let held = condition::get(conditions, UPGRADE_HELD).filter(|held| held.status == "True");
    let is_false = |kind| condition::get(conditions, kind).filter(|condition| condition.status == "False");
    let worst = held.or_else(|| is_false(UPGRADE_ADMISSIBLE)).or_else(|| is_false(ADMITTED))?;
    Some(worst.message.clone())
}

fn enough(waiting: &Waiting) -> Amounts {
    let lacks = remedies::enough_quota(waiting).into_iter();
    lacks.map(|(flavor, resource, amount)| (Place { flavor, resource }, amount)).collect()
}

/// What each job uses, by its kind, namespace and name.
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

/// What the job uses that owns these workloads. (A slice that has replaced another uses what that one did, and more.)
pub(super) fn usage<'a>(workloads: impl IntoIterator<Item = &'a Workload>) -> Amounts {
    let slices = slices::slices_of(workloads);
    let covering = slices::covering(&slices).and_then(|slice| slice.workload.status.as_ref()?.admission.as_ref());
    let mut usage = Amounts::new();
    for assigned in covering.into_iter().flat_map(|admission| &admission.pod_set_assignments) {
        for (resource, quantity) in &assigned.resource_usage {
            let flavor = assigned.flavors.get(resource).cloned().unwrap_or_default();
            let amount = Amount::of(resource, quantity).unwrap_or_default();
            let place = usage.entry(Place { flavor, resource: resource.clone() }).or_default();
            *place = place.plus(amount);
        }
    }
    usage
}
