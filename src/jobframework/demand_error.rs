//! Reasons why the quota of a job cannot be requested.

use sluice_api::DecodeError;
use sluice_api::kueue::names::{self, MIN_PARALLELISM_ANNOTATION};
use sluice_queue::requests::RequestsError;
use sluice_raycluster::FieldError;

use super::batch_job::JOB_NAME_LABEL;
use super::slice_record::MAX_POD_SETS;

/// Reason why the quota of a job cannot be requested: an invalid field, with its value and what is
/// allowed, or an object that is missing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DemandError {
    /// The spec of a RayCluster is invalid.
    #[error("RayCluster {cluster}: {}", joined(.errors))]
    InvalidCluster {
        /// Name of the RayCluster.
        cluster: String,
        /// Invalid fields.
        errors: Vec<FieldError>,
    },
    /// The requests of a group of a RayCluster are invalid.
    #[error("RayCluster {cluster}: group {group}: {source}")]
    GroupRequests {
        /// Name of the RayCluster.
        cluster: String,
        /// Name of the group.
        group: String,
        /// Error in the requests.
        source: Box<RequestsError>,
    },
    /// A RayCluster has not been observed yet.
    #[error("RayCluster {cluster} has not been observed yet")]
    ClusterNotObserved {
        /// Name of the RayCluster.
        cluster: String,
    },
    /// A RayJob has no cluster.
    #[error("spec.rayClusterSpec: missing, and so is spec.clusterSelector: one of them is required")]
    ClusterSpecMissing,
    /// The cluster in the spec of a RayJob is invalid.
    #[error("spec.rayClusterSpec: {0}")]
    RayJobCluster(#[source] Box<Self>),
    /// A pod template can't be decoded.
    #[error("{field}: {source}")]
    Template {
        /// Path of the field.
        field: &'static str,
        /// Cause.
        source: DecodeError,
    },
    /// The requests of a pod template are invalid.
    #[error("{field}: {source}")]
    TemplateRequests {
        /// Path of the field.
        field: &'static str,
        /// Error in the requests.
        source: Box<RequestsError>,
    },
    /// The minimum parallelism of a batch/v1 Job is not less than its parallelism.
    #[error("annotation {MIN_PARALLELISM_ANNOTATION}: {value:?} is not a number of pods above 0")]
    MinParallelism {
        /// Value as written.
        value: String,
    },
    /// The pods of a batch/v1 Job with a manual selector don't name the Job.
    #[error(
        "spec.manualSelector: true, so the pods have only the labels of spec.template; add the label {JOB_NAME_LABEL}: {job}, \
         by which they are charged, or unset spec.manualSelector"
    )]
    ManualSelector {
        /// Name of the Job.
        job: String,
    },
    /// The maximum execution time is not a positive number of seconds.
    #[error("label {}: {value:?} is not a number of seconds between 1 and {}", names::MAX_EXEC_TIME_LABEL, i32::MAX)]
    MaxExecutionTime {
        /// Value as written.
        value: String,
    },
    /// A Workload can't hold all PodSets.
    #[error(
        "spec.workerGroupSpecs: {}, which makes {pod_sets} PodSets, and a Workload has at most {MAX_POD_SETS}; use fewer \
         worker groups, or change the resources and node constraints of fewer of them at a time",
        described(.members)
    )]
    TooManyPodSets {
        /// Members with the number of PodSets of each.
        members: Vec<MemberPodSets>,
        /// Number of PodSets in all.
        pod_sets: usize,
    },
    /// The WorkloadPriorityClass that the job names does not exist.
    #[error("label {}: WorkloadPriorityClass {name:?} not found", names::PRIORITY_CLASS_LABEL)]
    WorkloadPriorityClassNotFound {
        /// Name of the class.
        name: String,
    },
    /// The API server rejects the pods.
    #[error(
        "pod set {pod_set}: the API server rejects its pods, so no quota is requested: {message}. The pods are tried \
         again after five minutes at most; change the job, or what rejects them"
    )]
    PodsRejected {
        /// Name of the PodSet.
        pod_set: String,
        /// Message of the API server.
        message: String,
    },
    /// The PriorityClass that the pods name does not exist.
    #[error("priorityClassName: PriorityClass {name:?} not found")]
    PriorityClassNotFound {
        /// Name of the class.
        name: String,
    },
}

/// Number of PodSets that one RayCluster needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberPodSets {
    /// Name of the RayCluster.
    pub cluster: String,
    /// Number of its PodSets.
    pub pod_sets: usize,
}

fn joined(errors: &[FieldError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

fn described(members: &[MemberPodSets]) -> String {
    let each =
        members.iter().map(|member| format!("RayCluster {} has {} kinds of pods", member.cluster, member.pod_sets));
    each.collect::<Vec<_>>().join(" and ")
}
