//! ClusterQueue: the quota of a team, by flavor and resource.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema::{self, DNS_SUBDOMAIN, QUALIFIED_NAME};
use super::{AdmissionScope, FairSharing, FairSharingStatus, StopPolicy};
use crate::api::quantity::Quantity;

/// What a ClusterQueue gives out, to whom, and in which order.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "kueue.x-k8s.io",
    version = "v1beta2",
    kind = "ClusterQueue",
    plural = "clusterqueues",
    shortname = "cq",
    status = "ClusterQueueStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "ClusterQueue is a quota of resources, and the rules by which workloads get a part of it.",
    printcolumn = r#"{"name": "Cohort", "type": "string", "jsonPath": ".spec.cohortName", "description": "Cohort that this ClusterQueue belongs to"}"#,
    printcolumn = r#"{"name": "Strategy", "type": "string", "jsonPath": ".spec.queueingStrategy", "description": "How workloads are ordered", "priority": 1}"#,
    printcolumn = r#"{"name": "Pending Workloads", "type": "integer", "jsonPath": ".status.pendingWorkloads", "description": "Workloads that wait"}"#,
    printcolumn = r#"{"name": "Admitted Workloads", "type": "integer", "jsonPath": ".status.admittedWorkloads", "description": "Workloads that were admitted and have not finished", "priority": 1}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "!has(self.cohortName) && has(self.resourceGroups) ? self.resourceGroups.all(rg, rg.flavors.all(f, f.resources.all(r, !has(r.borrowingLimit)))) : true", "message": "borrowingLimit must be nil when cohort is empty"},
    {"rule": "!has(self.cohortName) && has(self.resourceGroups) ? self.resourceGroups.all(rg, rg.flavors.all(f, f.resources.all(r, !has(r.lendingLimit)))) : true", "message": "lendingLimit must be nil when cohort is empty"},
    {"rule": "!has(self.resourceGroups) || self.resourceGroups.map(rg, size(rg.flavors)).sum() <= 256", "fieldPath": ".resourceGroups", "message": "there may be 256 flavors in all resourceGroups together"},
    {"rule": "!has(self.resourceGroups) || self.resourceGroups.map(rg, size(rg.coveredResources)).sum() <= 256", "fieldPath": ".resourceGroups", "message": "there may be 256 coveredResources in all resourceGroups together"},
    {"rule": "!has(self.resourceGroups) || self.resourceGroups.all(rg, size(rg.flavors) * size(rg.coveredResources) <= 512)", "fieldPath": ".resourceGroups", "message": "there may be 512 quotas, one for each flavor and covered resource, in a resourceGroup"},
    {"rule": "has(self.concurrentAdmissionPolicy) == has(oldSelf.concurrentAdmissionPolicy) && (!has(self.concurrentAdmissionPolicy) || self.concurrentAdmissionPolicy == oldSelf.concurrentAdmissionPolicy)", "fieldPath": ".concurrentAdmissionPolicy", "message": "field is immutable"},
]))]
pub struct ClusterQueueSpec {
    /// Quota, grouped by resources that one flavor provides together. A resource and a flavor stand in one group only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "atomic"))]
    pub resource_groups: Vec<ResourceGroup>,
    /// Name of the cohort that this ClusterQueue lends to and borrows from.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub cohort_name: Option<String>,
    /// What happens behind a workload that does not fit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "BestEffortFIFO"))]
    pub queueing_strategy: Option<QueueingStrategy>,
    /// Namespaces whose workloads may be admitted: none if unset, all if `{}`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,
    /// Whether to go on to the next flavor rather than borrow or preempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = {}))]
    pub flavor_fungibility: Option<FlavorFungibility>,
    /// Whom a waiting workload may push out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = {}))]
    pub preemption: Option<ClusterQueuePreemption>,
    /// Checks that must pass after quota was reserved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admission_checks_strategy: Option<AdmissionChecksStrategy>,
    /// Whether workloads are taken in.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "None"))]
    pub stop_policy: Option<StopPolicy>,
    /// How much this ClusterQueue counts beside its siblings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fair_sharing: Option<FairSharing>,
    /// Which rule of admission fair sharing holds here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admission_scope: Option<AdmissionScope>,
    /// Whether a workload tries several flavors at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrent_admission_policy: Option<ConcurrentAdmissionPolicy>,
}

