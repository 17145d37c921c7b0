//! Who of a tree gets what, one turn after the other.
//!
//! Each turn goes to the workload that comes first of those that can get something now: by what its ClusterQueue is
//! entitled to, or by share, then by priority and age. A turn ends in an admission, in evictions that make room, or in quota
//! that is kept for one whose room is being made. It goes on until nobody can get anything.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use super::Preemption;
use super::assign::{Assignment, Attempt, Findings, Mode};
use super::demand::Demand;
use super::engine::{ClusterQueueState, Engine, Promise, WorkloadId};
use super::ledger::Charge;
use super::line::{Need, Rank, Shape};
use super::tree::{Fr, NodeId, Tree, View};
use super::victims::{Search, Victim};
use crate::api::kueue::Admission;
use crate::api::kueue::cluster_queue::{ReclaimPolicy, WithinClusterQueuePolicy};

/// What a workload would get, if the turn were its.
#[derive(Debug, Clone)]
struct Candidate {
    rank: Rank,
    level: u32,
    usage: Charge,
    gets: Gets,
    holds: Holds,
    /// How many turns were over when this was decided.
    as_of: u32,
}

/// How long a candidate comes no earlier in the order of turns than was found, while others take theirs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holds {
    /// Until room is made for somebody.
    Lastingly,
    /// And no longer than what it asks for is free: who comes next in its ClusterQueue may borrow less, and come earlier.
    WhileFree,
    /// Until the next turn.
    Briefly,
}

#[derive(Debug, Clone)]
enum Gets {
    /// It is admitted.
    Quota(Admission),
    /// Room is made for it already, by these evictions and those that go on.
    Room(Vec<Victim>),
    /// Nothing, but what its ClusterQueue is entitled to is kept back: it is the first of a strict one.
    KeptBack,
}

/// What came of trying a workload.
enum Verdict {
    Gets { assignment: Assignment, victims: Vec<Victim>, admission: Option<Admission> },
    Nothing { needs: Vec<Need>, hopeless: Option<Assignment> },
}

/// The order of turns: what a ClusterQueue is entitled to before what it borrows; then ClusterQueues by turns, so that none is
/// served twice before another once.
type Turn = (u32, u32, Rank, NodeId);

/// The turns of one tree in one cycle.
#[derive(Default)]
struct Table {
    queues: Vec<NodeId>,
    candidates: BTreeMap<NodeId, Candidate>,
    order: BTreeSet<Turn>,
    taken: BTreeMap<NodeId, u32>,
    /// Strict ClusterQueues whose first has had its turn and still waits.
    done: BTreeSet<NodeId>,
    /// ClusterQueues that are looked at again after every turn: what others get may help them.
    watchful: BTreeSet<NodeId>,
    /// ClusterQueues that are looked at again once what their candidate asks for is not free any more.
    unsure: BTreeSet<NodeId>,
    /// How many turns are over.
    turns: u32,
}

impl Table {
    fn turn(&self, node: NodeId, candidate: &Candidate) -> Turn {
        (candidate.level, self.taken.get(&node).copied().unwrap_or(0), candidate.rank.clone(), node)
    }

    fn set(&mut self, node: NodeId, candidate: Option<Candidate>, restless: bool) {
        let holds = candidate.as_ref().map_or(Holds::Lastingly, |candidate| candidate.holds);
        self.watchful.remove(&node);
        self.unsure.remove(&node);
        if restless || holds == Holds::Briefly {
            self.watchful.insert(node);
        } else if holds == Holds::WhileFree {
            self.unsure.insert(node);
        }
        if let Some(before) = self.candidates.remove(&node) {
            let turn = self.turn(node, &before);
            self.order.remove(&turn);
        }
        if let Some(mut candidate) = candidate {
            candidate.as_of = self.turns;
            self.order.insert(self.turn(node, &candidate));
            self.candidates.insert(node, candidate);
        }
    }
}

