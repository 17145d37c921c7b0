//! State of Ray that outlives its head, in a Redis of the user's: what the pods are told of it
//! (KubeRay 1.7 `ray-operator/controllers/ray/common/pod.go`, `configureGCSFaultTolerance`).

use k8s_openapi::api::core::v1::{Container, EnvVar, EnvVarSource, PodTemplateSpec};
use kube_core::ResourceExt;
use serde::Deserialize;

use super::environment::{Environment, head_variable};
use super::problem::Problem;
use sluice_api::ray::options::{GcsFaultToleranceOptions, RedisCredential, StringMap};
use sluice_api::ray::{RayCluster, names};

/// For how many seconds a worker looks for a head that is gone. A new head takes longer than the minute that Ray would wait.
const RECONNECT_SECONDS: &str = "600";
const RECONNECT_VARIABLE: &str = "RAY_gcs_rpc_server_reconnect_timeout_s";
const NAMESPACE_VARIABLE: &str = "RAY_external_storage_namespace";
/// Where the Redis is.
pub(super) const ADDRESS_VARIABLE: &str = "RAY_REDIS_ADDRESS";
/// Who asks it.
pub(super) const USERNAME_VARIABLE: &str = "REDIS_USERNAME";
/// With which password.
pub(super) const PASSWORD_VARIABLE: &str = "REDIS_PASSWORD";
/// The flag of `ray start` for the user.
pub(super) const USERNAME_FLAG: &str = "redis-username";
/// The flag of `ray start` for the password.
pub(super) const PASSWORD_FLAG: &str = "redis-password";
const FIELD: &str = "spec.gcsFaultToleranceOptions";

/// Whether the state of a cluster outlives its head.
pub(super) fn is_on(cluster: &RayCluster) -> bool {
    let annotated = cluster.annotations().get(names::FAULT_TOLERANCE_ANNOTATION);
    cluster.spec.gcs_fault_tolerance_options.is_some()
        || annotated.is_some_and(|value| value.eq_ignore_ascii_case("true"))
}

/// The `rayStartParams` of the head. Credentials are named by their variables, so that they stand in no command.
pub(super) fn head_params(cluster: &RayCluster) -> StringMap {
    let mut params = cluster.spec.head_group_spec.ray_start_params.clone().unwrap_or_default();
    let Some(options) = &cluster.spec.gcs_fault_tolerance_options else { return params };
    let credentials = [
        (USERNAME_FLAG, USERNAME_VARIABLE, &options.redis_username),
        (PASSWORD_FLAG, PASSWORD_VARIABLE, &options.redis_password),
    ];
    for (flag, variable, _) in credentials.into_iter().filter(|(.., credential)| credential.is_some()) {
        params.insert(flag.to_owned(), format!("${variable}"));
    }
    params
}

/// Tells the head whether, and where, its state is kept.
///
/// # Errors
/// When a credential is taken from something that can't be read; the error names the field.
pub(super) fn put_on_head(
    cluster: &RayCluster,
    template: &mut PodTemplateSpec,
    ray: &mut Container,
) -> Result<(), Problem> {
    let annotations = template.metadata.get_or_insert_default().annotations.get_or_insert_default();
    annotations.insert(names::FAULT_TOLERANCE_ANNOTATION.to_owned(), is_on(cluster).to_string());
    if !is_on(cluster) {
        return Ok(());
    }
    let options = cluster.spec.gcs_fault_tolerance_options.as_ref();
    let namespace = storage_namespace(cluster);
    annotations.insert(names::STORAGE_NAMESPACE_ANNOTATION.to_owned(), namespace.clone());
    ray.default_env(NAMESPACE_VARIABLE, &namespace);
    match options {
        Some(options) => put_options(options, ray),
        None => {
            let flags = cluster.spec.head_group_spec.ray_start_params.as_ref();
            if let Some(password) = flags.and_then(|flags| flags.get(PASSWORD_FLAG)) {
                ray.default_env(PASSWORD_VARIABLE, password);
            }
            Ok(())
        }
    }
}

