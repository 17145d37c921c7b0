//! Defaulting and validation of pods.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::super::kinds::{self, ResourceKind};
use super::super::object_meta;
use super::super::status_error::{FieldError, StatusError};
use super::super::store::Store;
use super::{roundtrip, set_default};

/// Sets condition PodScheduled=False, reason SchedulingGated, on a new pod with scheduling gates
/// (kubernetes 1.36 `pkg/registry/core/pod/strategy.go`, `applySchedulingGatedCondition`).
pub(super) fn set_gated_condition(pod: &mut Value) {
    let gates = pod.pointer("/spec/schedulingGates").and_then(Value::as_array);
    if gates.is_none_or(Vec::is_empty) {
        return;
    }
    pod["status"]["conditions"] = json!([{
        "type": "PodScheduled",
        "status": "False",
        "lastProbeTime": null,
        "lastTransitionTime": pod["metadata"]["creationTimestamp"],
        "reason": "SchedulingGated",
        "message": "Scheduling is blocked due to non-empty scheduling gates",
    }]);
}

/// Applies defaults to the spec of a pod.
pub(super) fn default_pod(spec: &mut Map<String, Value>) {
    set_default(spec, "restartPolicy", "Always");
    set_default(spec, "terminationGracePeriodSeconds", 30);
    set_default(spec, "dnsPolicy", "ClusterFirst");
    set_default(spec, "schedulerName", "default-scheduler");
    set_default(spec, "enableServiceLinks", true);
    set_default(spec, "securityContext", json!({}));
    for list in ["containers", "initContainers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            default_container(object_meta::as_map_mut(container));
        }
    }
}

fn default_container(container: &mut Map<String, Value>) {
    let image = container.get("image").and_then(Value::as_str).unwrap_or_default();
    let tag = image.rsplit('/').next().and_then(|name| name.split_once(':')).map(|(_, tag)| tag);
    let is_latest = !image.contains('@') && tag.is_none_or(|tag| tag == "latest");
    set_default(container, "imagePullPolicy", if is_latest { "Always" } else { "IfNotPresent" });
    set_default(container, "terminationMessagePath", "/dev/termination-log");
    set_default(container, "terminationMessagePolicy", "File");
    set_default(container, "resources", json!({}));
    for port in container.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        set_default(object_meta::as_map_mut(port), "protocol", "TCP");
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = container.get_mut(probe).and_then(Value::as_object_mut) {
            if let Some(get) = probe.get_mut("httpGet").and_then(Value::as_object_mut) {
                set_default(get, "path", "/");
                set_default(get, "scheme", "HTTP");
            }
            for (field, value) in
                [("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)]
            {
                set_default(probe, field, value);
            }
        }
    }
    for variable in container.get_mut("env").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(field) = variable.pointer_mut("/valueFrom/fieldRef").and_then(Value::as_object_mut) {
            set_default(field, "apiVersion", "v1");
        }
    }
    // A request that is not set defaults to the limit.
    let limits = container.get("resources").and_then(|resources| resources.get("limits")).and_then(Value::as_object);
    if let Some(limits) = limits.cloned() {
        let resources = object_meta::as_map_mut(&mut container["resources"]);
        let requests = object_meta::as_map_mut(resources.entry("requests").or_insert(Value::Null));
        for (resource, amount) in limits {
            set_default(requests, &resource, amount);
        }
    }
}

/// Returns the QoS class, by requests and limits of CPU and memory.
pub(super) fn qos_class(pod: &Value) -> &'static str {
    let containers: Vec<&Value> = ["/spec/containers", "/spec/initContainers"]
        .into_iter()
        .filter_map(|list| pod.pointer(list)?.as_array())
        .flatten()
        .collect();
    let amount = |container: &Value, list: &str, resource: &str| {
        container.pointer(&format!("/resources/{list}/{resource}")).cloned()
    };
    let lists = [("requests", "cpu"), ("requests", "memory"), ("limits", "cpu"), ("limits", "memory")];
    if !containers
        .iter()
        .any(|container| lists.iter().any(|(list, resource)| amount(container, list, resource).is_some()))
    {
        return "BestEffort";
    }
    let is_guaranteed = |container: &&Value| {
        ["cpu", "memory"].into_iter().all(|resource| {
            let limit = amount(container, "limits", resource);
            limit.is_some() && limit == amount(container, "requests", resource)
        })
    };
    if containers.iter().all(is_guaranteed) { "Guaranteed" } else { "Burstable" }
}

