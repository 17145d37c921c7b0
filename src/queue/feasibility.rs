//! Checks whether pods could be admitted if no quota were in use, and which quota would be
//! required.

use std::collections::BTreeMap;

use super::ObjectKey;
use super::cached_workload::CachedWorkload;
use super::flavor_assigner::{AssignmentUnit as SlotOfSet, Diagnosis, FlavorAssigner, Predecessor};
use super::flavor_backtracking::MAX_COMBINATIONS;
use super::ledger::to_amount;
use super::partial_assignment::{AssignedFlavor, PartialAssignment};
use super::pending::FlavorRejection;
use super::scheduler::{CachedClusterQueue, Scheduler};
use super::shortfall::BindingLimit;
use super::tree::{CohortTree, FlavorResourceId};
use super::workload_info::{PodCount, replaced_slice};
use super::workload_requests::{ParsedPodSets, WorkloadRequests};
use sluice_api::kueue::Workload;
use sluice_api::quantity::Amount;

/// Result of a check against the total quota.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Feasibility {
    /// Fits once enough quota is unused.
    Fits,
    /// Exceeds the total quota. Lists the smallest deficits that any combination of flavors has.
    ExceedsQuota(Vec<QuotaDeficit>),
    /// No flavor is eligible for its pods.
    NoMatchingFlavor(Vec<FlavorRejection>),
}

/// A flavor resource of which the total quota is too small.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaDeficit {
    /// Name of the flavor.
    pub flavor: String,
    /// Name of the resource.
    pub resource: String,
    /// Requested amount.
    pub requested: Amount,
    /// The most that the ClusterQueue can get, including what it can borrow.
    pub maximum: Amount,
    /// Amount by which the request exceeds that maximum.
    pub missing: Amount,
    /// Name of the ClusterQueue.
    pub cluster_queue: String,
    /// The limit in the cohort tree that is exceeded.
    pub binding: BindingLimit,
    /// Smallest `nominalQuota` of the ClusterQueue that is sufficient.
    pub required_nominal: Amount,
    /// Smallest value of the exceeded limit that is sufficient. `None` if another limit would still
    /// be exceeded.
    pub required_limit: Option<Amount>,
}

/// Checks pod counts of given pod sets against the total quota.
#[derive(Debug)]
pub struct FeasibilityChecker<'a> {
    scheduler: &'a Scheduler,
    cluster_queue: &'a CachedClusterQueue,
    /// The slice that is replaced: its running pods stay in their flavors.
    replaced: Option<&'a CachedWorkload>,
    requests: WorkloadRequests,
}

impl Scheduler {
    /// Returns a checker for the pod sets of a Workload, which need not exist. Pods that run on the
    /// slice that it replaces stay in their flavors. Returns `None` if the LocalQueue or
    /// ClusterQueue does not exist, or if the pod sets are invalid.
    pub fn feasibility_checker(&self, workload: &Workload) -> Option<FeasibilityChecker<'_>> {
        let key = ObjectKey::of(workload);
        let queue_name = workload.spec.queue_name.as_ref()?;
        let local_queue = self.local_queues.id(&ObjectKey::new(key.namespace.clone(), queue_name.clone()))?;
        let cluster_queue = self.local_queues.get(local_queue)?.config.as_ref()?.cluster_queue?;
        let state = self.cluster_queues.get(cluster_queue)?;
        state.config.as_ref()?;
        let ask = ParsedPodSets::parse(workload, &self.settings.resources).ok()?;
        let counts: Vec<(String, PodCount)> =
            workload.spec.pod_sets.iter().map(|set| (set.name.clone(), PodCount::all_needed(set.count))).collect();
        let demand = self.requests_cache.requests_in_full(&ask, &key.namespace, &counts, &self.settings.resources);
        let before = replaced_slice(workload).and_then(|claimed| self.workloads.get_by_name(&claimed));
        Some(FeasibilityChecker { scheduler: self, cluster_queue: state, replaced: before, requests: demand })
    }
}

