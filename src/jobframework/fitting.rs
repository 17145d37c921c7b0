//! Feasibility of an upgrade: whether the pending cluster can ever be admitted together with the
//! active one, and if not, the remedies and the choice of the owner.

use std::collections::BTreeMap;

use super::pod_sets::{self, Wanted};
use super::record::{Displaced, MemberShare, Record};
use super::report::Says;
use super::slices::{self, Slice};
use super::{Member, Request, succession};
use sluice_api::quantity::Amount;
use sluice_api::ray::upgrade_choices::{WHEN_EXCEEDS_ANNOTATION, WhenExceeds};
use sluice_queue::{Binding, Lack, Obstacle, Prospect, Prospects};

/// Condition of a job that is being upgraded: whether the upgrade can ever be admitted.
pub const UPGRADE_ADMISSIBLE: &str = "sluice.dev/UpgradeAdmissible";
/// Reason: the pending and the active cluster together exceed the maximum capacity.
const REASON_EXCEEDS: &str = "ExceedsMaxQuota";
/// Reason: no flavor matches the pods of the pending cluster.
const REASON_UNSUITED: &str = "NoMatchingFlavor";
/// Reason: the upgrade fits once enough quota is free.
const REASON_FITS: &str = "Fits";
/// Reason: the pending cluster is admitted.
const REASON_ADMITTED: &str = "Admitted";
/// Reason: the active cluster stops before the pending one starts.
const REASON_RECREATE: &str = "Recreate";

/// Number of pods by PodSet.
type Pods = BTreeMap<String, u32>;

/// Feasibility of a job's upgrade.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outlook {
    /// The job is not being upgraded.
    NoUpgrade,
    /// The feasibility is not known, for example without a ClusterQueue.
    Unknown,
    /// The pending member is covered by an admitted slice.
    Admitted { next: String },
    /// Both members fit once enough quota is free.
    Fits(Pair),
    /// No flavor matches the pods.
    Unsuited(Pair, Vec<Obstacle>),
    /// The members never fit together, and the owner has chosen that the pending one replaces the
    /// active one.
    Recreates(Pair, Vec<Lack>),
    /// The pending member always replaces the active one once it has quota. Carries the feasibility
    /// of the pending member alone, `None` if unknown.
    Anew(Pair, Option<Prospect>),
    /// The members never fit together.
    Exceeds(Pair, Vec<Lack>, Ways),
}

/// Active and pending member of an upgrade.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pair {
    /// Active member, with the uid of the pending one as its replacement.
    serving: Displaced,
    /// Name of the pending member.
    next: String,
}

/// Remedies for an upgrade that never fits, other than more quota.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ways {
    /// True if the pending member fits without the active one.
    alone: bool,
    /// Largest surge, in percent of the workers, that fits together with the active member; 0 if
    /// none fits.
    surge: u32,
    /// Error in the owner's annotation, if it is invalid.
    misread: Option<String>,
}

impl Outlook {
    /// Returns the active member with its replacement, if the upgrade stops it first.
    pub(super) fn instead(&self) -> Option<&Displaced> {
        match self {
            Self::Recreates(pair, _) | Self::Anew(pair, _) => Some(&pair.serving),
            _ => None,
        }
    }

    /// Returns the uid of the pending member if the slice after `held` must not request it yet:
    /// `held` does not cover the active member, and a joint request would delay its return while
    /// requests fail.
    pub(super) fn too_early(&self, held: Option<&Record>) -> Option<&str> {
        match self {
            Self::Fits(pair) | Self::Exceeds(pair, ..) | Self::Unsuited(pair, _) => {
                let is_covered = held.is_some_and(|held| held.member(&pair.serving.uid).is_some());
                (!is_covered).then_some(pair.serving.by.as_str())
            }
            _ => None,
        }
    }

