//! Selection of preemption targets: kueue v0.19.2 `pkg/scheduler/preemption`,
//! `classicalPreemptions` and `fairPreemptions`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::book::{Book, Fr, Node, Usage};
use super::flavors::Ask;
use super::world::{Holder, Job, Queue};
use crate::PreemptionReason;
use crate::partial_preemption::PreemptionScope;
use crate::settings::PreemptionStrategy;
use sluice_api::kueue::cluster_queue::{ReclaimPolicy, WithinClusterQueuePolicy};
use sluice_plan::ObjectKey;

#[derive(Debug, Clone)]
pub(super) struct Victim {
    pub(super) key: ObjectKey,
    pub(super) queue: String,
    pub(super) right: PreemptionReason,
    pub(super) loss: PreemptionScope,
    /// Candidate order: lowest priority, smallest loss, latest reservation, uid.
    order: (i32, PreemptionScope, Reverse<Timestamp>, String),
    /// Lowest common Cohort of the target's and the preemptor's ClusterQueue.
    common: Option<Node>,
    only_without_borrowing: bool,
}

impl Victim {
    fn node(&self) -> Node {
        Node::Queue(self.queue.clone())
    }

    /// Reports whether this loss of a workload requires the other, smaller one.
    fn goes_after(&self, other: &Self) -> bool {
        self.key == other.key && self.loss > other.loss
    }
}

struct Search<'a> {
    ask: &'a Ask<'a>,
    node: Node,
    usage: &'a Usage,
    short: &'a BTreeSet<Fr>,
    /// Exempt workloads with the smallest excluded scope: their ClusterQueue could reclaim back
    /// their quota.
    spared: BTreeMap<ObjectKey, PreemptionScope>,
}

/// Returns the targets whose preemption makes this usage fit, considering only usage of `short`;
/// empty if preemption is not enough.
pub(super) fn search(ask: &Ask<'_>, usage: &Usage, short: &BTreeSet<Fr>) -> Vec<Victim> {
    let mut search = Search { ask, node: ask.queue.node(), usage, short, spared: BTreeMap::new() };
    loop {
        let victims = match &ask.world.strategies {
            None => search.classical(),
            Some(strategies) => search.fair(strategies),
        };
        let own = &ask.queue.name;
        let returning =
            victims.iter().filter(|victim| victim.queue != *own && search.has_claim(&victim.queue, &victims));
        match returning.max_by(|a, b| a.order.cmp(&b.order)).map(|victim| (victim.key.clone(), victim.loss)) {
            Some((key, loss)) => search.spared.insert(key, loss),
            None => return victims,
        };
    }
}

fn provides(queue: &Queue, fr: &Fr) -> bool {
    queue.groups.iter().any(|(resources, flavors)| flavors.contains(&fr.0) && resources.contains(&fr.1))
}

fn losses(victims: &[Victim]) -> Vec<(ObjectKey, PreemptionScope)> {
    victims.iter().map(|victim| (victim.key.clone(), victim.loss)).collect()
}

