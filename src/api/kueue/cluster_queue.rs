//! ClusterQueue: a cluster-wide quota by flavor and resource, and its admission policy.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema::{self, DNS_SUBDOMAIN};
use super::{AdmissionScope, FairSharing, FairSharingStatus, StopPolicy};
use crate::quantity::Quantity;

/// Desired state of a ClusterQueue: its quota, and the rules by which workloads are admitted.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "kueue.x-k8s.io",
    version = "v1beta2",
    kind = "ClusterQueue",
    plural = "clusterqueues",
    shortname = "cq",
    status = "ClusterQueueStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "ClusterQueue is a pool of quota, by flavor and resource, and the policy by which workloads are admitted to it.",
    printcolumn = r#"{"name": "Cohort", "type": "string", "jsonPath": ".spec.cohortName", "description": "Cohort of this ClusterQueue"}"#,
    printcolumn = r#"{"name": "Strategy", "type": "string", "jsonPath": ".spec.queueingStrategy", "description": "Queueing strategy of pending workloads", "priority": 1}"#,
    printcolumn = r#"{"name": "Pending Workloads", "type": "integer", "jsonPath": ".status.pendingWorkloads", "description": "Number of pending workloads"}"#,
    printcolumn = r#"{"name": "Admitted Workloads", "type": "integer", "jsonPath": ".status.admittedWorkloads", "description": "Number of admitted workloads that have not finished", "priority": 1}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "!has(self.cohortName) && has(self.resourceGroups) ? self.resourceGroups.all(rg, rg.flavors.all(f, f.resources.all(r, !has(r.borrowingLimit)))) : true", "message": "borrowingLimit must be nil when cohort is empty"},
    {"rule": "!has(self.cohortName) && has(self.resourceGroups) ? self.resourceGroups.all(rg, rg.flavors.all(f, f.resources.all(r, !has(r.lendingLimit)))) : true", "message": "lendingLimit must be nil when cohort is empty"},
    {"rule": "!has(self.resourceGroups) || self.resourceGroups.map(rg, size(rg.flavors)).sum() <= 256", "fieldPath": ".resourceGroups", "message": "the resourceGroups may have at most 256 flavors in total"},
    {"rule": "!has(self.resourceGroups) || self.resourceGroups.map(rg, size(rg.coveredResources)).sum() <= 256", "fieldPath": ".resourceGroups", "message": "the resourceGroups may have at most 256 coveredResources in total"},
    {"rule": "!has(self.resourceGroups) || self.resourceGroups.all(rg, size(rg.flavors) * size(rg.coveredResources) <= 512)", "fieldPath": ".resourceGroups", "message": "a resourceGroup may have at most 512 quotas, which is flavors times coveredResources"},
    {"rule": "has(self.concurrentAdmissionPolicy) == has(oldSelf.concurrentAdmissionPolicy) && (!has(self.concurrentAdmissionPolicy) || self.concurrentAdmissionPolicy == oldSelf.concurrentAdmissionPolicy)", "fieldPath": ".concurrentAdmissionPolicy", "message": "field is immutable"},
]))]
pub struct ClusterQueueSpec {
    /// Quota, grouped by the resources that a flavor provides together. A resource or a flavor may
    /// appear in one group only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "atomic"))]
    pub resource_groups: Vec<ResourceGroup>,
    /// Name of the cohort that this ClusterQueue lends quota to and borrows quota from. Unset means
    /// no cohort.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub cohort_name: Option<String>,
    /// Ordering of pending workloads, and whether a workload that does not fit blocks those behind
    /// it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "BestEffortFIFO"))]
    pub queueing_strategy: Option<QueueingStrategy>,
    /// Selects the namespaces whose workloads may be admitted. Unset selects none, `{}` selects
    /// all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,
    /// Policy for trying the next flavor before borrowing or preempting in the current one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = {}))]
    pub flavor_fungibility: Option<FlavorFungibility>,
    /// Preemption policy for pending workloads.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = {}))]
    pub preemption: Option<ClusterQueuePreemption>,
    /// AdmissionChecks that must pass after quota is reserved and before the workload is admitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admission_checks_strategy: Option<AdmissionChecksStrategy>,
    /// Stop policy: holds the admission of workloads, or also evicts admitted ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "None"))]
    pub stop_policy: Option<StopPolicy>,
    /// Weight of this ClusterQueue when the cohort's unused quota is shared among its members.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fair_sharing: Option<FairSharing>,
    /// Ordering mode of admission fair sharing in this ClusterQueue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admission_scope: Option<AdmissionScope>,
    /// Policy for trying several flavors of a workload concurrently.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrent_admission_policy: Option<ConcurrentAdmissionPolicy>,
}

