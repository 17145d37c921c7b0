//! Defaulting and validation of Services.

use serde_json::{Map, Value, json};

use super::super::object_meta;
use super::super::status_error::FieldError;
use super::super::store::Store;
use super::set_default;

/// Fields allocated when a Service is created.
const ALLOCATED_FIELDS: [&str; 4] = ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"];

/// Applies defaults to the spec of a Service.
pub(super) fn default_service(spec: &mut Map<String, Value>) {
    set_default(spec, "type", "ClusterIP");
    set_default(spec, "sessionAffinity", "None");
    if spec.get("type") != Some(&"ExternalName".into()) {
        set_default(spec, "internalTrafficPolicy", "Cluster");
    }
    for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        let port = object_meta::as_map_mut(port);
        set_default(port, "protocol", "TCP");
        if port.get("targetPort").is_some_and(|target| *target == 0 || *target == "") {
            port.remove("targetPort");
        }
        if let Some(number) = port.get("port").cloned() {
            set_default(port, "targetPort", number);
        }
    }
}

/// Allocates a cluster IP, the same in every run.
pub(super) fn allocate_cluster_ip(store: &Store, service: &mut Value) {
    let spec = object_meta::as_map_mut(&mut service["spec"]);
    if spec.get("type") == Some(&"ExternalName".into()) {
        return;
    }
    let number = store.version();
    set_default(spec, "clusterIP", format!("10.96.{}.{}", number / 250 % 256, number % 250 + 1));
    let ip = spec.get("clusterIP").cloned().unwrap_or_default();
    set_default(spec, "clusterIPs", json!([ip]));
    set_default(spec, "ipFamilies", json!(["IPv4"]));
    set_default(spec, "ipFamilyPolicy", "SingleStack");
}

/// Restores allocated fields that are missing in an update.
pub(super) fn preserve_allocated(old: &Value, service: &mut Value) {
    if service.pointer("/spec/type") == Some(&"ExternalName".into()) {
        return;
    }
    for field in ALLOCATED_FIELDS {
        if let Some(value) = old.pointer("/spec").and_then(|spec| spec.get(field)) {
            set_default(object_meta::as_map_mut(&mut service["spec"]), field, value.clone());
        }
    }
}

/// Validates the ports of a Service.
pub(super) fn validate(service: &Value) -> Vec<FieldError> {
    let text = |pointer: &str| service.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let needs_ports = text("/spec/clusterIP") != "None" && text("/spec/type") != "ExternalName";
    let ports = service.pointer("/spec/ports").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if ports.is_empty() {
        return needs_ports.then(|| FieldError::required("spec.ports", "")).into_iter().collect();
    }
    let nameless = ports.iter().enumerate().filter(|(_, port)| ports.len() > 1 && port.get("name").is_none());
    nameless.map(|(index, _)| FieldError::required(format!("spec.ports[{index}].name"), "")).collect()
}

/// Validates an update of a Service: its cluster IP is immutable.
pub(super) fn validate_update(old: &Value, new: &Value) -> Vec<FieldError> {
    let address = |service: &Value| service.pointer("/spec/clusterIP").cloned();
    match (address(old), address(new)) {
        (Some(before), Some(after)) if before != after => {
            vec![FieldError::invalid("spec.clusterIPs[0]", &json!([after]), "may not change once set")]
        }
        _ => Vec::new(),
    }
}