impl Search<'_> {
    fn without(&self, victims: &[Victim]) -> Book<'_> {
        self.ask.planned.without(&losses(victims))
    }

    fn fits(&self, victims: &[Victim], may_borrow: bool) -> bool {
        let book = self.without(victims);
        let borrows = self.usage.iter().any(|(fr, amount)| book.would_borrow(&self.node, fr, *amount));
        book.fits(&self.node, self.usage) && (may_borrow || !borrows)
    }

    /// Fills back unnecessary targets, beginning with the last but one.
    fn fewest(&self, mut victims: Vec<Victim>, may_borrow: bool) -> Vec<Victim> {
        for index in (0..victims.len() - 1).rev() {
            let mut fewer = victims.clone();
            let kept = fewer.remove(index);
            if !fewer.iter().any(|victim| victim.goes_after(&kept)) && self.fits(&fewer, may_borrow) {
                victims = fewer;
            }
        }
        victims
    }

    /// Reports whether a ClusterQueue could reclaim the quota of its targets from a borrowing
    /// preemptor: the workloads that would fit into its nominal quota request more than is
    /// available.
    fn has_claim(&self, name: &str, victims: &[Victim]) -> bool {
        let queue = self.ask.world.queues.iter().find(|queue| queue.name == name).expect("a ClusterQueue");
        let book = self.without(victims).with(&self.ask.queue.name, &self.ask.job.key, self.usage);
        let (node, theirs) = (queue.node(), book.above(&queue.node()));
        let held = |holder: &Holder, fr: &Fr| holder.usage.get(fr).copied().unwrap_or(0);
        let gone = victims.iter().filter(|victim| victim.queue == name).map(|victim| {
            let holder = self.ask.holders.iter().find(|holder| holder.job.key == victim.key).expect("a holder");
            let lost = |fr: &Fr| holder.loses(victim.loss).get(fr).copied().unwrap_or(0);
            (&holder.job, self.short.iter().map(|fr| (fr.clone(), lost(fr))).collect::<Usage>())
        });
        let waiting = self.ask.waiting.iter().filter(|(job, _)| job.queue == name).map(|(job, before)| {
            let least = |fr: &Fr| match provides(queue, fr) {
                true => {
                    let sets = job
                        .pod_sets
                        .iter()
                        .map(|set| i128::from(set.min_count) * set.per_pod.get(&fr.1).copied().unwrap_or(0));
                    (sets.sum::<i128>() - before.as_ref().map_or(0, |before| held(before, fr))).max(0)
                }
                false => 0,
            };
            (job, self.short.iter().map(|fr| (fr.clone(), least(fr))).collect::<Usage>())
        });
        let may = |job: &Job| match queue.reclaim {
            ReclaimPolicy::Never => false,
            ReclaimPolicy::LowerPriority => self.ask.job.priority < job.priority,
            ReclaimPolicy::Any => true,
        };
        let within = |asks: &Usage| asks.iter().all(|(fr, ask)| *ask == 0 || !book.would_borrow(&node, fr, *ask));
        let claims: Vec<Usage> =
            gone.chain(waiting).filter(|(job, asks)| may(job) && within(asks)).map(|(_, asks)| asks).collect();
        self.short.iter().any(|fr| {
            let ours = [vec![self.node.clone()], book.above(&self.node)].concat();
            let mut below_common = ours.iter().take_while(|node| !theirs.contains(node));
            let right = book.subtree(&node, fr) - book.used(&node, fr);
            let asked = claims.iter().map(|asks| asks[fr]).sum::<i128>().min(right);
            asked > book.available(&node, fr).max(0) && below_common.all(|node| book.exceeds(node, fr))
        })
    }

    /// Returns the candidates of one ClusterQueue in order: workloads that the policies allow and
    /// that use some of `short`.
    fn candidates(&self, queue: &str) -> Vec<Victim> {
        let (rules, job) = (self.ask.queue, self.ask.job);
        let own = queue == rules.name;
        let may = |holder: &Holder| {
            let (lower, equal) = (holder.job.priority < job.priority, holder.job.priority == job.priority);
            match (own, rules.within, rules.reclaim) {
                (true, WithinClusterQueuePolicy::Never, _) | (false, _, ReclaimPolicy::Never) => false,
                (true, WithinClusterQueuePolicy::LowerPriority, _) | (false, _, ReclaimPolicy::LowerPriority) => lower,
                (true, WithinClusterQueuePolicy::LowerOrNewerEqualPriority, _) => {
                    lower || (equal && job.since < holder.job.since)
                }
                (false, _, ReclaimPolicy::Any) => true,
            }
        };
        let uses_short = |usage: &Usage| self.short.iter().any(|fr| usage.get(fr).is_some_and(|used| *used > 0));
        let uses = |holder: &Holder| holder.keeps().any(|(_, usage)| uses_short(usage));
        let is_candidate = |holder: &&Holder| holder.job.queue == queue && may(holder) && uses(holder);
        let holders = self.ask.holders.iter().filter(is_candidate);
        let losses = holders.flat_map(|holder| holder.keeps().map(move |(loss, _)| (holder, *loss)));
        let is_exempt = |holder: &Holder, loss: PreemptionScope| {
            self.spared.get(&holder.job.key).is_some_and(|spared| *spared <= loss)
        };
        let mut victims: Vec<Victim> = losses
            .filter(|(holder, loss)| !is_exempt(holder, *loss))
            .map(|(holder, loss)| Victim {
                key: holder.job.key.clone(),
                queue: queue.to_owned(),
                right: PreemptionReason::InClusterQueue,
                loss,
                order: (holder.job.priority, loss, Reverse(holder.reserved), holder.job.uid.clone()),
                common: None,
                only_without_borrowing: false,
            })
            .collect();
        victims.sort_by(|a, b| a.order.cmp(&b.order));
        victims
    }

    fn classical(&self) -> Vec<Victim> {
        let (reclaimable, by_priority) = self.outsiders();
        let (none_reclaimable, none_by_priority) = (reclaimable.is_empty(), by_priority.is_empty());
        let candidates = [reclaimable, by_priority, self.candidates(&self.ask.queue.name)].concat();
        let forbidden = !self.ask.queue.borrow_within_cohort;
        let planned = &self.ask.planned;
        let under = |fr: &Fr| planned.used(&self.node, fr) < planned.limits(&self.node, fr).nominal;
        let attempts: &[bool] =
            if (none_reclaimable && none_by_priority) || (forbidden && !self.short.iter().all(under)) {
                &[true]
            } else if forbidden && none_reclaimable {
                &[false, true]
            } else {
                &[true, false]
            };
        for may_borrow in attempts {
            let mut victims = Vec::new();
            for candidate in &candidates {
                if self.still_valid(candidate, &victims, *may_borrow) {
                    victims.push(candidate.clone());
                    if self.fits(&victims, *may_borrow) {
                        return self.fewest(victims, *may_borrow);
                    }
                }
            }
        }
        Vec::new()
    }

    /// Reports whether a candidate's ClusterQueue, and each Cohort up to the common one, still
    /// exceeds its quota.
    fn still_valid(&self, candidate: &Victim, victims: &[Victim], may_borrow: bool) -> bool {
        if candidate.queue == self.ask.queue.name {
            return true;
        }
        if may_borrow && candidate.only_without_borrowing {
            return false;
        }
        let book = self.without(victims);
        let mut nodes = vec![candidate.node()];
        nodes.extend(
            book.above(&candidate.node()).into_iter().take_while(|node| Some(node) != candidate.common.as_ref()),
        );
        nodes.iter().all(|node| book.exceeds_any(node, self.short))
    }

    /// Returns the candidates of other ClusterQueues: first those that the preemptor's subtree can
    /// reclaim from within its quota, second all others.
    fn outsiders(&self) -> (Vec<Victim>, Vec<Victim>) {
        let (mut reclaimable, mut by_priority) = (Vec::new(), Vec::new());
        let book = &self.ask.planned;
        let mut advantage = self.usage.iter().all(|(fr, amount)| self.has_quota(&self.node, fr, *amount));
        let mut remaining = self.left_over(&self.node, self.usage);
        let mut inside = vec![self.node.clone()];
        for cohort in book.above(&self.node) {
            let mut queues = Vec::new();
            self.exceeding(&cohort, &inside, &mut queues);
            for mut victim in queues.iter().flat_map(|queue| self.candidates(queue)) {
                victim.common = Some(cohort.clone());
                victim.right = PreemptionReason::InCohortReclamation;
                if advantage {
                    reclaimable.push(victim);
                    continue;
                }
                let (priority, threshold) = (victim.order.0, self.ask.queue.threshold);
                let too_high = priority >= self.ask.job.priority || threshold.is_some_and(|most| priority > most);
                victim.only_without_borrowing = !self.ask.queue.borrow_within_cohort || too_high;
                if !victim.only_without_borrowing {
                    victim.right = PreemptionReason::InCohortReclaimWhileBorrowing;
                }
                by_priority.push(victim);
            }
            advantage |= remaining.iter().all(|(fr, amount)| self.has_quota(&cohort, fr, *amount));
            remaining = self.left_over(&cohort, &remaining);
            inside.push(cohort);
        }
        reclaimable.sort_by(|a, b| a.order.cmp(&b.order));
        by_priority.sort_by(|a, b| a.order.cmp(&b.order));
        (reclaimable, by_priority)
    }

    fn has_quota(&self, node: &Node, fr: &Fr, amount: i128) -> bool {
        self.ask.planned.used(node, fr) + amount <= self.ask.planned.subtree(node, fr)
    }

    fn left_over(&self, node: &Node, usage: &Usage) -> Usage {
        let left = |fr: &Fr, amount: i128| (amount - self.ask.planned.local_available(node, fr)).max(0);
        usage.iter().map(|(fr, amount)| (fr.clone(), left(fr, *amount))).collect()
    }

    /// Collects the ClusterQueues below a Cohort that exceed their quota, as does every Cohort
    /// between; skips the nodes in `seen`.
    fn exceeding(&self, cohort: &Node, seen: &[Node], queues: &mut Vec<String>) {
        for child in self.ask.planned.children(cohort) {
            if seen.contains(&child) || !self.ask.planned.exceeds_any(&child, self.short) {
                continue;
            }
            match &child {
                Node::Queue(name) => queues.push(name.clone()),
                Node::Cohort(_) => self.exceeding(&child, seen, queues),
            }
        }
    }

    fn fair(&self, strategies: &[PreemptionStrategy]) -> Vec<Victim> {
        let mut left: BTreeMap<String, Vec<Victim>> = BTreeMap::new();
        let (book, root) = (&self.ask.planned, self.ask.planned.root(&self.node));
        for queue in &self.ask.world.queues {
            let same_tree = book.root(&queue.node()) == root;
            let borrows = book.parent(&queue.node()).is_some() && book.exceeds_any(&queue.node(), self.short);
            if queue.name == self.ask.queue.name || (same_tree && borrows) {
                left.insert(queue.name.clone(), self.candidates(&queue.name));
            }
        }
        let mut pass = Pass { search: self, left, done: BTreeSet::new(), victims: Vec::new() };
        let spared = pass.first(strategies[0]);
        let mut victims = pass.victims;
        if !self.fits(&victims, true) && strategies.len() > 1 {
            let mut pass = Pass { search: self, left: spared, done: BTreeSet::new(), victims };
            pass.second();
            victims = pass.victims;
        }
        if victims.is_empty() || !self.fits(&victims, true) {
            return Vec::new();
        }
        let own = victims.iter().all(|victim| victim.queue == self.ask.queue.name);
        let may_borrow = own || !self.fits(&victims, false);
        self.fewest(victims, may_borrow)
    }
}

