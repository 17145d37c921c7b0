//! Parsed spec of a ClusterQueue or Cohort.

use std::collections::{BTreeMap, BTreeSet};

use super::tree::{CohortTree, FairWeight, FlavorResource, FlavorResourceId, NodeSpec};
use super::workload_requests::PodSetRequests;
use sluice_api::kueue::cluster_queue::{
    BorrowWithinCohortPolicy, ClusterQueuePreemption, FlavorFungibility, FlavorFungibilityPolicy,
    FlavorFungibilityPreference, QueueingStrategy, ReclaimPolicy, ResourceGroup, ResourceQuota,
    WithinClusterQueuePolicy,
};
use sluice_api::kueue::names::active_reason;
use sluice_api::kueue::{ClusterQueue, ClusterQueueSpec, CohortSpec, FairSharing, ResourceFlavorSpec, StopPolicy};
use sluice_api::quantity::{Amount, Exact, QuantityError};
use sluice_api::selector::Selector;

/// Resource group: the covered resources, and the flavors in the order in which they are tried.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct QuotaGroup {
    pub(super) resources: BTreeSet<String>,
    pub(super) flavors: Vec<GroupFlavor>,
}

/// A flavor of a resource group, with the id of each covered resource in this flavor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct GroupFlavor {
    pub(super) name: String,
    flavor_resources: BTreeMap<String, FlavorResourceId>,
}

impl GroupFlavor {
    /// Returns the id of a resource in this flavor; `None` if the group does not cover it.
    pub(super) fn flavor_resource(&self, resource: &str) -> Option<FlavorResourceId> {
        self.flavor_resources.get(resource).copied()
    }
}

/// Nominal quota, borrowing limit and lending limit of one resource in one flavor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct QuotaLimits {
    pub(super) nominal: Amount,
    pub(super) borrowing_limit: Option<Amount>,
    pub(super) lending_limit: Option<Amount>,
}

/// Preemption policy for pending workloads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct PreemptionPolicy {
    pub(super) within_cluster_queue: WithinClusterQueuePolicy,
    pub(super) reclaim_within_cohort: ReclaimPolicy,
    /// True if a borrowing workload may preempt workloads of lower priority in other ClusterQueues.
    pub(super) borrow_within_cohort: bool,
    /// The highest priority that may be preempted while borrowing; `None` for no threshold.
    pub(super) max_priority_threshold: Option<i32>,
}

impl PreemptionPolicy {
    fn of(preemption: Option<&ClusterQueuePreemption>) -> Self {
        let Some(preemption) = preemption else { return Self::default() };
        let borrow = preemption.borrow_within_cohort.as_ref();
        Self {
            within_cluster_queue: preemption.within_cluster_queue.unwrap_or_default(),
            reclaim_within_cohort: preemption.reclaim_within_cohort.unwrap_or_default(),
            borrow_within_cohort: borrow.and_then(|borrow| borrow.policy).unwrap_or_default()
                != BorrowWithinCohortPolicy::Never,
            max_priority_threshold: borrow.and_then(|borrow| borrow.max_priority_threshold),
        }
    }

    /// Returns true if preemption is disabled.
    pub(super) fn never_preempts(self) -> bool {
        self.within_cluster_queue == WithinClusterQueuePolicy::Never
            && self.reclaim_within_cohort == ReclaimPolicy::Never
    }
}

/// Flavor fungibility: when to try the next flavor, and the preference among the flavors tried.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct FungibilityPolicy {
    pub(super) try_next_before_borrowing: bool,
    pub(super) may_stop_at_preemption: bool,
    pub(super) prefer_preemption_over_borrowing: bool,
}

