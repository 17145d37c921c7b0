//! State that one reconciliation of a job reads.

use std::collections::BTreeSet;

use jiff::Timestamp;
use sluice_api::kueue::Workload;
use sluice_plan::{PodDryRunId, PodVerdict};
use sluice_raycluster::NodePlacement;

use super::demand_error::DemandError;
use super::generic_job::GenericJob;
use super::managed::ManagementState;
use super::retention::RetentionPolicy;
use super::types::{Member, Priority};

/// Facts about pods that slices report in their condition PodsReady. Each costs a write per slice, so only
/// what the queue acts on is reported (as in kueue v0.19.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodsReadyReports {
    /// The slices have no such condition.
    Nothing,
    /// The condition says whether all pods are ready.
    Readiness,
    /// The condition also says whether all pods have nodes.
    SchedulingAndReadiness,
}

/// State that [`plan`](crate::plan) reconciles one job from.
pub struct ReconcileContext<'a> {
    /// The job.
    pub job: &'a dyn GenericJob,
    /// Result of the managed jobs policy for the job.
    pub managed: ManagementState,
    /// All Workloads that the job owns.
    pub workloads: Vec<&'a Workload>,
    /// RayClusters that are deleted while pods that a slice covers still exist.
    pub orphaned_members: Vec<Member>,
    /// Scheduler, to check the feasibility of upgrades.
    pub scheduler: &'a sluice_queue::Scheduler,
    /// Priority of the job's Workloads, or the reason why it cannot be resolved.
    pub priority: Result<Priority, DemandError>,
    /// Returns the node selector and tolerations of pods that use these flavors.
    pub placement: &'a dyn Fn(&BTreeSet<String>) -> NodePlacement,
    /// Returns the PodSets of a pending slice that could fit in another flavor than the one that
    /// their running pods use.
    pub flavor_bound_pod_sets: &'a dyn Fn(&Workload) -> BTreeSet<String>,
    /// Returns the API server's answer to the dry run of a pod.
    pub pod_verdict: &'a dyn Fn(&PodDryRunId) -> PodVerdict,
    /// True if this process creates the pods, so it can delete single replicas.
    pub creates_pods: bool,
    /// Number of consecutive failed writes for the job.
    pub consecutive_failures: u32,
    /// The facts that slices report in their condition PodsReady.
    pub pods_ready_reports: PodsReadyReports,
    /// Times after which finished Workloads and deactivated jobs are deleted.
    pub retention: RetentionPolicy,
    /// Current time.
    pub now: Timestamp,
}

impl ReconcileContext<'_> {
    /// Returns true if no pod of the job, which has these members, runs or can start until a gate is
    /// opened.
    pub(super) fn is_stopped(&self, members: &[Member]) -> bool {
        self.orphaned_members.is_empty() && members.iter().all(|member| !member.is_open && member.live_pods.is_empty())
    }
}
