//! The ways in by which requests come to the clusters of a service: a Gateway, a route with the share of each cluster, and a
//! Service for each cluster (KubeRay 1.7 `ray-operator/controllers/ray/rayservice_controller.go`, `createGateway`,
//! `createHTTPRoute`).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::machine::{Percent, WHOLE};
use crate::api::condition;
use crate::api::gateway::{
    ACCEPTED, BackendRef, Gateway, GatewayClass, GatewaySpec, HTTPRoute, HTTPRouteSpec, PROGRAMMED, ParentRef,
    RESOLVED_REFS, RouteRule,
};
use crate::api::ray::{RayCluster, RayService, names};
use crate::raycluster::services::serve_ports;
use crate::raycluster::{build, names as naming};
use crate::rayservice::children::owner;

/// The listener of a Gateway that requests come in by.
const LISTENER: &str = "http";
/// Its port.
const LISTENER_PORT: u16 = 80;
/// The label of an EndpointSlice that names its Service.
const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

/// What there is of the ways in.
#[derive(Debug, Default)]
pub struct Ways<'a> {
    /// The Gateway called [`gateway_name`].
    pub gateway: Option<&'a Gateway>,
    /// The class that the service names.
    pub gateway_class: Option<&'a GatewayClass>,
    /// The route called [`route_name`].
    pub route: Option<&'a HTTPRoute>,
    /// The Services that belong to its clusters.
    pub services: Vec<&'a Service>,
    /// The endpoints of those Services.
    pub endpoint_slices: Vec<&'a EndpointSlice>,
}

/// The name of the Gateway of a service.
pub fn gateway_name(service: &RayService) -> String {
    format!("{}-gateway", service.name_any())
}

/// The name of the route of a service.
pub fn route_name(service: &RayService) -> String {
    format!("{}-httproute", service.name_any())
}

/// The class of Gateway that a service names.
pub fn class_name(service: &RayService) -> Option<&str> {
    let options = service.spec.upgrade_strategy.as_ref()?.cluster_upgrade_options.as_ref()?;
    Some(options.gateway_class_name.as_str())
}

impl<'a> Ways<'a> {
    /// The Service that leads to this cluster alone.
    pub fn backend(&self, cluster: &RayCluster) -> Option<&'a Service> {
        let name = naming::serve_service(cluster);
        self.services.iter().copied().find(|service| service.name_any() == name)
    }

    /// Whether a pod of this cluster gets requests that are sent to its Service.
    pub fn has_endpoints(&self, cluster: &RayCluster) -> bool {
        let name = naming::serve_service(cluster);
        let mut slices =
            self.endpoint_slices.iter().filter(|slice| slice.labels().get(SERVICE_NAME_LABEL) == Some(&name));
        slices.any(|slice| {
            let mut endpoints = slice.endpoints.iter().flatten();
            endpoints.any(|endpoint| endpoint.conditions.as_ref().and_then(|state| state.ready) == Some(true))
        })
    }

    /// The share of the traffic that the route sends to this cluster, in percent; `None` if it doesn't know it.
    pub fn share(&self, cluster: &RayCluster) -> Option<Percent> {
        let name = naming::serve_service(cluster);
        let rules = self.route?.spec.rules.iter();
        let backends =
            rules.map(|rule| &rule.backend_refs).find(|refs| refs.iter().any(|backend| backend.name == name))?;
        let weight = |backend: &BackendRef| i64::from(backend.weight.unwrap_or(1).max(0));
        let all: i64 = backends.iter().map(weight).sum();
        let own: i64 = backends.iter().filter(|backend| backend.name == name).map(weight).sum();
        Percent::try_from((own * i64::from(WHOLE)).checked_div(all).unwrap_or(0)).ok()
    }

    /// Why traffic can't be moved: what of the ways in isn't there, or not taken yet by who lets requests in.
    pub fn obstacle(&self, service: &RayService, class: Option<&str>) -> Option<String> {
        let Some(gateway) = self.gateway else { return Some(self.without_gateway(service, class)) };
        let name = format!("Gateway {}", gateway.name_any());
        let conditions = gateway.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        let wanted = [ACCEPTED, PROGRAMMED];
        if let Some(trouble) = trouble(&name, conditions, &wanted, gateway.metadata.generation) {
            return Some(if self.gateway_class.is_none() { self.without_gateway(service, class) } else { trouble });
        }
        let Some(route) = self.route else {
            return Some(format!("HTTPRoute {} is not there yet", route_name(service)));
        };
        let name = format!("HTTPRoute {}", route.name_any());
        let parents = route.status.iter().flat_map(|status| &status.parents);
        let mut of_gateway = parents.filter(|parent| parent.parent_ref.name == gateway.name_any());
        let conditions = of_gateway.next().map(|parent| parent.conditions.as_slice()).unwrap_or_default();
        trouble(&name, conditions, &[ACCEPTED, RESOLVED_REFS], route.metadata.generation)
    }

    fn without_gateway(&self, service: &RayService, class: Option<&str>) -> String {
        match (class, self.gateway_class) {
            (Some(class), None) => format!(
                "there is no GatewayClass {class}, which spec.upgradeStrategy.clusterUpgradeOptions.gatewayClassName names"
            ),
            _ => format!("Gateway {} is not there yet", gateway_name(service)),
        }
    }
}

