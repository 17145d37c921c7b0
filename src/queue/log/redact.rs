//! Redacts objects for the decision log: keeps every field that a decision can depend on, and drops
//! those that may contain secrets.

use std::borrow::Cow;

use kube_core::Resource;
use serde_json::{Map, Value};

use sluice_api::LAST_APPLIED_ANNOTATION;
use sluice_api::kueue::Workload;

/// Fields of a pod spec that requests and node affinity depend on.
const POD_FIELDS: [&str; 8] = [
    "containers",
    "initContainers",
    "overhead",
    "resources",
    "runtimeClassName",
    "nodeSelector",
    "tolerations",
    "affinity",
];
/// Fields of a container that requests depend on.
const CONTAINER_FIELDS: [&str; 3] = ["name", "resources", "restartPolicy"];

/// Returns an object without managed fields and without the last-applied annotation.
pub(super) fn object<K: Resource + Clone>(object: &K) -> Cow<'_, K> {
    let meta = object.meta();
    let applied = meta.annotations.as_ref().is_some_and(|all| all.contains_key(LAST_APPLIED_ANNOTATION));
    let mut object = Cow::Borrowed(object);
    if applied || meta.managed_fields.is_some() {
        let meta = object.to_mut().meta_mut();
        meta.managed_fields = None;
        if let Some(annotations) = &mut meta.annotations {
            annotations.remove(LAST_APPLIED_ANNOTATION);
        }
    }
    object
}

/// Returns a Workload whose pod templates contain only the fields that scheduling depends on.
pub(super) fn workload(workload: &Workload) -> Cow<'_, Workload> {
    let mut workload = object(workload);
    for set in &mut workload.to_mut().spec.pod_sets {
        set.template = template(set.template.decode()).into();
    }
    workload
}

fn template(mut template: Value) -> Value {
    keep(&mut template, &["spec"]);
    let Some(Value::Object(spec)) = template.get_mut("spec") else { return template };
    retain(spec, &POD_FIELDS);
    for list in ["containers", "initContainers"] {
        if let Some(Value::Array(containers)) = spec.get_mut(list) {
            containers.iter_mut().for_each(|container| keep(container, &CONTAINER_FIELDS));
        }
    }
    template
}

fn keep(value: &mut Value, fields: &[&str]) {
    if let Value::Object(map) = value {
        retain(map, fields);
    }
}

fn retain(map: &mut Map<String, Value>, fields: &[&str]) {
    map.retain(|field, _| fields.contains(&field.as_str()));
}