/// Sets the priority of a pod from its PriorityClass.
///
/// # Errors
/// Returns an error if the PriorityClass does not exist.
pub(super) fn set_priority(store: &Store, kind: &ResourceKind, pod: &mut Value) -> Result<(), StatusError> {
    let name = object_meta::name(pod).to_owned();
    let spec = object_meta::as_map_mut(&mut pod["spec"]);
    let class = spec.get("priorityClassName").and_then(Value::as_str).unwrap_or_default();
    let found = store.get(kinds::by_name("PriorityClass"), class).map(|class| &class.object);
    if found.is_none() && !class.is_empty() {
        let why = format!("no PriorityClass with name {class} was found");
        return Err(StatusError::forbidden(kind, &name, &why));
    }
    let value = found.and_then(|class| class.get("value").cloned()).unwrap_or(0.into());
    let policy = found.and_then(|class| class.get("preemptionPolicy").cloned());
    spec.insert("priority".into(), value);
    set_default(spec, "preemptionPolicy", policy.unwrap_or("PreemptLowerPriority".into()));
    Ok(())
}

/// Validates the containers of a pod.
pub(super) fn validate(pod: &Value) -> Vec<FieldError> {
    let containers = pod.pointer("/spec/containers").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if containers.is_empty() {
        return vec![FieldError::required("spec.containers", "")];
    }
    let mut names = BTreeSet::new();
    let mut errors = Vec::new();
    for (index, container) in containers.iter().enumerate() {
        let path = format!("spec.containers[{index}]");
        let text = |field: &str| container.get(field).and_then(Value::as_str).unwrap_or_default();
        for field in ["name", "image"].into_iter().filter(|field| text(field).is_empty()) {
            errors.push(FieldError::required(format!("{path}.{field}"), ""));
        }
        if !names.insert(text("name")) {
            let text = format!("Duplicate value: {}", json!(text("name")));
            errors.push(FieldError { field: format!("{path}.name"), cause_type: "FieldValueDuplicate", message: text });
        }
        errors.extend(validate_resources(container, &path));
    }
    errors
}

/// Validates that requests do not exceed limits, and equal them for devices (extended resources).
fn validate_resources(container: &Value, path: &str) -> Vec<FieldError> {
    let quantities = |list: &str| container.pointer(&format!("/resources/{list}")).and_then(Value::as_object);
    let (requests, limits) = (quantities("requests"), quantities("limits"));
    let mut errors = Vec::new();
    for (resource, request) in requests.into_iter().flatten() {
        let field = format!("{path}.resources.requests");
        let limit = roundtrip::parse_quantity(limits, resource);
        let is_device = resource.contains('/') && !resource.starts_with("kubernetes.io/");
        match (roundtrip::parse_quantity(requests, resource), limit) {
            (Some(_), None) if is_device => {
                let why = "Limit must be set for non overcommitable resources";
                errors.push(FieldError::required(format!("{path}.resources.limits"), why));
            }
            (Some(amount), Some(limit)) if is_device && amount != limit => {
                let why = format!("must be equal to {resource} limit");
                errors.push(FieldError::invalid(field, request, &why));
            }
            (Some(amount), Some(limit)) if amount > limit => {
                let why = format!("must be less than or equal to {resource} limit");
                errors.push(FieldError::invalid(field, request, &why));
            }
            _ => {}
        }
    }
    errors
}

/// Validates an update of a pod (kubernetes 1.36 `pkg/apis/core/validation/validation.go`,
/// `ValidatePodUpdate`). The node selector of a gated pod can be extended.
pub(super) fn validate_update(old: &Value, new: &Value) -> Vec<FieldError> {
    let mut errors = validate_scheduling_gates(old, new);
    let lost_entry = |field: &str| {
        let kept = new["spec"][field].as_array().cloned().unwrap_or_default();
        old["spec"][field].as_array().is_some_and(|old| old.iter().any(|entry| !kept.contains(entry)))
    };
    if lost_entry("tolerations") {
        let why = "existing toleration can not be modified except its tolerationSeconds";
        errors.push(FieldError::forbidden("spec.tolerations", why));
    }
    let is_gated = old["spec"]["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty());
    let (mut before, mut after) = (immutable_spec(old), immutable_spec(new));
    if is_gated {
        let (before, after) = (
            object_meta::as_map_mut(&mut before).remove("nodeSelector"),
            object_meta::as_map_mut(&mut after).remove("nodeSelector"),
        );
        let (before, after) = (before.unwrap_or_default(), after.unwrap_or_default());
        if before.as_object().is_some_and(|labels| labels.iter().any(|(key, value)| after.get(key) != Some(value))) {
            let why = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
            errors.push(FieldError::invalid("spec.nodeSelector", &after, why));
        }
    }
    if before != after {
        let why = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,\
            `spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),\
            `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)\n";
        errors.push(FieldError::forbidden("spec", why));
    }
    errors
}

