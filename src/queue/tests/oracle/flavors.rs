//! Flavor assignment of one workload.

use std::collections::{BTreeMap, BTreeSet};

use super::book::{Book, Fr, Usage};
use super::victims;
use super::world::{Holder, Job, PodSet, Queue, World};
use crate::cached_workload::ReservedAssignment;
use crate::partial_preemption::PreemptionScope;
use sluice_api::kueue::cluster_queue::ReclaimPolicy;
use sluice_plan::ObjectKey;

/// Preemption mode of an assignment, the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mode {
    NoFit,
    NoCandidates,
    Preempt,
    Reclaim,
    Deferred,
    Fit,
}

/// Input of flavor assignment for one workload.
pub(super) struct Ask<'a> {
    pub(super) world: &'a World,
    pub(super) job: &'a Job,
    pub(super) queue: &'a Queue,
    /// Actual and planned usage, both without the predecessor.
    pub(super) actual: Book<'a>,
    pub(super) planned: Book<'a>,
    /// Workloads that may be preempted.
    pub(super) holders: Vec<Holder>,
    pub(super) predecessor: Option<Holder>,
    /// Reserved assignment to use; `None` to assign freely.
    pub(super) room: Option<&'a ReservedAssignment>,
    /// Pending workloads with their predecessors.
    pub(super) waiting: Vec<(Job, Option<Holder>)>,
}

#[derive(Debug, Clone)]
pub(super) struct Assignment {
    pub(super) mode: Mode,
    pub(super) level: u32,
    pub(super) usage: Usage,
    /// Flavors and resources that need preemption.
    pub(super) short: BTreeSet<Fr>,
    /// Name, pod count, and flavor by resource of each pod set.
    pub(super) pod_sets: Vec<(String, i32, BTreeMap<String, String>)>,
}

/// Requests of one pod set for one resource group.
struct Slot<'a> {
    set: usize,
    pod_set: &'a PodSet,
    flavors: &'a [String],
    asked: BTreeMap<String, i128>,
}

/// One flavor for one assignment unit; its mode is that of the least preferred resource.
#[derive(Debug, Clone)]
struct Choice {
    flavor: String,
    mode: Mode,
    mode_level: u32,
    level: u32,
    parts: Vec<(Fr, i128, Mode)>,
}

impl Choice {
    /// Returns the worst mode of all resources.
    fn worst(&self) -> Mode {
        self.parts.iter().map(|(.., mode)| *mode).min().unwrap_or(Mode::Fit)
    }
}

