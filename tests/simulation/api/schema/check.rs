//! Validates objects against their schema. Unchanged values are not validated again: the API server
//! tolerates existing errors since Kubernetes 1.33 (ratcheting).

use serde_json::{Map, Value, json};

use super::super::refusal::Flaw;
use super::{ListType, Path, Schema, Type};

impl Schema {
    /// Validates an object; `before` is the stored object, `None` on create.
    pub fn flaws(&self, object: &Value, before: Option<&Value>) -> Vec<Flaw> {
        let mut errors = Vec::new();
        self.check(object, before, Path::Root, &mut errors);
        errors
    }

    /// Prunes, defaults and validates the status of an object; `before` is the stored object.
    pub fn settle_status(&self, object: &mut Value, before: Option<&Value>) -> Vec<Flaw> {
        let (Some(schema), Some(status)) = (self.field("status"), object.get_mut("status")) else { return Vec::new() };
        let before = before.and_then(|before| before.get("status"));
        schema.settle(status, before);
        let mut errors = schema.flaws(status, before);
        if !errors.iter().any(Flaw::hides_others) {
            errors.extend(schema.broken_rules(status, before));
        }
        for error in &mut errors {
            error.field = format!("status.{}", error.field);
        }
        errors
    }

    /// Evaluates the CEL rules of the CRD; `before` is the stored object, `None` on create.
    pub fn broken_rules(&self, object: &Value, before: Option<&Value>) -> Vec<Flaw> {
        let mut errors = Vec::new();
        self.check_rules_at(object, before, Path::Root, &mut errors);
        errors
    }

