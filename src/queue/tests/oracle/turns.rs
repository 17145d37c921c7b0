//! One cycle: a sequence of turns, each of which goes to the first nomination of the current state.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet};

use super::book::{Book, Fr, Held, Node, Usage};
use super::flavors::{Ask, Assignment, Mode};
use super::victims::{self, Victim};
use super::world::{Holder, Job, Ladder, World, most_of, trees};
use super::{Admitted, Decision};
use crate::partial_preemption::PreemptionScope;
use jiff::Timestamp;
use sluice_api::kueue::cluster_queue::ReclaimPolicy;
use sluice_api::kueue::{Admission, PodSetAssignment};
use sluice_plan::ObjectKey;

/// State of one cycle.
#[derive(Debug, Clone)]
pub(super) struct State<'w> {
    world: &'w World,
    holders: Vec<Holder>,
    waiting: Vec<Job>,
    promises: Vec<Held>,
    turns: BTreeMap<String, u32>,
    /// Strict ClusterQueues whose head stays pending.
    done: BTreeSet<String>,
}

/// Outcome of a nomination.
#[derive(Debug, Clone)]
enum Gets {
    Admission(Assignment),
    Room(Vec<Victim>),
    KeptBack,
}

/// Nominated workload of a ClusterQueue.
#[derive(Debug, Clone)]
struct Candidate {
    job: Job,
    level: u32,
    /// Planned usage that its turn adds.
    usage: Usage,
    gets: Gets,
}

/// Returns the decisions of one cycle.
pub(crate) fn decide(world: &World) -> Decision {
    let mut decision = Decision::default();
    let mut state = State {
        world,
        holders: world.holders.clone(),
        waiting: world.waiting.clone(),
        promises: Vec::new(),
        turns: BTreeMap::new(),
        done: BTreeSet::new(),
    };
    for (root, queues) in trees(world) {
        loop {
            let nominations = queues.iter().filter_map(|queue| Some((queue.clone(), state.candidate(queue)?)));
            let nominations: BTreeMap<String, Candidate> = nominations.collect();
            let next = match world.strategies {
                Some(_) => state.winner(&root, &nominations),
                None => state.first(&nominations),
            };
            let Some(queue) = next else { break };
            assert!(state.turns.values().sum::<u32>() < 1000, "a cycle does not terminate");
            state.take_turn(&queue, &nominations[&queue], &mut decision);
        }
    }
    decision
}

fn rank(job: &Job) -> (Reverse<i32>, Timestamp, String) {
    (Reverse(job.priority), job.since, job.uid.clone())
}

