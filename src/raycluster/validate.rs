//! Validation of a RayCluster beyond the CRD schema
//! (KubeRay 1.7 `ray-operator/controllers/ray/utils/validation.go`).

use std::collections::BTreeSet;

use kube_core::ResourceExt;
use serde_json::Value;

use super::auth;
use super::autoscaler::Autoscaler;
use super::env_vars::{EnvValue, env_value, head_env_value};
use super::fault_tolerance::{
    self, ADDRESS_VARIABLE, PASSWORD_FLAG, PASSWORD_VARIABLE, USERNAME_FLAG, USERNAME_VARIABLE,
};
use super::field_error::FieldError;
use super::groups::{self, PodGroup};
use super::validate_template::{is_label_key, is_label_value, validate_metadata, validate_template};
use super::{probes, unsupported};
use sluice_api::ray::options::StringMap;
use sluice_api::ray::{RayCluster, WorkerGroupSpec, names};

/// Maximum length of a cluster's name, in characters: it leaves room for the suffixes of Service
/// and pod names
/// (KubeRay 1.7 `ray-operator/controllers/ray/utils/constant.go`, `MaxRayClusterNameLength`).
const MAX_NAME_LENGTH: usize = 53;
const AUTOSCALER_VARIABLE: &str = "RAY_enable_autoscaler_v2";

/// Validates a cluster and returns its pod groups.
///
/// # Errors
/// Returns all validation errors.
pub fn validated_groups(cluster: &RayCluster) -> Result<Vec<PodGroup>, Vec<FieldError>> {
    let mut problems = unsupported::unsupported_protections(cluster);
    validate_name(cluster, &mut problems);
    validate_upgrade_strategy(cluster, &mut problems);
    problems.extend(auth::validate(cluster));
    validate_head(cluster, &mut problems);
    validate_workers(cluster, &mut problems);
    validate_autoscaling(cluster, &mut problems);
    let groups = match groups::pod_groups(cluster) {
        Ok(groups) => groups,
        Err(problem) => {
            problems.push(problem);
            return Err(problems);
        }
    };
    let spec = &cluster.spec;
    let workers = spec.worker_group_specs.iter().map(|group| &group.template);
    let submitted = std::iter::once(&spec.head_group_spec.template).chain(workers);
    for (index, (group, submitted)) in groups.iter().zip(submitted).enumerate() {
        let field = match index {
            0 => "spec.headGroupSpec.template".to_owned(),
            _ => format!("spec.workerGroupSpecs[{}].template", index - 1),
        };
        validate_metadata(&field, submitted, &mut problems);
        validate_template(&field, &group.template, &mut problems);
    }
    if problems.is_empty() { Ok(groups) } else { Err(problems) }
}

/// Validates the cluster's name: it is the prefix of its Services' names, so it must be a valid
/// Service name.
fn validate_name(cluster: &RayCluster, problems: &mut Vec<FieldError>) {
    let name = cluster.name_any();
    let starts_with_letter = name.starts_with(|c: char| c.is_ascii_lowercase());
    let has_valid_characters = name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    if !starts_with_letter || !has_valid_characters || name.ends_with('-') || name.len() > MAX_NAME_LENGTH {
        let message = format!(
            "{name:?} is not a valid prefix of Service names; use up to {MAX_NAME_LENGTH} lower-case letters, digits \
             and '-', starting with a letter and not ending with '-'"
        );
        problems.push(FieldError::new("metadata.name", message));
    }
}

fn validate_upgrade_strategy(cluster: &RayCluster, problems: &mut Vec<FieldError>) {
    let origin =
        cluster.labels().get(names::ORIGIN_KIND_LABEL).filter(|kind| *kind == "RayService" || *kind == "RayJob");
    let strategy = cluster.spec.upgrade_strategy.as_ref().and_then(|strategy| strategy.type_);
    if let (Some(origin), Some(strategy)) = (origin, strategy) {
        let message =
            format!("{strategy:?} is set, but the cluster belongs to a {origin}, which controls upgrades; unset it");
        problems.push(FieldError::new("spec.upgradeStrategy.type", message));
    }
}

fn validate_head(cluster: &RayCluster, problems: &mut Vec<FieldError>) {
    let group = &cluster.spec.head_group_spec;
    let field = "spec.headGroupSpec";
    validate_params(field, group.ray_start_params.as_ref(), group.resources.as_ref(), problems);
    validate_labels(field, group.labels.as_ref(), problems);
    validate_redis(cluster, problems);
}

