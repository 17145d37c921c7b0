//! HTTPRoutes that split traffic between the clusters of a RayService. In a user-provided route
//! only the backends of the RayService are changed, in every rule, and their total weight stays the
//! same.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Service, ServicePort};
use kube_core::ResourceExt;
use serde_json::json;

use super::gateway::{self, owned_metadata};
use super::state_machine::{FULL, Percent};
use crate::ray_clusters::owner_reference;
use crate::services::serve_service_name;
use sluice_api::gateway_api::{BackendRef, HTTPRoute, HTTPRouteSpec, ParentRef, RouteRule};
use sluice_api::ray::routing_annotations::{self, ROUTE_ANNOTATION};
use sluice_api::ray::{RayCluster, RayService};
use sluice_raycluster::names as naming;

/// Suffix of the name of a backend Service.
const BACKEND_SUFFIX: &str = "-serve-svc";
/// Length of the random suffix of a RayCluster name, in characters.
const SUFFIX_LENGTH: usize = 5;

/// Returns the name of the RayService's route: the user-provided one, or the one created for it.
pub fn route_name(service: &RayService) -> String {
    user_provided(service).map_or_else(|| default_route_name(service), str::to_owned)
}

/// Returns the name of the route that is created for a RayService.
pub fn default_route_name(service: &RayService) -> String {
    format!("{}-httproute", service.name_any())
}

/// Returns the names of all routes that reference a RayService, or did and may have to be reset.
pub fn route_names(service: &RayService) -> BTreeSet<String> {
    let recorded = routing_annotations::adopted_http_route_name(&service.metadata).map(str::to_owned);
    [route_name(service), default_route_name(service)].into_iter().chain(recorded).collect()
}

/// Returns the name of the user-provided route; None if the annotation is missing or invalid.
pub(super) fn user_provided(service: &RayService) -> Option<&str> {
    routing_annotations::http_route_name(&service.metadata).ok().flatten()
}

/// Identifies the backends of a route that belong to a RayService.
#[derive(Debug, Default)]
pub struct ServiceBackends {
    namespace: String,
    service: String,
    serve_service: String,
    cluster_backends: BTreeSet<String>,
    foreign_services: BTreeSet<String>,
}

impl ServiceBackends {
    /// Returns the backends of a RayService with these clusters. `of_others` are the names of
    /// Services in its namespace that match the naming pattern but belong to something else.
    pub fn new(service: &RayService, clusters: &[&RayCluster], of_others: BTreeSet<String>) -> Self {
        Self {
            namespace: service.namespace().unwrap_or_default(),
            service: service.name_any(),
            serve_service: serve_service_name(service),
            cluster_backends: clusters.iter().map(|cluster| naming::serve_service(cluster)).collect(),
            foreign_services: of_others,
        }
    }

    /// Returns true if a backend is the serve Service or the backend Service of a cluster of this
    /// RayService, existing or deleted.
    fn contains(&self, backend: &BackendRef) -> bool {
        let is_service = backend.kind.as_deref().is_none_or(|kind| kind == "Service")
            && backend.other_fields.get("group").is_none_or(|group| group == "");
        let is_here = backend.namespace.as_deref().is_none_or(|namespace| namespace == self.namespace);
        let has_cluster_name =
            self.cluster_backends.contains(&backend.name) || has_backend_name(&self.service, &backend.name);
        let is_cluster_backend = has_cluster_name && !self.foreign_services.contains(&backend.name);
        is_service && is_here && (backend.name == self.serve_service || is_cluster_backend)
    }

    fn is_cluster_backend(&self, backend: &BackendRef) -> bool {
        self.contains(backend) && backend.name != self.serve_service
    }

    /// Returns true if a route references backend Services of clusters of this RayService.
    pub(super) fn routes_to_clusters(&self, route: &HTTPRoute) -> bool {
        backend_refs(route).any(|backend| self.is_cluster_backend(backend))
    }

    /// Returns the share of an existing cluster in a route, in percent; None if no existing cluster
    /// has a share.
    pub(super) fn traffic_share(&self, route: &HTTPRoute, cluster: &RayCluster) -> Option<Percent> {
        let name = naming::serve_service(cluster);
        let is_existing =
            |backend: &&BackendRef| self.contains(backend) && self.cluster_backends.contains(&backend.name);
        let rule =
            route.spec.rules.iter().find(|rule| rule.backend_refs.iter().any(|backend| is_existing(&backend)))?;
        let existing = || rule.backend_refs.iter().filter(is_existing);
        let total: i64 = existing().map(weight).sum();
        let own: i64 = existing().filter(|backend| backend.name == name).map(weight).sum();
        Percent::try_from((own * i64::from(FULL)).checked_div(total)?).ok()
    }