fn put_options(options: &GcsFaultToleranceOptions, ray: &mut Container) -> Result<(), Problem> {
    ray.set_env(ADDRESS_VARIABLE, options.redis_address.as_deref().unwrap_or_default());
    let credentials = [
        (USERNAME_VARIABLE, "redisUsername", &options.redis_username),
        (PASSWORD_VARIABLE, "redisPassword", &options.redis_password),
    ];
    for (variable, field, credential) in credentials {
        let Some(credential) = credential else { continue };
        let value_from = source(credential)
            .map_err(|error| Problem::new(format!("{FIELD}.{field}.valueFrom"), format!("can't be read: {error}")))?;
        let variable = EnvVar { name: variable.to_owned(), value: credential.value.clone(), value_from };
        ray.env.get_or_insert_default().push(variable);
    }
    Ok(())
}

fn source(credential: &RedisCredential) -> Result<Option<EnvVarSource>, serde_json::Error> {
    credential.value_from.as_ref().map(EnvVarSource::deserialize).transpose()
}

/// Tells a worker to wait longer for a head that is gone, where there will be another with its state.
pub(super) fn put_on_worker(cluster: &RayCluster, ray: &mut Container) {
    if is_on(cluster) {
        ray.default_env(RECONNECT_VARIABLE, RECONNECT_SECONDS);
    }
}

/// What the keys of a cluster begin with: they are its own unless somebody says so. What the head's own environment says wins, as it
/// does in the pod.
pub(super) fn storage_namespace(cluster: &RayCluster) -> String {
    let options = cluster.spec.gcs_fault_tolerance_options.as_ref();
    let given = head_variable(cluster, NAMESPACE_VARIABLE).map(str::to_owned);
    let chosen = || options.and_then(|options| options.external_storage_namespace.clone());
    let annotated = || cluster.annotations().get(names::STORAGE_NAMESPACE_ANNOTATION).cloned();
    let named = |name: &String| !name.is_empty();
    let said = given.filter(named).or_else(|| chosen().filter(named)).or_else(annotated);
    said.or_else(|| cluster.uid()).unwrap_or_default()
}

/// Whether what one cluster deletes from its Redis could be what another one keeps there. Where the Redis of one of them isn't known,
/// it could be; but a name without a dot is that of another Service in every Kubernetes namespace.
pub fn share_storage(one: &RayCluster, other: &RayCluster) -> bool {
    let is_near = one.namespace() == other.namespace();
    let may_be_one = match (redis_of(one), redis_of(other)) {
        (Some(one), Some(other)) => one == other && (is_near || one.contains('.')),
        _ => is_near,
    };
    is_on(one) && is_on(other) && storage_namespace(one) == storage_namespace(other) && may_be_one
}

