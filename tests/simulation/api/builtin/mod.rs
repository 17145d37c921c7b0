//! Defaulting and validation of built-in kinds, as far as Sluice or its users depend on it.

mod jobs;
mod limits;
mod pods;
mod roundtrip;
mod services;

use serde_json::{Map, Value, json};

use super::kinds::ResourceKind;
use super::object_meta;
use super::status_error::{FieldError, StatusError};
use super::store::Store;

/// Sets the initial status and the fields that are decided on creation.
///
/// # Errors
/// Returns an error if the PriorityClass of a pod does not exist, or if the pod exceeds a limit.
pub fn initialize(store: &Store, kind: &ResourceKind, object: &mut Value) -> Result<(), StatusError> {
    match kind.kind.as_str() {
        "Pod" => {
            let class = pods::qos_class(object);
            object["status"] = json!({"phase": "Pending", "qosClass": class});
            pods::set_gated_condition(object);
            pods::set_priority(store, kind, object)?;
            limits::admit_pod(store, kind, object)?;
        }
        "Job" => {
            object["status"] = json!({});
            jobs::generate_selector(object);
        }
        "Namespace" => {
            let name = object_meta::name(object).to_owned();
            object_meta::as_map_mut(object_meta::metadata_mut(object).entry("labels").or_insert(Value::Null))
                .insert("kubernetes.io/metadata.name".into(), name.into());
            object["spec"] = json!({"finalizers": ["kubernetes"]});
            object["status"] = json!({"phase": "Active"});
        }
        "Service" => {
            object["status"] = json!({"loadBalancer": {}});
            services::allocate_cluster_ip(store, object);
        }
        "PersistentVolumeClaim" => object["status"] = json!({"phase": "Pending"}),
        _ => {}
    }
    Ok(())
}

/// Decodes an object into the type of its kind and encodes it again, which drops unknown and empty
/// fields.
///
/// # Errors
/// Returns a message that names the field if it is of the wrong type.
pub fn roundtrip(kind: &ResourceKind, object: &mut Value) -> Result<(), String> {
    roundtrip::roundtrip(kind, object)
}

/// Applies defaults. Removes nulls, which built-in types do not have.
pub fn apply_defaults(kind: &ResourceKind, object: &mut Value) {
    remove_nulls(object);
    match kind.kind.as_str() {
        "Job" => jobs::default_job(object_meta::as_map_mut(object)),
        "Pod" => pods::default_pod(object_meta::as_map_mut(&mut object["spec"])),
        "Service" => services::default_service(object_meta::as_map_mut(&mut object["spec"])),
        "PriorityClass" => set_default(object_meta::as_map_mut(object), "preemptionPolicy", "PreemptLowerPriority"),
        "EndpointSlice" => default_endpoint_slice(object_meta::as_map_mut(object)),
        "Event" => {
            let event = object_meta::as_map_mut(object);
            set_default(event, "deprecatedFirstTimestamp", Value::Null);
            set_default(event, "deprecatedLastTimestamp", Value::Null);
            set_default(event, "deprecatedSource", json!({}));
        }
        _ => {}
    }
}

/// Validates an object.
pub fn validate(kind: &ResourceKind, object: &Value) -> Vec<FieldError> {
    match kind.kind.as_str() {
        "Job" => jobs::validate(object),
        "Pod" => pods::validate(object),
        "Service" => services::validate(object),
        _ => Vec::new(),
    }
}

/// Validates an update.
///
/// # Errors
/// Returns an error if immutable fields change.
pub fn validate_update(kind: &ResourceKind, name: &str, old: &Value, new: &Value) -> Result<(), StatusError> {
    let errors = match kind.kind.as_str() {
        "Job" => jobs::validate_update(old, new),
        "Pod" => pods::validate_update(old, new),
        "Service" => services::validate_update(old, new),
        _ => Vec::new(),
    };
    if errors.is_empty() { Ok(()) } else { Err(StatusError::invalid(kind, name, &errors)) }
}

/// Restores fields that were allocated on creation and are missing in an update.
pub fn preserve_allocated(kind: &ResourceKind, old: &Value, object: &mut Value) {
    if kind.kind == "Service" {
        services::preserve_allocated(old, object);
    }
}

fn set_default(fields: &mut Map<String, Value>, field: &str, value: impl Into<Value>) {
    if !fields.contains_key(field) {
        fields.insert(field.to_owned(), value.into());
    }
}

fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(remove_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}

fn default_endpoint_slice(slice: &mut Map<String, Value>) {
    for endpoint in slice.get_mut("endpoints").and_then(Value::as_array_mut).into_iter().flatten() {
        set_default(object_meta::as_map_mut(endpoint), "conditions", json!({}));
    }
    for port in slice.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        let port = object_meta::as_map_mut(port);
        set_default(port, "name", "");
        set_default(port, "protocol", "TCP");
    }
}