impl Ask<'_> {
    pub(super) fn assign(&self, counts: &[i32]) -> Option<Assignment> {
        let slots = self.slots(counts)?;
        let greedy = self.greedy(&slots);
        let works = |choices: &Vec<Choice>| choices.iter().all(|choice| choice.worst() > Mode::NoCandidates);
        let choices = match greedy.clone().filter(works) {
            Some(choices) => choices,
            None => self.all_fit(&slots, &Usage::new()).or(greedy)?,
        };
        let mut assignment = Assignment {
            mode: choices.iter().map(Choice::worst).min().unwrap_or(Mode::Fit),
            level: choices.iter().map(|choice| choice.level).max().unwrap_or(0),
            usage: Usage::new(),
            short: BTreeSet::new(),
            pod_sets: Vec::new(),
        };
        for (set, count) in self.job.pod_sets.iter().zip(counts) {
            assignment.pod_sets.push((set.name.clone(), *count, BTreeMap::new()));
        }
        for (slot, choice) in slots.iter().zip(&choices) {
            for (fr, amount, mode) in &choice.parts {
                *assignment.usage.entry(fr.clone()).or_default() += amount;
                assignment.pod_sets[slot.set].2.insert(fr.1.clone(), choice.flavor.clone());
                if *mode < Mode::Deferred {
                    assignment.short.insert(fr.clone());
                }
            }
        }
        Some(assignment)
    }

    fn slots(&self, counts: &[i32]) -> Option<Vec<Slot<'_>>> {
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
                    slots.push(Slot { set: index, pod_set, flavors, asked });
                }
            }
        }
        Some(slots)
    }

    fn greedy(&self, slots: &[Slot<'_>]) -> Option<Vec<Choice>> {
        let (mut taken, mut choices) = (Usage::new(), Vec::new());
        for slot in slots {
            let choice = self.best(slot, &taken)?;
            take(&mut taken, &choice);
            choices.push(choice);
        }
        Some(choices)
    }

    /// Returns the flavor at which the fungibility policy stops the search, or else the most
    /// preferred one.
    fn best(&self, slot: &Slot<'_>, taken: &Usage) -> Option<Choice> {
        let mut best: Option<Choice> = None;
        for flavor in slot.flavors.iter().filter(|flavor| self.suitable(slot, flavor)) {
            let choice = self.choice(slot, flavor, taken);
            let next = match choice.mode {
                Mode::NoFit | Mode::NoCandidates => true,
                Mode::Preempt | Mode::Reclaim | Mode::Deferred if self.queue.next_if_preempting => true,
                _ => choice.mode_level > 0 && self.queue.next_if_borrowing,
            };
            if !next {
                return Some(choice);
            }
            let better = match &best {
                None => choice.mode > Mode::NoFit,
                Some(best) => self.preferred((choice.mode, choice.mode_level), (best.mode, best.mode_level)),
            };
            best = if better { Some(choice) } else { best };
        }
        best
    }

    /// Returns the first combination of flavors in which every unit fits immediately.
    fn all_fit(&self, slots: &[Slot<'_>], taken: &Usage) -> Option<Vec<Choice>> {
        let Some((slot, others)) = slots.split_first() else { return Some(Vec::new()) };
        for flavor in slot.flavors.iter().filter(|flavor| self.suitable(slot, flavor)) {
            if !self.is_free(slot, flavor, taken) {
                continue;
            }
            let choice = self.choice(slot, flavor, taken);
            let mut taken = taken.clone();
            take(&mut taken, &choice);
            if let Some(rest) = self.all_fit(others, &taken) {
                return Some([vec![choice], rest].concat());
            }
        }
        None
    }

    fn is_free(&self, slot: &Slot<'_>, flavor: &str, taken: &Usage) -> bool {
        slot.asked.iter().all(|(resource, amount)| {
            let fr = (flavor.to_owned(), resource.clone());
            let wanted = amount + taken.get(&fr).copied().unwrap_or(0);
            [&self.actual, &self.planned].iter().all(|book| wanted <= book.available(&self.queue.node(), &fr))
        })
    }

    /// Reports whether the pods match the flavor's nodes, the reserved assignment, and the flavor
    /// of equal pods of the predecessor.
    fn suitable(&self, slot: &Slot<'_>, flavor: &str) -> bool {
        let pinned = self.predecessor.as_ref().and_then(|before| {
            let is_equal = |set: &&PodSet| set.name == slot.pod_set.name && set.per_pod == slot.pod_set.per_pod;
            before.job.pod_sets.iter().find(is_equal)?;
            let sets = &before.admission.pod_set_assignments;
            let granted = sets.iter().find(|set| set.name == slot.pod_set.name && set.count != Some(0))?;
            slot.asked.keys().find_map(|resource| granted.flavors.get(resource))
        });
        let in_group = |group: usize| self.queue.groups[group].1 == slot.flavors;
        let reserved = self
            .room
            .iter()
            .flat_map(|room| &room.flavors)
            .find(|(set, group, _)| *set == slot.set && in_group(*group));
        if reserved.is_some_and(|(.., reserved)| reserved != flavor) {
            return false;
        }
        let spec = &self.world.flavors[flavor];
        let labels = slot.flavors.iter().flat_map(|flavor| self.world.flavors[flavor].node_labels.keys());
        let labels = || labels.map(String::as_str).collect();
        pinned.is_none_or(|pinned| pinned == flavor) && slot.pod_set.placement.mismatch(spec, labels).is_none()
    }

    fn choice(&self, slot: &Slot<'_>, flavor: &str, taken: &Usage) -> Choice {
        let mut choice =
            Choice { flavor: flavor.to_owned(), mode: Mode::Fit, mode_level: 0, level: 0, parts: Vec::new() };
        for (resource, amount) in &slot.asked {
            let fr = (flavor.to_owned(), resource.clone());
            let (mode, level) = self.mode(&fr, amount + taken.get(&fr).copied().unwrap_or(0));
            if self.preferred((choice.mode, choice.mode_level), (mode, level)) {
                (choice.mode, choice.mode_level) = (mode, level);
            }
            choice.level = choice.level.max(level);
            choice.parts.push((fr, *amount, mode));
        }
        choice
    }

    /// Returns the mode and the borrowing level of an amount of one flavor and resource.
    fn mode(&self, fr: &Fr, amount: i128) -> (Mode, u32) {
        let node = self.queue.node();
        if amount > self.planned.potential(&node, fr) {
            return (Mode::NoFit, 0);
        }
        let (level, below_root) = self.planned.lowest_fit(&node, fr, amount);
        if amount <= self.planned.available(&node, fr) {
            let fits_now = amount <= self.actual.available(&node, fr);
            return (if fits_now { Mode::Fit } else { Mode::Deferred }, level);
        }
        let may_preempt_while_borrowing = self.queue.borrow_within_cohort
            || (self.world.strategies.is_some() && self.queue.reclaim != ReclaimPolicy::Never);
        let within_nominal = self.beyond_predecessor(fr, amount) <= self.planned.limits(&node, fr).nominal;
        if !within_nominal && !below_root && !may_preempt_while_borrowing {
            return (Mode::NoFit, level);
        }
        let targets = victims::search(self, &Usage::from([(fr.clone(), amount)]), &BTreeSet::from([fr.clone()]));
        let losses: Vec<(ObjectKey, PreemptionScope)> =
            targets.iter().map(|target| (target.key.clone(), target.loss)).collect();
        let (level, _) = self.planned.without(&losses).lowest_fit(&node, fr, amount);
        let within_queue = targets.iter().any(|target| target.queue == self.queue.name);
        match (targets.is_empty(), within_queue) {
            (true, _) => (Mode::NoCandidates, level),
            (false, true) => (Mode::Preempt, level),
            (false, false) => (Mode::Reclaim, level),
        }
    }

    /// Returns the amount minus the usage of the predecessor.
    fn beyond_predecessor(&self, fr: &Fr, amount: i128) -> i128 {
        amount - self.predecessor.as_ref().and_then(|before| before.usage.get(fr)).copied().unwrap_or(0)
    }

    /// Reports whether the first mode and borrowing level are preferred to the second.
    fn preferred(&self, a: (Mode, u32), b: (Mode, u32)) -> bool {
        if a.0 == Mode::NoFit || b.0 == Mode::NoFit {
            return a.0 != Mode::NoFit;
        }
        if (a.0 == Mode::NoCandidates) != (b.0 == Mode::NoCandidates) {
            return b.0 == Mode::NoCandidates;
        }
        if self.queue.preemption_over_borrowing {
            return a.1 < b.1 || (a.1 == b.1 && a.0 > b.0);
        }
        a.0 > b.0 || (a.0 == b.0 && a.1 < b.1)
    }
}

fn take(taken: &mut Usage, choice: &Choice) {
    for (fr, amount, _) in &choice.parts {
        *taken.entry(fr.clone()).or_default() += amount;
    }
}
