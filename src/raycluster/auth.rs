//! Token authentication of Ray: environment and volumes of its containers, and the Secret with the
//! token
//! (KubeRay 1.7 `ray-operator/controllers/ray/common/pod.go`, `configureTokenAuth`, and
//! `ray-operator/controllers/ray/raycluster_controller.go`, `reconcileAuthSecret`).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, EnvVar, EnvVarSource, PodSpec, ProjectedVolumeSource, Secret, SecretKeySelector,
    ServiceAccountTokenProjection, Volume, VolumeMount, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_core::ResourceExt;

use super::env_vars::EnvVars;
use super::field_error::FieldError;
use super::pod_builder::owner_reference;
use super::{ClusterContext, names as naming, probes};
use sluice_api::ray::options::{AuthMode, AuthOptions};
use sluice_api::ray::{RayCluster, RayClusterSpec, names};
use sluice_plan::{EventRecord, Plan, Write};

/// Key of the Secret's data that holds the token.
pub const TOKEN_KEY: &str = "auth_token";
const MODE_VARIABLE: &str = "RAY_AUTH_MODE";
const TOKEN_VARIABLE: &str = "RAY_AUTH_TOKEN";
const KUBERNETES_VARIABLE: &str = "RAY_ENABLE_K8S_TOKEN_AUTH";
/// Volume with the token of the pod's ServiceAccount.
const TOKEN_VOLUME: &str = "ray-token";
const TOKEN_PATH: &str = "/var/run/secrets/ray.io/serviceaccount";
/// Lowest Ray version with token authentication.
const TOKEN_AUTH_MIN_VERSION: (u64, u64) = (2, 52);
/// Lowest Ray version that has the API server verify tokens.
const KUBERNETES_AUTH_MIN_VERSION: (u64, u64) = (2, 55);
const FIELD: &str = "spec.authOptions";

/// Authentication that a cluster requires of Ray clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Auth {
    /// No authentication.
    Off,
    /// Static token, stored in the Secret of this name.
    Secret(String),
    /// ServiceAccount token, verified by the API server.
    Kubernetes,
}

impl Auth {
    /// Returns the authentication that the spec requires. Options without a mode require a token,
    /// as their documentation says. KubeRay requires none in that case, which leaves the cluster
    /// unprotected.
    pub fn of(cluster: &RayCluster) -> Self {
        let Some(options) = cluster.spec.auth_options.as_ref() else { return Self::Off };
        match options.mode {
            Some(AuthMode::Disabled) => Self::Off,
            _ if options.enable_k8s_token_auth == Some(true) => Self::Kubernetes,
            _ => Self::Secret(user_secret(options).map_or_else(|| naming::token_secret(cluster), str::to_owned)),
        }
    }
}

/// State of the Secret that the operator creates for the token of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenSecret {
    /// The Secret exists, or none is needed.
    Available,
    /// The Secret is missing; it will be created with this token.
    Missing(String),
    /// The Secret of this name belongs to an earlier cluster of the same name, and will be
    /// garbage-collected. Pods that started now would use a token that later pods do not have.
    OwnedByPredecessor,
}

/// Sets the mode of options that have none, so that empty options are not dropped as an empty value
/// when specs are compared.
pub fn set_default_mode(spec: &mut RayClusterSpec) {
    if let Some(options) = &mut spec.auth_options {
        options.mode.get_or_insert(AuthMode::Token);
    }
}

/// Returns the name of the user-provided token Secret; `None` if it is unset or empty.
fn user_secret(options: &AuthOptions) -> Option<&str> {
    options.secret_name.as_deref().filter(|name| !name.is_empty())
}

/// Returns the name of the token Secret that the operator creates; `None` if the user provides the
/// Secret or no static token is needed.
pub fn generated_secret(cluster: &RayCluster) -> Option<String> {
    let is_users = cluster.spec.auth_options.as_ref().and_then(user_secret).is_some();
    match Auth::of(cluster) {
        Auth::Secret(name) if !is_users => Some(name),
        _ => None,
    }
}

/// Creates the token Secret if it is missing.
pub(super) fn plan(view: &ClusterContext<'_>, plan: &mut Plan) {
    let cluster = view.cluster;
    let (Some(name), TokenSecret::Missing(token)) = (generated_secret(cluster), view.token_secret.clone()) else {
        return;
    };
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            namespace: cluster.namespace(),
            labels: Some(BTreeMap::from([(names::CLUSTER_LABEL.to_owned(), cluster.name_any())])),
            owner_references: Some(vec![owner_reference(cluster)]),
            ..ObjectMeta::default()
        },
        string_data: Some(BTreeMap::from([(TOKEN_KEY.to_owned(), token)])),
        ..Secret::default()
    };
    plan.write(Write::create(&secret));
    let text = format!("Created Secret {}/{name}", cluster.namespace().unwrap_or_default());
    plan.events.push(EventRecord::normal(cluster, "CreatedSecret", text));
}

