//! Selection of preemption targets: kueue v0.19.2 `pkg/scheduler/preemption`,
//! `classicalPreemptions` and `fairPreemptions`.

mod fair_sharing;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::flavor_assignment::AssignmentInput;
use super::quota_tree::{FlavorResource, Node, QuotaTree, Usage};
use super::snapshot::{AdmittedWorkload, OracleWorkload, Queue};
use crate::PreemptionReason;
use crate::partial_preemption::PreemptionScope;
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
}
