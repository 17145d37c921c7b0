//! Validates objects against their schema. Unchanged values are not validated again: the API server
//! tolerates existing errors since Kubernetes 1.33 (ratcheting).

use serde_json::{Map, Value, json};

use super::super::status_error::FieldError;
use super::{ListType, Schema, ValuePath, ValueType};

impl Schema {
    /// Validates an object; `before` is the stored object, `None` on create.
    pub fn validate(&self, object: &Value, before: Option<&Value>) -> Vec<FieldError> {
        let mut errors = Vec::new();
        self.validate_at(object, before, ValuePath::Root, &mut errors);
        errors
    }

    /// Prunes, defaults and validates the status of an object; `before` is the stored object.
    pub fn default_and_validate_status(&self, object: &mut Value, before: Option<&Value>) -> Vec<FieldError> {
        let (Some(schema), Some(status)) = (self.field("status"), object.get_mut("status")) else { return Vec::new() };
        let before = before.and_then(|before| before.get("status"));
        schema.prune_and_default(status, before);
        // Messages of the schema name fields relative to the status, those of rules do not.
        let mut errors = schema.validate(status, before);
        for error in &mut errors {
            error.field = format!("status.{}", error.field);
        }
        if !errors.iter().any(FieldError::skips_cel_rules) {
            let path = ValuePath::Field(&ValuePath::Root, "status");
            schema.validate_rules_at(status, before, path, &mut errors);
        }
        errors
    }

    /// Evaluates the CEL rules of the CRD; `before` is the stored object, `None` on create.
    pub fn validate_rules(&self, object: &Value, before: Option<&Value>) -> Vec<FieldError> {
        let mut errors = Vec::new();
        self.validate_rules_at(object, before, ValuePath::Root, &mut errors);
        errors
    }

