//! A ClusterQueue's spec, made ready to decide with.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::ledger::FlavorResource;
use crate::api::kueue::cluster_queue::{
    BorrowWithinCohortPolicy, FlavorFungibilityPolicy, QueueingStrategy, ReclaimPolicy, WithinClusterQueuePolicy,
};
use crate::api::kueue::names::active_reason;
use crate::api::kueue::{ClusterQueue, ClusterQueueSpec, ResourceFlavorSpec, StopPolicy};
use crate::api::quantity::Amount;

/// Resources that one flavor provides together, and the flavors in the order in which they are tried.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) resources: BTreeSet<String>,
    pub(super) flavors: Vec<String>,
}

/// What a ClusterQueue gives out, and by which rules.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Quota {
    pub(super) groups: Vec<Group>,
    pub(super) nominal: BTreeMap<FlavorResource, Amount>,
    pub(super) strict: bool,
    pub(super) stop: StopPolicy,
    pub(super) terminating: bool,
    pub(super) selector: Option<LabelSelector>,
    /// Names of AdmissionChecks that would have to pass. There is nobody to do them, so nothing is admitted.
    checks: Vec<String>,
    /// What contradicts itself in the spec, for people.
    faults: Vec<String>,
    /// Fields that are set and not acted on.
    pub(super) unsupported: Vec<String>,
}

impl Quota {
    pub(super) fn of(cluster_queue: &ClusterQueue) -> Self {
        let spec = &cluster_queue.spec;
        let mut quota = Self {
            strict: spec.queueing_strategy == Some(QueueingStrategy::StrictFIFO),
            stop: spec.stop_policy.unwrap_or_default(),
            terminating: cluster_queue.metadata.deletion_timestamp.is_some(),
            selector: spec.namespace_selector.clone(),
            unsupported: unsupported(spec),
            ..Self::default()
        };
        let rules = spec.admission_checks_strategy.iter().flat_map(|strategy| &strategy.admission_checks);
        quota.checks = rules.map(|rule| rule.name.clone()).collect();
        if let Err(fault) = super::selector::matches(quota.selector.as_ref(), &BTreeMap::new()) {
            quota.faults.push(format!("namespaceSelector: {fault}"));
        }
        quota.read_groups(spec);
        quota
    }

    fn read_groups(&mut self, spec: &ClusterQueueSpec) {
        let mut grouped = BTreeSet::new();
        for group in &spec.resource_groups {
            let resources: BTreeSet<String> = group.covered_resources.iter().cloned().collect();
            for resource in group.covered_resources.iter().filter(|name| !grouped.insert(("resource", (*name).clone())))
            {
                self.faults.push(format!("resource {resource} is covered more than once"));
            }
            for flavor in &group.flavors {
                if !grouped.insert(("flavor", flavor.name.clone())) {
                    self.faults.push(format!("flavor {} is listed more than once", flavor.name));
                }
                let listed: BTreeSet<String> = flavor.resources.iter().map(|quota| quota.name.clone()).collect();
                if listed != resources {
                    self.faults.push(format!("flavor {} doesn't list the covered resources", flavor.name));
                }
                for quota in &flavor.resources {
                    match Amount::of(&quota.name, &quota.nominal_quota) {
                        Ok(amount) => {
                            self.nominal.insert(FlavorResource::new(&flavor.name, &quota.name), amount);
                        }
                        Err(error) => self
                            .faults
                            .push(format!("nominalQuota of {} in flavor {}: {error}", quota.name, flavor.name)),
                    }
                }
            }
            let flavors = group.flavors.iter().map(|flavor| flavor.name.clone()).collect();
            self.groups.push(Group { resources, flavors });
        }
    }

    /// The nominal quota; nothing for what is not listed.
    pub(super) fn nominal(&self, at: &FlavorResource) -> Amount {
        self.nominal.get(at).copied().unwrap_or_default()
    }

    /// The group that covers a resource.
    pub(super) fn group_of(&self, resource: &str) -> Option<usize> {
        self.groups.iter().position(|group| group.resources.contains(resource))
    }

