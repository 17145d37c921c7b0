//! States of incremental upgrades, as reported in the status of the RayServices.

use std::fmt;

use kube::ResourceExt;
use sluice_api::ray::RayServiceStatus;

use sluice_testkit::history::{Change, Object};

/// Capacity and traffic of the clusters of a service, in percent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    service: String,
    active: Side,
    pending: Side,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Side {
    capacity: Option<i32>,
    traffic: Option<i32>,
}

/// The states, in order.
#[derive(Debug, Clone, Default)]
pub struct Course {
    positions: Vec<Position>,
}

impl Course {
    /// Records the state of a changed RayService.
    pub fn see(&mut self, change: &Change) {
        let Object::RayService(service) = &change.object else { return };
        let Some(status) = service.status.as_ref().filter(|_| !change.gone) else { return };
        let (active, pending) = (side(&status.active_service_status), side(&status.pending_service_status));
        let position = Position { service: service.name_any(), active, pending };
        let is_new = self.positions.iter().rfind(|before| before.service == position.service) != Some(&position);
        if is_new && (position.active.is_told() || position.pending.is_told()) {
            self.positions.push(position);
        }
    }

    /// Returns all states, without repetitions.
    pub fn positions(&self) -> &[Position] {
        &self.positions
    }
}

fn side(status: &Option<RayServiceStatus>) -> Side {
    let status = status.as_ref();
    Side {
        capacity: status.and_then(|status| status.target_capacity),
        traffic: status.and_then(|status| status.traffic_routed_percent),
    }
}

/// Formats capacity/traffic of the active and the pending cluster.
impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "active {}, pending {}", self.active, self.pending)
    }
}

impl Side {
    fn is_told(&self) -> bool {
        self.capacity.is_some() || self.traffic.is_some()
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |value: Option<i32>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
        write!(f, "{}/{}", percent(self.capacity), percent(self.traffic))
    }
}
