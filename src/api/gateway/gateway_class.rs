//! GatewayClass: a kind of Gateways, and who takes care of them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use serde::{Deserialize, Serialize};

use super::Others;

/// A kind of Gateways.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[kube(
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
    /// Who takes care of its Gateways.
    pub controller_name: String,
    /// Everything else.
    #[serde(flatten)]
    pub others: Others,
}

/// What became of a GatewayClass.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GatewayClassStatus {
    /// What holds of it.
    #[serde(default)]
    pub conditions: Vec<Condition>,
    /// Everything else.
    #[serde(flatten)]
    pub others: Others,
}
