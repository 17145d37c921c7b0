//! Feasibility of an upgrade: whether the pending cluster can ever be admitted together with the
//! active one, and if not, the remedies and the choice of the owner.

use super::condition_content::ConditionContent;
use super::slice_record::{DisplacedMember, SliceRecord};
use super::types::Member;
use sluice_api::quantity::Amount;
use sluice_api::ray::AnnotationError;
use sluice_api::ray::admission_annotations::EXCEEDS_QUOTA_ANNOTATION;
use sluice_queue::{BindingLimit, Feasibility, FlavorRejection, QuotaDeficit};

/// Condition of a job that is being upgraded: whether the upgrade can ever be admitted.
pub const UPGRADE_ADMISSIBLE: &str = "sluice.dev/UpgradeAdmissible";
/// Reason: the pending and the active cluster together exceed the maximum capacity.
const REASON_EXCEEDS: &str = "ExceedsMaxQuota";
/// Reason: no flavor matches the pods of the pending cluster.
const REASON_NO_MATCHING_FLAVOR: &str = "NoMatchingFlavor";
/// Reason: the upgrade fits once enough quota is free.
const REASON_FITS: &str = "Fits";
/// Reason: the pending cluster is admitted.
const REASON_ADMITTED: &str = "Admitted";
/// Reason: the active cluster stops before the pending one starts.
const REASON_RECREATE: &str = "Recreate";

/// Feasibility of a job's upgrade.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum UpgradeFeasibility {
    /// The job is not being upgraded.
    NoUpgrade,
    /// The feasibility is not known, for example without a ClusterQueue.
    Unknown,
    /// The pending member is covered by an admitted slice.
    Admitted { next: String },
    /// Both members fit once enough quota is free.
    Fits(UpgradePair),
    /// No flavor matches the pods.
    NoMatchingFlavor(UpgradePair, Vec<FlavorRejection>),
    /// The members never fit together, and the owner has chosen that the pending one replaces the
    /// active one.
    RecreateInstead(UpgradePair, Vec<QuotaDeficit>),
    /// The pending member always replaces the active one once it has quota. Carries the feasibility
    /// of the pending member alone, `None` if unknown.
    Recreate(UpgradePair, Option<Feasibility>),
    /// The members never fit together.
    ExceedsQuota(UpgradePair, Vec<QuotaDeficit>, Alternatives),
}

/// Active and pending member of an upgrade.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UpgradePair {
    /// Active member, with the uid of the pending one as its replacement.
    active: DisplacedMember,
    /// Name of the pending member.
    pending: String,
}

/// Remedies for an upgrade that never fits, other than more quota.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Alternatives {
    /// True if the pending member fits without the active one.
    pub(super) fits_alone: bool,
    /// Largest surge, in percent of the workers, that fits together with the active member; 0 if
    /// none fits.
    pub(super) max_surge_percent: u32,
    /// Error in the owner's annotation, if it is invalid.
    pub(super) invalid_annotation: Option<AnnotationError>,
}

impl UpgradeFeasibility {
    /// Returns the active member with its replacement, if the upgrade stops it first.
    pub(super) fn displaced_member(&self) -> Option<&DisplacedMember> {
        match self {
            Self::RecreateInstead(pair, _) | Self::Recreate(pair, _) => Some(&pair.active),
            _ => None,
        }
    }

    /// Returns the uid of the pending member if the slice after `held` must not request it yet:
    /// `held` does not cover the active member, and a joint request would delay its return while
    /// requests fail.
    pub(super) fn deferred_member(&self, held: Option<&SliceRecord>) -> Option<&str> {
        match self {
            Self::Fits(pair) | Self::ExceedsQuota(pair, ..) | Self::NoMatchingFlavor(pair, _) => {
                let is_covered = held.is_some_and(|held| held.member(&pair.active.uid).is_some());
                (!is_covered).then_some(pair.active.replaced_by.as_str())
            }
            _ => None,
        }
    }

    /// Returns true if the owner has to act, or requests are about to fail.
    pub(super) fn needs_attention(&self) -> bool {
        match self {
            Self::NoMatchingFlavor(..) | Self::RecreateInstead(..) | Self::ExceedsQuota(..) => true,
            Self::Recreate(_, prospect) => {
                matches!(prospect, Some(Feasibility::ExceedsQuota(_) | Feasibility::NoMatchingFlavor(_)))
            }
            Self::NoUpgrade | Self::Unknown | Self::Admitted { .. } | Self::Fits(_) => false,
        }
    }

    /// Returns the condition UpgradeAdmissible; `None` if it is not set.
    pub(super) fn condition(&self) -> Option<ConditionContent> {
        match self {
            Self::NoUpgrade | Self::Unknown | Self::Recreate(_, None) => None,
            Self::Recreate(pair, Some(prospect)) => Some(pair.recreate_condition(prospect)),
            Self::Admitted { next } => Some(ConditionContent::new(
                true,
                REASON_ADMITTED,
                format!("RayCluster {next} is covered by an admitted slice"),
            )),
            Self::Fits(pair) => {
                let text = format!("{} fit together once enough quota is free", pair.describe_both());
                Some(ConditionContent::new(true, REASON_FITS, text))
            }
            Self::NoMatchingFlavor(pair, obstacles) => {
                let text =
                    format!("{} can't be admitted together: {}", pair.describe_both(), describe_rejections(obstacles));
                Some(ConditionContent::new(false, REASON_NO_MATCHING_FLAVOR, text))
            }
            Self::RecreateInstead(pair, deficits) => {
                let (serving, next) = (&pair.active.name, &pair.pending);
                let text = format!(
                    "{} never fit together ({}), and annotation {EXCEEDS_QUOTA_ANNOTATION} is Recreate: once there is quota for \
                     RayCluster {next} alone, RayCluster {serving} stops, and requests fail until {next} serves",
                    pair.describe_both(),
                    describe_deficits(deficits)
                );
                Some(ConditionContent::new(true, REASON_RECREATE, text))
            }
            Self::ExceedsQuota(pair, deficits, remedies) => {
                let text = format!(
                    "{} never fit together: {}. {}",
                    pair.describe_both(),
                    describe_deficits(deficits),
                    remedies.describe(pair, deficits)
                );
                Some(ConditionContent::new(false, REASON_EXCEEDS, text))
            }
        }
    }
}

