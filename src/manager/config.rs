//! Configuration of the manager, merged from flags, file and defaults.

use std::net::SocketAddr;
use std::path::PathBuf;

use sluice_engine::OperatorConfig;
use sluice_jobframework::managed::ManagedJobsPolicy;
use sluice_jobframework::retention::RetentionPolicy;
use sluice_queue as queue;

/// Configuration of the manager, with defaults applied.
#[derive(Debug, Clone, PartialEq)]
pub struct ManagerConfig {
    /// True if the queue manager runs.
    pub queue_manager: bool,
    /// True if the Ray operator runs.
    pub ray_operator: bool,
    /// Address of `/metrics`; None if metrics are not served.
    pub metrics_address: Option<SocketAddr>,
    /// Address of `/healthz` and `/readyz`; None if they are not served.
    pub health_address: Option<SocketAddr>,
    /// Address of the admission webhook; None if it is not served.
    pub webhook_address: Option<SocketAddr>,
    /// True if the manager acts only while it holds the leader Lease.
    pub leader_elect: bool,
    /// Namespace of the leader Lease; None for the namespace that the process runs in.
    pub leader_election_namespace: Option<String>,
    /// Namespaces to watch; empty for all.
    pub namespaces: Vec<String>,
    /// True if the Ray dashboard is reached through the service proxy of the API server.
    pub use_kubernetes_proxy: bool,
    /// File to which the decision log is appended; None if there is no log.
    pub decision_log: Option<PathBuf>,
    /// Settings of the scheduler.
    pub scheduler: queue::Settings,
    /// Policy that selects the jobs to manage.
    pub managed_jobs: ManagedJobsPolicy,
    /// Times after which finished Workloads and deactivated jobs are deleted.
    pub retention: RetentionPolicy,
    /// Operator defaults for settings that a RayService or RayCluster leaves unset.
    pub operator_config: OperatorConfig,
}