    /// Returns why the traffic of a route cannot be split between clusters; None if it can.
    pub(super) fn split_obstacle(&self, route: &HTTPRoute) -> Option<String> {
        let name = route.name_any();
        if !backend_refs(route).any(|backend| self.contains(backend)) {
            return Some(format!(
                "HTTPRoute {name} does not reference Service {}: add it to the backendRefs of a rule",
                self.serve_service
            ));
        }
        let index = route.spec.rules.iter().position(|rule| !self.can_split(rule))?;
        Some(format!(
            "rule {} of HTTPRoute {name} also has other backends: the total weight of this RayService's backends \
             must be a multiple of 100 to be split, but is {}",
            index + 1,
            self.total_weight(&route.spec.rules[index].backend_refs)
        ))
    }

    fn can_split(&self, rule: &RouteRule) -> bool {
        !rule.backend_refs.iter().any(|backend| self.contains(backend))
            || self.total_weight(&rule.backend_refs) % i64::from(FULL) == 0
    }

    /// Returns the total weight of this RayService's backends in a rule: what they have if the rule
    /// has other backends too, otherwise 100.
    fn total_weight(&self, backends: &[BackendRef]) -> i64 {
        let (own, others): (Vec<&BackendRef>, Vec<&BackendRef>) =
            backends.iter().partition(|backend| self.contains(backend));
        if others.is_empty() { i64::from(FULL) } else { own.into_iter().map(weight).sum() }
    }

    /// Returns the route with the weight of this RayService's backends split between `shares`,
    /// whose weights are in percent.
    pub(super) fn split_weights(&self, route: &HTTPRoute, shares: &[BackendRef]) -> HTTPRoute {
        let mut route = route.clone();
        for rule in &mut route.spec.rules {
            let Some(first) = rule.backend_refs.iter().position(|backend| self.contains(backend)) else { continue };
            let total = self.total_weight(&rule.backend_refs);
            let previous = std::mem::take(&mut rule.backend_refs);
            let own = shares.iter().map(|share| {
                // Settings of the original backend, such as filters, apply to each cluster.
                let template = previous.iter().find(|backend| backend.name == share.name).unwrap_or(&previous[first]);
                let split = weight(share) * total / i64::from(FULL);
                BackendRef {
                    name: share.name.clone(),
                    namespace: share.namespace.clone(),
                    port: share.port,
                    weight: i32::try_from(split).ok(),
                    ..template.clone()
                }
            });
            let following = previous[first..].iter().filter(|backend| !self.contains(backend)).cloned();
            rule.backend_refs = previous[..first].iter().cloned().chain(own).chain(following).collect();
        }
        route
    }
}

/// Returns true if a Service name matches the pattern of this RayService's backend Services.
fn has_backend_name(service: &str, name: &str) -> bool {
    let cluster = name.strip_suffix(BACKEND_SUFFIX).and_then(|cluster| cluster.strip_prefix(service));
    let suffix = cluster.and_then(|cluster| cluster.strip_prefix('-'));
    suffix.is_some_and(|suffix| {
        suffix.len() == SUFFIX_LENGTH && suffix.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
    })
}

/// Returns the backends of all rules of a route.
pub fn backend_refs(route: &HTTPRoute) -> impl Iterator<Item = &BackendRef> {
    route.spec.rules.iter().flat_map(|rule| &rule.backend_refs)
}

fn weight(backend: &BackendRef) -> i64 {
    i64::from(backend.weight.unwrap_or(1).max(0))
}

/// Returns true if a route is owned by this RayService.
pub(super) fn is_owned_by_service(service: &RayService, route: &HTTPRoute) -> bool {
    route.owner_references().iter().any(|other| other.uid == owner_reference(service).uid)
}

/// Returns the desired route of a RayService, based on the current one: requests that no other rule
/// matches go to these backends.
pub(super) fn desired_route(
    service: &RayService,
    own: &ServiceBackends,
    shares: &[BackendRef],
    current: Option<&HTTPRoute>,
) -> HTTPRoute {
    let mut route = current.cloned().unwrap_or_else(|| new_route(service));
    attach_to_gateway(service, &mut route);
    if !backend_refs(&route).any(|backend| own.contains(backend)) {
        match route.spec.rules.first_mut() {
            Some(rule) => rule.backend_refs = shares.to_vec(),
            None => route.spec.rules.push(RouteRule { backend_refs: shares.to_vec(), ..RouteRule::default() }),
        }
    }
    own.split_weights(&route, shares)
}