impl Engine {
    /// Lets a tree take turns until nobody in it can get anything.
    pub(super) fn take_turns(&mut self, root: NodeId, admitted: &mut Vec<WorkloadId>) {
        self.undo_promises(root);
        let mut table = Table { queues: self.waiting_queues(root), ..Table::default() };
        for node in table.queues.clone() {
            self.look_again(node, &mut table);
        }
        while let Some(node) = self.next_turn(root, &table) {
            let Some(candidate) = table.candidates.get(&node) else { break };
            if candidate.as_of != table.turns {
                self.look_again(node, &mut table);
                continue;
            }
            let candidate = candidate.clone();
            if self.admission_blocked() {
                break;
            }
            self.take_turn(root, node, candidate, &mut table, admitted);
        }
        self.line_up_again(root);
    }

    fn waiting_queues(&self, root: NodeId) -> Vec<NodeId> {
        let waits = |node: &NodeId| self.cluster_queue(*node).is_some_and(|state| !state.line.is_empty());
        self.tree.cluster_queues_below(root).into_iter().filter(waits).collect()
    }

    fn next_turn(&mut self, root: NodeId, table: &Table) -> Option<NodeId> {
        if self.settings.fair_sharing.is_some() {
            return winner(&mut self.tree, root, table);
        }
        table.order.first().map(|(.., node)| *node)
    }

    fn take_turn(
        &mut self,
        root: NodeId,
        node: NodeId,
        candidate: Candidate,
        table: &mut Table,
        admitted: &mut Vec<WorkloadId>,
    ) {
        let workload = candidate.rank.workload;
        let strict = self.cluster_queue(node).and_then(|state| state.quota.as_ref()).is_some_and(|quota| quota.strict);
        let mut room_made = false;
        match candidate.gets {
            Gets::Quota(admission) => {
                self.assume(workload, admission);
                room_made = self.drop_unasked(workload, admitted);
                admitted.push(workload);
            }
            Gets::Room(victims) => {
                room_made = !victims.is_empty();
                for victim in victims {
                    self.preempt(&victim, workload, node);
                }
                let place = self.workloads.get(workload).and_then(|slot| slot.booked.place.clone());
                self.promise(root, node, workload, place, candidate.usage);
                table.done.extend(strict.then_some(node));
            }
            Gets::KeptBack => {
                self.promise(root, node, workload, None, candidate.usage);
                table.done.insert(node);
            }
        }
        table.set(node, None, false);
        *table.taken.entry(node).or_default() += 1;
        table.turns += 1;
        let again = if room_made { table.queues.clone() } else { self.outdated(table) };
        for other in again.into_iter().filter(|other| *other != node).chain([node]) {
            self.look_again(other, table);
        }
    }

    /// A slice that was admitted in this cycle and is replaced already never gets its admission: its successor is not
    /// charged for it. Returns whether there was one.
    fn drop_unasked(&mut self, successor: WorkloadId, admitted: &[WorkloadId]) -> bool {
        let Some(slot) = self.workloads.get(successor).filter(|slot| slot.entry.replaces.is_some()) else {
            return false;
        };
        let replaced = self.replaced(slot).into_iter().filter_map(|before| self.workloads.id(&before.entry.key));
        let unasked: Vec<WorkloadId> = replaced.filter(|id| admitted.contains(id)).collect();
        for id in &unasked {
            if let Some(slot) = self.workloads.get_mut(*id) {
                slot.assumed = None;
            }
        }
        if !unasked.is_empty() {
            self.settle_family(successor);
        }
        !unasked.is_empty()
    }

