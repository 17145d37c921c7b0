//! Usage of a queue's quota, in total and by workload.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use super::index_update::IndexUpdate;
use super::partial_preemption::PreemptionScope;
use super::scheduler::WorkloadId;
use super::tree::FlavorResourceId;
use sluice_api::quantity::Amount;

/// Usage of one workload by flavor and resource, in the resource's units.
pub(super) type FlavorResourceQuantities = BTreeMap<FlavorResourceId, i128>;

/// Adds an amount to a usage.
pub(super) fn add_to(charge: &mut FlavorResourceQuantities, fr: FlavorResourceId, amount: i128) {
    if amount != 0 {
        *charge.entry(fr).or_default() += amount;
    }
}

/// Returns `charge` minus `other`, without amounts of zero or less.
pub(super) fn minus(charge: &FlavorResourceQuantities, other: &FlavorResourceQuantities) -> FlavorResourceQuantities {
    let left = charge.iter().map(|(fr, amount)| (*fr, amount - other.get(fr).copied().unwrap_or(0)));
    left.filter(|(_, amount)| *amount > 0).collect()
}

/// Widens an amount for sums. [`Amount::MAX`] becomes larger than any quota.
pub(super) fn to_i128(amount: Amount) -> i128 {
    if amount == Amount::MAX { i128::from(u64::MAX) } else { amount.get().into() }
}

/// Total usage by flavor and resource. The sums never saturate, so a release subtracts exactly what
/// was added.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct UsageTotals {
    totals: BTreeMap<FlavorResourceId, FlavorResourceTotal>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct FlavorResourceTotal {
    reserved: i128,
    admitted: i128,
    holders: u32,
}

impl UsageTotals {
    /// Adds a usage, or removes it.
    pub(super) fn apply(&mut self, charge: &FlavorResourceQuantities, admitted: bool, update: IndexUpdate) {
        for (fr, amount) in charge {
            let sum = self.totals.entry(*fr).or_default();
            let (change, holders) = match update {
                IndexUpdate::Insert => (*amount, sum.holders.saturating_add(1)),
                IndexUpdate::Remove => (-amount, sum.holders.saturating_sub(1)),
            };
            sum.reserved += change;
            sum.admitted += if admitted { change } else { 0 };
            sum.holders = holders;
            if sum.holders == 0 {
                self.totals.remove(fr);
            }
        }
    }

    /// Returns the reserved quota, in the resource's units.
    pub(super) fn reserved(&self, fr: FlavorResourceId) -> i128 {
        self.totals.get(&fr).map_or(0, |sum| sum.reserved)
    }

    /// Returns the usage of admitted workloads, in the resource's units.
    pub(super) fn admitted(&self, fr: FlavorResourceId) -> i128 {
        self.totals.get(&fr).map_or(0, |sum| sum.admitted)
    }

    /// Returns true if no quota is in use.
    pub(super) fn is_empty(&self) -> bool {
        self.totals.is_empty()
    }
}

/// Preemption order within one ClusterQueue: lower priority first, then the smaller loss, then the
/// later quota reservation, then the uid (all but the loss: kueue v0.19.2
/// `pkg/scheduler/preemption/common/ordering.go`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PreemptionOrder {
    pub(super) priority: i32,
    pub(super) scope: PreemptionScope,
    pub(super) quota_reserved_at: Reverse<Timestamp>,
    pub(super) uid: Arc<str>,
    pub(super) workload: WorkloadId,
}

/// A preemptible amount of one workload, in addition to those that precede it in preemption order.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PreemptibleUsage {
    /// Queue order timestamp of the workload.
    pub(super) queue_order_timestamp: Timestamp,
    pub(super) usage: Arc<FlavorResourceQuantities>,
    /// All preemptible usage of the workload, including this amount.
    pub(super) total: Arc<FlavorResourceQuantities>,
}

/// Amount of one resource held by a workload, its uid and its id.
pub(super) type WorkloadUsage = (i128, Arc<str>, WorkloadId);

/// Usage of one ClusterQueue by workload.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct UsageLedger {
    pub(super) totals: UsageTotals,
    /// All workloads with usage, in ascending order of amount, then uid.
    by_amount: BTreeMap<FlavorResourceId, BTreeSet<WorkloadUsage>>,
    /// The preemptible amounts: of workloads whose quota is observed and not being released.
    pub(super) preemptible: BTreeMap<PreemptionOrder, PreemptibleUsage>,
    /// Preemptible usage by priority.
    preemptible_by_priority: BTreeMap<(FlavorResourceId, i32), i128>,
    /// Usage that evicted or partially preempted workloads are releasing.
    pub(super) releasing: BTreeMap<WorkloadId, Arc<FlavorResourceQuantities>>,
}

impl UsageLedger {
    /// Adds the usage of `holder`, or removes it.
    pub(super) fn apply(
        &mut self,
        holder: (&Arc<str>, WorkloadId),
        charge: &FlavorResourceQuantities,
        admitted: bool,
        update: IndexUpdate,
    ) {
        self.totals.apply(charge, admitted, update);
        for (fr, amount) in charge {
            let holders = self.by_amount.entry(*fr).or_default();
            let holder = (*amount, holder.0.clone(), holder.1);
            update.apply_to(holders, holder);
            if holders.is_empty() {
                self.by_amount.remove(fr);
            }
        }
    }

    /// Adds a preemptible amount.
    pub(super) fn add_preemptible(&mut self, rank: PreemptionOrder, holder: PreemptibleUsage) {
        self.add_to_priority(&rank, &holder, 1);
        self.preemptible.insert(rank, holder);
    }

    /// Removes a preemptible amount; `None` if it is not known.
    pub(super) fn remove_preemptible(&mut self, rank: &PreemptionOrder) -> Option<PreemptibleUsage> {
        let holder = self.preemptible.remove(rank)?;
        self.add_to_priority(rank, &holder, -1);
        Some(holder)
    }

    fn add_to_priority(&mut self, rank: &PreemptionOrder, holder: &PreemptibleUsage, sign: i128) {
        for (fr, amount) in holder.usage.iter() {
            let sum = self.preemptible_by_priority.entry((*fr, rank.priority)).or_default();
            *sum += sign * amount;
            if *sum == 0 {
                self.preemptible_by_priority.remove(&(*fr, rank.priority));
            }
        }
    }

    /// Returns the preemptible usage of workloads with at most this priority.
    pub(super) fn preemptible_up_to(&self, fr: FlavorResourceId, priority: i32) -> i128 {
        self.preemptible_by_priority.range((fr, i32::MIN)..=(fr, priority)).map(|(_, sum)| *sum).sum()
    }

    /// Returns the workloads with usage of `fr`, the largest first.
    pub(super) fn largest_first(&self, fr: FlavorResourceId) -> impl Iterator<Item = &WorkloadUsage> {
        self.by_amount.get(&fr).into_iter().flatten().rev()
    }

    /// Returns the number of workloads with usage of `fr`.
    pub(super) fn workload_count(&self, fr: FlavorResourceId) -> usize {
        self.by_amount.get(&fr).map_or(0, BTreeSet::len)
    }

    /// Returns true if no quota is in use.
    pub(super) fn is_empty(&self) -> bool {
        self.totals.is_empty()
    }
}

/// Narrows a sum to an amount, saturating.
pub(super) fn to_amount(sum: i128) -> Amount {
    Amount::new(i64::try_from(sum).unwrap_or(if sum < 0 { i64::MIN } else { i64::MAX }))
}
