//! Routes: which share of the requests each cluster of a service gets. In a route of others only the backends that are ours are
//! touched, wherever it names them, and what all of them get together stays what it was.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Service, ServicePort};
use kube_core::ResourceExt;
use serde_json::json;

use super::machine::{Percent, WHOLE};
use super::ways::{self, owned};
use sluice_api::gateway::{BackendRef, HTTPRoute, HTTPRouteSpec, ParentRef, RouteRule};
use sluice_api::ray::way_choices::{self, ROUTE_ANNOTATION};
use sluice_api::ray::{RayCluster, RayService};
use sluice_raycluster::names as naming;
use crate::children::owner;
use crate::services::serve_service_name;

/// What the name of the Service of a cluster ends in.
const BACKEND: &str = "-serve-svc";
/// How many characters the name of a cluster has beyond that of its service and a dash.
const SUFFIX_LENGTH: usize = 5;

/// The name of the route of a service: the one that its owner names, or the one that is made.
pub fn route_name(service: &RayService) -> String {
    adopted(service).map_or_else(|| made_route_name(service), str::to_owned)
}

/// The name of the route that is made for a service.
pub fn made_route_name(service: &RayService) -> String {
    format!("{}-httproute", service.name_any())
}

/// The names of the routes that lead to a service, or did and have to be seen to.
pub fn route_names(service: &RayService) -> BTreeSet<String> {
    let noted = way_choices::adopted_route(&service.metadata).map(str::to_owned);
    [route_name(service), made_route_name(service)].into_iter().chain(noted).collect()
}

/// The route of others that a service is to be reached by, if its owner names one.
pub(super) fn adopted(service: &RayService) -> Option<&str> {
    way_choices::route(&service.metadata).ok().flatten()
}

/// Which backends of a route belong to a service.
#[derive(Debug, Default)]
pub struct Own {
    namespace: String,
    service: String,
    stable: String,
    clusters: BTreeSet<String>,
    of_others: BTreeSet<String>,
}

impl Own {
    /// Of a service with these clusters. `of_others` are Services in its namespace that may be called like one of theirs, and aren't.
    pub fn of(service: &RayService, clusters: &[&RayCluster], of_others: BTreeSet<String>) -> Self {
        Self {
            namespace: service.namespace().unwrap_or_default(),
            service: service.name_any(),
            stable: serve_service_name(service),
            clusters: clusters.iter().map(|cluster| naming::serve_service(cluster)).collect(),
            of_others,
        }
    }

    /// Whether a backend is the serve Service, or the Service of a cluster of this service, be that there or gone.
    fn includes(&self, backend: &BackendRef) -> bool {
        let is_service = backend.kind.as_deref().is_none_or(|kind| kind == "Service")
            && backend.others.get("group").is_none_or(|group| group == "");
        let is_here = backend.namespace.as_deref().is_none_or(|namespace| namespace == self.namespace);
        let is_called_so =
            self.clusters.contains(&backend.name) || is_called_like_a_cluster(&self.service, &backend.name);
        let of_cluster = is_called_so && !self.of_others.contains(&backend.name);
        is_service && is_here && (backend.name == self.stable || of_cluster)
    }

    fn leads_to_cluster(&self, backend: &BackendRef) -> bool {
        self.includes(backend) && backend.name != self.stable
    }

    /// Whether a route sends requests of this service straight to clusters.
    pub(super) fn leads(&self, route: &HTTPRoute) -> bool {
        backends(route).any(|backend| self.leads_to_cluster(backend))
    }

    /// The share that a route gives to a cluster that is there, in percent; `None` if it gives none to any of them.
    pub(super) fn share(&self, route: &HTTPRoute, cluster: &RayCluster) -> Option<Percent> {
        let name = naming::serve_service(cluster);
        let is_there = |backend: &&BackendRef| self.includes(backend) && self.clusters.contains(&backend.name);
        let rule = route.spec.rules.iter().find(|rule| rule.backend_refs.iter().any(|backend| is_there(&backend)))?;
        let there = || rule.backend_refs.iter().filter(is_there);
        let all: i64 = there().map(weight).sum();
        let own: i64 = there().filter(|backend| backend.name == name).map(weight).sum();
        Percent::try_from((own * i64::from(WHOLE)).checked_div(all)?).ok()
    }

