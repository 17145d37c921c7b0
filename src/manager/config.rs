//! Configuration of the manager, after flags, file and defaults have been merged.

use std::net::SocketAddr;
use std::path::PathBuf;

use sluice_engine::Habits;
use sluice_jobframework::managed::Rules;
use sluice_queue as queue;

/// Everything that the manager is configured with; each field has its final value.
#[derive(Debug, Clone, PartialEq)]
pub struct ManagerConfig {
    /// Whether the queue manager runs.
    pub queue_manager: bool,
    /// Whether the Ray operator runs.
    pub ray_operator: bool,
    /// Address of `/metrics`; `None` when metrics are not served.
    pub metrics: Option<SocketAddr>,
    /// Address of `/healthz` and `/readyz`; `None` when health is not served.
    pub health: Option<SocketAddr>,
    /// Address of the admission webhook; `None` when the webhook is not served.
    pub webhook: Option<SocketAddr>,
    /// Whether to act only while holding the leader lease.
    pub leader_elect: bool,
    /// Namespace of the leader lease; `None` for the namespace that the process runs in.
    pub leader_election_namespace: Option<String>,
    /// Namespaces to watch; empty for all.
    pub namespaces: Vec<String>,
    /// Whether Ray dashboards are reached through the API server's service proxy.
    pub use_kubernetes_proxy: bool,
    /// File to which the decision log is appended; `None` when there is none.
    pub decision_log: Option<PathBuf>,
    /// Settings of the scheduler.
    pub queue: queue::Settings,
    /// Policy that selects the jobs to manage.
    pub jobs: Rules,
    /// Operator defaults for settings that a RayService or RayCluster leaves unset.
    pub habits: Habits,
}
