//! GCS fault tolerance: environment and annotations that let Ray keep its state in the user's Redis
//! (KubeRay 1.7 `ray-operator/controllers/ray/common/pod.go`, `configureGCSFaultTolerance`).

use k8s_openapi::api::core::v1::{Container, EnvVar, EnvVarSource, PodTemplateSpec};
use kube_core::ResourceExt;
use serde::Deserialize;

use super::env_vars::{EnvValue, EnvVars, head_env_value};
use super::field_error::FieldError;
use sluice_api::ray::options::{GcsFaultToleranceOptions, RedisCredential, StringMap};
use sluice_api::ray::{RayCluster, names};

/// Seconds that a worker tries to reconnect to a lost head. A new head takes longer than Ray's
/// default of 60 s.
const RECONNECT_SECONDS: &str = "600";
const RECONNECT_VARIABLE: &str = "RAY_gcs_rpc_server_reconnect_timeout_s";
const NAMESPACE_VARIABLE: &str = "RAY_external_storage_namespace";
/// Environment variable with the address of the Redis.
pub(super) const ADDRESS_VARIABLE: &str = "RAY_REDIS_ADDRESS";
/// Environment variable with the Redis user name.
pub(super) const USERNAME_VARIABLE: &str = "REDIS_USERNAME";
/// Environment variable with the Redis password.
pub(super) const PASSWORD_VARIABLE: &str = "REDIS_PASSWORD";
/// Flag of `ray start` for the Redis user name.
pub(super) const USERNAME_FLAG: &str = "redis-username";
/// Flag of `ray start` for the Redis password.
pub(super) const PASSWORD_FLAG: &str = "redis-password";
const FIELD: &str = "spec.gcsFaultToleranceOptions";

/// Reports whether GCS fault tolerance is enabled, by options or by annotation.
pub(super) fn is_enabled(cluster: &RayCluster) -> bool {
    let annotated = cluster.annotations().get(names::FAULT_TOLERANCE_ANNOTATION);
    cluster.spec.gcs_fault_tolerance_options.is_some()
        || annotated.is_some_and(|value| value.eq_ignore_ascii_case("true"))
}

/// Returns the `rayStartParams` of the head. Credentials are passed as references to environment
/// variables, so that no command line contains them.
pub(super) fn head_params(cluster: &RayCluster) -> StringMap {
    let mut params = cluster.spec.head_group_spec.ray_start_params.clone().unwrap_or_default();
    let Some(options) = &cluster.spec.gcs_fault_tolerance_options else { return params };
    let credentials = [
        (USERNAME_FLAG, USERNAME_VARIABLE, &options.redis_username),
        (PASSWORD_FLAG, PASSWORD_VARIABLE, &options.redis_password),
    ];
    for (flag, variable, credential) in credentials {
        if credential.is_some() {
            params.insert(flag.to_owned(), format!("${variable}"));
        }
    }
    params
}

/// Sets the annotations and environment of the head: whether fault tolerance is enabled, and the
/// Redis to use.
///
/// # Errors
/// Fails when `valueFrom` of a credential can't be parsed; the error names the field.
pub(super) fn configure_head(
    cluster: &RayCluster,
    template: &mut PodTemplateSpec,
    ray: &mut Container,
) -> Result<(), FieldError> {
    let annotations = template.metadata.get_or_insert_default().annotations.get_or_insert_default();
    annotations.insert(names::FAULT_TOLERANCE_ANNOTATION.to_owned(), is_enabled(cluster).to_string());
    if !is_enabled(cluster) {
        return Ok(());
    }
    let options = cluster.spec.gcs_fault_tolerance_options.as_ref();
    let namespace = storage_namespace(cluster);
    annotations.insert(names::STORAGE_NAMESPACE_ANNOTATION.to_owned(), namespace.clone());
    ray.default_env(NAMESPACE_VARIABLE, &namespace);
    match options {
        Some(options) => configure_redis(options, ray),
        None => {
            let flags = cluster.spec.head_group_spec.ray_start_params.as_ref();
            if let Some(password) = flags.and_then(|flags| flags.get(PASSWORD_FLAG)) {
                ray.default_env(PASSWORD_VARIABLE, password);
            }
            Ok(())
        }
    }
}

fn configure_redis(options: &GcsFaultToleranceOptions, ray: &mut Container) -> Result<(), FieldError> {
    ray.set_env(ADDRESS_VARIABLE, options.redis_address.as_deref().unwrap_or_default());
    let credentials = [
        (USERNAME_VARIABLE, "redisUsername", &options.redis_username),
        (PASSWORD_VARIABLE, "redisPassword", &options.redis_password),
    ];
    for (variable, field, credential) in credentials {
        let Some(credential) = credential else { continue };
        let value_from = credential_source(credential).map_err(|error| {
            FieldError::new(format!("{FIELD}.{field}.valueFrom"), format!("can't be parsed: {error}"))
        })?;
        let variable = EnvVar { name: variable.to_owned(), value: credential.value.clone(), value_from };
        ray.env.get_or_insert_default().push(variable);
    }
    Ok(())
}