    /// The ClusterQueues that may come earlier in the order of turns after what was just given out.
    fn outdated(&self, table: &Table) -> Vec<NodeId> {
        let taken = |node: &&NodeId| {
            table.candidates.get(*node).is_some_and(|candidate| {
                let views: &[View] = if matches!(candidate.gets, Gets::Quota(_)) {
                    &[View::Planned, View::Actual]
                } else {
                    &[View::Planned]
                };
                let free = |fr: Fr| views.iter().map(move |view| self.tree.available(**node, fr, *view, 0)).min();
                candidate.usage.iter().any(|(fr, amount)| free(*fr).is_some_and(|free| free < *amount))
            })
        };
        table.watchful.iter().chain(table.unsure.iter().filter(taken)).copied().collect()
    }

    /// Finds out anew what a ClusterQueue would do with a turn.
    fn look_again(&mut self, node: NodeId, table: &mut Table) {
        if let Some(state) = self.cluster_queue_mut(node) {
            state.line.retry_restless();
        }
        let candidate = if table.done.contains(&node) { None } else { self.candidate(node) };
        let restless = self.cluster_queue(node).is_some_and(|state| state.line.is_restless());
        table.set(node, candidate, restless);
    }

    /// The first workload of a ClusterQueue that can get something, and what.
    fn candidate(&mut self, node: NodeId) -> Option<Candidate> {
        loop {
            let state = self.cluster_queue(node)?;
            let quota = state.quota.as_ref()?;
            let (strict, rules) = (quota.strict, quota.preemption);
            let one_choice = quota.groups.iter().all(|group| group.flavors.len() == 1);
            let rank = if strict {
                state.line.head()
            } else {
                state.line.next(|fr, priority| self.reach(state, node, fr, priority))
            };
            let rank = rank?.clone();
            match self.try_workload(rank.workload, node)? {
                Verdict::Gets { mut assignment, victims, admission } => {
                    let follows = self.leave_to_predecessor(rank.workload, node, &mut assignment.usage);
                    let level = assignment.means.level;
                    let fits = assignment.means.mode == Mode::Fit;
                    let first_by_level = level == 0 && self.settings.fair_sharing.is_none();
                    let holds = match rules.never() || (fits && (level == 0 || one_choice)) {
                        false => Holds::Briefly,
                        true if first_by_level => Holds::Lastingly,
                        // What is free beside its predecessor is less than what is free for it.
                        true if follows => Holds::Briefly,
                        true => Holds::WhileFree,
                    };
                    return Some(Candidate {
                        rank,
                        level,
                        usage: assignment.usage,
                        holds,
                        gets: admission.map_or(Gets::Room(victims), Gets::Quota),
                        as_of: 0,
                    });
                }
                Verdict::Nothing { needs, hopeless } if strict => {
                    let Some(mut assignment) = hopeless.filter(|_| rules.reclaim != ReclaimPolicy::Any) else {
                        self.set_aside(node, &rank, needs);
                        return None;
                    };
                    self.leave_to_predecessor(rank.workload, node, &mut assignment.usage);
                    let usage = self.kept_back(node, &assignment);
                    return Some(Candidate {
                        rank,
                        level: assignment.means.level,
                        usage,
                        gets: Gets::KeptBack,
                        holds: Holds::Briefly,
                        as_of: 0,
                    });
                }
                Verdict::Nothing { needs, .. } => self.set_aside(node, &rank, needs),
            }
        }
    }

    /// Takes off what the predecessor holds already: only the rest is new. Returns whether there is a predecessor.
    fn leave_to_predecessor(&self, workload: WorkloadId, node: NodeId, usage: &mut Charge) -> bool {
        let predecessor = self.workloads.get(workload).and_then(|slot| self.predecessor(slot, node));
        for (fr, held) in predecessor.iter().flat_map(|before| before.booked.charge.iter()) {
            if let Some(amount) = usage.get_mut(fr) {
                *amount = (*amount - held).max(0);
            }
        }
        usage.retain(|_, amount| *amount > 0);
        predecessor.is_some()
    }