fn validate_scheduling_gates(old: &Value, new: &Value) -> Vec<FieldError> {
    let names = |pod: &Value| -> Vec<String> {
        let gates = pod["spec"]["schedulingGates"].as_array().cloned().unwrap_or_default();
        gates.iter().filter_map(|gate| gate["name"].as_str().map(str::to_owned)).collect()
    };
    let known = names(old);
    let new = names(new).into_iter().enumerate().filter(|(_, gate)| !known.contains(gate));
    let errors = new.map(|(index, gate)| {
        let why = format!("only deletion is allowed, but found new scheduling gate '{gate}'");
        FieldError::forbidden(format!("spec.schedulingGates[{index}].name"), &why)
    });
    errors.collect()
}

/// Returns the immutable part of the spec of a pod.
fn immutable_spec(pod: &Value) -> Value {
    let mut spec = pod["spec"].clone();
    let fields = object_meta::as_map_mut(&mut spec);
    for changeable in ["activeDeadlineSeconds", "tolerations", "schedulingGates"] {
        fields.remove(changeable);
    }
    for list in ["containers", "initContainers"] {
        for container in fields.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            object_meta::as_map_mut(container).remove("image");
        }
    }
    spec
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::none(json!({}), "BestEffort")]
    #[case::requests(json!({"requests": {"cpu": "1"}}), "Burstable")]
    #[case::both_equal(
        json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}}),
        "Guaranteed"
    )]
    fn qos_class_follows_from_requests_and_limits(#[case] resources: Value, #[case] expected: &str) {
        let pod = json!({"spec": {"containers": [{"name": "c", "resources": resources}]}});
        assert_eq!(qos_class(&pod), expected);
    }

    #[rstest]
    #[case::gate_removed(json!({}), true)]
    #[case::gate_kept(json!({"schedulingGates": [{"name": "a"}]}), true)]
    #[case::gate_added(json!({"schedulingGates": [{"name": "a"}, {"name": "b"}]}), false)]
    #[case::node_selector_extended(json!({"nodeSelector": {"zone": "1", "gpu": "h100"}}), true)]
    #[case::node_selector_changed(json!({"nodeSelector": {"zone": "2"}}), false)]
    #[case::node_selector_removed(json!({"nodeSelector": null}), false)]
    #[case::toleration_added(json!({"tolerations": [{"key": "a"}, {"key": "b"}]}), true)]
    #[case::toleration_removed(json!({"tolerations": [{"key": "b"}]}), false)]
    #[case::other_field(json!({"hostname": "h"}), false)]
    fn gated_pod_allows_gate_removal_and_node_selector_additions(#[case] change: Value, #[case] allowed: bool) {
        let spec =
            json!({"schedulingGates": [{"name": "a"}], "nodeSelector": {"zone": "1"}, "tolerations": [{"key": "a"}]});
        let old = json!({"spec": spec});
        let mut new = old.clone();
        new["spec"]["schedulingGates"] = Value::Null;
        change.as_object().into_iter().flatten().for_each(|(field, value)| new["spec"][field] = value.clone());
        assert_eq!(validate_update(&old, &new).is_empty(), allowed);
    }

    #[test]
    fn node_selector_of_an_ungated_pod_is_immutable() {
        let new = json!({"spec": {"nodeSelector": {"gpu": "h100"}}});
        assert_eq!(validate_update(&json!({"spec": {}}), &new).len(), 1);
    }

    #[test]
    fn requests_default_to_limits() {
        let mut pod = json!({"spec": {"containers": [{
            "name": "c",
            "image": "host:5000/ray:2",
            "ports": [{"containerPort": 1}],
            "resources": {"limits": {"cpu": "1", "memory": "2Gi"}, "requests": {"cpu": "500m"}},
        }]}});
        super::super::apply_defaults(kinds::by_name("Pod"), &mut pod);
        let container = &pod["spec"]["containers"][0];
        assert_eq!(container["resources"]["requests"], json!({"cpu": "500m", "memory": "2Gi"}));
        assert_eq!(container["imagePullPolicy"], "IfNotPresent");
        assert_eq!(container["ports"][0]["protocol"], "TCP");
        assert_eq!(pod["spec"]["restartPolicy"], "Always");
    }
}
