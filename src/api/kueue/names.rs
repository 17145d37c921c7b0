//! Labels, annotations, finalizers, condition types and reasons of Kueue 0.19 (kueue v0.19.2
//! `pkg/controller/constants`, `pkg/workloadslicing`, `apis/kueue/v1beta2`), and those of Sluice
//! under `sluice.dev/`.

/// Label of a job: name of the LocalQueue that it is submitted to.
pub const QUEUE_NAME_LABEL: &str = "kueue.x-k8s.io/queue-name";
/// Label of a job: name of its WorkloadPriorityClass.
pub const PRIORITY_CLASS_LABEL: &str = "kueue.x-k8s.io/priority-class";
/// Label of a Workload: uid of its job. Label of an ungated pod of a RayJob: uid of the RayJob.
pub const JOB_UID_LABEL: &str = "kueue.x-k8s.io/job-uid";
/// Label of objects under queue management.
pub const MANAGED_LABEL: &str = "kueue.x-k8s.io/managed";
/// Label of a pod: name of its pod set.
pub const POD_SET_LABEL: &str = "kueue.x-k8s.io/podset";
/// Label of a pod: hash of its scheduling requirements. Usage is computed from it, because the
/// template of the pod's group may have changed since the pod was created.
pub const SCHEDULING_HASH_LABEL: &str = "sluice.dev/shape";
/// Label of a pod: name of the ClusterQueue that it is admitted by.
pub const CLUSTER_QUEUE_LABEL: &str = "kueue.x-k8s.io/cluster-queue-name";
/// Label of a pod: name of the LocalQueue that its job was submitted to.
pub const LOCAL_QUEUE_LABEL: &str = "kueue.x-k8s.io/local-queue-name";
/// Label of a job: name of an existing Workload to use.
pub const PREBUILT_WORKLOAD_LABEL: &str = "kueue.x-k8s.io/prebuilt-workload-name";
/// Label of a job: maximum total time for which it may be admitted, in seconds.
pub const MAX_EXEC_TIME_LABEL: &str = "kueue.x-k8s.io/max-exec-time-seconds";
/// Annotation of an elastic job, which is resized by workload slices. The scheduling gate of its
/// pods has the same name.
pub const ELASTIC_JOB_ANNOTATION: &str = "kueue.x-k8s.io/elastic-job";
/// Scheduling gate of the pods of an elastic job that no admitted slice covers yet.
pub const ELASTIC_JOB_GATE: &str = "kueue.x-k8s.io/elastic-job";
/// Annotation of a Workload: `namespace/name` of the slice that it replaces.
pub const SLICE_REPLACEMENT_FOR_ANNOTATION: &str = "kueue.x-k8s.io/workload-slice-replacement-for";
/// Annotation of a Workload: name of the first slice of its job.
pub const SLICE_NAME_ANNOTATION: &str = "kueue.x-k8s.io/workload-slice-name";
/// Annotation of a pod: name of its Workload.
pub const WORKLOAD_ANNOTATION: &str = "kueue.x-k8s.io/workload";
/// Annotation of a Workload: group, version and kind of its job.
pub const JOB_OWNER_GVK_ANNOTATION: &str = "kueue.x-k8s.io/job-owner-gvk";
/// Annotation of a Workload: name of its job.
pub const JOB_OWNER_NAME_ANNOTATION: &str = "kueue.x-k8s.io/job-owner-name";
/// Annotation of a job or Workload: comma-separated names of the gates that still prevent it from
/// being queued.
pub const ADMISSION_GATED_BY_ANNOTATION: &str = "kueue.x-k8s.io/admission-gated-by";
/// Annotation of a Workload: value added to its priority.
pub const PRIORITY_BOOST_ANNOTATION: &str = "kueue.x-k8s.io/priority-boost";
/// Finalizer that protects an object from deletion while it is in use.
pub const RESOURCE_IN_USE_FINALIZER: &str = "kueue.x-k8s.io/resource-in-use";
/// Annotation of a batch/v1 Job: minimum number of pods for partial admission.
pub const MIN_PARALLELISM_ANNOTATION: &str = "kueue.x-k8s.io/job-min-parallelism";
/// Name of the pod set of a workload that has only one.
pub const DEFAULT_POD_SET: &str = "main";
/// Name of the LocalQueue of jobs that name none.
pub const DEFAULT_LOCAL_QUEUE: &str = "default";
/// Name of the WorkloadPriorityClass of jobs without a priority class label.
pub const DEFAULT_WORKLOAD_PRIORITY_CLASS: &str = "default";

