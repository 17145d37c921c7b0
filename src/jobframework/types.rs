//! Values that describe a job: its members, their pods, and how it is queued.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use sluice_api::kueue::workload::PriorityClassRef;
use sluice_raycluster::NodePlacement;

use super::demand_error::DemandError;

/// A part of a job that runs pods and has a gate: a RayCluster, a RayJob or a batch/v1 Job.
#[derive(Debug, Clone, PartialEq)]
pub struct Member {
    /// Name, in the namespace of the job.
    pub name: String,
    /// Uid, or the uid of a revision of a RayCluster.
    pub uid: String,
    /// Desired pod groups.
    pub groups: Arc<PodGroupDemands>,
    /// True if the gate is open: the member is not suspended.
    pub is_open: bool,
    /// True if the member is being deleted.
    pub is_terminating: bool,
    /// True if the member is the surge of an upgrade: stopping it delays the upgrade and fails no
    /// requests.
    pub is_surge: bool,
    /// True if the member has to stop because its quota is preempted.
    pub is_preempted: bool,
    /// Number of pods that exist and are not finished, by kind. Includes terminating pods, excludes
    /// pods with a scheduling gate.
    pub live_pods: BTreeMap<PodKind, u32>,
    /// Pods that still have their scheduling gate.
    pub gated_pods: Vec<GatedPod>,
    /// Number of ready pods, by group. Terminating pods do not count.
    pub ready_pods: PodCounts,
    /// Number of pods that have a node or have succeeded, by group. Terminating pods do not count.
    pub scheduled_pods: PodCounts,
    /// Templates of the kinds of pods that neither the member's spec nor a slice has.
    pub unknown_kinds: BTreeMap<PodKind, PodTemplateSpec>,
}

impl Member {
    /// Reports whether its spec wants no pods.
    pub fn is_scaled_to_zero(&self) -> bool {
        let groups = self.groups.as_ref().as_ref();
        groups.is_ok_and(|groups| !groups.is_empty() && groups.iter().all(|group| group.count == 0))
    }
}

/// Number of pods, by group.
pub type PodCounts = BTreeMap<String, u32>;

/// Gate of a member: `spec.suspend`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// The member is not suspended.
    Open,
    /// The member is suspended.
    Closed,
}

/// Result of a finished job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobResult {
    /// True if the job succeeded.
    pub succeeded: bool,
    /// Message for the Finished condition of the job's slices.
    pub message: String,
}

/// Desired pod groups of a member, or the reason why they can't be derived.
pub type PodGroupDemands = Result<Vec<PodGroupDemand>, DemandError>;

/// Number of pods by PodSet.
pub(super) type PodSetCounts = BTreeMap<String, u32>;

/// Desired pods of one group of a member; all have the same shape.
#[derive(Debug, Clone, PartialEq)]
pub struct PodGroupDemand {
    /// Name of the group: the value of the group label of its pods.
    pub name: String,
    /// Preferred name of the group's PodSet.
    pub pod_set: String,
    /// Hash of the scheduling requirements of each pod; see [`shape_of`](crate::shape::shape_of).
    pub shape: String,
    /// Number of pods.
    pub count: u32,
    /// Number of pods that the job can start with; `None` if it needs all of them.
    pub min_count: Option<u32>,
    /// Number of pods that preemption of replicas leaves.
    pub min_pods: u32,
    /// Number of pods per replica.
    pub hosts_per_replica: u32,
    /// Template of each pod.
    pub template: Arc<PodTemplateSpec>,
}

impl PodGroupDemand {
    /// Returns the kind of the pods that are created from the current template.
    pub fn kind(&self) -> PodKind {
        PodKind::new(&self.name, &self.shape)
    }
}

/// Pods that use the same quota: those of one shape in one group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodKind {
    /// Name of the group: the value of the group label of its pods.
    pub group: String,
    /// Hash of the scheduling requirements of each pod; see [`shape_of`](crate::shape::shape_of).
    pub shape: String,
}

impl PodKind {
    /// Creates the kind for pods of `shape` in `group`.
    pub fn new(group: impl Into<String>, shape: impl Into<String>) -> Self {
        Self { group: group.into(), shape: shape.into() }
    }
}

/// Pod that still has its scheduling gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatedPod {
    /// Name of the pod.
    pub name: String,
    /// Kind of the pod, which may come from an earlier template of its group.
    pub kind: PodKind,
    /// It is one of the live pods: its ungating got no response, so it may run at any time.
    pub is_counted: bool,
    /// Replica that the pod is a host of; `None` for single-host replicas.
    pub replica: Option<String>,
    /// Index of its replica in the group, from 0; `None` without a replica index label.
    pub replica_index: Option<u32>,
    /// Creation time.
    pub created_at: Option<Timestamp>,
}

/// Assignment that a pod receives when its scheduling gate is removed.
#[derive(Debug, Clone, PartialEq)]
pub struct PodAssignment {
    /// Kind that the pod's quota is accounted under.
    pub kind: PodKind,
    /// PodSet that the pod is counted in.
    pub pod_set: String,
    /// Node selector and tolerations of the flavors assigned to the PodSet.
    pub placement: NodePlacement,
}

/// Priority of a job's Workloads.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Priority {
    /// A higher value is scheduled first.
    pub value: i32,
    /// Class that the value comes from; `None` without a class.
    pub class: Option<PriorityClassRef>,
}