impl FungibilityPolicy {
    fn of(fungibility: Option<&FlavorFungibility>) -> Self {
        let Some(fungibility) = fungibility else { return Self::default() };
        Self {
            try_next_before_borrowing: fungibility.when_can_borrow == Some(FlavorFungibilityPolicy::TryNextFlavor),
            may_stop_at_preemption: fungibility.when_can_preempt == Some(FlavorFungibilityPolicy::MayStopSearch),
            prefer_preemption_over_borrowing: fungibility.preference
                == Some(FlavorFungibilityPreference::PreemptionOverBorrowing),
        }
    }
}

/// Quota and policies of a ClusterQueue.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ClusterQueueConfig {
    pub(super) groups: Vec<QuotaGroup>,
    limits: BTreeMap<FlavorResource, QuotaLimits>,
    cohort: Option<String>,
    weight: FairWeight,
    pub(super) preemption: PreemptionPolicy,
    pub(super) fungibility: FungibilityPolicy,
    pub(super) strict_fifo: bool,
    pub(super) stop_policy: StopPolicy,
    pub(super) terminating: bool,
    /// `None` selects no namespace.
    pub(super) namespace_selector: Option<Selector>,
    /// Names of the required AdmissionChecks. Sluice does not support them, so nothing is admitted.
    admission_checks: Vec<String>,
    /// Messages about contradictions in the spec.
    misconfigurations: Vec<String>,
    /// Fields that are set but not supported.
    pub(super) unsupported_fields: Vec<String>,
}

/// Reason why a ClusterQueue admits nothing, and its message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClusterQueueProblem {
    /// Reason of the condition Active.
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// Parsed resource groups of a ClusterQueue or Cohort.
#[derive(Debug, Default)]
struct ParsedResourceGroups {
    limits: BTreeMap<FlavorResource, QuotaLimits>,
    misconfigurations: Vec<String>,
}

impl ParsedResourceGroups {
    fn of(groups: &[ResourceGroup], has_cohort: bool) -> Self {
        let mut read = Self::default();
        let mut grouped = BTreeSet::new();
        for group in groups {
            let resources: BTreeSet<&String> = group.covered_resources.iter().collect();
            for resource in group.covered_resources.iter().filter(|name| !grouped.insert(("resource", *name))) {
                read.misconfigurations.push(format!("resource {resource} is covered more than once"));
            }
            for flavor in &group.flavors {
                if !grouped.insert(("flavor", &flavor.name)) {
                    read.misconfigurations.push(format!("flavor {} is listed more than once", flavor.name));
                }
                let listed: BTreeSet<&String> = flavor.resources.iter().map(|quota| &quota.name).collect();
                if listed != resources {
                    read.misconfigurations.push(format!("flavor {} doesn't list the covered resources", flavor.name));
                }
                for quota in &flavor.resources {
                    read.read_limits(&flavor.name, quota, has_cohort);
                }
            }
        }
        read
    }

    fn read_limits(&mut self, flavor: &str, quota: &ResourceQuota, has_cohort: bool) {
        let place = |field: &str| format!("{field} of {} in flavor {flavor}", quota.name);
        let mut read = |field: &str, quantity| match Amount::from_quantity(&quota.name, quantity) {
            Ok(amount) => Some(amount),
            Err(error) => {
                self.misconfigurations.push(format!("{}: {error}", place(field)));
                None
            }
        };
        let limits = QuotaLimits {
            nominal: read("nominalQuota", &quota.nominal_quota).unwrap_or_default(),
            borrowing_limit: quota.borrowing_limit.as_ref().and_then(|limit| read("borrowingLimit", limit)),
            lending_limit: quota.lending_limit.as_ref().and_then(|limit| read("lendingLimit", limit)),
        };
        for (limit, field) in [(limits.borrowing_limit, "borrowingLimit"), (limits.lending_limit, "lendingLimit")] {
            if limit.is_some() && !has_cohort {
                self.misconfigurations.push(format!("{} requires a cohort to borrow from and lend to", place(field)));
            }
        }
        if limits.lending_limit.is_some_and(|lending| lending > limits.nominal) {
            self.misconfigurations.push(format!("{} exceeds its nominalQuota", place("lendingLimit")));
        }
        self.limits.insert(FlavorResource { flavor: flavor.to_owned(), resource: quota.name.clone() }, limits);
    }
}