    /// Returns true if the owner has to act, or requests are about to fail.
    pub(super) fn is_trouble(&self) -> bool {
        match self {
            Self::Unsuited(..) | Self::Recreates(..) | Self::Exceeds(..) => true,
            Self::Anew(_, prospect) => matches!(prospect, Some(Prospect::Lacks(_) | Prospect::Unsuited(_))),
            Self::NoUpgrade | Self::Unknown | Self::Admitted { .. } | Self::Fits(_) => false,
        }
    }

    /// Returns the condition UpgradeAdmissible; `None` if it is not set.
    pub(super) fn says(&self) -> Option<Says> {
        match self {
            Self::NoUpgrade | Self::Unknown | Self::Anew(_, None) => None,
            Self::Anew(pair, Some(prospect)) => Some(pair.says_anew(prospect)),
            Self::Admitted { next } => {
                Some(Says::new(true, REASON_ADMITTED, format!("RayCluster {next} is covered by an admitted slice")))
            }
            Self::Fits(pair) => {
                let text = format!("{} fit together once enough quota is free", pair.both());
                Some(Says::new(true, REASON_FITS, text))
            }
            Self::Unsuited(pair, obstacles) => {
                let text = format!("{} can't be admitted together: {}", pair.both(), in_the_way(obstacles));
                Some(Says::new(false, REASON_UNSUITED, text))
            }
            Self::Recreates(pair, lacks) => {
                let (serving, next) = (&pair.serving.name, &pair.next);
                let text = format!(
                    "{} never fit together ({}), and annotation {WHEN_EXCEEDS_ANNOTATION} is Recreate: once there is quota for \
                     RayCluster {next} alone, RayCluster {serving} stops, and requests fail until {next} serves",
                    pair.both(),
                    told(lacks)
                );
                Some(Says::new(true, REASON_RECREATE, text))
            }
            Self::Exceeds(pair, lacks, ways) => {
                let text = format!("{} never fit together: {}. {}", pair.both(), told(lacks), ways.told(pair, lacks));
                Some(Says::new(false, REASON_EXCEEDS, text))
            }
        }
    }
}

impl Pair {
    fn of(serving: &Member, next: &Member) -> Self {
        let serving = Displaced { name: serving.name.clone(), uid: serving.uid.clone(), by: next.uid.clone() };
        Self { serving, next: next.name.clone() }
    }

    fn both(&self) -> String {
        format!("Active RayCluster {} and pending RayCluster {}", self.serving.name, self.next)
    }

    fn says_anew(&self, prospect: &Prospect) -> Says {
        let name = &self.next;
        match prospect {
            Prospect::Fits => {
                let text = format!(
                    "Once there is quota for the new spec of RayCluster {name}, all of its pods stop, and pods of the new spec \
                     start"
                );
                Says::new(true, REASON_RECREATE, text)
            }
            Prospect::Lacks(lacks) => {
                let (lack, more) = (told(lacks), more_quota(lacks));
                let text = format!("The new spec of RayCluster {name} never fits: {lack}. To admit it, {more}");
                Says::new(false, REASON_EXCEEDS, text)
            }
            Prospect::Unsuited(obstacles) => {
                let text = format!("The new spec of RayCluster {name} can't be admitted: {}", in_the_way(obstacles));
                Says::new(false, REASON_UNSUITED, text)
            }
        }
    }
}

fn in_the_way(obstacles: &[Obstacle]) -> String {
    let each = obstacles.iter().map(|obstacle| format!("pod set {}: {obstacle}", obstacle.pod_set()));
    each.collect::<Vec<_>>().join("; ")
}

impl Ways {
    /// Lists the remedies that make the upgrade fit.
    fn told(&self, pair: &Pair, lacks: &[Lack]) -> String {
        let mut ways = vec![more_quota(lacks)];
        if self.alone {
            ways.push(format!(
                "set annotation {WHEN_EXCEEDS_ANNOTATION}: Recreate, so that RayCluster {} stops before RayCluster {} starts",
                pair.serving.name, pair.next
            ));
        }
        if self.surge > 0 {
            ways.push(format!(
                "use an incremental upgrade (spec.upgradeStrategy.type NewClusterWithIncrementalUpgrade) with a surge of at \
                 most {} %",
                self.surge
            ));
        }
        let misread = self.misread.as_ref().map(|misread| format!(" ({misread})")).unwrap_or_default();
        format!("To admit the upgrade, {}{misread}", ways.join("; or "))
    }
}

