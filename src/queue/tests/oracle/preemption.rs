//! Selection of preemption targets: kueue v0.19.2 `pkg/scheduler/preemption`,
//! `classicalPreemptions` and `fairPreemptions`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::flavor_assignment::AssignmentInput;
use super::quota_tree::{FlavorResource, Node, QuotaTree, Usage};
use super::snapshot::{AdmittedWorkload, OracleWorkload, Queue};
use crate::PreemptionReason;
use crate::partial_preemption::PreemptionScope;
use crate::settings::PreemptionStrategy;
use sluice_api::kueue::cluster_queue::{ReclaimPolicy, WithinClusterQueuePolicy};
use sluice_plan::ObjectKey;

#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) key: ObjectKey,
    pub(super) queue: String,
    pub(super) reason: PreemptionReason,
    pub(super) scope: PreemptionScope,
    /// Candidate order: lowest priority, smallest loss, latest reservation, uid.
    order: (i32, PreemptionScope, Reverse<Timestamp>, String),
    /// Lowest common Cohort of the target's and the preemptor's ClusterQueue.
    common_cohort: Option<Node>,
    only_without_borrowing: bool,
}

impl Target {
    fn node(&self) -> Node {
        Node::Queue(self.queue.clone())
    }

    /// Reports whether this loss of a workload requires the other, smaller one.
    fn requires(&self, other: &Self) -> bool {
        self.key == other.key && self.scope > other.scope
    }
}

struct TargetSearch<'a> {
    input: &'a AssignmentInput<'a>,
    node: Node,
    usage: &'a Usage,
    needs_preemption: &'a BTreeSet<FlavorResource>,
    /// Exempt workloads with the smallest excluded scope: their ClusterQueue could reclaim back
    /// their quota.
    exempt: BTreeMap<ObjectKey, PreemptionScope>,
}

/// Returns the targets whose preemption makes this usage fit, considering only usage of `short`;
/// empty if preemption is not enough.
pub(super) fn find_targets(ask: &AssignmentInput<'_>, usage: &Usage, short: &BTreeSet<FlavorResource>) -> Vec<Target> {
    let mut search =
        TargetSearch { input: ask, node: ask.queue.node(), usage, needs_preemption: short, exempt: BTreeMap::new() };
    loop {
        let targets = match &ask.snapshot.fair_sharing_strategies {
            None => search.classical_preemption(),
            Some(strategies) => search.fair_preemption(strategies),
        };
        let own = &ask.queue.name;
        let returning =
            targets.iter().filter(|target| target.queue != *own && search.would_reclaim_back(&target.queue, &targets));
        match returning.max_by(|a, b| a.order.cmp(&b.order)).map(|target| (target.key.clone(), target.scope)) {
            Some((key, loss)) => search.exempt.insert(key, loss),
            None => return targets,
        };
    }
}

fn has_flavor_resource(queue: &Queue, fr: &FlavorResource) -> bool {
    queue.groups.iter().any(|(resources, flavors)| flavors.contains(&fr.0) && resources.contains(&fr.1))
}

fn lost_scopes(targets: &[Target]) -> Vec<(ObjectKey, PreemptionScope)> {
    targets.iter().map(|target| (target.key.clone(), target.scope)).collect()
}

