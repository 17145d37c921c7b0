//! ResourceFlavor: a class of nodes, such as a GPU model or spot capacity.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Taint, Toleration};
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema::{self, DNS_SUBDOMAIN};

/// Nodes that belong to the flavor, and the tolerations that pods need to run on them.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "kueue.x-k8s.io",
    version = "v1beta2",
    kind = "ResourceFlavor",
    plural = "resourceflavors",
    shortname = "flavor",
    shortname = "flavors",
    shortname = "rf",
    derive = "Default",
    derive = "PartialEq",
    doc = "ResourceFlavor is a class of nodes that ClusterQueues define quota for."
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "!has(self.topologyName) || self.nodeLabels.size() >= 1", "message": "at least one nodeLabel is required when topology is set"},
    {"rule": "!has(oldSelf.topologyName) || (has(self.topologyName) && self.topologyName == oldSelf.topologyName)", "message": "topologyName is immutable when topologyName is set"},
]))]
pub struct ResourceFlavorSpec {
    /// Labels of the nodes of this flavor. Pods that are assigned the flavor get them as a node
    /// selector.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::node_labels")]
    pub node_labels: BTreeMap<String, String>,
    /// Taints of the nodes of this flavor. A pod set is eligible only if it tolerates those with
    /// effect NoSchedule and NoExecute.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "atomic", "x-kubernetes-validations" = [
        {"rule": "self.all(x, x.effect in ['NoSchedule', 'PreferNoSchedule', 'NoExecute'])", "message": "supported taint effect values: 'NoSchedule', 'PreferNoSchedule', 'NoExecute'"},
    ]))]
    pub node_taints: Vec<Taint>,
    /// Tolerations that are added to pods that are assigned this flavor.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "atomic", "x-kubernetes-validations" = [
        {"rule": "self.all(x, !has(x.key) ? x.operator == 'Exists' : true)", "message": "operator must be Exists when 'key' is empty, which means 'match all values and all keys'"},
        {"rule": "self.all(x, has(x.tolerationSeconds) ? x.effect == 'NoExecute' : true)", "message": "effect must be 'NoExecute' when 'tolerationSeconds' is set"},
        {"rule": "self.all(x, !has(x.operator) || x.operator in ['Equal', 'Exists'])", "message": "supported toleration values: 'Equal'(default), 'Exists'"},
        {"rule": "self.all(x, has(x.operator) && x.operator == 'Exists' ? !has(x.value) : true)", "message": "a value must be empty when 'operator' is 'Exists'"},
        {"rule": "self.all(x, !has(x.effect) || x.effect in ['NoSchedule', 'PreferNoSchedule', 'NoExecute'])", "message": "supported taint effect values: 'NoSchedule', 'PreferNoSchedule', 'NoExecute'"},
    ]))]
    pub tolerations: Vec<Toleration>,
    /// Name of the Topology of the nodes of this flavor.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), regex(pattern = DNS_SUBDOMAIN))]
    pub topology_name: Option<String>,
}
