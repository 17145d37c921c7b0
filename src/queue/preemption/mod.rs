//! Selects preemption targets: the fewest workloads, among those that the preemption policy
//! permits, that must be preempted for a workload to fit.
//!
//! The rules are those of kueue v0.19.2 `pkg/scheduler/preemption`. The search removes usage from
//! the tree to simulate preemption, and adds it again afterwards. It works on planned usage, so
//! workloads that are already being evicted are not selected again.

mod candidates;
mod classical;
mod fair_sharing;
mod reclaim_back;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::PreemptionReason;
use super::assignment_mode::{AssignmentMode, PreemptionMode, PreemptionOracle};
use super::cluster_queue_config::PreemptionPolicy;
use super::cluster_queues::ClusterQueues;
use super::ledger::{FlavorResourceQuantities, PreemptionOrder, add_to};
use super::partial_preemption::PreemptionScope;
use super::scheduler::WorkloadId;
use super::settings::FairSharing;
use super::slices::Workloads;
use super::tree::{CohortTree, FlavorResourceId, NodeId, UsageView};
use candidates::CandidateFilter;

/// A workload, or a part of it, that must be preempted.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Target {
    pub(super) cluster_queue: NodeId,
    pub(super) order: PreemptionOrder,
    pub(super) usage: Arc<FlavorResourceQuantities>,
    pub(super) reason: PreemptionReason,
}

impl Target {
    /// Reports whether this is a later part of the same workload, which is preempted only together
    /// with `other`.
    fn depends_on(&self, other: &Self) -> bool {
        self.order.workload == other.order.workload && self.order.scope > other.order.scope
    }
}

/// Merges the parts of each workload into one target.
fn merge_by_workload(targets: Vec<Target>) -> Vec<Target> {
    let mut merged: Vec<Target> = Vec::new();
    for target in targets {
        match merged.iter_mut().find(|earlier| earlier.order.workload == target.order.workload) {
            Some(earlier) => {
                let usage = Arc::make_mut(&mut earlier.usage);
                target.usage.iter().for_each(|(fr, amount)| add_to(usage, *fr, *amount));
                earlier.order.scope = earlier.order.scope.max(target.order.scope);
            }
            None => merged.push(target),
        }
    }
    merged
}

/// The search for preemption targets for one workload in one ClusterQueue.
pub(super) struct TargetSearch<'a> {
    pub(super) tree: &'a mut CohortTree,
    pub(super) queues: &'a ClusterQueues,
    pub(super) workloads: &'a Workloads,
    pub(super) fair_sharing: Option<&'a FairSharing>,
    pub(super) node: NodeId,
    pub(super) policy: PreemptionPolicy,
    pub(super) priority: i32,
    pub(super) queue_order_timestamp: Timestamp,
    /// The slice that it replaces: not counted during the search, and never a target.
    pub(super) predecessor: Option<(WorkloadId, &'a FlavorResourceQuantities)>,
}

/// The usage that must fit, and the constraints of the search.
#[derive(Clone, Copy)]
struct PreemptionRequest<'a> {
    usage: &'a FlavorResourceQuantities,
    /// Flavor resources that need preemption.
    needs_preemption: &'a [FlavorResourceId],
    /// Workloads that must not be preempted to this extent or further.
    exempt: &'a BTreeMap<WorkloadId, PreemptionScope>,
}

/// Permission of the preemptor to borrow once its targets are evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Borrowing {
    /// It may use quota of its Cohort.
    Allowed,
    /// It must fit in the nominal quota of its ClusterQueue.
    Forbidden,
}

impl PreemptionOracle for TargetSearch<'_> {
    fn tree(&self) -> &CohortTree {
        self.tree
    }

    fn simulate_preemption(&mut self, fr: FlavorResourceId, amount: i128) -> AssignmentMode {
        let usage = FlavorResourceQuantities::from([(fr, amount)]);
        let targets = self.find_targets(&usage, &[fr]);
        self.without_predecessor(|search| {
            search.evict_all(&targets);
            let level = search.tree.lowest_fit(search.node, fr, amount, UsageView::Planned, 0).height;
            search.restore_all(&targets);
            let own = targets.iter().any(|target| target.cluster_queue == search.node);
            let mode = match (targets.is_empty(), own) {
                (true, _) => PreemptionMode::NoPreemptionCandidates,
                (false, true) => PreemptionMode::Preempt,
                (false, false) => PreemptionMode::Reclaim,
            };
            AssignmentMode { preemption: mode, borrowing_level: level }
        })
    }
}

