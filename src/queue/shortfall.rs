//! Shortfalls of quota, as values and as messages.

use std::fmt;

use super::tree::{FlavorResourceId, NodeId};
use sluice_api::quantity::Amount;
use sluice_plan::ObjectKey;

/// The missing quota of one resource in one flavor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortfall {
    /// Name of the pod set.
    pub pod_set: String,
    /// Name of the flavor.
    pub flavor: String,
    /// Name of the resource.
    pub resource: String,
    /// Requests of all pods of the pod set.
    pub requested: Amount,
    /// Requests of earlier pod sets of the same workload.
    pub earlier_pod_sets: Amount,
    /// Usage of the slice that is replaced.
    pub held_by_predecessor: Amount,
    /// Usage of the ClusterQueue, without that slice.
    pub used: Amount,
    /// The nominal quota of the ClusterQueue.
    pub nominal: Amount,
    /// The most that the ClusterQueue can get, including what it can borrow.
    pub potential_available: Amount,
    /// The limit in the cohort tree that is exceeded.
    pub binding: BindingLimit,
    /// Amount that must be released; if the requests exceed the total quota, the amount by which
    /// they do.
    pub missing: Amount,
    /// Amount that must be released given the current usage. At least `missing`.
    pub missing_now: Amount,
    /// The workloads with the largest usage, and their usage.
    pub holders: Vec<(ObjectKey, Amount)>,
    /// Number of further workloads with usage.
    pub more_holders: usize,
    /// Unused quota that is reserved for other pending workloads. `None` if there is none.
    pub reserved_for_others: Option<ReservedForOthers>,
    /// The subtree in which the quota is used, and the flavor resource. `None` if unknown.
    pub(super) subtree: Option<(NodeId, FlavorResourceId)>,
}

/// Unused quota that is reserved for pending workloads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReservedForOthers {
    /// Total reserved amount.
    pub amount: Amount,
    /// Workload with the largest reservation.
    pub largest: ObjectKey,
    /// Number of further workloads with a reservation.
    pub others: usize,
}

/// The limit in the cohort tree that is exceeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BindingLimit {
    /// The nominal quota of the ClusterQueue, which has no Cohort.
    NominalQuota,
    /// The borrowing limit of the ClusterQueue.
    BorrowingLimit,
    /// The total quota of this Cohort.
    Cohort(String),
    /// The borrowing limit of this Cohort.
    CohortBorrowingLimit(String),
}

impl fmt::Display for BindingLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NominalQuota => f.write_str("its nominalQuota"),
            Self::BorrowingLimit => f.write_str("its borrowingLimit"),
            Self::Cohort(name) => write!(f, "the quota of cohort {name}"),
            Self::CohortBorrowingLimit(name) => write!(f, "the borrowingLimit of cohort {name}"),
        }
    }
}

impl Shortfall {
    /// Returns a shortfall of `resource` in `flavor` for one pod set, with every amount zero and no
    /// holders.
    pub fn new(pod_set: impl Into<String>, flavor: impl Into<String>, resource: impl Into<String>) -> Self {
        Self {
            pod_set: pod_set.into(),
            flavor: flavor.into(),
            resource: resource.into(),
            requested: Amount::ZERO,
            earlier_pod_sets: Amount::ZERO,
            held_by_predecessor: Amount::ZERO,
            used: Amount::ZERO,
            nominal: Amount::ZERO,
            potential_available: Amount::ZERO,
            binding: BindingLimit::NominalQuota,
            missing: Amount::ZERO,
            missing_now: Amount::ZERO,
            holders: Vec::new(),
            more_holders: 0,
            reserved_for_others: None,
            subtree: None,
        }
    }