/// Condition of a ClusterQueue or LocalQueue: workloads can be admitted.
pub const ACTIVE: &str = "Active";
pub use crate::condition::UNSUPPORTED;
/// Condition of a Workload: quota is reserved for it.
pub const QUOTA_RESERVED: &str = "QuotaReserved";
/// Condition of a Workload: quota is reserved and every AdmissionCheck passed.
pub const ADMITTED: &str = "Admitted";
/// Condition of a Workload: it must stop and release its quota.
pub const EVICTED: &str = "Evicted";
/// Condition of a Workload: it was queued again after an eviction.
pub const REQUEUED: &str = "Requeued";
/// Condition of a Workload: it was evicted to make room for another workload.
pub const PREEMPTED: &str = "Preempted";
/// Condition of a Workload: its job is finished.
pub const FINISHED: &str = "Finished";
/// Condition of a Workload: its pods are ready.
pub const PODS_READY: &str = "PodsReady";
/// Condition of a Workload: it is about to be deactivated.
pub const DEACTIVATION_TARGET: &str = "DeactivationTarget";
/// Condition of a Workload: it could preempt, but a preemption gate is closed.
pub const BLOCKED_ON_PREEMPTION_GATES: &str = "BlockedOnPreemptionGates";

/// Reasons of the condition Active of ClusterQueues and LocalQueues.
pub mod active_reason {
    /// Workloads can be admitted.
    pub const READY: &str = "Ready";
    /// A stop policy is set.
    pub const STOPPED: &str = "Stopped";
    /// The queue is being deleted.
    pub const TERMINATING: &str = "Terminating";
    /// A ResourceFlavor of the ClusterQueue does not exist.
    pub const FLAVOR_NOT_FOUND: &str = "FlavorNotFound";
    /// An AdmissionCheck of the ClusterQueue does not exist.
    pub const ADMISSION_CHECK_NOT_FOUND: &str = "AdmissionCheckNotFound";
    /// An AdmissionCheck of the ClusterQueue has no active controller.
    pub const ADMISSION_CHECK_INACTIVE: &str = "AdmissionCheckInactive";
    /// The Topology of a flavor does not exist.
    pub const TOPOLOGY_NOT_FOUND: &str = "TopologyNotFound";
    /// Quotas or flavors contradict each other.
    pub const MISCONFIGURED: &str = "Misconfigured";
    /// The ClusterQueue of the LocalQueue does not exist.
    pub const CLUSTER_QUEUE_DOES_NOT_EXIST: &str = "ClusterQueueDoesNotExist";
    /// The ClusterQueue of the LocalQueue is not active.
    pub const CLUSTER_QUEUE_IS_INACTIVE: &str = "ClusterQueueIsInactive";
}

/// Reasons of the condition Evicted of Workloads.
pub mod evicted_reason {
    /// The workload was preempted by another one.
    pub const PREEMPTED: &str = "Preempted";
    /// The pods were not ready in time.
    pub const PODS_READY_TIMEOUT: &str = "PodsReadyTimeout";
    /// An AdmissionCheck did not pass.
    pub const ADMISSION_CHECK: &str = "AdmissionCheck";
    /// The ClusterQueue is stopped.
    pub const CLUSTER_QUEUE_STOPPED: &str = "ClusterQueueStopped";
    /// The LocalQueue is stopped.
    pub const LOCAL_QUEUE_STOPPED: &str = "LocalQueueStopped";
    /// `spec.active` is false.
    pub const DEACTIVATED: &str = "Deactivated";
    /// The API server rejects the pods, none of which exists.
    pub const PODS_REJECTED: &str = "PodsRejected";
}

/// Reasons of the condition PodsReady of Workloads.
pub mod pods_ready_reason {
    /// Some pods have no node yet (kueue#15402, released in Kueue 0.20).
    pub const WAIT_FOR_SCHEDULING: &str = "WaitForScheduling";
    /// The pods have not all been ready yet.
    pub const WAIT_FOR_START: &str = "WaitForStart";
    /// The pods are ready for the first time.
    pub const STARTED: &str = "Started";
    /// The pods were ready, and some of them no longer are.
    pub const WAIT_FOR_RECOVERY: &str = "WaitForRecovery";
    /// The pods are ready again.
    pub const RECOVERED: &str = "Recovered";
}

/// Reasons of the condition Requeued of Workloads.
pub mod requeued_reason {
    /// `spec.active` is true again.
    pub const REACTIVATED: &str = "Reactivated";
    /// The backoff has ended.
    pub const BACKOFF_FINISHED: &str = "BackoffFinished";
    /// The ClusterQueue is no longer stopped.
    pub const CLUSTER_QUEUE_RESTARTED: &str = "ClusterQueueRestarted";
    /// The LocalQueue is no longer stopped.
    pub const LOCAL_QUEUE_RESTARTED: &str = "LocalQueueRestarted";
}

/// Reasons of the condition Finished of Workloads.
pub mod finished_reason {
    /// The job succeeded.
    pub const SUCCEEDED: &str = "Succeeded";
    /// The job failed.
    pub const FAILED: &str = "Failed";
    /// The Workload does not match its job.
    pub const OUT_OF_SYNC: &str = "OutOfSync";
    /// The job does not exist.
    pub const OWNER_NOT_FOUND: &str = "OwnerNotFound";
    /// A newer slice of the job was admitted and replaces this one.
    pub const WORKLOAD_SLICE_REPLACED: &str = "WorkloadSliceReplaced";
}