impl FeasibilityChecker<'_> {
    /// Checks the given pod counts, by pod set name. Pod sets that are not listed have no pods.
    pub fn check(&self, pods: &BTreeMap<String, u32>) -> Feasibility {
        let Some(quota) = &self.cluster_queue.config else { return Feasibility::NoMatchingFlavor(Vec::new()) };
        let count = |name: &String| pods.get(name).map_or(0, |count| i32::try_from(*count).unwrap_or(i32::MAX));
        let counts: Vec<i32> = self.requests.pod_sets.iter().map(|set| count(&set.name)).collect();
        let attempt = FlavorAssigner {
            cluster_queue: &self.cluster_queue.name,
            node: self.cluster_queue.node,
            config: quota,
            flavors: &self.scheduler.flavors,
            undeclared_resources: self.scheduler.settings.resources.undeclared,
            fair_sharing: self.scheduler.settings.fair_sharing.is_some(),
            predecessor: self.replaced.and_then(|before| {
                let (demand, admission) = (before.info.requests.as_deref().ok(), before.admission()?);
                Some(Predecessor { usage: &before.accounting.usage, requests: demand, admission })
            }),
            reserved_assignment: None,
            reserved: None,
            requests: &self.requests,
        };
        let mut found = Diagnosis { rejections: Some(Vec::new()), ..Diagnosis::default() };
        let (slots, _) = attempt.assignment_units(&counts, &self.scheduler.tree, &mut found);
        let mut obstacles = found.rejections.unwrap_or_default();
        obstacles.extend(slots.iter().flat_map(|slot| rejections(&attempt, slot, &self.scheduler.tree)));
        if !obstacles.is_empty() {
            return Feasibility::NoMatchingFlavor(obstacles);
        }
        let mut search = MinimalDeficitSearch { checker: self, assigner: &attempt, combinations: 0, best: None };
        search.search(&slots, &mut PartialAssignment::default());
        match search.best.map(|best| best.deficits) {
            None => Feasibility::NoMatchingFlavor(Vec::new()),
            Some(deficits) if deficits.is_empty() => Feasibility::Fits,
            Some(deficits) => {
                Feasibility::ExceedsQuota(deficits.into_iter().map(|(fr, missing)| self.deficit(fr, missing)).collect())
            }
        }
    }

    fn potential_available(&self, fr: FlavorResourceId) -> i128 {
        self.scheduler.tree.potential_available(self.cluster_queue.node, fr)
    }

    fn deficit(&self, fr: FlavorResourceId, missing: i128) -> QuotaDeficit {
        let tree = &self.scheduler.tree;
        let (at, most) = (tree.flavor_resource(fr), self.potential_available(fr));
        let need = most + missing;
        let (node, limited) = tree.binding_limit_when_idle(self.cluster_queue.node, fr, need);
        QuotaDeficit {
            flavor: at.flavor.clone(),
            resource: at.resource.clone(),
            requested: to_amount(need),
            maximum: to_amount(most),
            missing: to_amount(missing),
            cluster_queue: self.cluster_queue.name.clone(),
            binding: BindingLimit::from_node(tree, node, limited),
            required_nominal: to_amount(tree.nominal_quota(self.cluster_queue.node, fr) + missing),
            required_limit: tree.required_limit(self.cluster_queue.node, fr, need).map(to_amount),
        }
    }
}

/// Returns the rejections of all flavors of a unit; empty if any flavor is eligible.
fn rejections(attempt: &FlavorAssigner<'_>, slot: &SlotOfSet<'_>, tree: &CohortTree) -> Vec<FlavorRejection> {
    let mut problems = Vec::new();
    for flavor in &slot.group.flavors {
        let Some(objection) = attempt.ineligibility(slot, flavor, &[]) else { return Vec::new() };
        problems.push(attempt.rejection(slot, flavor, objection, tree));
    }
    problems
}

/// Searches for the combination of flavors with the fewest and then smallest deficits.
struct MinimalDeficitSearch<'a> {
    checker: &'a FeasibilityChecker<'a>,
    assigner: &'a FlavorAssigner<'a>,
    combinations: usize,
    best: Option<DeficitOfChoice>,
}

/// Deficits of a complete combination of flavors.
struct DeficitOfChoice {
    deficits: Vec<(FlavorResourceId, i128)>,
    /// Number of deficits and their sum.
    cost: (usize, i128),
}

impl MinimalDeficitSearch<'_> {
    fn search(&mut self, slots: &[SlotOfSet<'_>], taken: &mut PartialAssignment) {
        let deficits: Vec<(FlavorResourceId, i128)> = taken
            .usage
            .iter()
            .map(|(fr, amount)| (*fr, amount - self.checker.potential_available(*fr)))
            .filter(|(_, missing)| *missing > 0)
            .collect();
        let cost = (deficits.len(), deficits.iter().map(|(_, missing)| missing).sum());
        // Choosing further flavors never reduces the deficits, so the branch is pruned.
        if self.best.as_ref().is_some_and(|best| best.cost <= cost) {
            return;
        }
        let Some((slot, rest)) = slots.split_first() else {
            self.best = Some(DeficitOfChoice { deficits, cost });
            return;
        };
        for (index, flavor) in slot.group.flavors.iter().enumerate() {
            self.combinations += 1;
            if self.combinations >= MAX_COMBINATIONS && self.best.is_some() {
                return;
            }
            if self.assigner.ineligibility(slot, flavor, &taken.flavors).is_some() {
                continue;
            }
            let parts: Option<Vec<(FlavorResourceId, i128)>> = slot
                .requests
                .iter()
                .map(|(resource, amount)| Some((flavor.flavor_resource(resource)?, *amount)))
                .collect();
            let Some(parts) = parts else { continue };
            taken.push(AssignedFlavor { unit: slot.position, flavor: index }, parts.iter().copied());
            self.search(rest, taken);
            taken.pop(parts.iter().copied());
        }
    }
}