fn new_route(service: &RayService) -> HTTPRoute {
    let match_all = json!({"matches": [{"path": {"type": "PathPrefix", "value": "/"}}]});
    let others = match_all.as_object().cloned().unwrap_or_default();
    let rule = RouteRule { other_fields: others, ..RouteRule::default() };
    let spec = HTTPRouteSpec { rules: vec![rule], ..HTTPRouteSpec::default() };
    let mut route = HTTPRoute::new(&default_route_name(service), spec);
    route.metadata = owned_metadata(service, route.metadata);
    route
}

/// Attaches a route to the RayService's Gateway, and detaches it from the one created before the
/// annotation named a Gateway.
fn attach_to_gateway(service: &RayService, route: &mut HTTPRoute) {
    let (namespace, name) = gateway::gateway_namespaced_name(service);
    let here = route.namespace().unwrap_or_default();
    let references = |parent: &ParentRef, name: &str, namespace: &str| {
        parent.name == name && parent.namespace.as_deref().unwrap_or(&here) == namespace
    };
    let parents = &mut route.spec.parent_refs;
    if !gateway::manages_gateway(service) {
        let created = gateway::default_gateway_name(service);
        parents.retain(|parent| !references(parent, &created, &here));
    }
    if !parents.iter().any(|parent| references(parent, &name, &namespace)) {
        parents.push(ParentRef { name, namespace: Some(namespace), ..ParentRef::default() });
    }
}

/// Returns a message for a missing route.
pub(super) fn missing_route_message(service: &RayService) -> String {
    let name = route_name(service);
    match user_provided(service) {
        Some(_) => format!("HTTPRoute {name} does not exist (annotation {ROUTE_ANNOTATION})"),
        None => format!("HTTPRoute {name} does not exist yet"),
    }
}

