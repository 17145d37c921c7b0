//! The RayCluster operator: pods and Services from a spec, and a status from pods.

mod autoscaler;
mod environment;
#[cfg(test)]
pub(crate) mod fixtures;
pub mod groups;
pub mod names;
mod probes;
mod start_command;
pub mod template;

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Service};

use crate::api::ray::RayCluster;

pub use groups::{PodGroup, Role, pod_groups};
pub use template::TemplateError as PodGroupError;

/// What is known of one cluster.
pub struct View<'a> {
    /// The cluster.
    pub cluster: &'a RayCluster,
    /// All pods that carry its name in the label `ray.io/cluster`, those that are ending included.
    pub pods: Vec<&'a Pod>,
    /// The Services that it owns.
    pub services: Vec<&'a Service>,
    /// How many pods it may have.
    pub grant: Grant,
    /// The present.
    pub now: Timestamp,
}

/// How many pods the queue has paid for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Grant {
    /// The cluster is in no queue.
    Ungated,
    /// Pods by group; the head's group is `headgroup`, and a group that is missing has none.
    UpTo(BTreeMap<String, u32>),
}

impl Grant {
    /// How many pods a group may have.
    pub fn of(&self, group: &str) -> u32 {
        match self {
            Self::Ungated => u32::MAX,
            Self::UpTo(pods) => pods.get(group).copied().unwrap_or(0),
        }
    }
}