impl TargetSearch<'_> {
    fn without(&self, targets: &[Target]) -> QuotaTree<'_> {
        self.input.planned.without(&lost_scopes(targets))
    }

    fn fits(&self, targets: &[Target], may_borrow: bool) -> bool {
        let tree = self.without(targets);
        let borrows = self.usage.iter().any(|(fr, amount)| tree.would_borrow(&self.node, fr, *amount));
        tree.fits(&self.node, self.usage) && (may_borrow || !borrows)
    }

    /// Fills back unnecessary targets, beginning with the last but one.
    fn fill_back(&self, mut targets: Vec<Target>, suffices: impl Fn(&[Target]) -> bool) -> Vec<Target> {
        for index in (0..targets.len() - 1).rev() {
            let mut fewer = targets.clone();
            let kept = fewer.remove(index);
            if !fewer.iter().any(|target| target.requires(&kept)) && suffices(&fewer) {
                targets = fewer;
            }
        }
        targets
    }

    /// Reports whether a ClusterQueue could reclaim the quota of its targets from a borrowing
    /// preemptor: the workloads that would fit into its nominal quota request more than is
    /// available.
    fn would_reclaim_back(&self, name: &str, targets: &[Target]) -> bool {
        let queue = self.input.snapshot.queues.iter().find(|queue| queue.name == name).expect("a ClusterQueue");
        let tree = self.without(targets).with_usage(&self.input.queue.name, &self.input.job.key, self.usage);
        let (node, theirs) = (queue.node(), tree.ancestors(&queue.node()));
        let held = |holder: &AdmittedWorkload, fr: &FlavorResource| holder.usage.get(fr).copied().unwrap_or(0);
        let gone = targets.iter().filter(|target| target.queue == name).map(|target| {
            let holder = self.input.candidates.iter().find(|holder| holder.job.key == target.key).expect("a holder");
            let lost = |fr: &FlavorResource| holder.usage_of_scope(target.scope).get(fr).copied().unwrap_or(0);
            (&holder.job, self.needs_preemption.iter().map(|fr| (fr.clone(), lost(fr))).collect::<Usage>())
        });
        let waiting = self.input.pending.iter().filter(|(job, _)| job.queue == name).map(|(job, before)| {
            let least = |fr: &FlavorResource| match has_flavor_resource(queue, fr) {
                true => {
                    let sets = job
                        .pod_sets
                        .iter()
                        .map(|set| i128::from(set.min_count) * set.per_pod.get(&fr.1).copied().unwrap_or(0));
                    (sets.sum::<i128>() - before.as_ref().map_or(0, |before| held(before, fr))).max(0)
                }
                false => 0,
            };
            (job, self.needs_preemption.iter().map(|fr| (fr.clone(), least(fr))).collect::<Usage>())
        });
        let may = |job: &OracleWorkload| match queue.reclaim_within_cohort {
            ReclaimPolicy::Never => false,
            ReclaimPolicy::LowerPriority => self.input.job.priority < job.priority,
            ReclaimPolicy::Any => true,
        };
        let within = |asks: &Usage| asks.iter().all(|(fr, ask)| *ask == 0 || !tree.would_borrow(&node, fr, *ask));
        let claims: Vec<Usage> =
            gone.chain(waiting).filter(|(job, asks)| may(job) && within(asks)).map(|(_, asks)| asks).collect();
        self.needs_preemption.iter().any(|fr| {
            let ours = [vec![self.node.clone()], tree.ancestors(&self.node)].concat();
            let mut below_common = ours.iter().take_while(|node| !theirs.contains(node));
            let right = tree.subtree_quota(&node, fr) - tree.usage(&node, fr);
            let asked = claims.iter().map(|asks| asks[fr]).sum::<i128>().min(right);
            asked > tree.available(&node, fr).max(0) && below_common.all(|node| tree.exceeds_quota(node, fr))
        })
    }

    /// Returns the candidates of one ClusterQueue in order: workloads that the policies allow and
    /// that use some of `short`.
    fn candidates(&self, queue: &str) -> Vec<Target> {
        let (rules, job) = (self.input.queue, self.input.job);
        let own = queue == rules.name;
        let may = |holder: &AdmittedWorkload| {
            let (lower, equal) = (holder.job.priority < job.priority, holder.job.priority == job.priority);
            match (own, rules.within_cluster_queue, rules.reclaim_within_cohort) {
                (true, WithinClusterQueuePolicy::Never, _) | (false, _, ReclaimPolicy::Never) => false,
                (true, WithinClusterQueuePolicy::LowerPriority, _) | (false, _, ReclaimPolicy::LowerPriority) => lower,
                (true, WithinClusterQueuePolicy::LowerOrNewerEqualPriority, _) => {
                    lower || (equal && job.created < holder.job.created)
                }
                (false, _, ReclaimPolicy::Any) => true,
            }
        };
        let uses_short =
            |usage: &Usage| self.needs_preemption.iter().any(|fr| usage.get(fr).is_some_and(|used| *used > 0));
        let uses = |holder: &AdmittedWorkload| holder.preemptible_usage().any(|(_, usage)| uses_short(usage));
        let is_candidate = |holder: &&AdmittedWorkload| holder.job.queue == queue && may(holder) && uses(holder);
        let holders = self.input.candidates.iter().filter(is_candidate);
        let losses = holders.flat_map(|holder| holder.preemptible_usage().map(move |(loss, _)| (holder, *loss)));
        let is_exempt = |holder: &AdmittedWorkload, loss: PreemptionScope| {
            self.exempt.get(&holder.job.key).is_some_and(|spared| *spared <= loss)
        };
        let mut targets: Vec<Target> = losses
            .filter(|(holder, loss)| !is_exempt(holder, *loss))
            .map(|(holder, loss)| Target {
                key: holder.job.key.clone(),
                queue: queue.to_owned(),
                reason: PreemptionReason::InClusterQueue,
                scope: loss,
                order: (holder.job.priority, loss, Reverse(holder.quota_reserved_at), holder.job.uid.clone()),
                common_cohort: None,
                only_without_borrowing: false,
            })
            .collect();
        targets.sort_by(|a, b| a.order.cmp(&b.order));
        targets
    }

    fn classical_preemption(&self) -> Vec<Target> {
        let (reclaimable, by_priority) = self.cohort_candidates();
        let (none_reclaimable, none_by_priority) = (reclaimable.is_empty(), by_priority.is_empty());
        let candidates = [reclaimable, by_priority, self.candidates(&self.input.queue.name)].concat();
        let forbidden = !self.input.queue.borrow_within_cohort;
        let planned = &self.input.planned;
        let under = |fr: &FlavorResource| planned.usage(&self.node, fr) < planned.limits(&self.node, fr).nominal;
        let attempts: &[bool] =
            if (none_reclaimable && none_by_priority) || (forbidden && !self.needs_preemption.iter().all(under)) {
                &[true]
            } else if forbidden && none_reclaimable {
                &[false, true]
            } else {
                &[true, false]
            };
        for may_borrow in attempts {
            let mut targets = Vec::new();
            for candidate in &candidates {
                if self.is_still_valid(candidate, &targets, *may_borrow) {
                    targets.push(candidate.clone());
                    if self.fits(&targets, *may_borrow) {
                        return self.fill_back(targets, |fewer| self.fits(fewer, *may_borrow));
                    }
                }
            }
        }
        Vec::new()
    }

    /// Reports whether a candidate's ClusterQueue, and each Cohort up to the common one, still
    /// exceeds its quota.
    fn is_still_valid(&self, candidate: &Target, targets: &[Target], may_borrow: bool) -> bool {
        if candidate.queue == self.input.queue.name {
            return true;
        }
        if may_borrow && candidate.only_without_borrowing {
            return false;
        }
        let tree = self.without(targets);
        let mut nodes = vec![candidate.node()];
        nodes.extend(
            tree.ancestors(&candidate.node())
                .into_iter()
                .take_while(|node| Some(node) != candidate.common_cohort.as_ref()),
        );
        nodes.iter().all(|node| tree.exceeds_quota_of_any(node, self.needs_preemption))
    }

    /// Returns the candidates of other ClusterQueues: first those that the preemptor's subtree can
    /// reclaim from within its quota, second all others.
    fn cohort_candidates(&self) -> (Vec<Target>, Vec<Target>) {
        let (mut reclaimable, mut by_priority) = (Vec::new(), Vec::new());
        let tree = &self.input.planned;
        let mut advantage = self.usage.iter().all(|(fr, amount)| self.fits_in_quota(&self.node, fr, *amount));
        let mut remaining = self.remaining_after(&self.node, self.usage);
        let mut inside = vec![self.node.clone()];
        for cohort in tree.ancestors(&self.node) {
            let mut queues = Vec::new();
            self.collect_exceeding(&cohort, &inside, &mut queues);
            for mut target in queues.iter().flat_map(|queue| self.candidates(queue)) {
                target.common_cohort = Some(cohort.clone());
                target.reason = PreemptionReason::InCohortReclamation;
                if advantage {
                    reclaimable.push(target);
                    continue;
                }
                let (priority, threshold) = (target.order.0, self.input.queue.priority_threshold);
                let too_high = priority >= self.input.job.priority || threshold.is_some_and(|most| priority > most);
                target.only_without_borrowing = !self.input.queue.borrow_within_cohort || too_high;
                if !target.only_without_borrowing {
                    target.reason = PreemptionReason::InCohortReclaimWhileBorrowing;
                }
                by_priority.push(target);
            }
            advantage |= remaining.iter().all(|(fr, amount)| self.fits_in_quota(&cohort, fr, *amount));
            remaining = self.remaining_after(&cohort, &remaining);
            inside.push(cohort);
        }
        reclaimable.sort_by(|a, b| a.order.cmp(&b.order));
        by_priority.sort_by(|a, b| a.order.cmp(&b.order));
        (reclaimable, by_priority)
    }

    fn fits_in_quota(&self, node: &Node, fr: &FlavorResource, amount: i128) -> bool {
        self.input.planned.usage(node, fr) + amount <= self.input.planned.subtree_quota(node, fr)
    }

    fn remaining_after(&self, node: &Node, usage: &Usage) -> Usage {
        let left = |fr: &FlavorResource, amount: i128| (amount - self.input.planned.local_available(node, fr)).max(0);
        usage.iter().map(|(fr, amount)| (fr.clone(), left(fr, *amount))).collect()
    }

    /// Collects the ClusterQueues below a Cohort that exceed their quota, as does every Cohort
    /// between; skips the nodes in `seen`.
    fn collect_exceeding(&self, cohort: &Node, seen: &[Node], queues: &mut Vec<String>) {
        for child in self.input.planned.children(cohort) {
            if seen.contains(&child) || !self.input.planned.exceeds_quota_of_any(&child, self.needs_preemption) {
                continue;
            }
            match &child {
                Node::Queue(name) => queues.push(name.clone()),
                Node::Cohort(_) => self.collect_exceeding(&child, seen, queues),
            }
        }
    }

    fn fair_preemption(&self, strategies: &[PreemptionStrategy]) -> Vec<Target> {
        let mut left: BTreeMap<String, Vec<Target>> = BTreeMap::new();
        let (tree, root) = (&self.input.planned, self.input.planned.root(&self.node));
        for queue in &self.input.snapshot.queues {
            let same_tree = tree.root(&queue.node()) == root;
            let borrows =
                tree.parent(&queue.node()).is_some() && tree.exceeds_quota_of_any(&queue.node(), self.needs_preemption);
            if queue.name == self.input.queue.name || (same_tree && borrows) {
                left.insert(queue.name.clone(), self.candidates(&queue.name));
            }
        }
        let mut pass =
            FairSharingPass { search: self, candidates: left, exhausted_nodes: BTreeSet::new(), targets: Vec::new() };
        let entitled = !self.needs_preemption.iter().any(|fr| {
            let tree = pass.quota_tree();
            tree.parent(&self.node).is_some() && tree.exceeds_quota(&self.node, fr)
        });
        let mut spared = pass.run_first_strategy(strategies[0], entitled);
        // The candidates that it did not allow are tried again as long as that adds targets.
        while !pass.fits() {
            let before = pass.targets.len();
            for (queue, again) in spared {
                let left = pass.candidates.remove(&queue).unwrap_or_default();
                pass.candidates.insert(queue, [again, left].concat());
            }
            pass.exhausted_nodes.clear();
            spared = pass.run_first_strategy(strategies[0], entitled);
            if pass.targets.len() == before {
                break;
            }
        }
        let mut targets = pass.targets;
        if !self.fits(&targets, true) && strategies.len() > 1 {
            let mut pass =
                FairSharingPass { search: self, candidates: spared, exhausted_nodes: BTreeSet::new(), targets };
            pass.run_second_strategy();
            targets = pass.targets;
        }
        if targets.is_empty() || !self.fits(&targets, true) {
            return Vec::new();
        }
        let own = targets.iter().all(|target| target.queue == self.input.queue.name);
        let may_borrow = own || !self.fits(&targets, false);
        let suffices = |fewer: &[Target]| self.fits(fewer, may_borrow) && self.is_legal(fewer, strategies);
        let targets = self.fill_back(targets, suffices);
        assert!(self.is_legal(&targets, strategies), "no order of {targets:?} is allowed by {strategies:?}");
        targets
    }

    /// Reports whether the targets can be evicted in some order in which a strategy allows each one:
    /// tries all orders.
    fn is_legal(&self, targets: &[Target], strategies: &[PreemptionStrategy]) -> bool {
        let by_share = |target: &&Target| target.reason == PreemptionReason::InCohortFairSharing;
        let (shared, others): (Vec<&Target>, Vec<&Target>) = targets.iter().partition(by_share);
        // Evicting the others first only lowers the share of the preemptor.
        let evicted = others.into_iter().cloned().collect();
        self.has_legal_order(evicted, &shared, strategies)
    }

    fn has_legal_order(&self, evicted: Vec<Target>, left: &[&Target], strategies: &[PreemptionStrategy]) -> bool {
        if left.is_empty() {
            return true;
        }
        let pass = |targets: Vec<Target>| FairSharingPass {
            search: self,
            candidates: BTreeMap::new(),
            exhausted_nodes: BTreeSet::new(),
            targets,
        };
        (0..left.len()).any(|index| {
            let next = left[index];
            let (before, after) = (pass(evicted.clone()), pass([evicted.clone(), vec![next.clone()]].concat()));
            let (ours, theirs) = before.nodes_below_common_cohort(&next.queue);
            let share = |pass: &FairSharingPass<'_>, node: &Node| pass.quota_tree().dominant_share(node);
            let allowed = strategies.iter().any(|rule| {
                let ours = share(&before, &ours);
                match rule {
                    PreemptionStrategy::LessThanOrEqualToFinalShare => ours.compare(share(&after, &theirs)).is_le(),
                    PreemptionStrategy::LessThanInitialShare => ours.compare(share(&before, &theirs)).is_lt(),
                }
            });
            let rest: Vec<&Target> = [&left[..index], &left[index + 1..]].concat();
            allowed && self.has_legal_order(after.targets, &rest, strategies)
        })
    }
}

