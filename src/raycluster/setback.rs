//! Rejected pod writes, reported in the condition `ReplicaFailure` (KubeRay 1.7
//! `ray-operator/controllers/ray/utils/util.go`, `RayClusterReplicaFailureReason`).

use super::groups::Role;
use sluice_plan::{Write, WriteOp};

/// Failure to create or delete a pod that is still desired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setback {
    /// Condition reason, like `FailedCreateHeadPod` or `FailedDeleteWorkerPod`.
    pub reason: String,
    /// Failed operation and the API server's error.
    pub message: String,
}

impl Setback {
    /// Returns the failure of a rejected write; `None` if it neither creates nor deletes a pod.
    pub fn of(write: &Write, role: Role, error: &str) -> Option<Self> {
        let role = match role {
            Role::Head => "Head",
            Role::Worker => "Worker",
        };
        let reason = match &write.op {
            WriteOp::Delete { .. } => format!("FailedDelete{role}Pod"),
            WriteOp::Create(_) => format!("FailedCreate{role}Pod"),
            WriteOp::Patch(_) | WriteOp::PatchStatus(_) => return None,
        };
        Some(Self { reason, message: format!("{} of {} failed: {error}", write.op.name(), write.target) })
    }
}
