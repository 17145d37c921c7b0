//! RayJob: a Ray cluster that is made for one job, or a job for a cluster that is there. KubeRay runs it and brings its definition;
//! here are the fields that matter to who pays for it (kuberay v1.7.0 `ray-operator/apis/ray/v1/rayjob_types.go`).

use std::collections::BTreeMap;

use kube::CustomResource;
use serde::{Deserialize, Serialize};

use super::{PodTemplate, RayClusterSpec};

/// What is to be run, and where.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[kube(
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
    /// Whether nothing of it runs. KubeRay deletes the cluster when this becomes true, and makes another when it is false again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
    /// The cluster that is made for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ray_cluster_spec: Option<RayClusterSpec>,
    /// Labels of the cluster that it is sent to, if none is made for it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cluster_selector: BTreeMap<String, String>,
    /// Who hands it to Ray: a Job of Kubernetes, unless this says otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submission_mode: Option<String>,
    /// The pod of that Job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submitter_pod_template: Option<PodTemplate>,
    /// Who reconciles it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed_by: Option<String>,
}

/// How far it is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RayJobStatus {
    /// What Ray says of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_status: Option<String>,
    /// What KubeRay does about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_deployment_status: Option<String>,
    /// Why it is as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Who hands a RayJob to Ray.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Submission {
    /// A Job of Kubernetes.
    Job,
    /// A container beside the head.
    Sidecar,
    /// Somebody who needs no pod for it.
    Other,
}

impl RayJobSpec {
    /// Who hands it to Ray.
    pub fn submission(&self) -> Submission {
        match self.submission_mode.as_deref() {
            None | Some("" | "K8sJobMode") => Submission::Job,
            Some("SidecarMode") => Submission::Sidecar,
            Some(_) => Submission::Other,
        }
    }

    /// Whether it is sent to a cluster that others have made.
    pub fn attaches(&self) -> bool {
        !self.cluster_selector.is_empty()
    }
}
