//! Flavor assignment of one workload.

use std::collections::{BTreeMap, BTreeSet};

use super::preemption;
use super::quota_tree::{FlavorResource, QuotaTree, Usage};
use super::snapshot::{AdmittedWorkload, OracleWorkload, PodSet, Queue, Snapshot};
use crate::cached_workload::ReservedAssignment;
use crate::partial_preemption::PreemptionScope;
use sluice_api::kueue::cluster_queue::ReclaimPolicy;
use sluice_plan::ObjectKey;

/// Preemption mode of an assignment, the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PreemptionMode {
    NoFit,
    NoPreemptionCandidates,
    Preempt,
    Reclaim,
    FitAfterEvictions,
    Fit,
}

/// Input of flavor assignment for one workload.
pub(super) struct AssignmentInput<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) job: &'a OracleWorkload,
    pub(super) queue: &'a Queue,
    /// Actual and planned usage, both without the predecessor.
    pub(super) actual: QuotaTree<'a>,
    pub(super) planned: QuotaTree<'a>,
    /// Workloads that may be preempted.
    pub(super) candidates: Vec<AdmittedWorkload>,
    pub(super) predecessor: Option<AdmittedWorkload>,
    /// Reserved assignment to use; `None` to assign freely.
    pub(super) reserved_assignment: Option<&'a ReservedAssignment>,
    /// Pending workloads with their predecessors.
    pub(super) pending: Vec<(OracleWorkload, Option<AdmittedWorkload>)>,
}

#[derive(Debug, Clone)]
pub(super) struct Assignment {
    pub(super) mode: PreemptionMode,
    pub(super) borrowing_level: u32,
    pub(super) usage: Usage,
    /// Flavors and resources that need preemption.
    pub(super) needs_preemption: BTreeSet<FlavorResource>,
    /// Name, pod count, and flavor by resource of each pod set.
    pub(super) pod_sets: Vec<(String, i32, BTreeMap<String, String>)>,
}

/// Requests of one pod set for one resource group.
struct AssignmentUnit<'a> {
    pod_set_index: usize,
    pod_set: &'a PodSet,
    flavors: &'a [String],
    requests: BTreeMap<String, i128>,
    /// Flavors that contradict all combinations of flavors for the other requests of the pod set.
    excluded: BTreeSet<String>,
}

/// One flavor for one assignment unit; its mode is that of the least preferred resource.
#[derive(Debug, Clone)]
struct FlavorChoice {
    flavor: String,
    mode: PreemptionMode,
    mode_level: u32,
    borrowing_level: u32,
    amounts: Vec<(FlavorResource, i128, PreemptionMode)>,
}

impl FlavorChoice {
    /// Returns the worst mode of all resources.
    fn worst_mode(&self) -> PreemptionMode {
        self.amounts.iter().map(|(.., mode)| *mode).min().unwrap_or(PreemptionMode::Fit)
    }
}

