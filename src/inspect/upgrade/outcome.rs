//! Outcome of the dry run of an upgrade.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::PreemptedJob;
use super::min_quota::{FlavorResource, FlavorResourceAmounts, Trial};
use super::strategies::Strategy;
use crate::explain::{owner_name, queue_path};
use crate::remediation;
use sluice_api::condition;
use sluice_api::job_conditions::ADMITTED;
use sluice_api::kueue::Workload;
use sluice_api::quantity::Amount;
use sluice_engine::cluster_state::ClusterState;
use sluice_engine::{Engine, JobSnapshot};
use sluice_jobframework::slice_record::PodShare;
use sluice_jobframework::slices::{self, Slice};
use sluice_jobframework::upgrade_feasibility::UPGRADE_ADMISSIBLE;
use sluice_jobframework::{Member, PodGroupDemand};
use sluice_plan::ObjectKey;
use sluice_plan::ObjectRef;
use sluice_queue::PendingCause;
use sluice_rayservice::status::UPGRADE_BLOCKED;

/// Verdict on an upgrade.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum PlanVerdict {
    /// Admitted now, possibly by preemption.
    Fits,
    /// Pending until other jobs release quota or are admitted first.
    Pending,
    /// Never admitted without more quota or another change.
    Never,
}

/// Amount of a resource in a flavor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceUsage {
    /// Name of the flavor.
    pub flavor: String,
    /// Name of the resource.
    pub resource: String,
    /// Amount, as a Kubernetes quantity.
    pub amount: String,
}

/// Returns the amounts other than zero, in display format.
pub(super) fn resource_usages(amounts: &FlavorResourceAmounts) -> Vec<ResourceUsage> {
    let uses = amounts.iter().filter(|(_, amount)| **amount != Amount::ZERO).map(|(place, amount)| ResourceUsage {
        flavor: place.flavor.clone(),
        resource: place.resource.clone(),
        amount: amount.display(&place.resource).to_string(),
    });
    uses.collect()
}

/// Outcome of the dry run of an upgrade.
#[derive(Debug, Clone)]
pub(super) struct DryRunOutcome {
    /// Strategy that the change turned out to be.
    pub(super) strategy: Strategy,
    pub(super) verdict: PlanVerdict,
    /// Reason for which it doesn't fit now; None if it does.
    pub(super) message: Option<String>,
    /// ClusterQueue of the RayService; None if it has no slice, or the slice's LocalQueue names
    /// none.
    pub(super) cluster_queue: Option<String>,
    /// Peak usage of the RayService during the dry run.
    pub(super) peak: FlavorResourceAmounts,
    /// Usage before the change.
    usage_before: FlavorResourceAmounts,
    /// Usage at the end of the dry run.
    usage_after: FlavorResourceAmounts,
    /// Sufficient quota according to the pending reason; empty if not pending for quota.
    suggested_quota: FlavorResourceAmounts,
    /// True if more quota may be sufficient.
    pub(super) may_need_quota: bool,
    /// Quota lost by other jobs, by job.
    quota_lost: BTreeMap<String, FlavorResourceAmounts>,
    /// Usage per pod at the end of the dry run.
    pub(super) per_pod: PerPodUsage,
}

/// Usage per pod: by member uid, then by group.
#[derive(Debug, Clone, Default)]
pub(super) struct PerPodUsage(BTreeMap<String, BTreeMap<String, FlavorResourceAmounts>>);

impl PerPodUsage {
    fn of_covering(covering: Option<&Slice<'_>>) -> Self {
        let Some(slice) = covering else { return Self::default() };
        let by_pod_set = usage_per_pod(slice.workload);
        let members = slice.record.members.iter().map(|member| {
            let group_usage = |share: &PodShare| Some((share.group.clone(), by_pod_set.get(&share.pod_set)?.clone()));
            (member.uid.clone(), member.pods.iter().filter_map(group_usage).collect())
        });
        Self(members.collect())
    }

