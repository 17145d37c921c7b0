//! Services of a cluster: the head Service, the headless Service of multi-host replicas, and the
//! Serve Service of a cluster that serves without a RayService (KubeRay 1.7
//! `ray-operator/controllers/ray/common/service.go`).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ContainerPort, Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_core::{Resource, ResourceExt};
use serde::Deserialize;

use super::field_error::UnparsableField;
use super::groups::{PodGroup, RayNodeType};
use super::pod_builder::owner_reference;
use super::{ClusterContext, names as naming};
use sluice_api::ray::{RayCluster, names};
use sluice_plan::{EventRecord, Plan, Write};

/// Default port of the dashboard.
pub(super) const DASHBOARD_PORT: i32 = 8265;
/// Ports of a head whose container names none. The first one is added to every head.
const DEFAULT_PORTS: [(&str, i32); 5] =
    [("metrics", 8080), ("client", 10001), ("dashboard", DASHBOARD_PORT), ("gcs-server", 6379), ("serve", 8000)];

/// Creates the missing Services, even while the cluster is suspended: their addresses are known
/// before it runs and outlive its suspension. Existing Services stay unchanged, since clients may
/// rely on them, except that the head Service's selector is relaxed.
pub(super) fn plan(view: &ClusterContext<'_>, groups: &[PodGroup], plan: &mut Plan) {
    let cluster = view.cluster;
    match find_service(view, &naming::head_service(cluster)) {
        Some(existing) => plan.write(relax_selector(cluster, existing)),
        None => match head_service(cluster) {
            Ok(service) => create(cluster, &service, plan),
            Err(problem) => {
                plan.events.push(EventRecord::warning(cluster, "FailedToCreateService", problem.to_string()));
            }
        },
    }
    let several_hosts = groups.iter().any(|group| group.hosts_per_replica > 1);
    if several_hosts && find_service(view, &naming::headless_service(cluster)).is_none() {
        create(cluster, &headless_service(cluster), plan);
    }
    let serves = cluster.annotations().get(names::SERVE_SERVICE_ANNOTATION).is_some_and(|value| value == "true");
    if serves && find_service(view, &naming::serve_service(cluster)).is_none() {
        match serve_service(cluster) {
            Ok(service) => create(cluster, &service, plan),
            Err(problem) => {
                plan.events.push(EventRecord::warning(cluster, "FailedToCreateService", problem.to_string()));
            }
        }
    }
}

/// Returns the cluster's Service of this name; `None` if it does not exist.
pub(super) fn find_service<'a>(view: &ClusterContext<'a>, name: &str) -> Option<&'a Service> {
    view.services.iter().copied().find(|service| service.name_any() == name)
}

fn create(cluster: &RayCluster, service: &Service, plan: &mut Plan) {
    plan.write(Write::create(service));
    let name = format!("{}/{}", cluster.namespace().unwrap_or_default(), service.name_any());
    plan.events.push(EventRecord::normal(cluster, "CreatedService", format!("Created service {name}")));
}

/// Returns the selector for the head of a cluster. It uses only labels that users can't override,
/// so that no edit breaks it. (KubeRay also selects by labels that users can override, and then
/// matches no head.)
pub fn head_selector(cluster: &RayCluster) -> BTreeMap<String, String> {
    BTreeMap::from([
        (names::CLUSTER_LABEL.to_owned(), cluster.name_any()),
        (names::NODE_TYPE_LABEL.to_owned(), RayNodeType::Head.to_string()),
    ])
}

/// Returns the labels of the head Service. A user-provided `app.kubernetes.io/name` of the head
/// takes precedence.
fn head_labels(cluster: &RayCluster) -> BTreeMap<String, String> {
    let group = &cluster.spec.head_group_spec;
    let from_group = || group.labels.as_ref()?.get(names::APP_NAME_LABEL).cloned();
    let from_template = || {
        let labels = group.template.0.pointer("/metadata/labels")?;
        labels.get(names::APP_NAME_LABEL)?.as_str().map(str::to_owned)
    };
    let app = from_group().or_else(from_template).unwrap_or_else(|| "kuberay".to_owned());
    let mut labels = head_selector(cluster);
    labels.insert(names::IDENTIFIER_LABEL.to_owned(), naming::identifier(cluster, RayNodeType::Head));
    labels.insert(names::APP_NAME_LABEL.to_owned(), app);
    labels.insert(names::CREATED_BY_LABEL.to_owned(), "kuberay-operator".to_owned());
    labels
}

/// Removes labels that users can override from the selector of an existing head Service; `None` if
/// there is nothing to change, or the selector is not KubeRay's.
fn relax_selector(cluster: &RayCluster, existing: &Service) -> Option<Write> {
    let mut relaxed = existing.clone();
    let selector = relaxed.spec.get_or_insert_default().selector.get_or_insert_default();
    for label in [names::IDENTIFIER_LABEL, names::APP_NAME_LABEL, names::CREATED_BY_LABEL] {
        selector.remove(label);
    }
    if *selector != head_selector(cluster) || existing.metadata.deletion_timestamp.is_some() {
        return None;
    }
    Write::patch(existing, &relaxed)
}

