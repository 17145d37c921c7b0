//! Kinds of the Gateway API (`gateway.networking.k8s.io/v1`). Only the fields that Sluice reads or
//! writes are typed, all others are preserved. (The crate `gateway-api` targets an older kube.)

mod gateway;
mod gateway_class;
mod http_route;

pub use gateway::{Gateway, GatewaySpec, GatewayStatus};
pub use gateway_class::{GatewayClass, GatewayClassSpec, GatewayClassStatus};
pub use http_route::{BackendRef, HTTPRoute, HTTPRouteSpec, HTTPRouteStatus, ParentRef, ParentStatus, RouteRule};

use serde_json::{Map, Value};

/// Fields that are not typed, preserved as submitted.
pub type OtherFields = Map<String, Value>;

/// Condition of a Gateway, HTTPRoute or GatewayClass: its controller accepts it.
pub const ACCEPTED: &str = "Accepted";
/// Condition of a Gateway: it is ready to receive traffic.
pub const PROGRAMMED: &str = "Programmed";
/// Condition of an HTTPRoute: all its references are resolved.
pub const RESOLVED_REFS: &str = "ResolvedRefs";
