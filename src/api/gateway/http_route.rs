//! HTTPRoute: which requests go to which Services, and how many of them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use serde::{Deserialize, Serialize};

use super::Others;

/// Which requests go where.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[kube(
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
    /// The Gateways that requests come from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parent_refs: Vec<ParentRef>,
    /// What is done with which requests; the first that fits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<RouteRule>,
    /// Everything else.
    #[serde(flatten)]
    pub others: Others,
}

/// A Gateway that requests come from.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ParentRef {
    /// Its name.
    pub name: String,
    /// Its namespace; that of the route when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Everything else.
    #[serde(flatten)]
    pub others: Others,
}

/// What is done with some requests.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteRule {
    /// Where they are sent to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backend_refs: Vec<BackendRef>,
    /// Everything else.
    #[serde(flatten)]
    pub others: Others,
}

/// Where requests are sent to: a Service, unless something else is said.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct BackendRef {
    /// The kind; `Service` when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The name.
    pub name: String,
    /// The namespace; that of the route when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The port of the Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
    /// Its share of the requests, in proportion to the weights of the others; 1 when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<i32>,
    /// Everything else.
    #[serde(flatten)]
    pub others: Others,
}

/// What became of a route.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct HTTPRouteStatus {
    /// What each Gateway makes of it.
    #[serde(default)]
    pub parents: Vec<ParentStatus>,
}

/// What a Gateway makes of a route.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ParentStatus {
    /// The Gateway.
    pub parent_ref: ParentRef,
    /// What holds of the route there.
    #[serde(default)]
    pub conditions: Vec<Condition>,
    /// Everything else.
    #[serde(flatten)]
    pub others: Others,
}
