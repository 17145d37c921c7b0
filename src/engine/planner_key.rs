//! Keys of the work queue: the objects that planners reconcile.

use sluice_plan::ObjectKey;

/// Identifies one planner run. Planners due at the same time run in this order: jobs before their
/// Workloads, which are not admitted while their job changes them, and quota before the objects that
/// depend on it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PlannerKey {
    /// Suspension and slices of a job.
    Job(JobKey),
    /// Status and finalizer of a Workload.
    Workload(ObjectKey),
    /// Status and finalizer of a ClusterQueue.
    ClusterQueue(String),
    /// Status of a Cohort.
    Cohort(String),
    /// Finalizer of a ResourceFlavor.
    ResourceFlavor(String),
    /// Status of a LocalQueue.
    LocalQueue(ObjectKey),
    /// Operator reconciliation of a RayService.
    RayService(ObjectKey),
    /// Operator reconciliation of a RayCluster.
    RayCluster(ObjectKey),
}

/// Kind and key of a job.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum JobKey {
    RayService(ObjectKey),
    RayCluster(ObjectKey),
    RayJob(ObjectKey),
    BatchJob(ObjectKey),
}

impl PlannerKey {
    /// Returns the RayCluster that this planner reconciles; `None` for any other planner.
    pub(super) fn ray_cluster(&self) -> Option<&ObjectKey> {
        match self {
            Self::RayCluster(key) => Some(key),
            _ => None,
        }
    }
}

impl JobKey {
    /// Returns the job of this kind with this key; `None` if `kind` is not a supported job kind.
    pub(super) fn of_kind(kind: &str, key: ObjectKey) -> Option<Self> {
        match kind {
            "RayService" => Some(Self::RayService(key)),
            "RayCluster" => Some(Self::RayCluster(key)),
            "RayJob" => Some(Self::RayJob(key)),
            "Job" => Some(Self::BatchJob(key)),
            _ => None,
        }
    }
}
