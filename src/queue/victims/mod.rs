//! Selects preemption targets: the fewest workloads, among those that the preemption policy
//! permits, that must be preempted for a workload to fit.
//!
//! The rules are those of kueue v0.19.2 `pkg/scheduler/preemption`. The search removes usage from
//! the tree to simulate preemption, and adds it again afterwards. It works on planned usage, so
//! workloads that are already being evicted are not selected again.

mod classical;
mod fair;
mod lasting;
mod rights;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::PreemptionRight;
use super::engine::WorkloadId;
use super::ledger::{Charge, HolderRank, add_to};
use super::means::{Ground, Means, Mode};
use super::parts::Loss;
use super::queues::Queues;
use super::quota::PreemptionRules;
use super::settings::FairSharing;
use super::slices::Workloads;
use super::tree::{Fr, NodeId, Tree, View};
use rights::Preemptor;

/// A workload, or a part of it, that must be preempted.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Victim {
    pub(super) cluster_queue: NodeId,
    pub(super) rank: HolderRank,
    pub(super) charge: Arc<Charge>,
    pub(super) right: PreemptionRight,
}

impl Victim {
    /// Reports whether this is a later part of the same workload, which is preempted only together
    /// with `other`.
    fn goes_after(&self, other: &Self) -> bool {
        self.rank.workload == other.rank.workload && self.rank.loss > other.rank.loss
    }
}

/// Merges the parts of each workload into one target.
fn all_that_each_loses(victims: Vec<Victim>) -> Vec<Victim> {
    let mut losses: Vec<Victim> = Vec::new();
    for victim in victims {
        match losses.iter_mut().find(|loss| loss.rank.workload == victim.rank.workload) {
            Some(loss) => {
                let charge = Arc::make_mut(&mut loss.charge);
                victim.charge.iter().for_each(|(fr, amount)| add_to(charge, *fr, *amount));
                loss.rank.loss = loss.rank.loss.max(victim.rank.loss);
            }
            None => losses.push(victim),
        }
    }
    losses
}

/// The search for preemption targets for one workload in one ClusterQueue.
pub(super) struct Search<'a> {
    pub(super) tree: &'a mut Tree,
    pub(super) queues: &'a Queues,
    pub(super) workloads: &'a Workloads,
    pub(super) fair_sharing: Option<&'a FairSharing>,
    pub(super) node: NodeId,
    pub(super) rules: PreemptionRules,
    pub(super) priority: i32,
    pub(super) since: Timestamp,
    /// The slice that it replaces: not counted during the search, and never a target.
    pub(super) predecessor: Option<(WorkloadId, &'a Charge)>,
}

/// The usage that must fit, and the constraints of the search.
#[derive(Clone, Copy)]
struct Want<'a> {
    usage: &'a Charge,
    /// Flavor resources that need preemption.
    short: &'a [Fr],
    /// Workloads that must not be preempted to this extent or further.
    spared: &'a BTreeMap<WorkloadId, Loss>,
}

impl Ground for Search<'_> {
    fn tree(&self) -> &Tree {
        self.tree
    }

    fn make_room(&mut self, fr: Fr, amount: i128) -> Means {
        let usage = Charge::from([(fr, amount)]);
        let victims = self.victims(&usage, &[fr]);
        self.with_predecessor_away(|search| {
            search.take(&victims, true);
            let level = search.tree.lowest_fit(search.node, fr, amount, View::Planned, 0).height;
            search.take(&victims, false);
            let own = victims.iter().any(|victim| victim.cluster_queue == search.node);
            let mode = match (victims.is_empty(), own) {
                (true, _) => Mode::NoCandidates,
                (false, true) => Mode::Preempt,
                (false, false) => Mode::Reclaim,
            };
            Means { mode, level }
        })
    }
}

impl<'a> Search<'a> {
    fn preemptor(&self) -> Preemptor<'a> {
        Preemptor {
            queues: self.queues,
            rules: self.rules,
            priority: self.priority,
            since: self.since,
            predecessor: self.predecessor.map(|(workload, _)| workload),
        }
    }
}

impl Search<'_> {
    /// Returns the targets to preempt so that `usage` fits, where the flavor resources in `short`
    /// need preemption. Empty if preemption is not sufficient.
    pub(super) fn victims(&mut self, usage: &Charge, short: &[Fr]) -> Vec<Victim> {
        if self.rules.never() {
            return Vec::new();
        }
        let found = self.with_predecessor_away(|search| {
            search.lasting(usage, short, |search, want| match search.fair_sharing {
                Some(rules) => search.fair(want, &rules.strategies),
                None => search.classical(want),
            })
        });
        all_that_each_loses(found)
    }

    /// Runs a search without the usage of the replaced slice.
    fn with_predecessor_away<T>(&mut self, search: impl FnOnce(&mut Self) -> T) -> T {
        let predecessor = self.predecessor.map(|(_, charge)| charge);
        self.add(self.node, predecessor.into_iter().flatten(), -1);
        let found = search(self);
        self.add(self.node, predecessor.into_iter().flatten(), 1);
        found
    }

    fn add<'c>(&mut self, node: NodeId, charge: impl IntoIterator<Item = (&'c Fr, &'c i128)>, sign: i128) {
        for (fr, amount) in charge {
            self.tree.add(node, *fr, sign * amount, View::Planned);
        }
    }

    /// Removes the usage of targets from the tree if `away`, otherwise adds it again.
    fn take(&mut self, victims: &[Victim], away: bool) {
        for victim in victims {
            self.take_one(victim, away);
        }
    }

    fn take_one(&mut self, victim: &Victim, away: bool) {
        self.add(victim.cluster_queue, victim.charge.iter(), if away { -1 } else { 1 });
    }

    /// Reports whether the usage fits, without borrowing unless `may_borrow`.
    fn fits(&self, want: &Want<'_>, may_borrow: bool) -> bool {
        want.usage.iter().all(|(fr, amount)| {
            let borrows = self.tree.would_borrow(self.node, *fr, *amount, View::Planned);
            (may_borrow || !borrows) && *amount <= self.tree.available(self.node, *fr, View::Planned, 0)
        })
    }

    /// Drops targets that are not needed, in reverse order, and then adds the usage of all targets
    /// again.
    fn fewest(&mut self, mut victims: Vec<Victim>, fits: impl Fn(&mut Self) -> bool) -> Vec<Victim> {
        for index in (0..victims.len().saturating_sub(1)).rev() {
            // A part that a later part depends on can only be dropped after it.
            if victims.iter().any(|victim| victim.goes_after(&victims[index])) {
                continue;
            }
            self.take_one(&victims[index], false);
            if fits(self) {
                victims.swap_remove(index);
            } else {
                self.take_one(&victims[index], true);
            }
        }
        self.take(&victims, false);
        victims
    }
}