/// Returns the ports of a cluster's head by name: those of the user's first container, or else the
/// defaults, and always one for metrics.
pub fn head_ports(cluster: &RayCluster) -> BTreeMap<String, i32> {
    let authored = cluster.spec.head_group_spec.template.0.pointer("/spec/containers/0/ports");
    let authored = authored.and_then(|ports| Vec::<ContainerPort>::deserialize(ports).ok()).unwrap_or_default();
    let mut ports: BTreeMap<String, i32> = authored
        .into_iter()
        .map(|port| {
            let name = port.name.filter(|name| !name.is_empty());
            (name.unwrap_or_else(|| format!("{}-port", port.container_port)), port.container_port)
        })
        .collect();
    let missing = if ports.is_empty() { &DEFAULT_PORTS[..] } else { &DEFAULT_PORTS[..1] };
    for (name, port) in missing {
        ports.entry((*name).to_owned()).or_insert(*port);
    }
    ports
}

/// Returns the Serve ports of a cluster's head: `serve`, and those with the prefix `serve-`.
pub fn serve_ports(cluster: &RayCluster) -> impl Iterator<Item = (String, i32)> {
    head_ports(cluster).into_iter().filter(|(name, _)| name == "serve" || name.starts_with("serve-"))
}

fn head_service(cluster: &RayCluster) -> Result<Service, UnparsableField> {
    let group = &cluster.spec.head_group_spec;
    let user_provided = group.head_service.clone();
    let is_user_provided = user_provided.is_some();
    let mut service: Service = user_provided
        .map_or_else(|| Ok(Service::default()), serde_json::from_value)
        .map_err(|source| UnparsableField { field: "spec.headGroupSpec.headService", source })?;
    let mut labels = service.metadata.labels.take().unwrap_or_default();
    labels.extend(head_labels(cluster));
    let mut annotations = service.metadata.annotations.take().unwrap_or_default();
    annotations.extend(cluster.spec.head_service_annotations.clone().unwrap_or_default());
    service.metadata = ObjectMeta {
        name: Some(naming::head_service(cluster)),
        namespace: cluster.namespace(),
        labels: Some(labels),
        annotations: Some(annotations).filter(|annotations| !annotations.is_empty()),
        owner_references: Some(vec![owner_reference(cluster)]),
        ..ObjectMeta::default()
    };
    service.status = None;
    let spec = service.spec.get_or_insert_default();
    spec.selector = Some(head_selector(cluster));
    spec.type_ = spec.type_.take().filter(|kind| !kind.is_empty()).or_else(|| group.service_type.clone());
    let ports = spec.ports.get_or_insert_default();
    for (name, number) in head_ports(cluster) {
        if !ports.iter().any(|port| port.name.as_ref() == Some(&name) || port.port == number) {
            ports.push(service_port(name, number));
        }
    }
    if !is_user_provided && spec.type_.as_deref().is_none_or(|kind| kind.is_empty() || kind == "ClusterIP") {
        // There is only one head, so its name can resolve to the pod; workers look it up before it
        // is ready.
        spec.cluster_ip = Some("None".to_owned());
        spec.publish_not_ready_addresses = Some(true);
    }
    Ok(service)
}

fn service_port(name: String, port: i32) -> ServicePort {
    ServicePort { name: Some(name), port, app_protocol: Some("tcp".to_owned()), ..ServicePort::default() }
}

/// Error for a serve Service that would have no port.
#[derive(Debug, thiserror::Error)]
#[error(
    "annotation {} is true, but spec.headGroupSpec.template.spec.containers[0].ports has no port named serve or serve-*; \
     add one",
    names::SERVE_SERVICE_ANNOTATION
)]
struct NoServePort;

fn serve_service(cluster: &RayCluster) -> Result<Service, NoServePort> {
    let ports: Vec<ServicePort> = serve_ports(cluster)
        .map(|(name, port)| ServicePort { name: Some(name), port, ..ServicePort::default() })
        .collect();
    if ports.is_empty() {
        return Err(NoServePort);
    }
    let name = cluster.name_any();
    Ok(Service {
        metadata: ObjectMeta {
            name: Some(naming::serve_service(cluster)),
            namespace: cluster.namespace(),
            labels: Some(BTreeMap::from([
                (names::ORIGIN_NAME_LABEL.to_owned(), name.clone()),
                (names::ORIGIN_KIND_LABEL.to_owned(), RayCluster::kind(&()).into_owned()),
                (names::SERVE_LABEL.to_owned(), format!("{name}-serve")),
            ])),
            owner_references: Some(vec![owner_reference(cluster)]),
            ..ObjectMeta::default()
        },
        spec: Some(ServiceSpec {
            selector: Some(BTreeMap::from([(names::CLUSTER_LABEL.to_owned(), name)])),
            ports: Some(ports),
            type_: cluster.spec.head_group_spec.service_type.clone().filter(|kind| !kind.is_empty()),
            ..ServiceSpec::default()
        }),
        status: None,
    })
}

fn headless_service(cluster: &RayCluster) -> Service {
    Service {
        metadata: ObjectMeta {
            name: Some(naming::headless_service(cluster)),
            namespace: cluster.namespace(),
            labels: Some(BTreeMap::from([(names::HEADLESS_WORKER_LABEL.to_owned(), cluster.name_any())])),
            owner_references: Some(vec![owner_reference(cluster)]),
            ..ObjectMeta::default()
        },
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            type_: Some("ClusterIP".to_owned()),
            publish_not_ready_addresses: Some(true),
            selector: Some(BTreeMap::from([
                (names::CLUSTER_LABEL.to_owned(), cluster.name_any()),
                (names::NODE_TYPE_LABEL.to_owned(), RayNodeType::Worker.to_string()),
            ])),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}
