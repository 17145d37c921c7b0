//! What pods could ever be given, if nobody else held anything: whether waiting is of any use, and what would be.

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

/// What could ever become of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prospect {
    /// It fits once enough is free.
    Fits,
    /// It asks for more than there is in all: by as little as any choice of flavors allows.
    Lacks(Vec<Lack>),
    /// No flavor is right for its pods.
    Unsuited(Vec<Obstacle>),
}

/// What there will never be enough of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lack {
    /// Name of the flavor.
    pub flavor: String,
    /// Name of the resource.
    pub resource: String,
    /// What is needed of it.
    pub need: Amount,
    /// The most that the ClusterQueue could get, with all that it may borrow.
    pub most: Amount,
    /// What more there would have to be.
    pub missing: Amount,
    /// The ClusterQueue.
    pub cluster_queue: String,
    /// What of the tree does not give more.
    pub binding: Binding,
    /// The least `nominalQuota` of the ClusterQueue with which there is enough.
    pub nominal: Amount,
    /// The least value of what binds with which there is enough; `None` if that is not enough by itself.
    pub limit: Option<Amount>,
}

/// Answers what could ever be given to pods of these pod sets.
#[derive(Debug)]
pub struct Prospects<'a> {
    engine: &'a Engine,
    state: &'a ClusterQueueState,
    /// The slice that they take over from: pods of it that run stay in the flavor that they are in.
    before: Option<&'a Slot>,
    demand: Demand,
}

impl Engine {
    /// What could ever be given to the pods of a Workload, which need not exist, if nobody held anything; its pods that run
    /// already on the slice that it replaces stay in their flavors. `None` when it can't be told: its LocalQueue or
    /// ClusterQueue isn't there, or its pod sets can't be understood.
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
    /// What could ever become of so many pods of each pod set; of those that are not named, none.
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

/// Why no flavor is right for a slot; nothing if one is.
fn unsuited(attempt: &Attempt<'_>, slot: &SlotOfSet<'_>, tree: &Tree) -> Vec<Obstacle> {
    let mut problems = Vec::new();
    for flavor in &slot.group.flavors {
        let Some(objection) = attempt.objection(slot, flavor) else { return Vec::new() };
        problems.push(attempt.obstacle(slot, flavor, objection, tree));
    }
    problems
}

/// Looks for the choice of flavors that lacks the fewest things, and of those the least.
struct Search<'a> {
    prospects: &'a Prospects<'a>,
    attempt: &'a Attempt<'a>,
    tries: usize,
    best: Option<Choice>,
}

/// What a choice of flavors for all slots lacks.
struct Choice {
    lacks: Vec<(Fr, i128)>,
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
        // What is chosen on top of this lacks no less.
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