    /// Returns the usage of these pods by group: `active_pods` of the active cluster with uid
    /// `active`, and `pending_pods` of the pending cluster.
    pub(super) fn usage_of(
        &self,
        active: Option<&str>,
        active_pods: &BTreeMap<String, u32>,
        pending_pods: &BTreeMap<String, u32>,
    ) -> FlavorResourceAmounts {
        let mut used = FlavorResourceAmounts::new();
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
fn usage_per_pod(workload: &Workload) -> BTreeMap<String, FlavorResourceAmounts> {
    let admission = workload.status.as_ref().and_then(|status| status.admission.as_ref());
    let assigned = admission.into_iter().flat_map(|admission| &admission.pod_set_assignments);
    let per_pod = assigned.filter_map(|assigned| {
        let count = i64::from(assigned.count.filter(|count| *count > 0)?);
        let amounts = assigned.resource_usage.iter().map(|(resource, quantity)| {
            let flavor = assigned.flavors.get(resource).cloned().unwrap_or_default();
            let amount = Amount::from_quantity(resource, quantity).unwrap_or_default();
            (FlavorResource { flavor, resource: resource.clone() }, Amount::new(amount.get() / count))
        });
        Some((assigned.name.clone(), amounts.collect()))
    });
    per_pod.collect()
}

impl DryRunOutcome {
    /// Evaluates the state of the RayService after the dry run. `before` is the usage of each job
    /// before the change.
    pub(super) fn evaluate(
        engine: &Engine,
        service: &ObjectRef,
        members_before: &BTreeSet<String>,
        before: &BTreeMap<String, FlavorResourceAmounts>,
        peak: FlavorResourceAmounts,
    ) -> Self {
        let state = engine.with_job(service, |snapshot| ServiceState::observe(engine, &snapshot));
        let state =
            state.unwrap_or_else(|| ServiceState::never("the RayService doesn't exist, or is part of another job"));
        let is_new = |uid: &String| !members_before.contains(uid);
        let strategy = match (members_before.is_empty(), state.members.iter().any(is_new)) {
            (true, _) => Strategy::Create,
            (false, true) => Strategy::NewCluster,
            (false, false) => Strategy::InPlace,
        };
        let now = usage_by_job(engine.cluster_state());
        let service_name = service.to_string();
        let others = before.iter().filter(|(job, _)| **job != service_name);
        let lost = others
            .map(|(job, had)| (job.clone(), decrease(had, now.get(job).unwrap_or(&FlavorResourceAmounts::new()))));
        Self {
            strategy,
            verdict: state.verdict,
            message: state.message,
            cluster_queue: state.cluster_queue,
            peak,
            usage_before: before.get(&service_name).cloned().unwrap_or_default(),
            usage_after: now.get(&service_name).cloned().unwrap_or_default(),
            suggested_quota: state.suggested_quota,
            may_need_quota: state.may_need_quota,
            quota_lost: lost.filter(|(_, lost)| !lost.is_empty()).collect(),
            per_pod: state.per_pod,
        }
    }

    /// Returns true if the RayService reaches its new spec with the quota it already holds.
    pub(super) fn needs_no_more_quota(&self) -> bool {
        self.strategy == Strategy::InPlace && self.verdict == PlanVerdict::Fits && self.peak == self.usage_before
    }

    /// Converts the outcome for the search for the minimum quota.
    pub(super) fn into_trial(self) -> Trial {
        Trial { succeeds: self.verdict == PlanVerdict::Fits, used: self.usage_after, suggested: self.suggested_quota }
    }

    /// Returns the preempted jobs.
    pub(super) fn preempted_jobs(&self) -> Vec<PreemptedJob> {
        self.quota_lost
            .iter()
            .map(|(job, lost)| PreemptedJob { job: job.clone(), loses: resource_usages(lost) })
            .collect()
    }
}

fn decrease(had: &FlavorResourceAmounts, has: &FlavorResourceAmounts) -> FlavorResourceAmounts {
    let lost = had.iter().map(|(place, had)| {
        let has = has.get(place).copied().unwrap_or(Amount::ZERO);
        (place.clone(), had.minus(has))
    });
    lost.filter(|(_, lost)| *lost > Amount::ZERO).collect()
}

/// State of the RayService at the end of a dry run.
struct ServiceState {
    verdict: PlanVerdict,
    message: Option<String>,
    cluster_queue: Option<String>,
    suggested_quota: FlavorResourceAmounts,
    may_need_quota: bool,
    /// Uids of its RayClusters that are not terminating.
    members: BTreeSet<String>,
    per_pod: PerPodUsage,
}

impl ServiceState {
    fn never(why: &str) -> Self {
        Self {
            verdict: PlanVerdict::Never,
            message: Some(why.to_owned()),
            cluster_queue: None,
            suggested_quota: FlavorResourceAmounts::new(),
            may_need_quota: false,
            members: BTreeSet::new(),
            per_pod: PerPodUsage::default(),
        }
    }

    fn observe(engine: &Engine, snapshot: &JobSnapshot<'_>) -> Self {
        let members: Vec<Member> = snapshot.job.members().into_iter().filter(|member| !member.is_terminating).collect();
        let slices = slices::slices_of(snapshot.workloads.iter().copied());
        let waiting = slices::pending(&slices).map(|slice| slice.workload);
        let covering = slices::covering(&slices);
        let waits_for = waiting.and_then(|workload| engine.scheduler().explain(&ObjectKey::of(workload)));
        let asks = waiting.or(covering.map(|slice| slice.workload));
        let can_be = !condition::is_false(snapshot.job.conditions(), UPGRADE_ADMISSIBLE);
        let verdict = match &waits_for {
            _ if !snapshot.managed.needs_quota() || is_covered(snapshot, &members, covering) => PlanVerdict::Fits,
            Some(waiting) if can_be && waiting.resolves_without_changes() => PlanVerdict::Pending,
            _ => PlanVerdict::Never,
        };
        Self {
            verdict,
            message: if verdict == PlanVerdict::Fits { None } else { blocking_message(snapshot) },
            cluster_queue: asks.and_then(|workload| queue_path(engine.cluster_state(), workload).into_iter().next()),
            may_need_quota: waits_for.as_ref().is_none_or(PendingCause::is_queued),
            suggested_quota: waits_for.as_ref().map(suggested_quota).unwrap_or_default(),
            members: members.into_iter().map(|member| member.uid).collect(),
            per_pod: PerPodUsage::of_covering(covering),
        }
    }
}

/// Returns true if the covering slice covers every group of the RayService; during an upgrade, only
/// those of the pending cluster, since the active one may still be pending for more.
fn is_covered(snapshot: &JobSnapshot<'_>, members: &[Member], covering: Option<&Slice<'_>>) -> bool {
    let Some(slice) = covering else { return false };
    let is_covered = |member: &Member| {
        let granted = slice.granted_pods(member);
        let has = |group: &PodGroupDemand| granted.get(&group.name).copied().unwrap_or(0) >= group.count;
        member.groups.as_ref().as_ref().is_ok_and(|groups| groups.iter().all(has))
    };
    let held = condition::is_true(snapshot.job.conditions(), UPGRADE_BLOCKED);
    match members.iter().find(|member| Some(&member.uid) == snapshot.job.pending_member().as_ref()) {
        Some(next) => is_covered(next),
        None => !held && !members.is_empty() && members.iter().all(is_covered),
    }
}

/// Returns the message of the most severe blocking condition: UpgradeBlocked, then
/// UpgradeAdmissible, then Admitted; None if none blocks.
fn blocking_message(snapshot: &JobSnapshot<'_>) -> Option<String> {
    let conditions = snapshot.job.conditions();
    let held = condition::get_true(conditions, UPGRADE_BLOCKED);
    let is_false = |kind| condition::get_false(conditions, kind);
    let most_severe = held.or_else(|| is_false(UPGRADE_ADMISSIBLE)).or_else(|| is_false(ADMITTED))?;
    Some(most_severe.message.clone())
}

fn suggested_quota(waiting: &PendingCause) -> FlavorResourceAmounts {
    let deficits = remediation::sufficient_quota(waiting).into_iter();
    deficits.map(|(flavor, resource, amount)| (FlavorResource { flavor, resource }, amount)).collect()
}

/// Returns the usage of each job, by kind, namespace and name; without jobs that use nothing.
pub(super) fn usage_by_job(state: &ClusterState) -> BTreeMap<String, FlavorResourceAmounts> {
    let mut by_owner: BTreeMap<String, Vec<&Workload>> = BTreeMap::new();
    for (key, workload) in state.workloads.iter() {
        by_owner.entry(owner_name(state, key)).or_default().push(workload);
    }
    by_owner
        .into_iter()
        .map(|(owner, workloads)| (owner, usage(workloads)))
        .filter(|(_, usage)| !usage.is_empty())
        .collect()
}

/// Returns the usage of the job that owns these Workloads: that of the covering slice, whose usage
/// includes that of the slice it replaced.
pub(super) fn usage<'a>(workloads: impl IntoIterator<Item = &'a Workload>) -> FlavorResourceAmounts {
    let slices = slices::slices_of(workloads);
    let covering = slices::covering(&slices).and_then(|slice| slice.workload.status.as_ref()?.admission.as_ref());
    let mut usage = FlavorResourceAmounts::new();
    for assigned in covering.into_iter().flat_map(|admission| &admission.pod_set_assignments) {
        for (resource, quantity) in &assigned.resource_usage {
            let flavor = assigned.flavors.get(resource).cloned().unwrap_or_default();
            let amount = Amount::from_quantity(resource, quantity).unwrap_or_default();
            let total = usage.entry(FlavorResource { flavor, resource: resource.clone() }).or_default();
            *total = total.plus(amount);
        }
    }
    usage
}
