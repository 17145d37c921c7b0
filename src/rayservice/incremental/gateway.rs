//! Traffic routing of an incremental upgrade: a Gateway, an HTTPRoute with the share of each
//! cluster, and a backend Service per cluster (KubeRay 1.7
//! `ray-operator/controllers/ray/rayservice_controller.go`, `createGateway`, `createHTTPRoute`).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube_core::ResourceExt;
use serde_json::{Value, json};

use super::http_route::{self, ServiceBackends};
use super::state_machine::Percent;
use crate::ray_clusters::owner_reference;
use sluice_api::condition;
use sluice_api::gateway_api::{
    ACCEPTED, Gateway, GatewayClass, GatewaySpec, HTTPRoute, PROGRAMMED, ParentRef, RESOLVED_REFS,
};
use sluice_api::ray::routing_annotations::{self, GATEWAY_ANNOTATION};
use sluice_api::ray::{RayCluster, RayService, names};
use sluice_raycluster::services::serve_ports;
use sluice_raycluster::{names as naming, pod_builder};

/// Name of the Gateway listener.
const LISTENER_NAME: &str = "http";
/// Port of the Gateway listener.
const LISTENER_PORT: u16 = 80;
/// Label of an EndpointSlice that names its Service.
const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

/// Observed routing objects of a RayService.
#[derive(Debug, Default)]
pub struct TrafficRouting<'a> {
    /// Gateway named by [`gateway_namespaced_name`]; None if it does not exist.
    pub gateway: Option<&'a Gateway>,
    /// GatewayClass that the RayService names; None if it does not exist.
    pub gateway_class: Option<&'a GatewayClass>,
    /// Route named [`http_route::route_name`]; None if it does not exist.
    pub route: Option<&'a HTTPRoute>,
    /// Other routes among [`http_route::route_names`]: routes used previously, which may still
    /// reference clusters.
    pub previous_routes: Vec<&'a HTTPRoute>,
    /// Identifies the backends of a route that belong to the RayService.
    pub backends: ServiceBackends,
    /// Services with the name of a cluster's backend Service.
    pub backend_services: Vec<&'a Service>,
    /// EndpointSlices of those Services.
    pub backend_endpoint_slices: Vec<&'a EndpointSlice>,
}

/// Returns the name of the Gateway that is created for a RayService.
pub fn default_gateway_name(service: &RayService) -> String {
    format!("{}-gateway", service.name_any())
}

/// Returns namespace and name of the RayService's Gateway: the one named by its annotation, or the
/// one created for it. Unused if an annotation names a route.
pub fn gateway_namespaced_name(service: &RayService) -> (String, String) {
    let here = service.namespace().unwrap_or_default();
    match routing_annotations::gateway_ref(&service.metadata) {
        Ok(Some(place)) => (place.namespace.map_or(here, str::to_owned), place.name.to_owned()),
        Ok(None) | Err(_) => (here, default_gateway_name(service)),
    }
}

/// Returns true if a Gateway is created for the RayService: its annotations name neither a Gateway
/// nor a route.
pub fn manages_gateway(service: &RayService) -> bool {
    let is_named = matches!(routing_annotations::gateway_ref(&service.metadata), Ok(Some(_)));
    !is_named && http_route::user_provided(service).is_none()
}

/// Returns the GatewayClass name in the spec; None without upgrade options.
pub fn gateway_class_name(service: &RayService) -> Option<&str> {
    let options = service.spec.upgrade_strategy.as_ref()?.cluster_upgrade_options.as_ref()?;
    Some(options.gateway_class_name.as_str())
}

