//! What people ask for, step by step.

use serde::{Deserialize, Serialize};

use super::scene::{Quota, Scene, Size, is_false};

/// A scene, and what happens in it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Script {
    /// What is there from the beginning.
    pub(crate) scene: Scene,
    /// What people do, in this order.
    pub(crate) steps: Vec<Step>,
}

/// Something that is done after a while.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Step {
    /// When, as seen from the step before.
    pub(crate) after: Pause,
    /// What.
    pub(crate) act: Act,
}

/// A while.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Pause {
    /// Until all is quiet.
    Rest,
    /// So many milliseconds.
    Millis(u32),
}

/// What a person does. What is done to something that isn't there changes nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) enum Act {
    /// Applies a RayService as a whole: makes it, or makes it what this says. Who finds one of this name that is being
    /// deleted waits until it is gone.
    PutService(Service),
    /// Changes the Ray version and the image: an upgrade, or the way back.
    SetVersion {
        /// The service.
        service: String,
        /// The version.
        version: u32,
    },
    /// Changes what each worker of a group asks for: an upgrade as well.
    Resize {
        /// The service.
        service: String,
        /// The number of the group, from 0.
        group: usize,
        /// The new size.
        size: Size,
    },
    /// Changes the number of workers, in the service and in the clusters that it has, as an autoscaler does: that goes without
    /// an upgrade.
    Scale {
        /// The service.
        service: String,
        /// The number of the group, from 0.
        group: usize,
        /// The new number.
        replicas: u32,
    },
    /// Changes what is served, which goes without an upgrade.
    EditServeConfig {
        /// The service.
        service: String,
        /// The edition.
        edition: u32,
    },
    /// Suspends a service, or resumes it.
    Suspend {
        /// The service.
        service: String,
        /// Whether it is to stand still.
        suspend: bool,
    },
    /// Gives a service a priority.
    SetPriority {
        /// The service.
        service: String,
        /// The class; none takes it away.
        priority: Option<String>,
    },
    /// Lets a service wait for quota for as long as it takes, also for an upgrade that was given up, and try again one that has failed.
    TryAgain {
        /// The service.
        service: String,
    },
    /// Deletes a service.
    DeleteService {
        /// The service.
        service: String,
        /// Whether it is to stay until all of it is gone.
        #[serde(default, skip_serializing_if = "is_false")]
        foreground: bool,
    },
    /// Applies a RayCluster that belongs to no service.
    PutCluster(Cluster),
    /// Changes the number of workers of such a cluster.
    ScaleCluster {
        /// The cluster.
        cluster: String,
        /// The number of the group, from 0.
        group: usize,
        /// The new number.
        replicas: u32,
    },
    /// Deletes such a cluster.
    DeleteCluster {
        /// The cluster.
        cluster: String,
    },
    /// Sets the quota of a ClusterQueue.
    SetQuota {
        /// The queue.
        queue: String,
        /// All of its quota.
        quotas: Vec<Quota>,
    },
    /// Stops a ClusterQueue, or lets it go on.
    StopQueue {
        /// The queue.
        queue: String,
        /// How.
        policy: StopPolicy,
    },
    /// Stops a LocalQueue, or lets it go on.
    StopLocalQueue {
        /// The queue.
        queue: String,
        /// How.
        policy: StopPolicy,
    },
}

/// Whether a queue takes anyone in, and keeps whom it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum StopPolicy {
    /// It takes in and keeps.
    None,
    /// It keeps.
    Hold,
    /// It does neither.
    HoldAndDrain,
}

/// A RayService.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Service {
    /// Its name.
    pub(crate) name: String,
    /// The queue that it asks, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) queue: Option<String>,
    /// Its priority class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) priority: Option<String>,
    /// What its clusters are made of.
    pub(crate) pods: Pods,
    /// The edition of what it serves.
    #[serde(default)]
    pub(crate) edition: u32,
    /// For how many seconds a cluster that no longer serves is kept.
    #[serde(default)]
    pub(crate) linger: u32,
    /// Whether it stands still.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) suspend: bool,
    /// Whether it is made anew where there is no room for two clusters.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) recreate: bool,
    /// For how many seconds its upgrades wait for quota, if not for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) patience: Option<u32>,
    /// How it is upgraded in steps, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) steps: Option<Steps>,
}

/// How a service is upgraded in steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Steps {
    /// Capacity on top of all, in percent.
    pub(crate) surge: u32,
    /// Traffic in a step, in percent.
    pub(crate) step: u32,
    /// Seconds between two steps.
    pub(crate) interval: u32,
    /// Whether requests come by a route that people made.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) adopts: bool,
}

/// A RayCluster that belongs to no service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cluster {
    /// Its name.
    pub(crate) name: String,
    /// The queue that it asks, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) queue: Option<String>,
    /// Its priority class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) priority: Option<String>,
    /// Whether its pods are made anew when something else is asked for.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) recreate: bool,
    /// What it is made of.
    pub(crate) pods: Pods,
}

/// The pods of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pods {
    /// The version of Ray.
    pub(crate) version: u32,
    /// What the head asks for.
    pub(crate) head: Size,
    /// The workers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) groups: Vec<Group>,
}

/// A group of workers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Group {
    /// Its name.
    pub(crate) name: String,
    /// The number of workers.
    pub(crate) replicas: u32,
    /// The number of pods that one worker is made of.
    pub(crate) hosts: u32,
    /// What each of those pods asks for.
    pub(crate) size: Size,
}

impl Pods {
    /// Makes each number as large as it is in either, group by group.
    pub(crate) fn grow_to(&mut self, other: &Self) {
        self.head = self.head.most(other.head);
        for (index, group) in other.groups.iter().enumerate() {
            match self.groups.get_mut(index) {
                Some(own) => {
                    own.replicas = own.replicas.max(group.replicas);
                    own.hosts = own.hosts.max(group.hosts);
                    own.size = own.size.most(group.size);
                }
                None => self.groups.push(group.clone()),
            }
        }
    }

    /// What all of them ask for together.
    pub(crate) fn total(&self) -> Size {
        let groups = self.groups.iter().map(|group| group.size.times(group.replicas * group.hosts));
        groups.fold(self.head, Size::plus)
    }
}
