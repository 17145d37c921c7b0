//! Defaults of core types, such as a container port's `TCP`, in the schemas of the Ray kinds.
//!
//! They are those of KubeRay's and Kueue's CRDs. Kueue compares the pod templates of a Ray object
//! with those in its Workload: if only one of the two objects has a default, it deletes the Workload
//! and creates it again, without end.

use std::sync::LazyLock;

use serde_json::{Value, json};

/// Default of one field of an object.
#[derive(Debug, Clone)]
pub(super) struct FieldDefault {
    /// Path of the field; `[]` follows the name of a list, and stands for each of its items.
    path: String,
    /// The default.
    value: Value,
}

/// References to a key of a ConfigMap, of a Secret or of a file.
pub(super) fn value_source() -> Vec<FieldDefault> {
    let mut defaults = empty(&["configMapKeyRef.name", "secretKeyRef.name"]);
    defaults.push(field("fileKeyRef.optional", json!(false)));
    defaults
}

/// Items of `env`.
pub(super) fn env_var() -> Vec<FieldDefault> {
    below("valueFrom", value_source())
}

/// Items of `envFrom`.
pub(super) fn env_source() -> Vec<FieldDefault> {
    empty(&["configMapRef.name", "secretRef.name"])
}

/// Template of a Service.
pub(super) fn service() -> Vec<FieldDefault> {
    vec![field("spec.ports[].protocol", json!("TCP"))]
}

/// Template of a pod.
pub(super) fn pod_template() -> Vec<FieldDefault> {
    let containers = ["containers[]", "initContainers[]", "ephemeralContainers[]"];
    let mut spec: Vec<FieldDefault> = containers.into_iter().flat_map(|list| below(list, container())).collect();
    spec.extend(empty(&["imagePullSecrets[].name"]));
    spec.extend(below("volumes[]", volume()));
    below("spec", spec)
}

fn container() -> Vec<FieldDefault> {
    let mut defaults =
        empty(&["livenessProbe.grpc.service", "readinessProbe.grpc.service", "startupProbe.grpc.service"]);
    defaults.push(field("ports[].protocol", json!("TCP")));
    defaults.extend(below("env[]", env_var()));
    defaults.extend(below("envFrom[]", env_source()));
    defaults
}

fn volume() -> Vec<FieldDefault> {
    let mut defaults = empty(&[
        "cephfs.secretRef.name",
        "cinder.secretRef.name",
        "configMap.name",
        "csi.nodePublishSecretRef.name",
        "flexVolume.secretRef.name",
        "iscsi.secretRef.name",
        "projected.sources[].configMap.name",
        "projected.sources[].secret.name",
        "rbd.secretRef.name",
        "scaleIO.secretRef.name",
        "storageos.secretRef.name",
    ]);
    defaults.extend([
        field("azureDisk.fsType", json!("ext4")),
        field("azureDisk.readOnly", json!(false)),
        field("iscsi.iscsiInterface", json!("default")),
        field("rbd.keyring", json!("/etc/ceph/keyring")),
        field("rbd.pool", json!("rbd")),
        field("rbd.user", json!("admin")),
        field("scaleIO.fsType", json!("xfs")),
        field("scaleIO.storageMode", json!("ThinProvisioned")),
    ]);
    defaults
}

fn field(path: &str, value: Value) -> FieldDefault {
    FieldDefault { path: path.to_owned(), value }
}

/// Names of referenced objects and services, which default to the empty string.
fn empty(paths: &[&str]) -> Vec<FieldDefault> {
    paths.iter().map(|path| field(path, json!(""))).collect()
}

fn below(parent: &str, defaults: Vec<FieldDefault>) -> Vec<FieldDefault> {
    defaults.into_iter().map(|default| FieldDefault { path: format!("{parent}.{}", default.path), ..default }).collect()
}

/// Adds defaults to the schema of an object. Objects on their paths preserve unknown fields.
pub(super) fn add_to_schema(schema: &mut Value, defaults: &[FieldDefault]) {
    for default in defaults {
        add_field(schema, &default.path, &default.value);
    }
}