impl<'a> TrafficRouting<'a> {
    /// Returns the backend Service of this cluster; None if it does not exist or is not owned by
    /// the cluster.
    pub fn backend_service(&self, cluster: &RayCluster) -> Option<&'a Service> {
        self.service_with_backend_name(cluster).filter(|service| is_owned_by_cluster(service, cluster))
    }

    /// Returns the Service that has the name of this cluster's backend Service but is not owned by
    /// the cluster; None if there is none.
    pub fn conflicting_service(&self, cluster: &RayCluster) -> Option<&'a Service> {
        self.service_with_backend_name(cluster).filter(|service| !is_owned_by_cluster(service, cluster))
    }

    fn service_with_backend_name(&self, cluster: &RayCluster) -> Option<&'a Service> {
        let name = naming::serve_service(cluster);
        self.backend_services.iter().copied().find(|service| service.name_any() == name)
    }

    /// Returns true if the backend Service of this cluster has a ready endpoint.
    pub fn has_ready_endpoints(&self, cluster: &RayCluster) -> bool {
        let Some(name) = self.backend_service(cluster).map(ResourceExt::name_any) else { return false };
        let mut slices =
            self.backend_endpoint_slices.iter().filter(|slice| slice.labels().get(SERVICE_NAME_LABEL) == Some(&name));
        slices.any(|slice| {
            let mut endpoints = slice.endpoints.iter().flatten();
            endpoints.any(|endpoint| endpoint.conditions.as_ref().and_then(|state| state.ready) == Some(true))
        })
    }

    /// Returns the share of the traffic that the route sends to this cluster, in percent; None if
    /// it sends none to any existing cluster.
    pub fn traffic_share(&self, cluster: &RayCluster) -> Option<Percent> {
        self.backends.traffic_share(self.route?, cluster)
    }

    /// Returns true if a route references the backend Service of a cluster of this name: a new
    /// cluster with that name would receive the traffic meant for a deleted one.
    pub fn references_cluster(&self, cluster: &str) -> bool {
        let routes = self.route.into_iter().chain(self.previous_routes.iter().copied());
        routes.flat_map(http_route::backend_refs).any(|backend| backend.name == format!("{cluster}-serve-svc"))
    }

    /// Returns why traffic cannot be split between these clusters: a routing object is missing, or
    /// the Gateway controller has not accepted it; None if it can.
    pub fn routing_obstacle(
        &self,
        service: &RayService,
        class: Option<&str>,
        clusters: [&RayCluster; 2],
    ) -> Option<String> {
        let conflict = clusters.into_iter().find_map(|cluster| {
            let (name, cluster) = (self.conflicting_service(cluster)?.name_any(), cluster.name_any());
            Some(format!(
                "Service {name}, needed to route requests to RayCluster {cluster}, already exists and is not owned by it"
            ))
        });
        conflict.or_else(|| self.route_obstacle(service, class))
    }

    fn route_obstacle(&self, service: &RayService, class: Option<&str>) -> Option<String> {
        let gateway_obstacle = || self.gateway_obstacle(service, class);
        let found = if http_route::user_provided(service).is_some() { None } else { gateway_obstacle() };
        found.or_else(|| match self.route {
            None => Some(http_route::missing_route_message(service)),
            Some(route) => self.backends.split_obstacle(route).or_else(|| unaccepted_reason(route)),
        })
    }

    fn gateway_obstacle(&self, service: &RayService, class: Option<&str>) -> Option<String> {
        let Some(gateway) = self.gateway else { return Some(self.missing_gateway_message(service, class)) };
        let name = format!("Gateway {}", gateway.name_any());
        let conditions = gateway.conditions();
        let unmet = unmet_condition(&name, conditions, &[ACCEPTED, PROGRAMMED], gateway.metadata.generation)?;
        let lacks_class = self.gateway_class.is_none() && manages_gateway(service);
        Some(if lacks_class { self.missing_gateway_message(service, class) } else { unmet })
    }

    fn missing_gateway_message(&self, service: &RayService, class: Option<&str>) -> String {
        let (namespace, name) = gateway_namespaced_name(service);
        match (class, self.gateway_class) {
            _ if !manages_gateway(service) => {
                format!("Gateway {namespace}/{name} does not exist (annotation {GATEWAY_ANNOTATION})")
            }
            (Some(class), None) => format!(
                "GatewayClass {class} does not exist (spec.upgradeStrategy.clusterUpgradeOptions.gatewayClassName)"
            ),
            _ => format!("Gateway {name} does not exist yet"),
        }
    }
}

