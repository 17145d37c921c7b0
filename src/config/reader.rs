//! Reads the fields of a file one by one. A field that isn't what it should be becomes a problem, and reading goes on, so that
//! all that is wrong is told at once.

use std::cell::RefCell;

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use serde_json::Value;

use super::problem::{Problem, child, item};
use sluice_api::duration;
use sluice_api::kueue::ResourceList;
use sluice_api::quantity::Exact;

/// A place in the file, where there may be something.
pub(super) struct Reader<'a> {
    path: String,
    value: &'a Value,
    problems: &'a RefCell<Vec<Problem>>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(file: &'a Value, problems: &'a RefCell<Vec<Problem>>) -> Self {
        Self { path: String::new(), value: file, problems }
    }

    /// The member with this name, whether it is there or not.
    pub(super) fn at(&self, name: &str) -> Self {
        let value = self.value.get(name).unwrap_or(&Value::Null);
        Self { path: child(&self.path, name), value, problems: self.problems }
    }

    /// Where in the file it is.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    pub(super) fn is_set(&self) -> bool {
        !self.value.is_null()
    }

    /// Says that the value can't be used.
    pub(super) fn refuse(&self, allowed: impl Into<String>) {
        self.problems.borrow_mut().push(Problem::new(&self.path, self.value, allowed));
    }

    /// The items, none when there is nothing.
    pub(super) fn items(&self) -> Vec<Self> {
        let items = match self.value {
            Value::Null => return Vec::new(),
            Value::Array(items) => items,
            _ => {
                self.refuse("a list");
                return Vec::new();
            }
        };
        let reader = |(index, value)| Self { path: item(&self.path, index), value, problems: self.problems };
        items.iter().enumerate().map(reader).collect()
    }

    pub(super) fn bool(&self) -> Option<bool> {
        self.read("true or false", Value::as_bool)
    }

    /// A text; an empty one is as good as none, as it is to Kueue's defaults.
    pub(super) fn text(&self) -> Option<String> {
        self.read("a text", Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
    }

    /// A text that must be there. (Kueue takes empty ones: a prefix that nothing escapes, an input that nothing has.)
    pub(super) fn required_text(&self) -> Option<String> {
        let text = self.value.as_str().filter(|text| !text.is_empty());
        if text.is_none() {
            self.refuse("a text that is not empty");
        }
        text.map(str::to_owned)
    }

    /// A whole number that is not negative and that Kueue can hold.
    pub(super) fn count(&self) -> Option<u32> {
        self.read("a whole number from 0 to 2147483647", |value| {
            value.as_u64().and_then(|count| i32::try_from(count).ok()).map(i32::unsigned_abs)
        })
    }

    /// A port; 0 is as good as none, as it is to Kueue's defaults.
    pub(super) fn port(&self) -> Option<u16> {
        let read = |value: &Value| value.as_u64().and_then(|port| u16::try_from(port).ok());
        self.read("a port, from 1 to 65535", read).filter(|port| *port != 0)
    }

    pub(super) fn duration(&self) -> Option<SignedDuration> {
        self.read("a duration that is not negative, like 5m or 1h30m", |value| {
            value.as_str().and_then(duration::parse).filter(|duration| !duration.is_negative())
        })
    }

    /// One of several names.
    pub(super) fn choice<T: Copy>(&self, choices: &[(&str, T)]) -> Option<T> {
        let allowed = choices.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(" or ");
        self.read(&allowed, |value| {
            let name = value.as_str()?;
            choices.iter().find(|(choice, _)| *choice == name).map(|(_, value)| *value)
        })
    }

    /// A label selector, as far as it can be read.
    pub(super) fn label_selector(&self) -> LabelSelector {
        let labels = self.at("matchLabels");
        let members = labels.read("a mapping from labels to their values", Value::as_object);
        let keys = members.into_iter().flat_map(|members| members.keys());
        let equal = keys.filter_map(|key| Some((key.clone(), labels.at(key).required_text()?))).collect();
        let expressions = self.at("matchExpressions").items();
        let requirements = expressions.iter().filter_map(Self::label_requirement).collect();
        LabelSelector { match_labels: Some(equal), match_expressions: Some(requirements) }
    }

    fn label_requirement(&self) -> Option<LabelSelectorRequirement> {
        const OPERATORS: &[(&str, bool)] = &[("In", true), ("NotIn", true), ("Exists", false), ("DoesNotExist", false)];
        let (key, operator, field) = (self.at("key").required_text(), self.at("operator"), self.at("values"));
        let has_values = operator.choice(OPERATORS);
        let values: Vec<String> = field.items().iter().filter_map(Self::required_text).collect();
        match has_values {
            None if !operator.is_set() => operator.refuse("In or NotIn or Exists or DoesNotExist"),
            Some(true) if !field.is_set() => field.refuse("the values that In and NotIn are about"),
            Some(false) if field.is_set() => field.refuse("nothing beside Exists and DoesNotExist"),
            _ => {}
        }
        let operator = operator.value.as_str()?.to_owned();
        Some(LabelSelectorRequirement { key: key?, operator, values: Some(values) })
    }

    /// Amounts by resource.
    pub(super) fn resource_list(&self) -> ResourceList {
        let members = self.read("a mapping from resources to quantities", Value::as_object);
        let names = members.into_iter().flat_map(|members| members.keys());
        names.filter_map(|name| Some((name.clone(), self.at(name).quantity()?))).collect()
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
                self.refuse("a quantity that is not negative, like 4, 500m or 5Gi");
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
            self.refuse(allowed);
        }
        value
    }
}
