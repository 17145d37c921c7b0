//! One cycle: a sequence of turns, each of which goes to the first nomination of the current state.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet};

use super::flavor_assignment::{Assignment, AssignmentInput, PreemptionMode};
use super::preemption::{self, Target};
use super::quota_tree::{FlavorResource, Node, QuotaTree, Usage, WorkloadUsage};
use super::snapshot::{AdmittedWorkload, GrowthPlan, OracleWorkload, Snapshot, elementwise_max, queues_by_root};
use super::{Admitted, Decision};
use crate::partial_preemption::PreemptionScope;
use jiff::Timestamp;
use sluice_api::kueue::cluster_queue::ReclaimPolicy;
use sluice_api::kueue::{Admission, PodSetAssignment};
use sluice_plan::ObjectKey;

/// State of one cycle.
#[derive(Debug, Clone)]
pub(super) struct CycleState<'s> {
    snapshot: &'s Snapshot,
    holders: Vec<AdmittedWorkload>,
    waiting: Vec<OracleWorkload>,
    reservations: Vec<WorkloadUsage>,
    turns: BTreeMap<String, u32>,
    /// Strict ClusterQueues whose head stays pending.
    blocked_queues: BTreeSet<String>,
}

/// Outcome of a nomination.
#[derive(Debug, Clone)]
enum NominationOutcome {
    Admit(Assignment),
    Preempt(Vec<Target>),
    Reserve,
}

/// Nominated workload of a ClusterQueue.
#[derive(Debug, Clone)]
struct Nomination {
    job: OracleWorkload,
    borrowing_level: u32,
    /// Planned usage that its turn adds.
    usage: Usage,
    outcome: NominationOutcome,
}

/// Returns the decisions of one cycle.
pub(crate) fn run_cycle(snapshot: &Snapshot) -> Decision {
    let mut decision = Decision::default();
    let mut state = CycleState {
        snapshot,
        holders: snapshot.admitted.clone(),
        waiting: snapshot.pending.clone(),
        reservations: Vec::new(),
        turns: BTreeMap::new(),
        blocked_queues: BTreeSet::new(),
    };
    for (root, queues) in queues_by_root(snapshot) {
        loop {
            let nominations = queues.iter().filter_map(|queue| Some((queue.clone(), state.nominate(queue)?)));
            let nominations: BTreeMap<String, Nomination> = nominations.collect();
            let next = match snapshot.fair_sharing_strategies {
                Some(_) => state.tournament_winner(&root, &nominations),
                None => state.next_classical(&nominations),
            };
            let Some(queue) = next else { break };
            assert!(state.turns.values().sum::<u32>() < 1000, "a cycle does not terminate");
            state.take_turn(&queue, &nominations[&queue], &mut decision);
        }
    }
    decision
}

fn queue_order(job: &OracleWorkload) -> (Reverse<i32>, Timestamp, String) {
    (Reverse(job.priority), job.created, job.uid.clone())
}

