//! Cohort: a group of ClusterQueues and Cohorts that borrow unused quota from each other.

use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::cluster_queue::ResourceGroup;
use super::schema::DNS_SUBDOMAIN;
use super::{FairSharing, FairSharingStatus};

/// Desired state of a Cohort: its parent, and the quota that it adds.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "kueue.x-k8s.io",
    version = "v1beta2",
    kind = "Cohort",
    plural = "cohorts",
    shortname = "co",
    status = "CohortStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "Cohort is a group of ClusterQueues and Cohorts that borrow unused quota from each other."
)]
#[serde(rename_all = "camelCase")]
pub struct CohortSpec {
    /// Name of the parent Cohort. Unset makes this Cohort a root. A name without an object stands
    /// for a Cohort without quota and without limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub parent_name: Option<String>,
    /// Quota that this Cohort adds to the quota of its members.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "atomic"))]
    pub resource_groups: Vec<ResourceGroup>,
    /// Weight of this Cohort among the members of its parent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fair_sharing: Option<FairSharing>,
}

/// Observed state of a Cohort.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CohortStatus {
    /// Current state of fair sharing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fair_sharing: Option<FairSharingStatus>,
}
