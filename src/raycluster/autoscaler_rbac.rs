//! RBAC of the Ray autoscaler: a ServiceAccount for the head, and a Role and RoleBinding that let
//! it watch pods and set the number of workers (KubeRay 1.7
//! `ray-operator/controllers/ray/common/rbac.go`).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_core::{Resource, ResourceExt};
use serde::Serialize;

use super::autoscaler::Autoscaler;
use super::pod_builder::owner_reference;
use super::{ClusterContext, names as naming};
use sluice_api::ray::{RayCluster, names};
use sluice_plan::{EventRecord, Plan, Write};

/// Existence of the RBAC objects that the autoscaler of a cluster needs, regardless of their owner.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AutoscalerRbac {
    /// The ServiceAccount [`naming::head_service_account`] exists.
    pub service_account: bool,
    /// The Role [`naming::autoscaler_rbac`] exists.
    pub role: bool,
    /// The RoleBinding [`naming::autoscaler_rbac`] exists.
    pub role_binding: bool,
}

/// Creates the missing objects. Existing ones stay unchanged, since users may have extended them.
pub(super) fn plan(view: &ClusterContext<'_>, plan: &mut Plan) {
    let cluster = view.cluster;
    if Autoscaler::of(&cluster.spec) == Autoscaler::Off {
        return;
    }
    if awaits_service_account(view) {
        create(cluster, "CreatedServiceAccount", &service_account(cluster), plan);
    }
    if !view.autoscaler_rbac.role {
        create(cluster, "CreatedRole", &role(cluster), plan);
    }
    if !view.autoscaler_rbac.role_binding {
        create(cluster, "CreatedRoleBinding", &role_binding(cluster), plan);
    }
}

/// Reports whether the head has to wait for its ServiceAccount: the API server rejects pods whose
/// ServiceAccount does not exist. A ServiceAccount named by the user is the user's to create.
pub(super) fn awaits_service_account(view: &ClusterContext<'_>) -> bool {
    let cluster = view.cluster;
    Autoscaler::of(&cluster.spec) != Autoscaler::Off
        && user_service_account(cluster).is_none()
        && !view.autoscaler_rbac.service_account
}

/// Returns the ServiceAccount name in the user's head template; `None` if it is unset or empty.
pub(super) fn user_service_account(cluster: &RayCluster) -> Option<&str> {
    let name = cluster.spec.head_group_spec.template.0.pointer("/spec/serviceAccountName")?.as_str()?;
    Some(name).filter(|name| !name.is_empty())
}

fn create<K>(cluster: &RayCluster, reason: &str, object: &K, plan: &mut Plan)
where
    K: Resource<DynamicType = ()> + Serialize,
{
    plan.write(Write::create(object));
    let (namespace, name) = (cluster.namespace().unwrap_or_default(), object.name_any());
    plan.events.push(EventRecord::normal(cluster, reason, format!("Created {} {namespace}/{name}", K::kind(&()))));
}

fn service_account(cluster: &RayCluster) -> ServiceAccount {
    ServiceAccount { metadata: metadata(cluster, naming::head_service_account(cluster)), ..ServiceAccount::default() }
}

fn role(cluster: &RayCluster) -> Role {
    let rule = |group: &str, resource: &str, verbs: &[&str]| PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(vec![resource.to_owned()]),
        verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
        ..PolicyRule::default()
    };
    let rules = vec![
        rule("", "pods", &["get", "list", "watch", "patch"]),
        rule("", "pods/resize", &["patch"]),
        rule("ray.io", "rayclusters", &["get", "patch"]),
    ];
    Role { metadata: metadata(cluster, naming::autoscaler_rbac(cluster)), rules: Some(rules) }
}

fn role_binding(cluster: &RayCluster) -> RoleBinding {
    RoleBinding {
        metadata: metadata(cluster, naming::autoscaler_rbac(cluster)),
        role_ref: RoleRef {
            api_group: Some(Role::group(&()).into_owned()),
            kind: Role::kind(&()).into_owned(),
            name: naming::autoscaler_rbac(cluster),
        },
        subjects: Some(vec![Subject {
            kind: ServiceAccount::kind(&()).into_owned(),
            name: naming::head_service_account(cluster),
            namespace: cluster.namespace(),
            ..Subject::default()
        }]),
    }
}

fn metadata(cluster: &RayCluster, name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: cluster.namespace(),
        labels: Some(BTreeMap::from([
            (names::CLUSTER_LABEL.to_owned(), cluster.name_any()),
            (names::APP_NAME_LABEL.to_owned(), "kuberay".to_owned()),
            (names::CREATED_BY_LABEL.to_owned(), "kuberay-operator".to_owned()),
        ])),
        owner_references: Some(vec![owner_reference(cluster)]),
        ..ObjectMeta::default()
    }
}