fn credential_source(credential: &RedisCredential) -> Result<Option<EnvVarSource>, serde_json::Error> {
    credential.value_from.as_ref().map(EnvVarSource::deserialize).transpose()
}

/// Extends the reconnect timeout of a worker, if a new head will recover the state of the lost one.
pub(super) fn configure_worker(cluster: &RayCluster, ray: &mut Container) {
    if is_enabled(cluster) {
        ray.default_env(RECONNECT_VARIABLE, RECONNECT_SECONDS);
    }
}

/// Returns the prefix of the cluster's Redis keys. The head's environment takes precedence (as it
/// does in the pod), then the options, then the annotation; the default is the cluster's uid.
pub(super) fn storage_namespace(cluster: &RayCluster) -> String {
    let options = cluster.spec.gcs_fault_tolerance_options.as_ref();
    let from_env = head_env_value(cluster, NAMESPACE_VARIABLE).and_then(EnvValue::literal).map(str::to_owned);
    let from_options = || options.and_then(|options| options.external_storage_namespace.clone());
    let from_annotation = || cluster.annotations().get(names::STORAGE_NAMESPACE_ANNOTATION).cloned();
    let is_set = |name: &String| !name.is_empty();
    let configured = from_env.filter(is_set).or_else(|| from_options().filter(is_set)).or_else(from_annotation);
    configured.or_else(|| cluster.uid()).unwrap_or_default()
}

/// Reports whether two clusters may store their state under the same keys of the same Redis, so
/// that cleaning up one would delete the state of the other. An unknown Redis address counts as the
/// same within a Kubernetes namespace. A host name without a dot is a different Service in each
/// Kubernetes namespace.
pub fn may_share_storage(one: &RayCluster, other: &RayCluster) -> bool {
    let same_namespace = one.namespace() == other.namespace();
    let may_be_same_redis = match (redis_address(one), redis_address(other)) {
        (Some(one), Some(other)) => one == other && (same_namespace || one.contains('.')),
        _ => same_namespace,
    };
    is_enabled(one) && is_enabled(other) && storage_namespace(one) == storage_namespace(other) && may_be_same_redis
}