/// One pass over the remaining candidates, the largest share first.
struct FairSharingPass<'a> {
    search: &'a TargetSearch<'a>,
    candidates: BTreeMap<String, Vec<Target>>,
    /// Nodes without further candidates.
    exhausted_nodes: BTreeSet<Node>,
    targets: Vec<Target>,
}

impl FairSharingPass<'_> {
    /// Returns planned usage with the preemptor and without the targets.
    fn quota_tree(&self) -> QuotaTree<'_> {
        let TargetSearch { input: ask, usage, .. } = self.search;
        self.search.without(&self.targets).with_usage(&ask.queue.name, &ask.job.key, usage)
    }

    fn fits(&self) -> bool {
        !self.targets.is_empty() && self.search.fits(&self.targets, true)
    }

    /// Runs the first strategy; returns the candidates that it did not allow.
    fn run_first_strategy(&mut self, rule: PreemptionStrategy, entitled: bool) -> BTreeMap<String, Vec<Target>> {
        let mut spared: BTreeMap<String, Vec<Target>> = BTreeMap::new();
        while let Some(queue) = self.next_queue() {
            if queue == self.search.input.queue.name || entitled {
                let mut target = self.candidates.get_mut(&queue).expect("candidates").remove(0);
                if queue != self.search.input.queue.name {
                    target.reason = PreemptionReason::InCohortReclamation;
                }
                self.targets.push(target);
                if self.fits() {
                    break;
                }
                continue;
            }
            let (ours, theirs) = self.nodes_below_common_cohort(&queue);
            let (our_share, their_share) =
                (self.quota_tree().dominant_share(&ours), self.quota_tree().dominant_share(&theirs));
            while let Some(mut target) =
                self.candidates.get_mut(&queue).filter(|left| !left.is_empty()).map(|left| left.remove(0))
            {
                let kept = spared.values().flatten().any(|kept| target.requires(kept));
                let after = self.quota_tree().without(&[(target.key.clone(), target.scope)]).dominant_share(&theirs);
                let allowed = match rule {
                    PreemptionStrategy::LessThanOrEqualToFinalShare => our_share.compare(after).is_le(),
                    PreemptionStrategy::LessThanInitialShare => our_share.compare(their_share).is_lt(),
                };
                if allowed && !kept {
                    target.reason = PreemptionReason::InCohortFairSharing;
                    self.targets.push(target);
                    break;
                }
                spared.entry(queue.clone()).or_default().push(target);
            }
            if self.fits() {
                break;
            }
        }
        spared
    }

    /// Runs the second strategy: takes one candidate from each ClusterQueue with a larger share
    /// than the preemptor's.
    fn run_second_strategy(&mut self) {
        while let Some(queue) = self.next_queue() {
            let (ours, theirs) = self.nodes_below_common_cohort(&queue);
            if self.quota_tree().dominant_share(&ours).compare(self.quota_tree().dominant_share(&theirs)).is_lt() {
                let mut target = self.candidates.get_mut(&queue).expect("candidates").remove(0);
                target.reason = PreemptionReason::InCohortFairSharing;
                self.targets.push(target);
                if self.fits() {
                    return;
                }
            }
            self.exhausted_nodes.insert(Node::Queue(queue));
        }
    }

    /// Returns the preemptor's and the target's node directly below the lowest common Cohort.
    fn nodes_below_common_cohort(&self, target: &str) -> (Node, Node) {
        let tree = self.quota_tree();
        let path = |node: Node| [vec![node.clone()], tree.ancestors(&node)].concat();
        let (ours, theirs) = (path(self.search.node.clone()), path(Node::Queue(target.to_owned())));
        let below =
            |path: &[Node], other: &[Node]| path.iter().take_while(|node| !other.contains(node)).last().cloned();
        (below(&ours, &theirs).expect("a node"), below(&theirs, &ours).expect("a node"))
    }

    /// Returns the ClusterQueue of the next candidate; `None` if there is none.
    fn next_queue(&mut self) -> Option<String> {
        let root = self.search.input.planned.root(&self.search.node);
        if let Node::Queue(name) = &root {
            let more =
                self.candidates.get(name).is_some_and(|left| !left.is_empty()) && !self.exhausted_nodes.contains(&root);
            return more.then(|| name.clone());
        }
        while !self.exhausted_nodes.contains(&root) {
            if let Some(queue) = self.next_queue_below(&root) {
                return Some(queue);
            }
        }
        None
    }

    /// Returns the next ClusterQueue below a Cohort; `None` if a node was marked as done instead.
    fn next_queue_below(&mut self, cohort: &Node) -> Option<String> {
        let children = self.quota_tree().children(cohort);
        let preemptor = self.search.node.clone();
        let mut queue: Option<String> = None;
        let mut below: Option<Node> = None;
        for child in children {
            if self.exhausted_nodes.contains(&child) {
                continue;
            }
            let share = self.quota_tree().dominant_share(&child);
            match &child {
                Node::Queue(name) => {
                    let Some(first) = self.candidates.get(name).and_then(|left| left.first()) else {
                        self.exhausted_nodes.insert(child);
                        continue;
                    };
                    if !share.borrows && child != preemptor {
                        self.exhausted_nodes.insert(child);
                        continue;
                    }
                    let better = queue.as_ref().is_none_or(|best| {
                        let order = share.compare(self.quota_tree().dominant_share(&Node::Queue(best.clone())));
                        let other = &self.candidates[best][0];
                        let own = |target: &Target| target.queue == self.search.input.queue.name;
                        let before = (own(first), &first.order) < (own(other), &other.order);
                        order.is_gt() || (order.is_eq() && before)
                    });
                    queue = if better { Some(name.clone()) } else { queue };
                }
                Node::Cohort(_) => {
                    if !share.borrows && !self.quota_tree().ancestors(&preemptor).contains(&child) {
                        self.exhausted_nodes.insert(child);
                    } else if below
                        .as_ref()
                        .is_none_or(|best| share.compare(self.quota_tree().dominant_share(best)).is_ge())
                    {
                        below = Some(child);
                    }
                }
            }
        }
        match (below, queue) {
            (None, None) => {
                self.exhausted_nodes.insert(cohort.clone());
                None
            }
            (None, queue) => queue,
            (Some(below), None) => self.next_queue_below(&below),
            (Some(below), Some(queue)) => {
                let tree = self.quota_tree();
                if tree.dominant_share(&below).compare(tree.dominant_share(&Node::Queue(queue.clone()))).is_ge() {
                    self.next_queue_below(&below)
                } else {
                    Some(queue)
                }
            }
        }
    }
}