    /// Writes the message for quota that other workloads use.
    pub(super) fn write_insufficient(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |amount: Amount| amount.display(&self.resource).to_string();
        let missing = show(self.missing);
        write!(
            f,
            "insufficient unused quota for {} in flavor {}, {missing} more needed (",
            self.resource, self.flavor
        )?;
        self.write_request(f)?;
        write!(f, ", {} of {} used", show(self.used), show(self.nominal))?;
        if self.binding != BindingLimit::NominalQuota {
            write!(f, ", limited by {}", self.binding)?;
        }
        for (index, (key, amount)) in self.holders.iter().enumerate() {
            write!(f, "{} {key} holds {}", if index == 0 { ":" } else { "," }, show(*amount))?;
        }
        if self.more_holders > 0 {
            write!(f, ", and {} more", self.more_holders)?;
        }
        if let Some(kept) = &self.reserved_for_others {
            write!(f, ", {} is reserved for {}", show(kept.amount), kept.largest)?;
            if kept.others > 0 {
                write!(f, " and {} more", kept.others)?;
            }
        }
        write!(f, "; fits once {missing} is released or nominalQuota is {})", show(self.nominal.plus(self.missing)))
    }

    /// Writes the message for requests that exceed the total quota. It begins as that of Kueue.
    ///
    /// Source: `fitsResourceQuota` in `pkg/scheduler/flavorassigner/flavorassigner.go` of Kueue
    /// v0.19.2.
    pub(super) fn write_exceeds(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |amount: Amount| amount.display(&self.resource).to_string();
        write!(
            f,
            "insufficient quota for {} in flavor {}, previously considered podsets requests ({}) + current podset \
             request ({}) > maximum capacity ({}) (",
            self.resource,
            self.flavor,
            show(self.earlier_pod_sets),
            show(self.requested),
            show(self.potential_available),
        )?;
        if self.held_by_predecessor != Amount::ZERO {
            write!(f, "the replaced slice holds {}; ", show(self.held_by_predecessor))?;
        }
        if self.binding != BindingLimit::NominalQuota {
            write!(f, "limited by {}; ", self.binding)?;
        }
        write!(f, "fits only once nominalQuota is {})", show(self.nominal.plus(self.missing)))
    }

    fn write_request(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |amount: Amount| amount.display(&self.resource).to_string();
        write!(f, "requests {}", show(self.requested))?;
        if self.earlier_pod_sets != Amount::ZERO {
            write!(f, " plus {} for earlier pod sets", show(self.earlier_pod_sets))?;
        }
        if self.held_by_predecessor != Amount::ZERO {
            write!(f, ", of which the replaced slice holds {}", show(self.held_by_predecessor))?;
        }
        Ok(())
    }
}

#[cfg(test)]
impl Shortfall {
    /// Returns a shortfall of four GPUs.
    pub(crate) fn sample() -> Self {
        Self {
            pod_set: "worker".into(),
            flavor: "a100".into(),
            resource: "nvidia.com/gpu".into(),
            requested: Amount::new(8),
            earlier_pod_sets: Amount::ZERO,
            held_by_predecessor: Amount::ZERO,
            used: Amount::new(12),
            nominal: Amount::new(16),
            potential_available: Amount::new(16),
            binding: BindingLimit::NominalQuota,
            missing: Amount::new(4),
            missing_now: Amount::new(4),
            holders: vec![
                (ObjectKey::new("team", "llm"), Amount::new(7)),
                (ObjectKey::new("team", "embed"), Amount::new(3)),
            ],
            more_holders: 2,
            reserved_for_others: None,
            subtree: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::pending::FlavorRejection;

    #[rstest]
    #[case::one(0, "and 2 more, 3 is reserved for team/head; fits")]
    #[case::several(2, "and 2 more, 3 is reserved for team/head and 2 more; fits")]
    fn shortfall_message_names_quota_reserved_for_others(#[case] more: usize, #[case] expected: &str) {
        let kept = ReservedForOthers { amount: Amount::new(3), largest: ObjectKey::new("team", "head"), others: more };
        let short = Shortfall { reserved_for_others: Some(kept), ..Shortfall::sample() };
        let why = FlavorRejection::InsufficientUnused(short).to_string();
        assert!(why.contains(expected), "{why}");
    }
}