/// Describes the quota deficits, in numbers.
fn told(lacks: &[Lack]) -> String {
    let each = lacks.iter().map(|lack| {
        let show = |amount: Amount| amount.display(&lack.resource).to_string();
        format!(
            "{} in flavor {}: {} needed, maximum capacity {}, {} short, limited by {}",
            lack.resource,
            lack.flavor,
            show(lack.need),
            show(lack.most),
            show(lack.missing),
            bound_by(lack)
        )
    });
    each.collect::<Vec<_>>().join("; ")
}

fn bound_by(lack: &Lack) -> String {
    match &lack.binding {
        Binding::Cohort(name) => format!("the quota of Cohort {name}"),
        _ => {
            let (field, place) = limit_of(lack);
            format!("the {field} of {place}")
        }
    }
}

/// Returns the field that limits the capacity, and the object that has it.
fn limit_of(lack: &Lack) -> (&'static str, String) {
    match &lack.binding {
        Binding::NominalQuota => ("nominalQuota", format!("ClusterQueue {}", lack.cluster_queue)),
        Binding::BorrowingLimit => ("borrowingLimit", format!("ClusterQueue {}", lack.cluster_queue)),
        Binding::Cohort(name) => ("nominalQuota", format!("Cohort {name}")),
        Binding::CohortBorrowingLimit(name) => ("borrowingLimit", format!("Cohort {name}")),
    }
}

/// Describes the least quota that is enough. Raising the nominalQuota of the ClusterQueue always
/// helps; raising the limiting field may.
fn more_quota(lacks: &[Lack]) -> String {
    let each = lacks.iter().map(|lack| {
        let show = |amount: Amount| amount.display(&lack.resource).to_string();
        let nominal = format!(
            "raise the nominalQuota of {} in flavor {} of ClusterQueue {} to at least {}",
            lack.resource,
            lack.flavor,
            lack.cluster_queue,
            show(lack.nominal)
        );
        match lack.limit {
            Some(limit) if lack.binding != Binding::NominalQuota => {
                let (field, place) = limit_of(lack);
                format!("{nominal} (or the {field} of {place} to at least {})", show(limit))
            }
            _ => nominal,
        }
    });
    each.collect::<Vec<_>>().join(" and ")
}

/// Assesses the upgrade of a job.
pub(super) fn outlook(request: &Request<'_>, slices: &[Slice<'_>]) -> Outlook {
    let Some((serving, next)) = upgrade(request) else { return Outlook::NoUpgrade };
    let held = slices::covering(slices);
    if held.is_some_and(|held| held.record.member(&next.uid).is_some()) {
        return Outlook::Admitted { next: next.name.clone() };
    }
    if request.view.job.starts_anew() {
        let prospect = prospect_alone(request, held, next);
        return Outlook::Anew(Pair::of(serving, next), prospect);
    }
    judge(request, held, serving, next).unwrap_or(Outlook::Unknown)
}

/// Returns the feasibility of the pending member without the active one; `None` if unknown.
fn prospect_alone(request: &Request<'_>, held: Option<&Slice<'_>>, next: &Member) -> Option<Prospect> {
    let members = vec![request.wanted.record.member(&next.uid)?.clone()];
    let record = Record { members, ..Record::default() };
    let probe = succession::new_slice(&Request { outlook: Outlook::Unknown, ..*request }, record.clone(), held);
    Some(request.view.queue.prospects(&probe)?.of(&pods(&record, |_, _, count| count)))
}

/// Returns the active and the pending member; `None` if the job is not being upgraded.
fn upgrade<'m>(request: &Request<'m>) -> Option<(&'m Member, &'m Member)> {
    let next = request.view.job.next().filter(|_| request.view.job.wants_to_run())?;
    let next = request.members.iter().find(|member| member.uid == next && member.surge && !member.going)?;
    let serving = request.members.iter().find(|member| !member.surge && !member.going)?;
    Some((serving, next))
}

