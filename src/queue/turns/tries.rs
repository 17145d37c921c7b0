//! Nominates a workload of a ClusterQueue and assigns flavors to it.

use super::table::{Candidate, Gets, Holds};
use crate::assign::{Assignment, Attempt, Findings};
use crate::engine::{Engine, WorkloadId};
use crate::explain::predecessor_of;
use crate::ledger::Charge;
use crate::line::{Need, Rank};
use crate::means::Mode;
use crate::slot::Room;
use crate::tree::{NodeId, View};
use crate::victims::{Search, Victim};
use sluice_api::kueue::Admission;
use sluice_api::kueue::cluster_queue::ReclaimPolicy;

/// Result of an attempt to assign flavors.
enum Verdict {
    /// Fits now (`admission` is set), or after these and earlier evictions.
    Gets { assignment: Assignment, victims: Vec<Victim>, admission: Option<Admission> },
    /// Does not fit. `without_candidates` is an assignment that would need preemption without
    /// candidates.
    Nothing { needs: Vec<Need>, hopeless: Option<Assignment> },
}

impl Engine {
    /// Nominates the first workload of a ClusterQueue that can be admitted or get a reservation.
    pub(super) fn candidate(&mut self, node: NodeId) -> Option<Candidate> {
        loop {
            let state = self.cluster_queue(node)?;
            let quota = state.quota.as_ref()?;
            let (strict, rules) = (quota.strict, quota.preemption);
            let one_choice = quota.groups.iter().all(|group| group.flavors.len() == 1);
            let rank = self.next_to_try(node)?.clone();
            let whole = self.comes_whole(&rank);
            let preempts = self.workloads.get(rank.workload).is_some_and(|slot| slot.preempts.is_some());
            match self.try_workload(rank.workload, node)? {
                Verdict::Gets { mut assignment, victims, admission } => {
                    let follows = self.leave_to_predecessor(rank.workload, node, &mut assignment.usage);
                    let level = assignment.means.level;
                    let fits = assignment.means.mode == Mode::Fit;
                    // A nomination that borrows or preempts may improve when other workloads take
                    // their turns; one within the nominal quota cannot.
                    let holds = match rules.never() || (fits && (level == 0 || one_choice)) {
                        _ if fits && level == 0 => Holds::Lastingly,
                        false => Holds::Briefly,
                        // Less is available in addition to its predecessor than for the workload
                        // itself.
                        true if follows => Holds::Briefly,
                        true => Holds::WhileFree,
                    };
                    return Some(Candidate {
                        rank,
                        level,
                        room: self.room_for(node, &assignment),
                        usage: assignment.usage,
                        preempts,
                        holds,
                        steady: one_choice && whole && !follows,
                        gets: admission.map_or(Gets::Room(victims), Gets::Quota),
                        as_of: 0,
                    });
                }
                // With StrictFIFO, nothing behind the head is tried. Unless the ClusterQueue can
                // reclaim its quota from workloads of any priority, capacity is reserved for the
                // head now.
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
                        preempts,
                        room: self.room_for(node, &assignment),
                        gets: Gets::KeptBack,
                        holds: Holds::Briefly,
                        steady: false,
                        as_of: 0,
                    });
                }
                Verdict::Nothing { needs, .. } => self.set_aside(node, &rank, needs),
            }
        }
    }

    /// Returns the first workload of a ClusterQueue that may be admissible.
    pub(super) fn next_to_try(&self, node: NodeId) -> Option<&Rank> {
        let state = self.cluster_queue(node)?;
        if state.quota.as_ref()?.strict {
            return state.line.head();
        }
        state.line.next(|fr, priority| self.reach(state, node, fr, priority))
    }

    /// Returns the counts and flavors to reserve for an assignment.
    fn room_for(&self, node: NodeId, assignment: &Assignment) -> Room {
        let quota = self.cluster_queue(node).and_then(|state| state.quota.as_ref());
        quota.map(|quota| assignment.room(quota)).unwrap_or_default()
    }

    /// Reports whether a workload is admitted as a whole or not at all.
    fn comes_whole(&self, rank: &Rank) -> bool {
        let demand = self.workloads.get(rank.workload).and_then(|slot| slot.entry.demand.as_ref().ok());
        demand.is_some_and(|demand| demand.pod_sets.iter().all(|set| set.spare(set.count) == 0))
    }

    /// Subtracts the usage of the predecessor, which changes hands. Returns whether there is a
    /// predecessor.
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

    /// Assigns flavors to a workload, with preemption. `None` if the workload is not known.
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
            predecessor: before.and_then(|(_, before)| predecessor_of(before)),
            room: None,
            kept_back: None,
            demand,
        };
        let mut search = Search {
            tree,
            queues: cluster_queues,
            workloads,
            fair_sharing: settings.fair_sharing.as_ref(),
            node,
            rules: quota.preemption,
            priority: slot.entry.priority,
            since: slot.entry.since,
            predecessor: charged,
        };
        Some(tried(attempt, &mut search, slot.preempts.as_ref()))
    }

    /// Returns the capacity to reserve for the head of a StrictFIFO ClusterQueue that cannot be
    /// admitted: no more than the ClusterQueue may use (kueue v0.19.2 `pkg/scheduler/scheduler.go`,
    /// `quotaResourcesToReserve`).
    fn kept_back(&self, node: NodeId, assignment: &Assignment) -> Charge {
        let keep = assignment.usage.iter().map(|(fr, amount)| {
            let (nominal, used) = (self.tree.nominal(node, *fr), self.tree.used(node, *fr, View::Planned));
            let kept = match (assignment.means.level, self.tree.borrowing_limit(node, *fr)) {
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
fn tried<'a>(mut attempt: Attempt<'a>, search: &mut Search<'_>, room_made: Option<&'a Room>) -> Verdict {
    if let Some(room) = room_made {
        attempt.room = room_made;
        let verdict = as_large_as_can_be(&attempt, search, &room.counts);
        if matches!(verdict, Verdict::Gets { .. }) {
            return verdict;
        }
        attempt.room = None;
    }
    let asked: Vec<i32> = attempt.demand.pod_sets.iter().map(|set| set.count).collect();
    as_large_as_can_be(&attempt, search, &asked)
}

/// Tries the whole workload; if that is not admissible and the workload permits partial admission,
/// the largest admissible part.
fn as_large_as_can_be(attempt: &Attempt<'_>, search: &mut Search<'_>, whole: &[i32]) -> Verdict {
    let verdict = tried_with(attempt, search, whole);
    let (smaller, hopeless) = match (verdict, &attempt.demand.ladder) {
        (Verdict::Nothing { hopeless, .. }, Some(ladder)) => {
            let gets = |counts: &[i32]| !matches!(tried_with(attempt, search, counts), Verdict::Nothing { .. });
            let most = ladder.climb(whole, gets);
            (most.map(|counts| tried_with(attempt, search, &counts)), hopeless)
        }
        (Verdict::Nothing { hopeless, .. }, None) if attempt.demand.spare(whole) > 0 => {
            (reduced(attempt, search, whole), hopeless)
        }
        (verdict, _) => return verdict,
    };
    smaller.unwrap_or(Verdict::Nothing { needs: Vec::new(), hopeless })
}

/// Tries the workload with as few pods removed as possible.
fn reduced(attempt: &Attempt<'_>, search: &mut Search<'_>, whole: &[i32]) -> Option<Verdict> {
    let most = attempt.demand.spare(whole);
    let (mut low, mut high, mut best) = (1, most, None);
    while low <= high {
        let by = low + (high - low) / 2;
        match tried_with(attempt, search, &attempt.demand.reduced(whole, by, most)) {
            Verdict::Nothing { .. } => low = by + 1,
            found => (high, best) = (by - 1, Some(found)),
        }
    }
    best
}

/// Assigns flavors for the given pod counts and selects the preemption targets.
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