/// What happens behind a workload that does not fit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum QueueingStrategy {
    /// The oldest workload of the highest priority blocks those behind it.
    StrictFIFO,
    /// Workloads behind one that does not fit are tried.
    #[default]
    BestEffortFIFO,
}

/// Resources that one flavor provides together.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "self.flavors.all(x, size(x.resources) == size(self.coveredResources))", "message": "flavors must have the same number of resources as the coveredResources"},
    {"rule": "self.flavors.all(x, x.resources.map(r, r.name) == self.coveredResources)", "message": "flavors must list the same resources as coveredResources, in the same order"},
]))]
pub struct ResourceGroup {
    /// Names of the resources.
    #[schemars(length(min = 1, max = 64), inner(length(min = 1, max = 317), regex(pattern = QUALIFIED_NAME)), extend("x-kubernetes-list-type" = "atomic"))]
    pub covered_resources: Vec<String>,
    /// Flavors that provide them, in the order in which they are tried.
    #[schemars(length(min = 1, max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub flavors: Vec<FlavorQuotas>,
}

/// Quota of one flavor.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FlavorQuotas {
    /// Name of the ResourceFlavor.
    #[schemars(length(max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub name: String,
    /// Quota by resource, for each of the covered resources.
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
    /// What this ClusterQueue may use at any time; zero or more.
    #[schemars(schema_with = "schema::non_negative_quantity")]
    pub nominal_quota: Quantity,
    /// What it may use beyond that while the cohort has it to spare; no limit if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::non_negative_quantity")]
    pub borrowing_limit: Option<Quantity>,
    /// What others of the cohort may use of it while it is unused; no limit if unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::non_negative_quantity")]
    pub lending_limit: Option<Quantity>,
}

/// Whether to go on to the next flavor rather than borrow or preempt.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "!has(self.preference) || (self.whenCanBorrow == 'TryNextFlavor' && self.whenCanPreempt == 'TryNextFlavor')", "message": "preference can only be set when both whenCanBorrow and whenCanPreempt are TryNextFlavor"},
]))]
pub struct FlavorFungibility {
    /// What to do at a flavor that fits only by borrowing.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "MayStopSearch"))]
    pub when_can_borrow: Option<FlavorFungibilityPolicy>,
    /// What to do at a flavor that fits only by preempting.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "TryNextFlavor"))]
    pub when_can_preempt: Option<FlavorFungibilityPolicy>,
    /// Which of the two is better when every flavor needs one of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preference: Option<FlavorFungibilityPreference>,
}

/// What to do at a flavor that is not free for the taking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FlavorFungibilityPolicy {
    /// Take it.
    MayStopSearch,
    /// Look at the next one first.
    TryNextFlavor,
}

/// Which is better when every flavor needs borrowing or preemption.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FlavorFungibilityPreference {
    /// Borrow rather than preempt.
    BorrowingOverPreemption,
    /// Preempt rather than borrow.
    PreemptionOverBorrowing,
}

/// Whom a waiting workload may push out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "!(self.reclaimWithinCohort == 'Never' && has(self.borrowWithinCohort) && self.borrowWithinCohort.policy != 'Never')", "message": "reclaimWithinCohort=Never and borrowWithinCohort.Policy!=Never"},
]))]
pub struct ClusterQueuePreemption {
    /// Workloads of other ClusterQueues of the cohort that borrow, while this one is within its nominal quota.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "Never"))]
    pub reclaim_within_cohort: Option<ReclaimPolicy>,
    /// Workloads of other ClusterQueues of the cohort that borrow, while this one borrows too.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = {}))]
    pub borrow_within_cohort: Option<BorrowWithinCohort>,
    /// Workloads of this ClusterQueue.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "Never"))]
    pub within_cluster_queue: Option<WithinClusterQueuePolicy>,
}

