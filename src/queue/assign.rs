//! Assigns flavors to the pod sets of a workload, or reports why none can be assigned.
//!
//! The rules are those of kueue v0.19.2 `pkg/scheduler/flavorassigner/flavorassigner.go`. Where
//! they leave a later pod set without a flavor because of the choice for an earlier one, other
//! combinations are tried as well, so that a larger quota never makes an assignment fail.

use std::collections::BTreeMap;

use super::demand::{Demand, PodSetDemand};
use super::ledger::{Charge, add_to, clamped, wide};
use super::line::Need;
use super::means::{Ground, Means, Mode};
use super::pending::Obstacle;
use super::quota::{Group, Quota};
use super::requests::Requests;
use super::settings::Undeclared;
use super::shortfall::{Binding, Shortfall};
use super::slot::Room;
use super::tree::{Fr, NodeId, Tree, View};
use sluice_api::kueue::{Admission, PodSetAssignment, ResourceFlavorSpec};
use sluice_api::quantity::Amount;

/// Maximum number of flavor combinations to try before a workload is considered not to fit.
pub(super) const MOST_TRIES: usize = 512;

/// The slice that a workload replaces and whose quota it takes over.
#[derive(Debug, Clone)]
pub(super) struct Predecessor<'a> {
    pub(super) charge: &'a Charge,
    pub(super) demand: Option<&'a Demand>,
    pub(super) admission: &'a Admission,
}

impl Predecessor<'_> {
    fn holds(&self, fr: Fr) -> i128 {
        self.charge.get(&fr).copied().unwrap_or_default()
    }

    /// Returns the flavor that running pods of the same pod set have, or `None` if none run
    /// unchanged. Running pods stay on their nodes, so another flavor would add usage where no pod
    /// runs and release usage where pods do run.
    pub(super) fn flavor_of(&self, set: &PodSetDemand, resource: &str) -> Option<&str> {
        let assignment = self.admission.pod_set_assignments.iter().find(|assignment| assignment.name == set.name)?;
        self.running(set, 1).and_then(|_| assignment.flavors.get(resource)).map(String::as_str)
    }

    /// Returns the pod set of the same name and pod requests, if at least `count` of its pods are
    /// admitted.
    pub(super) fn running(&self, set: &PodSetDemand, count: i32) -> Option<&PodSetDemand> {
        let before = self.demand?.pod_sets.iter().find(|before| before.name == set.name)?;
        let assignment = self.admission.pod_set_assignments.iter().find(|assignment| assignment.name == set.name)?;
        let admitted = assignment.count.unwrap_or(before.count);
        (before.per_pod == set.per_pod && admitted >= count).then_some(before)
    }
}

/// Assigns the flavors of one ClusterQueue to one workload.
#[derive(Debug, Clone)]
pub(super) struct Attempt<'a> {
    pub(super) cluster_queue: &'a str,
    pub(super) node: NodeId,
    pub(super) quota: &'a Quota,
    pub(super) flavors: &'a BTreeMap<String, ResourceFlavorSpec>,
    pub(super) undeclared: Undeclared,
    pub(super) fair_sharing: bool,
    pub(super) predecessor: Option<Predecessor<'a>>,
    /// The assignment that evictions were issued for. If set, no other flavors are eligible.
    pub(super) room: Option<&'a Room>,
    /// Capacity that is reserved for the workload itself.
    pub(super) kept_back: Option<&'a Charge>,
    pub(super) demand: &'a Demand,
}

/// The flavors and counts that a workload would get.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Assignment {
    pub(super) means: Means,
    /// Total usage of the workload.
    pub(super) usage: Charge,
    /// Flavor resources that need preemption.
    pub(super) short: Vec<Fr>,
    /// Pod count of each pod set.
    pub(super) counts: Vec<i32>,
    /// Indexes of the pod set in the requests, of the resource group in the ClusterQueue, and of
    /// the flavor in the group.
    flavors: Vec<(usize, usize, usize)>,
}