impl UpgradePair {
    pub(super) fn new(serving: &Member, next: &Member) -> Self {
        let serving =
            DisplacedMember { name: serving.name.clone(), uid: serving.uid.clone(), replaced_by: next.uid.clone() };
        Self { active: serving, pending: next.name.clone() }
    }

    fn describe_both(&self) -> String {
        format!("Active RayCluster {} and pending RayCluster {}", self.active.name, self.pending)
    }

    fn recreate_condition(&self, prospect: &Feasibility) -> ConditionContent {
        let name = &self.pending;
        match prospect {
            Feasibility::Fits => {
                let text = format!(
                    "Once there is quota for the new spec of RayCluster {name}, all of its pods stop, and pods of the new spec \
                     start"
                );
                ConditionContent::new(true, REASON_RECREATE, text)
            }
            Feasibility::ExceedsQuota(deficits) => {
                let (lack, more) = (describe_deficits(deficits), quota_remedy(deficits));
                let text = format!("The new spec of RayCluster {name} never fits: {lack}. To admit it, {more}");
                ConditionContent::new(false, REASON_EXCEEDS, text)
            }
            Feasibility::NoMatchingFlavor(obstacles) => {
                let text =
                    format!("The new spec of RayCluster {name} can't be admitted: {}", describe_rejections(obstacles));
                ConditionContent::new(false, REASON_NO_MATCHING_FLAVOR, text)
            }
        }
    }
}

fn describe_rejections(obstacles: &[FlavorRejection]) -> String {
    let each = obstacles.iter().map(|obstacle| format!("pod set {}: {obstacle}", obstacle.pod_set()));
    each.collect::<Vec<_>>().join("; ")
}

impl Alternatives {
    /// Lists the remedies that make the upgrade fit.
    fn describe(&self, pair: &UpgradePair, deficits: &[QuotaDeficit]) -> String {
        let mut remedies = vec![quota_remedy(deficits)];
        if self.fits_alone {
            remedies.push(format!(
                "set annotation {EXCEEDS_QUOTA_ANNOTATION}: Recreate, so that RayCluster {} stops before RayCluster {} starts",
                pair.active.name, pair.pending
            ));
        }
        if self.max_surge_percent > 0 {
            remedies.push(format!(
                "use an incremental upgrade (spec.upgradeStrategy.type NewClusterWithIncrementalUpgrade) with a surge of at \
                 most {} %",
                self.max_surge_percent
            ));
        }
        let misread = self.invalid_annotation.as_ref().map(|misread| format!(" ({misread})")).unwrap_or_default();
        format!("To admit the upgrade, {}{misread}", remedies.join("; or "))
    }
}

/// Describes the quota deficits, in numbers.
fn describe_deficits(deficits: &[QuotaDeficit]) -> String {
    let each = deficits.iter().map(|lack| {
        let show = |amount: Amount| amount.display(&lack.resource).to_string();
        format!(
            "{} in flavor {}: {} needed, maximum capacity {}, {} short, limited by {}",
            lack.resource,
            lack.flavor,
            show(lack.requested),
            show(lack.maximum),
            show(lack.missing),
            describe_limit(lack)
        )
    });
    each.collect::<Vec<_>>().join("; ")
}

fn describe_limit(lack: &QuotaDeficit) -> String {
    match &lack.binding {
        BindingLimit::Cohort(name) => format!("the quota of Cohort {name}"),
        _ => {
            let (field, place) = limiting_field(lack);
            format!("the {field} of {place}")
        }
    }
}

/// Returns the field that limits the capacity, and the object that has it.
fn limiting_field(lack: &QuotaDeficit) -> (&'static str, String) {
    match &lack.binding {
        BindingLimit::NominalQuota => ("nominalQuota", format!("ClusterQueue {}", lack.cluster_queue)),
        BindingLimit::BorrowingLimit => ("borrowingLimit", format!("ClusterQueue {}", lack.cluster_queue)),
        BindingLimit::Cohort(name) => ("nominalQuota", format!("Cohort {name}")),
        BindingLimit::CohortBorrowingLimit(name) => ("borrowingLimit", format!("Cohort {name}")),
    }
}

/// Describes the least quota that is enough. Raising the nominalQuota of the ClusterQueue always
/// helps; raising the limiting field may.
fn quota_remedy(deficits: &[QuotaDeficit]) -> String {
    let each = deficits.iter().map(|lack| {
        let show = |amount: Amount| amount.display(&lack.resource).to_string();
        let nominal = format!(
            "raise the nominalQuota of {} in flavor {} of ClusterQueue {} to at least {}",
            lack.resource,
            lack.flavor,
            lack.cluster_queue,
            show(lack.required_nominal)
        );
        match lack.required_limit {
            Some(limit) if lack.binding != BindingLimit::NominalQuota => {
                let (field, place) = limiting_field(lack);
                format!("{nominal} (or the {field} of {place} to at least {})", show(limit))
            }
            _ => nominal,
        }
    });
    each.collect::<Vec<_>>().join(" and ")
}
