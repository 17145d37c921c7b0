//! Nominates a workload of a ClusterQueue and assigns flavors to it.

use super::classical_iterator::{Nomination, Outcome, Validity};
use crate::assignment_mode::PreemptionMode;
use crate::cached_workload::ReservedAssignment;
use crate::explain::predecessor_of;
use crate::flavor_assigner::{Assignment, Diagnosis, FlavorAssigner};
use crate::ledger::FlavorResourceQuantities;
use crate::pending_queue::{QueueOrder, QuotaNeed};
use crate::preemption::{Target, TargetSearch};
use crate::scheduler::{Scheduler, WorkloadId};
use crate::tree::{NodeId, UsageView};
use sluice_api::kueue::Admission;
use sluice_api::kueue::cluster_queue::ReclaimPolicy;

/// Result of an attempt to assign flavors.
enum AttemptResult {
    /// Fits now (`admission` is set), or after these and earlier evictions.
    Assigned { assignment: Assignment, targets: Vec<Target>, admission: Option<Admission> },
    /// Does not fit. `without_candidates` is an assignment that would need preemption without
    /// candidates.
    NotAdmissible { needs: Vec<QuotaNeed>, without_candidates: Option<Assignment> },
}

impl Scheduler {
    /// Nominates the first workload of a ClusterQueue that can be admitted or get a reservation.
    pub(super) fn nominate(&mut self, node: NodeId) -> Option<Nomination> {
        loop {
            let state = self.cluster_queue(node)?;
            let quota = state.config.as_ref()?;
            let (strict, rules) = (quota.strict_fifo, quota.preemption);
            let one_choice = quota.groups.iter().all(|group| group.flavors.len() == 1);
            let rank = self.next_to_try(node)?.clone();
            let whole = self.is_all_or_nothing(&rank);
            let preempts = self.workloads.get(rank.workload).is_some_and(|slot| slot.reserved_assignment.is_some());
            match self.try_assign(rank.workload, node)? {
                AttemptResult::Assigned { mut assignment, targets, admission } => {
                    let follows = self.subtract_predecessor(rank.workload, node, &mut assignment.usage);
                    let level = assignment.mode.borrowing_level;
                    let fits = assignment.mode.preemption == PreemptionMode::Fit;
                    // A nomination that borrows or preempts may improve when other workloads take
                    // their turns; one within the nominal quota cannot.
                    let holds = match rules.never_preempts() || (fits && (level == 0 || one_choice)) {
                        _ if fits && level == 0 => Validity::UntilHeadChanges,
                        false => Validity::ThisTurn,
                        // Less is available in addition to its predecessor than for the workload
                        // itself.
                        true if follows => Validity::ThisTurn,
                        true => Validity::WhileFree,
                    };
                    return Some(Nomination {
                        order: rank,
                        borrowing_level: level,
                        assignment: self.reserved_assignment(node, &assignment),
                        usage: assignment.usage,
                        has_reservation: preempts,
                        validity: holds,
                        has_fixed_usage: one_choice && whole && !follows,
                        outcome: admission.map_or(Outcome::Preempt(targets), Outcome::Admit),
                        finished_turns: 0,
                    });
                }
                // With StrictFIFO, nothing behind the head is tried. Unless the ClusterQueue can
                // reclaim its quota from workloads of any priority, capacity is reserved for the
                // head now.
                AttemptResult::NotAdmissible { needs, without_candidates } if strict => {
                    let Some(mut assignment) =
                        without_candidates.filter(|_| rules.reclaim_within_cohort != ReclaimPolicy::Any)
                    else {
                        self.park_inadmissible(node, &rank, needs);
                        return None;
                    };
                    self.subtract_predecessor(rank.workload, node, &mut assignment.usage);
                    let usage = self.capacity_to_reserve(node, &assignment);
                    return Some(Nomination {
                        order: rank,
                        borrowing_level: assignment.mode.borrowing_level,
                        usage,
                        has_reservation: preempts,
                        assignment: self.reserved_assignment(node, &assignment),
                        outcome: Outcome::Reserve,
                        validity: Validity::ThisTurn,
                        has_fixed_usage: false,
                        finished_turns: 0,
                    });
                }
                AttemptResult::NotAdmissible { needs, .. } => self.park_inadmissible(node, &rank, needs),
            }
        }
    }

