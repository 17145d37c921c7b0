//! Data model of scripts: timed user actions and the objects that they apply.

use serde::{Deserialize, Serialize};

use super::cluster_step::RayAction;
use super::job_step::JobAction;
use super::setup::{Quota, ResourceAmounts, Setup, is_false};

/// A setup and the actions that follow.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Script {
    /// Objects that exist at the start.
    pub(crate) setup: Setup,
    /// Actions, in order.
    pub(crate) steps: Vec<ScriptStep>,
}

/// An action with a delay.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScriptStep {
    /// Delay after the previous step.
    pub(crate) after: Delay,
    /// The action.
    pub(crate) act: UserAction,
}

/// A delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Delay {
    /// Waits until the system is quiescent.
    UntilQuiescent,
    /// Waits this many milliseconds.
    Millis(u32),
}

/// A user action. An action on an object that does not exist has no effect.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) enum UserAction {
    /// Backs up the database of the API server.
    BackUp,
    /// Restores the backup: the state and the resource versions of then are back.
    Restore,
    /// Limits the pods of the namespace with a ResourceQuota and a LimitRange.
    LimitPods {
        /// Maximum number of pods that have not ended. None sets no ResourceQuota.
        pods: Option<u32>,
        /// Maximum CPU of a container, in thousandths. None sets no LimitRange.
        cpu: Option<u32>,
    },
    /// Applies a complete RayService. If one of this name is terminating, waits until it is
    /// deleted.
    PutService(Service),
    /// Changes the Ray version and the image: an upgrade or a rollback.
    SetVersion {
        /// Name of the service.
        service: String,
        /// Ray minor version.
        version: u32,
    },
    /// Changes the requests of the workers of a group, which is an upgrade too.
    Resize {
        /// Name of the service.
        service: String,
        /// Index of the group, from 0.
        group: usize,
        /// New requests of a pod.
        size: ResourceAmounts,
    },
    /// Changes the number of workers in the service and in its clusters, as an autoscaler does,
    /// without an upgrade.
    Scale {
        /// Name of the service.
        service: String,
        /// Index of the group, from 0.
        group: usize,
        /// New number of workers.
        replicas: u32,
    },
    /// Changes the Serve configuration, without an upgrade.
    EditServeConfig {
        /// Name of the service.
        service: String,
        /// Edition of the Serve configuration.
        edition: u32,
    },
    /// Suspends or resumes a service.
    Suspend {
        /// Name of the service.
        service: String,
        /// New value of `spec.suspend`.
        suspend: bool,
    },
    /// Changes the priority class of a service.
    SetPriority {
        /// Name of the service.
        service: String,
        /// Name of the class. None removes the label.
        priority: Option<String>,
    },
    /// Removes the admission timeout of a service and retries an upgrade that timed out or failed.
    RetryUpgrade {
        /// Name of the service.
        service: String,
    },
    /// Deletes a RayService.
    DeleteService {
        /// Name of the service.
        service: String,
        /// Uses foreground instead of background deletion.
        #[serde(default, skip_serializing_if = "is_false")]
        foreground: bool,
    },
    /// Applies a standalone RayCluster.
    PutCluster(Cluster),
    /// Changes the number of workers of a standalone RayCluster.
    ScaleCluster {
        /// Name of the cluster.
        cluster: String,
        /// Index of the group, from 0.
        group: usize,
        /// New number of workers.
        replicas: u32,
    },
    /// Deletes a standalone RayCluster.
    DeleteCluster {
        /// Name of the cluster.
        cluster: String,
        /// Leaves its pods, Services and Workloads without an owner.
        #[serde(default, skip_serializing_if = "is_false")]
        orphan: bool,
        /// Deletes its pods before it, unless they are orphaned.
        #[serde(default, skip_serializing_if = "is_false")]
        foreground: bool,
    },
    /// Deletes what a deleted RayCluster has left without an owner, except for its Workloads.
    DeleteOrphans {
        /// Name of the cluster.
        cluster: String,
    },
    /// Acts on a batch/v1 Job.
    Job(JobAction),
    /// Acts on a RayCluster or RayService.
    Ray(RayAction),
    /// Deletes the Workloads of a job.
    DeleteWorkloads {
        /// Name of the job.
        job: String,
    },
    /// Sets the quota of a ClusterQueue.
    SetQuota {
        /// Name of the queue.
        queue: String,
        /// Complete quota.
        quotas: Vec<Quota>,
    },
    /// Sets the stop policy of a ClusterQueue.
    StopQueue {
        /// Name of the queue.
        queue: String,
        /// New value of `spec.stopPolicy`.
        policy: StopPolicy,
    },
    /// Sets the stop policy of a LocalQueue.
    StopLocalQueue {
        /// Name of the queue.
        queue: String,
        /// New value of `spec.stopPolicy`.
        policy: StopPolicy,
    },
}

