//! The kinds of the Gateway API (`gateway.networking.k8s.io/v1`) by which requests come in: as far as they are read or written
//! here, and with all else that they hold kept as it is. (The crate `gateway-api` is for an earlier kube than ours.)

mod entry;
mod gateway_class;
mod http_route;

pub use entry::{Gateway, GatewaySpec, GatewayStatus};
pub use gateway_class::{GatewayClass, GatewayClassSpec, GatewayClassStatus};
pub use http_route::{BackendRef, HTTPRoute, HTTPRouteSpec, HTTPRouteStatus, ParentRef, ParentStatus, RouteRule};

use serde_json::{Map, Value};

/// What else an object holds, as it was written.
pub type Others = Map<String, Value>;

/// Condition of a Gateway, a route or a GatewayClass: its controller takes it.
pub const ACCEPTED: &str = "Accepted";
/// Condition of a Gateway: requests can come in by it.
pub const PROGRAMMED: &str = "Programmed";
/// Condition of a route: everything that it leads to is there.
pub const RESOLVED_REFS: &str = "ResolvedRefs";