    /// Returns the first workload of a ClusterQueue that may be admissible.
    pub(super) fn next_to_try(&self, node: NodeId) -> Option<&QueueOrder> {
        let state = self.cluster_queue(node)?;
        if state.config.as_ref()?.strict_fifo {
            return state.pending_queue.head();
        }
        state.pending_queue.next_reachable(|fr, priority| self.reachable_quota(state, node, fr, priority))
    }

    /// Returns the counts and flavors to reserve for an assignment.
    fn reserved_assignment(&self, node: NodeId, assignment: &Assignment) -> ReservedAssignment {
        let quota = self.cluster_queue(node).and_then(|state| state.config.as_ref());
        quota.map(|quota| assignment.reserved_assignment(quota)).unwrap_or_default()
    }

    /// Reports whether a workload is admitted as a whole or not at all.
    fn is_all_or_nothing(&self, rank: &QueueOrder) -> bool {
        let demand = self.workloads.get(rank.workload).and_then(|slot| slot.info.requests.as_ref().ok());
        demand.is_some_and(|demand| demand.pod_sets.iter().all(|set| set.reducible(set.count) == 0))
    }

    /// Subtracts the usage of the predecessor, which changes hands. Returns whether there is a
    /// predecessor.
    fn subtract_predecessor(&self, workload: WorkloadId, node: NodeId, usage: &mut FlavorResourceQuantities) -> bool {
        let predecessor = self.workloads.get(workload).and_then(|slot| self.predecessor(slot, node));
        for (fr, held) in predecessor.iter().flat_map(|before| before.accounting.usage.iter()) {
            if let Some(amount) = usage.get_mut(fr) {
                *amount = (*amount - held).max(0);
            }
        }
        usage.retain(|_, amount| *amount > 0);
        predecessor.is_some()
    }

    /// Assigns flavors to a workload, with preemption. `None` if the workload is not known.
    fn try_assign(&mut self, id: WorkloadId, node: NodeId) -> Option<AttemptResult> {
        self.decision_count += 1;
        let predecessor = self.predecessor(self.workloads.get(id)?, node).map(|before| before.info.key.clone());
        let predecessor = predecessor.and_then(|key| self.workloads.id(&key));
        let Self { tree, cluster_queues, workloads, flavors, settings, .. } = self;
        let slot = workloads.get(id)?;
        let state = cluster_queues.get(node)?;
        let before = predecessor.and_then(|id| Some((id, workloads.get(id)?)));
        let quota = state.config.as_ref()?;
        let demand = slot.info.requests.as_ref().ok()?;
        let charged: Option<(WorkloadId, &FlavorResourceQuantities)> =
            before.map(|(id, before)| (id, before.accounting.usage.as_ref()));
        let attempt = FlavorAssigner {
            cluster_queue: &state.name,
            node,
            config: quota,
            flavors,
            undeclared_resources: settings.resources.undeclared,
            fair_sharing: settings.fair_sharing.is_some(),
            predecessor: before.and_then(|(_, before)| predecessor_of(before)),
            reserved_assignment: None,
            reserved: None,
            requests: demand,
        };
        let mut search = TargetSearch {
            tree,
            queues: cluster_queues,
            workloads,
            fair_sharing: settings.fair_sharing.as_ref(),
            node,
            policy: quota.preemption,
            priority: slot.info.priority,
            queue_order_timestamp: slot.info.queue_order_timestamp,
            predecessor: charged,
        };
        Some(try_reserved_then_requested(attempt, &mut search, slot.reserved_assignment.as_ref()))
    }

    /// Returns the capacity to reserve for the head of a StrictFIFO ClusterQueue that cannot be
    /// admitted: no more than the ClusterQueue may use (kueue v0.19.2 `pkg/scheduler/scheduler.go`,
    /// `quotaResourcesToReserve`).
    fn capacity_to_reserve(&self, node: NodeId, assignment: &Assignment) -> FlavorResourceQuantities {
        let keep = assignment.usage.iter().map(|(fr, amount)| {
            let (nominal, used) = (self.tree.nominal_quota(node, *fr), self.tree.usage(node, *fr, UsageView::Planned));
            let kept = match (assignment.mode.borrowing_level, self.tree.borrowing_limit(node, *fr)) {
                (0, _) => (*amount).min(nominal - used),
                (_, None) => *amount,
                (_, Some(limit)) => (*amount).min(nominal + limit - used),
            };
            (*fr, kept.max(0))
        });
        keep.collect()
    }
}