impl<'w> State<'w> {
    fn book(&self, planned: bool) -> Book<'w> {
        let held = self.holders.iter().flat_map(|holder| holder.held(planned));
        let reservations = self.promises.iter().filter(|_| planned).cloned();
        Book { tree: &self.world.tree, held: held.chain(reservations).collect() }
    }

    /// Returns the admitted slice whose quota a workload takes over.
    fn predecessor(&self, job: &Job) -> Option<Holder> {
        let mut claimed = job.replaces.clone();
        while let Some(key) = claimed {
            if let Some(holder) = self.holders.iter().find(|holder| holder.job.key == key) {
                return (holder.job.queue == job.queue).then(|| holder.clone());
            }
            claimed = self.waiting.iter().find(|job| job.key == key)?.replaces.clone();
        }
        None
    }

    fn candidate(&self, queue: &str) -> Option<Candidate> {
        let rules = self.world.queue(queue);
        if self.done.contains(queue) {
            return None;
        }
        let mut queued: Vec<&Job> = self.in_line().filter(|job| job.queue == queue).collect();
        queued.sort_by_key(|job| (Reverse(self.comes_first(job)), rank(job)));
        queued.truncate(if rules.strict { 1 } else { queued.len() });
        queued.into_iter().find_map(|job| self.verdict(job))
    }

    fn in_line(&self) -> impl Iterator<Item = &Job> {
        let has_reservation = |job: &Job| self.promises.iter().any(|reservation| reservation.who == job.key);
        let predecessor_is_releasing =
            |job: &Job| self.predecessor(job).is_some_and(|before| before.gives_back.is_some());
        self.waiting.iter().filter(move |job| !has_reservation(job) && !predecessor_is_releasing(job))
    }

    /// Reports whether a job precedes its queue because others were evicted for it.
    fn comes_first(&self, job: &Job) -> bool {
        job.room_made.is_some() && !self.world.queue(&job.queue).strict
    }

    fn verdict(&self, job: &Job) -> Option<Candidate> {
        let requested: Vec<i32> = job.pod_sets.iter().map(|set| set.count).collect();
        let in_reservation = job.room_made.as_ref().and_then(|room| self.at_most(job, &room.counts, true));
        let gets = |found: &Candidate| !matches!(found.gets, Gets::KeptBack);
        let nomination = in_reservation.filter(gets).or_else(|| self.at_most(job, &requested, false));
        let rules = self.world.queue(&job.queue);
        let reserves = rules.strict && rules.reclaim != ReclaimPolicy::Any;
        nomination.filter(|found| reserves || gets(found))
    }

    /// Nominates a job with these pod counts, or with the most that fit; in its reserved assignment
    /// or anywhere.
    fn at_most(&self, job: &Job, whole: &[i32], in_reservation: bool) -> Option<Candidate> {
        let nomination = self.attempt(job, whole, in_reservation);
        let gets = |found: &Candidate| !matches!(found.gets, Gets::KeptBack);
        if nomination.as_ref().is_some_and(gets) {
            return nomination;
        }
        let smaller = |counts: &[i32]| self.attempt(job, counts, in_reservation).filter(gets);
        let found = match &job.ladder {
            Some(ladder) => step_by_step(ladder, whole, smaller),
            None => reduced(job, whole).into_iter().find_map(|counts| smaller(&counts)),
        };
        found.or(nomination)
    }

    fn attempt(&self, job: &Job, counts: &[i32], in_reservation: bool) -> Option<Candidate> {
        let predecessor = self.predecessor(job);
        let released: Vec<(ObjectKey, PreemptionScope)> =
            predecessor.iter().map(|before| (before.job.key.clone(), PreemptionScope::Whole)).collect();
        let may_be_preempted = |holder: &&Holder| {
            let successor = predecessor.as_ref().is_some_and(|before| before.job.key == holder.job.key);
            holder.observed && holder.gives_back != Some(PreemptionScope::Whole) && !successor
        };
        let ask = Ask {
            world: self.world,
            job,
            queue: self.world.queue(&job.queue),
            actual: self.book(false).without(&released),
            planned: self.book(true).without(&released),
            holders: self.holders.iter().filter(may_be_preempted).cloned().collect(),
            predecessor: predecessor.clone(),
            room: job.room_made.as_ref().filter(|_| in_reservation),
            waiting: self.in_line().map(|job| (job.clone(), self.predecessor(job))).collect(),
        };
        let assignment = ask.assign(counts)?;
        let before = predecessor.map(|before| before.usage).unwrap_or_default();
        let both = most_of(&assignment.usage, &before);
        let more = both.iter().map(|(fr, amount)| (fr.clone(), amount - before.get(fr).copied().unwrap_or(0)));
        let more: Usage = more.collect();
        let (level, mode) = (assignment.level, assignment.mode);
        let gets = match mode {
            Mode::NoFit => return None,
            Mode::NoCandidates => Gets::KeptBack,
            Mode::Preempt | Mode::Reclaim => match victims::search(&ask, &assignment.usage, &assignment.short) {
                targets if targets.is_empty() => Gets::KeptBack,
                targets => Gets::Room(targets),
            },
            Mode::Deferred => Gets::Room(Vec::new()),
            Mode::Fit => Gets::Admission(assignment),
        };
        let usage = if matches!(gets, Gets::KeptBack) { self.kept_back(&ask, level, &more) } else { more };
        Some(Candidate { job: job.clone(), level, usage, gets })
    }

    /// Returns the usage that a pending head reserves: kueue v0.19.2 `pkg/scheduler/scheduler.go`,
    /// `quotaResourcesToReserve`.
    fn kept_back(&self, ask: &Ask<'_>, level: u32, usage: &Usage) -> Usage {
        let (book, node) = (self.book(true), ask.queue.node());
        let reserved = |fr: &Fr, amount: i128| {
            let (limits, used) = (book.limits(&node, fr), book.used(&node, fr));
            match limits.borrowing {
                _ if level == 0 => amount.min(limits.nominal - used),
                None => amount,
                Some(borrowing) => amount.min(limits.nominal + borrowing - used),
            }
        };
        usage.iter().map(|(fr, amount)| (fr.clone(), reserved(fr, *amount).max(0))).collect()
    }

    fn first(&self, candidates: &BTreeMap<String, Candidate>) -> Option<String> {
        let turns = |queue: &str| self.turns.get(queue).copied().unwrap_or(0);
        let order = |(queue, candidate): &(&String, &Candidate)| {
            (Reverse(candidate.job.room_made.is_some()), candidate.level, turns(queue), rank(&candidate.job))
        };
        candidates.iter().min_by_key(order).map(|(queue, _)| queue.clone())
    }

    /// Returns the winner of Kueue's tournament: the first child of each Cohort, from the leaves
    /// up.
    fn winner(&self, node: &Node, candidates: &BTreeMap<String, Candidate>) -> Option<String> {
        if let Node::Queue(name) = node {
            return candidates.contains_key(name).then(|| name.clone());
        }
        let children = self.book(true).children(node).into_iter();
        let entries = children.filter_map(|child| Some((self.winner(&child, candidates)?, child)));
        entries.min_by(|a, b| self.compare(a, b, candidates)).map(|(queue, _)| queue)
    }

    fn compare(&self, a: &(String, Node), b: &(String, Node), candidates: &BTreeMap<String, Candidate>) -> Ordering {
        let entry = |(queue, child): &(String, Node)| {
            let candidate = &candidates[queue];
            let book = self.book(true).with(queue, &candidate.job.key, &candidate.usage);
            let borrows = candidate.usage.iter().any(|(fr, amount)| *amount > 0 && book.exceeds(child, fr));
            (Reverse(candidate.job.room_made.is_some()), borrows, book.share(child), rank(&candidate.job))
        };
        let (a, b) = (entry(a), entry(b));
        a.0.cmp(&b.0).then(a.1.cmp(&b.1)).then(a.2.compare(b.2)).then(a.3.cmp(&b.3))
    }

    fn take_turn(&mut self, queue: &str, candidate: &Candidate, decision: &mut Decision) {
        let job = &candidate.job;
        *self.turns.entry(queue.to_owned()).or_default() += 1;
        match &candidate.gets {
            Gets::Admission(assignment) => self.admit(job, assignment, decision),
            Gets::Room(targets) => {
                for target in targets {
                    let holder = self.holders.iter_mut().find(|holder| holder.job.key == target.key);
                    let holder = holder.expect("the target holds quota");
                    holder.gives_back = holder.gives_back.max(Some(target.loss));
                    let evicted = decision.evicted.entry(target.key.clone());
                    let evicted = evicted.or_insert_with(|| (target.loss, job.key.clone(), target.right));
                    if evicted.0 < target.loss {
                        *evicted = (target.loss, job.key.clone(), target.right);
                    }
                }
                decision.deferred.insert(job.key.clone());
            }
            Gets::KeptBack => {}
        }
        if !matches!(candidate.gets, Gets::Admission(_)) {
            let (who, usage) = (job.key.clone(), candidate.usage.clone());
            self.promises.push(Held { queue: queue.to_owned(), who, loss: PreemptionScope::Whole, usage });
            self.done.extend(self.world.queue(queue).strict.then(|| queue.to_owned()));
        }
    }

    fn admit(&mut self, job: &Job, assignment: &Assignment, decision: &mut Decision) {
        // An admission of this cycle is never written if the workload is replaced in this cycle
        // too, so its usage does not count.
        let least = self.predecessor(job).map(|before| if before.observed { before.usage } else { before.least });
        let least = least.unwrap_or_default();
        let replaced = self.world.chain(job);
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
        self.holders.push(Holder {
            job: job.clone(),
            reserved: Timestamp::MAX,
            losses: vec![(PreemptionScope::Whole, most_of(&assignment.usage, &least))],
            usage: most_of(&assignment.usage, &least),
            least,
            admission: Admission { cluster_queue: job.queue.clone(), pod_set_assignments: sets.collect() },
            gives_back: None,
            observed: false,
        });
        decision.admitted.push(Admitted { workload: job.key.clone(), pod_sets: assignment.pod_sets.clone() });
    }
}

/// Applies the growth steps in order and skips those that do not fit.
fn step_by_step(ladder: &Ladder, whole: &[i32], gets: impl Fn(&[i32]) -> Option<Candidate>) -> Option<Candidate> {
    let (mut counts, mut best) = (ladder.foot.clone(), None);
    for step in &ladder.steps {
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
fn reduced(job: &Job, whole: &[i32]) -> Vec<Vec<i32>> {
    let spare: Vec<i32> = job.pod_sets.iter().zip(whole).map(|(set, count)| count - set.min_count).collect();
    let most: i32 = spare.iter().sum();
    (1..=most).map(|by| whole.iter().zip(&spare).map(|(count, spare)| count - spare * by / most).collect()).collect()
}
