//! Checks whether pods could be admitted if no quota were in use, and which quota would be
//! required.

use std::collections::BTreeMap;

use super::ObjectKey;
use super::assign::{Attempt, Findings, MOST_TRIES, Predecessor, Slot as SlotOfSet};
use super::demand::{Ask, Demand};
use super::engine::{ClusterQueueState, Engine};
use super::entry::{PodCount, claimed_by};
use super::ledger::{Charge, add_to, clamped};
use super::pending::Obstacle;
use super::shortfall::Binding;
use super::slot::Slot;
use super::tree::{Fr, Tree};
use sluice_api::kueue::Workload;
use sluice_api::quantity::Amount;

/// Result of a check against the total quota.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prospect {
    /// Fits once enough quota is unused.
    Fits,
    /// Exceeds the total quota. Lists the smallest deficits that any combination of flavors has.
    Lacks(Vec<Lack>),
    /// No flavor is eligible for its pods.
    Unsuited(Vec<Obstacle>),
}

/// A flavor resource of which the total quota is too small.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lack {
    /// Name of the flavor.
    pub flavor: String,
    /// Name of the resource.
    pub resource: String,
    /// Requested amount.
    pub need: Amount,
    /// The most that the ClusterQueue can get, including what it can borrow.
    pub most: Amount,
    /// Amount by which the request exceeds that maximum.
    pub missing: Amount,
    /// Name of the ClusterQueue.
    pub cluster_queue: String,
    /// The limit in the cohort tree that is exceeded.
    pub binding: Binding,
    /// Smallest `nominalQuota` of the ClusterQueue that is sufficient.
    pub nominal: Amount,
    /// Smallest value of the exceeded limit that is sufficient. `None` if another limit would still
    /// be exceeded.
    pub limit: Option<Amount>,
}

/// Checks pod counts of given pod sets against the total quota.
#[derive(Debug)]
pub struct Prospects<'a> {
    engine: &'a Engine,
    state: &'a ClusterQueueState,
    /// The slice that is replaced: its running pods stay in their flavors.
    before: Option<&'a Slot>,
    demand: Demand,
}

impl Engine {
    /// Returns a checker for the pod sets of a Workload, which need not exist. Pods that run on the
    /// slice that it replaces stay in their flavors. Returns `None` if the LocalQueue or
    /// ClusterQueue does not exist, or if the pod sets are invalid.
    pub fn prospects(&self, workload: &Workload) -> Option<Prospects<'_>> {
        let key = ObjectKey::of(workload);
        let queue_name = workload.spec.queue_name.as_ref()?;
        let local_queue = self.local_queues.id(&ObjectKey::new(key.namespace.clone(), queue_name.clone()))?;
        let cluster_queue = self.local_queues.get(local_queue)?.rules.as_ref()?.cluster_queue?;
        let state = self.cluster_queues.get(cluster_queue)?;
        state.quota.as_ref()?;
        let ask = Ask::of(workload, &self.settings.resources).ok()?;
        let counts: Vec<(String, PodCount)> =
            workload.spec.pod_sets.iter().map(|set| (set.name.clone(), PodCount::of(set.count))).collect();
        let demand = self.demands.hypothetical(&ask, &key.namespace, &counts, &self.settings.resources);
        let before = claimed_by(workload).and_then(|claimed| self.workloads.named(&claimed));
        Some(Prospects { engine: self, state, before, demand })
    }
}

