//! What of a queue's quota is held, and by whom.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use super::engine::WorkloadId;
use super::parts::Loss;
use super::tree::Fr;
use sluice_api::quantity::Amount;

/// What one workload holds, in the resource's units.
pub(super) type Charge = BTreeMap<Fr, i128>;

/// Adds to a charge.
pub(super) fn add_to(charge: &mut Charge, fr: Fr, amount: i128) {
    if amount != 0 {
        *charge.entry(fr).or_default() += amount;
    }
}

/// What is left of a charge without another.
pub(super) fn less(charge: &Charge, other: &Charge) -> Charge {
    let left = charge.iter().map(|(fr, amount)| (*fr, amount - other.get(fr).copied().unwrap_or(0)));
    left.filter(|(_, amount)| *amount > 0).collect()
}

/// An amount in the width of sums. What is more than any quota can grant stays so, however large the quota.
pub(super) fn wide(amount: Amount) -> i128 {
    if amount == Amount::MAX { i128::from(u64::MAX) } else { amount.get().into() }
}

/// Sums of charges, by flavor and resource. They are wide enough to never saturate, so what is released is exactly what was
/// booked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Sums {
    lines: BTreeMap<Fr, Sum>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sum {
    reserved: i128,
    admitted: i128,
    holders: u32,
}

impl Sums {
    /// Adds a charge, or takes it out again.
    pub(super) fn book(&mut self, charge: &Charge, admitted: bool, present: bool) {
        let sign = if present { 1 } else { -1 };
        for (fr, amount) in charge {
            let sum = self.lines.entry(*fr).or_default();
            sum.reserved += sign * amount;
            sum.admitted += if admitted { sign * amount } else { 0 };
            sum.holders = if present { sum.holders.saturating_add(1) } else { sum.holders.saturating_sub(1) };
            if sum.holders == 0 {
                self.lines.remove(fr);
            }
        }
    }

    /// What is reserved, in the resource's units.
    pub(super) fn reserved(&self, fr: Fr) -> i128 {
        self.lines.get(&fr).map_or(0, |sum| sum.reserved)
    }

    /// What admitted workloads use, in the resource's units.
    pub(super) fn admitted(&self, fr: Fr) -> i128 {
        self.lines.get(&fr).map_or(0, |sum| sum.admitted)
    }

    /// Whether nothing is held.
    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }
}

/// Place among those that hold quota of one ClusterQueue: who is preempted first comes first. Lower priority, then what
/// is missed the least, then who got its quota last, then the uid (but for what is missed the least: kueue v0.19.2 `pkg/scheduler/preemption/common/ordering.go`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct HolderRank {
    pub(super) priority: i32,
    pub(super) loss: Loss,
    pub(super) reserved: Reverse<Timestamp>,
    pub(super) uid: Arc<str>,
    pub(super) workload: WorkloadId,
}

/// What can be taken from one that holds quota, on top of what is taken from it before.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Holder {
    /// When it lined up.
    pub(super) since: Timestamp,
    pub(super) charge: Arc<Charge>,
    /// All that can be taken from it, this included.
    pub(super) all: Arc<Charge>,
}

/// What one holds of a resource, its uid, and who it is.
pub(super) type LargeHolder = (i128, Arc<str>, WorkloadId);

/// Who holds quota of one ClusterQueue.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Ledger {
    pub(super) sums: Sums,
    /// Everyone, the largest last, and among equals by uid.
    largest: BTreeMap<Fr, BTreeSet<LargeHolder>>,
    /// Those that can be preempted, part by part: their quota is observed, and they are not evicted yet.
    pub(super) stable: BTreeMap<HolderRank, Holder>,
    /// What those that can be preempted hold, by priority.
    by_priority: BTreeMap<(Fr, i32), i128>,
    /// What those have to give back, and have not yet, that are evicted or lose a part.
    pub(super) going: BTreeMap<WorkloadId, Arc<Charge>>,
}

impl Ledger {
    /// Adds what `holder` holds, or takes it out again.
    pub(super) fn book(&mut self, holder: (&Arc<str>, WorkloadId), charge: &Charge, admitted: bool, present: bool) {
        self.sums.book(charge, admitted, present);
        for (fr, amount) in charge {
            let holders = self.largest.entry(*fr).or_default();
            let holder = (*amount, holder.0.clone(), holder.1);
            if present {
                holders.insert(holder);
            } else {
                holders.remove(&holder);
            }
            if holders.is_empty() {
                self.largest.remove(fr);
            }
        }
    }

    /// Adds one that can be preempted.
    pub(super) fn settle(&mut self, rank: HolderRank, holder: Holder) {
        self.sum_priorities(&rank, &holder, 1);
        self.stable.insert(rank, holder);
    }

    /// Takes out one that could be preempted.
    pub(super) fn unsettle(&mut self, rank: &HolderRank) -> Option<Holder> {
        let holder = self.stable.remove(rank)?;
        self.sum_priorities(rank, &holder, -1);
        Some(holder)
    }

    fn sum_priorities(&mut self, rank: &HolderRank, holder: &Holder, sign: i128) {
        for (fr, amount) in holder.charge.iter() {
            let sum = self.by_priority.entry((*fr, rank.priority)).or_default();
            *sum += sign * amount;
            if *sum == 0 {
                self.by_priority.remove(&(*fr, rank.priority));
            }
        }
    }

    /// What those of at most this priority hold that can be preempted.
    pub(super) fn held_up_to(&self, fr: Fr, priority: i32) -> i128 {
        self.by_priority.range((fr, i32::MIN)..=(fr, priority)).map(|(_, sum)| *sum).sum()
    }

    /// Who holds some, the largest first.
    pub(super) fn holders(&self, fr: Fr) -> impl Iterator<Item = &LargeHolder> {
        self.largest.get(&fr).into_iter().flatten().rev()
    }

    /// How many hold some.
    pub(super) fn holder_count(&self, fr: Fr) -> usize {
        self.largest.get(&fr).map_or(0, BTreeSet::len)
    }

    /// Whether nothing is held.
    pub(super) fn is_empty(&self) -> bool {
        self.sums.is_empty()
    }
}

/// A wide sum as an amount; what does not fit stays at the limit.
pub(super) fn clamped(sum: i128) -> Amount {
    Amount::new(i64::try_from(sum).unwrap_or(if sum < 0 { i64::MIN } else { i64::MAX }))
}
