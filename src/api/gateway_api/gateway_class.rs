//! GatewayClass: a class of Gateways and its controller.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube_derive::CustomResource;
use serde::{Deserialize, Serialize};

use super::OtherFields;

/// Desired state of a GatewayClass.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "gateway.networking.k8s.io",
    version = "v1",
    kind = "GatewayClass",
    plural = "gatewayclasses",
    status = "GatewayClassStatus",
    schema = "disabled",
    derive = "Default",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct GatewayClassSpec {
    /// Name of the controller of the Gateways of this class.
    pub controller_name: String,
    /// All other fields.
    #[serde(flatten)]
    pub other_fields: OtherFields,
}

/// Observed state of a GatewayClass.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GatewayClassStatus {
    /// Conditions of the GatewayClass.
    #[serde(default)]
    pub conditions: Vec<Condition>,
    /// All other fields.
    #[serde(flatten)]
    pub other_fields: OtherFields,
}