    /// Sets a class aside until what it needs may be within its reach; if that is so already, until anything changes.
    fn set_aside(&mut self, node: NodeId, rank: &Rank, mut needs: Vec<Need>) {
        let Some(state) = self.cluster_queue(node) else { return };
        let within = |need: &Need| self.reach(state, node, need.fr, rank.priority.0) >= need.amount;
        if needs.iter().any(within) {
            needs.clear();
        }
        let Some(place) = self.workloads.get(rank.workload).and_then(|slot| slot.booked.place.clone()) else { return };
        if place.0.alone.is_some() {
            needs.clear();
        }
        let mut least: BTreeMap<Fr, i128> = BTreeMap::new();
        for need in needs {
            let amount = least.entry(need.fr).or_insert(need.amount);
            *amount = need.amount.min(*amount);
        }
        let needs = least.into_iter().map(|(fr, amount)| Need { fr, amount }).collect();
        if let Some(state) = self.cluster_queue_mut(node) {
            state.line.set_aside(&place.0, needs);
        }
    }

    /// The most that a workload of this priority could get of a resource, by any means. It may be less, never more.
    fn reach(&self, state: &ClusterQueueState, node: NodeId, fr: Fr, priority: i32) -> i128 {
        let tree = &self.tree;
        let free = tree.available(node, fr, View::Planned, 0);
        let Some(rules) = state.quota.as_ref().map(|quota| quota.preemption) else { return free };
        let own = match rules.within {
            WithinClusterQueuePolicy::Never => 0,
            WithinClusterQueuePolicy::LowerPriority => state.ledger.held_up_to(fr, priority.saturating_sub(1)),
            WithinClusterQueuePolicy::LowerOrNewerEqualPriority => state.ledger.held_up_to(fr, priority),
        };
        if rules.reclaim == ReclaimPolicy::Never {
            return free + own;
        }
        let used = tree.used(node, fr, View::Planned);
        let flat = tree.parent(node).is_none_or(|parent| tree.parent(parent).is_none());
        if flat && !rules.while_borrowing && self.settings.fair_sharing.is_none() {
            return (free + own).max(tree.nominal(node, fr) - used + own);
        }
        (free + own).max(tree.potential(node, fr) - used + own)
    }

    fn try_workload(&mut self, id: WorkloadId, node: NodeId) -> Option<Verdict> {
        self.decisions += 1;
        let predecessor = self.predecessor(self.workloads.get(id)?, node).map(|before| before.entry.key.clone());
        let predecessor = predecessor.and_then(|key| self.workloads.id(&key));
        let Self { tree, cluster_queues, workloads, flavors, settings, .. } = self;
        let slot = workloads.get(id)?;
        let state = cluster_queues.get(node)?;
        let before = predecessor.and_then(|id| Some((id, workloads.get(id)?)));
        let quota = state.quota.as_ref()?;
        let demand = slot.entry.demand.as_ref().ok()?;
        let charged: Option<(WorkloadId, &Charge)> = before.map(|(id, before)| (id, before.booked.charge.as_ref()));
        let attempt = Attempt {
            cluster_queue: &state.name,
            node,
            quota,
            flavors,
            undeclared: settings.resources.undeclared,
            fair_sharing: settings.fair_sharing.is_some(),
            predecessor: before.and_then(|(_, before)| super::explain::predecessor_of(before)),
            kept_back: None,
            demand,
        };
        let mut search = Search {
            tree,
            queues: cluster_queues,
            fair_sharing: settings.fair_sharing.as_ref(),
            node,
            rules: quota.preemption,
            priority: slot.entry.priority,
            since: slot.entry.since,
            predecessor: charged,
        };
        Some(tried(&attempt, &mut search, demand))
    }

