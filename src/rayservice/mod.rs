//! The RayService operator: child RayClusters, their Serve applications, and the switch from one to the next.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;

use crate::api::ray::{RayCluster, RayService};
use crate::dashboard::ServeReply;
use crate::engine::plan::Plan;

/// What is known of one service.
pub struct View<'a> {
    /// The service.
    pub service: &'a RayService,
    /// The RayClusters that it owns.
    pub children: Vec<&'a RayCluster>,
    /// Their head pods.
    pub head_pods: Vec<&'a Pod>,
    /// The Services that it owns.
    pub services: Vec<&'a Service>,
    /// The endpoints of its serve Service.
    pub endpoint_slices: Vec<&'a EndpointSlice>,
    /// What is known of Serve, by the name of the child.
    pub serve: BTreeMap<String, &'a ServeObservation>,
    /// Whether its children wait for quota before they run.
    pub gated: bool,
    /// The present.
    pub now: Timestamp,
}

/// What was last heard from the dashboard of one child.
#[derive(Debug, Default, Clone)]
pub struct ServeObservation {}

impl ServeObservation {
    /// Takes in a reply.
    pub fn observe(&mut self, _: ServeReply) {}
}

/// Plans everything that a service needs.
pub fn plan(_: &View<'_>) -> Plan {
    Plan::default()
}