/// Sets the token environment of a Ray container. Variables and mounts that the user has set stay.
pub(super) fn apply_to(cluster: &RayCluster, container: &mut Container) {
    let auth = Auth::of(cluster);
    if auth == Auth::Off {
        return;
    }
    container.default_env(MODE_VARIABLE, "token");
    match auth {
        Auth::Off => {}
        Auth::Secret(name) => {
            if !container.env.iter().flatten().any(|variable| variable.name == TOKEN_VARIABLE) {
                let key = SecretKeySelector { name, key: TOKEN_KEY.to_owned(), optional: None };
                let source = EnvVarSource { secret_key_ref: Some(key), ..EnvVarSource::default() };
                let variable = EnvVar { name: TOKEN_VARIABLE.to_owned(), value: None, value_from: Some(source) };
                container.env.get_or_insert_default().push(variable);
            }
        }
        Auth::Kubernetes => {
            container.default_env(KUBERNETES_VARIABLE, "true");
            let mounts = container.volume_mounts.get_or_insert_default();
            if !mounts.iter().any(|mount| mount.name == TOKEN_VOLUME) {
                mounts.push(VolumeMount {
                    name: TOKEN_VOLUME.to_owned(),
                    mount_path: TOKEN_PATH.to_owned(),
                    read_only: Some(true),
                    ..VolumeMount::default()
                });
            }
        }
    }
}

/// Adds the projected ServiceAccount token volume, if the API server verifies tokens.
pub(super) fn add_token_volume(cluster: &RayCluster, spec: &mut PodSpec) {
    if Auth::of(cluster) != Auth::Kubernetes {
        return;
    }
    let volumes = spec.volumes.get_or_insert_default();
    if volumes.iter().any(|volume| volume.name == TOKEN_VOLUME) {
        return;
    }
    let token = ServiceAccountTokenProjection { path: "token".to_owned(), ..ServiceAccountTokenProjection::default() };
    let projection = VolumeProjection { service_account_token: Some(token), ..VolumeProjection::default() };
    let projected = ProjectedVolumeSource { sources: Some(vec![projection]), ..ProjectedVolumeSource::default() };
    volumes.push(Volume { name: TOKEN_VOLUME.to_owned(), projected: Some(projected), ..Volume::default() });
}