/// One pass over the remaining candidates, the largest share first.
struct Pass<'a> {
    search: &'a Search<'a>,
    left: BTreeMap<String, Vec<Victim>>,
    /// Nodes without further candidates.
    done: BTreeSet<Node>,
    victims: Vec<Victim>,
}

impl Pass<'_> {
    /// Returns planned usage with the preemptor and without the targets.
    fn book(&self) -> Book<'_> {
        let Search { ask, usage, .. } = self.search;
        self.search.without(&self.victims).with(&ask.queue.name, &ask.job.key, usage)
    }

    fn fits(&self) -> bool {
        !self.victims.is_empty() && self.search.fits(&self.victims, true)
    }

    /// Runs the first strategy; returns the candidates that it did not allow.
    fn first(&mut self, rule: PreemptionStrategy) -> BTreeMap<String, Vec<Victim>> {
        let mut spared: BTreeMap<String, Vec<Victim>> = BTreeMap::new();
        let entitled = !self.search.short.iter().any(|fr| {
            let book = self.book();
            book.parent(&self.search.node).is_some() && book.exceeds(&self.search.node, fr)
        });
        while let Some(queue) = self.next() {
            if queue == self.search.ask.queue.name || entitled {
                let mut victim = self.left.get_mut(&queue).expect("candidates").remove(0);
                if queue != self.search.ask.queue.name {
                    victim.right = PreemptionReason::InCohortReclamation;
                }
                self.victims.push(victim);
                if self.fits() {
                    break;
                }
                continue;
            }
            let (ours, theirs) = self.sides(&queue);
            let (our_share, their_share) = (self.book().share(&ours), self.book().share(&theirs));
            while let Some(mut victim) =
                self.left.get_mut(&queue).filter(|left| !left.is_empty()).map(|left| left.remove(0))
            {
                let kept = spared.values().flatten().any(|kept| victim.goes_after(kept));
                let after = self.book().without(&[(victim.key.clone(), victim.loss)]).share(&theirs);
                let allowed = match rule {
                    PreemptionStrategy::LessThanOrEqualToFinalShare => our_share.compare(after).is_le(),
                    PreemptionStrategy::LessThanInitialShare => our_share.compare(their_share).is_lt(),
                };
                if allowed && !kept {
                    victim.right = PreemptionReason::InCohortFairSharing;
                    self.victims.push(victim);
                    break;
                }
                spared.entry(queue.clone()).or_default().push(victim);
            }
            if self.fits() {
                break;
            }
        }
        spared
    }

    /// Runs the second strategy: takes one candidate from each ClusterQueue with a larger share
    /// than the preemptor's.
    fn second(&mut self) {
        while let Some(queue) = self.next() {
            let (ours, theirs) = self.sides(&queue);
            if self.book().share(&ours).compare(self.book().share(&theirs)).is_lt() {
                let mut victim = self.left.get_mut(&queue).expect("candidates").remove(0);
                victim.right = PreemptionReason::InCohortFairSharing;
                self.victims.push(victim);
                if self.fits() {
                    return;
                }
            }
            self.done.insert(Node::Queue(queue));
        }
    }

    /// Returns the preemptor's and the target's node directly below the lowest common Cohort.
    fn sides(&self, target: &str) -> (Node, Node) {
        let book = self.book();
        let path = |node: Node| [vec![node.clone()], book.above(&node)].concat();
        let (ours, theirs) = (path(self.search.node.clone()), path(Node::Queue(target.to_owned())));
        let below =
            |path: &[Node], other: &[Node]| path.iter().take_while(|node| !other.contains(node)).last().cloned();
        (below(&ours, &theirs).expect("a node"), below(&theirs, &ours).expect("a node"))
    }

    /// Returns the ClusterQueue of the next candidate; `None` if there is none.
    fn next(&mut self) -> Option<String> {
        let root = self.search.ask.planned.root(&self.search.node);
        if let Node::Queue(name) = &root {
            let more = self.left.get(name).is_some_and(|left| !left.is_empty()) && !self.done.contains(&root);
            return more.then(|| name.clone());
        }
        while !self.done.contains(&root) {
            if let Some(queue) = self.next_below(&root) {
                return Some(queue);
            }
        }
        None
    }

    /// Returns the next ClusterQueue below a Cohort; `None` if a node was marked as done instead.
    fn next_below(&mut self, cohort: &Node) -> Option<String> {
        let children = self.book().children(cohort);
        let preemptor = self.search.node.clone();
        let mut queue: Option<String> = None;
        let mut below: Option<Node> = None;
        for child in children {
            if self.done.contains(&child) {
                continue;
            }
            let share = self.book().share(&child);
            match &child {
                Node::Queue(name) => {
                    let Some(first) = self.left.get(name).and_then(|left| left.first()) else {
                        self.done.insert(child);
                        continue;
                    };
                    if !share.borrows && child != preemptor {
                        self.done.insert(child);
                        continue;
                    }
                    let better = queue.as_ref().is_none_or(|best| {
                        let order = share.compare(self.book().share(&Node::Queue(best.clone())));
                        let other = &self.left[best][0];
                        let own = |victim: &Victim| victim.queue == self.search.ask.queue.name;
                        let before = (own(first), &first.order) < (own(other), &other.order);
                        order.is_gt() || (order.is_eq() && before)
                    });
                    queue = if better { Some(name.clone()) } else { queue };
                }
                Node::Cohort(_) => {
                    if !share.borrows && !self.book().above(&preemptor).contains(&child) {
                        self.done.insert(child);
                    } else if below.as_ref().is_none_or(|best| share.compare(self.book().share(best)).is_ge()) {
                        below = Some(child);
                    }
                }
            }
        }
        match (below, queue) {
            (None, None) => {
                self.done.insert(cohort.clone());
                None
            }
            (None, queue) => queue,
            (Some(below), None) => self.next_below(&below),
            (Some(below), Some(queue)) => {
                let book = self.book();
                if book.share(&below).compare(book.share(&Node::Queue(queue.clone()))).is_ge() {
                    self.next_below(&below)
                } else {
                    Some(queue)
                }
            }
        }
    }
}
