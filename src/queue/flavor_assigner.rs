//! Assigns flavors to the pod sets of a workload, or reports why none can be assigned.
//!
//! The rules are those of kueue v0.19.2 `pkg/scheduler/flavorassigner/flavorassigner.go`. Where
//! they leave a later pod set without a flavor because of the choice for an earlier one, other
//! combinations are tried as well, so that a larger quota never makes an assignment fail.

use std::collections::BTreeMap;

use super::assignment_mode::{AssignmentMode, PreemptionMode, PreemptionOracle};
use super::cached_workload::{ReservedAssignment, ReservedFlavor, UnitPosition};
use super::cluster_queue_config::{ClusterQueueConfig, QuotaGroup};
use super::ledger::{FlavorResourceQuantities, add_to, to_amount, to_i128};
use super::partial_assignment::{AssignedFlavor, PartialAssignment};
use super::pending::FlavorRejection;
use super::pending_queue::QuotaNeed;
use super::settings::UndeclaredResourcePolicy;
use super::shortfall::{BindingLimit, Shortfall};
use super::tree::{CohortTree, FlavorResourceId, NodeId, UsageView};
use super::workload_requests::{PodSetRequests, WorkloadRequests};
use sluice_api::kueue::{Admission, PodSetAssignment, ResourceFlavorSpec};
use sluice_api::quantity::Amount;

/// The slice that a workload replaces and whose quota it takes over.
#[derive(Debug, Clone)]
pub(super) struct Predecessor<'a> {
    pub(super) usage: &'a FlavorResourceQuantities,
    pub(super) requests: Option<&'a WorkloadRequests>,
    pub(super) admission: &'a Admission,
}

impl Predecessor<'_> {
    pub(super) fn usage_of(&self, fr: FlavorResourceId) -> i128 {
        self.usage.get(&fr).copied().unwrap_or_default()
    }

    /// Returns the flavor that running pods of the same pod set have, or `None` if none run
    /// unchanged. Running pods stay on their nodes, so another flavor would add usage where no pod
    /// runs and release usage where pods do run.
    pub(super) fn running_flavor(&self, set: &PodSetRequests, resource: &str) -> Option<&str> {
        let assignment = self.admission.pod_set_assignments.iter().find(|assignment| assignment.name == set.name)?;
        self.running_pod_set(set, 1).and_then(|_| assignment.flavors.get(resource)).map(String::as_str)
    }

    /// Returns the pod set of the same name and pod requests, if at least `count` of its pods are
    /// admitted.
    pub(super) fn running_pod_set(&self, set: &PodSetRequests, count: i32) -> Option<&PodSetRequests> {
        let before = self.requests?.pod_sets.iter().find(|before| before.name == set.name)?;
        let assignment = self.admission.pod_set_assignments.iter().find(|assignment| assignment.name == set.name)?;
        let admitted = assignment.count.unwrap_or(before.count);
        (before.per_pod == set.per_pod && admitted >= count).then_some(before)
    }
}

/// Assigns the flavors of one ClusterQueue to one workload.
#[derive(Debug, Clone)]
pub(super) struct FlavorAssigner<'a> {
    pub(super) cluster_queue: &'a str,
    pub(super) node: NodeId,
    pub(super) config: &'a ClusterQueueConfig,
    pub(super) flavors: &'a BTreeMap<String, ResourceFlavorSpec>,
    pub(super) undeclared_resources: UndeclaredResourcePolicy,
    pub(super) fair_sharing: bool,
    pub(super) predecessor: Option<Predecessor<'a>>,
    /// The assignment that evictions were issued for. If set, no other flavors are eligible.
    pub(super) reserved_assignment: Option<&'a ReservedAssignment>,
    /// Capacity that is reserved for the workload itself.
    pub(super) reserved: Option<&'a FlavorResourceQuantities>,
    pub(super) requests: &'a WorkloadRequests,
}

/// The flavors and counts that a workload would get.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Assignment {
    pub(super) mode: AssignmentMode,
    /// Total usage of the workload.
    pub(super) usage: FlavorResourceQuantities,
    /// Flavor resources that need preemption.
    pub(super) needs_preemption: Vec<FlavorResourceId>,
    /// Pod count of each pod set.
    pub(super) pod_counts: Vec<i32>,
    flavors: Vec<AssignedFlavor>,
}

