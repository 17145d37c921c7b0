//! What the statuses of ClusterQueues and LocalQueues say.

use super::ledger::{Sums, clamped};
use super::quota::Quota;
use super::tree::{Fr, NodeId, Tree, View};
use sluice_api::kueue::StopPolicy;
use sluice_api::kueue::cluster_queue::{FlavorUsage, ResourceUsage};
use sluice_api::kueue::local_queue::{LocalQueueFlavorUsage, LocalQueueResourceUsage};
use sluice_api::kueue::names::active_reason;

/// Whether a queue can admit workloads, and why not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Activity {
    /// Whether it can.
    pub active: bool,
    /// The reason of the condition Active.
    pub reason: &'static str,
    /// The message of the condition Active.
    pub message: String,
}

impl Activity {
    /// That of a ClusterQueue (kueue v0.19.2 `pkg/cache/scheduler/clusterqueue.go`).
    pub(super) fn of_cluster_queue(problem: Option<&(&'static str, String)>) -> Self {
        match problem {
            None => Self { active: true, reason: active_reason::READY, message: "Can admit new workloads".to_owned() },
            Some((reason, problem)) => {
                Self { active: false, reason, message: format!("Can't admit new workloads: {problem}.") }
            }
        }
    }

    /// That of a LocalQueue (kueue v0.19.2 `pkg/controller/core/localqueue_controller.go`), by its stop policy and by whether
    /// its ClusterQueue is active, if there is one.
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

/// How many workloads a queue has, by how far they are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Those that wait.
    pub pending: i32,
    /// Those that hold quota, admitted ones included.
    pub reserving: i32,
    /// Those that are admitted.
    pub admitted: i32,
}

/// What the status of a ClusterQueue says.
#[derive(Debug, Clone, PartialEq)]
pub struct ClusterQueueReport {
    /// The generation of the ClusterQueue that this is about.
    pub generation: Option<i64>,
    /// Whether it can admit workloads.
    pub activity: Activity,
    /// Fields of its spec that are set and not acted on.
    pub unsupported: Vec<String>,
    /// How many workloads it has.
    pub counts: Counts,
    /// The share that it takes of what its cohort can lend, in thousandths, divided by its weight; `None` without fair sharing.
    pub weighted_share: Option<i64>,
    /// Quota reserved, by flavor.
    pub reservation: Vec<FlavorUsage>,
    /// Quota used by admitted workloads, by flavor.
    pub usage: Vec<FlavorUsage>,
}

/// What the status of a Cohort says.
#[derive(Debug, Clone, PartialEq)]
pub struct CohortReport {
    /// The share that it takes of what its parent can lend, in thousandths, divided by its weight; `None` without fair sharing.
    pub weighted_share: Option<i64>,
}

/// What the status of a LocalQueue says.
#[derive(Debug, Clone, PartialEq)]
pub struct LocalQueueReport {
    /// The generation of the LocalQueue that this is about.
    pub generation: Option<i64>,
    /// Whether workloads can be admitted through it.
    pub activity: Activity,
    /// How many workloads it has.
    pub counts: Counts,
    /// Quota reserved, by flavor.
    pub reservation: Vec<LocalQueueFlavorUsage>,
    /// Quota used by admitted workloads, by flavor.
    pub usage: Vec<LocalQueueFlavorUsage>,
}

/// Usage of every flavor of a ClusterQueue, in the order of its spec, by what `sum` picks from its sums; and what of that
/// is more than its nominal quota.
pub(super) fn cluster_queue_usage(
    quota: &Quota,
    tree: &Tree,
    node: NodeId,
    sum: impl Fn(Fr) -> i128,
) -> Vec<FlavorUsage> {
    let sum = |flavor: &str, resource: &str| tree.known(flavor, resource).map_or(0, &sum);
    let borrowed = |flavor: &str, resource: &str, total: i128| match tree.known(flavor, resource) {
        Some(fr) if tree.parent(node).is_some() => (total - tree.nominal(node, fr)).max(0),
        _ => 0,
    };
    let flavors = quota.flavors().map(|(flavor, resources)| FlavorUsage {
        name: flavor.to_owned(),
        resources: resources
            .iter()
            .map(|resource| ResourceUsage {
                name: resource.clone(),
                total: Some(clamped(sum(flavor, resource)).quantity(resource)),
                borrowed: Some(clamped(borrowed(flavor, resource, sum(flavor, resource))).quantity(resource)),
            })
            .collect(),
    });
    flavors.collect()
}

/// Usage of every flavor of the ClusterQueue behind a LocalQueue, by what `sum` picks from the LocalQueue's sums.
pub(super) fn local_queue_usage(quota: &Quota, tree: &Tree, sum: impl Fn(Fr) -> i128) -> Vec<LocalQueueFlavorUsage> {
    let sum = |flavor: &str, resource: &str| tree.known(flavor, resource).map_or(0, &sum);
    let flavors = quota.flavors().map(|(flavor, resources)| LocalQueueFlavorUsage {
        name: flavor.to_owned(),
        resources: resources
            .iter()
            .map(|resource| LocalQueueResourceUsage {
                name: resource.clone(),
                total: Some(clamped(sum(flavor, resource)).quantity(resource)),
            })
            .collect(),
    });
    flavors.collect()
}

impl ClusterQueueReport {
    /// Reads the usage of a ClusterQueue off its sums.
    pub(super) fn usage_of(&mut self, quota: &Quota, tree: &Tree, node: NodeId, sums: &Sums) {
        self.reservation = cluster_queue_usage(quota, tree, node, |fr| sums.reserved(fr));
        self.usage = cluster_queue_usage(quota, tree, node, |fr| sums.admitted(fr));
    }
}

/// The share that a node publishes.
pub(super) fn weighted_share(tree: &Tree, node: NodeId) -> i64 {
    tree.share_in(node, View::Actual).published()
}