/// Which borrowers may be pushed out to get nominal quota back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ReclaimPolicy {
    /// None.
    #[default]
    Never,
    /// Those of lower priority.
    LowerPriority,
    /// All.
    Any,
}

/// Which workloads of the same ClusterQueue may be pushed out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WithinClusterQueuePolicy {
    /// None.
    #[default]
    Never,
    /// Those of lower priority.
    LowerPriority,
    /// Those of lower priority, and newer ones of equal priority.
    LowerOrNewerEqualPriority,
}

/// Preemption of borrowers by a workload that itself borrows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BorrowWithinCohort {
    /// Which borrowers.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "Never"))]
    pub policy: Option<BorrowWithinCohortPolicy>,
    /// Only those of this priority or lower, if set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_priority_threshold: Option<i32>,
}

/// Which borrowers a borrowing workload may push out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BorrowWithinCohortPolicy {
    /// None.
    #[default]
    Never,
    /// Those of lower priority.
    LowerPriority,
}

/// Checks that must pass after quota was reserved.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AdmissionChecksStrategy {
    /// The checks.
    #[schemars(length(min = 1, max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub admission_checks: Vec<AdmissionCheckStrategyRule>,
}

/// One check and the flavors that it is for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AdmissionCheckStrategyRule {
    /// Name of the AdmissionCheck.
    #[schemars(length(min = 1, max = 316))]
    pub name: String,
    /// Flavors whose workloads need it; all if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 253), regex(pattern = DNS_SUBDOMAIN)), extend("x-kubernetes-list-type" = "set"))]
    pub on_flavors: Vec<String>,
}

/// Whether a workload tries several flavors at the same time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ConcurrentAdmissionPolicy {
    /// Whether it moves to a better flavor later.
    pub migration: ConcurrentAdmissionMigration,
}

/// Whether a workload moves to a better flavor later.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ConcurrentAdmissionMigration {
    /// Whether it moves.
    pub mode: ConcurrentAdmissionMigrationMode,
    /// How far it may move.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub constraints: Option<ConcurrentAdmissionConstraints>,
}

/// Whether a running workload moves to a better flavor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ConcurrentAdmissionMigrationMode {
    /// It moves when there is room.
    TryPreferredFlavors,
    /// It stays where it was admitted first.
    RetainFirstAdmission,
}

/// How far a workload may move.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConcurrentAdmissionConstraints {
    /// The least preferred flavor that it may move to.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub last_acceptable_flavor_name: Option<String>,
}

/// What was observed of a ClusterQueue.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterQueueStatus {
    /// Whether workloads can be admitted (Active), and why not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Quota reserved, by flavor.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub flavors_reservation: Vec<FlavorUsage>,
    /// Quota used by admitted workloads, by flavor.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub flavors_usage: Vec<FlavorUsage>,
    /// Workloads that wait.
    pub pending_workloads: i32,
    /// Workloads that hold quota and have not finished.
    pub reserving_workloads: i32,
    /// Workloads that were admitted and have not finished.
    pub admitted_workloads: i32,
    /// The share that it takes at the moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fair_sharing: Option<FairSharingStatus>,
}

/// What is used of one flavor.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FlavorUsage {
    /// Name of the flavor.
    pub name: String,
    /// What is used, by resource.
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub resources: Vec<ResourceUsage>,
}

/// What is used of one resource.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ResourceUsage {
    /// Name of the resource.
    pub name: String,
    /// What is used, with what is borrowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<Quantity>,
    /// What is used beyond nominal quota.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub borrowed: Option<Quantity>,
}
