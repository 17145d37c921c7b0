//! HTTPRoute: routes traffic of Gateways to Services by weight.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube_derive::CustomResource;
use serde::{Deserialize, Serialize};

use super::OtherFields;

/// Desired state of an HTTPRoute.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "gateway.networking.k8s.io",
    version = "v1",
    kind = "HTTPRoute",
    plural = "httproutes",
    namespaced,
    status = "HTTPRouteStatus",
    schema = "disabled",
    derive = "Default",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct HTTPRouteSpec {
    /// Gateways that the route is attached to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parent_refs: Vec<ParentRef>,
    /// Routing rules. The first that matches a request applies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<RouteRule>,
    /// All other fields.
    #[serde(flatten)]
    pub other_fields: OtherFields,
}

/// Reference to a Gateway.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ParentRef {
    /// Name of the Gateway.
    pub name: String,
    /// Namespace of the Gateway. Defaults to that of the route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// All other fields.
    #[serde(flatten)]
    pub other_fields: OtherFields,
}

/// A routing rule.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteRule {
    /// Backends that matching requests are sent to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backend_refs: Vec<BackendRef>,
    /// All other fields.
    #[serde(flatten)]
    pub other_fields: OtherFields,
}

/// Reference to a backend, which is a Service unless `kind` differs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct BackendRef {
    /// Kind of the backend. Defaults to `Service`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Name of the backend.
    pub name: String,
    /// Namespace of the backend. Defaults to that of the route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Port of the Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
    /// Share of the requests, in proportion to the weights of all backends. Defaults to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<i32>,
    /// All other fields.
    #[serde(flatten)]
    pub other_fields: OtherFields,
}

/// Observed state of an HTTPRoute.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct HTTPRouteStatus {
    /// Status of the route by Gateway.
    #[serde(default)]
    pub parents: Vec<ParentStatus>,
}

/// Status of the route at one Gateway.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ParentStatus {
    /// Reference to the Gateway.
    pub parent_ref: ParentRef,
    /// Conditions of the route at the Gateway.
    #[serde(default)]
    pub conditions: Vec<Condition>,
    /// All other fields.
    #[serde(flatten)]
    pub other_fields: OtherFields,
}