impl Assignment {
    /// Returns the counts and flavor names to reserve. `quota` must be the one that this was
    /// assigned from.
    pub(super) fn reserved_assignment(&self, quota: &ClusterQueueConfig) -> ReservedAssignment {
        let name = |assigned: &AssignedFlavor| ReservedFlavor {
            unit: assigned.unit,
            flavor: quota.groups[assigned.unit.group].flavors[assigned.flavor].name.clone(),
        };
        ReservedAssignment { counts: self.pod_counts.clone(), flavors: self.flavors.iter().map(name).collect() }
    }
}

/// Collects the reasons why flavors could not be assigned.
#[derive(Debug, Default)]
pub(super) struct Diagnosis {
    /// Amounts that were not available. Retrying is worthwhile once any of them is reachable.
    pub(super) quota_needs: Vec<QuotaNeed>,
    /// Rejected flavors with explanations. `None` if explanations are not requested.
    pub(super) rejections: Option<Vec<FlavorRejection>>,
}

/// The requests of one pod set that one resource group covers. One flavor is assigned to each unit.
pub(super) struct AssignmentUnit<'a> {
    pub(super) position: UnitPosition,
    pub(super) pod_set: &'a PodSetRequests,
    pub(super) group: &'a QuotaGroup,
    pub(super) requests: Vec<(&'a str, i128)>,
    /// Its flavors have node labels that may contradict those of another unit of the pod set.
    pub(super) may_contradict: bool,
    /// Flavors that go with no flavors of the other units of the pod set, and the reason for each.
    pub(super) excluded: BTreeMap<String, String>,
}

impl<'a> AssignmentUnit<'a> {
    pub(super) fn new(
        position: UnitPosition,
        pod_set: &'a PodSetRequests,
        group: &'a QuotaGroup,
        requests: Vec<(&'a str, i128)>,
    ) -> Self {
        Self { position, pod_set, group, requests, may_contradict: false, excluded: BTreeMap::new() }
    }
}

/// A flavor for an assignment unit, and the mode in which its resources can be assigned.
#[derive(Debug, Clone)]
pub(super) struct FlavorChoice {
    pub(super) assigned: AssignedFlavor,
    /// Mode of the resource that the fungibility rules prefer least. Decides which flavor is
    /// chosen.
    least_preferred: AssignmentMode,
    /// Worst preemption mode of its resources. Decides whether the workload is admitted. Differs
    /// from `means` if preemption is preferred over borrowing: a resource that borrows is then less
    /// preferred than one that needs preemption, although only the former can be assigned
    /// immediately.
    pub(super) preemption: PreemptionMode,
    /// Highest borrowing level of its resources.
    pub(super) borrowing_level: u32,
    /// Amount of each resource, and whether it needs preemption.
    pub(super) resources: Vec<(FlavorResourceId, i128, bool)>,
}

impl FlavorChoice {
    pub(super) fn new(slot: &AssignmentUnit<'_>, flavor: usize) -> Self {
        Self {
            assigned: AssignedFlavor { unit: slot.position, flavor },
            least_preferred: AssignmentMode::BEST,
            preemption: PreemptionMode::Fit,
            borrowing_level: 0,
            resources: Vec::with_capacity(slot.requests.len()),
        }
    }

    /// Reports whether the unit fits, now or after evictions.
    pub(super) fn can_be_admitted(&self) -> bool {
        self.preemption > PreemptionMode::NoPreemptionCandidates
    }

    pub(super) fn requests(&self) -> impl Iterator<Item = (FlavorResourceId, i128)> {
        self.resources.iter().map(|(fr, amount, _)| (*fr, *amount))
    }
}

impl FlavorAssigner<'_> {
    /// Assigns one flavor of each resource group to each pod set, with `counts` pods each. Returns
    /// `None` if a pod set has no eligible flavor with enough quota.
    pub(super) fn assign(
        &self,
        counts: &[i32],
        ground: &mut impl PreemptionOracle,
        found: &mut Diagnosis,
    ) -> Option<Assignment> {
        let (slots, offered) = self.assignment_units(counts, ground.tree(), found);
        // An explanation lists every problem, so it needs all units.
        if !offered && found.rejections.is_none() {
            return None;
        }
        // An explanation runs the greedy assignment for its findings even if a resource is missing.
        let greedy = self.assign_greedy(&slots, ground, found);
        if !offered {
            return None;
        }
        let choices = match greedy {
            Some(choices) if choices.iter().all(FlavorChoice::can_be_admitted) => choices,
            greedy => match self.assign_backtracking(&slots, ground, found) {
                Some(choices) => choices,
                None => greedy?,
            },
        };
        Some(build_assignment(counts, &choices))
    }

