//! The ways in by which requests come to the clusters of a service: a Gateway, a route with the share of each cluster, and a
//! Service for each cluster (KubeRay 1.7 `ray-operator/controllers/ray/rayservice_controller.go`, `createGateway`,
//! `createHTTPRoute`).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube_core::ResourceExt;
use serde_json::{Value, json};

use super::machine::Percent;
use super::routes::{self, Own};
use sluice_api::condition;
use sluice_api::gateway::{
    ACCEPTED, Gateway, GatewayClass, GatewaySpec, HTTPRoute, PROGRAMMED, ParentRef, RESOLVED_REFS,
};
use sluice_api::ray::way_choices::{self, GATEWAY_ANNOTATION};
use sluice_api::ray::{RayCluster, RayService, names};
use sluice_raycluster::services::serve_ports;
use sluice_raycluster::{build, names as naming};
use crate::children::owner;

/// The listener of a Gateway that requests come in by.
const LISTENER: &str = "http";
/// Its port.
const LISTENER_PORT: u16 = 80;
/// The label of an EndpointSlice that names its Service.
const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

/// What there is of the ways in.
#[derive(Debug, Default)]
pub struct Ways<'a> {
    /// The Gateway at [`gateway_place`].
    pub gateway: Option<&'a Gateway>,
    /// The class that the service names.
    pub gateway_class: Option<&'a GatewayClass>,
    /// The route called [`routes::route_name`].
    pub route: Option<&'a HTTPRoute>,
    /// Other routes among [`routes::route_names`]: they led to the service, and may still do.
    pub former: Vec<&'a HTTPRoute>,
    /// Which backends of a route are those of the service.
    pub own: Own,
    /// The Services that are called like those of its clusters.
    pub services: Vec<&'a Service>,
    /// The endpoints of those Services.
    pub endpoint_slices: Vec<&'a EndpointSlice>,
}

/// The name of the Gateway that is made for a service.
pub fn made_gateway_name(service: &RayService) -> String {
    format!("{}-gateway", service.name_any())
}

/// Namespace and name of the Gateway that a service is reached by, unless its owner names a route.
pub fn gateway_place(service: &RayService) -> (String, String) {
    let here = service.namespace().unwrap_or_default();
    match way_choices::gateway(&service.metadata) {
        Ok(Some(place)) => (place.namespace.map_or(here, str::to_owned), place.name.to_owned()),
        Ok(None) | Err(_) => (here, made_gateway_name(service)),
    }
}

/// Whether a Gateway is made for a service: its owner names none, and no route either.
pub fn makes_gateway(service: &RayService) -> bool {
    let is_named = matches!(way_choices::gateway(&service.metadata), Ok(Some(_)));
    !is_named && routes::adopted(service).is_none()
}

/// The class of Gateway that a service names.
pub fn class_name(service: &RayService) -> Option<&str> {
    let options = service.spec.upgrade_strategy.as_ref()?.cluster_upgrade_options.as_ref()?;
    Some(options.gateway_class_name.as_str())
}

