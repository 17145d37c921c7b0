//! Assessment of an upgrade: asks the scheduler whether both members can ever be admitted together.

use sluice_api::ray::admission_annotations::ExceedsQuotaPolicy;
use sluice_queue::{Feasibility, FeasibilityChecker};

use super::new_slice::new_slice;
use super::pod_sets::{self, DesiredPodSets};
use super::quota_request::QuotaRequest;
use super::slice_record::{MemberShare, SliceRecord};
use super::slices::{self, Slice};
use super::types::Member;
use super::types::PodSetCounts;
use super::upgrade_feasibility::{Alternatives, UpgradeFeasibility, UpgradePair};

/// Assesses the upgrade of a job.
pub(super) fn assess(request: &QuotaRequest<'_>, slices: &[Slice<'_>]) -> UpgradeFeasibility {
    let Some((serving, next)) = upgrade_members(request) else { return UpgradeFeasibility::NoUpgrade };
    let held = slices::covering(slices);
    if held.is_some_and(|held| held.record.member(&next.uid).is_some()) {
        return UpgradeFeasibility::Admitted { next: next.name.clone() };
    }
    if request.context.job.recreates() {
        let prospect = feasibility_alone(request, held, next);
        return UpgradeFeasibility::Recreate(UpgradePair::new(serving, next), prospect);
    }
    assess_together(request, held, serving, next).unwrap_or(UpgradeFeasibility::Unknown)
}

/// Returns the feasibility of the pending member without the active one; `None` if unknown.
fn feasibility_alone(request: &QuotaRequest<'_>, held: Option<&Slice<'_>>, next: &Member) -> Option<Feasibility> {
    let members = vec![request.demand.record.member(&next.uid)?.clone()];
    let record = SliceRecord { members, ..SliceRecord::default() };
    let probe = new_slice(&QuotaRequest { feasibility: UpgradeFeasibility::Unknown, ..*request }, record.clone(), held);
    Some(request.context.scheduler.feasibility_checker(&probe)?.check(&pod_counts(&record, |_, _, count| count)))
}

/// Returns the active and the pending member; `None` if the job is not being upgraded.
fn upgrade_members<'m>(request: &QuotaRequest<'m>) -> Option<(&'m Member, &'m Member)> {
    let next = request.context.job.pending_member().filter(|_| request.context.job.wants_to_run())?;
    let next = request.members.iter().find(|member| member.uid == next && member.is_surge && !member.is_terminating)?;
    let serving = request.members.iter().find(|member| !member.is_surge && !member.is_terminating)?;
    Some((serving, next))
}

/// Assesses the two members together; `None` if the queue cannot answer.
fn assess_together(
    request: &QuotaRequest<'_>,
    held: Option<&Slice<'_>>,
    serving: &Member,
    next: &Member,
) -> Option<UpgradeFeasibility> {
    let wanted = &joint_demand(request.demand, serving, next, held.is_some())?;
    let record = wanted.record.clone();
    let probe = new_slice(
        &QuotaRequest { demand: wanted, feasibility: UpgradeFeasibility::Unknown, ..*request },
        record.clone(),
        held,
    );
    let checker = request.context.scheduler.feasibility_checker(&probe)?;
    let both = pod_counts(&record, |_, _, count| count);
    let pair = UpgradePair::new(serving, next);
    let deficits = match checker.check(&both) {
        Feasibility::Fits => return Some(UpgradeFeasibility::Fits(pair)),
        Feasibility::NoMatchingFlavor(obstacles) => return Some(UpgradeFeasibility::NoMatchingFlavor(pair, obstacles)),
        Feasibility::ExceedsQuota(deficits) => deficits,
    };
    let only_next = pod_counts(&record, |uid, _, count| if uid == next.uid { count } else { 0 });
    let alone = checker.check(&only_next) == Feasibility::Fits;
    let chosen = ExceedsQuotaPolicy::from_annotations(request.context.job.meta());
    if alone && chosen == Ok(ExceedsQuotaPolicy::Recreate) {
        return Some(UpgradeFeasibility::RecreateInstead(pair, deficits));
    }
    let surge = largest_surge(&checker, &record, next);
    Some(UpgradeFeasibility::ExceedsQuota(
        pair,
        deficits,
        Alternatives { fits_alone: alone, max_surge_percent: surge, invalid_annotation: chosen.err() },
    ))
}

/// Returns the demand of both members. If the active member holds quota already, the pods of the
/// pending one get separate PodSets, so that they may use other flavors, unless a Workload cannot
/// hold that many PodSets.
fn joint_demand(wanted: &DesiredPodSets, serving: &Member, next: &Member, is_held: bool) -> Option<DesiredPodSets> {
    let (active, pending) = (wanted.record.member(&serving.uid)?, wanted.record.member(&next.uid)?);
    let record = |pending: &MemberShare| SliceRecord {
        members: vec![active.clone(), pending.clone()],
        ..SliceRecord::default()
    };
    let (mut templates, mut moved) = (wanted.templates.clone(), pending.clone());
    for share in &mut moved.pods {
        let separate = format!("{}-{}", share.pod_set, next.name);
        if let Some(template) = templates.get(&share.pod_set).cloned() {
            templates.insert(separate.clone(), template);
            share.pod_set = separate;
        }
    }
    let is_split = is_held && pod_sets::check_pod_set_limit(&record(&moved)).is_ok();
    Some(DesiredPodSets {
        record: record(if is_split { &moved } else { pending }),
        templates,
        ..DesiredPodSets::default()
    })
}

/// Returns the number of pods of a record by PodSet. `count` maps member uid, group and recorded
/// count to the number to use.
fn pod_counts(record: &SliceRecord, count: impl Fn(&str, &str, u32) -> u32) -> PodSetCounts {
    let mut pods = PodSetCounts::new();
    for member in &record.members {
        for share in &member.pods {
            *pods.entry(share.pod_set.clone()).or_default() += count(&member.uid, &share.group, share.count);
        }
    }
    pods
}

/// Returns the largest surge, in percent, with which an upgrade fits together with the active
/// member; 0 if none fits. The head and the minimum replicas of each group start with any surge.
fn largest_surge(checker: &FeasibilityChecker<'_>, record: &SliceRecord, next: &Member) -> u32 {
    let fits = |percent: u32| {
        let surge = |uid: &str, group: &str, count| {
            if uid == next.uid { pods_at_percent(next, group, count, percent) } else { count }
        };
        checker.check(&pod_counts(record, surge)) == Feasibility::Fits
    };
    // Binary search: the demand grows with the percentage.
    let (mut low, mut high) = (0, 99);
    while low < high {
        let middle = high - (high - low) / 2;
        if fits(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

/// Returns how many of `count` pods of a group exist at `percent` of its replicas, rounded up to
/// whole replicas and at least the group's minimum.
fn pods_at_percent(member: &Member, group: &str, count: u32, percent: u32) -> u32 {
    let Some(group) = member.groups.iter().flatten().find(|known| known.name == group) else { return count };
    let hosts = group.hosts_per_replica.max(1);
    let replicas = u64::from(group.count / hosts * percent).div_ceil(100);
    let pods = u32::try_from(replicas).unwrap_or(u32::MAX).saturating_mul(hosts);
    pods.max(group.min_pods).min(count)
}
