//! Gateway: the entry point of traffic.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube_derive::CustomResource;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::OtherFields;

/// Desired state of a Gateway.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    crates(kube_core = "::kube_core"),
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
    /// Name of the GatewayClass, which selects the controller.
    pub gateway_class_name: String,
    /// Listeners: ports, protocols and host names.
    #[serde(default)]
    pub listeners: Vec<Value>,
    /// All other fields.
    #[serde(flatten)]
    pub other_fields: OtherFields,
}

/// Observed state of a Gateway.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GatewayStatus {
    /// Conditions of the Gateway.
    #[serde(default)]
    pub conditions: Vec<Condition>,
    /// All other fields.
    #[serde(flatten)]
    pub other_fields: OtherFields,
}

impl Gateway {
    /// Returns the conditions in the status.
    pub fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map_or(&[], |status| &status.conditions)
    }
}
