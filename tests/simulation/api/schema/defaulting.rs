//! Prunes unknown fields and applies defaults.

use serde_json::{Map, Value};

use super::{Schema, ValuePath};

/// Fields of every object, which schemas do not declare.
const OBJECT_FIELDS: [&str; 3] = ["apiVersion", "kind", "metadata"];

impl Schema {
    /// Removes unknown fields from an object and applies defaults; returns the paths of the removed
    /// fields. Values that are the same in `before` are skipped.
    pub fn prune_and_default(&self, object: &mut Value, before: Option<&Value>) -> Vec<String> {
        let mut dropped = Vec::new();
        self.prune_and_default_at(object, before, ValuePath::Root, &mut dropped);
        dropped
    }

    fn prune_and_default_at(
        &self,
        value: &mut Value,
        before: Option<&Value>,
        path: ValuePath<'_>,
        dropped: &mut Vec<String>,
    ) {
        if before == Some(value) {
            return;
        }
        match value {
            Value::Object(fields) => {
                self.prune(fields, path, dropped);
                self.apply_defaults(fields);
                for (name, value) in fields.iter_mut() {
                    if let Some(schema) = self.field(name) {
                        let before = before.and_then(|before| before.get(name));
                        schema.prune_and_default_at(value, before, ValuePath::Field(&path, name), dropped);
                    }
                }
            }
            Value::Array(items) => {
                let Some(schema) = self.item() else { return };
                for (index, item) in items.iter_mut().enumerate() {
                    let before = before.and_then(|before| before.get(index));
                    schema.prune_and_default_at(item, before, ValuePath::Index(&path, index), dropped);
                }
            }
            _ => {}
        }
    }

    /// Removes unknown fields. A null counts as a missing field, since no field of our CRDs is
    /// nullable.
    fn prune(&self, fields: &mut Map<String, Value>, path: ValuePath<'_>, dropped: &mut Vec<String>) {
        fields.retain(|name, value| {
            if matches!(path, ValuePath::Root) && OBJECT_FIELDS.contains(&name.as_str()) {
                return true;
            }
            match self.field(name) {
                Some(_) => !value.is_null(),
                None if self.preserves_unknown_fields => true,
                None => {
                    dropped.push(ValuePath::Field(&path, name).to_string());
                    false
                }
            }
        });
    }

    fn apply_defaults(&self, fields: &mut Map<String, Value>) {
        for (name, schema) in &self.properties {
            if let Some(default) = &schema.default
                && !fields.contains_key(name)
            {
                fields.insert(name.clone(), default.clone());
            }
        }
    }
}