impl AssignmentInput<'_> {
    pub(super) fn assign(&self, counts: &[i32]) -> Option<Assignment> {
        let slots = self.units(counts)?;
        let greedy = self.assign_greedy(&slots);
        let works = |choices: &Vec<FlavorChoice>| {
            choices.iter().all(|choice| choice.worst_mode() > PreemptionMode::NoPreemptionCandidates)
        };
        let choices = match greedy.clone().filter(works) {
            Some(choices) => choices,
            None => self.assign_backtracking(&slots).or(greedy)?,
        };
        let mut assignment = Assignment {
            mode: choices.iter().map(FlavorChoice::worst_mode).min().unwrap_or(PreemptionMode::Fit),
            borrowing_level: choices.iter().map(|choice| choice.borrowing_level).max().unwrap_or(0),
            usage: Usage::new(),
            needs_preemption: BTreeSet::new(),
            pod_sets: Vec::new(),
        };
        for (index, (set, count)) in self.job.pod_sets.iter().zip(counts).enumerate() {
            let flavors = if *count == 0 { self.flavors_without_pods(index, set) } else { BTreeMap::new() };
            assignment.pod_sets.push((set.name.clone(), *count, flavors));
        }
        for (slot, choice) in slots.iter().zip(&choices) {
            for (fr, amount, mode) in &choice.amounts {
                *assignment.usage.entry(fr.clone()).or_default() += amount;
                assignment.pod_sets[slot.pod_set_index].2.insert(fr.1.clone(), choice.flavor.clone());
                if *mode < PreemptionMode::FitAfterEvictions {
                    assignment.needs_preemption.insert(fr.clone());
                }
            }
        }
        Some(assignment)
    }

    fn units(&self, counts: &[i32]) -> Option<Vec<AssignmentUnit<'_>>> {
        let mut slots = Vec::new();
        for (index, (pod_set, count)) in self.job.pod_sets.iter().zip(counts).enumerate() {
            let all = pod_set.per_pod.iter().map(|(resource, amount)| (resource.clone(), amount * i128::from(*count)));
            let all: BTreeMap<String, i128> = all.filter(|(_, amount)| *amount > 0).collect();
            if !all.keys().all(|resource| self.queue.groups.iter().any(|(covered, _)| covered.contains(resource))) {
                return None;
            }
            for (covered, flavors) in &self.queue.groups {
                let mut asked = all.clone();
                asked.retain(|resource, _| covered.contains(resource));
                if !asked.is_empty() {
                    let excluded = BTreeSet::new();
                    slots.push(AssignmentUnit { pod_set_index: index, pod_set, flavors, requests: asked, excluded });
                }
            }
        }
        Some(self.with_exclusions(slots))
    }

    fn with_exclusions<'a>(&self, mut slots: Vec<AssignmentUnit<'a>>) -> Vec<AssignmentUnit<'a>> {
        let excluded: Vec<_> = slots.iter().map(|slot| self.excluded_flavors(slot, &slots)).collect();
        slots.iter_mut().zip(excluded).for_each(|(slot, excluded)| slot.excluded = excluded);
        slots
    }

    /// Returns the flavors of a unit that are in no combination without contradictions. The other
    /// flavors in it have enough quota, if that leaves the unit any flavor.
    fn excluded_flavors(&self, slot: &AssignmentUnit<'_>, slots: &[AssignmentUnit<'_>]) -> BTreeSet<String> {
        let has_quota = |other: &AssignmentUnit<'_>, flavor: &String| {
            other.requests.iter().all(|(resource, amount)| {
                *amount <= self.planned.potential_available(&self.queue.node(), &(flavor.clone(), resource.clone()))
            })
        };
        let eligible = |unit: &AssignmentUnit<'_>| -> BTreeSet<String> {
            unit.flavors.iter().filter(|flavor| self.is_eligible_alone(unit, flavor)).cloned().collect()
        };
        let excluded = |with_quota: bool| -> BTreeSet<String> {
            let of_set = |other: &&AssignmentUnit<'_>| other.pod_set_index == slot.pod_set_index;
            let others = slots.iter().filter(of_set).filter(|other| other.flavors != slot.flavors);
            let mut combinations: Vec<Vec<String>> = vec![Vec::new()];
            for other in others.filter(|other| !eligible(other).is_empty()) {
                let flavors = eligible(other).into_iter().filter(|flavor| !with_quota || has_quota(other, flavor));
                let flavors: Vec<String> = flavors.collect();
                let longer = combinations.iter().flat_map(|combination| {
                    flavors.iter().map(|flavor| [combination.as_slice(), std::slice::from_ref(flavor)].concat())
                });
                combinations = longer.collect();
            }
            let goes = |flavor: &String| {
                combinations.iter().any(|others| {
                    let all: Vec<&String> = others.iter().chain([flavor]).collect();
                    all.iter().all(|one| !self.contradict(one, &all))
                })
            };
            eligible(slot).into_iter().filter(|flavor| !goes(flavor)).collect()
        };
        if excluded(true).len() < eligible(slot).len() { excluded(true) } else { excluded(false) }
    }

    /// Returns the first eligible flavor of each resource that a pod of the set requests.
    fn flavors_without_pods(&self, index: usize, set: &PodSet) -> BTreeMap<String, String> {
        let units = self.queue.groups.iter().map(|(covered, flavors)| {
            let covered = set.per_pod.keys().filter(|resource| covered.contains(*resource));
            let requests = covered.map(|name| (name.clone(), 0)).collect();
            AssignmentUnit { pod_set_index: index, pod_set: set, flavors, requests, excluded: BTreeSet::new() }
        });
        let units = units.filter(|unit| !unit.requests.is_empty()).collect();
        let mut assigned = BTreeMap::new();
        for unit in self.with_exclusions(units) {
            let of_set: Vec<&String> = assigned.values().collect();
            if let Some(flavor) = unit.flavors.iter().find(|flavor| self.is_eligible(&unit, flavor, &of_set)) {
                let flavor = flavor.clone();
                assigned.extend(unit.requests.keys().map(|resource| (resource.clone(), flavor.clone())));
            }
        }
        assigned
    }

    fn assign_greedy(&self, slots: &[AssignmentUnit<'_>]) -> Option<Vec<FlavorChoice>> {
        let (mut taken, mut choices) = (Usage::new(), Vec::new());
        for slot in slots {
            let choice = self.best_flavor(slot, &taken, &flavors_of_set(slot, slots, &choices))?;
            add_choice(&mut taken, &choice);
            choices.push(choice);
        }
        Some(choices)
    }

    /// Returns the flavor at which the fungibility policy stops the search, or else the most
    /// preferred one.
    fn best_flavor(&self, slot: &AssignmentUnit<'_>, taken: &Usage, of_set: &[&String]) -> Option<FlavorChoice> {
        let mut best: Option<FlavorChoice> = None;
        for flavor in slot.flavors.iter().filter(|flavor| self.is_eligible(slot, flavor, of_set)) {
            let choice = self.choice(slot, flavor, taken);
            let next = match choice.mode {
                PreemptionMode::NoFit | PreemptionMode::NoPreemptionCandidates => true,
                PreemptionMode::Preempt | PreemptionMode::Reclaim | PreemptionMode::FitAfterEvictions
                    if self.queue.try_next_if_preempting =>
                {
                    true
                }
                _ => choice.mode_level > 0 && self.queue.try_next_if_borrowing,
            };
            if !next {
                return Some(choice);
            }
            let better = match &best {
                None => choice.mode > PreemptionMode::NoFit,
                Some(best) => self.is_preferred((choice.mode, choice.mode_level), (best.mode, best.mode_level)),
            };
            best = if better { Some(choice) } else { best };
        }
        best
    }

    /// Returns the first combination of flavors in which every unit fits, immediately or, if some
    /// flavors contradict each other, after evictions.
    fn assign_backtracking(&self, slots: &[AssignmentUnit<'_>]) -> Option<Vec<FlavorChoice>> {
        let mut pairs = slots.iter().flat_map(|slot| slots.iter().map(move |other| (slot, other)));
        let contradict = pairs.any(|(slot, other)| {
            let others = || other.flavors.iter().collect::<Vec<_>>();
            let is_contradicted = |flavor: &String| others().iter().any(|other| self.contradict(flavor, &[other]));
            slot.pod_set_index == other.pod_set_index
                && slot.flavors != other.flavors
                && slot.flavors.iter().any(is_contradicted)
        });
        let fitting = self.first_combination(slots, &[], false);
        fitting.or_else(|| contradict.then(|| self.first_combination(slots, &[], true)).flatten())
    }

    fn first_combination(
        &self,
        slots: &[AssignmentUnit<'_>],
        chosen: &[FlavorChoice],
        with_evictions: bool,
    ) -> Option<Vec<FlavorChoice>> {
        let Some(slot) = slots.get(chosen.len()) else { return Some(chosen.to_vec()) };
        let mut taken = Usage::new();
        chosen.iter().for_each(|choice| add_choice(&mut taken, choice));
        let of_set = flavors_of_set(slot, slots, chosen);
        slot.flavors.iter().filter(|flavor| self.is_eligible(slot, flavor, &of_set)).find_map(|flavor| {
            let choice = self.choice(slot, flavor, &taken);
            let is_accepted = if with_evictions {
                choice.worst_mode() > PreemptionMode::NoPreemptionCandidates
            } else {
                self.fits_now(slot, flavor, &taken)
            };
            if !is_accepted {
                return None;
            }
            self.first_combination(slots, &[chosen, &[choice]].concat(), with_evictions)
        })
    }

    /// Reports whether the nodes of a flavor cannot be those of all others too.
    fn contradict(&self, flavor: &str, others: &[&String]) -> bool {
        let labels = |flavor: &str| &self.snapshot.flavors[flavor].node_labels;
        others.iter().any(|other| {
            labels(flavor).iter().any(|(key, value)| labels(other).get(key).is_some_and(|theirs| theirs != value))
        })
    }

    fn fits_now(&self, slot: &AssignmentUnit<'_>, flavor: &str, taken: &Usage) -> bool {
        slot.requests.iter().all(|(resource, amount)| {
            let fr = (flavor.to_owned(), resource.clone());
            let wanted = amount + taken.get(&fr).copied().unwrap_or(0);
            [&self.actual, &self.planned].iter().all(|tree| wanted <= tree.available(&self.queue.node(), &fr))
        })
    }

    /// Reports whether a flavor is eligible in addition to those that the pod set has.
    fn is_eligible(&self, slot: &AssignmentUnit<'_>, flavor: &str, of_set: &[&String]) -> bool {
        self.is_eligible_alone(slot, flavor) && !slot.excluded.contains(flavor) && !self.contradict(flavor, of_set)
    }

    /// Reports whether the pods match the flavor's nodes, the reserved assignment, and the flavor of
    /// equal pods of the predecessor.
    fn is_eligible_alone(&self, slot: &AssignmentUnit<'_>, flavor: &str) -> bool {
        let pinned = self.predecessor.as_ref().and_then(|before| {
            let is_equal = |set: &&PodSet| set.name == slot.pod_set.name && set.per_pod == slot.pod_set.per_pod;
            before.job.pod_sets.iter().find(is_equal)?;
            let sets = &before.admission.pod_set_assignments;
            let granted = sets.iter().find(|set| set.name == slot.pod_set.name && set.count != Some(0))?;
            slot.requests.keys().find_map(|resource| granted.flavors.get(resource))
        });
        let in_group = |group: usize| self.queue.groups[group].1 == slot.flavors;
        let reserved = self
            .reserved_assignment
            .iter()
            .flat_map(|room| &room.flavors)
            .find(|reserved| reserved.unit.pod_set == slot.pod_set_index && in_group(reserved.unit.group));
        if reserved.is_some_and(|reserved| reserved.flavor != flavor) {
            return false;
        }
        let spec = &self.snapshot.flavors[flavor];
        pinned.is_none_or(|pinned| pinned == flavor) && slot.pod_set.node_requirements.mismatch(spec).is_none()
    }

    fn choice(&self, slot: &AssignmentUnit<'_>, flavor: &str, taken: &Usage) -> FlavorChoice {
        let mut choice = FlavorChoice {
            flavor: flavor.to_owned(),
            mode: PreemptionMode::Fit,
            mode_level: 0,
            borrowing_level: 0,
            amounts: Vec::new(),
        };
        for (resource, amount) in &slot.requests {
            let fr = (flavor.to_owned(), resource.clone());
            let (mode, level) = self.preemption_mode(&fr, amount + taken.get(&fr).copied().unwrap_or(0));
            if self.is_preferred((choice.mode, choice.mode_level), (mode, level)) {
                (choice.mode, choice.mode_level) = (mode, level);
            }
            choice.borrowing_level = choice.borrowing_level.max(level);
            choice.amounts.push((fr, *amount, mode));
        }
        choice
    }

    /// Returns the mode and the borrowing level of an amount of one flavor and resource.
    fn preemption_mode(&self, fr: &FlavorResource, amount: i128) -> (PreemptionMode, u32) {
        let node = self.queue.node();
        if amount > self.planned.potential_available(&node, fr) {
            return (PreemptionMode::NoFit, 0);
        }
        let (level, below_root) = self.planned.borrowing_level(&node, fr, amount);
        if amount <= self.planned.available(&node, fr) {
            let fits_now = amount <= self.actual.available(&node, fr);
            return (if fits_now { PreemptionMode::Fit } else { PreemptionMode::FitAfterEvictions }, level);
        }
        let may_preempt_while_borrowing = self.queue.borrow_within_cohort
            || (self.snapshot.fair_sharing_strategies.is_some()
                && self.queue.reclaim_within_cohort != ReclaimPolicy::Never);
        let within_nominal = self.delta_over_predecessor(fr, amount) <= self.planned.limits(&node, fr).nominal;
        if !within_nominal && !below_root && !may_preempt_while_borrowing {
            return (PreemptionMode::NoFit, level);
        }
        let targets =
            preemption::find_targets(self, &Usage::from([(fr.clone(), amount)]), &BTreeSet::from([fr.clone()]));
        let losses: Vec<(ObjectKey, PreemptionScope)> =
            targets.iter().map(|target| (target.key.clone(), target.scope)).collect();
        let (level, _) = self.planned.without(&losses).borrowing_level(&node, fr, amount);
        let within_queue = targets.iter().any(|target| target.queue == self.queue.name);
        match (targets.is_empty(), within_queue) {
            (true, _) => (PreemptionMode::NoPreemptionCandidates, level),
            (false, true) => (PreemptionMode::Preempt, level),
            (false, false) => (PreemptionMode::Reclaim, level),
        }
    }

    /// Returns the amount minus the usage of the predecessor.
    fn delta_over_predecessor(&self, fr: &FlavorResource, amount: i128) -> i128 {
        amount - self.predecessor.as_ref().and_then(|before| before.usage.get(fr)).copied().unwrap_or(0)
    }

    /// Reports whether the first mode and borrowing level are preferred to the second.
    fn is_preferred(&self, a: (PreemptionMode, u32), b: (PreemptionMode, u32)) -> bool {
        if a.0 == PreemptionMode::NoFit || b.0 == PreemptionMode::NoFit {
            return a.0 != PreemptionMode::NoFit;
        }
        if (a.0 == PreemptionMode::NoPreemptionCandidates) != (b.0 == PreemptionMode::NoPreemptionCandidates) {
            return b.0 == PreemptionMode::NoPreemptionCandidates;
        }
        if self.queue.preemption_over_borrowing {
            return a.1 < b.1 || (a.1 == b.1 && a.0 > b.0);
        }
        a.0 > b.0 || (a.0 == b.0 && a.1 < b.1)
    }
}

fn add_choice(taken: &mut Usage, choice: &FlavorChoice) {
    for (fr, amount, _) in &choice.amounts {
        *taken.entry(fr.clone()).or_default() += amount;
    }
}

/// Returns the flavors that have been chosen for the pod set of a unit.
fn flavors_of_set<'a>(
    slot: &AssignmentUnit<'_>,
    slots: &[AssignmentUnit<'_>],
    chosen: &'a [FlavorChoice],
) -> Vec<&'a String> {
    let choices = slots.iter().zip(chosen).filter(|(other, _)| other.pod_set_index == slot.pod_set_index);
    choices.map(|(_, choice)| &choice.flavor).collect()
}