/// Validates the GCS fault tolerance options, and that no setting is given in two places.
fn validate_redis(cluster: &RayCluster, problems: &mut Vec<FieldError>) {
    let field = "spec.headGroupSpec";
    let flags = cluster.spec.head_group_spec.ray_start_params.as_ref();
    let has_flag = |flag: &str| flags.and_then(|flags| flags.get(flag)).is_some_and(|value| !value.is_empty());
    let env = format!("{field}.template.spec.containers[0].env");
    let options = cluster.spec.gcs_fault_tolerance_options.as_ref();
    let has_annotation = |key: &str| cluster.annotations().get(key).is_some_and(|value| !value.is_empty());
    let has_options = options.is_some();
    let found = [
        (has_flag(USERNAME_FLAG), format!("{field}.rayStartParams.redis-username"), "redisUsername"),
        (head_env_value(cluster, USERNAME_VARIABLE).is_some(), env.clone(), "redisUsername"),
        (has_options && has_flag(PASSWORD_FLAG), format!("{field}.rayStartParams.redis-password"), "redisPassword"),
        (has_options && head_env_value(cluster, PASSWORD_VARIABLE).is_some(), env.clone(), "redisPassword"),
        (has_options && head_env_value(cluster, ADDRESS_VARIABLE).is_some(), env.clone(), "redisAddress"),
        (
            has_options && has_annotation(names::STORAGE_NAMESPACE_ANNOTATION),
            format!("metadata.annotations[{}]", names::STORAGE_NAMESPACE_ANNOTATION),
            "externalStorageNamespace",
        ),
    ];
    for (_, at, instead) in found.into_iter().filter(|(set, ..)| *set) {
        problems.push(FieldError::new(at, format!("set spec.gcsFaultToleranceOptions.{instead} instead")));
    }
    if has_options && has_annotation(names::FAULT_TOLERANCE_ANNOTATION) {
        let message = "conflicts with spec.gcsFaultToleranceOptions; set only the latter";
        problems.push(FieldError::new(format!("metadata.annotations[{}]", names::FAULT_TOLERANCE_ANNOTATION), message));
    }
    if !fault_tolerance::is_enabled(cluster) && head_env_value(cluster, ADDRESS_VARIABLE).is_some() {
        let message = "RAY_REDIS_ADDRESS is set, which enables fault tolerance in Ray; \
                       set spec.gcsFaultToleranceOptions too";
        problems.push(FieldError::new(env, message));
    }
    let Some(options) = options else { return };
    match options.backend.as_deref() {
        None | Some("redis") => {
            if options.redis_address.as_deref().is_none_or(str::is_empty) {
                let message = "is empty; set it to the address of the Redis, like redis:6379";
                problems.push(FieldError::new("spec.gcsFaultToleranceOptions.redisAddress", message));
            }
            if options.storage.is_some() {
                let message = "is only valid with backend rocksdb; unset it";
                problems.push(FieldError::new("spec.gcsFaultToleranceOptions.storage", message));
            }
        }
        Some(backend) => {
            let message = format!("{backend:?} is not supported yet; use redis");
            problems.push(FieldError::new("spec.gcsFaultToleranceOptions.backend", message));
        }
    }
}

fn validate_workers(cluster: &RayCluster, problems: &mut Vec<FieldError>) {
    let autoscaler = Autoscaler::of(&cluster.spec);
    let uses_v2 = autoscaler == Autoscaler::V2 || (autoscaler != Autoscaler::Off && env_selects_v2(cluster));
    let version = cluster.spec.ray_version.as_deref().and_then(probes::parse_ray_version);
    let mut seen = BTreeSet::new();
    for (index, group) in cluster.spec.worker_group_specs.iter().enumerate() {
        let field = format!("spec.workerGroupSpecs[{index}]");
        validate_group_name(&field, group, &mut seen, problems);
        validate_bounds(&field, group, problems);
        validate_params(&field, group.ray_start_params.as_ref(), group.resources.as_ref(), problems);
        validate_labels(&field, group.labels.as_ref(), problems);
        match group.idle_timeout_seconds {
            Some(seconds) if seconds < 0 => {
                problems.push(FieldError::new(format!("{field}.idleTimeoutSeconds"), format!("{seconds} is negative")));
            }
            Some(_) if !uses_v2 => {
                let message = "only autoscaler v2 supports it; set spec.autoscalerOptions.version to v2";
                problems.push(FieldError::new(format!("{field}.idleTimeoutSeconds"), message));
            }
            _ => {}
        }
        let reads_priority = uses_v2 && version.is_some_and(|version| version >= (2, 56));
        if group.priority.is_some_and(|priority| priority != 0) && !reads_priority {
            let message = "only autoscaler v2 of Ray 2.56 or later supports it; set spec.autoscalerOptions.version \
                           to v2, and spec.rayVersion";
            problems.push(FieldError::new(format!("{field}.priority"), message));
        }
        if group.suspend == Some(true) && autoscaler != Autoscaler::Off {
            let message = "is not allowed while the Ray autoscaler sets the number of workers";
            problems.push(FieldError::new(format!("{field}.suspend"), message));
        }
    }
}