/// Returns errors for contradicting options, and for options that the Ray version does not support
/// (KubeRay 1.7 `ray-operator/controllers/ray/utils/validation.go`, `ValidateRayClusterSpec`).
pub(super) fn validate(cluster: &RayCluster) -> Vec<FieldError> {
    let options = cluster.spec.auth_options.clone().unwrap_or_default();
    let is_kubernetes = options.enable_k8s_token_auth == Some(true);
    let mut problems = Vec::new();
    let since = match Auth::of(cluster) {
        Auth::Off => {
            if is_kubernetes {
                let message = "is true, but mode is disabled; set mode to token or remove this field";
                problems.push(FieldError::new(format!("{FIELD}.enableK8sTokenAuth"), message));
            }
            return problems;
        }
        Auth::Secret(_) => TOKEN_AUTH_MIN_VERSION,
        Auth::Kubernetes => KUBERNETES_AUTH_MIN_VERSION,
    };
    let version = cluster.spec.ray_version.as_deref().unwrap_or_default();
    if probes::parse_ray_version(version).is_none_or(|version| version < since) {
        let message = format!(
            "{version:?} does not support {FIELD}; use Ray {}.{}.0 or later, or set {FIELD}.mode to disabled",
            since.0, since.1
        );
        problems.push(FieldError::new("spec.rayVersion", message));
    }
    if is_kubernetes && let Some(name) = user_secret(&options) {
        let message = format!("is {name:?}, but enableK8sTokenAuth is true; set only one of them");
        problems.push(FieldError::new(format!("{FIELD}.secretName"), message));
    }
    let origin = cluster.labels().get(names::ORIGIN_KIND_LABEL).filter(|kind| *kind != "RayCluster");
    if is_kubernetes && let Some(origin) = origin {
        let message = format!("is true, but the cluster belongs to a {origin}, which can't call Ray with such a token");
        problems.push(FieldError::new(format!("{FIELD}.enableK8sTokenAuth"), message));
    }
    problems
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::{TestCluster, cluster_with_patch};

    #[rstest]
    #[case::none(json!(null), Auth::Off)]
    #[case::disabled(json!({"mode": "disabled", "secretName": "mine"}), Auth::Off)]
    #[case::a_token(json!({"mode": "token"}), Auth::Secret("demo".into()))]
    #[case::no_mode(json!({}), Auth::Secret("demo".into()))]
    #[case::no_name(json!({"secretName": ""}), Auth::Secret("demo".into()))]
    #[case::user_provided_secret(json!({"mode": "token", "secretName": "mine"}), Auth::Secret("mine".into()))]
    #[case::verified_by_kubernetes(json!({"mode": "token", "enableK8sTokenAuth": true}), Auth::Kubernetes)]
    fn auth_options_select_the_authentication(#[case] options: Value, #[case] expected: Auth) {
        assert_eq!(Auth::of(&cluster_with_patch(json!({"authOptions": options}))), expected);
    }

    #[rstest]
    #[case::supported("2.52.0", json!({"mode": "token"}), &[])]
    #[case::too_old("2.51.9", json!({"mode": "token"}), &["spec.rayVersion"])]
    #[case::unknown("nightly", json!({"mode": "token"}), &["spec.rayVersion"])]
    #[case::too_old_but_disabled("2.9.0", json!({"mode": "disabled"}), &[])]
    #[case::verified_by_kubernetes("2.55.0", json!({"enableK8sTokenAuth": true}), &[])]
    #[case::too_old_for_kubernetes("2.54.0", json!({"enableK8sTokenAuth": true}), &["spec.rayVersion"])]
    #[case::kubernetes_and_secret("2.55.0", json!({"enableK8sTokenAuth": true, "secretName": "mine"}), &["spec.authOptions.secretName"])]
    #[case::kubernetes_but_disabled(
        "2.55.0", json!({"mode": "disabled", "enableK8sTokenAuth": true}), &["spec.authOptions.enableK8sTokenAuth"])]
    fn contradicting_auth_options_name_the_field(
        #[case] version: &str,
        #[case] options: Value,
        #[case] expected: &[&str],
    ) {
        let problems = validate(&cluster_with_patch(json!({"rayVersion": version, "authOptions": options})));
        assert_eq!(problems.iter().map(|problem| problem.field.as_str()).collect::<Vec<_>>(), expected, "{problems:?}");
    }

    #[test]
    fn ray_service_cluster_can_not_use_kubernetes_tokens() {
        let mut cluster =
            cluster_with_patch(json!({"rayVersion": "2.55.0", "authOptions": {"enableK8sTokenAuth": true}}));
        cluster.labels_mut().insert(names::ORIGIN_KIND_LABEL.to_owned(), "RayService".to_owned());
        assert_eq!(validate(&cluster).len(), 1);
    }

    #[test]
    fn token_secret_is_created_once_and_owned_by_the_cluster() {
        // Given a cluster without a token Secret, and then with one,
        let mut test_cluster = TestCluster::new(cluster_with_patch(json!({"authOptions": {"mode": "token"}})));
        test_cluster.token_secret = TokenSecret::Missing("secret".into());
        let secrets = |test_cluster: &TestCluster| {
            let writes = test_cluster.plan().writes;
            writes.into_iter().filter(|write| write.target.kind == "Secret").collect::<Vec<_>>()
        };
        let created = secrets(&test_cluster);
        test_cluster.token_secret = TokenSecret::Available;

        // then the Secret is created once.
        let [write] = created.as_slice() else { panic!("{created:?}") };
        let sluice_plan::WriteOp::Create(secret) = &write.op else { panic!("{write:?}") };
        assert_eq!(secret["stringData"], json!({"auth_token": "secret"}));
        assert_eq!(secret["metadata"]["ownerReferences"][0]["uid"], "uid-1");
        assert_eq!(secrets(&test_cluster), []);
    }

    #[test]
    fn recreated_cluster_does_not_start_with_the_token_of_its_predecessor() {
        let mut test_cluster = TestCluster::new(cluster_with_patch(json!({"authOptions": {"mode": "token"}})));
        test_cluster.token_secret = TokenSecret::OwnedByPredecessor;
        test_cluster.reconcile_until_stable();
        assert_eq!(test_cluster.pod_names(names::HEAD_GROUP), Vec::<String>::new());

        test_cluster.token_secret = TokenSecret::Available;
        test_cluster.reconcile_until_stable();
        assert_eq!(test_cluster.pod_names(names::HEAD_GROUP).len(), 1);
    }
}