impl<'a> TargetSearch<'a> {
    fn candidate_filter(&self) -> CandidateFilter<'a> {
        CandidateFilter {
            cluster_queues: self.queues,
            policy: self.policy,
            priority: self.priority,
            queue_order_timestamp: self.queue_order_timestamp,
            predecessor: self.predecessor.map(|(workload, _)| workload),
        }
    }
}

impl TargetSearch<'_> {
    /// Returns the targets to preempt so that `usage` fits, where the flavor resources in `short`
    /// need preemption. Empty if preemption is not sufficient.
    pub(super) fn find_targets(&mut self, usage: &FlavorResourceQuantities, short: &[FlavorResourceId]) -> Vec<Target> {
        if self.policy.never_preempts() {
            return Vec::new();
        }
        let found = self.without_predecessor(|search| {
            search.without_reclaim_back(usage, short, |search, want| match search.fair_sharing {
                Some(rules) => search.fair_sharing_targets(want, &rules.strategies),
                None => search.classical_targets(want),
            })
        });
        merge_by_workload(found)
    }

    /// Runs a search without the usage of the replaced slice.
    fn without_predecessor<T>(&mut self, search: impl FnOnce(&mut Self) -> T) -> T {
        let predecessor = self.predecessor.map(|(_, charge)| charge);
        self.add_usage(self.node, predecessor.into_iter().flatten(), -1);
        let found = search(self);
        self.add_usage(self.node, predecessor.into_iter().flatten(), 1);
        found
    }

    fn add_usage<'c>(
        &mut self,
        node: NodeId,
        charge: impl IntoIterator<Item = (&'c FlavorResourceId, &'c i128)>,
        sign: i128,
    ) {
        for (fr, amount) in charge {
            self.tree.add_usage(node, *fr, sign * amount, UsageView::Planned);
        }
    }

    /// Removes the usage of a target from the tree.
    fn evict(&mut self, target: &Target) {
        self.add_usage(target.cluster_queue, target.usage.iter(), -1);
    }

    /// Adds the usage of an evicted target again.
    fn restore(&mut self, target: &Target) {
        self.add_usage(target.cluster_queue, target.usage.iter(), 1);
    }

    fn evict_all(&mut self, targets: &[Target]) {
        for target in targets {
            self.evict(target);
        }
    }

    fn restore_all(&mut self, targets: &[Target]) {
        for target in targets {
            self.restore(target);
        }
    }

    /// Reports whether the usage fits.
    fn fits(&self, want: &PreemptionRequest<'_>, borrowing: Borrowing) -> bool {
        want.usage.iter().all(|(fr, amount)| {
            let borrows = self.tree.would_borrow(self.node, *fr, *amount, UsageView::Planned);
            (borrowing == Borrowing::Allowed || !borrows)
                && *amount <= self.tree.available(self.node, *fr, UsageView::Planned, 0)
        })
    }

    /// Drops targets that are not needed, in reverse order, and then adds the usage of all targets
    /// again. `suffices` reports whether the remaining targets are enough, and legal without it.
    fn fill_back(&mut self, mut targets: Vec<Target>, suffices: impl Fn(&mut Self, &[Target]) -> bool) -> Vec<Target> {
        for index in (0..targets.len().saturating_sub(1)).rev() {
            // A part that a later part depends on can only be dropped after it.
            if targets.iter().any(|target| target.depends_on(&targets[index])) {
                continue;
            }
            let target = targets.remove(index);
            self.restore(&target);
            if !suffices(self, &targets) {
                self.evict(&target);
                targets.insert(index, target);
            }
        }
        self.restore_all(&targets);
        targets
    }
}
