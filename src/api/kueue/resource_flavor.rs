//! ResourceFlavor: one class of hardware.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Taint, Toleration};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema::{self, DNS_SUBDOMAIN};

/// Names the nodes that belong to a class of hardware, and what pods need to run there.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "kueue.x-k8s.io",
    version = "v1beta2",
    kind = "ResourceFlavor",
    plural = "resourceflavors",
    shortname = "flavor",
    shortname = "flavors",
    shortname = "rf",
    derive = "Default",
    derive = "PartialEq",
    doc = "ResourceFlavor is one class of hardware that ClusterQueues give out quota for."
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "!has(self.topologyName) || self.nodeLabels.size() >= 1", "message": "at least one nodeLabel is required when topology is set"},
    {"rule": "!has(oldSelf.topologyName) || (has(self.topologyName) && self.topologyName == oldSelf.topologyName)", "message": "topologyName is immutable when topologyName is set"},
]))]
pub struct ResourceFlavorSpec {
    /// Labels of the nodes of this flavor; pods that get the flavor are given them as a node selector.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::node_labels")]
    pub node_labels: BTreeMap<String, String>,
    /// Taints of the nodes of this flavor; a pod set must tolerate those with NoSchedule and NoExecute to get it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "atomic", "x-kubernetes-validations" = [
        {"rule": "self.all(x, x.effect in ['NoSchedule', 'PreferNoSchedule', 'NoExecute'])", "message": "supported taint effect values: 'NoSchedule', 'PreferNoSchedule', 'NoExecute'"},
    ]))]
    pub node_taints: Vec<Taint>,
    /// Tolerations that pods get together with this flavor.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "atomic", "x-kubernetes-validations" = [
        {"rule": "self.all(x, !has(x.key) ? x.operator == 'Exists' : true)", "message": "operator must be Exists when 'key' is empty, which means 'match all values and all keys'"},
        {"rule": "self.all(x, has(x.tolerationSeconds) ? x.effect == 'NoExecute' : true)", "message": "effect must be 'NoExecute' when 'tolerationSeconds' is set"},
        {"rule": "self.all(x, !has(x.operator) || x.operator in ['Equal', 'Exists'])", "message": "supported toleration values: 'Equal'(default), 'Exists'"},
        {"rule": "self.all(x, has(x.operator) && x.operator == 'Exists' ? !has(x.value) : true)", "message": "a value must be empty when 'operator' is 'Exists'"},
        {"rule": "self.all(x, !has(x.effect) || x.effect in ['NoSchedule', 'PreferNoSchedule', 'NoExecute'])", "message": "supported taint effect values: 'NoSchedule', 'PreferNoSchedule', 'NoExecute'"},
    ]))]
    pub tolerations: Vec<Toleration>,
    /// Topology of the nodes of this flavor.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub topology_name: Option<String>,
}
