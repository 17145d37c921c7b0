//! Whether an upgrade can ever be admitted beside what serves; and if not, what would help, and what its owner has chosen.

use std::collections::BTreeMap;

use super::pod_sets::{self, Wanted};
use super::record::{Displaced, MemberShare, Record};
use super::report::Says;
use super::slices::{self, Slice};
use super::{Member, Request, succession};
use sluice_api::quantity::Amount;
use sluice_api::ray::upgrade_choices::{WHEN_EXCEEDS_ANNOTATION, WhenExceeds};
use sluice_queue::{Binding, Lack, Obstacle, Prospect, Prospects};

/// The condition on a job under upgrade that says whether the upgrade can ever be admitted.
pub const UPGRADE_ADMISSIBLE: &str = "sluice.dev/UpgradeAdmissible";
/// Together with what serves it asks for more than there is in all.
const REASON_EXCEEDS: &str = "ExceedsMaxQuota";
/// No flavor is right for its pods.
const REASON_UNSUITED: &str = "NoMatchingFlavor";
/// It fits once enough is free.
const REASON_FITS: &str = "Fits";
/// It holds its quota.
const REASON_ADMITTED: &str = "Admitted";
/// What serves stops for it.
const REASON_RECREATE: &str = "Recreate";

/// Pods by PodSet.
type Pods = BTreeMap<String, u32>;

/// What is to be expected of an upgrade.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outlook {
    /// There is none.
    NoUpgrade,
    /// Nobody can tell now.
    Unknown,
    /// This member holds its quota.
    Admitted { next: String },
    /// It fits once enough is free.
    Fits(Pair),
    /// No flavor is right for its pods.
    Unsuited(Pair, Vec<Obstacle>),
    /// It never fits beside what serves, and takes its place, as the owner has chosen.
    Recreates(Pair, Vec<Lack>),
    /// It takes the place of what serves in any case, once it has quota; what is to be expected of that, if anybody can tell.
    Anew(Pair, Option<Prospect>),
    /// It never fits beside what serves.
    Exceeds(Pair, Vec<Lack>, Ways),
}

/// The two members that an upgrade is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pair {
    /// What serves.
    serving: Displaced,
    /// What is to serve next.
    next: String,
}

/// What would help beside more quota.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ways {
    /// Whether it fits without what serves.
    alone: bool,
    /// The largest part of its workers, in percent, with which it fits beside what serves; 0 if it fits with none.
    surge: u32,
    /// What is wrong with the choice of the owner.
    misread: Option<String>,
}

impl Outlook {
    /// What takes whose place, if the upgrade is to go that way.
    pub(super) fn instead(&self) -> Option<&Displaced> {
        match self {
            Self::Recreates(pair, _) | Self::Anew(pair, _) => Some(&pair.serving),
            _ => None,
        }
    }

    /// The uid of the member that is not to be asked for by the slice after `held` yet, because what serves would wait with it:
    /// `held` pays for neither, and requests fail until what serves is back.
    pub(super) fn too_early(&self, held: Option<&Record>) -> Option<&str> {
        match self {
            Self::Fits(pair) | Self::Exceeds(pair, ..) | Self::Unsuited(pair, _) => {
                let is_paid = held.is_some_and(|held| held.member(&pair.serving.uid).is_some());
                (!is_paid).then_some(pair.serving.by.as_str())
            }
            _ => None,
        }
    }

    /// Whether its owner has something to decide, or requests are going to fail.
    pub(super) fn is_trouble(&self) -> bool {
        match self {
            Self::Unsuited(..) | Self::Recreates(..) | Self::Exceeds(..) => true,
            Self::Anew(_, prospect) => matches!(prospect, Some(Prospect::Lacks(_) | Prospect::Unsuited(_))),
            Self::NoUpgrade | Self::Unknown | Self::Admitted { .. } | Self::Fits(_) => false,
        }
    }