impl Prospects<'_> {
    /// Checks the given pod counts, by pod set name. Pod sets that are not listed have no pods.
    pub fn of(&self, pods: &BTreeMap<String, u32>) -> Prospect {
        let Some(quota) = &self.state.quota else { return Prospect::Unsuited(Vec::new()) };
        let count = |name: &String| pods.get(name).map_or(0, |count| i32::try_from(*count).unwrap_or(i32::MAX));
        let counts: Vec<i32> = self.demand.pod_sets.iter().map(|set| count(&set.name)).collect();
        let attempt = Attempt {
            cluster_queue: &self.state.name,
            node: self.state.node,
            quota,
            flavors: &self.engine.flavors,
            undeclared: self.engine.settings.resources.undeclared,
            fair_sharing: self.engine.settings.fair_sharing.is_some(),
            predecessor: self.before.and_then(|before| {
                let (demand, admission) = (before.entry.demand.as_deref().ok(), before.admission()?);
                Some(Predecessor { charge: &before.booked.charge, demand, admission })
            }),
            room: None,
            kept_back: None,
            demand: &self.demand,
        };
        let mut found = Findings { obstacles: Some(Vec::new()), ..Findings::default() };
        let (slots, _) = attempt.slots(&counts, &mut found);
        let mut obstacles = found.obstacles.unwrap_or_default();
        obstacles.extend(slots.iter().flat_map(|slot| unsuited(&attempt, slot, &self.engine.tree)));
        if !obstacles.is_empty() {
            return Prospect::Unsuited(obstacles);
        }
        let mut search = Search { prospects: self, attempt: &attempt, tries: 0, best: None };
        search.from(&slots, &mut Charge::new());
        match search.best.map(|best| best.lacks).unwrap_or_default() {
            lacks if lacks.is_empty() => Prospect::Fits,
            lacks => Prospect::Lacks(lacks.into_iter().map(|(fr, missing)| self.lack(fr, missing)).collect()),
        }
    }

    fn potential(&self, fr: Fr) -> i128 {
        self.engine.tree.potential(self.state.node, fr)
    }

    fn lack(&self, fr: Fr, missing: i128) -> Lack {
        let tree = &self.engine.tree;
        let (at, most) = (tree.flavor_resource(fr), self.potential(fr));
        let need = most + missing;
        let (node, limited) = tree.binding_ever(self.state.node, fr, need);
        Lack {
            flavor: at.flavor.clone(),
            resource: at.resource.clone(),
            need: clamped(need),
            most: clamped(most),
            missing: clamped(missing),
            cluster_queue: self.state.name.clone(),
            binding: Binding::at(tree, node, limited),
            nominal: clamped(tree.nominal(self.state.node, fr) + missing),
            limit: tree.enough_ever(self.state.node, fr, need).map(clamped),
        }
    }
}

/// Returns the rejections of all flavors of a unit; empty if any flavor is eligible.
fn unsuited(attempt: &Attempt<'_>, slot: &SlotOfSet<'_>, tree: &Tree) -> Vec<Obstacle> {
    let mut problems = Vec::new();
    for flavor in &slot.group.flavors {
        let Some(objection) = attempt.objection(slot, flavor) else { return Vec::new() };
        problems.push(attempt.obstacle(slot, flavor, objection, tree));
    }
    problems
}

/// Searches for the combination of flavors with the fewest and then smallest deficits.
struct Search<'a> {
    prospects: &'a Prospects<'a>,
    attempt: &'a Attempt<'a>,
    tries: usize,
    best: Option<Choice>,
}

/// Deficits of a complete combination of flavors.
struct Choice {
    lacks: Vec<(Fr, i128)>,
    /// Number of deficits and their sum.
    cost: (usize, i128),
}

impl Search<'_> {
    fn from(&mut self, slots: &[SlotOfSet<'_>], taken: &mut Charge) {
        let lacks: Vec<(Fr, i128)> = taken
            .iter()
            .map(|(fr, amount)| (*fr, amount - self.prospects.potential(*fr)))
            .filter(|(_, missing)| *missing > 0)
            .collect();
        let cost = (lacks.len(), lacks.iter().map(|(_, missing)| missing).sum());
        // Choosing further flavors never reduces the deficits, so the branch is pruned.
        if self.best.as_ref().is_some_and(|best| best.cost <= cost) {
            return;
        }
        let Some((slot, rest)) = slots.split_first() else {
            self.best = Some(Choice { lacks, cost });
            return;
        };
        for flavor in &slot.group.flavors {
            self.tries += 1;
            if self.tries >= MOST_TRIES && self.best.is_some() {
                return;
            }
            if self.attempt.objection(slot, flavor).is_some() {
                continue;
            }
            let parts: Option<Vec<(Fr, i128)>> =
                slot.asked.iter().map(|(resource, amount)| Some((flavor.fr(resource)?, *amount))).collect();
            let Some(parts) = parts else { continue };
            parts.iter().for_each(|(fr, amount)| add_to(taken, *fr, *amount));
            self.from(rest, taken);
            parts.iter().for_each(|(fr, amount)| add_to(taken, *fr, -amount));
        }
    }
}
