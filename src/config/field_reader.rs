//! Reads the fields of a file one by one. An invalid field is recorded and reading continues, so
//! that all errors are reported together.

use std::cell::RefCell;

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use serde_json::Value;

use super::field_error::{FieldError, child_path, item_path};
use sluice_api::duration;
use sluice_api::kueue::ResourceList;
use sluice_api::quantity::Exact;
use sluice_api::selector::Selector;

/// A field of the file, which may be absent.
pub(super) struct FieldReader<'a> {
    path: String,
    value: &'a Value,
    errors: &'a RefCell<Vec<FieldError>>,
}

impl<'a> FieldReader<'a> {
    pub(super) fn new(file: &'a Value, problems: &'a RefCell<Vec<FieldError>>) -> Self {
        Self { path: String::new(), value: file, errors: problems }
    }

    /// Returns the member with this name, which may be absent.
    pub(super) fn field(&self, name: &str) -> Self {
        let value = self.value.get(name).unwrap_or(&Value::Null);
        Self { path: child_path(&self.path, name), value, errors: self.errors }
    }

    /// Returns the path of the field.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// Returns whether the field is present. `null` counts as absent, as in Kueue.
    pub(super) fn is_set(&self) -> bool {
        !self.value.is_null()
    }

    /// Records that the value is invalid. `allowed` follows "must be" in the message.
    pub(super) fn reject(&self, allowed: impl Into<String>) {
        self.errors.borrow_mut().push(FieldError::new(&self.path, self.value, allowed));
    }

    /// Returns the items of a list. Empty if the field is absent.
    pub(super) fn items(&self) -> Vec<Self> {
        let items = match self.value {
            Value::Null => return Vec::new(),
            Value::Array(items) => items,
            _ => {
                self.reject("a list");
                return Vec::new();
            }
        };
        let reader = |(index, value)| Self { path: item_path(&self.path, index), value, errors: self.errors };
        items.iter().enumerate().map(reader).collect()
    }

    /// Reads a boolean. None if the field is absent or invalid.
    pub(super) fn bool(&self) -> Option<bool> {
        self.read("true or false", Value::as_bool)
    }

    /// Reads a string. None if the field is absent, invalid, or empty, which Kueue's defaults treat
    /// as absent.
    pub(super) fn string(&self) -> Option<String> {
        self.read("a string", Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
    }

    /// Reads a required, non-empty string. (Kueue accepts empty ones: a prefix that matches
    /// everything, an input that no resource has.)
    pub(super) fn required_string(&self) -> Option<String> {
        let text = self.value.as_str().filter(|text| !text.is_empty());
        if text.is_none() {
            self.reject("a non-empty string");
        }
        text.map(str::to_owned)
    }

    /// Reads a non-negative integer that fits into an i32, as in Kueue.
    pub(super) fn count(&self) -> Option<u32> {
        self.read("an integer from 0 to 2147483647", |value| {
            value.as_u64().and_then(|count| i32::try_from(count).ok()).map(i32::unsigned_abs)
        })
    }

    /// Reads a port. None if the field is absent, invalid, or 0, which Kueue's defaults treat as
    /// absent.
    pub(super) fn port(&self) -> Option<u16> {
        let read = |value: &Value| value.as_u64().and_then(|port| u16::try_from(port).ok());
        self.read("a port from 1 to 65535", read).filter(|port| *port != 0)
    }

    /// Reads a non-negative duration in Go's notation. None if the field is absent or invalid.
    pub(super) fn duration(&self) -> Option<SignedDuration> {
        self.read("a non-negative duration like 5m or 1h30m", |value| {
            value.as_str().and_then(duration::parse).filter(|duration| !duration.is_negative())
        })
    }

    /// Reads one of several names, and returns the value that goes with it.
    pub(super) fn choice<T: Copy>(&self, choices: &[(&str, T)]) -> Option<T> {
        let allowed = choices.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(" or ");
        self.read(&allowed, |value| {
            let name = value.as_str()?;
            choices.iter().find(|(choice, _)| *choice == name).map(|(_, value)| *value)
        })
    }

    /// Reads a label selector. Invalid requirements are recorded and omitted. Returns `None` if there is
    /// no selector, or an operator does not exist.
    pub(super) fn label_selector(&self) -> Option<Selector> {
        if !self.is_set() {
            return None;
        }
        let labels = self.field("matchLabels");
        let members = labels.read("a mapping of labels to values", Value::as_object);
        let keys = members.into_iter().flat_map(|members| members.keys());
        let equal = keys.filter_map(|key| Some((key.clone(), labels.field(key).required_string()?))).collect();
        let expressions = self.field("matchExpressions").items();
        let requirements = expressions.iter().filter_map(Self::label_requirement).collect();
        LabelSelector { match_labels: Some(equal), match_expressions: Some(requirements) }.try_into().ok()
    }

    fn label_requirement(&self) -> Option<LabelSelectorRequirement> {
        const OPERATORS: &[(&str, bool)] = &[("In", true), ("NotIn", true), ("Exists", false), ("DoesNotExist", false)];
        let (key, operator, field) =
            (self.field("key").required_string(), self.field("operator"), self.field("values"));
        let has_values = operator.choice(OPERATORS);
        let values: Vec<String> = field.items().iter().filter_map(Self::required_string).collect();
        match has_values {
            None if !operator.is_set() => operator.reject("In or NotIn or Exists or DoesNotExist"),
            Some(true) if !field.is_set() => field.reject("a list of values with operators In and NotIn"),
            Some(false) if field.is_set() => field.reject("absent with operators Exists and DoesNotExist"),
            _ => {}
        }
        let operator = operator.value.as_str()?.to_owned();
        Some(LabelSelectorRequirement { key: key?, operator, values: Some(values) })
    }

    /// Reads quantities by resource name.
    pub(super) fn resource_list(&self) -> ResourceList {
        let members = self.read("a mapping of resources to quantities", Value::as_object);
        let names = members.into_iter().flat_map(|members| members.keys());
        names.filter_map(|name| Some((name.clone(), self.field(name).quantity()?))).collect()
    }

    fn quantity(&self) -> Option<Quantity> {
        let text = match self.value {
            Value::Number(number) => number.to_string(),
            Value::String(text) => text.clone(),
            _ => String::new(),
        };
        match Exact::parse_non_negative(&text) {
            Ok(_) => Some(Quantity(text)),
            Err(_) => {
                self.reject("a non-negative quantity like 4, 500m or 5Gi");
                None
            }
        }
    }

    fn read<T>(&self, allowed: &str, read: impl FnOnce(&'a Value) -> Option<T>) -> Option<T> {
        if !self.is_set() {
            return None;
        }
        let value = read(self.value);
        if value.is_none() {
            self.reject(allowed);
        }
        value
    }
}