/// Returns `host:port` of the cluster's Redis: the first address, if a Redis cluster has several.
/// `None` if the spec has no literal address.
fn redis_address(cluster: &RayCluster) -> Option<String> {
    let options = cluster.spec.gcs_fault_tolerance_options.as_ref();
    let from_options = options.and_then(|options| options.redis_address.as_deref());
    let from_env = || head_env_value(cluster, ADDRESS_VARIABLE).and_then(EnvValue::literal);
    let address = from_options.or_else(from_env).filter(|address| !address.is_empty())?;
    let first = address.split(',').next().unwrap_or_default().trim().to_lowercase();
    let host_port = first.split_once("://").map_or(first.as_str(), |(_, rest)| rest).trim_end_matches('/');
    let host_port = host_port.rsplit_once('@').map_or(host_port, |(_, rest)| rest);
    Some(if host_port.contains(':') { host_port.to_owned() } else { format!("{host_port}:6379") })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::{cluster_with_patch, cluster_with_workers};
    use crate::groups::pod_groups;

    /// Returns the environment of the container that runs Ray, and the pod annotations, by group.
    fn env_and_annotations(cluster: &RayCluster) -> Vec<(Value, Value)> {
        let groups = pod_groups(cluster).expect("the spec is valid");
        let templates = groups.into_iter().map(|group| serde_json::to_value(group.template).expect("JSON"));
        templates
            .map(|template| {
                let env = template["spec"]["containers"][0]["env"].as_array().cloned().unwrap_or_default();
                let env = env.into_iter().map(|mut entry| {
                    let name = entry["name"].take();
                    let given =
                        if entry["valueFrom"].is_null() { entry["value"].take() } else { entry["valueFrom"].take() };
                    (name.as_str().expect("a name").to_owned(), given)
                });
                (Value::Object(env.collect()), template["metadata"]["annotations"].clone())
            })
            .collect()
    }

    #[test]
    fn disabled_fault_tolerance_only_sets_the_head_annotation() {
        let groups = env_and_annotations(&cluster_with_workers(1));
        assert_eq!(groups[0].1, json!({"ray.io/ft-enabled": "false"}));
        assert_eq!(groups[1].1, Value::Null);
        for variable in [NAMESPACE_VARIABLE, ADDRESS_VARIABLE, RECONNECT_VARIABLE] {
            assert!(groups.iter().all(|(env, _)| env[variable].is_null()), "{variable}");
        }
    }

    #[test]
    fn options_configure_redis_on_head_and_reconnect_timeout_on_workers() {
        let secret = json!({"secretKeyRef": {"name": "redis", "key": "password"}});
        let mut cluster = cluster_with_patch(json!({"gcsFaultToleranceOptions": {
            "redisAddress": "redis:6379", "redisUsername": {"value": "ray"}, "redisPassword": {"valueFrom": secret},
        }}));
        cluster.spec.worker_group_specs = cluster_with_workers(1).spec.worker_group_specs;

        let groups = env_and_annotations(&cluster);

        let (head, worker) = (&groups[0], &groups[1]);
        assert_eq!(head.1, json!({"ray.io/ft-enabled": "true", "ray.io/external-storage-namespace": "uid-1"}));
        assert_eq!(head.0[NAMESPACE_VARIABLE], "uid-1");
        assert_eq!(head.0[ADDRESS_VARIABLE], "redis:6379");
        assert_eq!(head.0[USERNAME_VARIABLE], "ray");
        assert_eq!(head.0[PASSWORD_VARIABLE], secret);
        let command = head.0["KUBERAY_GEN_RAY_START_CMD"].as_str().expect("a command");
        assert!(command.contains("--redis-username=$REDIS_USERNAME"), "{command}");
        assert!(command.contains("--redis-password=$REDIS_PASSWORD"), "{command}");
        assert_eq!(worker.0[RECONNECT_VARIABLE], "600");
        assert_eq!(worker.0[ADDRESS_VARIABLE], Value::Null);
    }

    #[test]
    fn annotations_and_flags_configure_fault_tolerance_without_options() {
        let mut cluster =
            cluster_with_patch(json!({"headGroupSpec": {"rayStartParams": {"redis-password": "secret"}}}));
        cluster.metadata.annotations = Some(
            [
                (names::FAULT_TOLERANCE_ANNOTATION.to_owned(), "True".to_owned()),
                (names::STORAGE_NAMESPACE_ANNOTATION.to_owned(), "mine".to_owned()),
            ]
            .into(),
        );
        let head_env = &env_and_annotations(&cluster)[0].0;
        assert_eq!((&head_env[NAMESPACE_VARIABLE], &head_env[PASSWORD_VARIABLE]), (&json!("mine"), &json!("secret")));
    }

    #[test]
    fn credential_with_invalid_value_from_is_an_error() {
        let options = json!({"redisAddress": "redis:6379", "redisPassword": {"valueFrom": {"secretKeyRef": 1}}});
        let problem =
            pod_groups(&cluster_with_patch(json!({"gcsFaultToleranceOptions": options}))).expect_err("a problem");
        assert_eq!(problem.field, "spec.gcsFaultToleranceOptions.redisPassword.valueFrom");
    }

    /// Returns a cluster in this Kubernetes namespace with this Redis address and storage
    /// namespace.
    fn stored(namespace: &str, address: &str, storage: &str) -> RayCluster {
        let options = json!({"redisAddress": address, "externalStorageNamespace": storage});
        let mut cluster = cluster_with_patch(json!({"gcsFaultToleranceOptions": options}));
        cluster.metadata.namespace = Some(namespace.to_owned());
        cluster
    }

    #[rstest]
    #[case::the_same(stored("a", "redis:6379", "chats"), true)]
    #[case::another_storage_namespace(stored("a", "redis:6379", "talks"), false)]
    #[case::another_redis(stored("a", "other:6379", "chats"), false)]
    #[case::equivalent_address(stored("a", "redis://Redis", "chats"), true)]
    #[case::first_of_several_addresses(stored("a", "redis:6379,redis-2:6379", "chats"), true)]
    #[case::same_host_name_in_another_namespace(stored("b", "redis:6379", "chats"), false)]
    #[case::storage_namespace_from_head_env(
        cluster_with_patch(json!({
            "gcsFaultToleranceOptions": {"redisAddress": "redis:6379"},
            "headGroupSpec": {"template": {"spec": {"containers": [{
                "name": "ray", "env": [{"name": "RAY_external_storage_namespace", "value": "chats"}],
            }]}}},
        })),
        true
    )]
    #[case::fault_tolerance_disabled(cluster_with_patch(json!({})), false)]
    fn clusters_may_share_storage_in_the_same_redis_and_storage_namespace(
        #[case] mut other: RayCluster,
        #[case] expected: bool,
    ) {
        other.metadata.uid = Some("another".to_owned());
        if other.metadata.namespace.as_deref() == Some("default") {
            other.metadata.namespace = Some("a".to_owned());
        }
        assert_eq!(may_share_storage(&stored("a", "redis:6379", "chats"), &other), expected);
    }

    #[rstest]
    #[case::same_namespace("a", true)]
    #[case::other_namespace("b", true)]
    fn qualified_redis_host_is_the_same_in_every_namespace(#[case] namespace: &str, #[case] expected: bool) {
        let address = "redis.infra.svc:6379";
        let mut other = stored(namespace, address, "chats");
        other.metadata.uid = Some("another".to_owned());
        assert_eq!(may_share_storage(&stored("a", address, "chats"), &other), expected);
    }
}