    /// Returns the units to assign, ordered by pod set and resource group, and whether the
    /// ClusterQueue has all requested resources.
    pub(super) fn assignment_units(
        &self,
        counts: &[i32],
        tree: &CohortTree,
        found: &mut Diagnosis,
    ) -> (Vec<AssignmentUnit<'_>>, bool) {
        let (mut slots, mut offered) = (Vec::new(), true);
        for (set_index, (set, count)) in self.requests.pod_sets.iter().zip(counts).enumerate() {
            for (group_index, group) in self.config.groups.iter().enumerate() {
                let asked: Vec<(&str, i128)> = self
                    .config
                    .requests(set, *count)
                    .filter(|(resource, amount)| *amount != Amount::ZERO && group.resources.contains(*resource))
                    .map(|(resource, amount)| (resource, to_i128(amount)))
                    .collect();
                if !asked.is_empty() {
                    let position = UnitPosition { pod_set: set_index, group: group_index };
                    slots.push(AssignmentUnit::new(position, set, group, asked));
                }
            }
            let unknown = self.config.requests(set, *count).filter(|(resource, amount)| {
                *amount != Amount::ZERO
                    && self.undeclared_resources == UndeclaredResourcePolicy::Block
                    && self.config.group_of(resource).is_none()
                    && !set.injected_only.contains(*resource)
            });
            for (resource, _) in unknown {
                offered = false;
                if let Some(obstacles) = &mut found.rejections {
                    obstacles.push(FlavorRejection::ResourceUnavailable {
                        pod_set: set.name.clone(),
                        resource: resource.to_owned(),
                    });
                }
            }
        }
        self.exclude_contradicting_flavors(&mut slots, |unit, flavor| {
            unit.requests.iter().all(|(resource, amount)| {
                let fr = flavor.flavor_resource(resource);
                fr.is_some_and(|fr| *amount <= tree.potential_available(self.node, fr))
            })
        });
        (slots, offered)
    }