/// Stop policy of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum StopPolicy {
    /// The queue admits workloads.
    None,
    /// The queue admits no workloads and keeps those admitted.
    Hold,
    /// The queue admits no workloads and evicts those admitted.
    HoldAndDrain,
}

/// A RayService.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Service {
    /// Name.
    pub(crate) name: String,
    /// Name of its LocalQueue, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) queue: Option<String>,
    /// Priority class, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) priority: Option<String>,
    /// Pods of its clusters.
    pub(crate) pods: Pods,
    /// Edition of its Serve configuration.
    #[serde(default)]
    pub(crate) edition: u32,
    /// `spec.rayClusterDeletionDelaySeconds`.
    #[serde(default)]
    pub(crate) deletion_delay: u32,
    /// `spec.suspend`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) suspend: bool,
    /// Recreates the cluster if quota does not suffice for two.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) recreate: bool,
    /// Admission timeout of upgrades in seconds, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) admission_timeout: Option<u32>,
    /// Options of incremental upgrades. None replaces the cluster without an incremental rollout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) incremental: Option<IncrementalOptions>,
}

/// Options of incremental upgrades.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct IncrementalOptions {
    /// `maxSurgePercent`.
    pub(crate) surge: u32,
    /// `stepSizePercent`.
    pub(crate) step_size: u32,
    /// `intervalSeconds`.
    pub(crate) interval: u32,
    /// Uses a user-provided Gateway and HTTPRoute.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) user_provided_route: bool,
}

/// A standalone RayCluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cluster {
    /// Name.
    pub(crate) name: String,
    /// Name of its LocalQueue, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) queue: Option<String>,
    /// Priority class, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) priority: Option<String>,
    /// Recreates the pods when the spec changes.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) recreate: bool,
    /// An object that has nothing to do with quota controls it: its LocalQueue.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) owned: bool,
    /// Pods of the cluster.
    pub(crate) pods: Pods,
}

/// The pods of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pods {
    /// Ray minor version.
    pub(crate) version: u32,
    /// Requests of the head.
    pub(crate) head: ResourceAmounts,
    /// Worker groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) groups: Vec<Group>,
}

/// A worker group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Group {
    /// Name.
    pub(crate) name: String,
    /// Number of workers.
    pub(crate) replicas: u32,
    /// Number of pods per worker.
    pub(crate) hosts: u32,
    /// Requests of each pod.
    pub(crate) size: ResourceAmounts,
}

impl Pods {
    /// Raises all counts and requests to the maximum of both, per group.
    pub(crate) fn raise_to(&mut self, other: &Self) {
        self.head = self.head.component_max(other.head);
        for (index, group) in other.groups.iter().enumerate() {
            match self.groups.get_mut(index) {
                Some(own) => {
                    own.replicas = own.replicas.max(group.replicas);
                    own.hosts = own.hosts.max(group.hosts);
                    own.size = own.size.component_max(group.size);
                }
                None => self.groups.push(group.clone()),
            }
        }
    }

    /// Returns the requests of all pods.
    pub(crate) fn total_requests(&self) -> ResourceAmounts {
        let groups = self.groups.iter().map(|group| group.size.times(group.replicas * group.hosts));
        groups.fold(self.head, ResourceAmounts::plus)
    }
}