/// Which of the conditions an object lacks, as it is now.
fn trouble(name: &str, conditions: &[Condition], wanted: &[&str], generation: Option<i64>) -> Option<String> {
    wanted.iter().find_map(|kind| {
        let Some(found) = condition::get(conditions, kind) else {
            return Some(format!("nobody says of {name} whether it is {kind}"));
        };
        if found.status != "True" {
            return Some(format!("{name} is not {kind} ({}: {})", found.reason, found.message));
        }
        let is_late = found.observed_generation.zip(generation).is_some_and(|(seen, now)| seen < now);
        is_late.then(|| format!("{name} is {kind} as it was before its last change"))
    })
}

/// The Gateway of a service as it is to be, given what there is. What others have added to it stays.
pub fn gateway(service: &RayService, class: &str, there: Option<&Gateway>) -> Gateway {
    let listener = json!({"name": LISTENER, "protocol": "HTTP", "port": LISTENER_PORT});
    let Some(there) = there else {
        let spec = GatewaySpec { listeners: vec![listener], ..GatewaySpec::default() };
        let mut gateway = Gateway::new(&gateway_name(service), spec);
        class.clone_into(&mut gateway.spec.gateway_class_name);
        gateway.metadata = owned(service, gateway.metadata);
        return gateway;
    };
    let mut gateway = there.clone();
    class.clone_into(&mut gateway.spec.gateway_class_name);
    let is_ours = |other: &Value| other.get("name").and_then(Value::as_str) == Some(LISTENER);
    if !gateway.spec.listeners.iter().any(is_ours) {
        gateway.spec.listeners.push(listener);
    }
    gateway
}

/// The route of a service as it is to be, given what there is: all requests, to these Services in these shares.
pub fn route(service: &RayService, backends: Vec<BackendRef>, there: Option<&HTTPRoute>) -> HTTPRoute {
    let Some(there) = there else {
        let everything = json!({"matches": [{"path": {"type": "PathPrefix", "value": "/"}}]});
        let others = everything.as_object().cloned().unwrap_or_default();
        let parent = ParentRef { name: gateway_name(service), namespace: service.namespace(), ..ParentRef::default() };
        let rule = RouteRule { backend_refs: backends, others };
        let spec = HTTPRouteSpec { parent_refs: vec![parent], rules: vec![rule], ..HTTPRouteSpec::default() };
        let mut route = HTTPRoute::new(&route_name(service), spec);
        route.metadata = owned(service, route.metadata);
        return route;
    };
    let mut route = there.clone();
    let rule = match route.spec.rules.first_mut() {
        Some(rule) => rule,
        None => {
            route.spec.rules.push(RouteRule::default());
            &mut route.spec.rules[0]
        }
    };
    let before = std::mem::take(&mut rule.backend_refs);
    let kept = backends.into_iter().map(|backend| {
        let same = before.iter().find(|there| there.name == backend.name).cloned().unwrap_or_default();
        BackendRef {
            name: backend.name,
            namespace: backend.namespace,
            port: backend.port,
            weight: backend.weight,
            ..same
        }
    });
    rule.backend_refs = kept.collect();
    route
}

/// A Service that gets this share of the traffic, in percent.
pub fn backend_ref(backend: &Service, share: Percent) -> BackendRef {
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

/// The Service that leads to one cluster alone, for as long as that is there.
pub fn backend(cluster: &RayCluster) -> Service {
    let ports = serve_ports(cluster).map(|(name, number)| ServicePort {
        name: Some(name),
        port: number,
        target_port: Some(IntOrString::Int(number)),
        ..ServicePort::default()
    });
    let selector =
        [(names::CLUSTER_LABEL.to_owned(), cluster.name_any()), (names::SERVE_LABEL.to_owned(), "true".to_owned())];
    let labels = [
        (names::CLUSTER_LABEL.to_owned(), cluster.name_any()),
        (names::SERVE_LABEL.to_owned(), format!("{}-serve", cluster.name_any())),
    ];
    Service {
        metadata: ObjectMeta {
            name: Some(naming::serve_service(cluster)),
            namespace: cluster.namespace(),
            labels: Some(BTreeMap::from(labels)),
            owner_references: Some(vec![build::owner(cluster)]),
            ..ObjectMeta::default()
        },
        spec: Some(ServiceSpec {
            selector: Some(BTreeMap::from(selector)),
            ports: Some(ports.collect()),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

fn owned(service: &RayService, metadata: ObjectMeta) -> ObjectMeta {
    ObjectMeta { namespace: service.namespace(), owner_references: Some(vec![owner(service)]), ..metadata }
}
