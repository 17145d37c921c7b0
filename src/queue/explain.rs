//! Explains why a workload is pending.

use std::collections::{BTreeMap, BTreeSet};

use super::ObjectKey;
use super::assignment_mode::{AssignmentMode, PreemptionMode, PreemptionOracle};
use super::cached_workload::{CachedWorkload, QueueState, ReservedFlavor};
use super::flavor_assigner::{Assignment, Diagnosis, FlavorAssigner, Predecessor};
use super::ledger::{WorkloadUsage, to_amount};
use super::pending::{FlavorRejection, MissingQuota, PendingCause, PendingReason};
use super::scheduler::{CachedClusterQueue, CapacityReservation, Scheduler, WorkloadId};
use super::shortfall::{BindingLimit, ReservedForOthers};
use super::tree::{CohortTree, FlavorResourceId, NodeId, UsageView};
use sluice_api::kueue::PodSetRequest;
use sluice_api::quantity::Amount;

/// Maximum number of holders or evicted workloads that an explanation names.
const MAX_NAMED: usize = 3;

/// Preemption oracle for explanations: never finds candidates.
struct NoPreemption<'a> {
    tree: &'a CohortTree,
    node: NodeId,
}

impl PreemptionOracle for NoPreemption<'_> {
    fn tree(&self) -> &CohortTree {
        self.tree
    }

    fn simulate_preemption(&mut self, fr: FlavorResourceId, amount: i128) -> AssignmentMode {
        AssignmentMode {
            preemption: PreemptionMode::NoPreemptionCandidates,
            borrowing_level: self.tree.lowest_fit(self.node, fr, amount, UsageView::Planned, 0).height,
        }
    }
}

impl BindingLimit {
    /// Returns the exceeded limit at a node: its borrowing limit if `limited`, otherwise its total
    /// quota.
    pub(super) fn from_node(tree: &CohortTree, node: NodeId, limited: bool) -> Self {
        match (tree.is_cluster_queue(node), limited) {
            (true, false) => Self::NominalQuota,
            (true, true) => Self::BorrowingLimit,
            (false, false) => Self::Cohort(tree.name(node).to_owned()),
            (false, true) => Self::CohortBorrowingLimit(tree.name(node).to_owned()),
        }
    }
}

impl Scheduler {
    /// Returns the cause for which a workload is pending, with current numbers. `None` if it is not
    /// pending or not known.
    pub fn explain(&self, workload: &ObjectKey) -> Option<PendingCause> {
        let id = self.workloads.id(workload)?;
        let slot = self.workloads.get(id)?;
        let mut why = self.pending_cause(id, slot)?;
        self.add_holders(&mut why, slot, &mut HoldersCache::default());
        Some(why)
    }

    /// Returns the total requests of each pod set of a workload that is considered for admission,
    /// for `status.resourceRequests` (kueue v0.19.2 `pkg/workload/workload.go`,
    /// `PropagateResourceRequests`). Empty if they are invalid, or the workload is not known.
    pub fn resource_requests(&self, workload: &ObjectKey) -> Vec<PodSetRequest> {
        let slot = self.workloads.id(workload).and_then(|id| self.workloads.get(id));
        let Some(Ok(requests)) = slot.map(|slot| &slot.info.requests) else { return Vec::new() };
        let pod_sets = requests.pod_sets.iter().map(|set| PodSetRequest {
            name: set.name.clone(),
            resources: set.per_pod.times(set.count.into()).quantities(),
        });
        pod_sets.collect()
    }

    /// Returns all queued workloads, by ClusterQueue and in order.
    #[cfg(test)]
    pub(super) fn queued_workloads(&self) -> Vec<ObjectKey> {
        self.cluster_queues
            .iter()
            .flat_map(|state| state.pending_queue.iter())
            .filter_map(|rank| self.workload_key(rank.workload))
            .collect()
    }