fn add_field(object: &mut Value, path: &str, default: &Value) {
    object["type"] = "object".into();
    object["x-kubernetes-preserve-unknown-fields"] = true.into();
    let (name, rest) = split(path);
    let list = name.strip_suffix("[]");
    let property = &mut object["properties"][list.unwrap_or(name)];
    match (rest, list) {
        (None, _) => {
            let kind = if default.is_boolean() { "boolean" } else { "string" };
            *property = json!({"type": kind, "default": default});
        }
        (Some(rest), None) => add_field(property, rest, default),
        (Some(rest), Some(_)) => {
            property["type"] = "array".into();
            add_field(&mut property["items"], rest, default);
        }
    }
}

/// Sets the defaults in a RayClusterSpec as the API server does, so that it equals one that was
/// stored without them.
pub fn set_in_cluster_spec(spec: &mut Value) {
    static DEFAULTS: LazyLock<Vec<FieldDefault>> = LazyLock::new(|| {
        let options = [
            ("autoscalerOptions.env[]", env_var()),
            ("autoscalerOptions.envFrom[]", env_source()),
            ("gcsFaultToleranceOptions.redisPassword.valueFrom", value_source()),
            ("gcsFaultToleranceOptions.redisUsername.valueFrom", value_source()),
            ("historyServerOptions.collectorOptions.env[]", env_var()),
            ("headGroupSpec", group()),
            ("workerGroupSpecs[]", group()),
        ];
        options.into_iter().flat_map(|(parent, defaults)| below(parent, defaults)).collect()
    });
    set(spec, &DEFAULTS);
}

/// Sets the defaults in the spec of a head group or worker group; see [`set_in_cluster_spec`].
pub fn set_in_group(group_spec: &mut Value) {
    static DEFAULTS: LazyLock<Vec<FieldDefault>> = LazyLock::new(group);
    set(group_spec, &DEFAULTS);
}

fn group() -> Vec<FieldDefault> {
    let mut defaults = below("template", pod_template());
    defaults.extend(below("headService", service()));
    defaults
}

fn set(object: &mut Value, defaults: &[FieldDefault]) {
    for default in defaults {
        set_field(object, &default.path, &default.value);
    }
}

fn set_field(object: &mut Value, path: &str, default: &Value) {
    let Some(fields) = object.as_object_mut() else { return };
    let (name, rest) = split(path);
    let property = fields.get_mut(name.trim_end_matches("[]"));
    match (rest, property) {
        (None, None | Some(Value::Null)) => {
            fields.insert(name.to_owned(), default.clone());
        }
        (Some(rest), Some(Value::Array(items))) => items.iter_mut().for_each(|item| set_field(item, rest, default)),
        (Some(rest), Some(property)) => set_field(property, rest, default),
        (None, Some(_)) | (Some(_), None) => {}
    }
}

/// Splits a path into its first name and the rest.
fn split(path: &str) -> (&str, Option<&str>) {
    path.split_once('.').map_or((path, None), |(name, rest)| (name, Some(rest)))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::port(
        json!({"spec": {"containers": [{"ports": [{"containerPort": 1}, {"containerPort": 2, "protocol": "UDP"}]}]}}),
        json!({"spec": {"containers": [{"ports": [
            {"containerPort": 1, "protocol": "TCP"}, {"containerPort": 2, "protocol": "UDP"}]}]}}))]
    #[case::null(
        json!({"spec": {"initContainers": [{"ports": [{"containerPort": 1, "protocol": null}]}]}}),
        json!({"spec": {"initContainers": [{"ports": [{"containerPort": 1, "protocol": "TCP"}]}]}}))]
    #[case::absent_parents(json!({"spec": {"containers": [{"name": "ray"}]}}), json!({"spec": {"containers": [{"name": "ray"}]}}))]
    #[case::another_type(json!({"spec": {"volumes": "none"}}), json!({"spec": {"volumes": "none"}}))]
    fn default_is_set_where_its_parent_exists(#[case] mut template: Value, #[case] expected: Value) {
        set(&mut template, &pod_template());
        assert_eq!(template, expected);
    }
}