/// Ordering of pending workloads, and handling of a workload that does not fit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum QueueingStrategy {
    /// Workloads are ordered by priority, then by age. A head that does not fit blocks all
    /// workloads behind it.
    StrictFIFO,
    /// Workloads are ordered by priority, then by age. Workloads behind one that does not fit are
    /// tried.
    #[default]
    BestEffortFIFO,
}

/// Resources that a flavor provides together, and the flavors that provide them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "self.flavors.all(x, size(x.resources) == size(self.coveredResources))", "message": "flavors must have the same number of resources as the coveredResources"},
]))]
pub struct ResourceGroup {
    /// Names of the resources that every flavor of the group has a quota for.
    #[schemars(length(min = 1, max = 64), inner(length(min = 1, max = 317)), extend("x-kubernetes-list-type" = "atomic"))]
    pub covered_resources: Vec<String>,
    /// Flavors that provide the covered resources, in the order in which they are tried.
    #[schemars(length(min = 1, max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub flavors: Vec<FlavorQuotas>,
}

/// Quota of one flavor.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FlavorQuotas {
    /// Name of the ResourceFlavor.
    #[schemars(length(max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub name: String,
    /// Quota of each covered resource, in the order of coveredResources.
    #[schemars(length(min = 1, max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub resources: Vec<ResourceQuota>,
}

/// Quota of one resource in one flavor.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceQuota {
    /// Name of the resource.
    #[schemars(length(min = 1, max = 317))]
    pub name: String,
    /// Quantity available to the workloads of this ClusterQueue at any time. Must be zero or more.
    #[schemars(schema_with = "schema::quantity")]
    pub nominal_quota: Quantity,
    /// Maximum quantity that may be borrowed from the cohort on top of nominalQuota. Unset means no
    /// limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub borrowing_limit: Option<Quantity>,
    /// Maximum quantity of unused nominalQuota that the rest of the cohort may borrow. Unset means
    /// no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub lending_limit: Option<Quantity>,
}

/// Policy for trying the next flavor before borrowing or preempting in the current one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "!has(self.preference) || (self.whenCanBorrow == 'TryNextFlavor' && self.whenCanPreempt == 'TryNextFlavor')", "message": "preference can only be set when both whenCanBorrow and whenCanPreempt are TryNextFlavor"},
]))]
pub struct FlavorFungibility {
    /// Action when the workload fits in the current flavor only by borrowing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "MayStopSearch"))]
    pub when_can_borrow: Option<FlavorFungibilityPolicy>,
    /// Action when the workload fits in the current flavor only by preempting.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "TryNextFlavor"))]
    pub when_can_preempt: Option<FlavorFungibilityPolicy>,
    /// Preference between borrowing and preempting when every flavor needs one of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preference: Option<FlavorFungibilityPreference>,
}

/// Action for a flavor in which the workload does not fit without borrowing or preempting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FlavorFungibilityPolicy {
    /// Use this flavor.
    MayStopSearch,
    /// Try the next flavor first.
    TryNextFlavor,
}

/// Preference between borrowing and preempting when every flavor needs one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FlavorFungibilityPreference {
    /// Prefer borrowing to preempting.
    BorrowingOverPreemption,
    /// Prefer preempting to borrowing.
    PreemptionOverBorrowing,
}

/// Preemption policy for pending workloads.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "!(self.reclaimWithinCohort == 'Never' && has(self.borrowWithinCohort) && self.borrowWithinCohort.policy != 'Never')", "message": "reclaimWithinCohort=Never and borrowWithinCohort.Policy!=Never"},
]))]
pub struct ClusterQueuePreemption {
    /// Workloads of other ClusterQueues in the cohort that may be preempted when they borrow and
    /// the pending workload fits within the nominal quota of this ClusterQueue.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "Never"))]
    pub reclaim_within_cohort: Option<ReclaimPolicy>,
    /// Workloads of other ClusterQueues in the cohort that may be preempted when they borrow and
    /// the pending workload needs to borrow too.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = {}))]
    pub borrow_within_cohort: Option<BorrowWithinCohort>,
    /// Workloads of this ClusterQueue that may be preempted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "Never"))]
    pub within_cluster_queue: Option<WithinClusterQueuePolicy>,
}

