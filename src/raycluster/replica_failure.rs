//! Rejected pod writes, reported in the condition `ReplicaFailure` (KubeRay 1.7
//! `ray-operator/controllers/ray/utils/util.go`, `RayClusterReplicaFailureReason`).

use super::groups::RayNodeType;
use sluice_plan::{Write, WriteOp};

/// Failure to create or delete a pod that is still desired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaFailure {
    /// Condition reason, like `FailedCreateHeadPod` or `FailedDeleteWorkerPod`.
    pub reason: String,
    /// Failed operation and the API server's error.
    pub message: String,
}

impl ReplicaFailure {
    /// Returns the failure of a rejected write; `None` if it neither creates nor deletes a pod.
    pub fn of_write(write: &Write, role: RayNodeType, error: &str) -> Option<Self> {
        let role = match role {
            RayNodeType::Head => "Head",
            RayNodeType::Worker => "Worker",
        };
        let reason = match &write.op {
            WriteOp::Delete { .. } => format!("FailedDelete{role}Pod"),
            WriteOp::Create(_) => format!("FailedCreate{role}Pod"),
            WriteOp::Patch(_) | WriteOp::PatchStatus(_) => return None,
        };
        Some(Self { reason, message: format!("{} of {} failed: {error}", write.op.operation(), write.target) })
    }
}
