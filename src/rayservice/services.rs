//! Serve Service and head Service of a RayService, both of which select one of its RayClusters. A
//! Service keeps its address for life; only its selector changes (KubeRay 1.7
//! `ray-operator/controllers/ray/common/service.go`).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube_core::{Resource, ResourceExt};

use super::clusters::ServiceCluster;
use super::ray_clusters::{namespaced_name, owner_reference};
use super::{ObservedService, ServiceContext};
use sluice_api::ray::{RayCluster, RayService, names};
use sluice_plan::{EventRecord, ObjectRef, Plan, Write};
use sluice_raycluster::services::{self as cluster_services, head_ports, head_selector};

/// Returns the name of the serve Service, which requests are sent to.
pub fn serve_service_name(service: &RayService) -> String {
    let custom = service.spec.serve_service.as_ref().and_then(|custom| custom.pointer("/metadata/name")?.as_str());
    custom.filter(|name| !name.is_empty()).map_or_else(|| format!("{}-serve-svc", service.name_any()), str::to_owned)
}

/// Returns the name of the head Service, which selects the head pod of the serving cluster.
pub fn head_service_name(service: &RayService) -> String {
    format!("{}-head-svc", service.name_any())
}

/// Returns the name of the cluster that the serve Service selects; None if there is no such
/// Service.
pub(super) fn selected_cluster_name<'a>(observed: &ObservedService<'a>) -> Option<&'a str> {
    selected_cluster(find_service(observed, &serve_service_name(observed.service))?)
}

/// Returns the name of the cluster that a Service selects; None if it selects none.
pub fn selected_cluster(service: &Service) -> Option<&str> {
    service.spec.as_ref()?.selector.as_ref()?.get(names::CLUSTER_LABEL).map(String::as_str)
}

fn find_service<'a>(observed: &ObservedService<'a>, name: &str) -> Option<&'a Service> {
    observed.services.iter().copied().find(|service| service.name_any() == name)
}

/// Plans the two Services so that they select `child`.
pub(super) fn plan(context: &ServiceContext<'_>, child: &ServiceCluster<'_>, plan: &mut Plan) {
    let service = context.observed.service;
    // A write in flight may suspend or delete the cluster; requests must not be sent to it then.
    let blockers = || [ObjectRef::of(child.cluster)];
    for wanted in [serve_service(service, child.cluster), head_service(service, child.cluster)] {
        match find_service(context.observed, &wanted.name_any()) {
            None => {
                let text = format!("Created Service {}", namespaced_name(&wanted));
                plan.events.push(
                    EventRecord::normal(service, "CreatedService", text).only_if_written(&ObjectRef::of(&wanted)),
                );
                plan.write(Write::create(&wanted).blocked_while_in_flight(blockers()));
            }
            // It can only be recreated once it is gone.
            Some(current) if current.metadata.deletion_timestamp.is_some() => {}
            Some(current) => {
                let write = Write::patch(current, &merged_service(current, &wanted));
                if write.is_some() {
                    let text = format!("Service {} now selects RayCluster {}", namespaced_name(current), child.name());
                    plan.events.push(
                        EventRecord::normal(service, "UpdatedService", text).only_if_written(&ObjectRef::of(current)),
                    );
                }
                plan.write(write.map(|write| write.blocked_while_in_flight(blockers())));
            }
        }
    }
}

fn serve_service(service: &RayService, child: &RayCluster) -> Service {
    let custom = service.spec.serve_service.clone().and_then(|custom| serde_json::from_value::<Service>(custom).ok());
    let custom = custom.unwrap_or_default();
    let mut spec = custom.spec.unwrap_or_default();
    spec.selector = Some(BTreeMap::from([
        (names::CLUSTER_LABEL.to_owned(), child.name_any()),
        (names::SERVE_LABEL.to_owned(), "true".to_owned()),
    ]));
    spec.ports = Some(serve_ports(service, child));
    let default_type = service.spec.ray_cluster_config.head_group_spec.service_type.clone();
    spec.type_ = spec.type_.or(default_type).filter(|kind| !kind.is_empty());
    let mut labels = custom.metadata.labels.unwrap_or_default();
    labels.extend(origin_labels(service));
    labels.insert(names::SERVE_LABEL.to_owned(), format!("{}-serve", service.name_any()));
    let metadata =
        ObjectMeta { labels: Some(labels), annotations: custom.metadata.annotations, ..ObjectMeta::default() };
    owned_service(service, serve_service_name(service), metadata, spec)
}

