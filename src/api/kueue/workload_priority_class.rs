//! WorkloadPriorityClass: a name for a priority.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Fields of a WorkloadPriorityClass, which stand beside its metadata and not in a spec.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "kueue.x-k8s.io",
    version = "v1beta2",
    kind = "WorkloadPriorityClass",
    plural = "workloadpriorityclasses",
    shortname = "wpc",
    no_spec,
    derive = "Default",
    derive = "PartialEq",
    doc = "WorkloadPriorityClass gives a name to a priority of workloads, apart from the priority of their pods.",
    printcolumn = r#"{"name": "Value", "type": "integer", "jsonPath": ".value", "description": "Priority of the workloads of this class"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadPriorityClassFields {
    /// The priority; higher goes first.
    pub value: i32,
    /// When to use this class.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub description: Option<String>,
}