    /// Reports whether a queued workload fits without preemption.
    #[cfg(test)]
    pub(super) fn would_fit(&self, key: &ObjectKey) -> bool {
        let look = self.workloads.id(key).and_then(|id| self.assign_without_preemption(id));
        matches!(look, Some(Ok(assignment)) if assignment.mode.preemption == PreemptionMode::Fit)
    }

    /// Returns the cause for which a workload is pending, without the holders of the quota.
    pub(super) fn pending_cause(&self, id: WorkloadId, slot: &CachedWorkload) -> Option<PendingCause> {
        match &slot.queue_state {
            QueueState::OnHold(hold) => Some(hold.cause.clone()),
            QueueState::Queued(node) => self.queued_cause(id, *node),
            QueueState::Inactive | QueueState::Admitted(_) | QueueState::Superseded(_) => None,
        }
    }

    /// Returns the pod sets of a pending slice that lack quota in the flavor that their pods run
    /// in, and might have it in another flavor.
    pub fn pinned_pod_sets(&self, slice: &ObjectKey) -> BTreeSet<String> {
        let id = self.workloads.id(slice);
        let slot = id.and_then(|id| Some((id, self.workloads.get(id).filter(|slot| slot.info.replaces.is_some())?)));
        let Some(PendingCause::Quota(obstacles)) = slot.and_then(|(id, slot)| self.pending_cause(id, slot)) else {
            return BTreeSet::new();
        };
        let is_short = |name: &String| {
            let shortfalls = obstacles.iter().filter(|obstacle| obstacle.pod_set() == name);
            shortfalls.into_iter().any(|obstacle| {
                matches!(obstacle, FlavorRejection::InsufficientUnused(_) | FlavorRejection::ExceedsMaximum(_))
            })
        };
        let pinned = obstacles.iter().filter_map(|obstacle| match obstacle {
            FlavorRejection::PinnedElsewhere { pod_set, .. } => Some(pod_set),
            _ => None,
        });
        pinned.filter(|name| is_short(name)).cloned().collect()
    }

    fn queued_cause(&self, id: WorkloadId, node: NodeId) -> Option<PendingCause> {
        let state = self.cluster_queues.get(node)?;
        if let Some(room) = self.preemption_in_progress(id, state) {
            return Some(room);
        }
        let strict = state.config.as_ref()?.strict_fifo;
        let ahead = state.pending_queue.head().map(|rank| rank.workload).filter(|head| strict && *head != id);
        let behind = ahead
            .and_then(|head| self.workload_key(head))
            .map(|head| PendingCause::BehindHead { head, cluster_queue: state.name.clone() });
        match (self.assign_without_preemption(id)?, behind) {
            (Err(obstacles), behind) => {
                let why = PendingCause::Quota(obstacles);
                // With StrictFIFO, a shortage of unused quota is secondary: the head must be
                // admitted first.
                Some(behind.filter(|_| why.reason() == PendingReason::WaitingForQuota).unwrap_or(why))
            }
            (Ok(_), Some(behind)) => Some(behind),
            (Ok(_), None) => match self.first_unready().filter(|_| self.admission_blocked()) {
                Some(unready) => Some(PendingCause::WaitingForPodsReady(unready)),
                None => Some(PendingCause::NextCycle),
            },
        }
    }

    /// Returns the evicted workloads that a workload with a reservation waits for. `None` without a
    /// reservation for evictions.
    fn preemption_in_progress(&self, id: WorkloadId, state: &CachedClusterQueue) -> Option<PendingCause> {
        let node = state.node;
        let reservation = self.reservation_of(node, id).filter(|reservation| reservation.queue_position.is_some())?;
        let queues = self.tree.cluster_queues_below(self.tree.root(node)).into_iter();
        let states = queues.filter_map(|node| self.cluster_queue(node));
        let evicting = states
            .flat_map(|state| &state.ledger.releasing)
            .filter(|(_, charge)| charge.keys().any(|fr| reservation.usage.contains_key(fr)));
        let mut evicting: Vec<ObjectKey> = evicting.filter_map(|(id, _)| self.workload_key(*id)).collect();
        evicting.sort();
        let more = evicting.len().saturating_sub(MAX_NAMED);
        evicting.truncate(MAX_NAMED);
        let missing = self.missing_quota(id, state, reservation).unwrap_or_default();
        Some(PendingCause::PreemptionInProgress { missing, evicting, more_evicting: more })
    }