    /// Why a route can't send shares to clusters.
    pub(super) fn obstacle(&self, route: &HTTPRoute) -> Option<String> {
        let name = route.name_any();
        if !backends(route).any(|backend| self.includes(backend)) {
            return Some(format!(
                "HTTPRoute {name} sends nothing to Service {}: one of its rules has to have it in backendRefs",
                self.stable
            ));
        }
        let index = route.spec.rules.iter().position(|rule| !self.can_divide(rule))?;
        Some(format!(
            "HTTPRoute {name} has other backends beside this service in rule {}: what it gives to the service has to be a multiple of 100 \
             there to be divided, and is {}",
            index + 1,
            self.total(&route.spec.rules[index].backend_refs)
        ))
    }

    fn can_divide(&self, rule: &RouteRule) -> bool {
        !rule.backend_refs.iter().any(|backend| self.includes(backend))
            || self.total(&rule.backend_refs) % i64::from(WHOLE) == 0
    }

    /// What the backends of a rule that are ours get together: their part of what is sent to others as well, or else 100.
    fn total(&self, backends: &[BackendRef]) -> i64 {
        let (own, others): (Vec<&BackendRef>, Vec<&BackendRef>) =
            backends.iter().partition(|backend| self.includes(backend));
        if others.is_empty() { i64::from(WHOLE) } else { own.into_iter().map(weight).sum() }
    }

    /// A route that sends what it sends to this service to these backends, each with its share in percent.
    pub(super) fn divide(&self, route: &HTTPRoute, shares: &[BackendRef]) -> HTTPRoute {
        let mut route = route.clone();
        for rule in &mut route.spec.rules {
            let Some(first) = rule.backend_refs.iter().position(|backend| self.includes(backend)) else { continue };
            let total = self.total(&rule.backend_refs);
            let before = std::mem::take(&mut rule.backend_refs);
            let own = shares.iter().map(|share| {
                // What its owner says of the backend, like its filters, holds for each cluster.
                let same = before.iter().find(|there| there.name == share.name).unwrap_or(&before[first]);
                let part = weight(share) * total / i64::from(WHOLE);
                BackendRef {
                    name: share.name.clone(),
                    namespace: share.namespace.clone(),
                    port: share.port,
                    weight: i32::try_from(part).ok(),
                    ..same.clone()
                }
            });
            let later = before[first..].iter().filter(|backend| !self.includes(backend)).cloned();
            rule.backend_refs = before[..first].iter().cloned().chain(own).chain(later).collect();
        }
        route
    }
}

/// Whether a Service is called like that of a cluster of this service.
fn is_called_like_a_cluster(service: &str, name: &str) -> bool {
    let cluster = name.strip_suffix(BACKEND).and_then(|cluster| cluster.strip_prefix(service));
    let suffix = cluster.and_then(|cluster| cluster.strip_prefix('-'));
    suffix.is_some_and(|suffix| {
        suffix.len() == SUFFIX_LENGTH && suffix.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
    })
}

/// All that a route sends requests to.
pub fn backends(route: &HTTPRoute) -> impl Iterator<Item = &BackendRef> {
    route.spec.rules.iter().flat_map(|rule| &rule.backend_refs)
}

fn weight(backend: &BackendRef) -> i64 {
    i64::from(backend.weight.unwrap_or(1).max(0))
}

/// Whether a route was made for this service.
pub(super) fn is_made_for(service: &RayService, route: &HTTPRoute) -> bool {
    route.owner_references().iter().any(|other| other.uid == owner(service).uid)
}