/// Host and port of the Redis of a cluster, as far as the spec says: the first of several, which lead to the same.
fn redis_of(cluster: &RayCluster) -> Option<String> {
    let options = cluster.spec.gcs_fault_tolerance_options.as_ref();
    let given = options.and_then(|options| options.redis_address.as_deref());
    let address = given.or_else(|| head_variable(cluster, ADDRESS_VARIABLE)).filter(|address| !address.is_empty())?;
    let first = address.split(',').next().unwrap_or_default().trim().to_lowercase();
    let place = first.split_once("://").map_or(first.as_str(), |(_, place)| place).trim_end_matches('/');
    let place = place.rsplit_once('@').map_or(place, |(_, place)| place);
    Some(if place.contains(':') { place.to_owned() } else { format!("{place}:6379") })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::{changed, cluster_with_workers};
    use crate::groups::pod_groups;

    /// The variables of the container that runs Ray, and the annotations of the pod, in each group.
    fn told(cluster: &RayCluster) -> Vec<(Value, Value)> {
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
    fn without_it_the_head_says_so_and_nothing_else_changes() {
        let told = told(&cluster_with_workers(1));
        assert_eq!(told[0].1, json!({"ray.io/ft-enabled": "false"}));
        assert_eq!(told[1].1, Value::Null);
        for variable in [NAMESPACE_VARIABLE, ADDRESS_VARIABLE, RECONNECT_VARIABLE] {
            assert!(told.iter().all(|(env, _)| env[variable].is_null()), "{variable}");
        }
    }

    #[test]
    fn head_and_workers_are_told_of_the_redis() {
        let secret = json!({"secretKeyRef": {"name": "redis", "key": "password"}});
        let mut cluster = changed(json!({"gcsFaultToleranceOptions": {
            "redisAddress": "redis:6379", "redisUsername": {"value": "ray"}, "redisPassword": {"valueFrom": secret},
        }}));
        cluster.spec.worker_group_specs = cluster_with_workers(1).spec.worker_group_specs;

        let told = told(&cluster);

        let (head, worker) = (&told[0], &told[1]);
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
    fn the_older_way_is_by_annotations_and_flags() {
        let mut cluster = changed(json!({"headGroupSpec": {"rayStartParams": {"redis-password": "secret"}}}));
        cluster.metadata.annotations = Some(
            [
                (names::FAULT_TOLERANCE_ANNOTATION.to_owned(), "True".to_owned()),
                (names::STORAGE_NAMESPACE_ANNOTATION.to_owned(), "mine".to_owned()),
            ]
            .into(),
        );
        let told = told(&cluster);
        assert_eq!((&told[0].0[NAMESPACE_VARIABLE], &told[0].0[PASSWORD_VARIABLE]), (&json!("mine"), &json!("secret")));
    }

    #[test]
    fn a_credential_that_is_taken_from_nowhere_is_a_problem() {
        let options = json!({"redisAddress": "redis:6379", "redisPassword": {"valueFrom": {"secretKeyRef": 1}}});
        let problem = pod_groups(&changed(json!({"gcsFaultToleranceOptions": options}))).expect_err("a problem");
        assert_eq!(problem.field, "spec.gcsFaultToleranceOptions.redisPassword.valueFrom");
    }

    /// A cluster of this Kubernetes namespace, with this Redis and this namespace in it.
    fn kept(namespace: &str, address: &str, storage: &str) -> RayCluster {
        let options = json!({"redisAddress": address, "externalStorageNamespace": storage});
        let mut cluster = changed(json!({"gcsFaultToleranceOptions": options}));
        cluster.metadata.namespace = Some(namespace.to_owned());
        cluster
    }

    #[rstest]
    #[case::the_same(kept("a", "redis:6379", "chats"), true)]
    #[case::another_storage_namespace(kept("a", "redis:6379", "talks"), false)]
    #[case::another_redis(kept("a", "other:6379", "chats"), false)]
    #[case::the_same_in_other_words(kept("a", "redis://Redis", "chats"), true)]
    #[case::one_of_several(kept("a", "redis:6379,redis-2:6379", "chats"), true)]
    #[case::another_service_of_that_name(kept("b", "redis:6379", "chats"), false)]
    #[case::said_by_the_head(
        changed(json!({
            "gcsFaultToleranceOptions": {"redisAddress": "redis:6379"},
            "headGroupSpec": {"template": {"spec": {"containers": [{
                "name": "ray", "env": [{"name": "RAY_external_storage_namespace", "value": "chats"}],
            }]}}},
        })),
        true
    )]
    #[case::off(changed(json!({})), false)]
    fn what_one_deletes_could_be_what_another_keeps(#[case] mut other: RayCluster, #[case] expected: bool) {
        other.metadata.uid = Some("another".to_owned());
        if other.metadata.namespace.as_deref() == Some("default") {
            other.metadata.namespace = Some("a".to_owned());
        }
        assert_eq!(share_storage(&kept("a", "redis:6379", "chats"), &other), expected);
    }

    #[rstest]
    #[case::near("a", true)]
    #[case::far("b", true)]
    fn a_redis_with_a_whole_name_is_the_same_everywhere(#[case] namespace: &str, #[case] expected: bool) {
        let address = "redis.infra.svc:6379";
        let mut other = kept(namespace, address, "chats");
        other.metadata.uid = Some("another".to_owned());
        assert_eq!(share_storage(&kept("a", address, "chats"), &other), expected);
    }
}
