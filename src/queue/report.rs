//! What the statuses of ClusterQueues and LocalQueues say.

use super::ledger::{FlavorResource, Ledger, clamped};
use super::quota::Quota;
use crate::api::kueue::StopPolicy;
use crate::api::kueue::cluster_queue::{FlavorUsage, ResourceUsage};
use crate::api::kueue::local_queue::{LocalQueueFlavorUsage, LocalQueueResourceUsage};
use crate::api::kueue::names::active_reason;
use crate::api::quantity::Amount;

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

/// Usage of every flavor of a ClusterQueue, in the order of its spec, by what `sum` picks from the ledger.
pub(super) fn cluster_queue_usage(quota: &Quota, sum: impl Fn(&FlavorResource) -> i128) -> Vec<FlavorUsage> {
    let flavors = quota.flavors().map(|(flavor, resources)| FlavorUsage {
        name: flavor.to_owned(),
        resources: resources
            .iter()
            .map(|resource| ResourceUsage {
                name: resource.clone(),
                total: Some(clamped(sum(&FlavorResource::new(flavor, resource))).quantity(resource)),
                borrowed: Some(Amount::ZERO.quantity(resource)),
            })
            .collect(),
    });
    flavors.collect()
}

/// Usage of every flavor of the ClusterQueue behind a LocalQueue, by what `sum` picks from the LocalQueue's ledger.
pub(super) fn local_queue_usage(quota: &Quota, sum: impl Fn(&FlavorResource) -> i128) -> Vec<LocalQueueFlavorUsage> {
    let flavors = quota.flavors().map(|(flavor, resources)| LocalQueueFlavorUsage {
        name: flavor.to_owned(),
        resources: resources
            .iter()
            .map(|resource| LocalQueueResourceUsage {
                name: resource.clone(),
                total: Some(clamped(sum(&FlavorResource::new(flavor, resource))).quantity(resource)),
            })
            .collect(),
    });
    flavors.collect()
}

impl ClusterQueueReport {
    pub(super) fn of(
        quota: &Quota,
        generation: Option<i64>,
        activity: Activity,
        ledger: &Ledger,
        counts: Counts,
    ) -> Self {
        Self {
            generation,
            activity,
            unsupported: quota.unsupported.clone(),
            counts,
            reservation: cluster_queue_usage(quota, |at| ledger.reserved(at)),
            usage: cluster_queue_usage(quota, |at| ledger.admitted(at)),
        }
    }
}