/// The route that is made for a service, given what there is of it: all requests that no other rule takes, to these backends.
pub(super) fn made(service: &RayService, own: &Own, shares: &[BackendRef], there: Option<&HTTPRoute>) -> HTTPRoute {
    let mut route = there.cloned().unwrap_or_else(|| new(service));
    lead_from_gateway(service, &mut route);
    if !backends(&route).any(|backend| own.includes(backend)) {
        match route.spec.rules.first_mut() {
            Some(rule) => rule.backend_refs = shares.to_vec(),
            None => route.spec.rules.push(RouteRule { backend_refs: shares.to_vec(), ..RouteRule::default() }),
        }
    }
    own.divide(&route, shares)
}

fn new(service: &RayService) -> HTTPRoute {
    let everything = json!({"matches": [{"path": {"type": "PathPrefix", "value": "/"}}]});
    let others = everything.as_object().cloned().unwrap_or_default();
    let rule = RouteRule { others, ..RouteRule::default() };
    let spec = HTTPRouteSpec { rules: vec![rule], ..HTTPRouteSpec::default() };
    let mut route = HTTPRoute::new(&made_route_name(service), spec);
    route.metadata = owned(service, route.metadata);
    route
}

/// Has a route take what comes in by the Gateway of the service, and not what comes in by one that was made before the owner named one.
fn lead_from_gateway(service: &RayService, route: &mut HTTPRoute) {
    let (namespace, name) = ways::gateway_place(service);
    let here = route.namespace().unwrap_or_default();
    let leads = |parent: &ParentRef, name: &str, namespace: &str| {
        parent.name == name && parent.namespace.as_deref().unwrap_or(&here) == namespace
    };
    let parents = &mut route.spec.parent_refs;
    if !ways::makes_gateway(service) {
        let made = ways::made_gateway_name(service);
        parents.retain(|parent| !leads(parent, &made, &here));
    }
    if !parents.iter().any(|parent| leads(parent, &name, &namespace)) {
        parents.push(ParentRef { name, namespace: Some(namespace), ..ParentRef::default() });
    }
}

/// Why there is no route.
pub(super) fn missing(service: &RayService) -> String {
    let name = route_name(service);
    match adopted(service) {
        Some(_) => format!("there is no HTTPRoute {name}, which annotation {ROUTE_ANNOTATION} names"),
        None => format!("HTTPRoute {name} is not there yet"),
    }
}