fn is_owned_by_cluster(service: &Service, cluster: &RayCluster) -> bool {
    service.owner_references().iter().any(|owner| Some(&owner.uid) == cluster.metadata.uid.as_ref())
}

/// Returns why a route is not in effect at all of its parent Gateways; None if it is.
fn unaccepted_reason(route: &HTTPRoute) -> Option<String> {
    let name = format!("HTTPRoute {}", route.name_any());
    let here = route.namespace();
    let parent_key = |parent: &ParentRef| {
        let section = parent.other_fields.get("sectionName").cloned();
        (parent.namespace.clone().or_else(|| here.clone()), parent.name.clone(), section)
    };
    if route.spec.parent_refs.is_empty() {
        return Some(format!("{name} has no parentRefs, so it is attached to no Gateway"));
    }
    let unmet = |parent: &ParentRef| {
        let statuses = route.status.iter().flat_map(|status| &status.parents);
        let mut matching = statuses.filter(|reported| parent_key(&reported.parent_ref) == parent_key(parent));
        let conditions = matching.next().map(|reported| reported.conditions.as_slice()).unwrap_or_default();
        unmet_condition(&name, conditions, &[ACCEPTED, RESOLVED_REFS], route.metadata.generation)
            .map(|unmet| format!("{unmet}, for Gateway {}", parent.name))
    };
    route.spec.parent_refs.iter().find_map(unmet)
}

/// Returns the first of the wanted conditions that is not True for the current generation; None if
/// all are.
fn unmet_condition(name: &str, conditions: &[Condition], wanted: &[&str], generation: Option<i64>) -> Option<String> {
    wanted.iter().find_map(|kind| {
        let Some(found) = condition::get(conditions, kind) else {
            return Some(format!("{name} has no {kind} condition yet"));
        };
        if found.status != "True" {
            return Some(format!("{name} is not {kind} ({}: {})", found.reason, found.message));
        }
        let is_outdated = found.observed_generation.zip(generation).is_some_and(|(seen, now)| seen < now);
        is_outdated.then(|| format!("condition {kind} of {name} does not reflect its latest generation yet"))
    })
}

/// Returns the desired Gateway of a RayService, based on the current one. Listeners and fields
/// added by others are kept.
pub fn desired_gateway(service: &RayService, class: &str, current: Option<&Gateway>) -> Gateway {
    let listener = json!({"name": LISTENER_NAME, "protocol": "HTTP", "port": LISTENER_PORT});
    let Some(current) = current else {
        let spec = GatewaySpec { listeners: vec![listener], ..GatewaySpec::default() };
        let mut gateway = Gateway::new(&default_gateway_name(service), spec);
        class.clone_into(&mut gateway.spec.gateway_class_name);
        gateway.metadata = owned_metadata(service, gateway.metadata);
        return gateway;
    };
    let mut gateway = current.clone();
    class.clone_into(&mut gateway.spec.gateway_class_name);
    let is_ours = |other: &Value| other.get("name").and_then(Value::as_str) == Some(LISTENER_NAME);
    if !gateway.spec.listeners.iter().any(is_ours) {
        gateway.spec.listeners.push(listener);
    }
    gateway
}

/// Returns the desired backend Service of a cluster, owned by that cluster.
pub fn desired_backend_service(cluster: &RayCluster) -> Service {
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
            owner_references: Some(vec![pod_builder::owner_reference(cluster)]),
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

/// Returns metadata with the namespace of the RayService and an owner reference to it.
pub(super) fn owned_metadata(service: &RayService, metadata: ObjectMeta) -> ObjectMeta {
    ObjectMeta { namespace: service.namespace(), owner_references: Some(vec![owner_reference(service)]), ..metadata }
}
