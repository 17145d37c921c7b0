//! Defaulting and validation of built-in kinds, as far as Sluice or its users depend on it.

mod pods;
mod services;
mod typed;

use serde_json::{Map, Value, json};

use super::fields;
use super::kinds::Kind;
use super::refusal::{Flaw, Refusal};
use super::store::Store;

/// Sets the initial status and the fields that are decided on creation.
///
/// # Errors
/// Returns an error if the PriorityClass of a pod does not exist.
pub fn begin(store: &Store, kind: &Kind, object: &mut Value) -> Result<(), Refusal> {
    match kind.kind.as_str() {
        "Pod" => {
            let class = pods::quality(object);
            object["status"] = json!({"phase": "Pending", "qosClass": class});
            pods::say_gated(object);
            pods::set_priority(store, kind, object)?;
        }
        "Namespace" => {
            let name = fields::name(object).to_owned();
            fields::map(fields::metadata_mut(object).entry("labels").or_insert(Value::Null))
                .insert("kubernetes.io/metadata.name".into(), name.into());
            object["spec"] = json!({"finalizers": ["kubernetes"]});
            object["status"] = json!({"phase": "Active"});
        }
        "Service" => {
            object["status"] = json!({"loadBalancer": {}});
            services::give_address(store, object);
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
pub fn reread(kind: &Kind, object: &mut Value) -> Result<(), String> {
    typed::reread(kind, object)
}

/// Applies defaults. Removes nulls, which built-in types do not have.
pub fn default(kind: &Kind, object: &mut Value) {
    without_nulls(object);
    match kind.kind.as_str() {
        "Pod" => pods::default_pod(fields::map(&mut object["spec"])),
        "Service" => services::default_service(fields::map(&mut object["spec"])),
        "PriorityClass" => set_default(fields::map(object), "preemptionPolicy", "PreemptLowerPriority"),
        "EndpointSlice" => default_slice(fields::map(object)),
        "Event" => {
            let event = fields::map(object);
            set_default(event, "deprecatedFirstTimestamp", Value::Null);
            set_default(event, "deprecatedLastTimestamp", Value::Null);
            set_default(event, "deprecatedSource", json!({}));
        }
        _ => {}
    }
}

/// Validates an object.
pub fn flaws(kind: &Kind, object: &Value) -> Vec<Flaw> {
    match kind.kind.as_str() {
        "Pod" => pods::flaws(object),
        "Service" => services::flaws(object),
        _ => Vec::new(),
    }
}

/// Validates an update.
///
/// # Errors
/// Returns an error if immutable fields change.
pub fn check_change(kind: &Kind, name: &str, old: &Value, new: &Value) -> Result<(), Refusal> {
    let errors = match kind.kind.as_str() {
        "Pod" => pods::change_flaws(old, new),
        "Service" => services::change_flaws(old, new),
        _ => Vec::new(),
    };
    if errors.is_empty() { Ok(()) } else { Err(Refusal::invalid(kind, name, &errors)) }
}

/// Restores fields that were allocated on creation and are missing in an update.
pub fn keep(kind: &Kind, old: &Value, object: &mut Value) {
    if kind.kind == "Service" {
        services::keep(old, object);
    }
}

fn set_default(fields: &mut Map<String, Value>, field: &str, value: impl Into<Value>) {
    if !fields.contains_key(field) {
        fields.insert(field.to_owned(), value.into());
    }
}

fn without_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(without_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(without_nulls),
        _ => {}
    }
}

fn default_slice(slice: &mut Map<String, Value>) {
    for endpoint in slice.get_mut("endpoints").and_then(Value::as_array_mut).into_iter().flatten() {
        set_default(fields::map(endpoint), "conditions", json!({}));
    }
    for port in slice.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        let port = fields::map(port);
        set_default(port, "name", "");
        set_default(port, "protocol", "TCP");
    }
}