/// Returns a backend reference to a Service with this share of the traffic, in percent.
pub(super) fn backend_ref(backend: &Service, share: Percent) -> BackendRef {
    let ports = backend.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    let is_serve_port = |port: &&ServicePort| port.name.as_deref() == Some("serve");
    let port = ports.clone().find(is_serve_port).or_else(|| ports.clone().next());
    BackendRef {
        name: backend.name_any(),
        namespace: backend.namespace(),
        port: port.map(|port| port.port),
        weight: Some(share.into()),
        ..BackendRef::default()
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::Value;

    use super::*;

    fn service() -> RayService {
        let spec = json!({"rayClusterConfig": {"headGroupSpec": {"template": {}}}});
        let meta = json!({"name": "chat", "namespace": "ml", "uid": "1"});
        serde_json::from_value(json!({"metadata": meta, "spec": spec})).expect("a service")
    }

    fn cluster(name: &str) -> RayCluster {
        let spec = json!({"headGroupSpec": {"template": {}}});
        serde_json::from_value(json!({"metadata": {"name": name, "namespace": "ml"}, "spec": spec})).expect("a cluster")
    }

    fn route(rules: Value) -> HTTPRoute {
        let spec = json!({"parentRefs": [{"name": "public"}], "hostnames": ["a.example"], "rules": rules});
        serde_json::from_value(json!({"metadata": {"name": "shop", "namespace": "ml"}, "spec": spec})).expect("a route")
    }

    fn rule(backends: &[(&str, i32)]) -> Value {
        let backends = backends.iter().map(|(name, weight)| json!({"name": name, "port": 80, "weight": weight}));
        json!({"backendRefs": backends.collect::<Vec<_>>()})
    }

    fn own() -> ServiceBackends {
        let (old, new) = (cluster("chat-aaaaa"), cluster("chat-bbbbb"));
        ServiceBackends::new(&service(), &[&old, &new], BTreeSet::from(["chat-other-serve-svc".to_owned()]))
    }

    fn shares(old: i32, new: i32) -> Vec<BackendRef> {
        let share = |(name, weight): (&str, i32)| BackendRef {
            name: format!("{name}-serve-svc"),
            namespace: Some("ml".into()),
            port: Some(8000),
            weight: Some(weight),
            ..BackendRef::default()
        };
        [("chat-aaaaa", old), ("chat-bbbbb", new)].map(share).to_vec()
    }

    fn names(route: &HTTPRoute) -> Vec<(&str, i32)> {
        backend_refs(route).map(|backend| (backend.name.as_str(), backend.weight.unwrap_or(1))).collect()
    }

    const OLD: &str = "chat-aaaaa-serve-svc";
    const NEW: &str = "chat-bbbbb-serve-svc";

    #[rstest]
    #[case::serve_service(json!([rule(&[("chat-serve-svc", 1)])]), &[(OLD, 75), (NEW, 25)])]
    #[case::with_other_backends(
        json!([rule(&[("blog", 1), ("chat-serve-svc", 300), ("docs", 2)])]),
        &[("blog", 1), (OLD, 225), (NEW, 75), ("docs", 2)])]
    #[case::already_split(json!([rule(&[(OLD, 100), (NEW, 0)])]), &[(OLD, 75), (NEW, 25)])]
    #[case::deleted_cluster(json!([rule(&[("chat-ccccc-serve-svc", 50), (OLD, 50)])]), &[(OLD, 75), (NEW, 25)])]
    #[case::several_rules(
        json!([rule(&[("chat-serve-svc", 1)]), rule(&[("blog", 1)]), rule(&[("chat-serve-svc", 1)])]),
        &[(OLD, 75), (NEW, 25), ("blog", 1), (OLD, 75), (NEW, 25)])]
    #[case::foreign_service_with_matching_name(json!([rule(&[("chat-other-serve-svc", 1)])]), &[("chat-other-serve-svc", 1)])]
    fn only_backends_of_the_ray_service_are_split(#[case] rules: Value, #[case] expected: &[(&str, i32)]) {
        let split = own().split_weights(&route(rules), &shares(75, 25));
        assert_eq!(names(&split), expected);
        assert_eq!(split.spec.other_fields["hostnames"], json!(["a.example"]));
    }

    #[test]
    fn settings_of_the_serve_service_backend_apply_to_each_cluster() {
        let filters = json!([{"type": "RequestHeaderModifier"}]);
        let rules =
            json!([{"backendRefs": [{"name": "chat-serve-svc", "filters": filters}], "timeouts": {"request": "9s"}}]);
        let split = own().split_weights(&route(rules), &shares(75, 25));
        assert!(
            backend_refs(&split)
                .all(|backend| backend.other_fields["filters"] == filters && backend.port == Some(8000))
        );
        assert_eq!(split.spec.rules[0].other_fields["timeouts"], json!({"request": "9s"}));
    }

    #[rstest]
    #[case::split_rule(json!([rule(&[(OLD, 225), (NEW, 75), ("blog", 9)])]), Some(25))]
    #[case::no_share_yet(json!([rule(&[(OLD, 100)])]), Some(0))]
    #[case::only_serve_service(json!([rule(&[("chat-serve-svc", 1)])]), None)]
    #[case::only_deleted_cluster(json!([rule(&[("chat-ccccc-serve-svc", 100)])]), None)]
    #[case::zero_weights(json!([rule(&[(OLD, 0), (NEW, 0)])]), None)]
    #[case::in_another_namespace(json!([{"backendRefs": [{"name": NEW, "namespace": "other"}]}]), None)]
    #[case::of_another_kind(json!([{"backendRefs": [{"name": NEW, "kind": "Function"}]}]), None)]
    fn share_counts_existing_clusters_only(#[case] rules: Value, #[case] expected: Option<Percent>) {
        assert_eq!(own().traffic_share(&route(rules), &cluster("chat-bbbbb")), expected);
    }

    #[rstest]
    #[case::serve_service_only(json!([rule(&[("chat-serve-svc", 1)])]), None)]
    #[case::splittable_weight(json!([rule(&[("chat-serve-svc", 200), ("blog", 1)])]), None)]
    #[case::no_backend_of_the_ray_service(
        json!([rule(&[("blog", 1)])]),
        Some("HTTPRoute shop does not reference Service chat-serve-svc: add it to the backendRefs of a rule"))]
    #[case::weight_not_splittable(
        json!([rule(&[("blog", 1)]), rule(&[("chat-serve-svc", 9), ("blog", 1)])]),
        Some("rule 2 of HTTPRoute shop also has other backends: the total weight of this RayService's backends \
              must be a multiple of 100 to be split, but is 9"))]
    fn route_that_cannot_be_split_is_reported(#[case] rules: Value, #[case] expected: Option<&str>) {
        assert_eq!(own().split_obstacle(&route(rules)).as_deref(), expected);
    }

    #[test]
    fn created_route_keeps_fields_added_by_others() {
        let mut current = desired_route(&service(), &own(), &shares(100, 0)[..1], None);
        assert_eq!(names(&current), [(OLD, 100)]);
        current.spec.rules.push(serde_json::from_value(rule(&[("blog", 1)])).expect("a rule"));
        current.spec.parent_refs.push(ParentRef { name: "inner".into(), ..ParentRef::default() });

        let mut service = service();
        service.metadata.annotations = Some([("sluice.dev/gateway".to_owned(), "infra/public".to_owned())].into());
        let next = desired_route(&service, &own(), &shares(75, 25), Some(&current));

        assert_eq!(names(&next), [(OLD, 75), (NEW, 25), ("blog", 1)]);
        let parents: Vec<_> = next.spec.parent_refs.iter().map(|parent| parent.name.as_str()).collect();
        assert_eq!(parents, ["inner", "public"], "the created Gateway is replaced by the named one");
    }
}