impl Assignment {
    /// Returns the counts and flavor names to reserve. `quota` must be the one that this was
    /// assigned from.
    pub(super) fn room(&self, quota: &Quota) -> Room {
        let name = |(set, group, flavor): &(usize, usize, usize)| {
            (*set, *group, quota.groups[*group].flavors[*flavor].name.clone())
        };
        Room { counts: self.counts.clone(), flavors: self.flavors.iter().map(name).collect() }
    }
}

/// Collects the reasons why flavors could not be assigned.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// Amounts that were not available. Retrying is worthwhile once any of them is reachable.
    pub(super) needs: Vec<Need>,
    /// Rejected flavors with explanations. `None` if explanations are not requested.
    pub(super) obstacles: Option<Vec<Obstacle>>,
}

/// The requests of one pod set that one resource group covers. One flavor is assigned to each unit.
pub(super) struct Slot<'a> {
    pub(super) place: (usize, usize),
    pub(super) set: &'a PodSetDemand,
    pub(super) group: &'a Group,
    pub(super) asked: Vec<(&'a str, i128)>,
}

/// A flavor for an assignment unit, and the mode in which its resources can be assigned.
#[derive(Debug, Clone)]
struct Choice {
    flavor: usize,
    /// Mode of the resource that the fungibility rules prefer least. Decides which flavor is
    /// chosen.
    means: Means,
    /// Worst preemption mode of its resources. Decides whether the workload is admitted. Differs
    /// from `means` if preemption is preferred over borrowing: a resource that borrows is then less
    /// preferred than one that needs preemption, although only the former can be assigned
    /// immediately.
    mode: Mode,
    /// Highest borrowing level of its resources.
    level: u32,
    /// Amount of each resource, and whether it needs preemption.
    parts: Vec<(Fr, i128, bool)>,
}

impl Choice {
    fn of(slot: &Slot<'_>, flavor: usize) -> Self {
        Self { flavor, means: Means::BEST, mode: Mode::Fit, level: 0, parts: Vec::with_capacity(slot.asked.len()) }
    }
}