    /// The flavors in the order of the spec, with their resources.
    pub(super) fn flavors(&self) -> impl Iterator<Item = (&str, &BTreeSet<String>)> {
        let flavors = self.groups.iter().flat_map(|group| group.flavors.iter().map(move |flavor| (flavor, group)));
        flavors.map(|(flavor, group)| (flavor.as_str(), &group.resources))
    }

    /// Why nothing can be admitted: the reason of the condition Active, and what is wrong; `None` when all is well.
    /// (kueue v0.19.2 `pkg/cache/scheduler/clusterqueue.go`, `inactiveReason`.)
    pub(super) fn inactive(&self, flavors: &BTreeMap<String, ResourceFlavorSpec>) -> Option<(&'static str, String)> {
        if self.terminating {
            return Some((active_reason::TERMINATING, "is being deleted".to_owned()));
        }
        let mut problems: Vec<(&'static str, String)> = Vec::new();
        if self.stop != StopPolicy::None {
            problems.push((active_reason::STOPPED, "is stopped".to_owned()));
        }
        let missing: Vec<&str> =
            self.flavors().map(|(flavor, _)| flavor).filter(|flavor| !flavors.contains_key(*flavor)).collect();
        if !missing.is_empty() {
            let names = missing.join(",");
            problems.push((active_reason::FLAVOR_NOT_FOUND, format!("references missing ResourceFlavor(s): {names}")));
        }
        if !self.checks.is_empty() {
            let names = self.checks.join(",");
            problems.push((
                active_reason::ADMISSION_CHECK_NOT_FOUND,
                format!("references missing AdmissionCheck(s): {names}; Sluice serves none"),
            ));
        }
        problems.extend(self.faults.iter().map(|fault| (active_reason::MISCONFIGURED, fault.clone())));
        let reason = problems.first()?.0;
        let texts: Vec<String> = problems.into_iter().map(|(_, text)| text).collect();
        Some((reason, texts.join(", ")))
    }
}

/// The fields that are set to something else than their default and that are not acted on.
fn unsupported(spec: &ClusterQueueSpec) -> Vec<String> {
    let quotas = || spec.resource_groups.iter().flat_map(|group| &group.flavors).flat_map(|flavor| &flavor.resources);
    let preemption = spec.preemption.as_ref();
    let borrow = preemption.and_then(|p| p.borrow_within_cohort.as_ref());
    let fungibility = spec.flavor_fungibility.as_ref();
    let fields = [
        (spec.cohort_name.is_some(), "cohortName"),
        (
            quotas().any(|quota| quota.borrowing_limit.is_some()),
            "resourceGroups[*].flavors[*].resources[*].borrowingLimit",
        ),
        (quotas().any(|quota| quota.lending_limit.is_some()), "resourceGroups[*].flavors[*].resources[*].lendingLimit"),
        (
            fungibility.is_some_and(|f| {
                f.when_can_borrow == Some(FlavorFungibilityPolicy::TryNextFlavor)
                    || f.when_can_preempt == Some(FlavorFungibilityPolicy::MayStopSearch)
                    || f.preference.is_some()
            }),
            "flavorFungibility",
        ),
        (
            preemption.and_then(|p| p.reclaim_within_cohort).unwrap_or_default() != ReclaimPolicy::Never,
            "preemption.reclaimWithinCohort",
        ),
        (
            borrow.and_then(|b| b.policy).unwrap_or_default() != BorrowWithinCohortPolicy::Never,
            "preemption.borrowWithinCohort",
        ),
        (
            preemption.and_then(|p| p.within_cluster_queue).unwrap_or_default() != WithinClusterQueuePolicy::Never,
            "preemption.withinClusterQueue",
        ),
        (spec.fair_sharing.is_some(), "fairSharing"),
        (spec.admission_scope.is_some(), "admissionScope"),
        (spec.concurrent_admission_policy.is_some(), "concurrentAdmissionPolicy"),
    ];
    fields.into_iter().filter(|(set, _)| *set).map(|(_, name)| format!("spec.{name}")).collect()
}