    /// Returns by how much the reserved quota of a workload exceeds what is unused.
    fn missing_quota(
        &self,
        id: WorkloadId,
        state: &CachedClusterQueue,
        reservation: &CapacityReservation,
    ) -> Option<Vec<MissingQuota>> {
        let (slot, config) = (self.workloads.get(id)?, state.config.as_ref()?);
        let pod_sets = &slot.info.requests.as_ref().ok()?.pod_sets;
        let missing = reservation.usage.iter().filter_map(|(fr, amount)| {
            let missing = amount - self.tree.available(state.node, *fr, UsageView::Actual, 0);
            let at = self.tree.flavor_resource(*fr);
            let needs_it = |reserved: &&ReservedFlavor| {
                let group = config.groups.get(reserved.unit.group);
                reserved.flavor == at.flavor && group.is_some_and(|group| group.resources.contains(&at.resource))
            };
            let unit = reservation.assignment.flavors.iter().find(needs_it)?.unit;
            (missing > 0).then(|| MissingQuota {
                pod_set: pod_sets.get(unit.pod_set).map(|set| set.name.clone()).unwrap_or_default(),
                flavor: at.flavor.clone(),
                resource: at.resource.clone(),
                amount: to_amount(missing),
            })
        });
        Some(missing.collect())
    }

    fn reservation_of(&self, node: NodeId, id: WorkloadId) -> Option<&CapacityReservation> {
        self.reservations.get(&self.tree.root(node))?.iter().find(|reservation| reservation.workload == id)
    }

    /// Returns the first admitted workload that is not ready, by key.
    fn first_unready(&self) -> Option<ObjectKey> {
        self.not_ready.iter().filter_map(|id| self.workload_key(*id)).min()
    }

    fn workload_key(&self, id: WorkloadId) -> Option<ObjectKey> {
        Some(self.workloads.get(id)?.info.key.clone())
    }

    /// Assigns flavors to a queued workload without preemption. Returns the rejections if it does
    /// not fit, and `None` if the workload is not queued.
    fn assign_without_preemption(&self, id: WorkloadId) -> Option<Result<Assignment, Vec<FlavorRejection>>> {
        let slot = self.workloads.get(id)?;
        let QueueState::Queued(node) = slot.queue_state else { return None };
        let state = self.cluster_queues.get(node)?;
        let demand = slot.info.requests.as_ref().ok()?;
        let attempt = FlavorAssigner {
            cluster_queue: &state.name,
            node,
            config: state.config.as_ref()?,
            flavors: &self.flavors,
            undeclared_resources: self.settings.resources.undeclared,
            fair_sharing: self.settings.fair_sharing.is_some(),
            predecessor: self.predecessor(slot, node).and_then(predecessor_of),
            reserved_assignment: None,
            reserved: self.reservation_of(node, id).map(|reservation| &reservation.usage),
            requests: demand,
        };
        let counts: Vec<i32> = demand.pod_sets.iter().map(|set| set.count).collect();
        let mut found = Diagnosis { rejections: Some(Vec::new()), ..Diagnosis::default() };
        let assignment = attempt.assign(&counts, &mut NoPreemption { tree: &self.tree, node }, &mut found);
        let fits = assignment.filter(|assignment| assignment.mode.preemption > PreemptionMode::NoPreemptionCandidates);
        Some(fits.ok_or(found.rejections.unwrap_or_default()))
    }