    /// What is kept for the first of a strict ClusterQueue that can't get it yet: no more than the ClusterQueue may use
    /// (kueue v0.19.2 `pkg/scheduler/scheduler.go`, `quotaResourcesToReserve`).
    fn kept_back(&self, node: NodeId, assignment: &Assignment) -> Charge {
        let keep = assignment.usage.iter().map(|(fr, amount)| {
            let (nominal, used) = (self.tree.nominal(node, *fr), self.tree.used(node, *fr, View::Planned));
            let kept = match (assignment.means.level, self.tree.borrowing_limit(node, *fr)) {
                (0, _) => (*amount).min(nominal - used).max(0),
                (_, None) => *amount,
                (_, Some(limit)) => (*amount).min(nominal + limit - used),
            };
            (*fr, kept)
        });
        keep.collect()
    }

    fn preempt(&mut self, victim: &Victim, by: WorkloadId, node: NodeId) {
        let Some(preemptor) = self.workloads.get(by) else { return };
        let preemption = Preemption {
            by: preemptor.entry.key.clone(),
            by_uid: preemptor.entry.uid.to_string(),
            by_job_uid: preemptor.entry.job_uid.clone(),
            right: victim.right,
            preemptor_path: self.tree.path(node),
            victim_path: self.tree.path(victim.cluster_queue),
        };
        self.decisions += 1;
        let id = victim.rank.workload;
        if let Some(slot) = self.workloads.get_mut(id) {
            slot.preempted = Some(Box::new(preemption));
            self.settle_family(id);
        }
    }

    /// Keeps quota for who takes a turn and has to wait; its place in line is given back at the end of the cycle.
    fn promise(
        &mut self,
        root: NodeId,
        node: NodeId,
        workload: WorkloadId,
        place: Option<(Shape, Rank)>,
        usage: Charge,
    ) {
        self.tree.enter_new_state();
        for (fr, amount) in &usage {
            self.tree.add(node, *fr, *amount, View::Planned);
        }
        if let (Some((shape, rank)), Some(state)) = (&place, self.cluster_queue_mut(node)) {
            state.line.remove(shape, rank);
        }
        self.promises.entry(root).or_default().push(Promise { node, usage, workload, place });
    }

    fn undo_promises(&mut self, root: NodeId) {
        for promise in self.promises.remove(&root).unwrap_or_default() {
            self.tree.enter_new_state();
            for (fr, amount) in &promise.usage {
                self.tree.add(promise.node, *fr, -amount, View::Planned);
            }
            self.touched.workloads.insert(promise.workload);
        }
    }

    /// Takes back all promises: the tree that they were made in is no more.
    pub(super) fn undo_all_promises(&mut self) {
        for root in self.promises.keys().copied().collect::<Vec<_>>() {
            self.undo_promises(root);
        }
    }

    fn line_up_again(&mut self, root: NodeId) {
        let promises = self.promises.get(&root).cloned().unwrap_or_default();
        for promise in promises {
            let Some((shape, rank)) = promise.place else { continue };
            self.touched.workloads.insert(rank.workload);
            // A later turn may have been its successor's: then it waits no more.
            let slot = self.workloads.get(rank.workload);
            let in_line = slot.and_then(|slot| slot.booked.place.as_ref());
            if in_line.is_none_or(|(booked, at)| (booked, at) != (&shape, &rank)) {
                continue;
            }
            if let Some(state) = self.cluster_queue_mut(promise.node) {
                state.line.insert(&shape, rank);
            }
        }
    }

    pub(super) fn cluster_queue(&self, node: NodeId) -> Option<&ClusterQueueState> {
        self.cluster_queues.get(node)
    }

    fn cluster_queue_mut(&mut self, node: NodeId) -> Option<&mut ClusterQueueState> {
        self.cluster_queues.get_mut(node)
    }
}

