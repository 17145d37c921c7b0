//! Usage of a queue's quota, in total and by workload.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use super::engine::WorkloadId;
use super::parts::Loss;
use super::tree::Fr;
use sluice_api::quantity::Amount;

/// Usage of one workload by flavor and resource, in the resource's units.
pub(super) type Charge = BTreeMap<Fr, i128>;

/// Adds an amount to a usage.
pub(super) fn add_to(charge: &mut Charge, fr: Fr, amount: i128) {
    if amount != 0 {
        *charge.entry(fr).or_default() += amount;
    }
}

/// Returns `charge` minus `other`, without amounts of zero or less.
pub(super) fn less(charge: &Charge, other: &Charge) -> Charge {
    let left = charge.iter().map(|(fr, amount)| (*fr, amount - other.get(fr).copied().unwrap_or(0)));
    left.filter(|(_, amount)| *amount > 0).collect()
}

/// Widens an amount for sums. [`Amount::MAX`] becomes larger than any quota.
pub(super) fn wide(amount: Amount) -> i128 {
    if amount == Amount::MAX { i128::from(u64::MAX) } else { amount.get().into() }
}

/// Total usage by flavor and resource. The sums never saturate, so a release subtracts exactly what
/// was added.
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
    /// Adds a usage if `present`, and removes it otherwise.
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

    /// Returns the reserved quota, in the resource's units.
    pub(super) fn reserved(&self, fr: Fr) -> i128 {
        self.lines.get(&fr).map_or(0, |sum| sum.reserved)
    }

    /// Returns the usage of admitted workloads, in the resource's units.
    pub(super) fn admitted(&self, fr: Fr) -> i128 {
        self.lines.get(&fr).map_or(0, |sum| sum.admitted)
    }

    /// Returns true if no quota is in use.
    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }
}

/// Preemption order within one ClusterQueue: lower priority first, then the smaller loss, then the
/// later quota reservation, then the uid (all but the loss: kueue v0.19.2
/// `pkg/scheduler/preemption/common/ordering.go`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct HolderRank {
    pub(super) priority: i32,
    pub(super) loss: Loss,
    pub(super) reserved: Reverse<Timestamp>,
    pub(super) uid: Arc<str>,
    pub(super) workload: WorkloadId,
}

/// A preemptible amount of one workload, in addition to those that precede it in preemption order.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Holder {
    /// Queue order timestamp of the workload.
    pub(super) since: Timestamp,
    pub(super) charge: Arc<Charge>,
    /// All preemptible usage of the workload, including this amount.
    pub(super) all: Arc<Charge>,
}

/// Amount of one resource held by a workload, its uid and its id.
pub(super) type LargeHolder = (i128, Arc<str>, WorkloadId);

/// Usage of one ClusterQueue by workload.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Ledger {
    pub(super) sums: Sums,
    /// All workloads with usage, in ascending order of amount, then uid.
    largest: BTreeMap<Fr, BTreeSet<LargeHolder>>,
    /// The preemptible amounts: of workloads whose quota is observed and not being released.
    pub(super) stable: BTreeMap<HolderRank, Holder>,
    /// Preemptible usage by priority.
    by_priority: BTreeMap<(Fr, i32), i128>,
    /// Usage that evicted or partially preempted workloads are releasing.
    pub(super) going: BTreeMap<WorkloadId, Arc<Charge>>,
}

impl Ledger {
    /// Adds the usage of `holder` if `present`, and removes it otherwise.
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

    /// Adds a preemptible amount.
    pub(super) fn settle(&mut self, rank: HolderRank, holder: Holder) {
        self.sum_priorities(&rank, &holder, 1);
        self.stable.insert(rank, holder);
    }

    /// Removes a preemptible amount; `None` if it is not known.
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

    /// Returns the preemptible usage of workloads with at most this priority.
    pub(super) fn held_up_to(&self, fr: Fr, priority: i32) -> i128 {
        self.by_priority.range((fr, i32::MIN)..=(fr, priority)).map(|(_, sum)| *sum).sum()
    }

    /// Returns the workloads with usage of `fr`, the largest first.
    pub(super) fn holders(&self, fr: Fr) -> impl Iterator<Item = &LargeHolder> {
        self.largest.get(&fr).into_iter().flatten().rev()
    }

    /// Returns the number of workloads with usage of `fr`.
    pub(super) fn holder_count(&self, fr: Fr) -> usize {
        self.largest.get(&fr).map_or(0, BTreeSet::len)
    }

    /// Returns true if no quota is in use.
    pub(super) fn is_empty(&self) -> bool {
        self.sums.is_empty()
    }
}

/// Narrows a sum to an amount, saturating.
pub(super) fn clamped(sum: i128) -> Amount {
    Amount::new(i64::try_from(sum).unwrap_or(if sum < 0 { i64::MIN } else { i64::MAX }))
}
