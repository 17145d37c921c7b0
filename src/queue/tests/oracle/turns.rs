//! One cycle: turns, each to the best candidate of the state as it is then.

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

#[derive(Debug, Clone)]
pub(super) struct State<'w> {
    world: &'w World,
    holders: Vec<Holder>,
    waiting: Vec<Job>,
    promises: Vec<Held>,
    turns: BTreeMap<String, u32>,
    /// Strict ClusterQueues whose first waits.
    done: BTreeSet<String>,
}

#[derive(Debug, Clone)]
enum Gets {
    Admission(Assignment),
    Room(Vec<Victim>),
    KeptBack,
}

#[derive(Debug, Clone)]
struct Candidate {
    job: Job,
    level: u32,
    /// What its turn adds to planned usage.
    usage: Usage,
    gets: Gets,
}

/// What one cycle decides.
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
            let candidates = queues.iter().filter_map(|queue| Some((queue.clone(), state.candidate(queue)?)));
            let candidates: BTreeMap<String, Candidate> = candidates.collect();
            let next = match world.strategies {
                Some(_) => state.winner(&root, &candidates),
                None => state.first(&candidates),
            };
            let Some(queue) = next else { break };
            assert!(state.turns.values().sum::<u32>() < 1000, "turns without end");
            state.take_turn(&queue, &candidates[&queue], &mut decision);
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
        let promises = self.promises.iter().filter(|_| planned).cloned();
        Book { tree: &self.world.tree, held: held.chain(promises).collect() }
    }

    /// The slice whose quota a workload takes over.
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
        let mut line: Vec<&Job> = self.in_line().filter(|job| job.queue == queue).collect();
        line.sort_by_key(|job| (Reverse(self.comes_first(job)), rank(job)));
        line.truncate(if rules.strict { 1 } else { line.len() });
        line.into_iter().find_map(|job| self.verdict(job))
    }

    fn in_line(&self) -> impl Iterator<Item = &Job> {
        let promised = |job: &Job| self.promises.iter().any(|promise| promise.who == job.key);
        let predecessor_goes = |job: &Job| self.predecessor(job).is_some_and(|before| before.gives_back.is_some());
        self.waiting.iter().filter(move |job| !promised(job) && !predecessor_goes(job))
    }

    /// Others were evicted for it, so it comes first in line.
    fn comes_first(&self, job: &Job) -> bool {
        job.room_made.is_some() && !self.world.queue(&job.queue).strict
    }

    fn verdict(&self, job: &Job) -> Option<Candidate> {
        let asked: Vec<i32> = job.pod_sets.iter().map(|set| set.count).collect();
        let in_room = job.room_made.as_ref().and_then(|room| self.at_most(job, &room.counts, true));
        let gets = |found: &Candidate| !matches!(found.gets, Gets::KeptBack);
        let verdict = in_room.filter(gets).or_else(|| self.at_most(job, &asked, false));
        let rules = self.world.queue(&job.queue);
        let keeps_back = rules.strict && rules.reclaim != ReclaimPolicy::Any;
        verdict.filter(|found| keeps_back || gets(found))
    }

    /// With all of these pods, or with as many as can be; in the room that was made or anywhere.
    fn at_most(&self, job: &Job, whole: &[i32], in_room: bool) -> Option<Candidate> {
        let verdict = self.attempt(job, whole, in_room);
        let gets = |found: &Candidate| !matches!(found.gets, Gets::KeptBack);
        if verdict.as_ref().is_some_and(gets) {
            return verdict;
        }
        let smaller = |counts: &[i32]| self.attempt(job, counts, in_room).filter(gets);
        let found = match &job.ladder {
            Some(ladder) => step_by_step(ladder, whole, smaller),
            None => reduced(job, whole).into_iter().find_map(|counts| smaller(&counts)),
        };
        found.or(verdict)
    }

    fn attempt(&self, job: &Job, counts: &[i32], in_room: bool) -> Option<Candidate> {
        let predecessor = self.predecessor(job);
        let gone: Vec<(ObjectKey, PreemptionScope)> =
            predecessor.iter().map(|before| (before.job.key.clone(), PreemptionScope::Whole)).collect();
        let may_go = |holder: &&Holder| {
            let successor = predecessor.as_ref().is_some_and(|before| before.job.key == holder.job.key);
            holder.observed && holder.gives_back != Some(PreemptionScope::Whole) && !successor
        };
        let ask = Ask {
            world: self.world,
            job,
            queue: self.world.queue(&job.queue),
            actual: self.book(false).without(&gone),
            planned: self.book(true).without(&gone),
            holders: self.holders.iter().filter(may_go).cloned().collect(),
            predecessor: predecessor.clone(),
            room: job.room_made.as_ref().filter(|_| in_room),
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
                nobody if nobody.is_empty() => Gets::KeptBack,
                victims => Gets::Room(victims),
            },
            Mode::Deferred => Gets::Room(Vec::new()),
            Mode::Fit => Gets::Admission(assignment),
        };
        let usage = if matches!(gets, Gets::KeptBack) { self.kept_back(&ask, level, &more) } else { more };
        Some(Candidate { job: job.clone(), level, usage, gets })
    }

    /// kueue v0.19.2 `pkg/scheduler/scheduler.go`, `quotaResourcesToReserve`.
    fn kept_back(&self, ask: &Ask<'_>, level: u32, usage: &Usage) -> Usage {
        let (book, node) = (self.book(true), ask.queue.node());
        let kept = |fr: &Fr, amount: i128| {
            let (limits, used) = (book.limits(&node, fr), book.used(&node, fr));
            match limits.borrowing {
                _ if level == 0 => amount.min(limits.nominal - used),
                None => amount,
                Some(borrowing) => amount.min(limits.nominal + borrowing - used),
            }
        };
        usage.iter().map(|(fr, amount)| (fr.clone(), kept(fr, *amount).max(0))).collect()
    }

    fn first(&self, candidates: &BTreeMap<String, Candidate>) -> Option<String> {
        let turns = |queue: &str| self.turns.get(queue).copied().unwrap_or(0);
        let order = |(queue, candidate): &(&String, &Candidate)| {
            (Reverse(candidate.job.room_made.is_some()), candidate.level, turns(queue), rank(&candidate.job))
        };
        candidates.iter().min_by_key(order).map(|(queue, _)| queue.clone())
    }

    /// Kueue's tournament: the best child of each Cohort, from the leaves up.
    fn winner(&self, node: &Node, candidates: &BTreeMap<String, Candidate>) -> Option<String> {
        if let Node::Queue(name) = node {
            return candidates.contains_key(name).then(|| name.clone());
        }
        let children = self.book(true).children(node).into_iter();
        let entries = children.filter_map(|child| Some((self.winner(&child, candidates)?, child)));
        entries.min_by(|a, b| self.compare(a, b, candidates)).map(|(queue, _)| queue)
    }

    fn compare(&self, a: &(String, Node), b: &(String, Node), candidates: &BTreeMap<String, Candidate>) -> Ordering {
        let side = |(queue, child): &(String, Node)| {
            let candidate = &candidates[queue];
            let book = self.book(true).with(queue, &candidate.job.key, &candidate.usage);
            let borrows = candidate.usage.iter().any(|(fr, amount)| *amount > 0 && book.exceeds(child, fr));
            (Reverse(candidate.job.room_made.is_some()), borrows, book.share(child), rank(&candidate.job))
        };
        let (a, b) = (side(a), side(b));
        a.0.cmp(&b.0).then(a.1.cmp(&b.1)).then(a.2.compare(b.2)).then(a.3.cmp(&b.3))
    }

    fn take_turn(&mut self, queue: &str, candidate: &Candidate, decision: &mut Decision) {
        let job = &candidate.job;
        *self.turns.entry(queue.to_owned()).or_default() += 1;
        match &candidate.gets {
            Gets::Admission(assignment) => self.admit(job, assignment, decision),
            Gets::Room(victims) => {
                for victim in victims {
                    let holder = self.holders.iter_mut().find(|holder| holder.job.key == victim.key);
                    let holder = holder.expect("the victim holds quota");
                    holder.gives_back = holder.gives_back.max(Some(victim.loss));
                    let evicted = decision.evicted.entry(victim.key.clone());
                    let evicted = evicted.or_insert_with(|| (victim.loss, job.key.clone(), victim.right));
                    if evicted.0 < victim.loss {
                        *evicted = (victim.loss, job.key.clone(), victim.right);
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
        // What was decided in this cycle only is never written, if it is replaced in this cycle too.
        let least = self.predecessor(job).map(|before| if before.observed { before.usage } else { before.least });
        let least = least.unwrap_or_default();
        let over = self.world.chain(job);
        // Who was admitted just before is over before it is told so.
        decision.admitted.retain(|admitted| !over.contains(&admitted.workload));
        self.holders.retain(|holder| !over.contains(&holder.job.key));
        self.waiting.retain(|waiting| waiting.key != job.key && !over.contains(&waiting.key));
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

/// One step after the other, as far as it gets something.
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

/// What a job could do with instead, the most first.
fn reduced(job: &Job, whole: &[i32]) -> Vec<Vec<i32>> {
    let spare: Vec<i32> = job.pod_sets.iter().zip(whole).map(|(set, count)| count - set.min_count).collect();
    let most: i32 = spare.iter().sum();
    (1..=most).map(|by| whole.iter().zip(&spare).map(|(count, spare)| count - spare * by / most).collect()).collect()
}