fn validate_group_name<'a>(
    field: &str,
    group: &'a WorkerGroupSpec,
    seen: &mut BTreeSet<&'a str>,
    problems: &mut Vec<FieldError>,
) {
    let name = group.group_name.as_str();
    let field = format!("{field}.groupName");
    if name == names::HEAD_GROUP {
        problems.push(FieldError::new(&field, format!("{name:?} is reserved for the head")));
    } else if name.is_empty() || !is_label_value(name) {
        let message = format!("{name:?} is not a valid label value: use up to 63 letters, digits, '-', '_' and '.'");
        problems.push(FieldError::new(&field, message));
    }
    if !seen.insert(name) {
        problems.push(FieldError::new(&field, format!("{name:?} is used more than once")));
    }
}

fn validate_bounds(field: &str, group: &WorkerGroupSpec, problems: &mut Vec<FieldError>) {
    let (least, most) = (group.min_replicas.unwrap_or(0), group.max_replicas.unwrap_or(i32::MAX));
    for (name, value) in [("minReplicas", least), ("maxReplicas", most)] {
        if value < 0 {
            problems.push(FieldError::new(format!("{field}.{name}"), format!("{value} is negative")));
        }
    }
    if least > most {
        problems.push(FieldError::new(format!("{field}.minReplicas"), format!("{least} is above maxReplicas, {most}")));
    }
}

/// Validates `rayStartParams`: resources must not be set there and in `resources`, and labels only
/// in `labels`.
fn validate_params(
    field: &str,
    params: Option<&StringMap>,
    resources: Option<&StringMap>,
    problems: &mut Vec<FieldError>,
) {
    let Some(params) = params else { return };
    let resource_flag = ["num-cpus", "num-gpus", "memory", "resources"]
        .iter()
        .find(|flag| params.get(**flag).is_some_and(|v| !v.is_empty()));
    if let (Some(flag), Some(_)) = (resource_flag, resources.filter(|resources| !resources.is_empty())) {
        let message = format!("{flag} is set, but conflicts with {field}.resources; set only one of them");
        problems.push(FieldError::new(format!("{field}.rayStartParams"), message));
    }
    if params.contains_key("labels") {
        problems.push(FieldError::new(format!("{field}.rayStartParams.labels"), format!("use {field}.labels instead")));
    }
}

fn validate_labels(field: &str, labels: Option<&StringMap>, problems: &mut Vec<FieldError>) {
    for (key, value) in labels.into_iter().flatten() {
        if !is_label_key(key) || !is_label_value(value) {
            let message = format!("{key}={value} is not a valid Kubernetes label");
            problems.push(FieldError::new(format!("{field}.labels"), message));
        }
    }
}

fn validate_autoscaling(cluster: &RayCluster, problems: &mut Vec<FieldError>) {
    let options = cluster.spec.autoscaler_options.as_ref();
    let autoscaler = Autoscaler::of(&cluster.spec);
    let variable = "spec.headGroupSpec.template.spec.containers[0].env";
    if autoscaler == Autoscaler::Off && env_selects_v2(cluster) {
        let message = format!("{AUTOSCALER_VARIABLE} is set, but spec.enableInTreeAutoscaling is not");
        problems.push(FieldError::new(variable, message));
    }
    let has_version = options.is_some_and(|options| options.version.is_some());
    if autoscaler != Autoscaler::Off && has_version && head_env_value(cluster, AUTOSCALER_VARIABLE).is_some() {
        let message =
            format!("{AUTOSCALER_VARIABLE} conflicts with spec.autoscalerOptions.version; set only the latter");
        problems.push(FieldError::new(variable, message));
    }
    if let Some(seconds) = options.and_then(|options| options.idle_timeout_seconds).filter(|seconds| *seconds < 0) {
        problems.push(FieldError::new("spec.autoscalerOptions.idleTimeoutSeconds", format!("{seconds} is negative")));
    }
    let managed = "KUBERAY_GEN_AUTOSCALER_START_CMD";
    if options.and_then(|options| options.env.as_ref()).is_some_and(|env| env_value(env, managed).is_some()) {
        problems.push(FieldError::new("spec.autoscalerOptions.env", format!("{managed} is set by the operator")));
    }
    if autoscaler == Autoscaler::V2 {
        let head = ("spec.headGroupSpec".to_owned(), &cluster.spec.head_group_spec.template);
        let groups = cluster.spec.worker_group_specs.iter().enumerate();
        let workers = groups.map(|(index, group)| (format!("spec.workerGroupSpecs[{index}]"), &group.template));
        for (field, template) in std::iter::once(head).chain(workers) {
            let policy = template.0.pointer("/spec/restartPolicy").and_then(Value::as_str).unwrap_or_default();
            if !policy.is_empty() && policy != "Never" {
                let message = format!("{policy:?} is not allowed with autoscaler v2; unset it");
                problems.push(FieldError::new(format!("{field}.template.spec.restartPolicy"), message));
            }
        }
    }
}