    fn check_rules_at(&self, value: &Value, before: Option<&Value>, path: Path<'_>, errors: &mut Vec<Flaw>) {
        if before == Some(value) {
            return;
        }
        self.check_rules(value, before, path, errors);
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    let Some(schema) = self.field(name) else { continue };
                    let before = before.and_then(|before| before.get(name));
                    schema.check_rules_at(value, before, Path::Field(&path, name), errors);
                }
            }
            Value::Array(items) => {
                let Some(schema) = self.item() else { return };
                for (index, item) in items.iter().enumerate() {
                    schema.check_rules_at(item, self.same_item(item, before), Path::Index(&path, index), errors);
                }
            }
            _ => {}
        }
    }

    /// Returns the earlier state of a list item; `None` if it is new or the list has no keys.
    fn same_item<'a>(&self, item: &Value, before: Option<&'a Value>) -> Option<&'a Value> {
        let key = self.key_of(item)?;
        before?.as_array()?.iter().find(|earlier| self.key_of(earlier).as_ref() == Some(&key))
    }

    fn check(&self, value: &Value, before: Option<&Value>, path: Path<'_>, errors: &mut Vec<Flaw>) {
        if before == Some(value) {
            return;
        }
        if !self.of.is_that_of(value) {
            let name = type_name(value);
            let why = format!("{path} in body must be of type {}: \"{name}\"", self.of.name());
            errors.push(Flaw::wrong_type(path.to_string(), &json!(name), &why));
            return;
        }
        if !self.rules.allowed.is_empty() && !self.rules.allowed.contains(value) {
            let allowed: Vec<String> = self.rules.allowed.iter().map(Value::to_string).collect();
            let text = format!("Unsupported value: {value}: supported values: {}", allowed.join(", "));
            errors.push(Flaw { field: path.to_string(), cause: "FieldValueNotSupported", text });
        }
        match value {
            Value::Object(fields) => self.check_fields(fields, before, path, errors),
            Value::Array(items) => self.check_items(items, before, path, errors),
            Value::String(text) => self.check_text(text, path, errors),
            Value::Number(_) => self.check_number(value, path, errors),
            _ => {}
        }
    }

    fn check_fields(
        &self,
        fields: &Map<String, Value>,
        before: Option<&Value>,
        path: Path<'_>,
        errors: &mut Vec<Flaw>,
    ) {
        for name in self.required.iter().filter(|name| !fields.contains_key(*name)) {
            errors.push(Flaw::required(Path::Field(&path, name).to_string(), ""));
        }
        if let Some(most) = self.rules.max_properties.filter(|most| fields.len() > *most) {
            errors.push(too_many(path, fields.len(), most));
        }
        for (name, value) in fields {
            if let Some(schema) = self.field(name) {
                schema.check(value, before.and_then(|before| before.get(name)), Path::Field(&path, name), errors);
            }
        }
    }

    fn check_items(&self, items: &[Value], before: Option<&Value>, path: Path<'_>, errors: &mut Vec<Flaw>) {
        if let Some(most) = self.rules.max_items.filter(|most| items.len() > *most) {
            errors.push(too_many(path, items.len(), most));
        }
        if let Some(least) = self.rules.min_items.filter(|least| items.len() < *least) {
            let why = format!("{path} in body should have at least {least} items");
            errors.push(Flaw::invalid(path.to_string(), &json!(items.len()), &why));
        }
        for (index, item) in items.iter().enumerate() {
            let key = self.key_of(item);
            if let Some(key) = &key
                && items[..index].iter().any(|earlier| self.key_of(earlier).as_ref() == Some(key))
            {
                let text = format!("Duplicate value: {key}");
                errors.push(Flaw { field: Path::Index(&path, index).to_string(), cause: "FieldValueDuplicate", text });
            }
            if let Some(schema) = self.item() {
                schema.check(item, self.same_item(item, before), Path::Index(&path, index), errors);
            }
        }
    }

    /// Returns the key of a list item; `None` if the list is atomic.
    fn key_of(&self, item: &Value) -> Option<Value> {
        match &self.list {
            ListType::Atomic => None,
            ListType::Set => Some(item.clone()),
            ListType::Map(keys) => {
                let key = keys.iter().filter_map(|key| Some((key.clone(), item.get(key)?.clone())));
                Some(Value::Object(key.collect()))
            }
        }
    }

    fn check_text(&self, text: &str, path: Path<'_>, errors: &mut Vec<Flaw>) {
        let rules = &self.rules;
        let length = text.chars().count();
        if let Some(most) = rules.max_length.filter(|most| length > *most) {
            let text = format!("Too long: may not be more than {most} bytes");
            errors.push(Flaw { field: path.to_string(), cause: "FieldValueTooLong", text });
        }
        if let Some(least) = rules.min_length.filter(|least| length < *least) {
            let why = format!("{path} in body should be at least {least} chars long");
            errors.push(Flaw::invalid(path.to_string(), &json!(text), &why));
        }
        if let Some(pattern) = rules.pattern.as_ref().filter(|pattern| !pattern.is_match(text)) {
            let why = format!("{path} in body should match '{pattern}'");
            errors.push(Flaw::invalid(path.to_string(), &json!(text), &why));
        }
        if rules.format.as_deref() == Some("date-time") && text.parse::<jiff::Timestamp>().is_err() {
            let why = format!("{path} in body must be of type date-time: {}", json!(text));
            errors.push(Flaw::wrong_type(path.to_string(), &json!(text), &why));
        }
    }

    fn check_number(&self, value: &Value, path: Path<'_>, errors: &mut Vec<Flaw>) {
        let Some(number) = value.as_f64() else { return };
        let mut invalid = |why: String| errors.push(Flaw::invalid(path.to_string(), value, &why));
        if let Some(least) = self.rules.minimum.filter(|least| number < *least) {
            invalid(format!("{path} in body should be greater than or equal to {least}"));
        }
        if let Some(most) = self.rules.maximum.filter(|most| number > *most) {
            invalid(format!("{path} in body should be less than or equal to {most}"));
        }
        if self.rules.format.as_deref() == Some("int32") && value.as_i64().is_none_or(|n| i32::try_from(n).is_err()) {
            let why = format!("Checked value must be of type integer with format int32 in {path}");
            errors.push(Flaw::invalid("<nil>", &json!(""), &why));
        }
    }
}

impl Type {
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

    fn is_that_of(self, value: &Value) -> bool {
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

fn type_name(value: &Value) -> &'static str {
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

fn too_many(path: Path<'_>, count: usize, most: usize) -> Flaw {
    let text = format!("Too many: {count}: must have at most {most} items");
    Flaw { field: path.to_string(), cause: "FieldValueTooMany", text }
}
