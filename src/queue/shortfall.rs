//! What is missing of a resource in a flavor, and who has it, as a value and in words.

use std::fmt;

use super::tree::{Fr, NodeId};
use sluice_api::quantity::Amount;
use sluice_plan::ObjectKey;

/// What is missing of one resource in one flavor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortfall {
    /// Name of the pod set.
    pub pod_set: String,
    /// Name of the flavor.
    pub flavor: String,
    /// Name of the resource.
    pub resource: String,
    /// What all pods of the pod set need.
    pub requested: Amount,
    /// What earlier pod sets of the same workload take of it.
    pub earlier: Amount,
    /// What the slice that is replaced already holds of it.
    pub held: Amount,
    /// What is used of it by others than that slice.
    pub used: Amount,
    /// The nominal quota of the ClusterQueue.
    pub nominal: Amount,
    /// The most that the ClusterQueue could get, with all that it may borrow.
    pub potential: Amount,
    /// What of the tree does not give more.
    pub binding: Binding,
    /// What more would have to be free; or, if there will never be enough, what more there would have to be.
    pub missing: Amount,
    /// What more would have to be free with what others use now; no less than `missing`.
    pub missing_now: Amount,
    /// Those that hold the most of it, and how much.
    pub holders: Vec<(ObjectKey, Amount)>,
    /// How many others hold some of it.
    pub more_holders: usize,
    /// What is kept of it for others that wait.
    pub kept: Option<Kept>,
    /// The part of the tree within which it is held.
    pub(super) within: Option<(NodeId, Fr)>,
}

/// Quota that nobody holds, and that is kept for workloads that wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// How much of it, for all of them.
    pub amount: Amount,
    /// For whom the most is kept.
    pub first: ObjectKey,
    /// For how many others some is kept.
    pub more: usize,
}

/// What of the cohort tree does not give more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Binding {
    /// The nominal quota of the ClusterQueue, which is in no cohort.
    NominalQuota,
    /// The borrowing limit of the ClusterQueue.
    BorrowingLimit,
    /// The quota of all members of this Cohort together.
    Cohort(String),
    /// The borrowing limit of this Cohort.
    CohortBorrowingLimit(String),
}

impl fmt::Display for Binding {
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
    /// Returns a shortfall of `resource` in `flavor` for one pod set, with every amount zero and no holders.
    pub fn new(pod_set: impl Into<String>, flavor: impl Into<String>, resource: impl Into<String>) -> Self {
        Self {
            pod_set: pod_set.into(),
            flavor: flavor.into(),
            resource: resource.into(),
            requested: Amount::ZERO,
            earlier: Amount::ZERO,
            held: Amount::ZERO,
            used: Amount::ZERO,
            nominal: Amount::ZERO,
            potential: Amount::ZERO,
            binding: Binding::NominalQuota,
            missing: Amount::ZERO,
            missing_now: Amount::ZERO,
            holders: Vec::new(),
            more_holders: 0,
            kept: None,
            within: None,
        }
    }

    /// Says that others hold what is missing.
    pub(super) fn write_short(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |amount: Amount| amount.display(&self.resource).to_string();
        let missing = show(self.missing);
        write!(
            f,
            "insufficient unused quota for {} in flavor {}, {missing} more needed (",
            self.resource, self.flavor
        )?;
        self.write_demand(f)?;
        write!(f, ", {} of {} used", show(self.used), show(self.nominal))?;
        if self.binding != Binding::NominalQuota {
            write!(f, ", limited by {}", self.binding)?;
        }
        for (index, (key, amount)) in self.holders.iter().enumerate() {
            write!(f, "{} {key} holds {}", if index == 0 { ":" } else { "," }, show(*amount))?;
        }
        if self.more_holders > 0 {
            write!(f, ", and {} more", self.more_holders)?;
        }
        if let Some(kept) = &self.kept {
            write!(f, ", {} is reserved for {}", show(kept.amount), kept.first)?;
            if kept.more > 0 {
                write!(f, " and {} more", kept.more)?;
            }
        }
        write!(f, "; fits once {missing} is released or nominalQuota is {})", show(self.nominal.plus(self.missing)))
    }

    /// Says that there will never be as much.
    pub(super) fn write_exceeds(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |amount: Amount| amount.display(&self.resource).to_string();
        write!(f, "insufficient quota for {} in flavor {}: ", self.resource, self.flavor)?;
        self.write_demand(f)?;
        write!(f, ", exceeding the maximum capacity {}", show(self.potential))?;
        if self.binding != Binding::NominalQuota {
            write!(f, ", limited by {}", self.binding)?;
        }
        write!(f, " (fits only once nominalQuota is {})", show(self.nominal.plus(self.missing)))
    }

    fn write_demand(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |amount: Amount| amount.display(&self.resource).to_string();
        write!(f, "requests {}", show(self.requested))?;
        if self.earlier != Amount::ZERO {
            write!(f, " plus {} for earlier pod sets", show(self.earlier))?;
        }
        if self.held != Amount::ZERO {
            write!(f, ", of which the replaced slice holds {}", show(self.held))?;
        }
        Ok(())
    }
}

#[cfg(test)]
impl Shortfall {
    /// Four GPUs are missing.
    pub(crate) fn sample() -> Self {
        Self {
            pod_set: "worker".into(),
            flavor: "a100".into(),
            resource: "nvidia.com/gpu".into(),
            requested: Amount::new(8),
            earlier: Amount::ZERO,
            held: Amount::ZERO,
            used: Amount::new(12),
            nominal: Amount::new(16),
            potential: Amount::new(16),
            binding: Binding::NominalQuota,
            missing: Amount::new(4),
            missing_now: Amount::new(4),
            holders: vec![
                (ObjectKey::new("team", "llm"), Amount::new(7)),
                (ObjectKey::new("team", "embed"), Amount::new(3)),
            ],
            more_holders: 2,
            kept: None,
            within: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::pending::Obstacle;

    #[rstest]
    #[case::one(0, "and 2 more, 3 is reserved for team/head; fits")]
    #[case::several(2, "and 2 more, 3 is reserved for team/head and 2 more; fits")]
    fn a_shortfall_says_what_is_kept_for_others(#[case] more: usize, #[case] expected: &str) {
        let kept = Kept { amount: Amount::new(3), first: ObjectKey::new("team", "head"), more };
        let short = Shortfall { kept: Some(kept), ..Shortfall::sample() };
        let why = Obstacle::Short(short).to_string();
        assert!(why.contains(expected), "{why}");
    }
}