    /// Adds the largest holders of the missing quota, and the workloads that unused quota is
    /// reserved for.
    pub(super) fn add_holders(&self, why: &mut PendingCause, slot: &CachedWorkload, holders: &mut HoldersCache) {
        let PendingCause::Quota(obstacles) = why else { return };
        let own = slot.info.replaces.as_ref().and_then(|key| self.workloads.id(key));
        for obstacle in obstacles {
            let (FlavorRejection::InsufficientUnused(shortfall) | FlavorRejection::ExceedsMaximum(shortfall)) =
                obstacle
            else {
                continue;
            };
            let Some((within, fr)) = shortfall.subtree else { continue };
            let most = holders.by_subtree.entry((within, fr)).or_insert_with(|| self.largest_holders(within, fr));
            let others = most.largest.iter().filter(|(.., id)| Some(*id) != own).take(MAX_NAMED);
            let named = others.filter_map(|(amount, _, id)| Some((self.workload_key(*id)?, to_amount(*amount))));
            shortfall.holders = named.collect();
            let all = most.count - usize::from(shortfall.held_by_predecessor != Amount::ZERO).min(most.count);
            shortfall.more_holders = all.saturating_sub(shortfall.holders.len());
            shortfall.reserved_for_others = most.reserved_for_others(&slot.info.key);
        }
    }

    fn largest_holders(&self, within: NodeId, fr: FlavorResourceId) -> LargestHolders {
        let mut most = LargestHolders::default();
        for state in self.tree.cluster_queues_below(within).into_iter().filter_map(|node| self.cluster_queue(node)) {
            most.count += state.ledger.workload_count(fr);
            // One more than MAX_NAMED, because one of them may be the replaced slice.
            most.largest.extend(state.ledger.largest_first(fr).take(MAX_NAMED + 1).cloned());
        }
        most.largest.sort_by(|a, b| b.cmp(a));
        most.largest.truncate(MAX_NAMED + 1);
        most.reserved = self.reservations_within(within, fr);
        most
    }

    /// Returns the reservations within a subtree, largest first and then by key.
    fn reservations_within(&self, within: NodeId, fr: FlavorResourceId) -> Vec<(i128, ObjectKey)> {
        let is_within = |node: NodeId| node == within || self.tree.ancestors(node).any(|above| above == within);
        let reservations = self.reservations.get(&self.tree.root(within)).into_iter().flatten();
        let kept = reservations.filter(|reservation| is_within(reservation.node)).filter_map(|reservation| {
            let amount = reservation.usage.get(&fr).filter(|amount| **amount > 0)?;
            Some((*amount, self.workload_key(reservation.workload)?))
        });
        let mut kept: Vec<(i128, ObjectKey)> = kept.collect();
        kept.sort_by(|(a, first), (b, second)| b.cmp(a).then_with(|| first.cmp(second)));
        kept
    }
}

/// Largest holders by subtree and flavor resource, computed once for all explanations of a cycle.
#[derive(Default)]
pub(super) struct HoldersCache {
    by_subtree: BTreeMap<(NodeId, FlavorResourceId), LargestHolders>,
}

/// The largest holders of a flavor resource within a subtree.
#[derive(Default)]
struct LargestHolders {
    /// Largest holders, in descending order.
    largest: Vec<WorkloadUsage>,
    /// Number of all holders.
    count: usize,
    /// Reservations, largest first and then by key.
    reserved: Vec<(i128, ObjectKey)>,
}

impl LargestHolders {
    /// Returns the reservations for workloads other than `workload`. `None` if there are none.
    fn reserved_for_others(&self, workload: &ObjectKey) -> Option<ReservedForOthers> {
        let others = || self.reserved.iter().filter(|(_, key)| key != workload);
        let (_, first) = others().next()?;
        let amount = to_amount(others().map(|(amount, _)| amount).sum());
        Some(ReservedForOthers { amount, largest: first.clone(), others: others().count() - 1 })
    }
}

pub(super) fn predecessor_of(slot: &CachedWorkload) -> Option<Predecessor<'_>> {
    let QueueState::Admitted(admission) = &slot.queue_state else { return None };
    Some(Predecessor { usage: &slot.accounting.usage, requests: slot.info.requests.as_deref().ok(), admission })
}