/// Returns the tree node of a Cohort. Contradictions in the spec are ignored, because a Cohort has
/// no condition to report them.
pub(super) fn cohort_spec(spec: &CohortSpec) -> NodeSpec {
    let parent = spec.parent_name.clone().filter(|name| !name.is_empty());
    NodeSpec {
        limits: ParsedResourceGroups::of(&spec.resource_groups, parent.is_some()).limits,
        weight: weight(spec.fair_sharing.as_ref()).unwrap_or_default(),
        parent,
    }
}

/// Error in a fair sharing weight.
#[derive(Debug, thiserror::Error)]
#[error("fairSharing.weight: {0}")]
struct FairWeightError(#[from] QuantityError);

/// Returns the fair sharing weight, 1 if unset. Errors if it is malformed or negative.
fn weight(fair_sharing: Option<&FairSharing>) -> Result<FairWeight, FairWeightError> {
    let Some(weight) = fair_sharing.and_then(|sharing| sharing.weight.as_ref()) else {
        return Ok(FairWeight::default());
    };
    let exact = Exact::parse_non_negative(&weight.0)?;
    Ok(FairWeight(exact.nano() as f64 / 1e9))
}

impl ClusterQueueConfig {
    /// Parses a ClusterQueue and registers its flavor resources in the tree.
    pub(super) fn of(cluster_queue: &ClusterQueue, tree: &mut CohortTree) -> Self {
        let spec = &cluster_queue.spec;
        let cohort = spec.cohort_name.clone().filter(|name| !name.is_empty());
        let read = ParsedResourceGroups::of(&spec.resource_groups, cohort.is_some());
        let mut quota = Self {
            limits: read.limits,
            misconfigurations: read.misconfigurations,
            cohort,
            preemption: PreemptionPolicy::of(spec.preemption.as_ref()),
            fungibility: FungibilityPolicy::of(spec.flavor_fungibility.as_ref()),
            strict_fifo: spec.queueing_strategy == Some(QueueingStrategy::StrictFIFO),
            stop_policy: spec.stop_policy.unwrap_or_default(),
            terminating: cluster_queue.metadata.deletion_timestamp.is_some(),
            unsupported_fields: unsupported_fields(spec),
            ..Self::default()
        };
        match weight(spec.fair_sharing.as_ref()) {
            Ok(weight) => quota.weight = weight,
            Err(fault) => quota.misconfigurations.push(fault.to_string()),
        }
        let rules = spec.admission_checks_strategy.iter().flat_map(|strategy| &strategy.admission_checks);
        quota.admission_checks = rules.map(|rule| rule.name.clone()).collect();
        match spec.namespace_selector.clone().map(Selector::try_from).transpose() {
            Ok(selector) => quota.namespace_selector = selector,
            Err(fault) => quota.misconfigurations.push(format!("namespaceSelector: {fault}")),
        }
        quota.groups = spec.resource_groups.iter().map(|group| QuotaGroup::of(group, tree)).collect();
        quota
    }

    /// Returns the tree node of the ClusterQueue.
    pub(super) fn node_spec(&self) -> NodeSpec {
        NodeSpec { parent: self.cohort.clone(), limits: self.limits.clone(), weight: self.weight }
    }

    /// Returns the index of the group that covers a resource; `None` if none does.
    pub(super) fn group_of(&self, resource: &str) -> Option<usize> {
        self.groups.iter().position(|group| group.resources.contains(resource))
    }

    /// Returns the requests of `count` pods of a pod set. If the ClusterQueue covers the resource
    /// `pods`, each pod requests one.
    pub(super) fn requests<'s>(&self, set: &'s PodSetRequests, count: i32) -> impl Iterator<Item = (&'s str, Amount)> {
        let pods = self.group_of("pods").is_some();
        let asked = set.per_pod.iter().filter(move |(resource, _)| !pods || *resource != "pods");
        let asked = asked.map(move |(resource, amount)| (resource, amount.times(count.into())));
        asked.chain(pods.then(|| ("pods", Amount::new(count.into()))))
    }

    /// Returns true if the ClusterQueue has this resource in this flavor.
    pub(super) fn provides(&self, fr: FlavorResourceId) -> bool {
        let mut flavors = self.groups.iter().flat_map(|group| &group.flavors);
        flavors.any(|flavor| flavor.flavor_resources.values().any(|provided| *provided == fr))
    }

    /// Iterates over the flavors in spec order, with their resources.
    pub(super) fn flavors(&self) -> impl Iterator<Item = (&str, &BTreeSet<String>)> {
        let flavors = self.groups.iter().flat_map(|group| group.flavors.iter().map(move |flavor| (flavor, group)));
        flavors.map(|(flavor, group)| (flavor.name.as_str(), &group.resources))
    }

    /// Returns the reason and message of the condition Active=False; `None` if the ClusterQueue is
    /// active (kueue v0.19.2 `pkg/cache/scheduler/clusterqueue.go`, `inactiveReason`).
    pub(super) fn inactive_reason(
        &self,
        flavors: &BTreeMap<String, ResourceFlavorSpec>,
        cycle: Option<String>,
    ) -> Option<ClusterQueueProblem> {
        if self.terminating {
            return Some(ClusterQueueProblem {
                reason: active_reason::TERMINATING,
                message: "is being deleted".to_owned(),
            });
        }
        let mut problems: Vec<(&'static str, String)> = Vec::new();
        if self.stop_policy != StopPolicy::None {
            problems.push((active_reason::STOPPED, "is stopped".to_owned()));
        }
        let missing: Vec<&str> =
            self.flavors().map(|(flavor, _)| flavor).filter(|flavor| !flavors.contains_key(*flavor)).collect();
        if !missing.is_empty() {
            let names = missing.join(",");
            problems.push((active_reason::FLAVOR_NOT_FOUND, format!("references missing ResourceFlavor(s): {names}")));
        }
        if !self.admission_checks.is_empty() {
            let names = self.admission_checks.join(",");
            problems.push((
                active_reason::ADMISSION_CHECK_NOT_FOUND,
                format!("references missing AdmissionCheck(s): {names}; Sluice does not support AdmissionChecks"),
            ));
        }
        problems
            .extend(cycle.map(|cycle| (active_reason::MISCONFIGURED, format!("its cohorts form a cycle: {cycle}"))));
        problems.extend(self.misconfigurations.iter().map(|fault| (active_reason::MISCONFIGURED, fault.clone())));
        let reason = problems.first()?.0;
        let texts: Vec<String> = problems.into_iter().map(|(_, text)| text).collect();
        Some(ClusterQueueProblem { reason, message: texts.join(", ") })
    }
}

impl QuotaGroup {
    fn of(group: &ResourceGroup, tree: &mut CohortTree) -> Self {
        let flavors = group.flavors.iter().map(|flavor| {
            let mut fr = |resource: &String| {
                let at = FlavorResource { flavor: flavor.name.clone(), resource: resource.clone() };
                (resource.clone(), tree.flavor_resource_id(&at))
            };
            let frs = group.covered_resources.iter().map(&mut fr).collect();
            GroupFlavor { name: flavor.name.clone(), flavor_resources: frs }
        });
        Self { flavors: flavors.collect(), resources: group.covered_resources.iter().cloned().collect() }
    }
}

/// Returns the fields that are set but not supported.
fn unsupported_fields(spec: &ClusterQueueSpec) -> Vec<String> {
    let fields = [
        (spec.admission_scope.is_some(), "admissionScope"),
        (spec.concurrent_admission_policy.is_some(), "concurrentAdmissionPolicy"),
    ];
    fields.into_iter().filter(|(set, _)| *set).map(|(_, name)| format!("spec.{name}")).collect()
}