impl Attempt<'_> {
    /// Assigns one flavor of each resource group to each pod set, with `counts` pods each. Returns
    /// `None` if a pod set has no eligible flavor with enough quota.
    pub(super) fn assign(&self, counts: &[i32], ground: &mut impl Ground, found: &mut Findings) -> Option<Assignment> {
        let (slots, offered) = self.slots(counts, found);
        // An explanation lists every problem, so it needs all units.
        if !offered && found.obstacles.is_none() {
            return None;
        }
        // An explanation runs the greedy assignment for its findings even if a resource is missing.
        let greedy = self.greedy(&slots, ground, found);
        if !offered {
            return None;
        }
        let choices = match greedy {
            Some(choices) if choices.iter().all(|choice| choice.mode > Mode::NoCandidates) => choices,
            greedy => match self.fitting(&slots, ground, found) {
                Some(choices) => choices,
                None => greedy?,
            },
        };
        Some(self.assignment(counts, &slots, &choices))
    }

    /// Returns the units to assign, ordered by pod set and resource group, and whether the
    /// ClusterQueue has all requested resources.
    pub(super) fn slots(&self, counts: &[i32], found: &mut Findings) -> (Vec<Slot<'_>>, bool) {
        let (mut slots, mut offered) = (Vec::new(), true);
        for (set_index, (set, count)) in self.demand.pod_sets.iter().zip(counts).enumerate() {
            for (group_index, group) in self.quota.groups.iter().enumerate() {
                let asked: Vec<(&str, i128)> = self
                    .quota
                    .requests(set, *count)
                    .filter(|(resource, amount)| *amount != Amount::ZERO && group.resources.contains(*resource))
                    .map(|(resource, amount)| (resource, wide(amount)))
                    .collect();
                if !asked.is_empty() {
                    slots.push(Slot { place: (set_index, group_index), set, group, asked });
                }
            }
            let unknown = self.quota.requests(set, *count).filter(|(resource, amount)| {
                *amount != Amount::ZERO
                    && self.undeclared == Undeclared::Block
                    && self.quota.group_of(resource).is_none()
            });
            for (resource, _) in unknown {
                offered = false;
                if let Some(obstacles) = &mut found.obstacles {
                    obstacles.push(Obstacle::NotOffered { pod_set: set.name.clone(), resource: resource.to_owned() });
                }
            }
        }
        (slots, offered)
    }

    /// Picks the best flavor of each unit in order, with the usage of the earlier units added.
    /// Returns `None` if a unit has no flavor.
    fn greedy(&self, slots: &[Slot<'_>], ground: &mut impl Ground, found: &mut Findings) -> Option<Vec<Choice>> {
        let (mut taken, mut choices, mut complete) = (Charge::new(), Vec::new(), true);
        for slot in slots {
            match self.best(slot, &taken, ground, found) {
                Some(choice) => {
                    choice.parts.iter().for_each(|(fr, amount, _)| add_to(&mut taken, *fr, *amount));
                    choices.push(choice);
                }
                None if found.obstacles.is_some() => {
                    complete = false;
                    // The later units must fit in addition to this one, so its request counts
                    // although it has no flavor.
                    self.first_suitable(slot).for_each(|(fr, amount)| add_to(&mut taken, fr, amount));
                }
                None => return None,
            }
        }
        complete.then_some(choices)
    }

    /// Returns the requests of a unit in its first eligible flavor; empty if no flavor is eligible.
    fn first_suitable<'s>(&self, slot: &'s Slot<'_>) -> impl Iterator<Item = (Fr, i128)> + use<'s> {
        let flavor = slot.group.flavors.iter().find(|flavor| self.objection(slot, flavor).is_none());
        slot.asked.iter().filter_map(move |(resource, amount)| Some((flavor?.fr(resource)?, *amount)))
    }

    fn best(&self, slot: &Slot<'_>, taken: &Charge, ground: &mut impl Ground, found: &mut Findings) -> Option<Choice> {
        let rules = self.quota.fungibility;
        let mut best: Option<Choice> = None;
        for (index, flavor) in slot.group.flavors.iter().enumerate() {
            if let Some(objection) = self.objection(slot, flavor) {
                if let Some(obstacles) = &mut found.obstacles {
                    obstacles.push(self.obstacle(slot, flavor, objection, ground.tree()));
                }
                continue;
            }
            let choice = self.choice(slot, index, taken, ground, found);
            let means = choice.means;
            let so_far = best.as_ref().map_or(Means::WORST, |best| best.means);
            if !means.tries_next(rules) {
                return Some(choice);
            }
            if means.better_than(so_far, rules) {
                best = Some(choice);
            }
        }
        best
    }

    /// Evaluates one flavor for a unit. The result is no better than that of its worst resource.
    fn choice(
        &self,
        slot: &Slot<'_>,
        flavor: usize,
        taken: &Charge,
        ground: &mut impl Ground,
        found: &mut Findings,
    ) -> Choice {
        let mut choice = Choice::of(slot, flavor);
        for (resource, requested) in &slot.asked {
            let Some(fr) = slot.group.flavors[flavor].fr(resource) else {
                (choice.means, choice.mode) = (Means::WORST, Mode::NoFit);
                continue;
            };
            let means = self.means(slot, fr, *requested, taken, ground, found);
            choice.level = choice.level.max(means.level);
            choice.mode = choice.mode.min(means.mode);
            if choice.means.better_than(means, self.quota.fungibility) {
                choice.means = means;
            }
            choice.parts.push((fr, *requested, means.mode < Mode::Deferred));
        }
        choice
    }

    fn means(
        &self,
        slot: &Slot<'_>,
        fr: Fr,
        requested: i128,
        taken: &Charge,
        ground: &mut impl Ground,
        found: &mut Findings,
    ) -> Means {
        let earlier = taken.get(&fr).copied().unwrap_or_default();
        let wanted = earlier + requested;
        let held = self.predecessor.as_ref().map_or(0, |predecessor| predecessor.holds(fr));
        let tree = ground.tree();
        let note = |found: &mut Findings, exceeds: bool| {
            if let Some(obstacles) = &mut found.obstacles {
                let shortfall = self.shortfall(tree, slot, fr, requested, earlier, held);
                obstacles.push(if exceeds { Obstacle::Exceeds(shortfall) } else { Obstacle::Short(shortfall) });
            }
        };
        if wanted > tree.potential(self.node, fr) {
            note(found, true);
            return Means::WORST;
        }
        // Quota of the predecessor changes hands, and capacity reserved for this workload is its own.
        let planned = held + self.kept_for_it(fr);
        let fit = tree.lowest_fit(self.node, fr, wanted, View::Planned, planned);
        if wanted <= tree.available(self.node, fr, View::Planned, planned) {
            let now = wanted <= tree.available(self.node, fr, View::Actual, held);
            return Means { mode: if now { Mode::Fit } else { Mode::Deferred }, level: fit.height };
        }
        note(found, false);
        found.needs.push(Need { fr, amount: wanted });
        // As in Kueue, preemption is considered only within the nominal quota or a subtree that owns
        // the quota, or if the policy permits preemption while borrowing.
        let rules = self.quota.preemption;
        let entitled = tree.nominal(self.node, fr) >= wanted - held || fit.reclaimable;
        let may_borrow = rules.while_borrowing || (self.fair_sharing && rules.reclaim != Default::default());
        if entitled || may_borrow {
            ground.make_room(fr, wanted)
        } else {
            Means { mode: Mode::NoFit, level: fit.height }
        }
    }

    /// Returns the amount of planned usage that is reserved for the workload itself.
    fn kept_for_it(&self, fr: Fr) -> i128 {
        self.kept_back.and_then(|charge| charge.get(&fr)).copied().unwrap_or_default()
    }

    fn shortfall(&self, tree: &Tree, slot: &Slot<'_>, fr: Fr, requested: i128, earlier: i128, held: i128) -> Shortfall {
        let at = tree.flavor_resource(fr);
        let wanted = requested + earlier;
        let planned = held + self.kept_for_it(fr);
        let available = tree.available(self.node, fr, View::Planned, planned);
        let potential = tree.potential(self.node, fr);
        let (node, limited) = if wanted > potential {
            tree.binding_ever(self.node, fr, wanted)
        } else {
            tree.binding(self.node, fr, wanted, View::Planned, planned)
        };
        let missing = if wanted > potential { wanted - potential } else { wanted - available };
        Shortfall {
            requested: clamped(requested),
            earlier: clamped(earlier),
            held: clamped(held),
            used: clamped(tree.used(self.node, fr, View::Planned) - planned),
            nominal: clamped(tree.nominal(self.node, fr)),
            potential: clamped(potential),
            binding: Binding::at(tree, node, limited),
            missing: clamped(missing),
            missing_now: clamped(wanted - available),
            within: Some((node, fr)),
            ..Shortfall::new(&slot.set.name, &at.flavor, &at.resource)
        }
    }

    /// Searches for a combination of flavors that all fit without preemption. Returns `None` if
    /// there is no alternative to the greedy assignment, or if explanations are requested.
    fn fitting(&self, slots: &[Slot<'_>], ground: &mut impl Ground, found: &mut Findings) -> Option<Vec<Choice>> {
        let contested = slots.len() > 1 && slots.iter().any(|slot| slot.group.flavors.len() > 1);
        if !contested || found.obstacles.is_some() {
            return None;
        }
        let (mut taken, mut choices, mut tries) = (Charge::new(), Vec::new(), 0);
        let fits = self.fitting_from(slots, ground, found, &mut taken, &mut choices, &mut tries);
        if tries >= MOST_TRIES {
            // The search is incomplete, so the collected needs are no lower bound.
            found.needs.clear();
        }
        fits.then_some(choices)
    }

    fn fitting_from(
        &self,
        slots: &[Slot<'_>],
        ground: &mut impl Ground,
        found: &mut Findings,
        taken: &mut Charge,
        choices: &mut Vec<Choice>,
        tries: &mut usize,
    ) -> bool {
        let Some((slot, rest)) = slots.split_first() else { return true };
        for (index, flavor) in slot.group.flavors.iter().enumerate() {
            *tries += 1;
            if *tries >= MOST_TRIES {
                return false;
            }
            if self.objection(slot, flavor).is_some() {
                continue;
            }
            let Some(choice) = self.free(slot, index, taken, ground.tree(), found) else { continue };
            choice.parts.iter().for_each(|(fr, amount, _)| add_to(taken, *fr, *amount));
            choices.push(choice);
            if self.fitting_from(rest, ground, found, taken, choices, tries) {
                return true;
            }
            for (fr, amount, _) in choices.pop().map(|choice| choice.parts).unwrap_or_default() {
                add_to(taken, fr, -amount);
            }
        }
        false
    }

    /// Returns a flavor for a unit if all of its requests are available there, now and as planned.
    fn free(
        &self,
        slot: &Slot<'_>,
        flavor: usize,
        taken: &Charge,
        tree: &Tree,
        found: &mut Findings,
    ) -> Option<Choice> {
        let mut choice = Choice::of(slot, flavor);
        for (resource, requested) in &slot.asked {
            let fr = slot.group.flavors[flavor].fr(resource)?;
            let wanted = requested + taken.get(&fr).copied().unwrap_or_default();
            let held = self.predecessor.as_ref().map_or(0, |predecessor| predecessor.holds(fr));
            let free = |view| tree.available(self.node, fr, view, held);
            if wanted > free(View::Planned) || wanted > free(View::Actual) {
                found.needs.push(Need { fr, amount: wanted });
                return None;
            }
            let level = tree.lowest_fit(self.node, fr, wanted, View::Planned, held).height;
            choice.level = choice.level.max(level);
            choice.parts.push((fr, *requested, false));
        }
        Some(choice)
    }

    fn assignment(&self, counts: &[i32], slots: &[Slot<'_>], choices: &[Choice]) -> Assignment {
        let mut assignment = Assignment {
            means: Means::BEST,
            usage: Charge::new(),
            short: Vec::new(),
            counts: counts.to_vec(),
            flavors: Vec::with_capacity(slots.len()),
        };
        for (slot, choice) in slots.iter().zip(choices) {
            let means = &mut assignment.means;
            *means = Means { mode: means.mode.min(choice.mode), level: means.level.max(choice.level) };
            assignment.flavors.push((slot.place.0, slot.place.1, choice.flavor));
            for (fr, amount, is_short) in &choice.parts {
                add_to(&mut assignment.usage, *fr, *amount);
                if *is_short && !assignment.short.contains(fr) {
                    assignment.short.push(*fr);
                }
            }
        }
        assignment
    }

    /// Converts an assignment to an Admission.
    pub(super) fn admission(&self, assignment: &Assignment) -> Admission {
        let sets = self.demand.pod_sets.iter().zip(&assignment.counts).enumerate();
        let assignments = sets.map(|(index, (set, count))| {
            let requests: Requests =
                self.quota.requests(set, *count).map(|(name, amount)| (name.to_owned(), amount)).collect();
            let mut flavors = BTreeMap::new();
            for (_, group, flavor) in assignment.flavors.iter().filter(|(set, ..)| *set == index) {
                let group = &self.quota.groups[*group];
                let asked = requests.iter().filter(|(resource, _)| group.resources.contains(*resource));
                flavors.extend(asked.map(|(resource, _)| (resource.to_owned(), group.flavors[*flavor].name.clone())));
            }
            let used = requests.quantities().into_iter().filter(|(resource, _)| flavors.contains_key(resource));
            PodSetAssignment {
                name: set.name.clone(),
                resource_usage: used.collect(),
                flavors,
                count: Some(*count),
                ..PodSetAssignment::default()
            }
        });
        Admission { cluster_queue: self.cluster_queue.to_owned(), pod_set_assignments: assignments.collect() }
    }
}
