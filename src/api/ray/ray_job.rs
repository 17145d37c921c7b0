//! RayJob: a job that runs on a RayCluster created for it, or on an existing one. KubeRay
//! reconciles RayJobs and installs the CRD. Only the fields that determine its quota usage are here
//! (kuberay v1.7.0 `ray-operator/apis/ray/v1/rayjob_types.go`).

use std::collections::BTreeMap;

use kube_derive::CustomResource;
use serde::{Deserialize, Serialize};

use super::{PodTemplate, RayClusterSpec};

/// Desired state of a RayJob.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "ray.io",
    version = "v1",
    kind = "RayJob",
    plural = "rayjobs",
    namespaced,
    status = "RayJobStatus",
    schema = "disabled",
    derive = "Default",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct RayJobSpec {
    /// Suspends the RayJob. KubeRay deletes the cluster when this becomes true, and creates another
    /// one when it becomes false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
    /// Spec of the RayCluster that is created for the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ray_cluster_spec: Option<RayClusterSpec>,
    /// Labels of an existing RayCluster that the job is submitted to. Empty if a cluster is created
    /// for it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cluster_selector: BTreeMap<String, String>,
    /// Submission mode. Unset means a batch/v1 Job submits the job to Ray.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submission_mode: Option<String>,
    /// Template of the pod of the submitter Job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submitter_pod_template: Option<PodTemplate>,
    /// Controller that reconciles the RayJob.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed_by: Option<String>,
}

/// Observed state of a RayJob.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RayJobStatus {
    /// Status of the job reported by Ray.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_status: Option<String>,
    /// Phase of the RayJob reported by KubeRay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_deployment_status: Option<String>,
    /// Name of the RayCluster that KubeRay has created, or creates next; empty if it is not chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ray_cluster_name: Option<String>,
    /// Human-readable details of the status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Submitter of a RayJob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubmitterKind {
    /// A batch/v1 Job.
    BatchJob,
    /// A sidecar container of the head pod.
    Sidecar,
    /// A mode without a pod, such as an HTTP request of KubeRay or an interactive user.
    NoPod,
}

impl RayJobSpec {
    /// Returns the submitter that `submission_mode` selects.
    pub fn submitter_kind(&self) -> SubmitterKind {
        match self.submission_mode.as_deref() {
            None | Some("" | "K8sJobMode") => SubmitterKind::BatchJob,
            Some("SidecarMode") => SubmitterKind::Sidecar,
            Some(_) => SubmitterKind::NoPod,
        }
    }

    /// Returns whether the job is submitted to an existing cluster.
    pub fn uses_existing_cluster(&self) -> bool {
        !self.cluster_selector.is_empty()
    }
}