/// Assesses the two members together; `None` if the queue cannot answer.
fn judge(request: &Request<'_>, held: Option<&Slice<'_>>, serving: &Member, next: &Member) -> Option<Outlook> {
    let wanted = &pair(request.wanted, serving, next, held.is_some())?;
    let record = wanted.record.clone();
    let probe = succession::new_slice(&Request { wanted, outlook: Outlook::Unknown, ..*request }, record.clone(), held);
    let prospects = request.view.queue.prospects(&probe)?;
    let both = pods(&record, |_, _, count| count);
    let pair = Pair::of(serving, next);
    let lacks = match prospects.of(&both) {
        Prospect::Fits => return Some(Outlook::Fits(pair)),
        Prospect::Unsuited(obstacles) => return Some(Outlook::Unsuited(pair, obstacles)),
        Prospect::Lacks(lacks) => lacks,
    };
    let only_next = pods(&record, |uid, _, count| if uid == next.uid { count } else { 0 });
    let alone = prospects.of(&only_next) == Prospect::Fits;
    let chosen = WhenExceeds::of(request.view.job.meta());
    if alone && chosen == Ok(WhenExceeds::Recreate) {
        return Some(Outlook::Recreates(pair, lacks));
    }
    let surge = largest_surge(&prospects, &record, next);
    Some(Outlook::Exceeds(pair, lacks, Ways { alone, surge, misread: chosen.err() }))
}

/// Returns the demand of both members. If the active member holds quota already, the pods of the
/// pending one get separate PodSets, so that they may use other flavors, unless a Workload cannot
/// hold that many PodSets.
fn pair(wanted: &Wanted, serving: &Member, next: &Member, is_held: bool) -> Option<Wanted> {
    let (active, pending) = (wanted.record.member(&serving.uid)?, wanted.record.member(&next.uid)?);
    let record = |pending: &MemberShare| Record { members: vec![active.clone(), pending.clone()], ..Record::default() };
    let (mut templates, mut moved) = (wanted.templates.clone(), pending.clone());
    for share in &mut moved.pods {
        let separate = format!("{}-{}", share.pod_set, next.name);
        if let Some(template) = templates.get(&share.pod_set).cloned() {
            templates.insert(separate.clone(), template);
            share.pod_set = separate;
        }
    }
    let is_split = is_held && pod_sets::enough_room(&record(&moved)).is_ok();
    Some(Wanted { record: record(if is_split { &moved } else { pending }), templates, ..Wanted::default() })
}

/// Returns the number of pods of a record by PodSet. `count` maps member uid, group and recorded
/// count to the number to use.
fn pods(record: &Record, count: impl Fn(&str, &str, u32) -> u32) -> Pods {
    let mut pods = Pods::new();
    for member in &record.members {
        for share in &member.pods {
            *pods.entry(share.pod_set.clone()).or_default() += count(&member.uid, &share.group, share.count);
        }
    }
    pods
}

/// Returns the largest surge, in percent, with which an upgrade fits together with the active
/// member; 0 if none fits. The head and the minimum replicas of each group start with any surge.
fn largest_surge(prospects: &Prospects<'_>, record: &Record, next: &Member) -> u32 {
    let fits = |percent: u32| {
        let surge = |uid: &str, group: &str, count| {
            if uid == next.uid { at_percent(next, group, count, percent) } else { count }
        };
        prospects.of(&pods(record, surge)) == Prospect::Fits
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
fn at_percent(member: &Member, group: &str, count: u32, percent: u32) -> u32 {
    let Some(group) = member.groups.iter().flatten().find(|known| known.name == group) else { return count };
    let hosts = group.hosts.max(1);
    let replicas = u64::from(group.count / hosts * percent).div_ceil(100);
    let pods = u32::try_from(replicas).unwrap_or(u32::MAX).saturating_mul(hosts);
    pods.max(group.fewest).min(count)
}
