//! Status of ClusterQueues, Cohorts and LocalQueues.

use super::cluster_queue_config::{ClusterQueueConfig, ClusterQueueProblem};
use super::ledger::{UsageTotals, to_amount};
use super::tree::{CohortTree, FlavorResourceId, NodeId, UsageView};
use sluice_api::kueue::StopPolicy;
use sluice_api::kueue::cluster_queue::{FlavorUsage, ResourceUsage};
use sluice_api::kueue::local_queue::{LocalQueueFlavorUsage, LocalQueueResourceUsage};
use sluice_api::kueue::names::active_reason;

/// The condition Active of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActiveCondition {
    /// True if the queue can admit workloads.
    pub active: bool,
    /// The reason of the condition Active.
    pub reason: &'static str,
    /// The message of the condition Active.
    pub message: String,
}

impl ActiveCondition {
    /// Returns the condition of a ClusterQueue (kueue v0.19.2
    /// `pkg/cache/scheduler/clusterqueue.go`).
    pub(super) fn of_cluster_queue(problem: Option<&ClusterQueueProblem>) -> Self {
        match problem {
            None => Self { active: true, reason: active_reason::READY, message: "Can admit new workloads".to_owned() },
            Some(ClusterQueueProblem { reason, message }) => {
                Self { active: false, reason, message: format!("Can't admit new workloads: {message}.") }
            }
        }
    }

    /// Returns the condition of a LocalQueue (kueue v0.19.2
    /// `pkg/controller/core/localqueue_controller.go`). `cluster_queue` is true if its ClusterQueue
    /// is active, and `None` if there is none.
    pub(super) fn of_local_queue(stop: StopPolicy, cluster_queue: Option<bool>) -> Self {
        let closed = "Can't submit new workloads to clusterQueue";
        let (active, reason, message) = match (stop, cluster_queue) {
            (StopPolicy::Hold | StopPolicy::HoldAndDrain, _) => {
                (false, active_reason::STOPPED, "LocalQueue is stopped")
            }
            (StopPolicy::None, None) => (false, active_reason::CLUSTER_QUEUE_DOES_NOT_EXIST, closed),
            (StopPolicy::None, Some(false)) => (false, active_reason::CLUSTER_QUEUE_IS_INACTIVE, closed),
            (StopPolicy::None, Some(true)) => (true, active_reason::READY, "Can submit new workloads to localQueue"),
        };
        Self { active, reason, message: message.to_owned() }
    }
}

/// Number of workloads in a queue by stage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkloadCounts {
    /// Pending workloads.
    pub pending: i32,
    /// Workloads with reserved quota, including admitted ones.
    pub reserving: i32,
    /// Admitted workloads.
    pub admitted: i32,
}

/// Content of a ClusterQueue's status.
#[derive(Debug, Clone, PartialEq)]
pub struct ClusterQueueReport {
    /// The observed generation of the ClusterQueue.
    pub generation: Option<i64>,
    /// The condition Active.
    pub active_condition: ActiveCondition,
    /// Fields of its spec that are set but not supported.
    pub unsupported_fields: Vec<String>,
    /// Number of its workloads.
    pub counts: WorkloadCounts,
    /// Its share of the quota that its cohort can lend, in thousandths, divided by its weight;
    /// `None` without fair sharing.
    pub weighted_share: Option<i64>,
    /// Reserved quota by flavor.
    pub reservation: Vec<FlavorUsage>,
    /// Usage of admitted workloads by flavor.
    pub usage: Vec<FlavorUsage>,
}

/// Content of a Cohort's status.
#[derive(Debug, Clone, PartialEq)]
pub struct CohortReport {
    /// Its share of the quota that its parent can lend, in thousandths, divided by its weight;
    /// `None` without fair sharing.
    pub weighted_share: Option<i64>,
}

/// Content of a LocalQueue's status.
#[derive(Debug, Clone, PartialEq)]
pub struct LocalQueueReport {
    /// The observed generation of the LocalQueue.
    pub generation: Option<i64>,
    /// The condition Active.
    pub active_condition: ActiveCondition,
    /// Number of its workloads.
    pub counts: WorkloadCounts,
    /// Reserved quota by flavor.
    pub reservation: Vec<LocalQueueFlavorUsage>,
    /// Usage of admitted workloads by flavor.
    pub usage: Vec<LocalQueueFlavorUsage>,
}

/// Returns the usage of each flavor of a ClusterQueue in spec order, as given by `sum`, and the
/// part of it that is borrowed.
pub(super) fn cluster_queue_usage(
    quota: &ClusterQueueConfig,
    tree: &CohortTree,
    node: NodeId,
    sum: impl Fn(FlavorResourceId) -> i128,
) -> Vec<FlavorUsage> {
    let sum = |flavor: &str, resource: &str| tree.known_flavor_resource(flavor, resource).map_or(0, &sum);
    let borrowed = |flavor: &str, resource: &str, total: i128| match tree.known_flavor_resource(flavor, resource) {
        Some(fr) if tree.parent(node).is_some() => (total - tree.nominal_quota(node, fr)).max(0),
        _ => 0,
    };
    let flavors = quota.flavors().map(|(flavor, resources)| FlavorUsage {
        name: flavor.to_owned(),
        resources: resources
            .iter()
            .map(|resource| ResourceUsage {
                name: resource.clone(),
                total: Some(to_amount(sum(flavor, resource)).to_quantity(resource)),
                borrowed: Some(to_amount(borrowed(flavor, resource, sum(flavor, resource))).to_quantity(resource)),
            })
            .collect(),
    });
    flavors.collect()
}

/// Returns a LocalQueue's usage, as given by `sum`, of each flavor of its ClusterQueue.
pub(super) fn local_queue_usage(
    quota: &ClusterQueueConfig,
    tree: &CohortTree,
    sum: impl Fn(FlavorResourceId) -> i128,
) -> Vec<LocalQueueFlavorUsage> {
    let sum = |flavor: &str, resource: &str| tree.known_flavor_resource(flavor, resource).map_or(0, &sum);
    let flavors = quota.flavors().map(|(flavor, resources)| LocalQueueFlavorUsage {
        name: flavor.to_owned(),
        resources: resources
            .iter()
            .map(|resource| LocalQueueResourceUsage {
                name: resource.clone(),
                total: Some(to_amount(sum(flavor, resource)).to_quantity(resource)),
            })
            .collect(),
    });
    flavors.collect()
}

impl ClusterQueueReport {
    /// Fills in the reservation and usage from the ClusterQueue's totals.
    pub(super) fn set_usage(
        &mut self,
        quota: &ClusterQueueConfig,
        tree: &CohortTree,
        node: NodeId,
        sums: &UsageTotals,
    ) {
        self.reservation = cluster_queue_usage(quota, tree, node, |fr| sums.reserved(fr));
        self.usage = cluster_queue_usage(quota, tree, node, |fr| sums.admitted(fr));
    }
}

/// Returns the weighted share of a node as published in its status.
pub(super) fn weighted_share(tree: &CohortTree, node: NodeId) -> i64 {
    tree.share_by_view(node, UsageView::Actual).to_status_value()
}
