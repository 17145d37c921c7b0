//! WorkloadPriorityClass: a named priority of workloads.

use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Fields of a WorkloadPriorityClass. They are at the top level of the object, which has no spec.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "kueue.x-k8s.io",
    version = "v1beta2",
    kind = "WorkloadPriorityClass",
    plural = "workloadpriorityclasses",
    shortname = "wpc",
    no_spec,
    derive = "Default",
    derive = "PartialEq",
    doc = "WorkloadPriorityClass names a priority of workloads, independent of the priority of their pods.",
    printcolumn = r#"{"name": "Value", "type": "integer", "jsonPath": ".value", "description": "Priority of the workloads of this class"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadPriorityClassFields {
    /// Priority of workloads of this class. Higher values are admitted first.
    pub value: i32,
    /// Guidance on when to use this class.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub description: Option<String>,
}