/// A Service that gets this share of the traffic, in percent.
pub(super) fn backend_ref(backend: &Service, share: Percent) -> BackendRef {
    let ports = backend.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    let is_usual = |port: &&ServicePort| port.name.as_deref() == Some("serve");
    let port = ports.clone().find(is_usual).or_else(|| ports.clone().next());
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

    fn own() -> Own {
        let (old, new) = (cluster("chat-aaaaa"), cluster("chat-bbbbb"));
        Own::of(&service(), &[&old, &new], BTreeSet::from(["chat-other-serve-svc".to_owned()]))
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
        backends(route).map(|backend| (backend.name.as_str(), backend.weight.unwrap_or(1))).collect()
    }

    const OLD: &str = "chat-aaaaa-serve-svc";
    const NEW: &str = "chat-bbbbb-serve-svc";

    #[rstest]
    #[case::the_serve_service(json!([rule(&[("chat-serve-svc", 1)])]), &[(OLD, 75), (NEW, 25)])]
    #[case::of_a_part(
        json!([rule(&[("blog", 1), ("chat-serve-svc", 300), ("docs", 2)])]),
        &[("blog", 1), (OLD, 225), (NEW, 75), ("docs", 2)])]
    #[case::what_was_divided_before(json!([rule(&[(OLD, 100), (NEW, 0)])]), &[(OLD, 75), (NEW, 25)])]
    #[case::one_that_is_gone(json!([rule(&[("chat-ccccc-serve-svc", 50), (OLD, 50)])]), &[(OLD, 75), (NEW, 25)])]
    #[case::in_every_rule(
        json!([rule(&[("chat-serve-svc", 1)]), rule(&[("blog", 1)]), rule(&[("chat-serve-svc", 1)])]),
        &[(OLD, 75), (NEW, 25), ("blog", 1), (OLD, 75), (NEW, 25)])]
    #[case::what_belongs_to_others(json!([rule(&[("chat-other-serve-svc", 1)])]), &[("chat-other-serve-svc", 1)])]
    fn only_what_is_ours_is_divided(#[case] rules: Value, #[case] expected: &[(&str, i32)]) {
        let divided = own().divide(&route(rules), &shares(75, 25));
        assert_eq!(names(&divided), expected);
        assert_eq!(divided.spec.others["hostnames"], json!(["a.example"]));
    }

    #[test]
    fn what_is_said_of_the_serve_service_holds_for_each_cluster() {
        let filters = json!([{"type": "RequestHeaderModifier"}]);
        let rules =
            json!([{"backendRefs": [{"name": "chat-serve-svc", "filters": filters}], "timeouts": {"request": "9s"}}]);
        let divided = own().divide(&route(rules), &shares(75, 25));
        assert!(backends(&divided).all(|backend| backend.others["filters"] == filters && backend.port == Some(8000)));
        assert_eq!(divided.spec.rules[0].others["timeouts"], json!({"request": "9s"}));
    }

    #[rstest]
    #[case::divided(json!([rule(&[(OLD, 225), (NEW, 75), ("blog", 9)])]), Some(25))]
    #[case::nothing_yet(json!([rule(&[(OLD, 100)])]), Some(0))]
    #[case::only_the_serve_service(json!([rule(&[("chat-serve-svc", 1)])]), None)]
    #[case::only_one_that_is_gone(json!([rule(&[("chat-ccccc-serve-svc", 100)])]), None)]
    #[case::nothing_at_all(json!([rule(&[(OLD, 0), (NEW, 0)])]), None)]
    #[case::in_another_namespace(json!([{"backendRefs": [{"name": NEW, "namespace": "other"}]}]), None)]
    #[case::of_another_kind(json!([{"backendRefs": [{"name": NEW, "kind": "Function"}]}]), None)]
    fn a_share_is_that_of_the_clusters_that_are_there(#[case] rules: Value, #[case] expected: Option<Percent>) {
        assert_eq!(own().share(&route(rules), &cluster("chat-bbbbb")), expected);
    }

    #[rstest]
    #[case::fine(json!([rule(&[("chat-serve-svc", 1)])]), None)]
    #[case::a_part(json!([rule(&[("chat-serve-svc", 200), ("blog", 1)])]), None)]
    #[case::nothing_of_ours(
        json!([rule(&[("blog", 1)])]),
        Some("HTTPRoute shop sends nothing to Service chat-serve-svc: one of its rules has to have it in backendRefs"))]
    #[case::too_coarse(
        json!([rule(&[("blog", 1)]), rule(&[("chat-serve-svc", 9), ("blog", 1)])]),
        Some("HTTPRoute shop has other backends beside this service in rule 2: what it gives to the service has to be a multiple of 100 \
              there to be divided, and is 9"))]
    fn what_can_not_be_divided_is_told(#[case] rules: Value, #[case] expected: Option<&str>) {
        assert_eq!(own().obstacle(&route(rules)).as_deref(), expected);
    }

    #[test]
    fn the_route_that_is_made_keeps_what_others_added() {
        let mut there = made(&service(), &own(), &shares(100, 0)[..1], None);
        assert_eq!(names(&there), [(OLD, 100)]);
        there.spec.rules.push(serde_json::from_value(rule(&[("blog", 1)])).expect("a rule"));
        there.spec.parent_refs.push(ParentRef { name: "inner".into(), ..ParentRef::default() });

        let mut service = service();
        service.metadata.annotations = Some([("sluice.dev/gateway".to_owned(), "infra/public".to_owned())].into());
        let next = made(&service, &own(), &shares(75, 25), Some(&there));

        assert_eq!(names(&next), [(OLD, 75), (NEW, 25), ("blog", 1)]);
        let parents: Vec<_> = next.spec.parent_refs.iter().map(|parent| parent.name.as_str()).collect();
        assert_eq!(parents, ["inner", "public"], "the Gateway that was made is left for the one that is named");
    }
}
