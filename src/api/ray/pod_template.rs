//! Pod template as submitted.

use k8s_openapi::api::core::v1::PodTemplateSpec;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{core_defaults, schema};
use crate::DecodeError;
use crate::kueue::names::ELASTIC_JOB_GATE;
use crate::raw_json::RawJson;

/// Pod template that is kept as submitted, so that fields unknown to this version of the Kubernetes
/// types are preserved.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PodTemplate(pub RawJson);

impl PodTemplate {
    /// Returns the PriorityClass name of the pods. None if it is unset or empty.
    pub fn priority_class(&self) -> Option<&str> {
        self.0.pointer("/spec/priorityClassName")?.as_str().filter(|name| !name.is_empty())
    }

    /// Removes the scheduling gate of elastic jobs. Gates of other controllers are kept.
    pub fn remove_scheduling_gate(&mut self) {
        let is_ours = |gate: &Value| gate.get("name").is_some_and(|name| name == ELASTIC_JOB_GATE);
        let gates = self.0.pointer("/spec/schedulingGates").and_then(Value::as_array);
        if !gates.is_some_and(|gates| gates.iter().any(is_ours)) {
            return;
        }
        let Some(spec) = self.0.pointer_mut("/spec").and_then(Value::as_object_mut) else { return };
        if let Some(Value::Array(mut gates)) = spec.remove("schedulingGates") {
            gates.retain(|gate| !is_ours(gate));
            if !gates.is_empty() {
                spec.insert("schedulingGates".to_owned(), gates.into());
            }
        }
    }

    /// Decodes the template into the Kubernetes type.
    ///
    /// # Errors
    /// If a field has an invalid value.
    pub fn parse(&self) -> Result<PodTemplateSpec, DecodeError> {
        Ok(PodTemplateSpec::deserialize(&*self.0)?)
    }
}

impl JsonSchema for PodTemplate {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "PodTemplate".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let open = |schema: Value| {
            let mut schema = schema;
            schema["x-kubernetes-preserve-unknown-fields"] = true.into();
            schema
        };
        let container = open(serde_json::json!({
            "type": "object",
            "required": ["name"],
            "properties": {"name": {"type": "string", "minLength": 1}},
        }));
        let spec = open(serde_json::json!({
            "type": "object",
            "required": ["containers"],
            "properties": {"containers": {"type": "array", "minItems": 1, "items": container}},
        }));
        let mut template = open(serde_json::json!({
            "type": "object",
            "description": "Pod template of the core API. The first container runs Ray.",
            "required": ["spec"],
            "properties": {"spec": spec},
        }));
        core_defaults::add_to_schema(&mut template, &core_defaults::pod_template());
        schema::schema_of(&template)
    }
}