/// Tries the assignment that evictions were issued for, if any, and otherwise all requests. With
/// more pods or in another flavor, the workload could borrow quota without evictions and be
/// preempted in turn, without end.
fn try_reserved_then_requested<'a>(
    mut attempt: FlavorAssigner<'a>,
    search: &mut TargetSearch<'_>,
    room_made: Option<&'a ReservedAssignment>,
) -> AttemptResult {
    if let Some(room) = room_made {
        attempt.reserved_assignment = room_made;
        let verdict = largest_admissible(&attempt, search, &room.counts);
        if matches!(verdict, AttemptResult::Assigned { .. }) {
            return verdict;
        }
        attempt.reserved_assignment = None;
    }
    let asked: Vec<i32> = attempt.requests.pod_sets.iter().map(|set| set.count).collect();
    largest_admissible(&attempt, search, &asked)
}

/// Tries the whole workload; if that is not admissible and the workload permits partial admission,
/// the largest admissible part.
fn largest_admissible(attempt: &FlavorAssigner<'_>, search: &mut TargetSearch<'_>, whole: &[i32]) -> AttemptResult {
    let verdict = try_counts(attempt, search, whole);
    let (smaller, without_candidates) = match (verdict, &attempt.requests.growth_plan) {
        (AttemptResult::NotAdmissible { without_candidates, .. }, Some(growth_plan)) => {
            let gets =
                |counts: &[i32]| !matches!(try_counts(attempt, search, counts), AttemptResult::NotAdmissible { .. });
            let most = growth_plan.largest_fitting(whole, gets);
            (most.map(|counts| try_counts(attempt, search, &counts)), without_candidates)
        }
        (AttemptResult::NotAdmissible { without_candidates, .. }, None) if attempt.requests.reducible(whole) > 0 => {
            (largest_reduced(attempt, search, whole), without_candidates)
        }
        (verdict, _) => return verdict,
    };
    smaller.unwrap_or(AttemptResult::NotAdmissible { needs: Vec::new(), without_candidates })
}

/// Tries the workload with as few pods removed as possible.
fn largest_reduced(
    attempt: &FlavorAssigner<'_>,
    search: &mut TargetSearch<'_>,
    whole: &[i32],
) -> Option<AttemptResult> {
    let most = attempt.requests.reducible(whole);
    let (mut low, mut high, mut best) = (1, most, None);
    while low <= high {
        let by = low + (high - low) / 2;
        match try_counts(attempt, search, &attempt.requests.reduced(whole, by, most)) {
            AttemptResult::NotAdmissible { .. } => low = by + 1,
            found => (high, best) = (by - 1, Some(found)),
        }
    }
    best
}

/// Assigns flavors for the given pod counts and selects the preemption targets.
fn try_counts(attempt: &FlavorAssigner<'_>, search: &mut TargetSearch<'_>, counts: &[i32]) -> AttemptResult {
    let mut found = Diagnosis::default();
    let assignment = attempt.assign(counts, search, &mut found);
    let needs = found.quota_needs;
    let Some(assignment) = assignment else { return AttemptResult::NotAdmissible { needs, without_candidates: None } };
    match assignment.mode.preemption {
        PreemptionMode::Fit => {
            let admission = Some(attempt.to_admission(&assignment));
            AttemptResult::Assigned { assignment, targets: Vec::new(), admission }
        }
        PreemptionMode::FitAfterEvictions => {
            AttemptResult::Assigned { assignment, targets: Vec::new(), admission: None }
        }
        PreemptionMode::Preempt | PreemptionMode::Reclaim => {
            let targets = search.find_targets(&assignment.usage, &assignment.needs_preemption);
            if targets.is_empty() {
                AttemptResult::NotAdmissible { needs, without_candidates: Some(assignment) }
            } else {
                AttemptResult::Assigned { assignment, targets, admission: None }
            }
        }
        PreemptionMode::NoPreemptionCandidates => {
            AttemptResult::NotAdmissible { needs, without_candidates: Some(assignment) }
        }
        PreemptionMode::NoFit => AttemptResult::NotAdmissible { needs, without_candidates: None },
    }
}