/// Returns the ports of the serve Service: those of `spec.serveService`, and those of the head
/// container that are named for Serve.
pub(super) fn serve_ports(service: &RayService, child: &RayCluster) -> Vec<ServicePort> {
    let custom = service.spec.serve_service.as_ref().and_then(|custom| custom.pointer("/spec/ports"));
    let custom = custom.and_then(|ports| serde_json::from_value::<Vec<ServicePort>>(ports.clone()).ok());
    let mut ports = custom.unwrap_or_default();
    for (name, number) in cluster_services::serve_ports(child) {
        if !ports.iter().any(|port| port.name.as_ref() == Some(&name) || port.port == number) {
            ports.push(service_port(name, number));
        }
    }
    ports
}

fn head_service(service: &RayService, child: &RayCluster) -> Service {
    let kind = child.spec.head_group_spec.service_type.clone().filter(|kind| !kind.is_empty());
    // A headless Service is enough for a single head pod, and resolves even if the pod is not
    // ready.
    let is_headless = kind.as_deref().is_none_or(|kind| kind == "ClusterIP");
    let spec = ServiceSpec {
        selector: Some(head_selector(child)),
        ports: Some(head_ports(child).into_iter().map(|(name, number)| head_service_port(name, number)).collect()),
        type_: kind,
        cluster_ip: is_headless.then(|| "None".to_owned()),
        publish_not_ready_addresses: is_headless.then_some(true),
        ..ServiceSpec::default()
    };
    let mut labels = origin_labels(service);
    labels.insert(names::NODE_TYPE_LABEL.to_owned(), "head".to_owned());
    labels.insert(names::IDENTIFIER_LABEL.to_owned(), format!("{}-head", service.name_any()));
    let metadata = ObjectMeta { labels: Some(labels), ..ObjectMeta::default() };
    owned_service(service, head_service_name(service), metadata, spec)
}

fn service_port(name: String, number: i32) -> ServicePort {
    // Set explicitly: otherwise the defaulted target port would not follow when the port changes.
    let target_port = Some(IntOrString::Int(number));
    ServicePort { name: Some(name), port: number, target_port, ..ServicePort::default() }
}

fn head_service_port(name: String, number: i32) -> ServicePort {
    ServicePort { app_protocol: Some("tcp".to_owned()), ..service_port(name, number) }
}

fn origin_labels(service: &RayService) -> BTreeMap<String, String> {
    BTreeMap::from([
        (names::ORIGIN_NAME_LABEL.to_owned(), service.name_any()),
        (names::ORIGIN_KIND_LABEL.to_owned(), RayService::kind(&()).into_owned()),
    ])
}

fn owned_service(service: &RayService, name: String, metadata: ObjectMeta, spec: ServiceSpec) -> Service {
    let metadata = ObjectMeta {
        name: Some(name),
        namespace: service.namespace(),
        owner_references: Some(vec![owner_reference(service)]),
        ..metadata
    };
    Service { metadata, spec: Some(spec), status: None }
}

/// Returns the current Service with the desired fields applied. The address, node ports and fields
/// set by other controllers are kept.
fn merged_service(current: &Service, wanted: &Service) -> Service {
    let mut next = current.clone();
    if let Some(labels) = &wanted.metadata.labels {
        next.labels_mut().extend(labels.clone());
    }
    if let Some(annotations) = &wanted.metadata.annotations {
        next.annotations_mut().extend(annotations.clone());
    }
    let spec = next.spec.get_or_insert_default();
    let wanted = wanted.spec.clone().unwrap_or_default();
    spec.selector = wanted.selector;
    spec.type_ = wanted.type_.or(spec.type_.take());
    let previous = spec.ports.take().unwrap_or_default();
    let ports = wanted.ports.unwrap_or_default().into_iter().map(|port| {
        let same = previous.iter().find(|previous| previous.name == port.name).cloned().unwrap_or_default();
        ServicePort {
            app_protocol: port.app_protocol.or(same.app_protocol),
            node_port: port.node_port.or(same.node_port),
            protocol: port.protocol.or(same.protocol),
            target_port: port.target_port.or(same.target_port),
            ..port
        }
    });
    spec.ports = Some(ports.collect());
    next
}