impl<'a> Ways<'a> {
    /// The Service that leads to this cluster alone.
    pub fn backend(&self, cluster: &RayCluster) -> Option<&'a Service> {
        self.called_like_backend(cluster).filter(|service| belongs_to(service, cluster))
    }

    /// A Service that leads elsewhere and has the name of the one that would lead to this cluster.
    pub fn stranger(&self, cluster: &RayCluster) -> Option<&'a Service> {
        self.called_like_backend(cluster).filter(|service| !belongs_to(service, cluster))
    }

    fn called_like_backend(&self, cluster: &RayCluster) -> Option<&'a Service> {
        let name = naming::serve_service(cluster);
        self.services.iter().copied().find(|service| service.name_any() == name)
    }

    /// Whether a pod of this cluster gets requests that are sent to its Service.
    pub fn has_endpoints(&self, cluster: &RayCluster) -> bool {
        let Some(name) = self.backend(cluster).map(ResourceExt::name_any) else { return false };
        let mut slices =
            self.endpoint_slices.iter().filter(|slice| slice.labels().get(SERVICE_NAME_LABEL) == Some(&name));
        slices.any(|slice| {
            let mut endpoints = slice.endpoints.iter().flatten();
            endpoints.any(|endpoint| endpoint.conditions.as_ref().and_then(|state| state.ready) == Some(true))
        })
    }

    /// The share of the traffic that the route sends to this cluster, in percent; `None` if it sends none to any cluster.
    pub fn share(&self, cluster: &RayCluster) -> Option<Percent> {
        self.own.share(self.route?, cluster)
    }

    /// Whether a route has a backend that is called like the Service of this cluster: what it gives to one that is gone would be
    /// given to another one of that name.
    pub fn mentions(&self, cluster: &str) -> bool {
        let routes = self.route.into_iter().chain(self.former.iter().copied());
        routes.flat_map(routes::backends).any(|backend| backend.name == format!("{cluster}-serve-svc"))
    }

    /// Why traffic can't be moved between these clusters: what of the ways in isn't there, or not taken yet by who lets requests in.
    pub fn obstacle(&self, service: &RayService, class: Option<&str>, clusters: [&RayCluster; 2]) -> Option<String> {
        let strange = clusters.into_iter().find_map(|cluster| {
            let (name, cluster) = (self.stranger(cluster)?.name_any(), cluster.name_any());
            Some(format!(
                "Service {name}, by which requests are to come to RayCluster {cluster}, is there already and isn't owned by it"
            ))
        });
        strange.or_else(|| self.obstacle_on_the_way(service, class))
    }

    fn obstacle_on_the_way(&self, service: &RayService, class: Option<&str>) -> Option<String> {
        let of_gateway = || self.obstacle_at_gateway(service, class);
        let found = if routes::adopted(service).is_some() { None } else { of_gateway() };
        found.or_else(|| match self.route {
            None => Some(routes::missing(service)),
            Some(route) => self.own.obstacle(route).or_else(|| not_taken(route)),
        })
    }

    fn obstacle_at_gateway(&self, service: &RayService, class: Option<&str>) -> Option<String> {
        let Some(gateway) = self.gateway else { return Some(self.without_gateway(service, class)) };
        let name = format!("Gateway {}", gateway.name_any());
        let conditions = gateway.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        let trouble = trouble(&name, conditions, &[ACCEPTED, PROGRAMMED], gateway.metadata.generation)?;
        let lacks_class = self.gateway_class.is_none() && makes_gateway(service);
        Some(if lacks_class { self.without_gateway(service, class) } else { trouble })
    }

    fn without_gateway(&self, service: &RayService, class: Option<&str>) -> String {
        let (namespace, name) = gateway_place(service);
        match (class, self.gateway_class) {
            _ if !makes_gateway(service) => {
                format!("there is no Gateway {namespace}/{name}, which annotation {GATEWAY_ANNOTATION} names")
            }
            (Some(class), None) => format!(
                "there is no GatewayClass {class}, which spec.upgradeStrategy.clusterUpgradeOptions.gatewayClassName names"
            ),
            _ => format!("Gateway {name} is not there yet"),
        }
    }
}

fn belongs_to(service: &Service, cluster: &RayCluster) -> bool {
    service.owner_references().iter().any(|owner| Some(&owner.uid) == cluster.metadata.uid.as_ref())
}

/// Why a route isn't followed as it is by all Gateways that it names.
fn not_taken(route: &HTTPRoute) -> Option<String> {
    let name = format!("HTTPRoute {}", route.name_any());
    let here = route.namespace();
    let place = |parent: &ParentRef| {
        let section = parent.others.get("sectionName").cloned();
        (parent.namespace.clone().or_else(|| here.clone()), parent.name.clone(), section)
    };
    if route.spec.parent_refs.is_empty() {
        return Some(format!("{name} has no parentRefs, so no Gateway follows it"));
    }
    let told = |parent: &ParentRef| {
        let of_parents = route.status.iter().flat_map(|status| &status.parents);
        let mut of_parent = of_parents.filter(|told| place(&told.parent_ref) == place(parent));
        let conditions = of_parent.next().map(|told| told.conditions.as_slice()).unwrap_or_default();
        trouble(&name, conditions, &[ACCEPTED, RESOLVED_REFS], route.metadata.generation)
            .map(|trouble| format!("{trouble}, for Gateway {}", parent.name))
    };
    route.spec.parent_refs.iter().find_map(told)
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
        let mut gateway = Gateway::new(&made_gateway_name(service), spec);
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

/// What is made for a service goes with it.
pub(super) fn owned(service: &RayService, metadata: ObjectMeta) -> ObjectMeta {
    ObjectMeta { namespace: service.namespace(), owner_references: Some(vec![owner(service)]), ..metadata }
}