/// Borrowing workloads that may be preempted to reclaim nominal quota.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ReclaimPolicy {
    /// No workload is preempted.
    #[default]
    Never,
    /// Workloads of lower priority than the pending one.
    LowerPriority,
    /// Workloads of any priority.
    Any,
}

/// Workloads of the same ClusterQueue that may be preempted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WithinClusterQueuePolicy {
    /// No workload is preempted.
    #[default]
    Never,
    /// Workloads of lower priority than the pending one.
    LowerPriority,
    /// Workloads of lower priority than the pending one, and newer workloads of equal priority.
    LowerOrNewerEqualPriority,
}

/// Preemption of borrowing workloads by a workload that needs to borrow.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BorrowWithinCohort {
    /// Borrowing workloads that may be preempted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "Never"))]
    pub policy: Option<BorrowWithinCohortPolicy>,
    /// Highest priority of workloads that may be preempted. Unset means no threshold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_priority_threshold: Option<i32>,
}

/// Borrowing workloads that a workload may preempt in order to borrow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BorrowWithinCohortPolicy {
    /// No workload is preempted.
    #[default]
    Never,
    /// Workloads of lower priority than the pending one.
    LowerPriority,
}

/// AdmissionChecks that must pass after quota is reserved and before the workload is admitted.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AdmissionChecksStrategy {
    /// AdmissionChecks, each with the flavors that it applies to.
    #[schemars(length(min = 1, max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub admission_checks: Vec<AdmissionCheckStrategyRule>,
}

/// An AdmissionCheck, and the flavors that it applies to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AdmissionCheckStrategyRule {
    /// Name of the AdmissionCheck.
    #[schemars(length(min = 1, max = 316))]
    pub name: String,
    /// Flavors whose workloads need the check. Empty means all flavors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 253), regex(pattern = DNS_SUBDOMAIN)), extend("x-kubernetes-list-type" = "set"))]
    pub on_flavors: Vec<String>,
}

/// Policy for trying several flavors of a workload concurrently.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ConcurrentAdmissionPolicy {
    /// Migration of an admitted workload to a more preferred flavor.
    pub migration: ConcurrentAdmissionMigration,
}

/// Migration of an admitted workload to a more preferred flavor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ConcurrentAdmissionMigration {
    /// Mode of the migration.
    pub mode: ConcurrentAdmissionMigrationMode,
    /// Limits of the migration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub constraints: Option<ConcurrentAdmissionConstraints>,
}

/// Mode of the migration of an admitted workload to a more preferred flavor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ConcurrentAdmissionMigrationMode {
    /// The workload migrates when a more preferred flavor has capacity.
    TryPreferredFlavors,
    /// The workload stays in the flavor of its first admission.
    RetainFirstAdmission,
}

/// Limits of the migration to another flavor.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConcurrentAdmissionConstraints {
    /// Least preferred flavor that the workload may migrate to.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub last_acceptable_flavor_name: Option<String>,
}

/// Observed state of a ClusterQueue.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterQueueStatus {
    /// Conditions of the ClusterQueue. Active reports whether workloads can be admitted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Quota reserved by workloads, by flavor.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub flavors_reservation: Vec<FlavorUsage>,
    /// Quota used by admitted workloads, by flavor.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub flavors_usage: Vec<FlavorUsage>,
    /// Number of workloads that are pending admission.
    pub pending_workloads: i32,
    /// Number of workloads that hold a quota reservation and have not finished.
    pub reserving_workloads: i32,
    /// Number of workloads that are admitted and have not finished.
    pub admitted_workloads: i32,
    /// Current state of fair sharing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fair_sharing: Option<FairSharingStatus>,
}

/// Usage of one flavor.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FlavorUsage {
    /// Name of the flavor.
    pub name: String,
    /// Usage by resource.
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub resources: Vec<ResourceUsage>,
}

/// Usage of one resource.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ResourceUsage {
    /// Name of the resource.
    pub name: String,
    /// Total quantity used, including borrowed quota.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<Quantity>,
    /// Quantity used above nominal quota.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub borrowed: Option<Quantity>,
}