impl<'s> CycleState<'s> {
    fn quota_tree(&self, planned: bool) -> QuotaTree<'s> {
        let held = self.holders.iter().flat_map(|holder| holder.workload_usages(planned));
        let reservations = self.reservations.iter().filter(|_| planned).cloned();
        QuotaTree { tree: &self.snapshot.tree, usages: held.chain(reservations).collect() }
    }

    /// Returns the admitted slice whose quota a workload takes over.
    fn predecessor(&self, job: &OracleWorkload) -> Option<AdmittedWorkload> {
        let mut claimed = job.replaces.clone();
        while let Some(key) = claimed {
            if let Some(holder) = self.holders.iter().find(|holder| holder.job.key == key) {
                return (holder.job.queue == job.queue).then(|| holder.clone());
            }
            claimed = self.waiting.iter().find(|job| job.key == key)?.replaces.clone();
        }
        None
    }

    fn nominate(&self, queue: &str) -> Option<Nomination> {
        let rules = self.snapshot.queue(queue);
        if self.blocked_queues.contains(queue) {
            return None;
        }
        let mut queued: Vec<&OracleWorkload> = self.queued().filter(|job| job.queue == queue).collect();
        queued.sort_by_key(|job| (Reverse(self.has_reserved_assignment(job)), queue_order(job)));
        queued.truncate(if rules.strict { 1 } else { queued.len() });
        queued.into_iter().find_map(|job| self.nominate_workload(job))
    }

    fn queued(&self) -> impl Iterator<Item = &OracleWorkload> {
        let has_reservation =
            |job: &OracleWorkload| self.reservations.iter().any(|reservation| reservation.workload == job.key);
        let predecessor_is_releasing =
            |job: &OracleWorkload| self.predecessor(job).is_some_and(|before| before.releasing_up_to.is_some());
        self.waiting.iter().filter(move |job| !has_reservation(job) && !predecessor_is_releasing(job))
    }

    /// Reports whether a job precedes its queue because others were evicted for it.
    fn has_reserved_assignment(&self, job: &OracleWorkload) -> bool {
        job.reserved_assignment.is_some() && !self.snapshot.queue(&job.queue).strict
    }

    fn nominate_workload(&self, job: &OracleWorkload) -> Option<Nomination> {
        let requested: Vec<i32> = job.pod_sets.iter().map(|set| set.count).collect();
        let in_reservation =
            job.reserved_assignment.as_ref().and_then(|room| self.nominate_up_to(job, &room.counts, true));
        let gets = |found: &Nomination| !matches!(found.outcome, NominationOutcome::Reserve);
        let nomination = in_reservation.filter(gets).or_else(|| self.nominate_up_to(job, &requested, false));
        let rules = self.snapshot.queue(&job.queue);
        let reserves = rules.strict && rules.reclaim_within_cohort != ReclaimPolicy::Any;
        nomination.filter(|found| reserves || gets(found))
    }

    /// Nominates a job with these pod counts, or with the most that fit; in its reserved assignment
    /// or anywhere.
    fn nominate_up_to(&self, job: &OracleWorkload, whole: &[i32], in_reservation: bool) -> Option<Nomination> {
        let nomination = self.try_assign(job, whole, in_reservation);
        let gets = |found: &Nomination| !matches!(found.outcome, NominationOutcome::Reserve);
        if nomination.as_ref().is_some_and(gets) {
            return nomination;
        }
        let smaller = |counts: &[i32]| self.try_assign(job, counts, in_reservation).filter(gets);
        let found = match &job.growth_plan {
            Some(growth_plan) => largest_fitting(growth_plan, whole, smaller),
            None => reduced_counts(job, whole).into_iter().find_map(|counts| smaller(&counts)),
        };
        found.or(nomination)
    }

    fn try_assign(&self, job: &OracleWorkload, counts: &[i32], in_reservation: bool) -> Option<Nomination> {
        let predecessor = self.predecessor(job);
        let released: Vec<(ObjectKey, PreemptionScope)> =
            predecessor.iter().map(|before| (before.job.key.clone(), PreemptionScope::Whole)).collect();
        let may_be_preempted = |holder: &&AdmittedWorkload| {
            let successor = predecessor.as_ref().is_some_and(|before| before.job.key == holder.job.key);
            holder.observed && holder.releasing_up_to != Some(PreemptionScope::Whole) && !successor
        };
        let ask = AssignmentInput {
            snapshot: self.snapshot,
            job,
            queue: self.snapshot.queue(&job.queue),
            actual: self.quota_tree(false).without(&released),
            planned: self.quota_tree(true).without(&released),
            candidates: self.holders.iter().filter(may_be_preempted).cloned().collect(),
            predecessor: predecessor.clone(),
            reserved_assignment: job.reserved_assignment.as_ref().filter(|_| in_reservation),
            pending: self.queued().map(|job| (job.clone(), self.predecessor(job))).collect(),
        };
        let assignment = ask.assign(counts)?;
        let before = predecessor.map(|before| before.usage).unwrap_or_default();
        let both = elementwise_max(&assignment.usage, &before);
        let more = both.iter().map(|(fr, amount)| (fr.clone(), amount - before.get(fr).copied().unwrap_or(0)));
        let more: Usage = more.collect();
        let (level, mode) = (assignment.borrowing_level, assignment.mode);
        let gets = match mode {
            PreemptionMode::NoFit => return None,
            PreemptionMode::NoPreemptionCandidates => NominationOutcome::Reserve,
            PreemptionMode::Preempt | PreemptionMode::Reclaim => {
                match preemption::find_targets(&ask, &assignment.usage, &assignment.needs_preemption) {
                    targets if targets.is_empty() => NominationOutcome::Reserve,
                    targets => NominationOutcome::Preempt(targets),
                }
            }
            PreemptionMode::FitAfterEvictions => NominationOutcome::Preempt(Vec::new()),
            PreemptionMode::Fit => NominationOutcome::Admit(assignment),
        };
        let usage =
            if matches!(gets, NominationOutcome::Reserve) { self.reserved_usage(&ask, level, &more) } else { more };
        Some(Nomination { job: job.clone(), borrowing_level: level, usage, outcome: gets })
    }

    /// Returns the usage that a pending head reserves: kueue v0.19.2 `pkg/scheduler/scheduler.go`,
    /// `quotaResourcesToReserve`.
    fn reserved_usage(&self, ask: &AssignmentInput<'_>, level: u32, usage: &Usage) -> Usage {
        let (tree, node) = (self.quota_tree(true), ask.queue.node());
        let reserved = |fr: &FlavorResource, amount: i128| {
            let (limits, used) = (tree.limits(&node, fr), tree.usage(&node, fr));
            match limits.borrowing {
                _ if level == 0 => amount.min(limits.nominal - used),
                None => amount,
                Some(borrowing) => amount.min(limits.nominal + borrowing - used),
            }
        };
        usage.iter().map(|(fr, amount)| (fr.clone(), reserved(fr, *amount).max(0))).collect()
    }

    fn next_classical(&self, candidates: &BTreeMap<String, Nomination>) -> Option<String> {
        let turns = |queue: &str| self.turns.get(queue).copied().unwrap_or(0);
        let order = |(queue, candidate): &(&String, &Nomination)| {
            (
                Reverse(candidate.job.reserved_assignment.is_some()),
                candidate.borrowing_level,
                turns(queue),
                queue_order(&candidate.job),
            )
        };
        candidates.iter().min_by_key(order).map(|(queue, _)| queue.clone())
    }

    /// Returns the winner of Kueue's tournament: the first child of each Cohort, from the leaves
    /// up.
    fn tournament_winner(&self, node: &Node, candidates: &BTreeMap<String, Nomination>) -> Option<String> {
        if let Node::Queue(name) = node {
            return candidates.contains_key(name).then(|| name.clone());
        }
        let children = self.quota_tree(true).children(node).into_iter();
        let entries = children.filter_map(|child| Some((self.tournament_winner(&child, candidates)?, child)));
        entries.min_by(|a, b| self.compare_entries(a, b, candidates)).map(|(queue, _)| queue)
    }

    fn compare_entries(
        &self,
        a: &(String, Node),
        b: &(String, Node),
        candidates: &BTreeMap<String, Nomination>,
    ) -> Ordering {
        let entry = |(queue, child): &(String, Node)| {
            let candidate = &candidates[queue];
            let tree = self.quota_tree(true).with_usage(queue, &candidate.job.key, &candidate.usage);
            let borrows = candidate.usage.iter().any(|(fr, amount)| *amount > 0 && tree.exceeds_quota(child, fr));
            (
                Reverse(candidate.job.reserved_assignment.is_some()),
                borrows,
                tree.dominant_share(child),
                queue_order(&candidate.job),
            )
        };
        let (a, b) = (entry(a), entry(b));
        a.0.cmp(&b.0).then(a.1.cmp(&b.1)).then(a.2.compare(b.2)).then(a.3.cmp(&b.3))
    }

    fn take_turn(&mut self, queue: &str, candidate: &Nomination, decision: &mut Decision) {
        let job = &candidate.job;
        *self.turns.entry(queue.to_owned()).or_default() += 1;
        match &candidate.outcome {
            NominationOutcome::Admit(assignment) => self.admit(job, assignment, decision),
            NominationOutcome::Preempt(targets) => {
                for target in targets {
                    let holder = self.holders.iter_mut().find(|holder| holder.job.key == target.key);
                    let holder = holder.expect("the target holds quota");
                    holder.releasing_up_to = holder.releasing_up_to.max(Some(target.scope));
                    let evicted = decision.evicted.entry(target.key.clone());
                    let evicted = evicted.or_insert_with(|| (target.scope, job.key.clone(), target.reason));
                    if evicted.0 < target.scope {
                        *evicted = (target.scope, job.key.clone(), target.reason);
                    }
                }
                decision.deferred.insert(job.key.clone());
            }
            NominationOutcome::Reserve => {}
        }
        if !matches!(candidate.outcome, NominationOutcome::Admit(_)) {
            let (who, usage) = (job.key.clone(), candidate.usage.clone());
            self.reservations.push(WorkloadUsage {
                queue: queue.to_owned(),
                workload: who,
                scope: PreemptionScope::Whole,
                usage,
            });
            self.blocked_queues.extend(self.snapshot.queue(queue).strict.then(|| queue.to_owned()));
        }
    }

    fn admit(&mut self, job: &OracleWorkload, assignment: &Assignment, decision: &mut Decision) {
        // An admission of this cycle is never written if the workload is replaced in this cycle
        // too, so its usage does not count.
        let least =
            self.predecessor(job).map(|before| if before.observed { before.usage } else { before.minimum_usage });
        let least = least.unwrap_or_default();
        let replaced = self.snapshot.replaced_slices(job);
        // A predecessor admitted in this cycle is finished before its admission is written.
        decision.admitted.retain(|admitted| !replaced.contains(&admitted.workload));
        self.holders.retain(|holder| !replaced.contains(&holder.job.key));
        self.waiting.retain(|waiting| waiting.key != job.key && !replaced.contains(&waiting.key));
        let sets = assignment.pod_sets.iter().map(|(name, count, flavors)| PodSetAssignment {
            name: name.clone(),
            count: Some(*count),
            flavors: flavors.clone(),
            ..PodSetAssignment::default()
        });
        self.holders.push(AdmittedWorkload {
            job: job.clone(),
            quota_reserved_at: Timestamp::MAX,
            usage_by_scope: vec![(PreemptionScope::Whole, elementwise_max(&assignment.usage, &least))],
            usage: elementwise_max(&assignment.usage, &least),
            minimum_usage: least,
            admission: Admission { cluster_queue: job.queue.clone(), pod_set_assignments: sets.collect() },
            releasing_up_to: None,
            observed: false,
        });
        decision.admitted.push(Admitted { workload: job.key.clone(), pod_sets: assignment.pod_sets.clone() });
    }
}

/// Applies the growth steps in order and skips those that do not fit.
fn largest_fitting(
    growth_plan: &GrowthPlan,
    whole: &[i32],
    gets: impl Fn(&[i32]) -> Option<Nomination>,
) -> Option<Nomination> {
    let (mut counts, mut best) = (growth_plan.base.clone(), None);
    for step in &growth_plan.steps {
        let next: Vec<i32> = counts.iter().zip(step).map(|(count, adds)| count + adds).collect();
        if next.iter().zip(whole).all(|(count, most)| count <= most)
            && let Some(found) = gets(&next)
        {
            (counts, best) = (next, Some(found));
        }
    }
    best
}

/// Returns the reduced pod counts of partial admission, the largest first.
fn reduced_counts(job: &OracleWorkload, whole: &[i32]) -> Vec<Vec<i32>> {
    let spare: Vec<i32> = job.pod_sets.iter().zip(whole).map(|(set, count)| count - set.min_count).collect();
    let most: i32 = spare.iter().sum();
    (1..=most).map(|by| whole.iter().zip(&spare).map(|(count, spare)| count - spare * by / most).collect()).collect()
}
