//! What the API server has refused to do about the pods of a cluster (KubeRay 1.7 `ray-operator/controllers/ray/utils/util.go`,
//! `RayClusterReplicaFailureReason`).

use super::groups::Role;
use sluice_plan::{Write, WriteOp};

/// A pod that could not be made or deleted, for which that is still wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setback {
    /// What has failed, in a word: `FailedCreateHeadPod`, `FailedDeleteWorkerPod` and the like.
    pub reason: String,
    /// What has failed, and what the API server said.
    pub message: String,
}

impl Setback {
    /// What is to be said of a write that was refused; `None` if it neither makes nor deletes a pod.
    pub fn of(write: &Write, role: Role, said: &str) -> Option<Self> {
        let role = match role {
            Role::Head => "Head",
            Role::Worker => "Worker",
        };
        let reason = match &write.op {
            WriteOp::Delete { .. } => format!("FailedDelete{role}Pod"),
            WriteOp::Create(_) => format!("FailedCreate{role}Pod"),
            WriteOp::Patch(_) | WriteOp::PatchStatus(_) => return None,
        };
        Some(Self { reason, message: format!("{} of {} failed: {said}", write.op.name(), write.target) })
    }
}