fn env_selects_v2(cluster: &RayCluster) -> bool {
    matches!(head_env_value(cluster, AUTOSCALER_VARIABLE), Some(EnvValue::Literal("1" | "true")))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::fixtures::{cluster_with_patch, worker};

    fn problems(cluster: &RayCluster) -> Vec<String> {
        validated_groups(cluster).err().unwrap_or_default().iter().map(ToString::to_string).collect()
    }

    #[rstest]
    #[case::no_containers(json!({"headGroupSpec": {"template": {"spec": {"containers": []}}}}),
        "spec.headGroupSpec.template.spec.containers: is empty")]
    #[case::not_a_template(json!({"headGroupSpec": {"template": {"spec": {"containers": 1}}}}),
        "spec.headGroupSpec.template: can't be parsed")]
    #[case::not_a_quantity(json!({"headGroupSpec": {"resources": {"CPU": "much"}}}), "spec.headGroupSpec.resources.CPU: \"much\"")]
    #[case::negative(
        json!({"headGroupSpec": {"template": {"spec": {"containers": [{"name": "a", "resources": {"requests": {"memory": "-1"}}}]}}}}),
        "spec.headGroupSpec.template.spec: ")]
    #[case::resources_set_twice(json!({"headGroupSpec": {"rayStartParams": {"num-cpus": "1"}, "resources": {"CPU": "1"}}}),
        "spec.headGroupSpec.rayStartParams: num-cpus is set")]
    #[case::labels_as_flag(json!({"headGroupSpec": {"rayStartParams": {"labels": "a=b"}}}),
        "spec.headGroupSpec.rayStartParams.labels: ")]
    #[case::not_a_label(json!({"headGroupSpec": {"labels": {"a b": "c"}}}), "spec.headGroupSpec.labels: a b=c")]
    #[case::redis_by_env(
        json!({"headGroupSpec": {"template": {"spec": {"containers": [{"name": "a", "env": [{"name": "RAY_REDIS_ADDRESS", "value": "r"}]}]}}}}),
        "spec.headGroupSpec.template.spec.containers[0].env: RAY_REDIS_ADDRESS")]
    #[case::redis_twice(
        json!({"gcsFaultToleranceOptions": {"redisAddress": "r"},
               "headGroupSpec": {"template": {"spec": {"containers": [{"name": "a", "env": [{"name": "RAY_REDIS_ADDRESS", "value": "r"}]}]}}}}),
        "spec.headGroupSpec.template.spec.containers[0].env: set spec.gcsFaultToleranceOptions.redisAddress")]
    #[case::redis_user_by_flag(json!({"headGroupSpec": {"rayStartParams": {"redis-username": "me"}}}),
        "spec.headGroupSpec.rayStartParams.redis-username: set spec.gcsFaultToleranceOptions.redisUsername")]
    #[case::redis_password_twice(
        json!({"gcsFaultToleranceOptions": {"redisAddress": "r"}, "headGroupSpec": {"rayStartParams": {"redis-password": "x"}}}),
        "spec.headGroupSpec.rayStartParams.redis-password: set spec.gcsFaultToleranceOptions.redisPassword")]
    #[case::another_backend(json!({"gcsFaultToleranceOptions": {"backend": "rocksdb"}}),
        "spec.gcsFaultToleranceOptions.backend: \"rocksdb\"")]
    #[case::no_redis_address(json!({"gcsFaultToleranceOptions": {}}), "spec.gcsFaultToleranceOptions.redisAddress: is empty")]
    #[case::storage_for_redis(json!({"gcsFaultToleranceOptions": {"redisAddress": "r", "backend": "redis", "storage": {}}}),
        "spec.gcsFaultToleranceOptions.storage: ")]
    #[case::v2_without_autoscaling(
        json!({"headGroupSpec": {"template": {"spec": {"containers": [{"name": "a", "env": [{"name": "RAY_enable_autoscaler_v2", "value": "1"}]}]}}}}),
        "spec.headGroupSpec.template.spec.containers[0].env: RAY_enable_autoscaler_v2")]
    #[case::restarts_with_v2(
        json!({"enableInTreeAutoscaling": true, "autoscalerOptions": {"version": "v2"},
               "headGroupSpec": {"template": {"spec": {"restartPolicy": "Always"}}}}),
        "spec.headGroupSpec.template.spec.restartPolicy: \"Always\"")]
    #[case::negative_timeout(json!({"autoscalerOptions": {"idleTimeoutSeconds": -1}}),
        "spec.autoscalerOptions.idleTimeoutSeconds: -1")]
    #[case::duplicate_container_name(
        json!({"headGroupSpec": {"template": {"spec": {"containers": [{"name": "a"}, {"name": "a"}]}}}}),
        "spec.headGroupSpec.template.spec: two containers")]
    fn error_of_the_head_names_field_and_value(#[case] spec: Value, #[case] expected: &str) {
        let problems = problems(&cluster_with_patch(spec));
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].starts_with(expected), "{problems:?}");
    }

    #[rstest]
    #[case::usual("demo-1", None)]
    #[case::longest(&"c".repeat(53), None)]
    #[case::too_long(&"c".repeat(54), Some("metadata.name: \"ccc"))]
    #[case::digit_first("1-demo", Some("metadata.name: \"1-demo\""))]
    #[case::dot("a.b", Some("metadata.name: \"a.b\""))]
    #[case::dash_last("demo-", Some("metadata.name: \"demo-\""))]
    fn cluster_name_that_is_no_service_name_is_an_error(#[case] name: &str, #[case] expected: Option<&str>) {
        let mut cluster = cluster_with_patch(json!({}));
        cluster.metadata.name = Some(name.to_owned());
        let problems = problems(&cluster);
        assert_eq!(problems.len(), usize::from(expected.is_some()), "{problems:?}");
        assert!(problems.iter().zip(expected).all(|(problem, start)| problem.starts_with(start)), "{problems:?}");
    }

    #[rstest]
    #[case::fine(json!({}), None)]
    #[case::head_group_name(json!({"groupName": "headgroup"}), Some("spec.workerGroupSpecs[1].groupName: \"headgroup\""))]
    #[case::used_twice(json!({"groupName": "first"}), Some("spec.workerGroupSpecs[1].groupName: \"first\" is used"))]
    #[case::not_a_label_value(json!({"groupName": "a b"}), Some("spec.workerGroupSpecs[1].groupName: \"a b\" is not a valid label value"))]
    #[case::bounds(json!({"minReplicas": 3, "maxReplicas": 2}), Some("spec.workerGroupSpecs[1].minReplicas: 3 is above"))]
    #[case::idle_timeout(json!({"idleTimeoutSeconds": 60}), Some("spec.workerGroupSpecs[1].idleTimeoutSeconds: only"))]
    #[case::priority(json!({"priority": 1}), Some("spec.workerGroupSpecs[1].priority: only"))]
    #[case::priority_of_zero(json!({"priority": 0}), None)]
    fn error_of_a_worker_group_names_field_and_value(#[case] group: Value, #[case] expected: Option<&str>) {
        let mut value = serde_json::to_value(worker("second", 1)).expect("a group is JSON");
        let (Some(fields), Value::Object(patch)) = (value.as_object_mut(), group) else { panic!("groups are objects") };
        fields.extend(patch);
        let cluster = cluster_with_patch(json!({"workerGroupSpecs": [worker("first", 1), value]}));
        let problems = problems(&cluster);
        assert_eq!(problems.len(), usize::from(expected.is_some()), "{problems:?}");
        assert!(expected.is_none_or(|expected| problems[0].starts_with(expected)), "{problems:?}");
    }

    #[test]
    fn cluster_of_a_ray_service_has_no_upgrade_strategy() {
        let mut cluster = cluster_with_patch(json!({"upgradeStrategy": {"type": "Recreate"}}));
        assert_eq!(problems(&cluster), Vec::<String>::new());
        cluster.metadata.labels = Some([(names::ORIGIN_KIND_LABEL.to_owned(), "RayService".to_owned())].into());
        assert!(problems(&cluster)[0].starts_with("spec.upgradeStrategy.type: Recreate"));
    }
}