    fn validate_rules_at(
        &self,
        value: &Value,
        before: Option<&Value>,
        path: ValuePath<'_>,
        errors: &mut Vec<FieldError>,
    ) {
        if !self.has_rules || before == Some(value) {
            return;
        }
        self.check_rules(value, before, path, errors);
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    let Some(schema) = self.field(name) else { continue };
                    let before = before.and_then(|before| before.get(name));
                    schema.validate_rules_at(value, before, ValuePath::Field(&path, name), errors);
                }
            }
            Value::Array(items) => {
                let Some(schema) = self.item() else { return };
                for (index, item) in items.iter().enumerate() {
                    schema.validate_rules_at(
                        item,
                        self.previous_item(item, before),
                        ValuePath::Index(&path, index),
                        errors,
                    );
                }
            }
            _ => {}
        }
    }

    /// Returns the earlier state of a list item; `None` if it is new or the list has no keys.
    fn previous_item<'a>(&self, item: &Value, before: Option<&'a Value>) -> Option<&'a Value> {
        let key = self.item_key(item)?;
        before?.as_array()?.iter().find(|earlier| self.item_key(earlier).as_ref() == Some(&key))
    }

    fn validate_at(&self, value: &Value, before: Option<&Value>, path: ValuePath<'_>, errors: &mut Vec<FieldError>) {
        if before == Some(value) {
            return;
        }
        if !self.value_type.matches(value) {
            let name = type_name(value);
            let why = format!("{path} in body must be of type {}: \"{name}\"", self.value_type.name());
            errors.push(FieldError::wrong_type(path.to_string(), &json!(name), &why));
            return;
        }
        if !self.constraints.enum_values.is_empty() && !self.constraints.enum_values.contains(value) {
            let allowed: Vec<String> = self.constraints.enum_values.iter().map(Value::to_string).collect();
            let text = format!("Unsupported value: {value}: supported values: {}", allowed.join(", "));
            errors.push(FieldError { field: path.to_string(), cause_type: "FieldValueNotSupported", message: text });
        }
        match value {
            Value::Object(fields) => self.validate_fields(fields, before, path, errors),
            Value::Array(items) => self.validate_items(items, before, path, errors),
            Value::String(text) => self.validate_string(text, path, errors),
            Value::Number(_) => self.validate_number(value, path, errors),
            _ => {}
        }
    }

    fn validate_fields(
        &self,
        fields: &Map<String, Value>,
        before: Option<&Value>,
        path: ValuePath<'_>,
        errors: &mut Vec<FieldError>,
    ) {
        for name in self.required.iter().filter(|name| !fields.contains_key(*name)) {
            errors.push(FieldError::required(ValuePath::Field(&path, name).to_string(), ""));
        }
        if let Some(most) = self.constraints.max_properties.filter(|most| fields.len() > *most) {
            errors.push(too_many_error(path, fields.len(), most));
        }
        for (name, value) in fields {
            if let Some(schema) = self.field(name) {
                schema.validate_at(
                    value,
                    before.and_then(|before| before.get(name)),
                    ValuePath::Field(&path, name),
                    errors,
                );
            }
        }
    }

    fn validate_items(
        &self,
        items: &[Value],
        before: Option<&Value>,
        path: ValuePath<'_>,
        errors: &mut Vec<FieldError>,
    ) {
        if let Some(most) = self.constraints.max_items.filter(|most| items.len() > *most) {
            errors.push(too_many_error(path, items.len(), most));
        }
        if let Some(least) = self.constraints.min_items.filter(|least| items.len() < *least) {
            let why = format!("{path} in body should have at least {least} items");
            errors.push(FieldError::invalid(path.to_string(), &json!(items.len()), &why));
        }
        for (index, item) in items.iter().enumerate() {
            let key = self.item_key(item);
            if let Some(key) = &key
                && items[..index].iter().any(|earlier| self.item_key(earlier).as_ref() == Some(key))
            {
                let text = format!("Duplicate value: {key}");
                errors.push(FieldError {
                    field: ValuePath::Index(&path, index).to_string(),
                    cause_type: "FieldValueDuplicate",
                    message: text,
                });
            }
            if let Some(schema) = self.item() {
                schema.validate_at(item, self.previous_item(item, before), ValuePath::Index(&path, index), errors);
            }
        }
    }

    /// Returns the key of a list item; `None` if the list is atomic.
    fn item_key(&self, item: &Value) -> Option<Value> {
        match &self.list_type {
            ListType::Atomic => None,
            ListType::Set => Some(item.clone()),
            ListType::Map(keys) => {
                let key = keys.iter().filter_map(|key| Some((key.clone(), item.get(key)?.clone())));
                Some(Value::Object(key.collect()))
            }
        }
    }

    fn validate_string(&self, text: &str, path: ValuePath<'_>, errors: &mut Vec<FieldError>) {
        let rules = &self.constraints;
        let length = text.chars().count();
        if let Some(most) = rules.max_length.filter(|most| length > *most) {
            let text = format!("Too long: may not be more than {most} bytes");
            errors.push(FieldError { field: path.to_string(), cause_type: "FieldValueTooLong", message: text });
        }
        if let Some(least) = rules.min_length.filter(|least| length < *least) {
            let why = format!("{path} in body should be at least {least} chars long");
            errors.push(FieldError::invalid(path.to_string(), &json!(text), &why));
        }
        if let Some(pattern) = rules.pattern.as_ref().filter(|pattern| !pattern.is_match(text)) {
            let why = format!("{path} in body should match '{pattern}'");
            errors.push(FieldError::invalid(path.to_string(), &json!(text), &why));
        }
        if rules.format.as_deref() == Some("date-time") && text.parse::<jiff::Timestamp>().is_err() {
            let why = format!("{path} in body must be of type date-time: {}", json!(text));
            errors.push(FieldError::wrong_type(path.to_string(), &json!(text), &why));
        }
    }

    fn validate_number(&self, value: &Value, path: ValuePath<'_>, errors: &mut Vec<FieldError>) {
        let Some(number) = value.as_f64() else { return };
        let mut invalid = |why: String| errors.push(FieldError::invalid(path.to_string(), value, &why));
        if let Some(least) = self.constraints.minimum.filter(|least| number < *least) {
            invalid(format!("{path} in body should be greater than or equal to {least}"));
        }
        if let Some(most) = self.constraints.maximum.filter(|most| number > *most) {
            invalid(format!("{path} in body should be less than or equal to {most}"));
        }
        if self.constraints.format.as_deref() == Some("int32")
            && value.as_i64().is_none_or(|n| i32::try_from(n).is_err())
        {
            let why = format!("Checked value must be of type integer with format int32 in {path}");
            errors.push(FieldError::invalid("<nil>", &json!(""), &why));
        }
    }
}

impl ValueType {
    fn name(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::Object => "object",
            Self::Array => "array",
            Self::String => "string",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Boolean => "boolean",
            Self::IntOrString => "integer,string",
        }
    }

    fn matches(self, value: &Value) -> bool {
        let is_whole =
            |value: &Value| value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|n| n.fract() == 0.0);
        match self {
            Self::Any => true,
            Self::Object => value.is_object(),
            Self::Array => value.is_array(),
            Self::String => value.is_string(),
            Self::Integer => is_whole(value),
            Self::Number => value.is_number(),
            Self::Boolean => value.is_boolean(),
            Self::IntOrString => value.is_string() || is_whole(value),
        }
    }
}

/// Returns the name of a value's type in a schema.
pub(super) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn too_many_error(path: ValuePath<'_>, count: usize, most: usize) -> FieldError {
    let text = format!("Too many: {count}: must have at most {most} items");
    FieldError { field: path.to_string(), cause_type: "FieldValueTooMany", message: text }
}