/// Tries a workload whole; and, if that gets nothing and it may be smaller, as large as it can be.
fn tried(attempt: &Attempt<'_>, search: &mut Search<'_>, demand: &Demand) -> Verdict {
    let whole: Vec<i32> = demand.pod_sets.iter().map(|set| set.count).collect();
    let verdict = tried_with(attempt, search, &whole);
    let most = demand.pod_sets.iter().map(|set| set.spare()).sum::<i32>();
    match verdict {
        Verdict::Nothing { hopeless, .. } if most > 0 => {
            let reduced = |by: i32| -> Vec<i32> { demand.pod_sets.iter().map(|set| set.reduced(by, most)).collect() };
            let (mut low, mut high, mut best) = (1, most, None);
            while low <= high {
                let by = low + (high - low) / 2;
                match tried_with(attempt, search, &reduced(by)) {
                    Verdict::Nothing { .. } => low = by + 1,
                    found => (high, best) = (by - 1, Some(found)),
                }
            }
            best.unwrap_or(Verdict::Nothing { needs: Vec::new(), hopeless })
        }
        verdict => verdict,
    }
}

fn tried_with(attempt: &Attempt<'_>, search: &mut Search<'_>, counts: &[i32]) -> Verdict {
    let mut found = Findings::default();
    let assignment = attempt.assign(counts, search, &mut found);
    let needs = found.needs;
    let Some(assignment) = assignment else { return Verdict::Nothing { needs, hopeless: None } };
    match assignment.means.mode {
        Mode::Fit => {
            let admission = Some(attempt.admission(&assignment));
            Verdict::Gets { assignment, victims: Vec::new(), admission }
        }
        Mode::Deferred => Verdict::Gets { assignment, victims: Vec::new(), admission: None },
        Mode::Preempt | Mode::Reclaim => {
            let victims = search.victims(&assignment.usage, &assignment.short);
            if victims.is_empty() {
                Verdict::Nothing { needs, hopeless: Some(assignment) }
            } else {
                Verdict::Gets { assignment, victims, admission: None }
            }
        }
        Mode::NoCandidates => Verdict::Nothing { needs, hopeless: Some(assignment) },
        Mode::NoFit => Verdict::Nothing { needs, hopeless: None },
    }
}

/// The ClusterQueue below a node whose turn it is: the winner among each Cohort's children, from the leaves up (kueue
/// v0.19.2 `pkg/scheduler/fair_sharing_iterator.go`).
fn winner(tree: &mut Tree, node: NodeId, table: &Table) -> Option<NodeId> {
    if tree.is_cluster_queue(node) {
        return table.candidates.contains_key(&node).then_some(node);
    }
    let mut best: Option<(NodeId, NodeId)> = None;
    for child in tree.children(node).to_vec() {
        let Some(candidate) = winner(tree, child, table) else { continue };
        if best.is_none_or(|best| comes_before(tree, table, (child, candidate), best) == Ordering::Less) {
            best = Some((child, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

/// Compares two children of a Cohort by what they would use with their candidates.
fn comes_before(tree: &mut Tree, table: &Table, a: (NodeId, NodeId), b: (NodeId, NodeId)) -> Ordering {
    let mut side = |(child, candidate): (NodeId, NodeId)| {
        let usage = table.candidates.get(&candidate).map(|candidate| &candidate.usage);
        let asked: Vec<(Fr, i128)> = usage.into_iter().flatten().map(|(fr, amount)| (*fr, *amount)).collect();
        asked.iter().for_each(|(fr, amount)| tree.add(candidate, *fr, *amount, View::Planned));
        let verdict = (tree.borrows_any(child, &asked, View::Planned), tree.share(child));
        asked.iter().for_each(|(fr, amount)| tree.add(candidate, *fr, -amount, View::Planned));
        verdict
    };
    let ((a_borrows, a_share), (b_borrows, b_share)) = (side(a), side(b));
    let rank = |candidate: NodeId| table.candidates.get(&candidate).map(|candidate| &candidate.rank);
    a_borrows.cmp(&b_borrows).then(a_share.compare(b_share)).then_with(|| rank(a.1).cmp(&rank(b.1)))
}