    /// What the condition says; `None` if there is nothing to say.
    pub(super) fn says(&self) -> Option<Says> {
        match self {
            Self::NoUpgrade | Self::Unknown | Self::Anew(_, None) => None,
            Self::Anew(pair, Some(prospect)) => Some(pair.says_anew(prospect)),
            Self::Admitted { next } => {
                Some(Says::new(true, REASON_ADMITTED, format!("RayCluster {next} holds its quota")))
            }
            Self::Fits(pair) => {
                let text = format!("{} fit together once enough quota is free", pair.both());
                Some(Says::new(true, REASON_FITS, text))
            }
            Self::Unsuited(pair, obstacles) => {
                let text = format!("{} can't have quota together: {}", pair.both(), in_the_way(obstacles));
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
        format!("RayCluster {}, which serves, and RayCluster {}", self.serving.name, self.next)
    }

    fn says_anew(&self, prospect: &Prospect) -> Says {
        let name = &self.next;
        match prospect {
            Prospect::Fits => {
                let text = format!(
                    "Once there is quota for what the spec of RayCluster {name} asks for now, all of its pods stop, and those of the \
                     new spec start"
                );
                Says::new(true, REASON_RECREATE, text)
            }
            Prospect::Lacks(lacks) => {
                let (lack, more) = (told(lacks), more_quota(lacks));
                let text = format!("The new spec of RayCluster {name} never fits: {lack}. It would fit with {more}");
                Says::new(false, REASON_EXCEEDS, text)
            }
            Prospect::Unsuited(obstacles) => {
                let text = format!("The new spec of RayCluster {name} can't have quota: {}", in_the_way(obstacles));
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
    /// What would make the upgrade fit.
    fn told(&self, pair: &Pair, lacks: &[Lack]) -> String {
        let mut ways = vec![more_quota(lacks)];
        if self.alone {
            ways.push(format!(
                "annotation {WHEN_EXCEEDS_ANNOTATION}: Recreate, with which RayCluster {} stops before RayCluster {} starts",
                pair.serving.name, pair.next
            ));
        }
        if self.surge > 0 {
            ways.push(format!(
                "an incremental upgrade (spec.upgradeStrategy.type NewClusterWithIncrementalUpgrade) with a surge of at most {} %",
                self.surge
            ));
        }
        let misread = self.misread.as_ref().map(|misread| format!(" ({misread})")).unwrap_or_default();
        format!("It would fit with {}{misread}", ways.join("; or with "))
    }
}

/// What there is too little of.
fn told(lacks: &[Lack]) -> String {
    let each = lacks.iter().map(|lack| {
        let show = |amount: Amount| amount.display(&lack.resource).to_string();
        format!(
            "{} in flavor {}: {} needed, {} is the most there could be, {} short, bound by {}",
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

/// The field that binds, and the object that it is a field of.
fn limit_of(lack: &Lack) -> (&'static str, String) {
    match &lack.binding {
        Binding::NominalQuota => ("nominalQuota", format!("ClusterQueue {}", lack.cluster_queue)),
        Binding::BorrowingLimit => ("borrowingLimit", format!("ClusterQueue {}", lack.cluster_queue)),
        Binding::Cohort(name) => ("nominalQuota", format!("Cohort {name}")),
        Binding::CohortBorrowingLimit(name) => ("borrowingLimit", format!("Cohort {name}")),
    }
}

/// The least quota that would do. More of the ClusterQueue's own always does; more of what binds may.
fn more_quota(lacks: &[Lack]) -> String {
    let each = lacks.iter().map(|lack| {
        let show = |amount: Amount| amount.display(&lack.resource).to_string();
        let what = format!("{} in flavor {}", lack.resource, lack.flavor);
        let own = format!(
            "a nominalQuota of at least {} of {what} in ClusterQueue {}",
            show(lack.nominal),
            lack.cluster_queue
        );
        let limit = lack.limit.filter(|_| lack.binding != Binding::NominalQuota).map(|limit| {
            let (field, place) = limit_of(lack);
            format!(" (or a {field} of at least {} in {place})", show(limit))
        });
        format!("{own}{}", limit.unwrap_or_default())
    });
    each.collect::<Vec<_>>().join(" and ")
}

/// What is to be expected of the upgrade of a job, if it is under one.
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

/// What is to be expected of a member that takes the place of what serves.
fn prospect_alone(request: &Request<'_>, held: Option<&Slice<'_>>, next: &Member) -> Option<Prospect> {
    let members = vec![request.wanted.record.member(&next.uid)?.clone()];
    let record = Record { members, ..Record::default() };
    let asked = succession::new_slice(&Request { outlook: Outlook::Unknown, ..*request }, record.clone(), held);
    Some(request.view.queue.prospects(&asked)?.of(&pods(&record, |_, _, count| count)))
}

/// What serves, and what is to serve next.
fn upgrade<'m>(request: &Request<'m>) -> Option<(&'m Member, &'m Member)> {
    let next = request.view.job.next().filter(|_| request.view.job.wants_to_run())?;
    let next = request.members.iter().find(|member| member.uid == next && member.surge && !member.going)?;
    let serving = request.members.iter().find(|member| !member.surge && !member.going)?;
    Some((serving, next))
}

fn judge(request: &Request<'_>, held: Option<&Slice<'_>>, serving: &Member, next: &Member) -> Option<Outlook> {
    let wanted = &pair(request.wanted, serving, next, held.is_some())?;
    let record = wanted.record.clone();
    let asked = succession::new_slice(&Request { wanted, outlook: Outlook::Unknown, ..*request }, record.clone(), held);
    let prospects = request.view.queue.prospects(&asked)?;
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

/// What both need. If what serves holds its quota already, the pods of what comes are in PodSets of their own, in which they may
/// go to other flavors; unless a Workload has no room for so many.
fn pair(wanted: &Wanted, serving: &Member, next: &Member, is_held: bool) -> Option<Wanted> {
    let (stays, comes) = (wanted.record.member(&serving.uid)?, wanted.record.member(&next.uid)?);
    let record = |comes: &MemberShare| Record { members: vec![stays.clone(), comes.clone()], ..Record::default() };
    let (mut templates, mut moved) = (wanted.templates.clone(), comes.clone());
    for share in &mut moved.pods {
        let own = format!("{}-{}", share.pod_set, next.name);
        if let Some(template) = templates.get(&share.pod_set).cloned() {
            templates.insert(own.clone(), template);
            share.pod_set = own;
        }
    }
    let apart = is_held && pod_sets::enough_room(&record(&moved)).is_ok();
    Some(Wanted { record: record(if apart { &moved } else { comes }), templates, ..Wanted::default() })
}

/// The pods of a record, with as many of each group of each member as `count` makes of its uid, the group and their number.
fn pods(record: &Record, count: impl Fn(&str, &str, u32) -> u32) -> Pods {
    let mut pods = Pods::new();
    for member in &record.members {
        for share in &member.pods {
            *pods.entry(share.pod_set.clone()).or_default() += count(&member.uid, &share.group, share.count);
        }
    }
    pods
}

/// The largest surge, in percent, with which an upgrade fits beside what serves; 0 if it fits with none. Its head and the fewest
/// replicas that each of its groups may have are there from the beginning, whatever the surge.
fn largest_surge(prospects: &Prospects<'_>, record: &Record, next: &Member) -> u32 {
    let fits = |percent: u32| {
        let surge = |uid: &str, group: &str, count| {
            if uid == next.uid { at_percent(next, group, count, percent) } else { count }
        };
        prospects.of(&pods(record, surge)) == Prospect::Fits
    };
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

/// How many of `count` pods of a group there are at such a part of its replicas, rounded up to whole ones.
fn at_percent(member: &Member, group: &str, count: u32, percent: u32) -> u32 {
    let Some(group) = member.groups.iter().flatten().find(|known| known.name == group) else { return count };
    let hosts = group.hosts.max(1);
    let replicas = u64::from(group.count / hosts * percent).div_ceil(100);
    let pods = u32::try_from(replicas).unwrap_or(u32::MAX).saturating_mul(hosts);
    pods.max(group.fewest).min(count)
}
