//! Registry of served kinds: built-in kinds that Sluice or its users touch, and those of our CRDs.

use std::sync::LazyLock;

use serde::Serialize;
use sluice_api::crds;

use super::schema::Schema;

/// Kind and its API properties.
#[derive(Debug)]
pub struct ResourceKind {
    /// Index in the registry, from 0.
    pub index: usize,
    /// API group; empty for the core group.
    pub group: String,
    /// Version within the group.
    pub version: String,
    /// Kind, like `RayCluster`.
    pub kind: String,
    /// Resource name in paths, like `rayclusters`.
    pub plural: String,
    /// Set if its objects are namespaced.
    pub namespaced: bool,
    /// Set if the kind has a status subresource.
    pub has_status: bool,
    /// Set if a change of the spec increments `metadata.generation`.
    pub tracks_generation: bool,
    /// Set if its CRD has CEL validation rules.
    pub has_cel_rules: bool,
    /// Schema of its CRD; `None` for built-in kinds.
    pub schema: Option<Schema>,
}

impl ResourceKind {
    /// Returns true if the kind is defined by a CRD.
    pub fn is_custom(&self) -> bool {
        self.schema.is_some()
    }

    /// Returns the `apiVersion` of its objects, like `ray.io/v1` or `v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// Returns the resource as in error messages, like `rayclusters.ray.io` or `pods`.
    pub fn resource(&self) -> String {
        qualified(&self.plural, &self.group)
    }

    /// Returns the kind as in error messages, like `RayCluster.ray.io` or `Pod`.
    pub fn qualified_kind(&self) -> String {
        qualified(&self.kind, &self.group)
    }
}

/// Qualifies a name with its group, as error messages do.
pub fn qualified(name: &str, group: &str) -> String {
    if group.is_empty() { name.to_owned() } else { format!("{name}.{group}") }
}

/// API group of the Gateway API.
pub const GATEWAY_GROUP: &str = "gateway.networking.k8s.io";

/// Built-in kinds and those of the Gateway API: group, version, kind, plural, namespaced, has a
/// status subresource, counts generations.
const BUILT_IN: [(&str, &str, &str, &str, bool, bool, bool); 24] = [
    ("", "v1", "ConfigMap", "configmaps", true, false, false),
    ("", "v1", "Endpoints", "endpoints", true, false, false),
    ("", "v1", "LimitRange", "limitranges", true, false, false),
    ("", "v1", "Namespace", "namespaces", false, true, false),
    ("", "v1", "Node", "nodes", false, true, false),
    ("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", true, true, false),
    ("", "v1", "Pod", "pods", true, true, true),
    ("", "v1", "ResourceQuota", "resourcequotas", true, true, false),
    ("", "v1", "Secret", "secrets", true, false, false),
    ("", "v1", "Service", "services", true, true, false),
    ("", "v1", "ServiceAccount", "serviceaccounts", true, false, false),
    ("apps", "v1", "ControllerRevision", "controllerrevisions", true, false, false),
    ("batch", "v1", "Job", "jobs", true, true, true),
    ("coordination.k8s.io", "v1", "Lease", "leases", true, false, false),
    ("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", true, false, true),
    ("events.k8s.io", "v1", "Event", "events", true, false, false),
    (GATEWAY_GROUP, "v1", "Gateway", "gateways", true, true, true),
    (GATEWAY_GROUP, "v1", "GatewayClass", "gatewayclasses", false, true, true),
    (GATEWAY_GROUP, "v1", "HTTPRoute", "httproutes", true, true, true),
    ("networking.k8s.io", "v1", "Ingress", "ingresses", true, true, true),
    ("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses", false, false, false),
    ("rbac.authorization.k8s.io", "v1", "Role", "roles", true, false, false),
    ("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings", true, false, false),
    ("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", false, false, true),
];

static ALL_KINDS: LazyLock<Vec<ResourceKind>> = LazyLock::new(|| {
    let built_in =
        BUILT_IN.iter().map(|&(group, version, kind, plural, namespaced, has_status, generations)| ResourceKind {
            index: 0,
            group: group.to_owned(),
            version: version.to_owned(),
            kind: kind.to_owned(),
            plural: plural.to_owned(),
            namespaced,
            has_status,
            tracks_generation: generations,
            has_cel_rules: false,
            schema: None,
        });
    let custom = crds::all().into_iter().flat_map(|definition| {
        let spec = definition.spec;
        let served: Vec<_> = spec.versions.into_iter().filter(|version| version.storage).collect();
        served.into_iter().map(move |version| ResourceKind {
            index: 0,
            group: spec.group.clone(),
            has_status: version.subresources.as_ref().is_some_and(|subresources| subresources.status.is_some()),
            has_cel_rules: validation_json(version.schema.as_ref()).contains("x-kubernetes-validations"),
            schema: Some(parse_schema(version.schema.as_ref())),
            version: version.name,
            kind: spec.names.kind.clone(),
            plural: spec.names.plural.clone(),
            namespaced: spec.scope == "Namespaced",
            tracks_generation: true,
        })
    });
    built_in.chain(custom).enumerate().map(|(index, kind)| ResourceKind { index, ..kind }).collect()
});

/// Parses the schema of a CRD version.
fn parse_schema(validation: Option<&impl Serialize>) -> Schema {
    let validation = serde_json::to_value(validation).expect("a CRD is JSON");
    Schema::parse(&validation["openAPIV3Schema"])
}

fn validation_json(validation: Option<&impl Serialize>) -> String {
    serde_json::to_string(&validation).expect("a CRD is JSON")
}

/// Returns all kinds by index.
pub fn all() -> &'static [ResourceKind] {
    &ALL_KINDS
}

/// Returns the kind with a name, which callers hard-code.
///
/// # Panics
/// Panics if there is no such kind.
pub fn by_name(kind: &str) -> &'static ResourceKind {
    ALL_KINDS.iter().find(|known| known.kind == kind).unwrap_or_else(|| panic!("the API server has no kind {kind}"))
}

/// Returns the kind served at a path; `None` if there is none.
pub fn by_path(group: &str, version: &str, plural: &str) -> Option<&'static ResourceKind> {
    ALL_KINDS.iter().find(|kind| kind.plural == plural && kind.group == group && kind.version == version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn custom_kinds_have_scope_and_subresources_of_their_crds() {
        let cluster = by_name("RayCluster");
        assert_eq!((cluster.api_version().as_str(), cluster.plural.as_str()), ("ray.io/v1", "rayclusters"));
        assert!(cluster.namespaced && cluster.has_status);
        let flavor = by_name("ResourceFlavor");
        assert!(!flavor.namespaced && !flavor.has_status);
        assert_eq!(cluster.resource(), "rayclusters.ray.io");
        assert_eq!(by_name("Pod").resource(), "pods");
    }

    #[test]
    fn kind_is_found_by_group_version_and_plural() {
        assert_eq!(by_path("", "v1", "pods").map(|kind| kind.kind.as_str()), Some("Pod"));
        assert!(by_path("ray.io", "v2", "rayclusters").is_none());
    }
}
