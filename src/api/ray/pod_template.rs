//! Pod template as submitted.

use k8s_openapi::api::core::v1::PodTemplateSpec;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::DecodeError;
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
        let template = open(serde_json::json!({
            "type": "object",
            "description": "Pod template of the core API. The first container runs Ray.",
            "required": ["spec"],
            "properties": {"spec": spec},
        }));
        Schema::from(template.as_object().cloned().unwrap_or_default())
    }
}
