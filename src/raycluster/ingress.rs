//! Ingress for the Ray dashboard of a cluster (KubeRay 1.7
//! `ray-operator/controllers/ray/common/ingress.go`).
//!
//! The Ingress is deleted when `enableIngress` is unset. KubeRay leaves it in place.

use std::collections::BTreeMap;

use k8s_openapi::api::networking::v1::{
    HTTPIngressPath, HTTPIngressRuleValue, Ingress, IngressBackend, IngressRule, IngressServiceBackend, IngressSpec,
    IngressTLS, ServiceBackendPort,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_core::ResourceExt;

use super::field_error::UnparsableField;
use super::groups::RayNodeType;
use super::pod_builder::owner_reference;
use super::services::{DASHBOARD_PORT, head_ports};
use super::{ClusterContext, names as naming};
use sluice_api::ray::{RayCluster, names};
use sluice_plan::{EventRecord, Plan, Write};

/// Legacy annotation of a cluster with its Ingress class. The Ingress gets it as
/// `ingressClassName`.
const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";

/// Creates, updates or deletes the Ingress of a cluster. An Ingress of that name that the cluster
/// does not own stays unchanged.
pub(super) fn plan(view: &ClusterContext<'_>, plan: &mut Plan) {
    let cluster = view.cluster;
    let enabled = cluster.spec.head_group_spec.enable_ingress == Some(true);
    let is_owned = |existing: &Ingress| existing.owner_references().contains(&owner_reference(cluster));
    let desired = match enabled.then(|| ingress(cluster)).transpose() {
        Ok(desired) => desired,
        Err(problem) => {
            return plan.events.push(EventRecord::warning(cluster, "FailedToCreateIngress", problem.to_string()));
        }
    };
    match (view.ingress, desired) {
        (None, Some(desired)) => {
            plan.write(Write::create(&desired));
            record_event(cluster, "CreatedIngress", "Created", plan);
        }
        (Some(existing), Some(desired)) if is_owned(existing) => {
            let write = Write::patch(existing, &merged(existing, desired));
            if write.is_some() {
                record_event(cluster, "UpdatedIngress", "Updated", plan);
            }
            plan.write(write);
        }
        (Some(existing), Some(_)) => {
            let text = format!(
                "Ingress {} exists but is not owned by this RayCluster; delete it or unset enableIngress",
                existing.name_any()
            );
            plan.events.push(EventRecord::warning(cluster, "FailedToCreateIngress", text));
        }
        (Some(existing), None) if is_owned(existing) && existing.metadata.deletion_timestamp.is_none() => {
            plan.write(Write::delete(existing));
            record_event(cluster, "DeletedIngress", "Deleted", plan);
        }
        (_, None) => {}
    }
}

fn record_event(cluster: &RayCluster, reason: &str, done: &str, plan: &mut Plan) {
    let text = format!("{done} ingress {}/{}", cluster.namespace().unwrap_or_default(), naming::ingress(cluster));
    plan.events.push(EventRecord::normal(cluster, reason, text));
}

fn ingress(cluster: &RayCluster) -> Result<Ingress, UnparsableField> {
    let options = cluster.spec.head_group_spec.ingress_options.clone().unwrap_or_default();
    let tls: Option<Vec<IngressTLS>> = options
        .tls
        .map(serde_json::from_value)
        .transpose()
        .map_err(|source| UnparsableField { field: "spec.headGroupSpec.ingressOptions.tls", source })?;
    let annotations = cluster.annotations();
    let port = head_ports(cluster).get("dashboard").copied().unwrap_or(DASHBOARD_PORT);
    let service = IngressServiceBackend {
        name: naming::head_service(cluster),
        port: Some(ServiceBackendPort { number: Some(port), ..ServiceBackendPort::default() }),
    };
    let path = HTTPIngressPath {
        path: Some(options.path.unwrap_or_else(|| "/".to_owned())),
        path_type: options.path_type.unwrap_or_else(|| "Prefix".to_owned()),
        backend: IngressBackend { service: Some(service), ..IngressBackend::default() },
    };
    let rule = IngressRule { host: options.host, http: Some(HTTPIngressRuleValue { paths: vec![path] }) };
    let copied = annotations.iter().filter(|(key, _)| *key != CLASS_ANNOTATION);
    Ok(Ingress {
        metadata: ObjectMeta {
            name: Some(naming::ingress(cluster)),
            namespace: cluster.namespace(),
            labels: Some(BTreeMap::from([
                (names::CLUSTER_LABEL.to_owned(), cluster.name_any()),
                (names::IDENTIFIER_LABEL.to_owned(), naming::identifier(cluster, RayNodeType::Head)),
                (names::APP_NAME_LABEL.to_owned(), "kuberay".to_owned()),
                (names::CREATED_BY_LABEL.to_owned(), "kuberay-operator".to_owned()),
            ])),
            annotations: Some(copied.map(|(key, value)| (key.clone(), value.clone())).collect()),
            owner_references: Some(vec![owner_reference(cluster)]),
            ..ObjectMeta::default()
        },
        spec: Some(IngressSpec {
            ingress_class_name: annotations.get(CLASS_ANNOTATION).cloned(),
            rules: Some(vec![rule]),
            tls: tls.filter(|tls| !tls.is_empty()),
            ..IngressSpec::default()
        }),
        status: None,
    })
}

/// Merges the desired Ingress into the existing one. Labels and annotations added by other
/// controllers stay, and so does an Ingress class set on the object.
fn merged(existing: &Ingress, desired: Ingress) -> Ingress {
    let mut next = existing.clone();
    next.labels_mut().extend(desired.metadata.labels.unwrap_or_default());
    if let Some(annotations) = desired.metadata.annotations.filter(|annotations| !annotations.is_empty()) {
        next.annotations_mut().extend(annotations);
    }
    let class = next.spec.take().and_then(|spec| spec.ingress_class_name);
    next.spec = desired.spec.map(|mut spec| {
        spec.ingress_class_name = spec.ingress_class_name.or(class);
        spec
    });
    next
}
