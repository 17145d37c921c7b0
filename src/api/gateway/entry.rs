//! Gateway: where requests come in.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Others;

/// Where requests come in, and who lets them.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "gateway.networking.k8s.io",
    version = "v1",
    kind = "Gateway",
    plural = "gateways",
    namespaced,
    status = "GatewayStatus",
    schema = "disabled",
    derive = "Default",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct GatewaySpec {
    /// The class, whose controller lets requests in.
    pub gateway_class_name: String,
    /// Ports, protocols and host names.
    #[serde(default)]
    pub listeners: Vec<Value>,
    /// Everything else.
    #[serde(flatten)]
    pub others: Others,
}

/// What became of a Gateway.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GatewayStatus {
    /// What holds of it.
    #[serde(default)]
    pub conditions: Vec<Condition>,
    /// Everything else.
    #[serde(flatten)]
    pub others: Others,
}
