//! States of incremental upgrades, as reported in the status of the RayServices.

use std::fmt;

use kube::ResourceExt;
use sluice_api::ray::RayServiceStatus;

use sluice_testkit::history::{Change, Object};

/// Capacity and traffic of the clusters of a service, in percent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RolloutState {
    service: String,
    active: ClusterTargets,
    pending: ClusterTargets,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct ClusterTargets {
    capacity: Option<i32>,
    traffic: Option<i32>,
}

/// The states, in order.
#[derive(Debug, Clone, Default)]
pub struct RolloutTrace {
    states: Vec<RolloutState>,
}

impl RolloutTrace {
    /// Records the state of a changed RayService.
    pub fn observe(&mut self, change: &Change) {
        let Object::RayService(service) = &change.object else { return };
        let Some(status) = service.status.as_ref().filter(|_| !change.deleted) else { return };
        let (active, pending) =
            (targets(status.active_service_status.as_ref()), targets(status.pending_service_status.as_ref()));
        let position = RolloutState { service: service.name_any(), active, pending };
        let is_new = self.states.iter().rfind(|before| before.service == position.service) != Some(&position);
        if is_new && (position.active.is_reported() || position.pending.is_reported()) {
            self.states.push(position);
        }
    }

    /// Returns all states, without repetitions.
    pub fn states(&self) -> &[RolloutState] {
        &self.states
    }
}

fn targets(status: Option<&RayServiceStatus>) -> ClusterTargets {
    ClusterTargets {
        capacity: status.and_then(|status| status.target_capacity),
        traffic: status.and_then(|status| status.traffic_routed_percent),
    }
}

/// Formats capacity/traffic of the active and the pending cluster.
impl fmt::Display for RolloutState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "active {}, pending {}", self.active, self.pending)
    }
}

impl ClusterTargets {
    fn is_reported(&self) -> bool {
        self.capacity.is_some() || self.traffic.is_some()
    }
}

impl fmt::Display for ClusterTargets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |value: Option<i32>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
        write!(f, "{}/{}", percent(self.capacity), percent(self.traffic))
    }
}