    /// Picks the best flavor of each unit in order, with the usage of the earlier units added.
    /// Returns `None` if a unit has no flavor.
    fn assign_greedy(
        &self,
        slots: &[AssignmentUnit<'_>],
        ground: &mut impl PreemptionOracle,
        found: &mut Diagnosis,
    ) -> Option<Vec<FlavorChoice>> {
        let (mut taken, mut choices, mut complete) = (PartialAssignment::default(), Vec::new(), true);
        for slot in slots {
            match self.best_flavor(slot, &taken, ground, found) {
                Some(choice) => {
                    taken.push(choice.assigned, choice.requests());
                    choices.push(choice);
                }
                None if found.rejections.is_some() => {
                    complete = false;
                    // The later units must fit in addition to this one, so its request counts
                    // although it has no flavor.
                    let requests: Vec<_> = self.first_eligible(slot, &taken).collect();
                    requests.into_iter().for_each(|(fr, amount)| add_to(&mut taken.usage, fr, amount));
                }
                None => return None,
            }
        }
        complete.then_some(choices)
    }

    /// Returns the requests of a unit in its first eligible flavor; empty if no flavor is eligible.
    fn first_eligible<'s>(
        &self,
        slot: &'s AssignmentUnit<'_>,
        taken: &PartialAssignment,
    ) -> impl Iterator<Item = (FlavorResourceId, i128)> + use<'s> {
        let mut flavors = slot.group.flavors.iter();
        let flavor = flavors.find(|flavor| self.ineligibility(slot, flavor, &taken.flavors).is_none());
        slot.requests.iter().filter_map(move |(resource, amount)| Some((flavor?.flavor_resource(resource)?, *amount)))
    }

    fn best_flavor(
        &self,
        slot: &AssignmentUnit<'_>,
        taken: &PartialAssignment,
        ground: &mut impl PreemptionOracle,
        found: &mut Diagnosis,
    ) -> Option<FlavorChoice> {
        let rules = self.config.fungibility;
        let mut best: Option<FlavorChoice> = None;
        for (index, flavor) in slot.group.flavors.iter().enumerate() {
            if let Some(objection) = self.ineligibility(slot, flavor, &taken.flavors) {
                if let Some(obstacles) = &mut found.rejections {
                    obstacles.push(self.rejection(slot, flavor, objection, ground.tree()));
                }
                continue;
            }
            let choice = self.flavor_choice(slot, index, &taken.usage, ground, found);
            let means = choice.least_preferred;
            let so_far = best.as_ref().map_or(AssignmentMode::WORST, |best| best.least_preferred);
            if !means.should_try_next_flavor(rules) {
                return Some(choice);
            }
            if means.is_preferred_over(so_far, rules) {
                best = Some(choice);
            }
        }
        best
    }

    /// Evaluates one flavor for a unit. The result is no better than that of its worst resource.
    pub(super) fn flavor_choice(
        &self,
        slot: &AssignmentUnit<'_>,
        flavor: usize,
        taken: &FlavorResourceQuantities,
        ground: &mut impl PreemptionOracle,
        found: &mut Diagnosis,
    ) -> FlavorChoice {
        let mut choice = FlavorChoice::new(slot, flavor);
        for (resource, requested) in &slot.requests {
            let Some(fr) = slot.group.flavors[flavor].flavor_resource(resource) else {
                (choice.least_preferred, choice.preemption) = (AssignmentMode::WORST, PreemptionMode::NoFit);
                continue;
            };
            let means = self.assignment_mode(slot, fr, *requested, taken, ground, found);
            choice.borrowing_level = choice.borrowing_level.max(means.borrowing_level);
            choice.preemption = choice.preemption.min(means.preemption);
            if choice.least_preferred.is_preferred_over(means, self.config.fungibility) {
                choice.least_preferred = means;
            }
            choice.resources.push((fr, *requested, means.preemption < PreemptionMode::FitAfterEvictions));
        }
        choice
    }

    fn assignment_mode(
        &self,
        slot: &AssignmentUnit<'_>,
        fr: FlavorResourceId,
        requested: i128,
        taken: &FlavorResourceQuantities,
        ground: &mut impl PreemptionOracle,
        found: &mut Diagnosis,
    ) -> AssignmentMode {
        let earlier = taken.get(&fr).copied().unwrap_or_default();
        let wanted = earlier + requested;
        let held = self.predecessor.as_ref().map_or(0, |predecessor| predecessor.usage_of(fr));
        let tree = ground.tree();
        let note = |found: &mut Diagnosis, exceeds: bool| {
            if let Some(obstacles) = &mut found.rejections {
                let shortfall = self.shortfall(tree, slot, fr, requested, earlier, held);
                obstacles.push(if exceeds {
                    FlavorRejection::ExceedsMaximum(shortfall)
                } else {
                    FlavorRejection::InsufficientUnused(shortfall)
                });
            }
        };
        if wanted > tree.potential_available(self.node, fr) {
            note(found, true);
            return AssignmentMode::WORST;
        }
        // Quota of the predecessor changes hands, and capacity reserved for this workload is its own.
        let planned = held + self.reserved_amount(fr);
        let fit = tree.lowest_fit(self.node, fr, wanted, UsageView::Planned, planned);
        if wanted <= tree.available(self.node, fr, UsageView::Planned, planned) {
            let now = wanted <= tree.available(self.node, fr, UsageView::Actual, held);
            return AssignmentMode {
                preemption: if now { PreemptionMode::Fit } else { PreemptionMode::FitAfterEvictions },
                borrowing_level: fit.height,
            };
        }
        note(found, false);
        found.quota_needs.push(QuotaNeed { fr, amount: wanted });
        // As in Kueue, preemption is considered only within the nominal quota or a subtree that owns
        // the quota, or if the policy permits preemption while borrowing.
        let rules = self.config.preemption;
        let entitled = tree.nominal_quota(self.node, fr) >= wanted - held || fit.reclaimable;
        let may_borrow =
            rules.borrow_within_cohort || (self.fair_sharing && rules.reclaim_within_cohort != Default::default());
        if entitled || may_borrow {
            ground.simulate_preemption(fr, wanted)
        } else {
            AssignmentMode { preemption: PreemptionMode::NoFit, borrowing_level: fit.height }
        }
    }

    /// Returns the amount of planned usage that is reserved for the workload itself.
    fn reserved_amount(&self, fr: FlavorResourceId) -> i128 {
        self.reserved.and_then(|charge| charge.get(&fr)).copied().unwrap_or_default()
    }

    fn shortfall(
        &self,
        tree: &CohortTree,
        slot: &AssignmentUnit<'_>,
        fr: FlavorResourceId,
        requested: i128,
        earlier: i128,
        held: i128,
    ) -> Shortfall {
        let at = tree.flavor_resource(fr);
        let wanted = requested + earlier;
        let planned = held + self.reserved_amount(fr);
        let available = tree.available(self.node, fr, UsageView::Planned, planned);
        let potential = tree.potential_available(self.node, fr);
        let (node, limited) = if wanted > potential {
            tree.binding_limit_when_idle(self.node, fr, wanted)
        } else {
            tree.binding_limit(self.node, fr, wanted, UsageView::Planned, planned)
        };
        let missing = if wanted > potential { wanted - potential } else { wanted - available };
        Shortfall {
            requested: to_amount(requested),
            earlier_pod_sets: to_amount(earlier),
            held_by_predecessor: to_amount(held),
            used: to_amount(tree.usage(self.node, fr, UsageView::Planned) - planned),
            nominal: to_amount(tree.nominal_quota(self.node, fr)),
            potential_available: to_amount(potential),
            binding: BindingLimit::from_node(tree, node, limited),
            missing: to_amount(missing),
            missing_now: to_amount(wanted - available),
            subtree: Some((node, fr)),
            ..Shortfall::new(&slot.pod_set.name, &at.flavor, &at.resource)
        }
    }

    /// Converts an assignment to an Admission.
    pub(super) fn to_admission(&self, assignment: &Assignment) -> Admission {
        let sets = self.requests.pod_sets.iter().zip(&assignment.pod_counts).enumerate();
        let assignments = sets.map(|(index, (set, count))| {
            let requests: BTreeMap<&str, Amount> = self.config.requests(set, *count).collect();
            let mut flavors = BTreeMap::new();
            for assigned in assignment.flavors.iter().filter(|assigned| assigned.unit.pod_set == index) {
                let group = &self.config.groups[assigned.unit.group];
                let asked = requests.keys().filter(|resource| group.resources.contains(**resource));
                let flavor = &group.flavors[assigned.flavor].name;
                flavors.extend(asked.map(|resource| ((*resource).to_owned(), flavor.clone())));
            }
            if *count == 0 {
                flavors.extend(self.flavors_without_pods(index, set));
            }
            let used = requests.iter().filter(|(resource, _)| flavors.contains_key(**resource));
            PodSetAssignment {
                name: set.name.clone(),
                resource_usage: used
                    .map(|(resource, amount)| ((*resource).to_owned(), amount.to_quantity(resource)))
                    .collect(),
                flavors,
                count: Some(*count),
                ..PodSetAssignment::default()
            }
        });
        Admission { cluster_queue: self.cluster_queue.to_owned(), pod_set_assignments: assignments.collect() }
    }
}

/// Returns the assignment of pod counts with a flavor for each unit.
fn build_assignment(counts: &[i32], choices: &[FlavorChoice]) -> Assignment {
    let mut assignment = Assignment {
        mode: AssignmentMode::BEST,
        usage: FlavorResourceQuantities::new(),
        needs_preemption: Vec::new(),
        pod_counts: counts.to_vec(),
        flavors: choices.iter().map(|choice| choice.assigned).collect(),
    };
    for choice in choices {
        let means = &mut assignment.mode;
        *means = AssignmentMode {
            preemption: means.preemption.min(choice.preemption),
            borrowing_level: means.borrowing_level.max(choice.borrowing_level),
        };
        for (fr, amount, is_short) in &choice.resources {
            add_to(&mut assignment.usage, *fr, *amount);
            if *is_short && !assignment.needs_preemption.contains(fr) {
                assignment.needs_preemption.push(*fr);
            }
        }
    }
    assignment
}
